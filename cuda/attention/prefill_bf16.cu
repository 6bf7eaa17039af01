// Fast numerics' attention: bf16 tensor cores for the scores and for the sums of values. A block takes 64
// queries of one key/value head, 16 a warp, and goes through the cache in pieces of 64 positions from the
// first on, with each query's running maximum, sum and result in registers. A piece that a query does not see
// leaves its bits alone, so a result does not depend on which rows share a block or a step.
//
// Codes of an FP8 cache are exact in bf16; their scales are applied to scores and results. Keys of a piece
// arrive during the values' products of the one before, values during the scores'. Per piece and block 4.2e6
// fma, 288 KB from shared memory (2300 clocks): at most 240e12 fma a second on 132 multiprocessors, half of
// it expected: 8192 rows of 16 heads of 256 in 2.5 ms.
#include "../gemm/tensor_cores.cuh"
#include "attention.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kQueries = 16 * kWarps, kKeys = 64,
              kRowBytes = 2 * kMostHeadDim;

/// Rows of 32 units of 16 bytes; unit u of row r lies at u ^ (r & 7).
struct Shared {
    unsigned char queries[kQueries][kRowBytes], keys[kKeys][kRowBytes], values[kKeys][kRowBytes];
    int position[kQueries];  ///< -1: no query here
    int vector[kQueries];    ///< row * query heads + head
};
static_assert(sizeof(Shared) <= 99 * 1024, "what a block may take on the smallest of the supported cards");

/// Rows of the cache from `from` on, of which `length` are there; the others become zeroes.
template <KvType kType>
__device__ __forceinline__ void bring(unsigned char (&to)[kKeys][kRowBytes], const char* from, int dim,
                                      int length) {
    const int units = (dim + 15) / 16 * 2, u = static_cast<int>(threadIdx.x) % 32;
    if (u >= units) return;
#pragma unroll 4
    for (int row = static_cast<int>(threadIdx.x) / 32; row < kKeys; row += kWarps) {
        const bool there = row < length && 8 * u < dim;
        const char* element = from + (there ? (std::int64_t{row} * dim + 8 * u) * kElementBytes<kType> : 0);
        unsigned char* place = &to[row][(u ^ (row & 7)) * 16];
        if constexpr (kType == KvType::bf16) {
            copy_async_or_zero(shared_address(place), element, there);
        } else {
            Stored<kType, 8> raw;
            raw.clear();
            if (there) raw.load(element);
            float x[8];
            raw.decode(1.0f, x);
            *reinterpret_cast<uint4*>(place) =
                make_uint4(fast_bf16_pair(x[0], x[1]), fast_bf16_pair(x[2], x[3]), fast_bf16_pair(x[4], x[5]),
                           fast_bf16_pair(x[6], x[7]));
        }
    }
}

template <KvType kType>
__global__ void __launch_bounds__(kThreads, 2)
    attend_prefill_bf16(Attention t, const Row* rows, std::int64_t count, const float* qg, float* out,
                        std::int64_t stride, int heads_at_once, int head_tiles) {
    Shared& s = *reinterpret_cast<Shared*>(shared_bytes());
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4,
              w = lane % 4;
    const int dim = t.head_dim;
    const QueryBlock<kQueries> block(t, count, heads_at_once, head_tiles);
    if (block.head0 >= block.heads.count) return;
    const float score_scale = kType == KvType::fp8 ? t.scale * t.k_scale : t.scale;
    const float minus_infinity = num::float_of(0xff800000u);

    // Rows that this lane names to ldmatrix: matrices 0..3 are (first 8 rows, first unit), then for queries
    // and values the next 8 rows, for keys the next unit, and so on.
    const int down = lane / 8 % 2 * 8 + lane % 8, right = lane / 16, key_down = lane / 16 * 8 + lane % 8,
              key_right = lane / 8 % 2;
    const unsigned own_queries = shared_address(s.queries[warp * 16 + down]),
                   own_keys = shared_address(s.keys[key_down]), own_values = shared_address(s.values[down]);
    const int turn = lane & 7;

    for (std::int64_t first = block.begin, next; first < block.end; first = next) {  // neighbours of one slot
        next = block.end_of_slot(rows, first);
        __syncthreads();
        block.name_queries(s, t, rows, first, next);
        const std::int64_t cache = cache_offset<kType>(t, rows[first].slot, block.kv);
        const char* keys = static_cast<const char*>(t.keys) + cache;
        const char* values = static_cast<const char*>(t.values) + cache;
        const int low = rows[first].position, high = rows[next - 1].position;
        bring<kType>(s.keys, keys, dim, high + 1);
        close_copy_group();
        __syncthreads();
        auto* plain = reinterpret_cast<float*>(s.values[0]) + warp * kMostHeadDim;  // no values there yet
        for (int q = warp * 16; q < warp * 16 + 16; ++q) {
            auto* place = reinterpret_cast<uint4*>(&s.queries[q][(lane ^ (q & 7)) * 16]);
            *place = make_uint4(0, 0, 0, 0);
            if (s.position[q] < 0) continue;
            norm_rope(t, qg + std::int64_t{s.vector[q]} * query_pitch(t), t.q_norm, s.position[q], plain,
                      num::kChunk);
            const float* x = plain + 8 * lane;
            if (8 * lane < dim)
                *place = make_uint4(fast_bf16_pair(x[0], x[1]), fast_bf16_pair(x[2], x[3]),
                                    fast_bf16_pair(x[4], x[5]), fast_bf16_pair(x[6], x[7]));
            __syncwarp();
        }
        // What is not there counts as a query of the first position.
        const int own[2] = {s.position[warp * 16 + g], s.position[warp * 16 + g + 8]};
        const int last[2] = {own[0] < 0 ? 0 : own[0], own[1] < 0 ? 0 : own[1]};
        float max[2] = {minus_infinity, minus_infinity},
              sum[2] = {0.0f, 0.0f};  // sum: of this lane's positions
        float acc[kMostHeadDim / 8][4];
#pragma unroll
        for (int n = 0; n < kMostHeadDim / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[n][e] = 0.0f;

        for (int p0 = 0; p0 <= high; p0 += kKeys) {
            const std::int64_t offset = std::int64_t{p0} * dim * kElementBytes<kType>;
            wait_copy_groups<0>();
            __syncthreads();  // the keys are there, and nobody reads the values before
            bring<kType>(s.values, values + offset, dim, high + 1 - p0);
            close_copy_group();

            float score[kKeys / 8][4];
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) score[j][e] = 0.0f;
#pragma unroll 4
            for (int k = 0; k < (dim + 15) / 16; ++k) {
                std::uint32_t a[4];
                load_matrices(a, own_queries + ((2 * k + right) ^ turn) * 16);
#pragma unroll
                for (int j = 0; j < kKeys / 8; j += 2) {
                    std::uint32_t b[4];
                    load_matrices(b, own_keys + j * 8 * kRowBytes + ((2 * k + key_right) ^ turn) * 16);
                    multiply_bf16(score[j], a, b[0], b[1]);
                    multiply_bf16(score[j + 1], a, b[2], b[3]);
                }
            }
            const bool partly = p0 + kKeys - 1 > low;
            float shrink[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float m = max[r];
#pragma unroll
                for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float& x = score[j][2 * r + e];
                        x = partly && p0 + 8 * j + 2 * w + e > last[r] ? minus_infinity : x * score_scale;
                        m = x > m ? x : m;
                    }
                for (int d = 1; d < 4; d *= 2) {
                    const float other = __shfl_xor_sync(kWholeWarp, m, d);
                    m = other > m ? other : m;
                }
                shrink[r] = p0 == 0 ? 0.0f : num::exp(max[r] - m);
                max[r] = m;
                float added = 0.0f;
#pragma unroll
                for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float& x = score[j][2 * r + e];
                        x = x == minus_infinity ? 0.0f : num::exp(x - m);
                        added = added + x;
                    }
                sum[r] = p0 == 0 ? added : num::fma(sum[r], shrink[r], added);
            }
            if (p0 > 0 && __any_sync(kWholeWarp, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
                for (int n = 0; n < kMostHeadDim / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) acc[n][e] = acc[n][e] * shrink[e / 2];
            }
            std::uint32_t weights[kKeys / 16][4];
#pragma unroll
            for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    weights[k][i] =
                        fast_bf16_pair(score[2 * k + i / 2][i % 2 * 2], score[2 * k + i / 2][i % 2 * 2 + 1]);

            wait_copy_groups<0>();
            __syncthreads();  // the values are there, and nobody reads the keys any more
            if (p0 + kKeys <= high) {
                bring<kType>(s.keys, keys + offset + std::int64_t{kKeys} * dim * kElementBytes<kType>, dim,
                             high + 1 - p0 - kKeys);
                close_copy_group();
            }
#pragma unroll
            for (int n = 0; n < kMostHeadDim / 16; ++n) {
                if (16 * n >= dim) break;
#pragma unroll
                for (int k = 0; k < kKeys / 16; ++k) {
                    std::uint32_t b[4];
                    load_matrices_transposed(b,
                                             own_values + k * 16 * kRowBytes + ((2 * n + right) ^ turn) * 16);
                    multiply_bf16(acc[2 * n], weights[k], b[0], b[1]);
                    multiply_bf16(acc[2 * n + 1], weights[k], b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            for (int d = 1; d < 4; d *= 2) sum[r] = sum[r] + __shfl_xor_sync(kWholeWarp, sum[r], d);
            if (own[r] < 0) continue;
            const int vector = s.vector[warp * 16 + g + 8 * r], row = vector / t.query_heads,
                      head = vector % t.query_heads;
            float* to = out + row * stride + std::int64_t{head} * dim;
            const float* gate = qg + std::int64_t{vector} * query_pitch(t) + dim;
#pragma unroll
            for (int n = 0; n < kMostHeadDim / 8; ++n) {
                const int column = 8 * n + 2 * w;
                if (column >= dim) break;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float x = kType == KvType::fp8 ? acc[n][2 * r + e] * t.v_scale : acc[n][2 * r + e];
                    const float y = num::attention_out(x, sum[r]);
                    to[column + e] = t.gated ? y * num::sigmoid(gate[column + e]) : y;
                }
            }
        }
    }
}

}  // namespace

void attention_prefill_bf16(const Attention& t, const Rows& rows, const float* qg, float* out,
                            std::int64_t stride, cudaStream_t stream) {
    with_kv_type(t.kv, [&](auto type) {
        launch_queries<kQueries>("attend_prefill_bf16", attend_prefill_bf16<type()>, kThreads, sizeof(Shared),
                                 t, rows, qg, out, stride, stream);
    });
}

}  // namespace ftmpi::cuda
