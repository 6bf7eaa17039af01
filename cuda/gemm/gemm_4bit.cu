// Tiles of 4-bit weights: integer products of bytes on the tensor cores, exact in any order, then the float
// steps of a chunk.
//
// 128 threads; a warp owns 16 rows of the lower and 16 of the upper half of the tile and all 64 inputs, so a
// lane keeps 64 segment sums and decodes only weights of its own. Per result and chunk of 32: one product
// instruction (of four), 2 combinations of byte planes, 2 conversions, 4 float operations, and about 2.5 of
// decoding and loading: 11 for 32 multiply-adds, where a float kernel needs 32 fmas.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include "../gemv/chunk_dot.cuh"
#include "gemm.hpp"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 128, kStageChunks = 4, kColumns = kTileInputs / 8;
constexpr int kCodes = kStageChunks * kTileInputs * 4;           // 16-byte units of a stage
constexpr int kStage = kCodes + kTileInputs * kStageChunks / 4;  // with the units of its chunks
constexpr std::size_t kSharedBytes =
    2 * kStage * kWord128 + kTileInputs * sizeof(int) + sizeof(float) * 64 * kThreads;

/// A lane's weights of a stage: word lane % 4 of each chunk of four rows, and their scales.
struct Weights {
    std::uint32_t codes[4][kStageChunks];
    std::uint32_t scales[4][kStageChunks];
};

template <Format F, TileKind Kind>
__global__ void __launch_bounds__(kThreads, 2) gemm_4bit_tiles(const __grid_constant__ TileTask a) {
    TileExtent p;
    if (!extent_of<Kind>(a, F, p)) return;
    auto* stages = reinterpret_cast<uint4*>(shared_bytes());
    auto* rows_in = reinterpret_cast<int*>(stages + 2 * kStage);
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4,
              w = lane % 4;
    float* total =
        reinterpret_cast<float*>(rows_in + kTileInputs) + thread;  // element e at total[e * kThreads]
    const int chunks = p.m.chunks;
    const auto coded = static_cast<int>(coded_chunks(p.m.cols));
    const int columns = (p.count + 7) / 8;  // of 8 inputs
    if (thread < kTileInputs) rows_in[thread] = input_row<Kind>(a, p, thread);
    __syncthreads();

    const auto bring_inputs = [&](int stage) {
        uint4* to = stages + stage % 2 * kStage;
        for (int i = thread; i < columns * 8 * 16; i += kThreads) {
            const int input = i / 16, chunk = i % 16 / 4, word = i % 4;
            const std::int64_t from =
                static_cast<std::int64_t>(rows_in[input]) * coded + stage * kStageChunks;
            copy_async(to + (chunk * kTileInputs + input) * 4 + word,
                       p.matrix->coded.codes + from * 4 + i % 16);
        }
        if (thread < columns * 8)
            copy_async(to + kCodes + thread, p.matrix->coded.units +
                                                 static_cast<std::int64_t>(rows_in[thread]) * coded +
                                                 stage * kStageChunks);
        close_copy_group();
    };

    // Rows at or beyond the limit read the last row and are not stored.
    const std::uint8_t* codes[4];
    const std::uint8_t* scales[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int at = (i < 2 ? p.low : p.high) + 16 * warp + g + i % 2 * 8,
                  limit = i < 2 ? p.low_limit : p.high_limit;
        const std::int64_t row = at < limit ? at : limit - 1;
        codes[i] = p.m.codes + row * p.m.code_pitch + 4 * w;
        scales[i] = p.m.scales + row * p.m.scale_pitch;
    }
    const auto bring_weights = [&](Weights& n, int stage) {
#pragma unroll
        for (int c = 0; c < kStageChunks; ++c) {
            const int chunk = stage * kStageChunks + c;
            if (chunk >= chunks) break;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                n.codes[i][c] = __ldg(reinterpret_cast<const std::uint32_t*>(codes[i] + chunk * kWord128));
                n.scales[i][c] = scale_of_chunk<F>(scales[i], chunk, [](const auto* p) { return __ldg(p); });
            }
        }
    };

    float segment[2][kColumns][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) segment[half][n][e] = 0.0f;

    const auto chunk_of = [&](const Weights& now, int c, const uint4* stage) {
        std::uint32_t weight[4][2];
        float scale[4][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            decode_e2m1_signed(now.codes[i][c], weight[i][0], weight[i][1]);
            FormatTraits<F>::decode_scale(now.scales[i][c], scale[i]);
        }
        const auto* units = reinterpret_cast<const float*>(stage + kCodes) + c;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
            if (n >= columns) break;
            const uint4 x = stage[(c * kTileInputs + 8 * n + g) * 4 + w];
            const float unit[2] = {units[(8 * n + 2 * w) * kStageChunks],
                                   units[(8 * n + 2 * w + 1) * kStageChunks]};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int high0[4], high1[4], low0[4], low1[4];
                multiply_bytes(high0, weight[2 * half][0], weight[2 * half + 1][0], x.x);
                multiply_bytes(high1, weight[2 * half][1], weight[2 * half + 1][1], x.y);
                multiply_bytes(low0, weight[2 * half][0], weight[2 * half + 1][0], x.z);
                multiply_bytes(low1, weight[2 * half][1], weight[2 * half + 1][1], x.w);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int sum0 = high0[e] * num::kPlane + low0[e],
                              sum1 = high1[e] * num::kPlane + low1[e];
                    const float v =
                        FormatTraits<F>::chunk_value(sum0, sum1, scale[2 * half + e / 2], unit[e % 2]);
                    segment[half][n][e] = segment[half][n][e] + v;
                }
            }
        }
    };

    const int all_stages = (chunks + kStageChunks - 1) / kStageChunks;
    Weights now, next;
    bring_inputs(0);
    bring_weights(now, 0);
    for (int s = 0; s < all_stages; ++s) {
        if (s + 1 < all_stages) {
            bring_inputs(s + 1);
            bring_weights(next, s + 1);
            wait_copy_groups<1>();
        } else {
            wait_copy_groups<0>();
        }
        __syncthreads();
        const uint4* stage = stages + s % 2 * kStage;
#pragma unroll
        for (int c = 0; c < kStageChunks; ++c)
            if (s * kStageChunks + c < chunks) chunk_of(now, c, stage);
        __syncthreads();                          // the stage is written again
        if (s % 4 == 3 || s + 1 == all_stages) {  // 16 chunks are a segment
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int n = 0; n < kColumns; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        float& t = total[((half * kColumns + n) * 4 + e) * kThreads];
                        t = (s < 4 ? 0.0f : t) + segment[half][n][e];
                        segment[half][n][e] = 0.0f;
                    }
        }
        now = next;
    }
    for (int n = 0; n < columns; ++n)
        for (int e = 0; e < 2; ++e) {
            const int input = 8 * n + 2 * w + e;
            if (input >= p.count) continue;
            float* out = p.matrix->out + result_row(p, input) * p.matrix->stride;
            for (int r = 0; r < 2; ++r)
                store_result<Kind>(a, p, 16 * warp + g + 8 * r, out, total[(n * 4 + 2 * r + e) * kThreads],
                                   total[((kColumns + n) * 4 + 2 * r + e) * kThreads]);
        }
}

template <Format F, TileKind Kind> void launch_kind(const TileTask& a, dim3 grid, cudaStream_t stream) {
    static const bool allowed = (allow_shared(gemm_4bit_tiles<F, Kind>, kSharedBytes), true);
    static_cast<void>(allowed);
    launch("matrix tiles", gemm_4bit_tiles<F, Kind>, grid, dim3(kThreads), kSharedBytes, stream, a);
}

/// blockIdx.x counts rows, blockIdx.y parts of a row.
__global__ void code_blocks(const float* x, std::int64_t cols, int coded, CodedRows to) {
    const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x), chunk = i / 4, part = i % 4,
              group = part / 2;
    const std::int64_t row = blockIdx.x;
    float v[8];
    load_octet(x + row * cols, 8 * i, chunk < coded ? static_cast<int>(cols) : 0, v);
    const CodeOctet q = quantize_octet(v);
    if (chunk >= coded) return;
    auto* codes = reinterpret_cast<std::uint32_t*>(to.codes + (row * coded + chunk) * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int word = part % 2 * 2 + h;
        codes[4 * word + group] = q.high[h];
        codes[4 * word + 2 + group] = q.low[h];
    }
    if (part == 0) to.units[row * coded + chunk] = q.unit;
}

}  // namespace

void gemm_4bit(TileKind kind, const TileTask& task, Format format, int grid_rows, int grid_inputs,
               cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(grid_rows), static_cast<unsigned>(grid_inputs));
    with_format(format, [&]<Format F>() {
        if constexpr (is_4bit(F))
            with_kind(kind, [&]<TileKind K>() { launch_kind<F, K>(task, grid, stream); });
    });
}

void code_rows(const float* x, std::int64_t rows, std::int64_t cols, CodedRows to, cudaStream_t stream) {
    const auto coded = static_cast<int>(coded_chunks(cols));
    launch("code activations", code_blocks,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>((coded * 4 + 127) / 128)), dim3(128), 0,
           stream, x, cols, coded, to);
}

}  // namespace ftmpi::cuda
