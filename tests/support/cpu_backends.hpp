// The CPU backend in each form that this machine runs, and the comparison of bits that its tests share.
#pragma once

#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpu_backend.hpp"
#include "numerics.hpp"

namespace ftmpi::testing {

struct NamedBackend {
    std::string name;
    std::unique_ptr<Backend> backend;
};

/// Every instruction set this machine runs, with 1 and 2 threads.
inline std::vector<NamedBackend> cpu_backends() {
    std::vector<NamedBackend> all;
    for (Simd simd : {Simd::plain, Simd::avx2, Simd::avx512, Simd::avx512vnni, Simd::avx512amx})
        if (supported(simd))
            for (int threads : {1, 2}) {
                auto backend = make_cpu_backend(threads, simd);
                std::string name = backend->info().capability + ", " + std::to_string(threads) + " threads";
                all.push_back({std::move(name), std::move(backend)});
            }
    return all;
}

/// Same bits everywhere, or the first place that differs.
inline void check_equal(const std::vector<float>& got, const std::vector<float>& want,
                        const std::string& where) {
    BOOST_REQUIRE_EQUAL(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
        if (num::bits_of(got[i]) != num::bits_of(want[i])) {
            BOOST_ERROR(where << ": element " << i << " is " << got[i] << ", not " << want[i]);
            return;
        }
    BOOST_TEST(true);
}

}  // namespace ftmpi::testing
