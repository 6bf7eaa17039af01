// What the kernels of few input rows share: their task, and the input rows normed in every block.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#pragma once

#include "../kernels.hpp"
#include "wide_dot.cuh"

namespace ftmpi::cuda {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

struct VecMatrix {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    const float* multipliers;
    std::int64_t code_pitch, scale_pitch;
    float* out;
    std::int64_t stride;
    int rows;
    int first_unit;  ///< units of the matrices of the same format before this one
};

struct VecTask {
    VecMatrix matrices[kMatrices];
    int begin[kFormats + 1];  ///< matrices of format f are [begin[f], begin[f + 1])
    int units[kFormats];      ///< sets of rows that a warp works on together
    const float* x;
    int rows, cols, chunks;
    bool floats, codes, wide;  ///< what must be staged
    Norm norm;                 ///< of the input rows; without a weight there is none and x is the input
};

__host__ __device__ constexpr std::size_t staged_floats(int chunks) {
    return static_cast<std::size_t>(kFloatPlanes * plane_pitch(chunks));
}
__host__ __device__ constexpr std::size_t staged_codes(int chunks) {
    return static_cast<std::size_t>(kCodePlanes * plane_pitch(chunks));
}

/// Floats for the sums of squares of t rows.
__host__ __device__ constexpr int norm_sums(int t, int chunks) { return t * ((chunks + 15) / 16) * 17; }

constexpr int kWeights = 2;

/// T input rows normed into `floats`, as stage_floats() lays them out. Every block does it for itself, which
/// costs less than a kernel of its own; one writes the results. `w`: the norm's weights of elements 4 *
/// (thread + j * kThreads) .., asked for early.
template <int T>
__device__ __forceinline__ void stage_normed(const VecTask& a, const float4 (&w)[kWeights], float* sums,
                                             uint4* floats, int thread) {
    const int chunks = a.chunks, cols = a.cols;
    const int pitch = plane_pitch(chunks), quads = cols / 4, segments = (chunks + 15) / 16;
    const auto staged = [&](int i, int q) -> float4& {
        return reinterpret_cast<float4*>(floats + i * staged_floats(chunks))[(q & 7) * pitch + (q >> 3)];
    };
    const auto row_of = [&](int i) { return static_cast<int>(blockIdx.y) * T + i; };
    const auto quads_of = [&](const float* rows, int t) {
        return reinterpret_cast<const float4*>(rows +
                                               static_cast<std::int64_t>(t < a.rows ? t : a.rows - 1) * cols);
    };
    const bool writer = blockIdx.x == 0;
#pragma unroll
    for (int i = 0; i < T; ++i) {
        const int t = row_of(i);
        const float4* from = quads_of(a.norm.from, t);
        const float4* plus = a.norm.plus ? quads_of(a.norm.plus, t) : nullptr;
        for (int q = thread; q < chunks * kFloatPlanes; q += kThreads) {
            float4 v = {0, 0, 0, 0};  // of squares, zeros add nothing
            if (q < quads) {
                v = from[q];
                if (plus) {
                    const float4 b = plus[q];
                    v.x = v.x + b.x, v.y = v.y + b.y, v.z = v.z + b.z, v.w = v.w + b.w;
                    if (writer && t < a.rows)
                        reinterpret_cast<float4*>(a.norm.sum + static_cast<std::int64_t>(t) * cols)[q] = v;
                }
            }
            staged(i, q) = v;
        }
    }
    __syncthreads();
    for (int c = thread; c < T * segments * 16; c += kThreads) {
        const int i = c / (segments * 16), chunk = c % (segments * 16);
        float sum = 0.0f;
        if (chunk < chunks)
#pragma unroll
            for (int k = 0; k < kFloatPlanes; ++k) {
                const float4 v = staged(i, 8 * chunk + k);
                sum = num::fma(v.x, v.x, sum);
                sum = num::fma(v.y, v.y, sum);
                sum = num::fma(v.z, v.z, sum);
                sum = num::fma(v.w, v.w, sum);
            }
        sums[c] = sum;
    }
    __syncthreads();
    float* of_segment = sums + T * segments * 16;
    if (thread < T * segments) {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < 16; k += 4) {
            const float4 v = *reinterpret_cast<const float4*>(sums + 16 * thread + k);
            sum = (((sum + v.x) + v.y) + v.z) + v.w;
        }
        of_segment[thread] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T; ++i) {
        const int t = row_of(i);
        float total = 0.0f;
        for (int k = 0; k < segments; ++k) total = total + of_segment[i * segments + k];
        const float scale = num::rms_scale(total, cols, a.norm.eps);
        for (int q = thread, j = 0; q < quads; q += kThreads, ++j) {
            const float4 weight = j == 0   ? w[0]
                                  : j == 1 ? w[1]
                                           : reinterpret_cast<const float4*>(a.norm.weight)[q];
            float4& v = staged(i, q);
            v = {num::rms_apply(v.x, scale, weight.x), num::rms_apply(v.y, scale, weight.y),
                 num::rms_apply(v.z, scale, weight.z), num::rms_apply(v.w, scale, weight.w)};
            if (writer && t < a.rows)
                reinterpret_cast<float4*>(a.norm.out + static_cast<std::int64_t>(t) * cols)[q] = v;
        }
    }
    __syncthreads();
}

/// The norm's weights that stage_normed() wants early.
__device__ __forceinline__ void load_norm_weights(const VecTask& a, float4 (&w)[kWeights], int thread) {
#pragma unroll
    for (int j = 0; j < kWeights; ++j) {
        const int q = thread + j * kThreads;
        w[j] = a.norm.weight && 4 * q < a.cols ? __ldg(reinterpret_cast<const float4*>(a.norm.weight) + q)
                                               : make_float4(0, 0, 0, 0);
    }
}

/// One row at a width that the kernel knows, as the table says; normed before when the norm has a weight.
void gemv(std::span<const Projection> to, const float* x, const Norm& norm, const Card& card,
          cudaStream_t stream);
/// Few rows at a width that the kernel knows, FP8 in one of its formats and BF16 beside it, as the table
/// says; normed before when the norm has a weight.
std::size_t gemv_tiles_scratch(std::int64_t rows, std::int64_t cols);
void gemv_tiles(std::span<const Projection> to, const float* x, std::int64_t rows, const Norm& norm,
                const Card& card, Scratch scratch, cudaStream_t stream);
/// Up to kManyRows - 1 rows of any width; all matrices of CommonFormats, or of the others. With a norm, at
/// most kMatrices; false: it does not fit the shared memory, and nothing was launched.
bool gemv_any(std::span<const Projection> to, const float* x, std::int64_t rows, const Norm& norm,
              const Card& card, cudaStream_t stream);

}  // namespace ftmpi::cuda
