// FP8 weights as bytes, and their products with the bytes of activations' codes on a warp's tensor cores.
// Only for files compiled by nvcc.
#pragma once

#include "../device_code.hpp"
#include "gemm.hpp"

namespace ftmpi::cuda {

constexpr int kPlanes = 3;  ///< bytes of a weight, and of a code

/// Four codes as the bytes of their integers: low, middle (unsigned) and high (signed).
__device__ __forceinline__ void expand(std::uint32_t codes, std::uint32_t& low, std::uint32_t& middle,
                                       std::uint32_t& high) {
    // Added to 1.5 * 2^21, where a float's last place is 2^-2, 2^7 times the value is its integer in the
    // lower bytes, and 0x40 more than its upper byte in the third.
    constexpr float kPlace = 3145728.0f;
    std::uint32_t v[4];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    float w[4];
    decode_e4m3(codes, w);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = num::bits_of(num::fma(w[i], 128.0f, kPlace));
#else
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const auto top = static_cast<int>(i == 3 ? codes : codes << (24 - 8 * i));
        const float scaled = num::float_of(static_cast<std::uint32_t>(top >> 4) & 0x87f00000u);
        v[i] = num::bits_of(num::fma(scaled, num::pow2(127), kPlace));  // of value * 2^-120
    }
#endif
    const std::uint32_t first = permute(v[0], v[1], 0x5410), last = permute(v[2], v[3], 0x5410);
    low = permute(first, last, 0x6420);
    middle = permute(first, last, 0x7531);
    const std::uint32_t z =
        permute(permute(v[0], v[1], 0x0062), permute(v[2], v[3], 0x0062), 0x5410);  // 0x3c .. 0x43
    high = (z & 0x3f3f3f3fu) | (z << 2 & 0xc0c0c0c0u);
}

/// Planes of 16 rows by 32 columns as the tensor cores take them.
using Planes = std::uint32_t[kPlanes][4];

/// Words `word` and the next of both rows.
template <int word> __device__ __forceinline__ void expand_rows(const uint4 (&rows)[2], Planes& to) {
#pragma unroll
    for (int i = 0; i < 4; ++i) expand(word_of(rows[i % 2], word + i / 2), to[0][i], to[1][i], to[2][i]);
}

/// c += a * b, 16 x 32 times 32 x 8: lane 4g + w gives elements 4w .. 4w + 3 of rows g and g + 8 (a[0],
/// a[1]), 16 columns further of the same (a[2], a[3]), and of column g (b.x, b.y); it holds columns 2w,
/// 2w + 1 of row g (c[0], c[1]) and g + 8. The bytes of a are signed in the `upper` plane.
__device__ __forceinline__ void multiply_planes(bool upper, int (&c)[4], const std::uint32_t (&a)[4],
                                                uint2 b) {
    if (upper)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

/// Sums by the weight of the planes' products, 2^(8 p) of a unit. int32 holds them for 512 columns: three
/// products of at most 255 * 128 each.
using Sums = int[2 * kPlanes - 1][4];

/// Element e of a segment, rounded once.
__device__ __forceinline__ float segment_of(const Sums& c, int e) {
    std::int64_t s = c[0][e];
#pragma unroll
    for (int p = 1; p < 2 * kPlanes - 1; ++p) s += c[p][e] * (std::int64_t{1} << (8 * p));
    return static_cast<float>(s);
}

/// Element e of a block of 128 columns, rounded once: it is below 2^48, so its lower 24 bits and the upper
/// ones are floats that meet in one fma.
__device__ __forceinline__ float block_of(const Sums& c, int e) {
    const int low = c[1][e] * 256 + c[0][e], middle = c[2][e] + (low >> 16),
              high = c[4][e] * 256 + c[3][e] + (middle >> 8);
    const int rest = static_cast<int>(permute(low, middle, 0x0410)) & 0xffffff;
    return num::fma(static_cast<float>(high), 16777216.0f, static_cast<float>(rest));
}

/// All products of a warp's rows and two groups of inputs for 32 columns. Products that share an accumulator
/// are three or more apart, longer than one takes.
template <int N>
__device__ __forceinline__ void multiply_group(Sums* sums, const Planes& a, const uint2 (&b)[N][kPlanes]) {
    constexpr int kWeight[9] = {0, 0, 1, 1, 0, 1, 2, 2, 2}, kCode[9] = {2, 1, 2, 1, 0, 0, 0, 1, 2};
#pragma unroll
    for (int i = 0; i < 9; ++i)
#pragma unroll
        for (int n = 0; n < N; ++n)
            multiply_planes(kWeight[i] == 2, sums[n][kWeight[i] + kCode[i]], a[kWeight[i]], b[n][kCode[i]]);
}

}  // namespace ftmpi::cuda
