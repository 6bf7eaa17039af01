// Private to attention of one row of each slot: copies from memory without branches, and norm and RoPE of a
// head's vector that was copied so.
#pragma once

#include "attention.cuh"

namespace ftmpi::cuda::step {

/// Elements of a vector to the end of its last chunk.
__device__ __forceinline__ unsigned whole_chunks(unsigned dim) {
    return (dim + num::kChunk - 1) / num::kChunk * num::kChunk;
}

/// p + index * stride in one multiplication.
template <class T> __device__ __forceinline__ T* offset(T* p, unsigned index, unsigned stride) {
    return p + std::uint64_t{index} * stride;
}

/// The compiler keeps what it is given here in a register, and does not make it again from where it came.
__device__ __forceinline__ unsigned kept(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}
template <class T> __device__ __forceinline__ T* kept(T* p) {
    asm volatile("" : "+l"(p));
    return p;
}

/// As copy_async(), of 8 or 16 bytes, where `wanted`; zeros where nothing is. Without a branch, across which
/// the compiler would not move what else is to be asked for at the same time.
template <int kBytes>
__device__ __forceinline__ void copy_wanted(bool wanted, void* shared, const void* global, bool there) {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const int bytes = there ? kBytes : 0, p = wanted;
    if constexpr (kBytes == 16)
        asm volatile(
            "{ .reg .pred p; setp.ne.s32 p, %3, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %2; }" ::"r"(
                to),
            "l"(global), "r"(bytes), "r"(p)
            : "memory");
    else
        asm volatile(
            "{ .reg .pred p; setp.ne.s32 p, %3, 0; @p cp.async.ca.shared.global [%0], [%1], 8, %2; }" ::"r"(
                to),
            "l"(global), "r"(bytes), "r"(p)
            : "memory");
}

/// Eight elements of the cache on their way into shared memory, or zeros.
template <KvType kType>
__device__ __forceinline__ void copy_eight(bool wanted, char* shared, const char* global, bool there) {
    constexpr int kBytes = 8 * kElementBytes<kType>, kOnce = kBytes < 16 ? kBytes : 16;
#pragma unroll
    for (int i = 0; i < kBytes; i += kOnce) copy_wanted<kOnce>(wanted, shared + i, global + i, there);
}

/// A vector of a head on its way through norm and RoPE, the work of a warp. Vector and weight lie in shared
/// memory in chunks kSpread floats apart; what they are copied from is 16-byte aligned.
struct HeadVector {
    float *y, *weight;
    float cos = 0.0f, sin = 0.0f;  ///< of pair `lane`

    /// Into a copy group that the caller closes and waits for; zeros to the end of the last chunk.
    __device__ __forceinline__ void ask(bool wanted, unsigned dim, const float* from, const float* weights) {
        const unsigned own = 4 * (threadIdx.x % 32);
#pragma unroll
        for (unsigned j = 0; j < kMostHeadDim; j += 128) {
            const unsigned i = own + j, to = spread(own) + j / num::kChunk * kSpread;
            copy_wanted<16>(wanted && i < whole_chunks(dim), y + to, from + i, i < dim);
            copy_wanted<16>(wanted && i < whole_chunks(dim), weight + to, weights + i, i < dim);
        }
    }
    __device__ __forceinline__ void ask_angles(const Attention& t, unsigned position) {
        const unsigned half = static_cast<unsigned>(t.rotary_dim) / 2, pair = threadIdx.x % 32;
        if (pair < half) angles(t, position, half, pair);
    }
    /// y = RoPE(RMSNorm(y) * weight); what is left of the last chunk stays zero.
    __device__ __forceinline__ void norm_rope(const Attention& t, unsigned position) {
        static_assert(kMostHeadDim <= num::kSegment, "the chunks' sums are one segment");
        const unsigned lane = threadIdx.x % 32, half = static_cast<unsigned>(t.rotary_dim) / 2;
        const unsigned whole = whole_chunks(static_cast<unsigned>(t.head_dim));
        __syncwarp();
        float c = 0.0f, squares = 0.0f;  // a lane takes a chunk
        if (lane * num::kChunk < whole) {
            const float* x = y + lane * kSpread;
#pragma unroll 4
            for (int i = 0; i < num::kChunk; i += 4)
                c = add_squares(*reinterpret_cast<const float4*>(x + i), c);
        }
#pragma unroll
        for (int j = 0; j < kMostHeadChunks; ++j) squares = squares + __shfl_sync(kWholeWarp, c, j);
        const float scale = num::rms_scale(squares, t.head_dim, t.eps);
#pragma unroll
        for (unsigned j = 0; j < kMostHeadDim; j += 128) {
            const unsigned at = spread(4 * lane) + j / num::kChunk * kSpread;
            if (4 * lane + j < whole) {
                float4& x = *reinterpret_cast<float4*>(y + at);
                x = rms_apply(x, scale, *reinterpret_cast<const float4*>(weight + at));
            }
        }
        __syncwarp();
#pragma unroll 1
        for (unsigned i = lane; i < half; i += 32) {
            if (i >= 32) angles(t, position, half, i);
            float &first = y[spread(i)], &second = y[spread(i + half)];
            const float a = first, b = second;
            first = num::rope_first(a, b, cos, sin);
            second = num::rope_second(a, b, cos, sin);
        }
        __syncwarp();
    }

private:
    static __device__ __forceinline__ unsigned spread(unsigned i) {
        return i + i / num::kChunk * (kSpread - num::kChunk);
    }
    __device__ __forceinline__ void angles(const Attention& t, unsigned position, unsigned half,
                                           unsigned pair) {
        const std::uint64_t at = std::uint64_t{position} * half + pair;
        cos = t.cos[at], sin = t.sin[at];
    }
};

}  // namespace ftmpi::cuda::step
