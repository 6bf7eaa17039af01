// What the GPU checks share: one line a check, device buffers whose surroundings
// are watched, and a comparison of bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../../cuda/runtime/handles.hpp"
#include "../../src/backend.hpp"
#include "../support/random.hpp"

namespace ftmpi::gpu_check {

inline int passed = 0, failed = 0;

inline void report(bool ok, const std::string& what, const std::string& why = {}) {
    ++(ok ? passed : failed);
    std::printf("%s  %s%s%s\n", ok ? "ok  " : "MISS", what.c_str(), why.empty() ? "" : ": ", why.c_str());
    std::fflush(stdout);
}

/// A device copy between two zones of NaNs. A buffer that holds nothing yet is all NaN.
class Guarded {
public:
    static constexpr std::size_t kZone = 4096;
    static constexpr std::uint32_t kNan = 0x7fc0beefu;

    explicit Guarded(std::size_t bytes)
        : bytes_(bytes), memory_((bytes + 3) / 4 * 4 + 2 * kZone, "a test buffer") {
        const std::vector<std::uint32_t> nans(memory_.bytes() / 4, kNan);
        FTMPI_CUDA(cudaMemcpy(memory_.data(), nans.data(), memory_.bytes(), cudaMemcpyHostToDevice));
    }
    template <class T> explicit Guarded(const std::vector<T>& v) : Guarded(v.size() * sizeof(T)) {
        FTMPI_CUDA(cudaMemcpy(data(), v.data(), bytes_, cudaMemcpyHostToDevice));
    }
    char* data() const { return static_cast<char*>(memory_.data()) + kZone; }
    float* floats() const { return reinterpret_cast<float*>(data()); }
    template <class T> std::vector<T> read() const {
        std::vector<T> v(bytes_ / sizeof(T));
        FTMPI_CUDA(cudaMemcpy(v.data(), data(), v.size() * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
    bool intact() const {
        std::vector<std::uint32_t> all(memory_.bytes() / 4);
        FTMPI_CUDA(cudaMemcpy(all.data(), memory_.data(), memory_.bytes(), cudaMemcpyDeviceToHost));
        const auto is_nan = [](std::uint32_t u) { return u == kNan; };
        return std::all_of(all.begin(), all.begin() + kZone / 4, is_nan) &&
               std::all_of(all.begin() + static_cast<std::ptrdiff_t>(kZone / 4 + (bytes_ + 3) / 4), all.end(),
                           is_nan);
    }

private:
    std::size_t bytes_;
    cuda::DeviceMemory memory_;
};

/// Empty when equal, else the first place that differs.
template <class T>
std::string difference(const char* what, const std::vector<T>& got, const std::vector<T>& want) {
    if (got.size() != want.size()) return std::string(what) + " has another size";
    std::size_t first = got.size(), count = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
        if (std::memcmp(&got[i], &want[i], sizeof(T)) != 0) {
            if (count++ == 0) first = i;
        }
    if (count == 0) return {};
    char text[200];
    std::snprintf(text, sizeof text, "%s: %zu of %zu differ, first [%zu] is %.9g, not %.9g", what, count,
                  got.size(), first, static_cast<double>(got[first]), static_cast<double>(want[first]));
    return text;
}

/// Rows [first, first + n) of a slot, positions from `position`.
inline void append(std::vector<Row>& rows, int slot, int position, int n) {
    for (int i = 0; i < n; ++i) rows.push_back({0, slot, position + i});
}

}  // namespace ftmpi::gpu_check
