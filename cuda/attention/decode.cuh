// Private to attention of one row of each slot: what a block does, part by part. Its threads call all of it
// together.
#pragma once

#include "../cluster.cuh"
#include "head_vector.cuh"

namespace ftmpi::cuda::step {

constexpr int kKvBlock = num::kAttentionPiece, kKvBlockChunks = kKvBlock / num::kChunk;
constexpr int kHeads = 4;  ///< query heads of a block
constexpr int kTile = 32;  ///< positions of a block's scores, columns of its values
constexpr int kCtas = kKvBlock / kTile;
static_assert(kCtas == 8 && kCtas * kTile >= kMostHeadDim && kKvBlockChunks == 8 && kMostHeadChunks == 8 &&
              kTile == num::kChunk);
/// Eight warps for the products, a chunk each; another one brings the row's own key and value and adds the
/// weights.
constexpr int kWarps = 8, kThreads = (kWarps + 1) * 32;
/// Between vectors that two halves of a warp read at the same time.
constexpr int kVectorPitch = 8 * kSpread + 4, kPartPitch = kTile + 8;

/// What a launch computes: all, or one half of it for cards without clusters.
enum class Part { all, scores, values };

/// Where blocks meet, for each row of a launch, and how the grid counts.
struct Middle {
    std::int64_t head_bytes;  ///< of a slot's key/value head in the cache
    unsigned positions;       ///< capacity, rounded up to whole pieces
    unsigned pieces;
    unsigned kv_bits;  ///< of blockIdx.y that say the key/value head; the others say the first piece
    float* scores;     ///< (T, Q, positions), -inf beyond the row's; only without clusters
    float* outs;       ///< (T, Q, pieces, D): sums of weight times value
    float2* stats;  ///< (T, Q, kCtas, pieces): maximum and sum of weights, once for each rank in the cluster
    unsigned* tickets;  ///< (T, K, gridDim.x)
};

template <KvType kType> struct Shared {
    static constexpr int kBytes = kElementBytes<kType>;
    static constexpr int kKeyPitch =
        kMostHeadDim * kBytes + (kBytes == 1 ? 8 : 16);  ///< neighbours in different banks
    struct Tiles {
        alignas(16) char keys[kTile][kKeyPitch];
        alignas(16) char values[kKvBlock][kTile * kBytes];
    };
    struct Merging {
        alignas(16) float outs[kHeads][32][kTile];  ///< of 32 pieces
        float4 factors[kHeads][32];  ///< of what was there and of the piece, sum of the piece's weights
    };
    union {
        Tiles tiles;
        Merging merging;
    };
    alignas(16) float vectors[kHeads + 1]
                             [kVectorPitch];  ///< queries and the row's own key, in chunks kSpread apart
    alignas(16) float scores[kHeads][kKvBlock];
    alignas(16) float weights[kHeads][kVectorPitch];
    alignas(16) float parts[kWarps][kHeads * kPartPitch];  ///< chunks of the products: [chunk][head][position
                                                           ///< or column]
    float max[kHeads], sum[kHeads];
    Arrivals arrivals;
    bool last;
};

/// Two neighbouring elements as the cache stores them.
template <KvType kType> __device__ __forceinline__ float2 pair_of(const char* p, float scale) {
    if constexpr (kType == KvType::fp32) {
        return *reinterpret_cast<const float2*>(p);
    } else if constexpr (kType == KvType::bf16) {
        const std::uint32_t w = *reinterpret_cast<const std::uint32_t*>(p);
        return {num::float_of(w << 16), num::float_of(w & 0xffff0000u)};
    } else {
        const std::uint32_t codes = *reinterpret_cast<const std::uint16_t*>(p), nan = 0x7fu;
        float2 v;
        decode_e4m3_pair(codes, v.x, v.y);
        if ((codes & nan) == nan) v.x = num::float_of(0x7fc00000u);  // the wide form may not know these codes
        if ((codes >> 8 & nan) == nan) v.y = num::float_of(0x7fc00000u);
        return {v.x * scale, v.y * scale};
    }
}

/// num::exp of what is not above 0, without branches, so that several can be under way; NaN for NaN.
__device__ __forceinline__ float exp_of(float x) {
    const float near = fmaxf(x, -104.0f);
    if (near > 88.73f) __builtin_unreachable();
    if (near < -104.0f) __builtin_unreachable();
    if (!(near == near)) __builtin_unreachable();
    const float y = num::exp(near);
    return x < -104.0f ? 0.0f : x == x ? y : x;
}

/// The largest value of a warp by its order as an integer. A NaN may count as the largest or be passed over:
/// it is a score, and its weight is NaN with any maximum.
__device__ __forceinline__ float warp_max_bits(float m) {
    const auto order = [](int bits) { return bits < 0 ? bits ^ 0x7fffffff : bits; };
    return __int_as_float(order(__reduce_max_sync(kWholeWarp, order(__float_as_int(m)))));
}

/// Adds one to a counter; what the block wrote before is there for the block that sees the sum, when threads
/// wait on both sides.
__device__ __forceinline__ unsigned take_ticket(unsigned* ticket) {
    unsigned before = 0;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
    return before;
}

/// Keys of the tile, all but the row's own; a position takes a warp. Chunks that the dims do not fill end in
/// zeros.
template <KvType kType>
__device__ __forceinline__ void ask_keys(Shared<kType>& s, const char* keys, unsigned dim, unsigned tile,
                                         unsigned position) {
    constexpr unsigned kBytes = kElementBytes<kType>;
    const unsigned warp = threadIdx.x / 32, d = 8 * (threadIdx.x % 32);
    const bool wanted = warp < kWarps && d < whole_chunks(dim);
    char* to = s.tiles.keys[warp] + d * kBytes;
#pragma unroll
    for (unsigned i = 0; i < kTile; i += kWarps)
        copy_eight<kType>(wanted && tile + warp + i < position, to + i * Shared<kType>::kKeyPitch,
                          offset(keys + d * kBytes, tile + warp + i, dim * kBytes), d < dim);
}

/// The rank's columns of the piece's values, all but the row's own; beyond it zeros. values: at the first
/// column.
template <KvType kType>
__device__ __forceinline__ void ask_values(Shared<kType>& s, const char* values, unsigned dim,
                                           unsigned cta_rank, unsigned first, unsigned position) {
    constexpr unsigned kBytes = kElementBytes<kType>, kAtOnce = kWarps * 32 / 4;
    const unsigned own = threadIdx.x / 4, d = 8 * (threadIdx.x % 4), column = cta_rank * kTile + d;
    const bool wanted = own < kAtOnce && column < dim;
    char* to = s.tiles.values[own] + d * kBytes;
#pragma unroll
    for (unsigned i = 0; i < kKvBlock; i += kAtOnce)
        copy_eight<kType>(wanted && first + own + i != position, to + i * kTile * kBytes,
                          offset(values + column * kBytes, first + own + i, dim * kBytes),
                          first + own + i < position);
}

/// The row's own key, as the cache stores it, into its place in the tile and, when `global` is not null, in
/// the cache; by a warp.
template <KvType kType>
__device__ __forceinline__ void bring_key(Shared<kType>& s, const Attention& t, unsigned at, char* global) {
    constexpr unsigned kBytes = kElementBytes<kType>;
    const unsigned lane = threadIdx.x % 32, dim = static_cast<unsigned>(t.head_dim);
    char* key = s.tiles.keys[at];
#pragma unroll 2
    for (unsigned j = 0; j < kMostHeadChunks; ++j)
        store_element<kType>(key, static_cast<int>(lane + num::kChunk * j),
                             s.vectors[kHeads][lane + kSpread * j], t.k_scale);
    __syncwarp();
    if (8 * lane < dim && global) {
        Stored<kType, 8> raw;
        raw.load(key + 8 * lane * kBytes);
        raw.store(global + 8 * lane * kBytes);
    }
}

/// Products of a chunk of 32 dims, by a warp: lanes are 16 positions and two pairs of heads, each does two
/// positions and two heads.
template <KvType kType>
__device__ __forceinline__ void multiply_keys(Shared<kType>& s, unsigned chunk, bool there, float k_scale) {
    constexpr unsigned kBytes = kElementBytes<kType>;
    const unsigned position = threadIdx.x % 16, head = threadIdx.x % 32 / 16 * 2;
    const char* key = s.tiles.keys[position] + chunk * num::kChunk * kBytes;
    const float* query = s.vectors[head] + chunk * kSpread;
    float c[2][2] = {};
    if (there) {
#pragma unroll 1
        for (int g = 0; g < 4; ++g, key += 8 * kBytes, query += 8) {
            float k[2][8], q[2][8];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                Stored<kType, 8> raw;
                raw.load(key + j * 16 * Shared<kType>::kKeyPitch);
                raw.decode(k_scale, k[j]);
            }
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < 8; e += 4) {
                    const float4 v = *reinterpret_cast<const float4*>(query + h * kVectorPitch + e);
                    q[h][e] = v.x, q[h][e + 1] = v.y, q[h][e + 2] = v.z, q[h][e + 3] = v.w;
                }
#pragma unroll
            for (int e = 0; e < 8; ++e)
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int j = 0; j < 2; ++j) c[h][j] = num::fma(q[h][e], k[j][e], c[h][j]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 2; ++j) s.parts[chunk][(head + h) * kPartPitch + position + 16 * j] = c[h][j];
}

/// Products of a chunk of 32 positions, by a warp: lanes are 16 pairs of columns and two pairs of heads.
template <KvType kType>
__device__ __forceinline__ void multiply_values(Shared<kType>& s, unsigned chunk, float v_scale) {
    constexpr unsigned kBytes = kElementBytes<kType>;
    const unsigned column = threadIdx.x % 16 * 2, head = threadIdx.x % 32 / 16 * 2;
    const char* value = s.tiles.values[chunk * num::kChunk] + column * kBytes;
    const float* weight = s.weights[head] + chunk * kSpread;
    float c[2][2] = {};
#pragma unroll 1
    for (int g = 0; g < 4; ++g, value += 8 * kTile * kBytes, weight += 8) {
        float2 v[8];
        float w[2][8];
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] = pair_of<kType>(value + e * kTile * kBytes, v_scale);
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 8; e += 4) {
                const float4 x = *reinterpret_cast<const float4*>(weight + h * kVectorPitch + e);
                w[h][e] = x.x, w[h][e + 1] = x.y, w[h][e + 2] = x.z, w[h][e + 3] = x.w;
            }
#pragma unroll
        for (int e = 0; e < 8; ++e)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                c[h][0] = num::fma(w[h][e], v[e].x, c[h][0]);
                c[h][1] = num::fma(w[h][e], v[e].y, c[h][1]);
            }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(&s.parts[chunk][(head + h) * kPartPitch + column]) = {c[h][0], c[h][1]};
}

/// Scores become weights, a warp for half a piece of a head; beyond the row's position they are exp(-inf).
template <KvType kType>
__device__ __forceinline__ void weigh(Shared<kType>& s, unsigned warp, unsigned lane) {
    constexpr int kOwn = kKvBlockChunks / 2;
    const unsigned head = warp / 2, half = warp % 2;
    const float* x = s.scores[head];
    const float4 a = *reinterpret_cast<const float4*>(x + 4 * lane),
                 b = *reinterpret_cast<const float4*>(x + 128 + 4 * lane);
    const float max = warp_max_bits(
        fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w))));
    x += half * kOwn * num::kChunk + lane;
    float* w = s.weights[head] + half * kOwn * kSpread + lane;
#pragma unroll 1
    for (int j = 0; j < kOwn; j += 2, x += 2 * num::kChunk, w += 2 * kSpread) {
        const float own = exp_of(x[0] - max), next = exp_of(x[num::kChunk] - max);
        w[0] = own, w[kSpread] = next;
    }
    if (half == 0 && lane == 0) s.max[head] = max;
}

/// Sums of the weights, by a warp: a lane adds a chunk of a head, then all add the chunks; lanes of a head
/// have its sum.
template <KvType kType> __device__ __forceinline__ float add_weights(const Shared<kType>& s, unsigned lane) {
    const float* w = s.weights[lane / kKvBlockChunks] + lane % kKvBlockChunks * kSpread;
    float chunk = 0.0f, sum = 0.0f;
#pragma unroll 4
    for (int i = 0; i < num::kChunk; i += 4)
        chunk = add_elements(*reinterpret_cast<const float4*>(w + i), chunk);
#pragma unroll
    for (int j = 0; j < kKvBlockChunks; ++j) sum = sum + __shfl_sync(kWholeWarp, chunk, j, kKvBlockChunks);
    return sum;
}

/// Merges pieces in rising order, by a warp; a lane has a column. outs: the first piece's, at the first of
/// `columns`.
template <KvType kType>
__device__ __forceinline__ void merge(Shared<kType>& s, unsigned head, unsigned pieces, const float* outs,
                                      unsigned dim, unsigned columns, const float2* stats, float& value,
                                      float& sum) {
    const unsigned lane = threadIdx.x % 32, quad = lane % 8 * 4;
    float max =
        num::float_of(0xff800000u);  // with it, the first piece is merged into nothing and stays as it is
    value = sum = 0.0f;
#pragma unroll 1
    for (unsigned base = 0; base < pieces; base += 32) {
        const unsigned n = pieces - base < 32 ? pieces - base : 32;
        const float2 own = __ldcg(stats + base + (lane < n ? lane : n - 1));
        __syncwarp();
        if (quad < columns)
#pragma unroll 1
            for (unsigned i = lane / 8; i < n; i += 4)
                copy_async(&s.merging.outs[head][i][quad], offset(outs + quad, base + i, dim));
        close_copy_group();
        // The running maximum up to each piece, then what every merge multiplies with.
        float upto = own.x;
#pragma unroll 1
        for (unsigned d = 1; d < n; d *= 2) {
            const float other = __shfl_up_sync(kWholeWarp, upto, d);
            if (lane >= d && other > upto) upto = other;
        }
        if (max > upto) upto = max;
        float before = __shfl_up_sync(kWholeWarp, upto, 1);
        if (lane == 0) before = max;
        const bool rises = own.x > before;  // as num::merge_of, whose other factor is exp(0) = 1
        const float factor = exp_of(rises ? before - own.x : own.x - before);
        s.merging.factors[head][lane] = {rises ? factor : 1.0f, rises ? 1.0f : factor, own.y, 0.0f};
        wait_copy_groups<0>();
        __syncwarp();
#pragma unroll 1
        for (unsigned i = 0; i < n; ++i) {
            const float4 f = s.merging.factors[head][i];
            const num::Merge m{0.0f, f.x, f.y};
            sum = num::merge_value(sum, f.z, m);
            value = num::merge_value(value, s.merging.outs[head][i][lane], m);
        }
        max = __shfl_sync(kWholeWarp, upto, static_cast<int>(n) - 1);
    }
}

}  // namespace ftmpi::cuda::step
