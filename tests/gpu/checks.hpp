// What the GPU check programs share: random stored matrices and activations, comparison to the bit, a tally,
// timing.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "../../src/backend.hpp"
#include "../../src/error.hpp"
#include "../../src/numerics.hpp"

namespace ftmpi::check {

class Tally {
public:
    explicit Tally(std::string program) : program_(std::move(program)) {}
    void add(bool passed, const std::string& what) {
        ++(passed ? passed_ : failed_);
        if (!passed || loud) std::printf("%s  %s\n", passed ? "ok    " : "FAILED", what.c_str());
        std::fflush(stdout);
    }
    /// The last line; the exit status.
    int finish() const {
        std::printf("%s: %d passed, %d failed\n", program_.c_str(), passed_, failed_);
        return failed_ ? 1 : 0;
    }
    bool loud = false;  ///< prints passed checks too

private:
    std::string program_;
    int passed_ = 0, failed_ = 0;
};

/// Empty when both hold the same bits (any NaN equals any NaN), else the number of differences and the first.
inline std::string difference(const std::vector<float>& expected, const std::vector<float>& got) {
    std::size_t count = 0, first = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const bool both_nan = expected[i] != expected[i] && got[i] != got[i];
        if (both_nan || num::bits_of(expected[i]) == num::bits_of(got[i])) continue;
        if (count++ == 0) first = i;
    }
    if (count == 0) return {};
    char text[160];
    std::snprintf(text, sizeof text,
                  ": %zu of %zu differ, the first at %zu: expected %.9g (%08x), got %.9g (%08x)", count,
                  expected.size(), first, expected[first], num::bits_of(expected[first]), got[first],
                  num::bits_of(got[first]));
    return text;
}

using Random = std::mt19937_64;

inline std::uint64_t bits(Random& r, int n) { return r() >> (64 - n); }

inline std::uint8_t random_e4m3(Random& r) {
    const auto b = static_cast<std::uint8_t>(bits(r, 8));
    return (b & 0x7f) == 0x7f ? 0 : b;
}

/// Rows with all that kernels may meet: ordinary values, large ones, chunks of zeroes, denormals, negative
/// zeroes.
inline std::vector<float> random_activations(Random& r, std::int64_t rows, std::int64_t cols) {
    std::vector<float> x(static_cast<std::size_t>(rows * cols));
    std::normal_distribution<float> normal;
    for (std::int64_t t = 0; t < rows; ++t)
        for (std::int64_t k0 = 0; k0 < cols; k0 += 32) {
            const auto kind = bits(r, 5);
            const float size = kind == 0 ? 0.0f : kind == 1 ? 1e-39f : kind == 2 ? 300.0f : 1.0f;
            for (std::int64_t k = k0; k < k0 + 32 && k < cols; ++k)
                x[static_cast<std::size_t>(t * cols + k)] = bits(r, 6) == 0 ? -0.0f : normal(r) * size;
        }
    return x;
}

/// A stored matrix with random valid contents, in several tensors, on odd addresses.
class Stored {
public:
    Stored(Random& r, Format format, std::int64_t groups, std::int64_t rows, std::int64_t cols) {
        source.format = format;
        source.groups = groups;
        source.rows = rows;
        source.cols = cols;
        for (std::int64_t g = 0; g < groups; ++g)
            for (std::int64_t row = 0; row < rows;) {
                const std::int64_t n = rows > 8 && bits(r, 1) && row == 0 ? rows / 3 + 1 : rows - row;
                add_block(r, n);
                row += n;
            }
    }
    MatrixSource source;

private:
    std::byte* hold(std::size_t bytes) {
        memory_.emplace_back(bytes + 16);
        return memory_.back().data() + 1 + memory_.size() % 7;
    }
    void put_float(std::byte* p, float x, DType type) {
        if (type == DType::f32) {
            std::memcpy(p, &x, 4);
        } else {
            const std::uint16_t b = num::to_bf16(x);
            std::memcpy(p, &b, 2);
        }
    }
    /// A number without scale: exponents from far below 1 to a little above, some denormals.
    void put_plain(Random& r, std::byte* to) {
        const int fraction = source.format == Format::bf16 ? 7 : source.format == Format::f16 ? 10 : 23;
        const std::uint64_t least = source.format == Format::f16 ? 0 : 110;
        const int width = static_cast<int>(code_bytes(source.format, 1));
        std::uint64_t value = bits(r, fraction) | ((least + bits(r, 4)) << fraction);
        if (bits(r, 7) == 0) value &= (std::uint64_t{1} << fraction) - 1;
        value |= bits(r, 1) << (8 * width - 1);
        std::memcpy(to, &value, static_cast<std::size_t>(width));
    }
    void add_block(Random& r, std::int64_t rows) {
        const Format f = source.format;
        RowBlock b;
        b.rows = rows;
        b.pitch = code_bytes(f, source.cols) + (bits(r, 1) ? 0 : 5);
        names_.push_back("tensor." + std::to_string(names_.size()));
        b.name = names_.back();
        std::byte* codes = hold(b.pitch * static_cast<std::size_t>(rows));
        b.codes = codes;
        for (std::size_t i = 0; i < b.pitch * static_cast<std::size_t>(rows); ++i)
            codes[i] = static_cast<std::byte>(f == Format::fp8_row || f == Format::fp8_block ? random_e4m3(r)
                                                                                             : bits(r, 8));
        if (is_plain(f))
            for (std::int64_t row = 0; row < rows; ++row)
                for (std::int64_t k = 0; k < source.cols; ++k)
                    put_plain(r, codes + static_cast<std::size_t>(row) * b.pitch +
                                     static_cast<std::size_t>(k) * code_bytes(f, 1));
        std::uniform_real_distribution<float> scale(0.001f, 0.1f);
        const auto inner = static_cast<std::size_t>(scales_per_row(f, source.cols));
        if (is_4bit(f)) {
            b.scale_pitch = inner + (bits(r, 1) ? 0 : 3);
            std::byte* s = hold(b.scale_pitch * static_cast<std::size_t>(rows));
            b.scales = s;
            for (std::size_t i = 0; i < b.scale_pitch * static_cast<std::size_t>(rows); ++i)
                s[i] = static_cast<std::byte>(f == Format::mxfp4 ? 100 + bits(r, 5) : random_e4m3(r) & 0x7f);
        } else if (f == Format::fp8_block) {
            b.first_row = static_cast<std::int64_t>(bits(r, 8));
            b.scale_type = bits(r, 1) ? DType::f32 : DType::bf16;
            b.scale_pitch = inner * size_of(b.scale_type);
            const auto planes = static_cast<std::size_t>((b.first_row + rows + 127) / 128);
            std::byte* s = hold(b.scale_pitch * planes);
            b.scales = s;
            for (std::size_t i = 0; i < planes * inner; ++i)
                put_float(s + i * size_of(b.scale_type), scale(r), b.scale_type);
        }
        b.multiplier = scale(r);
        if (f == Format::fp8_row && bits(r, 1)) {
            b.row_scale_type = bits(r, 1) ? DType::f32 : DType::bf16;
            std::byte* s = hold(size_of(b.row_scale_type) * static_cast<std::size_t>(rows));
            b.row_scales = s;
            for (std::int64_t i = 0; i < rows; ++i)
                put_float(s + static_cast<std::size_t>(i) * size_of(b.row_scale_type), scale(r),
                          b.row_scale_type);
        }
        source.blocks.push_back(b);
    }
    std::deque<std::vector<std::byte>> memory_;
    std::deque<std::string> names_;
};

/// Device memory with the contents of a vector.
template <class T> DeviceArray<T> upload(Backend& b, const std::vector<T>& values) {
    DeviceArray<T> a(b, static_cast<std::int64_t>(values.size()), "check");
    if (!values.empty()) b.copy_in(a.data(), values.data(), a.bytes());
    return a;
}
template <class T> std::vector<T> download(Backend& b, const T* data, std::int64_t count) {
    std::vector<T> v(static_cast<std::size_t>(count));
    b.copy_out(v.data(), data, v.size() * sizeof(T));
    return v;
}

/// Median microseconds of one call, from graphs that hold all `calls` (rotate the buffers among them).
double median_microseconds(Backend& b, int calls, const std::function<void(int)>& call);
/// Bytes per second of a kernel that only reads.
double read_rate(Backend& b);

}  // namespace ftmpi::check
