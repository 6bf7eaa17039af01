// Private to the Gated DeltaNet's kernels: the convolution window of a channel and the delta rule with its
// chunks on lanes. Shapes of qkv, z, b, a and out are those of launch.hpp.
#pragma once

#include "../kernels.hpp"
#include "../mixers.cuh"

namespace ftmpi::cuda {

constexpr int kMostTaps = 8;
constexpr int kMostDeltaDim = 256;  ///< of keys and of values

__device__ __forceinline__ int channels_of(const DeltaNet& net) {
    return 2 * net.key_heads * net.key_dim + net.value_heads * net.value_dim;
}

/// num::causal_conv with window and weights in registers, then SiLU. w[j] and u[j] count for j < taps.
__device__ __forceinline__ float convolved(const float (&w)[kMostTaps], const float (&u)[kMostTaps],
                                           int taps) {
    float c = w[0] * u[0];
#pragma unroll
    for (int j = 1; j < kMostTaps; ++j)
        if (j < taps) c = num::fma(w[j], u[j], c);
    return num::silu(c);
}

/// The sum of a column's chunk values in the order of num::ordered_sum, in every lane of the column. Lane =
/// chunk * columns + column.
template <int kChunks> __device__ __forceinline__ float add_chunks(float c) {
    constexpr int kColumns = 32 / kChunks;
    const int column = static_cast<int>(threadIdx.x) % kColumns;
    float chunk[kChunks];
#pragma unroll
    for (int j = 0; j < kChunks; ++j) chunk[j] = __shfl_sync(kWholeWarp, c, j * kColumns + column);
    float segment = 0.0f;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) segment = segment + chunk[j];
    return 0.0f + segment;
}

/// 32 rows of one column of a head's state in a thread's registers. Rows beyond key_dim are zero and stay
/// zero.
struct StateChunk {
    float s[num::kChunk];

    __device__ __forceinline__ void load(const float* column, std::int64_t pitch, int count) {
#pragma unroll
        for (int i = 0; i < num::kChunk; ++i) s[i] = i < count ? column[i * pitch] : 0.0f;
    }
    __device__ __forceinline__ void store(float* column, std::int64_t pitch, int count) const {
#pragma unroll
        for (int i = 0; i < num::kChunk; ++i)
            if (i < count) column[i * pitch] = s[i];
    }
    /// The decay, and the chunk of the read that follows it.
    __device__ __forceinline__ float decay_and_read(const float* key, float decay) {
        float c = 0.0f;
#pragma unroll
        for (int i = 0; i < num::kChunk; i += 4) {
            const float4 k = *reinterpret_cast<const float4*>(key + i);
            decay_one(s[i], k.x, decay, c);
            decay_one(s[i + 1], k.y, decay, c);
            decay_one(s[i + 2], k.z, decay, c);
            decay_one(s[i + 3], k.w, decay, c);
        }
        return c;
    }
    /// The write of d and the chunk of the read with the query.
    __device__ __forceinline__ float write_and_read(const float* key, const float* query, float d) {
        float c = 0.0f;
#pragma unroll
        for (int i = 0; i < num::kChunk; i += 4) {
            const float4 k = *reinterpret_cast<const float4*>(key + i),
                         q = *reinterpret_cast<const float4*>(query + i);
            write_one(s[i], k.x, q.x, d, c);
            write_one(s[i + 1], k.y, q.y, d, c);
            write_one(s[i + 2], k.z, q.z, d, c);
            write_one(s[i + 3], k.w, q.w, d, c);
        }
        return c;
    }
    /// write_and_read of one token and decay_and_read of the next in one pass, so that their chains run side
    /// by side. Returns the first token's chunk and leaves the second's in `next`.
    __device__ __forceinline__ float both(const float* key, const float* query, float d,
                                          const float* next_key, float next_decay, float& next) {
        float c = 0.0f;
        next = 0.0f;
#pragma unroll
        for (int i = 0; i < num::kChunk; i += 4) {
            const float4 k = *reinterpret_cast<const float4*>(key + i),
                         q = *reinterpret_cast<const float4*>(query + i);
            const float4 n = *reinterpret_cast<const float4*>(next_key + i);
            write_one(s[i], k.x, q.x, d, c);
            decay_one(s[i], n.x, next_decay, next);
            write_one(s[i + 1], k.y, q.y, d, c);
            decay_one(s[i + 1], n.y, next_decay, next);
            write_one(s[i + 2], k.z, q.z, d, c);
            decay_one(s[i + 2], n.z, next_decay, next);
            write_one(s[i + 3], k.w, q.w, d, c);
            decay_one(s[i + 3], n.w, next_decay, next);
        }
        return c;
    }

private:
    static __device__ __forceinline__ void decay_one(float& s, float k, float decay, float& c) {
        s = s * decay;
        c = num::fma(s, k, c);
    }
    static __device__ __forceinline__ void write_one(float& s, float k, float q, float d, float& c) {
        s = num::fma(k, d, s);
        c = num::fma(s, q, c);
    }
};

/// At most kTickets / key_heads rows, each of another slot, at the sizes that the table says; tickets as
/// Scratch says, early as delta_net()'s.
void delta_net_decode(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z, const float* b,
                      const float* a, float* out, std::int64_t stride, unsigned* tickets, bool early,
                      cudaStream_t stream);

}  // namespace ftmpi::cuda
