// A tensor as it lies in a mapped file, and the half-open ranges that cuts are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtype.hpp"

namespace ftmpi {

/// Rows, columns, heads or units [begin, end) of something. Empty when begin == end.
struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    constexpr std::int64_t size() const { return end - begin; }
    constexpr bool empty() const { return end <= begin; }
    constexpr Range operator*(std::int64_t unit) const { return {begin * unit, end * unit}; }
    friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// One tensor of a checkpoint. `data` points into a read-only mapping that lives as long as the
/// Checkpoint; row-major, no padding, not necessarily aligned. A rank-0 scalar has an empty shape.
struct TensorView {
    std::string name;
    DType dtype = DType::u8;
    std::vector<std::int64_t> shape;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    int file = 0;  ///< index into Checkpoint::files()

    std::int64_t elements() const {
        std::int64_t n = 1;
        for (auto d : shape) n *= d;
        return n;
    }
    /// Size of dimension `d`, counted from the end when negative; 1 beyond the rank.
    std::int64_t dim(int d) const {
        const int r = static_cast<int>(shape.size());
        if (d < 0) d += r;
        return d >= 0 && d < r ? shape[static_cast<std::size_t>(d)] : 1;
    }
};

}  // namespace ftmpi
