// Attention of one row of each slot, in two kernels spread over the whole device: the scores of 32 positions a block, then
// the values of a piece of 256 positions and 32 columns a block; the last block of a row's columns merges the pieces.
//
// At 1k positions, 16 query and 2 key/value heads of 256 in bf16 a row reads 2.1 MB, 0.5 us at 4.52 TB/s, so latency counts:
// the cache is asked for before anything that it is not needed for. A block's products take about 600 cycles in each kernel.
// The grids do not depend on the positions: blocks stride over what there is, and those that find nothing leave.
#include <algorithm>

#include "attention.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kPieceLength = num::kAttentionPiece, kPieceChunks = kPieceLength / num::kChunk;
constexpr int kHeadsAtOnce = 8;
constexpr int kScoreThreads = 10 * 32;  ///< eight warps for the products; the last two bring the row's own key and value
constexpr int kValueThreads = 8 * 32;
constexpr int kGroupColumns = 32;

/// Where the two kernels meet, for each row of a launch.
struct Middle {
    std::int64_t positions;  ///< capacity, rounded up to whole pieces
    int groups;              ///< of kGroupColumns columns
    float* scores;           ///< [row][query head][positions]
    float* outs;             ///< [row][query head][piece][head_dim]: sums of weight times value
    float2* stats;           ///< [row][query head][group][piece]: maximum and sum of weights, once for each column group
    unsigned* tickets;       ///< [row][kv head][group]
};

/// The scores of a row's queries of one key/value head. Grid: position tiles, kv heads, rows.
/// A thread has one chunk of four positions for two query heads.
template <KvType kType>
__global__ void __launch_bounds__(kScoreThreads)
    step_scores(Attention t, const Row* rows, const float* qg, const float* k, const float* v, Middle to) {
    constexpr int kQueryPitch = kMostHeadChunks * kSpread, kPartPitch = kHeadsAtOnce * 32 + 8;
    __shared__ __align__(16) float queries[kMostStepHeads][kQueryPitch];
    __shared__ __align__(16) float own_key[kQueryPitch];
    __shared__ float parts[kMostHeadChunks * kPartPitch];  // [chunk][head][position]

    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int dim = t.head_dim, chunks = (dim + num::kChunk - 1) / num::kChunk, kv = static_cast<int>(blockIdx.y);
    const std::int64_t r = blockIdx.z;
    const Row row = rows[r];
    const int last_tile = row.position / 32;
    int tile = static_cast<int>(blockIdx.x);
    if (tile > last_tile) return;
    const QueryHeads heads = query_heads_of(t, kv);
    const std::int64_t cache = cache_offset<kType>(t, row.slot, kv);
    const char* keys = static_cast<const char*>(t.keys) + cache;

    const int chunk = warp % 2 * 4 + lane / 8, own_heads = warp / 2 * 2;
    const bool busy = warp < 8 && chunk < chunks;
    // fp32 would not fit the registers: it is read when it is needed.
    constexpr bool kAhead = kType != KvType::fp32;
    Stored<kType, 8> raw[4][4];  // [position][eight dims]
    const auto load = [&](int j, int g) {
        const int position = tile * 32 + lane % 8 + 8 * j, d = chunk * num::kChunk + 8 * g;
        if (busy && position <= row.position && d < dim)
            raw[j][g].load(keys + (std::int64_t{position} * dim + d) * kElementBytes<kType>);
        else
            raw[j][g].clear();
    };
    const auto load_tile = [&] {
        if constexpr (kAhead)
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int g = 0; g < 4; ++g) load(j, g);
    };
    load_tile();

    if (warp < 8) {
        for (int h = warp; h < heads.count; h += 8)
            norm_rope(t, qg + 2 * (r * t.query_heads + heads.first + h) * dim, t.q_norm, row.position, queries[h], kSpread);
    } else if (last_tile % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x)) {
        const std::int64_t from = (r * t.kv_heads + kv) * dim;
        const std::int64_t at = cache + std::int64_t{row.position} * dim * kElementBytes<kType>;
        if (warp == 8) {
            norm_rope(t, k + from, t.k_norm, row.position, own_key, kSpread);
            for (int d = lane; d < dim; d += 32)
                store_element<kType>(static_cast<char*>(t.keys) + at, d, own_key[place(d, kSpread)], t.k_scale);
        } else {
            for (int d = lane; d < dim; d += 32)
                store_element<kType>(static_cast<char*>(t.values) + at, d, v[from + d], t.v_scale);
        }
    }
    __syncthreads();

    for (;;) {
        if (kAhead && tile == last_tile)  // the row's own key was not there before
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (tile * 32 + lane % 8 + 8 * j == row.position)
#pragma unroll
                    for (int g = 0; g < 4; ++g) load(j, g);
        for (int h0 = 0; h0 < heads.count; h0 += kHeadsAtOnce) {
            if (busy && h0 + own_heads < heads.count) {
                float c[2][4] = {};
#pragma unroll
                for (int g = 0; g < 4; ++g) {
                    float key[4][8], query[2][8];
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        if constexpr (!kAhead) load(j, g);
                        raw[j][g].stay_in_loop(h0);
                        raw[j][g].decode(t.k_scale, key[j]);
                    }
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const float4* q =
                            reinterpret_cast<const float4*>(&queries[h0 + own_heads + h][chunk * kSpread + 8 * g]);
                        const float4 a = q[0], b = q[1];
                        query[h][0] = a.x, query[h][1] = a.y, query[h][2] = a.z, query[h][3] = a.w;
                        query[h][4] = b.x, query[h][5] = b.y, query[h][6] = b.z, query[h][7] = b.w;
                    }
#pragma unroll
                    for (int e = 0; e < 8; ++e)
#pragma unroll
                        for (int h = 0; h < 2; ++h)
#pragma unroll
                            for (int j = 0; j < 4; ++j) c[h][j] = num::fma(query[h][e], key[j][e], c[h][j]);
                }
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int j = 0; j < 4; ++j) parts[chunk * kPartPitch + (own_heads + h) * 32 + lane % 8 + 8 * j] = c[h][j];
            }
            __syncthreads();
            const int head = h0 + warp;
            if (warp < 8 && head < heads.count && tile * 32 + lane <= row.position) {
                float segment = 0.0f;
                for (int i = 0; i < chunks; ++i) segment = segment + parts[i * kPartPitch + thread];
                const float dot = 0.0f + segment;
                to.scores[(r * t.query_heads + heads.first + head) * to.positions + tile * 32 + lane] = dot * t.scale;
            }
            __syncthreads();
        }
        tile += static_cast<int>(gridDim.x);
        if (tile > last_tile) return;
        load_tile();
    }
}

/// Merges a row's pieces in rising order, a warp for a query head and a lane for a column, and writes the result.
__device__ void merge_pieces(const Attention& t, const Middle& from, std::int64_t r, int head, int group, int pieces,
                             const float* qg, float* out, std::int64_t stride) {
    const int lane = static_cast<int>(threadIdx.x) % 32, dim = t.head_dim, column = group * kGroupColumns + lane;
    const std::int64_t at = r * t.query_heads + head, all_pieces = from.positions / kPieceLength;
    const bool mine = column < dim;
    const float gate = mine ? qg[(2 * at + 1) * dim + column] : 0.0f;
    const float* outs = from.outs + at * all_pieces * dim + column;
    const float2* stats = from.stats + (at * from.groups + group) * all_pieces;
    float max = 0.0f, sum = 0.0f, value = 0.0f;
    for (int base = 0; base < pieces; base += 32) {
        const int n = pieces - base < 32 ? pieces - base : 32;
        const float2 own = __ldcg(stats + base + (lane < n ? lane : n - 1));
        // The running maximum up to each piece, then what every merge multiplies with.
        float upto = own.x;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const float other = __shfl_up_sync(kWholeWarp, upto, d);
            if (lane >= d && other > upto) upto = other;
        }
        if (base > 0 && max > upto) upto = max;
        float before = __shfl_up_sync(kWholeWarp, upto, 1);
        if (lane == 0) before = max;
        const num::Merge merge = num::merge_of(before, own.x);
        constexpr int kAhead = 8;
        for (int i = 0; i < n; i += kAhead) {
            float piece[kAhead];
#pragma unroll
            for (int j = 0; j < kAhead; ++j)
                piece[j] = mine && i + j < n ? __ldcg(outs + std::int64_t{base + i + j} * dim) : 0.0f;
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                const num::Merge m{0.0f, __shfl_sync(kWholeWarp, merge.old_scale, (i + j) % 32),
                                   __shfl_sync(kWholeWarp, merge.new_scale, (i + j) % 32)};
                const float weights = __shfl_sync(kWholeWarp, own.y, (i + j) % 32);
                if (i + j >= n) continue;
                if (base + i + j == 0) {
                    sum = weights;
                    value = piece[j];
                } else {
                    sum = num::merge_value(sum, weights, m);
                    value = num::merge_value(value, piece[j], m);
                }
            }
        }
        max = __shfl_sync(kWholeWarp, upto, n - 1);
    }
    if (mine) out[r * stride + head * dim + column] = num::attention_out(value, sum, gate);
}

/// Values of a row's queries of one key/value head: softmax of a piece's scores, 32 columns of its values, the merge.
/// Grid: pieces, kv heads * column groups, rows. A thread has one chunk of positions, four columns, two query heads.
template <KvType kType>
__global__ void __launch_bounds__(kValueThreads, kType == KvType::fp32 ? 1 : 2)
    step_values(Attention t, const Row* rows, const float* qg, float* out, std::int64_t stride, Middle m) {
    constexpr int kWeightPitch = kPieceChunks * kSpread + 4;
    __shared__ __align__(16) float weights[kHeadsAtOnce][kWeightPitch];
    __shared__ __align__(16) float parts[kPieceChunks][kHeadsAtOnce][kGroupColumns];
    __shared__ bool last;

    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int dim = t.head_dim, kv = static_cast<int>(blockIdx.y) / m.groups, group = static_cast<int>(blockIdx.y) % m.groups;
    const std::int64_t r = blockIdx.z, all_pieces = m.positions / kPieceLength;
    const Row row = rows[r];
    const int pieces = row.position / kPieceLength + 1;
    if (static_cast<int>(blockIdx.x) >= pieces) return;
    const QueryHeads heads = query_heads_of(t, kv);
    const int own_heads = lane / 8 * 2, column = group * kGroupColumns + lane % 8 * 4;
    const char* values = static_cast<const char*>(t.values) + cache_offset<kType>(t, row.slot, kv);

    for (int piece = static_cast<int>(blockIdx.x); piece < pieces; piece += static_cast<int>(gridDim.x)) {
        const int first = piece * kPieceLength,
                  n = row.position + 1 - first < kPieceLength ? row.position + 1 - first : kPieceLength;
        const int own = n - warp * num::kChunk;  // positions of the warp's chunk
        const char* p = values + (std::int64_t{first + warp * num::kChunk} * dim + column) * kElementBytes<kType>;
        Stored<kType, 4> raw[num::kChunk];
#pragma unroll
        for (int i = 0; i < num::kChunk; ++i) {
            if (i < own && column < dim)
                raw[i].load(p + i * dim * kElementBytes<kType>);
            else
                raw[i].clear();
        }
        for (int h0 = 0; h0 < heads.count; h0 += kHeadsAtOnce) {
            const std::int64_t at = r * t.query_heads + heads.first + h0 + warp;
            const bool has_head = h0 + warp < heads.count;
            float max = 0.0f;
            if (has_head) {
                const float* scores = m.scores + at * m.positions + first;
                float s[kPieceChunks];
#pragma unroll
                for (int j = 0; j < kPieceChunks; ++j) {
                    const int i = lane + 32 * j;
                    s[j] = scores[i < n ? i : 0];  // repeating one leaves the maximum as it is
                }
                max = s[0];
#pragma unroll
                for (int j = 1; j < kPieceChunks; ++j) max = s[j] > max ? s[j] : max;
                max = warp_max(max);
#pragma unroll
                for (int j = 0; j < kPieceChunks; ++j)
                    weights[warp][j * kSpread + lane] = lane + 32 * j < n ? num::exp(s[j] - max) : 0.0f;
            }
            __syncthreads();
            float c[2][4] = {};
            if (own > 0 && h0 + own_heads < heads.count) {
#pragma unroll
                for (int i = 0; i < num::kChunk; i += 4) {
                    float w[2][4];
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const float4 v = *reinterpret_cast<const float4*>(&weights[own_heads + h][warp * kSpread + i]);
                        w[h][0] = v.x, w[h][1] = v.y, w[h][2] = v.z, w[h][3] = v.w;
                    }
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        float x[4];
                        raw[i + e].stay_in_loop(h0);
                        raw[i + e].decode(t.v_scale, x);
                        if (i + e < own)
#pragma unroll
                            for (int h = 0; h < 2; ++h)
#pragma unroll
                                for (int j = 0; j < 4; ++j) c[h][j] = num::fma(w[h][e], x[j], c[h][j]);
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < 2; ++h)
                *reinterpret_cast<float4*>(&parts[warp][own_heads + h][lane % 8 * 4]) = {c[h][0], c[h][1], c[h][2], c[h][3]};
            float sum = 0.0f;
            if (has_head) {  // a lane adds a chunk, then all add the chunks; weights beyond n are 0
                float chunk = 0.0f;
                if (lane < kPieceChunks)
#pragma unroll
                    for (int i = 0; i < num::kChunk; i += 4) {
                        const float4 v = *reinterpret_cast<const float4*>(&weights[warp][lane * kSpread + i]);
                        chunk = chunk + v.x;
                        chunk = chunk + v.y;
                        chunk = chunk + v.z;
                        chunk = chunk + v.w;
                    }
#pragma unroll
                for (int j = 0; j < kPieceChunks; ++j) sum = sum + __shfl_sync(kWholeWarp, chunk, j);
            }
            __syncthreads();
            if (has_head) {
                float value = 0.0f;
#pragma unroll
                for (int j = 0; j < kPieceChunks; ++j) value = value + parts[j][warp][lane];
                if (group * kGroupColumns + lane < dim)
                    m.outs[(at * all_pieces + piece) * dim + group * kGroupColumns + lane] = value;
                if (lane == 0) m.stats[(at * m.groups + group) * all_pieces + piece] = {max, sum};
            }
            __syncthreads();
        }
    }

    // All blocks that had a piece have come by when the last one has.
    const int blocks = pieces < static_cast<int>(gridDim.x) ? pieces : static_cast<int>(gridDim.x);
    if (blocks > 1) {
        if (thread == 0) {
            unsigned* ticket = m.tickets + (r * t.kv_heads + kv) * m.groups + group;
            __threadfence();
            last = atomicAdd(ticket, 1u) + 1 == static_cast<unsigned>(blocks);
            if (last) *ticket = 0;
        }
        __syncthreads();
        if (!last) return;
        __threadfence();
    }
    for (int h = warp; h < heads.count; h += kValueThreads / 32)
        merge_pieces(t, m, r, heads.first + h, group, pieces, qg, out, stride);
}

/// Divides the scratch for `rows` rows; null counts. Tickets are bounded by query heads, of which there are at least as many.
Middle middle_of(void* data, std::int64_t rows, int query_heads, int head_dim, std::int64_t capacity, std::size_t& bytes) {
    Parts parts(data);
    Middle m{};
    m.positions = (capacity + kPieceLength - 1) / kPieceLength * kPieceLength;
    m.groups = (head_dim + kGroupColumns - 1) / kGroupColumns;
    const std::int64_t vectors = rows * query_heads, pieces = m.positions / kPieceLength;
    m.scores = parts.take<float>(vectors * m.positions);
    m.outs = parts.take<float>(vectors * pieces * head_dim);
    m.stats = parts.take<float2>(vectors * m.groups * pieces);
    m.tickets = parts.take<unsigned>(vectors * m.groups);
    bytes = parts.bytes();
    return m;
}

/// Rows that go through the kernels together: what fits kMostScratch, but at least one.
constexpr std::size_t kMostScratch = std::size_t{64} << 20;
std::int64_t batch_of(std::int64_t rows, int query_heads, int kv_heads, int head_dim, std::int64_t capacity) {
    std::size_t one = 0;
    const int groups = middle_of(nullptr, 1, query_heads, head_dim, capacity, one).groups;
    const auto fits = static_cast<std::int64_t>(kMostScratch / one);
    return std::max<std::int64_t>(1, std::min({rows, fits, kTickets / (kv_heads * groups)}));
}

}  // namespace

std::size_t attention_step_scratch(std::int64_t rows, int query_heads, int head_dim, std::int64_t capacity) {
    std::size_t one = 0;
    middle_of(nullptr, 1, query_heads, head_dim, capacity, one);
    return std::min(static_cast<std::size_t>(rows) * one, std::max(one, kMostScratch));
}

void attention_step(const Attention& t, const Rows& rows, const float* qg, const float* k, const float* v, float* out,
                    std::int64_t stride, const Scratch& scratch, cudaStream_t stream) {
    check_scratch("attention", attention_step_scratch(rows.count(), t.query_heads, t.head_dim, t.capacity), scratch);
    const std::int64_t batch = batch_of(rows.count(), t.query_heads, t.kv_heads, t.head_dim, t.capacity);
    std::size_t bytes = 0;
    Middle middle = middle_of(scratch.data, batch, t.query_heads, t.head_dim, t.capacity, bytes);
    if (t.kv_heads * middle.groups > kTickets) throw Error(Exit::failure, std::to_string(t.kv_heads) + " key/value heads");
    middle.tickets = zeroed_tickets(scratch, middle.tickets, batch * t.kv_heads * middle.groups, stream);

    // Enough blocks to fill a large device with two or more each, when there are so many positions.
    constexpr std::int64_t kScoreBlocks = 264, kValueBlocks = 528, kFewestTiles = 32, kFewestPieces = 8;
    for (std::int64_t r = 0; r < rows.count(); r += batch) {
        const std::int64_t n = std::min(batch, rows.count() - r);
        const std::int64_t tiles = std::min(middle.positions / 32, std::max(kFewestTiles, kScoreBlocks / (n * t.kv_heads)));
        const std::int64_t pieces =
            std::min(middle.positions / kPieceLength, std::max(kFewestPieces, kValueBlocks / (n * t.kv_heads * middle.groups)));
        const auto size = [](std::int64_t a) { return static_cast<unsigned>(a); };
        with_kv_type(t.kv, [&](auto type) {
            const Row* device = rows.device + r;
            const float* own_qg = qg + r * t.query_heads * 2 * t.head_dim;
            const std::int64_t kv_at = r * t.kv_heads * t.head_dim;
            launch("step_scores", step_scores<type()>, dim3(size(tiles), size(t.kv_heads), size(n)), dim3(kScoreThreads), 0,
                   stream, t, device, own_qg, k + kv_at, v + kv_at, middle);
            launch("step_values", step_values<type()>, dim3(size(pieces), size(t.kv_heads * middle.groups), size(n)),
                   dim3(kValueThreads), 0, stream, t, device, own_qg, out + r * stride, stride, middle);
        });
    }
}

}  // namespace ftmpi::cuda
