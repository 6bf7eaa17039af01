// The rate at which this backend's threads can read memory, for the roofline of a measurement.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "../cpu_backend.hpp"
#include "../error.hpp"
#include "threads.hpp"

namespace ftmpi {
namespace {

constexpr std::size_t kProbeBytes = std::size_t{512} << 20;  ///< more than the caches of one socket hold
constexpr int kPasses = 5;

}  // namespace

double CpuBackend::measure_read_rate() {
    const DeviceArray<std::uint64_t> memory(*this, static_cast<std::int64_t>(kProbeBytes / 8),
                                            "the read rate's probe");
    const std::int64_t words = memory.size(), piece = words / threads_ / 8 * 8;
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads_));
    double best = 0;
    // The first pass writes, so that pages exist, and are near the threads that read them.
    for (int pass = -1; pass < kPasses; ++pass) {
        const auto begin = std::chrono::steady_clock::now();
        pool_->run([&](int thread) {
            std::uint64_t* p = memory.data() + thread * piece;
            if (pass < 0) {
                for (std::int64_t i = 0; i < piece; ++i) p[i] = static_cast<std::uint64_t>(i + thread);
            } else {
                std::uint64_t part[8] = {};  // chains that do not wait for each other
                for (std::int64_t i = 0; i < piece; i += 8)
                    for (std::size_t j = 0; j < 8; ++j) part[j] += p[i + static_cast<std::int64_t>(j)];
                sums[static_cast<std::size_t>(thread)] = std::accumulate(part, part + 8, std::uint64_t{0});
            }
        });
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
        if (pass >= 0) best = std::max(best, static_cast<double>(piece * 8 * threads_) / spent.count());
    }
    // The sums are used, so that no compiler may leave the reading out.
    const auto n = static_cast<std::uint64_t>(piece);
    for (std::uint64_t t = 0; t < sums.size(); ++t)
        if (sums[t] != n * (n - 1) / 2 + n * t)
            throw Error(Exit::failure, "memory gave back other values than were written to it");
    return best;
}

}  // namespace ftmpi
