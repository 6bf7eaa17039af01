// An input row in 24-bit block fixed point (numerics.hpp) as doubles. Included inside the anonymous namespace
// of each kernel source.
#pragma once

/// Where a coded row's parts lie: codes as doubles, then a unit a segment.
inline const double* wide_codes(const WideRow* row) { return reinterpret_cast<const double*>(row); }
inline const float* wide_units(const WideRow* row, std::int64_t cols) {
    return reinterpret_cast<const float*>(wide_codes(row) + cols);
}

std::size_t wide_bytes(std::int64_t cols) {
    const auto segments = (cols + num::kSegment - 1) / num::kSegment;
    return (static_cast<std::size_t>(8 * cols + 4 * segments) + 63) / 64 * 64;
}

void quantize_wide(const float* x, std::int64_t cols, WideRow* to) {
    auto* q = reinterpret_cast<double*>(to);
    auto* units = reinterpret_cast<float*>(q + cols);
    for (std::int64_t s = 0; s < cols; s += num::kSegment, ++units) {
        const std::int64_t end = s + num::kSegment < cols ? s + num::kSegment : cols;
        std::uint32_t amax = 0;
        for (std::int64_t k = s; k < end; ++k) {
            const std::uint32_t a = num::bits_of(x[k]) & 0x7fffffffu;
            amax = a > amax ? a : amax;
        }
        const int e = num::wide_exponent(amax);
        const float inverse = e == num::kNotFinite ? 0.0f : num::pow2(-e);
        *units = num::wide_unit(e);
        for (std::int64_t k = s; k < end; ++k)
            q[k] = e == num::kNotFinite ? 0.0 : static_cast<double>(num::wide_code(x[k], inverse));
    }
}
