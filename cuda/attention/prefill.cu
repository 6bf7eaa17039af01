// Attention of many rows: a block takes 32 queries of one key/value head and goes through the cache in pieces
// of 256 positions, with the running maximum, sum and result of each query. Scores and values are products of
// register tiles of 8 x 8, a chunk of 32 at a time, so every element read from the cache serves 32 queries
// and the order is that of one row alone.
//
// 8192 rows of 16 heads of 256 are 2.75e11 fma, 8.3 ms at 33e12 a second. A tile loads as many floats from
// shared memory as the fp32 units use in the time of its products; with the weights and the waiting, a third
// to a half of that rate is expected.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
// Pieces merge as in FlashAttention (arXiv 2205.14135), in rising order.
#include "attention.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kQueries = 32, kKvBlock = num::kAttentionPiece, kKvBlockChunks = kKvBlock / num::kChunk;
constexpr int kPitch =
    kKvBlock + 4;  ///< of a query and of its weights: the 4 rows a warp reads are then in different banks
constexpr int kTilePitch = 256;
static_assert(kMostHeadDim <= kKvBlock && kMostHeadDim <= kTilePitch);

struct Shared {
    float queries[kQueries][kPitch];
    float weights[kQueries][kPitch];      ///< scores, then weights
    float tile[num::kChunk][kTilePitch];  ///< keys as [dim][position] or values as [position][column]
    float sums[kKvBlockChunks][kQueries];
    float max[kQueries], sum[kQueries];  ///< running
    float old_scale[kQueries], new_scale[kQueries];
    int position[kQueries];  ///< -1: no query here
    int vector[kQueries];    ///< row * query heads + head
};
static_assert(sizeof(Shared) <= 99 * 1024, "what a block may take on the smallest of the supported cards");

/// Lanes are 4 x 8: queries lane / 8 + 4 j, columns 4 * (lane % 8) + 0..3 and the same + 32 of the warp's 64.
using Accumulators = float[8][8];

/// acc += a chunk of products. a: the lane's first query's chunk, b: the lane's first column in the tile.
__device__ __forceinline__ void add_chunk(const float* a, const float* b, Accumulators& acc) {
    float c[8][8] = {};
#pragma unroll 1
    for (int k = 0; k < num::kChunk; k += 4) {
        float x[8][4];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float4 v = *reinterpret_cast<const float4*>(a + 4 * j * kPitch + k);
            x[j][0] = v.x, x[j][1] = v.y, x[j][2] = v.z, x[j][3] = v.w;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float4 p = *reinterpret_cast<const float4*>(b + (k + e) * kTilePitch);
            const float4 q = *reinterpret_cast<const float4*>(b + (k + e) * kTilePitch + 32);
            const float y[8] = {p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w};
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int n = 0; n < 8; ++n) c[j][n] = num::fma(x[j][e], y[n], c[j][n]);
        }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int n = 0; n < 8; ++n) acc[j][n] = acc[j][n] + c[j][n];
}

/// The same where a query ends inside the chunk: query j takes its first reach[j] elements, `most` is the
/// largest of them.
__device__ __forceinline__ void add_part(const float* a, const float* b, const int (&reach)[8], int most,
                                         Accumulators& acc) {
    float c[8][8] = {};
#pragma unroll 1
    for (int k = 0; k < most; ++k) {
        const float4 p = *reinterpret_cast<const float4*>(b + k * kTilePitch);
        const float4 q = *reinterpret_cast<const float4*>(b + k * kTilePitch + 32);
        const float y[8] = {p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float x = a[4 * j * kPitch + k];
            if (k < reach[j])
#pragma unroll
                for (int n = 0; n < 8; ++n) c[j][n] = num::fma(x, y[n], c[j][n]);
        }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int n = 0; n < 8; ++n) acc[j][n] = acc[j][n] + c[j][n];
}

__device__ __forceinline__ void clear(Accumulators& acc) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int n = 0; n < 8; ++n) acc[j][n] = 0.0f;
}

/// Dims [dim0, dim0 + 32) of the piece's positions below `length`, zeros elsewhere. keys: the piece's first
/// row.
template <KvType kType>
__device__ __forceinline__ void load_keys(Shared& s, const char* keys, int dim, int dim0, int length,
                                          float scale) {
    constexpr int kAtOnce = kType == KvType::fp32 ? 1 : 2;  // positions of a thread
#pragma unroll 1
    for (int position = static_cast<int>(threadIdx.x); position < kKvBlock; position += kAtOnce * kThreads) {
        Stored<kType, 8> raw[kAtOnce][4];
#pragma unroll
        for (int p = 0; p < kAtOnce; ++p)
#pragma unroll
            for (int g = 0; g < 4; ++g) {
                const int at = position + p * kThreads;
                if (at < length && dim0 + 8 * g < dim)
                    raw[p][g].load(keys + (std::int64_t{at} * dim + dim0 + 8 * g) * kElementBytes<kType>);
                else raw[p][g].clear();
            }
#pragma unroll
        for (int p = 0; p < kAtOnce; ++p)
#pragma unroll
            for (int g = 0; g < 4; ++g) {
                float x[8];
                raw[p][g].decode(scale, x);
#pragma unroll
                for (int e = 0; e < 8; ++e) s.tile[8 * g + e][position + p * kThreads] = x[e];
            }
    }
}

/// 32 positions from `values` on, of which `count` are there; the others are left as they are and not read.
template <KvType kType>
__device__ __forceinline__ void load_values(Shared& s, const char* values, int dim, int count, float scale) {
    constexpr int kBatch = kType == KvType::fp32 ? 4 : 8;
    const int eights = dim / 8, rows_at_once = kThreads / eights;
    const int column = static_cast<int>(threadIdx.x) % eights * 8,
              own = static_cast<int>(threadIdx.x) / eights;
    if (own >= rows_at_once) return;
    if (count > num::kChunk) count = num::kChunk;
    for (int i0 = own; i0 < count; i0 += kBatch * rows_at_once) {
        Stored<kType, 8> raw[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
            const int i = i0 + b * rows_at_once;
            if (i < count) raw[b].load(values + (std::int64_t{i} * dim + column) * kElementBytes<kType>);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
            const int i = i0 + b * rows_at_once;
            if (i >= count) break;
            float x[8];
            raw[b].decode(scale, x);
            *reinterpret_cast<float4*>(&s.tile[i][column]) = {x[0], x[1], x[2], x[3]};
            *reinterpret_cast<float4*>(&s.tile[i][column + 4]) = {x[4], x[5], x[6], x[7]};
        }
    }
}

/// Scores of a piece become weights; maximum and sum of each query move on. Ends with weights, scales and
/// sums visible to all.
__device__ __forceinline__ void weigh(Shared& s, int p0) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    for (int q = warp * (kQueries / kWarps); q < (warp + 1) * (kQueries / kWarps); ++q) {
        const int n = s.position[q] - p0 + 1;
        if (n <= 0) continue;
        float* w = s.weights[q];
        float x[kKvBlockChunks];
#pragma unroll
        for (int j = 0; j < kKvBlockChunks; ++j) x[j] = w[lane + 32 * j < n ? lane + 32 * j : 0];
        float m = x[0];
#pragma unroll
        for (int j = 1; j < kKvBlockChunks; ++j) m = x[j] > m ? x[j] : m;
        m = warp_max(m);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < kKvBlockChunks; ++j)
            w[lane + 32 * j] = lane + 32 * j < n ? num::exp(x[j] - m) : 0.0f;
        if (lane == 0) {
            const num::Merge merge = p0 == 0 ? num::Merge{m, 0.0f, 0.0f} : num::merge_of(s.max[q], m);
            s.max[q] = merge.max;
            s.old_scale[q] = merge.old_scale;
            s.new_scale[q] = merge.new_scale;
        }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kKvBlockChunks; j += kWarps) {
        const float* w = s.weights[lane] + (warp + j) * num::kChunk;
        float c = 0.0f;
#pragma unroll
        for (int i = 0; i < num::kChunk; i += 4) c = add_elements(*reinterpret_cast<const float4*>(w + i), c);
        s.sums[warp + j][lane] = c;
    }
    __syncthreads();
    if (thread < kQueries && s.position[thread] >= p0) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < kKvBlockChunks; ++j) sum = sum + s.sums[j][thread];
        s.sum[thread] =
            p0 == 0 ? sum
                    : num::merge_value(s.sum[thread], sum, {0.0f, s.old_scale[thread], s.new_scale[thread]});
    }
}

/// out += the lane's part of a piece, merged; or at the end divided and gated. f(running value or 0,
/// register, query, column).
template <class F>
__device__ __forceinline__ void over_outputs(const Shared& s, const Attention& t, int p0, float* out,
                                             std::int64_t stride, F f) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const int q = lane / 8 + 4 * j;
        if (s.position[q] >= p0) {
            const int row = s.vector[q] / t.query_heads, head = s.vector[q] % t.query_heads;
            float* to = out + row * stride + std::int64_t{head} * t.head_dim;
#pragma unroll
            for (int n = 0; n < 8; n += 4) {
                const int column = warp * 64 + lane % 8 * 4 + n * 8;
                if (column < t.head_dim) f(to + column, j, n, q, column);
            }
        }
        __syncwarp();  // keeps the loads of the next query out of this one's registers
    }
}

/// Grid: row tiles from the last (the longest first), kv heads * head tiles. `aligned`: out takes 16-byte
/// accesses.
template <KvType kType>
__global__ void __launch_bounds__(kThreads, 2)
    attend_prefill(Attention t, const Row* rows, std::int64_t count, const float* qg, float* out,
                   std::int64_t stride, int heads_at_once, int head_tiles, bool aligned) {
    Shared& s = *reinterpret_cast<Shared*>(shared_bytes());
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int dim = t.head_dim, chunks = (dim + num::kChunk - 1) / num::kChunk;
    const QueryBlock<kQueries> block(t, count, heads_at_once, head_tiles);
    if (block.head0 >= block.heads.count) return;
    const float *a = &s.queries[lane / 8][0], *w = &s.weights[lane / 8][0],
                *b = &s.tile[0][warp * 64 + lane % 8 * 4];

    for (std::int64_t first = block.begin, next; first < block.end; first = next) {  // neighbours of one slot
        next = block.end_of_slot(rows, first);
        __syncthreads();
        block.name_queries(s, t, rows, first, next);
        __syncthreads();
        for (int q = warp * (kQueries / kWarps); q < (warp + 1) * (kQueries / kWarps); ++q) {
            if (s.position[q] >= 0)
                norm_rope(t, qg + std::int64_t{s.vector[q]} * query_pitch(t), t.q_norm, s.position[q],
                          s.queries[q], num::kChunk);
            else
                for (int i = lane; i < chunks * num::kChunk; i += 32) s.queries[q][i] = 0.0f;
        }
        const std::int64_t cache = cache_offset<kType>(t, rows[first].slot, block.kv);
        const char* keys = static_cast<const char*>(t.keys) + cache;
        const char* values = static_cast<const char*>(t.values) + cache;
        const int low = rows[first].position, high = rows[next - 1].position;
        for (int p0 = 0; p0 <= high; p0 += kKvBlock) {
            const int length = high - p0 + 1 < kKvBlock ? high - p0 + 1 : kKvBlock;
            const std::int64_t offset = std::int64_t{p0} * dim * kElementBytes<kType>;
            Accumulators acc;
            clear(acc);
            for (int c = 0; c < chunks; ++c) {
                __syncthreads();
                load_keys<kType>(s, keys + offset, dim, c * num::kChunk, length, t.k_scale);
                __syncthreads();
                if (warp * 64 < length) add_chunk(a + c * num::kChunk, b, acc);
            }
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int n = 0; n < 8; n += 4)
                    *reinterpret_cast<float4*>(
                        &s.weights[lane / 8 + 4 * j][warp * 64 + lane % 8 * 4 + n * 8]) = {
                        acc[j][n] * t.scale, acc[j][n + 1] * t.scale, acc[j][n + 2] * t.scale,
                        acc[j][n + 3] * t.scale};
            __syncthreads();
            weigh(s, p0);
            clear(acc);
            for (int at = 0; at < length; at += num::kChunk) {
                __syncthreads();
                load_values<kType>(s, values + offset + std::int64_t{at} * dim * kElementBytes<kType>, dim,
                                   length - at, t.v_scale);
                __syncthreads();
                if (warp * 64 >= dim) continue;
                if (low - (p0 + at) + 1 >= num::kChunk) {
                    add_chunk(w + at, b, acc);
                } else {
                    int reach[8];
#pragma unroll
                    for (int j = 0; j < 8; ++j) reach[j] = s.position[lane / 8 + 4 * j] - (p0 + at) + 1;
                    add_part(w + at, b, reach, length - at < num::kChunk ? length - at : num::kChunk, acc);
                }
            }
            // The result so far lies in `out`, where only this thread reads and writes it.
            over_outputs(s, t, p0, out, stride, [&](float* to, int j, int n, int q, int) {
                float4 x = {acc[j][n], acc[j][n + 1], acc[j][n + 2], acc[j][n + 3]};
                if (p0 > 0) {
                    const num::Merge m{0.0f, s.old_scale[q], s.new_scale[q]};
                    const float4 old =
                        aligned ? *reinterpret_cast<const float4*>(to) : float4{to[0], to[1], to[2], to[3]};
                    x = {num::merge_value(old.x, x.x, m), num::merge_value(old.y, x.y, m),
                         num::merge_value(old.z, x.z, m), num::merge_value(old.w, x.w, m)};
                }
                if (aligned) *reinterpret_cast<float4*>(to) = x;
                else to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
            });
        }
        __syncthreads();
        over_outputs(s, t, 0, out, stride, [&](float* to, int, int, int q, int column) {
            const float* gate = qg + std::int64_t{s.vector[q]} * query_pitch(t) + dim + column;
            for (int i = 0; i < 4; ++i) {
                const float y = num::attention_out(to[i], s.sum[q]);
                to[i] = t.gated ? y * num::sigmoid(gate[i]) : y;
            }
        });
    }
}

}  // namespace

void attention_prefill(const Attention& t, const Rows& rows, const float* qg, float* out, std::int64_t stride,
                       cudaStream_t stream) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(out) % 16 == 0 && stride % 4 == 0;
    with_kv_type(t.kv, [&](auto type) {
        launch_queries<kQueries>("attend_prefill", attend_prefill<type()>, kThreads, sizeof(Shared), t, rows,
                                 qg, out, stride, stream, aligned);
    });
}

}  // namespace ftmpi::cuda
