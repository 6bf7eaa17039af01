// Attention of one row of each slot. A block has 32 of a piece's 256 positions and up to four query heads of
// a key/value head for the scores, then 32 columns and all of the piece's positions for the values. In
// between the eight blocks of a piece give one another their scores: as a cluster, by writing into one
// another's shared memory; on cards without clusters by a second launch. Of the blocks that have the same
// columns, the last one merges the pieces.
//
// At 1k positions, 16 query and 2 key/value heads of 256 in bf16 these are 128 blocks, each of which reads 32
// KiB (4.2 MB, half of it from the second-level cache: 1 us would do) and multiplies 2 x 32,768 times, 256
// cycles in each half. Everything else is latency, so that counts, in cycles: start 1,000, the row's slot and
// position 700, keys and values together 1,100, norm and RoPE of the queries, products 600, scores to the
// neighbours 500, weights 250, products 600, ticket and merge 2,000. Each launch fetches its code anew, at
// about 20 cycles for 8 instructions; hence loops where they are long enough. All up to the cache is asked
// for before the kernel before has ended. Seen in a step at 1k on an H200: 8.6 us from the end of the kernel
// before to its own, after 14.8 with two kernels of unrolled code.
// The grids do not depend on the positions: clusters stride over the pieces, and those that find none leave.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
// Blocks that share a row by positions and merge at the end are Flash-Decoding's split of keys and values
// (Dao, Haziza, Massa, Sizov, 2023), here with pieces of 256 absolute positions for any number of them.
#include <algorithm>

#include "decode.cuh"

namespace ftmpi::cuda {
namespace {

using namespace step;

/// Grid: ranks * groups of query heads, kv heads (rounded up to a power of two) * pieces, rows.
template <KvType kType, Part kPart, bool kGated>
__global__ void __launch_bounds__(kThreads, 2)
    attend_decode(Attention t, const Row* rows, const float* qg, const float* k, const float* v, float* out,
                  std::int64_t stride, Middle m) {
    constexpr unsigned kBytes = kElementBytes<kType>, kParts = kGated ? 2 : 1;  // of a head in qg
    auto& s = *static_cast<Shared<kType>*>(
        __cvta_shared_to_generic(kept(static_cast<unsigned>(__cvta_generic_to_shared(shared_bytes())))));
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32,
                   dim = static_cast<unsigned>(t.head_dim);
    const unsigned cta_rank = blockIdx.x % kCtas, first_head = blockIdx.x / kCtas * kHeads;
    const unsigned kv = blockIdx.y & ((1u << m.kv_bits) - 1), first_piece = blockIdx.y >> m.kv_bits;
    const unsigned piece_step = gridDim.y >> m.kv_bits, kv_heads = static_cast<unsigned>(t.kv_heads);
    if (kv >= kv_heads) return;
    const QueryHeads all_heads = query_heads_of(t, static_cast<int>(kv));
    const unsigned count = static_cast<unsigned>(all_heads.count);
    if (first_head > 0 && first_head >= count)
        return;  // without a query head, the first blocks still fill the cache
    const unsigned heads = count - first_head < kHeads ? count - first_head : kHeads;
    const unsigned head0 = static_cast<unsigned>(all_heads.first) + first_head;
    const unsigned vector0 = blockIdx.z * static_cast<unsigned>(t.query_heads) + head0;  // the block's first
    // In a register of each thread: the compiler would wait at once for what it can hold once for the warp.
    const Row* row = rows + blockIdx.z + (kept(thread) >> 10);
    const unsigned position = static_cast<unsigned>(row->position), slot = static_cast<unsigned>(row->slot);

    trigger_dependents();

    // The cache of earlier tokens, before the kernel before has ended.
    const bool helper = warp == kWarps, has_head = warp < heads;
    const unsigned column = cta_rank * kTile + lane, own = blockIdx.z * kv_heads + kv,
                   last_piece = position / kKvBlock;
    if (first_piece > last_piece) return;
    const std::uint64_t cache =
        std::uint64_t{slot * kv_heads + kv} * static_cast<std::uint64_t>(m.head_bytes);
    char *const keys = kept(static_cast<char*>(t.keys) + cache), *const values = kept(
                                                                     static_cast<char*>(t.values) + cache);
    const auto ask = [&](unsigned piece) {
        const unsigned first = piece * kKvBlock;
        if (kPart != Part::values) ask_keys(s, keys, dim, first + cta_rank * kTile, position);
        close_copy_group();
        if (kPart != Part::scores) ask_values(s, values, dim, cta_rank, first, position);
        close_copy_group();
    };
    HeadVector vector{s.vectors[helper ? kHeads : warp % kHeads],
                      helper ? s.parts[0] : s.weights[warp % kHeads]};
    if (kPart != Part::values) vector.ask_angles(t, position);
    ask(first_piece);
    if (kPart == Part::all) {
        if (thread == 0) s.arrivals.begin();
        __syncwarp();
        cluster_arrive_unordered();  // a block must have begun before the others write into it
    }

    wait_for_prerequisites();
    if (kPart != Part::values)
        vector.ask(has_head || helper, dim,
                   has_head ? offset(qg, vector0 + warp, kParts * dim) : offset(k, own, dim),
                   has_head ? t.q_norm : t.k_norm);
    close_copy_group();
    float gate_or_value = 0.0f;
    if (kPart != Part::scores && column < dim && (kGated || !has_head))
        gate_or_value =
            *(has_head ? offset(qg, 2 * (vector0 + warp) + 1, dim) + column : offset(v, own, dim) + column);
    wait_copy_groups<0>();
    if (kPart != Part::values && (has_head || helper)) vector.norm_rope(t, position);
    float gate = 0.0f, value = 0.0f, sum = 0.0f;
    if (kGated && kPart != Part::scores && !helper) gate = num::sigmoid(gate_or_value);

    unsigned parity = 0;
#pragma unroll 1
    for (unsigned piece = first_piece;; parity ^= 1u) {
        const unsigned tile = piece * kKvBlock + cta_rank * kTile;
        if (helper && piece == last_piece) {  // the row's own key and value
            if (kPart != Part::values && position - tile < kTile)
                bring_key(s, t, position - tile,
                          first_head == 0 ? offset(keys, position, dim * kBytes) : nullptr);
            if (kPart != Part::scores && column < dim) {
                store_element<kType>(s.tiles.values[position % kKvBlock], static_cast<int>(lane),
                                     gate_or_value, t.v_scale);
                if (first_head == 0)
                    store_element<kType>(offset(values, position, dim * kBytes), static_cast<int>(column),
                                         gate_or_value, t.v_scale);
            }
        }

        if constexpr (kPart != Part::values) {
            wait_copy_groups<1>();
            __syncthreads();
            if (!helper) multiply_keys(s, warp, warp * num::kChunk < dim, t.k_scale);
            __syncthreads();
            if (kPart == Part::all)
                cluster_wait();  // the others have begun, or have read the last piece's scores
            if (!helper) {       // a lane has a head's scores of two positions; four warps have the same, for
                                 // other ranks
                const unsigned head = warp % 2 * 2 + lane / 16, at = lane % 16 * 2;
                float2 score{0.0f, 0.0f};
#pragma unroll
                for (int c = 0; c < kMostHeadChunks; ++c) {
                    const float2 part = *reinterpret_cast<const float2*>(&s.parts[c][head * kPartPitch + at]);
                    score = {score.x + part.x, score.y + part.y};
                }
                score.x = tile + at <= position ? (0.0f + score.x) * t.scale : num::float_of(0xff800000u);
                score.y = tile + at + 1 <= position ? (0.0f + score.y) * t.scale : num::float_of(0xff800000u);
                if (kPart == Part::all)
#pragma unroll
                    for (unsigned to = 0; to < kCtas; to += 4)
                        s.arrivals.send(warp / 2 + to,
                                        reinterpret_cast<float2*>(&s.scores[head][cta_rank * kTile + at]),
                                        score);
                else if (warp < 2 && head < heads)
                    *reinterpret_cast<float2*>(offset(m.scores, vector0 + head, m.positions) + tile + at) =
                        score;
            }
            if (kPart == Part::all) {
                if (thread == 0) s.arrivals.expect(sizeof s.scores);
                s.arrivals.wait(parity);
            }
        } else {
            const unsigned head = thread / 64, at = thread % 64 * 4;
            if (head < heads)
                *reinterpret_cast<float4*>(&s.scores[head][at]) = *reinterpret_cast<const float4*>(
                    offset(m.scores, vector0 + head, m.positions) + piece * kKvBlock + at);
            __syncthreads();
        }

        if constexpr (kPart != Part::scores) {
            if (!helper) weigh(s, warp, lane);
            wait_copy_groups<0>();
            __syncthreads();
            if (helper) {
                const float weights = add_weights(s, lane);
                const unsigned head = lane / kKvBlockChunks;
                if (lane % kKvBlockChunks == 0) {
                    s.sum[head] = weights;
                    if (last_piece > 0 && head < heads)
                        offset(m.stats, (vector0 + head) * kCtas + cta_rank, m.pieces)[piece] = {s.max[head],
                                                                                                 weights};
                }
            } else {
                multiply_values(s, warp, t.v_scale);
            }
            __syncthreads();
            if (has_head) {
                value = 0.0f, sum = s.sum[warp];
#pragma unroll
                for (int c = 0; c < kKvBlockChunks; ++c) value = value + s.parts[c][warp * kPartPitch + lane];
                if (last_piece > 0 && column < dim)
                    offset(m.outs, (vector0 + warp) * m.pieces + piece, dim)[column] = value;
            }
        }
        piece += piece_step;
        if (piece > last_piece) break;
        if (kPart == Part::all) cluster_arrive();
        ask(piece);
    }
    if (kPart == Part::scores || cta_rank * kTile >= dim) return;

    // All blocks that had a piece have come by when the last one has.
    if (last_piece > 0) {
        __syncthreads();
        if (thread == 0) {
            const unsigned blocks = last_piece < piece_step ? last_piece + 1 : piece_step;
            unsigned* ticket = m.tickets + own * gridDim.x + blockIdx.x;
            s.last = take_ticket(ticket) + 1 == blocks;
            if (s.last) *ticket = 0;
        }
        __syncthreads();
        if (!s.last) return;
        if (has_head)
            merge(s, warp, last_piece + 1,
                  offset(m.outs, (vector0 + warp) * m.pieces, dim) + cta_rank * kTile, dim,
                  dim - cta_rank * kTile, offset(m.stats, (vector0 + warp) * kCtas + cta_rank, m.pieces),
                  value, sum);
    }
    // As num::attention_out; the gate's sigmoid is there already.
    if (has_head && column < dim)
        offset(out + blockIdx.z * stride, head0 + warp, dim)[column] =
            kGated ? (value / sum) * gate : num::attention_out(value, sum);
}

/// Divides the scratch for `rows` rows; null counts.
Middle middle_of(void* data, std::int64_t rows, int query_heads, int head_dim, std::int64_t capacity,
                 std::size_t& bytes) {
    Parts parts(data);
    Middle m{};
    m.pieces = static_cast<unsigned>((capacity + kKvBlock - 1) / kKvBlock);
    m.positions = m.pieces * kKvBlock;
    const std::int64_t vectors = rows * query_heads;
    m.scores = parts.take<float>(vectors * m.positions);
    m.outs = parts.take<float>(vectors * m.pieces * head_dim);
    m.stats = parts.take<float2>(vectors * kCtas * m.pieces);
    bytes = parts.bytes();
    return m;
}

/// Rows that go through the kernels together: what fits kMostScratch, but at least one.
constexpr std::size_t kMostScratch = std::size_t{64} << 20;
std::int64_t batch_of(const Attention& t, std::int64_t rows, std::int64_t tickets) {
    std::size_t one = 0;
    middle_of(nullptr, 1, t.query_heads, t.head_dim, t.capacity, one);
    const auto fits = static_cast<std::int64_t>(kMostScratch / one);
    return std::max<std::int64_t>(1, std::min({rows, fits, kTickets / tickets}));
}

template <KvType kType, bool kGated>
void launch_step(bool clusters, bool early, dim3 grid, cudaStream_t stream, const Attention& t,
                 const Row* rows, const float* qg, const float* k, const float* v, float* out,
                 std::int64_t stride, const Middle& m) {
    const auto all = attend_decode<kType, Part::all, kGated>;
    static const bool takes = (allow_shared(all, sizeof(Shared<kType>)),
                               takes_clusters(all, kCtas, dim3(kThreads), sizeof(Shared<kType>)));
    if (clusters && takes) {
        launch_clusters(early, "attend_decode", all, kCtas, grid, dim3(kThreads), sizeof(Shared<kType>),
                        stream, t, rows, qg, k, v, out, stride, m);
        return;
    }
    for (const auto half :
         {attend_decode<kType, Part::scores, kGated>, attend_decode<kType, Part::values, kGated>}) {
        allow_shared(half, sizeof(Shared<kType>));
        launch_pdl_if(early, "attend_decode", half, grid, dim3(kThreads), sizeof(Shared<kType>), stream, t,
                      rows, qg, k, v, out, stride, m);
    }
}

/// Blocks in x of the heads of one key/value head.
constexpr std::int64_t blocks_across(int heads) { return (heads + kHeads - 1) / kHeads * kCtas; }

}  // namespace

void check_decode_heads(int kv_heads) {
    constexpr std::int64_t kMost = kTickets / blocks_across(kMostDecodeHeads);
    if (kv_heads > kMost)
        refuse(std::to_string(kv_heads) + " key/value heads", "up to " + std::to_string(kMost) + " a rank");
}

std::size_t attention_scratch(std::int64_t rows, int query_heads, int head_dim, std::int64_t capacity) {
    std::size_t one = 0;
    middle_of(nullptr, 1, query_heads, head_dim, capacity, one);
    return std::min(static_cast<std::size_t>(rows) * one, std::max(one, kMostScratch));
}

void attention_decode(const Attention& t, const Rows& rows, const float* qg, const float* k, const float* v,
                      float* out, std::int64_t stride, const Scratch& scratch, bool early,
                      cudaStream_t stream, bool clusters) {
    check_scratch("attention", attention_scratch(rows.count(), t.query_heads, t.head_dim, t.capacity),
                  scratch);
    unsigned kv_bits = 0;
    while (1 << kv_bits < t.kv_heads) ++kv_bits;
    const std::int64_t across = blocks_across(std::max(1, heads_together(t))), tickets = across * t.kv_heads;
    check_decode_heads(t.kv_heads);
    const std::int64_t batch = batch_of(t, rows.count(), tickets);
    std::size_t bytes = 0;
    Middle middle = middle_of(scratch.data, batch, t.query_heads, t.head_dim, t.capacity, bytes);
    middle.kv_bits = kv_bits;
    middle.head_bytes = t.capacity * t.head_dim * static_cast<std::int64_t>(size_of(t.kv));
    middle.tickets = scratch.tickets;

    // As many blocks as a large device holds at once, when there are so many positions.
    constexpr std::int64_t kBlocks = 264, kFewestPieces = 4;
    for (std::int64_t r = 0; r < rows.count(); r += batch) {
        const std::int64_t n = std::min(batch, rows.count() - r);
        const std::int64_t pieces =
            std::min(std::int64_t{middle.pieces}, std::max(kFewestPieces, kBlocks / (n * tickets)));
        const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(pieces << kv_bits),
                        static_cast<unsigned>(n));
        with_kv_type(t.kv, [&](auto type) {
            const std::int64_t kv_at = r * t.kv_heads * t.head_dim;
            (t.gated ? launch_step<type(), true>
                     : launch_step<type(), false>)(clusters, early, grid, stream, t, rows.device + r,
                                                   qg + r * t.query_heads * query_pitch(t), k + kv_at,
                                                   v + kv_at, out + r * stride, stride, middle);
        });
    }
}

}  // namespace ftmpi::cuda
