// FP8 weights times few rows of activations in 24-bit block fixed point (numerics.hpp) on half precision
// tensor cores, one warp at work on 16 rows of a matrix and 128 columns. Only for files compiled by nvcc.
//
// An activation's code is three signed bytes, each exact in half precision. A weight is an integer (up to
// 448) and a rest (up to 1/2 in steps of 2^-9), both exact in half precision. So the products of one of the
// two with one of the bytes sum up to an integer of up to 448 * 128 * 128 < 2^23 units: exact in single
// precision, in any order, as tensor cores add at least its 24 bits below the largest term. It costs
// about 2.5 instructions a weight, where doubles would cost 3 and twice the time of the tensor cores, and it
// runs the same on every card from compute capability 8.0 on.
#pragma once

#include "../device_code.hpp"
#include "../formats.hpp"
#include "../wide.cuh"

namespace ftmpi::cuda {

constexpr int kUnitChunks = 4, kTileHeight = 16;  ///< a unit: 16 rows and 128 columns
constexpr int kDigits = 3;

/// Sums of integers below 2^50 and their conversion: in double where that is fast.
#if FTMPI_FAST_FP64
using Exact = double;
__device__ __forceinline__ Exact exact_of(float high, float low) {
    return static_cast<double>(high) + static_cast<double>(low);
}
__device__ __forceinline__ Exact add_digit(Exact upper, Exact lower) { return __fma_rn(upper, 256.0, lower); }
__device__ __forceinline__ float float_of_exact(Exact x) { return static_cast<float>(x * 512.0); }
#else
using Exact = long long;
__device__ __forceinline__ Exact exact_of(float high, float low) {
    return static_cast<long long>(__float2int_rn(high)) * 512 + __float2int_rn(low * 512.0f);
}
__device__ __forceinline__ Exact add_digit(Exact upper, Exact lower) { return upper * 256 + lower; }
__device__ __forceinline__ float float_of_exact(Exact x) { return __ll2float_rn(x); }
#endif

// ---- pairs of halves

__device__ __forceinline__ std::uint32_t add_halves(std::uint32_t a, std::uint32_t b) {
    std::uint32_t r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ std::uint32_t subtract_halves(std::uint32_t a, std::uint32_t b) {
    std::uint32_t r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/// The values of two e4m3 codes (no NaN codes).
__device__ __forceinline__ std::uint32_t halves_of_e4m3(std::uint32_t codes, bool upper) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
        : "=r"(halves)
        : "h"(static_cast<std::uint16_t>(upper ? codes >> 16 : codes)));
    return halves;
#else
    // The code's exponent and fraction in a half's places are its value times 2^-8, subnormal codes included.
    const std::uint32_t spread = permute(codes, 0, upper ? 0x3424u : 0x1404u);
    const std::uint32_t small = (spread & 0x80008000u) | ((spread >> 1) & 0x3f803f80u);
    std::uint32_t halves;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(small), "r"(0x5c005c00u));
    return halves;
#endif
}

/// c += a * b of 16 x 16 and 16 x 8 halves on a warp. Lane 4g + w gives columns 2w, 2w + 1 of rows g (a[0])
/// and g + 8 (a[1]), columns 8 more of both (a[2], a[3]), the same rows of column g (b0, b1), and has columns
/// 2w, 2w + 1 of row g (c[0], c[1]) and of row g + 8.
__device__ __forceinline__ void multiply_halves(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- activations
//
// Staged: for every eight columns (an octet) and each of kT rows a word of 16 bytes for each of the three
// digits, as halves; the words that the lanes of a warp read together lie together.

/// Words of 16 bytes of kT rows of so many units.
__host__ __device__ constexpr int digit_words(int kT, int units) { return units * 16 * kDigits * kT; }

/// The word of octet o of row t; digit d lies 4 * kT words behind it.
template <int kT> __device__ __forceinline__ int digit_word(int o, int t) {
    return (((o >> 4) * 4 + (o & 3)) * (kDigits * kT) + t) * 4 + ((o >> 2) & 3);
}

/// Octet o of row t as digits; to: the staged rows.
template <int kT>
__device__ __forceinline__ void store_digits(const float* v, float inverse, bool finite, uint4* to, int o,
                                             int t) {
    std::uint32_t biased[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int q = __float2int_rn(v[i] * inverse);
        biased[i] = static_cast<std::uint32_t>(finite ? q : 0) + 0x00808080u;  // 128 more in each digit
    }
    uint4* word = to + digit_word<kT>(o, t);
    std::uint32_t h[kDigits][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // 1024 + byte, as 0x64 above it is the exponent of 1024 with an ulp of 1.
        const std::uint32_t a = biased[2 * i], b = biased[2 * i + 1], two = permute(a, b, 0x5140u);
        h[0][i] = subtract_halves(permute(two, 0x64646464u, 0x4140u), 0x64806480u);
        h[1][i] = subtract_halves(permute(two, 0x64646464u, 0x4342u), 0x64806480u);
        h[2][i] = subtract_halves(permute(permute(a, b, 0x0062u), 0x64646464u, 0x4140u), 0x64806480u);
    }
#pragma unroll
    for (int d = 0; d < kDigits; ++d) word[d * 4 * kT] = make_uint4(h[d][0], h[d][1], h[d][2], h[d][3]);
}

/// Quad q of the one row as digits.
__device__ __forceinline__ void store_digit_quad(const float4& v, float inverse, uint4* to, int q) {
    const auto biased = [&](float x) {
        return static_cast<std::uint32_t>(__float2int_rn(x * inverse)) + 0x00808080u;
    };
    const std::uint32_t a = biased(v.x), b = biased(v.y), c = biased(v.z), d = biased(v.w);
    const auto half = [](std::uint32_t pair, unsigned selector) {
        return subtract_halves(permute(pair, 0x64646464u, selector), 0x64806480u);
    };
    const std::uint32_t low[2] = {permute(a, b, 0x5140u), permute(c, d, 0x5140u)},
                        high[2] = {permute(a, b, 0x0062u), permute(c, d, 0x0062u)};
    auto* word = reinterpret_cast<uint2*>(to + digit_word<1>(q >> 1, 0)) + (q & 1);
    word[0] = make_uint2(half(low[0], 0x4140u), half(low[1], 0x4140u));
    word[8] = make_uint2(half(low[0], 0x4342u), half(low[1], 0x4342u));
    word[16] = make_uint2(half(high[0], 0x4140u), half(high[1], 0x4140u));
}

/// The warp's segment (512 columns) of row t into digits; octets 64 * segment + lane, + 32. v: the lane's
/// values of both, zeroes behind the last column. Octets from `octets` on are not stored. unit:
/// num::wide_unit().
template <int kT>
__device__ __forceinline__ void stage_segment(const float (&v)[16], int segment, int octets, int t, uint4* to,
                                              float* unit, int lane) {
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const std::uint32_t a = num::bits_of(v[i]) & 0x7fffffffu;
        most = a > most ? a : most;
    }
    most = __reduce_max_sync(kWholeWarp, most);
    const int e = num::wide_exponent(most);
    const bool finite = e != num::kNotFinite;
    const float inverse = num::pow2(finite ? -e : 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int o = 64 * segment + 32 * h + lane;
        if (o < octets) store_digits<kT>(v + 8 * h, inverse, finite, to, o, t);
    }
    if (lane == 0) *unit = num::wide_unit(e);
}

// ---- 16 rows and 128 columns

/// Sums of integers and rests. One or two input rows: column kT * digit + row; more: a product for each
/// digit.
template <int kT> struct TileSums {
    static constexpr int kProducts = kT > 2 ? kDigits : 1;
    float high[kProducts][4], low[kProducts][4];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) high[i][j] = low[i][j] = 0.0f;
    }
};

/// The lane's place among a unit's digits, of `rows` staged rows of kT: what it multiplies into columns that
/// nobody reads is a copy.
template <int kT> __device__ __forceinline__ int lane_digits(int lane, int rows) {
    const int g = lane >> 2, last = kT > 2 ? rows - 1 : kDigits * kT - 1;
    return (g < last ? g : last) * 4 + (lane & 3);
}

/// A word of a chunk of rows g and g + 8 of lane 4g + w: bytes p (0, 1) of chunk w of the unit. x: the lane's
/// place among the unit's digits, 8 * kDigits * kT * p further.
template <int kT>
__device__ __forceinline__ void multiply_words(const uint4& upper, const uint4& lower, const uint4* x,
                                               TileSums<kT>& sums) {
    constexpr int N = TileSums<kT>::kProducts;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint4 b[N];
#pragma unroll
        for (int i = 0; i < N; ++i) b[i] = x[(half * kDigits + i) * 4 * kT];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const std::uint32_t u = word_of(upper, 2 * half + j), l = word_of(lower, 2 * half + j);
            const std::uint32_t a[4] = {halves_of_e4m3(u, false), halves_of_e4m3(l, false),
                                        halves_of_e4m3(u, true), halves_of_e4m3(l, true)};
            std::uint32_t high[4], low[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                high[k] = subtract_halves(add_halves(a[k], 0x66006600u), 0x66006600u);  // 1536: to an integer
                low[k] = subtract_halves(a[k], high[k]);
            }
#pragma unroll
            for (int i = 0; i < N; ++i) {
                multiply_halves(sums.high[i], high, word_of(b[i], 2 * j), word_of(b[i], 2 * j + 1));
                multiply_halves(sums.low[i], low, word_of(b[i], 2 * j), word_of(b[i], 2 * j + 1));
            }
        }
    }
}

// ---- partial sums in shared memory

/// Bytes of the partial sums of 16 rows.
template <int kT>
constexpr int kPartBytes = 16 + (kT == 1   ? 2 * 16 * 16
                                 : kT == 2 ? 3 * 16 * 16
                                           : kT * 18 * 8);

template <int kT>
__device__ __forceinline__ void store_part(const TileSums<kT>& s, unsigned char* part, int lane) {
    const int g = lane >> 2, w = lane & 3;
    if constexpr (kT <= 2) {
        if (w > kT) return;
        auto* to = reinterpret_cast<float4*>(part) + w * 16;
        to[g] = {s.high[0][0], s.high[0][1], s.low[0][0], s.low[0][1]};
        to[g + 8] = {s.high[0][2], s.high[0][3], s.low[0][2], s.low[0][3]};
    } else {
        if (kT < 8 && 2 * w >= kT) return;
        auto* to = reinterpret_cast<Exact*>(part);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Exact x = exact_of(s.high[2][i], s.low[2][i]);
#pragma unroll
            for (int d = 1; d >= 0; --d) x = add_digit(x, exact_of(s.high[d][i], s.low[d][i]));
            to[(2 * w + i % 2) * 18 + g + 8 * (i / 2)] = x;
        }
    }
}
/// The sum of row `row` with input row t.
template <int kT> __device__ __forceinline__ Exact load_part(const unsigned char* part, int row, int t) {
    if constexpr (kT <= 2) {
        Exact x[kDigits];
        const auto* from = reinterpret_cast<const float*>(part);
#pragma unroll
        for (int d = 0; d < kDigits; ++d) {
            const float* f = from + ((kT == 1 ? d / 2 : d) * 16 + row) * 4 + (kT == 1 ? d % 2 : t);
            x[d] = exact_of(f[0], f[2]);
        }
        return add_digit(add_digit(x[2], x[1]), x[0]);
    } else {
        return reinterpret_cast<const Exact*>(part)[t * 18 + row];
    }
}

}  // namespace ftmpi::cuda
