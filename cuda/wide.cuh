// FP8 weights times activations in 24-bit block fixed point (numerics.hpp), as doubles: a segment's sum is an
// integer below 2^50 units, so double precision adds it exactly in any order. Only for files compiled by
// nvcc.
//
// A weight as a double is its code's exponent and fraction in a double's places: its value times 2^-1016,
// subnormal codes included (those are subnormal doubles, which a GPU multiplies at full rate). An
// activation's code comes times 2^1000, so that a product is a whole number of 2^-25 and no sum is subnormal.
#pragma once

#include "device_code.hpp"

// Cards that multiply doubles at half the rate of fp32 fmas or more. The others have 1/64 of it and take the
// integer form.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
#define FTMPI_FAST_FP64 1
#else
#define FTMPI_FAST_FP64 0
#endif

namespace ftmpi::cuda {

/// A code of an activation (an integer of up to 23 bits and a sign, as a float) times 2^1000.
__device__ __forceinline__ double wide_activation(float q) {
    return static_cast<double>(q) * __hiloint2double((1023 + 1000) << 20, 0);
}

/// What a sum of products of the two is multiplied by to be the integer of num::wide_sum.
constexpr double kWideSum = 33554432.0;

}  // namespace ftmpi::cuda
