// Private to attention's kernels: which queries read a key/value head, the cache's elements, norm and RoPE by
// a warp. Shapes of qg, k, v and out are those of launch.hpp.
#pragma once

#include <algorithm>

#include "../kernels.hpp"
#include "../mixers.cuh"

namespace ftmpi::cuda {

constexpr int kMostHeadDim = 256;
constexpr int kMostHeadChunks = kMostHeadDim / num::kChunk;

/// This rank's query heads that read its key/value head `kv`.
struct QueryHeads {
    int first, count;
};
__host__ __device__ inline QueryHeads query_heads_of(const Attention& t, int kv) {
    const int begin = (t.first_kv_head + kv) * t.group - t.first_query_head, end = begin + t.group;
    const int first = begin < 0 ? 0 : begin, last = end < t.query_heads ? end : t.query_heads;
    return {first, last > first ? last - first : 0};
}

/// Elements of a query head in qg: the query, and behind it the gate where there is one.
__host__ __device__ inline int query_pitch(const Attention& t) {
    return t.gated ? 2 * t.head_dim : t.head_dim;
}

template <KvType kType>
inline constexpr int kElementBytes = kType == KvType::fp32   ? 4
                                     : kType == KvType::bf16 ? 2
                                                             : 1;

/// kCount neighbouring elements as the cache stores them; all zero bits are zeros in every type.
template <KvType kType, int kCount> struct Stored {
    static constexpr int kWords = kCount * kElementBytes<kType> / 4;
    std::uint32_t w[kWords];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < kWords; ++i) w[i] = 0;
    }
    /// p is aligned to the elements' bytes, at most 16.
    __device__ __forceinline__ void load(const void* p) {
        if constexpr (kWords % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kWords / 4; ++i) {
                const uint4 v = static_cast<const uint4*>(p)[i];
                w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
            }
        } else if constexpr (kWords == 2) {
            const uint2 v = *static_cast<const uint2*>(p);
            w[0] = v.x, w[1] = v.y;
        } else {
            w[0] = *static_cast<const std::uint32_t*>(p);
        }
    }
    /// The same alignment.
    __device__ __forceinline__ void store(void* p) const {
        if constexpr (kWords % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kWords / 4; ++i)
                static_cast<uint4*>(p)[i] = {w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]};
        } else if constexpr (kWords == 2) {
            *static_cast<uint2*>(p) = {w[0], w[1]};
        } else {
            *static_cast<std::uint32_t*>(p) = w[0];
        }
    }
    /// Ties the elements to a loop's counter, so that they are not decoded ahead of the loop: that would take
    /// more registers than there are.
    __device__ __forceinline__ void stay_in_loop(int counter) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) asm("" : "+r"(w[i]) : "r"(counter));
    }
    __device__ __forceinline__ void decode(float scale, float (&x)[kCount]) const {
        if constexpr (kType == KvType::fp32) {
#pragma unroll
            for (int i = 0; i < kWords; ++i) x[i] = num::float_of(w[i]);
        } else if constexpr (kType == KvType::bf16) {
#pragma unroll
            for (int i = 0; i < kWords; ++i) {
                x[2 * i] = num::float_of(w[i] << 16);
                x[2 * i + 1] = num::float_of(w[i] & 0xffff0000u);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kWords; ++i) {
                float v[4];
                decode_e4m3(w[i], v);
                if ((((w[i] & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) !=
                    0)  // a code of a NaN, which the wide form may not know
                    for (int b = 0; b < 4; ++b)
                        v[b] = num::from_e4m3(static_cast<std::uint8_t>(w[i] >> (8 * b)));
#pragma unroll
                for (int b = 0; b < 4; ++b) x[4 * i + b] = v[b] * scale;
            }
        }
    }
};

/// Element i of a stored row becomes x.
template <KvType kType>
__device__ __forceinline__ void store_element(void* row, int i, float x, float scale) {
    if constexpr (kType == KvType::fp32) static_cast<float*>(row)[i] = x;
    else if constexpr (kType == KvType::bf16) static_cast<std::uint16_t*>(row)[i] = num::to_bf16(x);
    else static_cast<std::uint8_t*>(row)[i] = num::kv_to_fp8(x, scale);
}

/// Byte offset in the cache of a slot's first position of a key/value head.
template <KvType kType>
__device__ __forceinline__ std::int64_t cache_offset(const Attention& t, std::int64_t slot, int kv) {
    return (slot * t.kv_heads + kv) * t.capacity * t.head_dim * kElementBytes<kType>;
}

/// y = RoPE(RMSNorm(x) * weight) by a warp. y lies in shared memory in chunks `pitch` floats apart; what is
/// left of its last chunk becomes zero.
__device__ __forceinline__ void norm_rope(const Attention& t, const float* x, const float* weight,
                                          std::int64_t position, float* y, int pitch) {
    constexpr int kPerLane = kMostHeadDim / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32, dim = t.head_dim, half = t.rotary_dim / 2;
    const float *cos = t.cos + position * half, *sin = t.sin + position * half;
    float in[kPerLane], w[kPerLane], c[kPerLane / 2], s[kPerLane / 2];
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
        const int i = lane + 32 * j;
        in[j] = i < dim ? x[i] : 0.0f;
        w[j] = i < dim ? weight[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kPerLane / 2; ++j) {
        const int i = lane + 32 * j;
        c[j] = i < half ? cos[i] : 0.0f;
        s[j] = i < half ? sin[i] : 0.0f;
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
        if (32 * j < dim) y[j * pitch + lane] = in[j];
    __syncwarp();
    const float scale = num::rms_scale(warp_squares(y, dim, pitch), dim, t.eps);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
        if (lane + 32 * j < dim) y[j * pitch + lane] = num::rms_apply(in[j], scale, w[j]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kPerLane / 2; ++j) {
        const int i = lane + 32 * j;
        if (i < half) {
            float &first = y[padded_index(i, pitch)], &second = y[padded_index(i + half, pitch)];
            const float a = first, b = second;
            first = num::rope_first(a, b, c[j], s[j]);
            second = num::rope_second(a, b, c[j], s[j]);
        }
    }
    __syncwarp();
}

/// The largest value of a warp.
__device__ __forceinline__ float warp_max(float m) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        const float other = __shfl_xor_sync(kWholeWarp, m, d);
        m = other > m ? other : m;
    }
    return m;
}

/// Rows of a launch over one row a slot. `clusters`: use them where the card has them; without, the result is
/// the same. Refuses more key/value heads than attention_decode counts.
void check_decode_heads(int kv_heads);
void attention_decode(const Attention& attention, const Rows& rows, const float* qg, const float* k,
                      const float* v, float* out, std::int64_t stride, const Scratch& scratch, bool early,
                      cudaStream_t stream, bool clusters = true);

/// Any rows; their keys and values are in the cache.
void attention_prefill(const Attention& attention, const Rows& rows, const float* qg, float* out,
                       std::int64_t stride, cudaStream_t stream);
/// The same with fast numerics.
void attention_prefill_bf16(const Attention& attention, const Rows& rows, const float* qg, float* out,
                            std::int64_t stride, cudaStream_t stream);

/// A block of prefill: up to kQueries queries of a key/value head, of heads_at_once heads of neighbouring
/// rows. Grid: row tiles from the last (the longest first), kv heads * head tiles.
template <int kQueries> struct QueryBlock {
    int kv, head0, heads_at_once, rows_at_once;
    QueryHeads heads;
    std::int64_t begin, end;  ///< rows

    __device__ __forceinline__ QueryBlock(const Attention& t, std::int64_t count, int heads_at_once,
                                          int head_tiles)
        : kv(static_cast<int>(blockIdx.y) / head_tiles),
          head0(static_cast<int>(blockIdx.y) % head_tiles * heads_at_once), heads_at_once(heads_at_once),
          rows_at_once(kQueries / heads_at_once), heads(query_heads_of(t, kv)),
          begin(std::int64_t{gridDim.x - 1 - blockIdx.x} * rows_at_once),
          end(begin + rows_at_once < count ? begin + rows_at_once : count) {}
    /// Behind the rows of `first`'s slot.
    __device__ __forceinline__ std::int64_t end_of_slot(const Row* rows, std::int64_t first) const {
        std::int64_t next = first + 1;
        while (next < end && rows[next].slot == rows[first].slot) ++next;
        return next;
    }
    /// Says in s.position and s.vector which queries of rows [first, next) there are.
    template <class Shared>
    __device__ __forceinline__ void name_queries(Shared& s, const Attention& t, const Row* rows,
                                                 std::int64_t first, std::int64_t next) const {
        const int thread = static_cast<int>(threadIdx.x);
        if (thread >= kQueries) return;
        const std::int64_t row = first + thread / heads_at_once;
        const int head = head0 + thread % heads_at_once;
        const bool there = thread < rows_at_once * heads_at_once && row < next && head < heads.count;
        s.position[thread] = there ? rows[row].position : -1;
        s.vector[thread] = there ? static_cast<int>(row * t.query_heads + heads.first + head) : 0;
    }
};

/// Launches QueryBlocks; `more`: what the kernel takes behind what all of them take.
template <int kQueries, class... Parameters, class... More>
void launch_queries(const char* what, void (*kernel)(Parameters...), int threads, std::size_t shared_bytes,
                    const Attention& t, const Rows& rows, const float* qg, float* out, std::int64_t stride,
                    cudaStream_t stream, More... more) {
    const int most = heads_together(t), heads_at_once = std::min(most, kQueries),
              head_tiles = (most + heads_at_once - 1) / heads_at_once;
    const std::int64_t rows_at_once = kQueries / heads_at_once;
    allow_shared(kernel, shared_bytes);
    launch(what, kernel,
           dim3(static_cast<unsigned>((rows.count() + rows_at_once - 1) / rows_at_once),
                static_cast<unsigned>(t.kv_heads * head_tiles)),
           dim3(static_cast<unsigned>(threads)), shared_bytes, stream, t, rows.device, rows.count(), qg, out,
           stride, heads_at_once, head_tiles, more...);
}

/// Calls f with the cache's type as a constant.
template <class F> void with_kv_type(KvType type, F f) {
    switch (type) {
        case KvType::fp32: return f(std::integral_constant<KvType, KvType::fp32>{});
        case KvType::bf16: return f(std::integral_constant<KvType, KvType::bf16>{});
        case KvType::fp8: return f(std::integral_constant<KvType, KvType::fp8>{});
    }
}

}  // namespace ftmpi::cuda
