// The one input row of a step of decoding, at a width known when a kernel is compiled, as all threads of a
// block have it. Only for files compiled by nvcc.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#pragma once

#include "gemv.cuh"

namespace ftmpi::cuda {

/// The input row: asked for at the start, staged as stage_floats() does it, normed before if there is a norm.
template <int kChunks> class RowInput {
public:
    /// Asks for the norm's weights.
    __device__ __forceinline__ RowInput(const VecTask& a, int thread) : a_(a), thread_(thread) {
        if (kEarly && a.norm.weight)
#pragma unroll
            for (int j = 0; j < kQuads; ++j) weight_[j] = weight_of(j);
    }
    /// Asks for the row.
    __device__ __forceinline__ void ask() {
        const auto* from = reinterpret_cast<const float4*>(a_.norm.weight ? a_.norm.from : a_.x);
        const auto* plus = reinterpret_cast<const float4*>(a_.norm.plus);
#pragma unroll
        for (int j = 0; j < kQuads; ++j) x_[j] = from[quad(j)];
        if (plus)
#pragma unroll
            for (int j = 0; j < kQuads; ++j) plus_[j] = plus[quad(j)];
    }
    __device__ __forceinline__ void stage(float4* staged) {
#pragma unroll
        for (int j = 0; j < kQuads; ++j) at(staged, j) = x_[j];
    }
    /// The row, or what stage_normed() made of it, by fours: f(values, quad of the row, num::pow2(-e)) with
    /// the exponent of their segment, values of 0 where that is not finite; units: num::wide_unit() of the
    /// segments. `most`: a word of shared memory for every warp and quad of a thread.
    template <class Function>
    __device__ __forceinline__ void segments(std::uint32_t* most, Function f, float* units) {
        const int warp = thread_ / 32;
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
            const auto bits = [](float v) { return num::bits_of(v) & 0x7fffffffu; };
            const std::uint32_t m = __reduce_max_sync(
                kWholeWarp, max(max(bits(x_[j].x), bits(x_[j].y)), max(bits(x_[j].z), bits(x_[j].w))));
            if (thread_ % 32 == 0) most[j * kWarps + warp] = m;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
            const int segment = (j * kWarps + warp) / 4;  // of four warps
            const uint4 m = reinterpret_cast<const uint4*>(most)[segment];
            const int e = num::wide_exponent(max(max(m.x, m.y), max(m.z, m.w)));
            const bool finite = e != num::kNotFinite;
            f(finite ? x_[j] : make_float4(0, 0, 0, 0), quad(j), num::pow2(finite ? -e : 0));
            if (thread_ % 128 == 0) units[segment] = num::wide_unit(e);
        }
    }
    /// sum = from + plus, then the norm of it. Every block does it for itself, which costs less than a kernel
    /// of its own; one writes the results. `segments`: kChunks / 16 floats of shared memory.
    template <bool kStore> __device__ __forceinline__ void stage_normed(float4* staged, float* segments) {
        const bool writer = blockIdx.x == 0;
        if (a_.norm.plus) {
#pragma unroll
            for (int j = 0; j < kQuads; ++j) {
                x_[j] = {x_[j].x + plus_[j].x, x_[j].y + plus_[j].y, x_[j].z + plus_[j].z,
                         x_[j].w + plus_[j].w};
                if (writer) reinterpret_cast<float4*>(a_.norm.sum)[quad(j)] = x_[j];
            }
        }
        stage(staged);
        __syncthreads();
        if (thread_ < kChunks) {
            float chunk = 0.0f;
#pragma unroll
            for (int k = 0; k < kFloatPlanes; ++k) {
                const float4 v = staged[k * kPitch + thread_];
                chunk = num::fma(v.x, v.x, chunk);
                chunk = num::fma(v.y, v.y, chunk);
                chunk = num::fma(v.z, v.z, chunk);
                chunk = num::fma(v.w, v.w, chunk);
            }
            float segment = 0.0f;
#pragma unroll
            for (int k = 0; k < 16; ++k) segment = segment + __shfl_sync(kWholeWarp, chunk, k, 16);
            if (thread_ % 16 == 0) segments[thread_ / 16] = segment;
        }
        __syncthreads();
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < kChunks / 16; ++k) total = total + segments[k];
        const float scale = num::rms_scale(total, kChunks * num::kChunk, a_.norm.eps);
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
            const float4 w = kEarly ? weight_[j] : weight_of(j);
            const float4 y = {num::rms_apply(x_[j].x, scale, w.x), num::rms_apply(x_[j].y, scale, w.y),
                              num::rms_apply(x_[j].z, scale, w.z), num::rms_apply(x_[j].w, scale, w.w)};
            if (kStore) at(staged, j) = y;
            x_[j] = y;
            if (writer) reinterpret_cast<float4*>(a_.norm.out)[quad(j)] = y;
        }
    }

private:
    static constexpr int kQuads = kChunks * kFloatPlanes / kThreads, kPitch = plane_pitch(kChunks);
    static constexpr bool kEarly = kQuads <= 2;  // else they would not fit the registers
    static_assert(kQuads * kThreads == kChunks * kFloatPlanes && kChunks <= kThreads);
    __device__ __forceinline__ int quad(int j) const { return thread_ + j * kThreads; }
    __device__ __forceinline__ float4& at(float4* staged, int j) const {
        return staged[(quad(j) & 7) * kPitch + (quad(j) >> 3)];
    }
    __device__ __forceinline__ float4 weight_of(int j) const {
        return __ldg(reinterpret_cast<const float4*>(a_.norm.weight) + quad(j));
    }

    const VecTask& a_;
    int thread_;
    float4 x_[kQuads], plus_[kQuads], weight_[kQuads];
};

}  // namespace ftmpi::cuda
