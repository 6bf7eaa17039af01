// What the mixers' kernels share: sums in the order of num::ordered_sum by the lanes of a warp.
#pragma once

#include <cstdint>
#include <vector>

#include "device_code.hpp"
#include "launch.hpp"

namespace ftmpi::cuda {

/// Vectors in shared memory whose chunks are read by different lanes lie in chunks of 36 floats: the chunks'
/// first elements are then in different banks, and still 16-byte aligned.
constexpr int kSpread = 36;

/// Place of element i when chunks are `pitch` floats apart.
__device__ __forceinline__ int padded_index(int i, int pitch) {
    return i + (pitch - num::kChunk) * (i / num::kChunk);
}

/// num::sum_of_squares of a vector of `count` elements in shared memory, given to every lane of the calling
/// warp. x is 16-byte aligned, count and pitch are multiples of 4.
__device__ __forceinline__ float warp_squares(const float* x, int count, int pitch) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float total = 0.0f;
    for (int s = 0; s < count; s += num::kSegment) {
        const int left = count - s < num::kSegment ? count - s : num::kSegment;
        const int chunks = (left + num::kChunk - 1) / num::kChunk;
        float c = 0.0f;
        if (lane < chunks) {
            const float* p = x + (s / num::kChunk + lane) * pitch;
            const int n = left - lane * num::kChunk < num::kChunk ? left - lane * num::kChunk : num::kChunk;
#pragma unroll 8
            for (int i = 0; i < n; i += 4) c = add_squares(*reinterpret_cast<const float4*>(p + i), c);
        }
        float segment = 0.0f;
        for (int j = 0; j < chunks; ++j) segment = segment + __shfl_sync(kWholeWarp, c, j);
        total = total + segment;
    }
    return total;
}

/// True when every row belongs to another slot: a step of decoding.
bool one_row_a_slot(const Rows& rows);

}  // namespace ftmpi::cuda
