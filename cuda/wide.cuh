// FP8 weights times activations in 24-bit block fixed point (numerics.hpp), as doubles: a segment's sum is an
// integer below 2^50 units, so double precision adds it exactly in any order, on tensor cores too. Only for
// files compiled by nvcc.
//
// A weight as a double is its code's exponent and fraction in a double's places: its value times 2^-1016,
// subnormal codes included (those are subnormal doubles, which a GPU multiplies at full rate). An
// activation's code comes times 2^1000, so that a product is a whole number of 2^-25 and no sum is subnormal.
#pragma once

#include "device_code.hpp"

// Cards whose tensor cores multiply doubles at the rate of their fp32 fmas. The others have 1/64 of it and
// take the integer form.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
#define FTMPI_FP64_TENSOR 1
#else
#define FTMPI_FP64_TENSOR 0
#endif

namespace ftmpi::cuda {

/// Code i of a word as a double: value * 2^-1016.
template <int i> __device__ __forceinline__ double wide_weight(std::uint32_t codes) {
    const auto top = static_cast<int>(i == 3 ? codes : codes << (24 - 8 * i));
    return __hiloint2double((top >> 7) & 0x80fe0000, 0);
}

/// A code of an activation (an integer of up to 23 bits and a sign, as a float) times 2^1000.
__device__ __forceinline__ double wide_activation(float q) {
    return static_cast<double>(q) * __hiloint2double((1023 + 1000) << 20, 0);
}

/// What a sum of products of the two is multiplied by to be the integer of num::wide_sum.
constexpr double kWideSum = 33554432.0;

/// c += a * b of 16 x 16 and 16 x 8 doubles on a warp. Lane 4g + w gives a[2i], a[2i + 1]: column 4i + w of
/// rows g and g + 8; b[i]: row 4i + w of column g; and has c[0], c[1]: columns 2w, 2w + 1 of row g, c[2],
/// c[3] of row g + 8.
__device__ __forceinline__ void multiply_doubles(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, "
        "{%12,%13,%14,%15}, {%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]),
          "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                         : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
                         : "d"(a[2 * i + half]), "d"(b[i]));
#endif
}

}  // namespace ftmpi::cuda
