// Fast numerics' tiles: 128 matrix rows times 128 inputs a block, 8 warps of 32 x 64, stages of 64 columns on
// their way behind the products (three buffers).
//
// The order of columns: a stage's columns are taken so that lane 4g + w finds all that it needs of a matrix
// row in 16 codes without gaps: step s of four multiplies columns 16w + 4s .. + 3. The inputs are written in
// that order when they are rounded to bf16. e4m3 codes stay codes in shared memory and are widened in
// registers, by the two warps that share a row.
//
// A step of 16 columns is 128 products of 2048 on the tensor cores (about 210 clocks), 20 KB from shared
// memory (160), and 160 clocks of widening on the integer pipe: 150 to 250e12 fma a second on 132
// multiprocessors if they overlap well.
#include "gemm_bf16.hpp"

#include <algorithm>

#include "tensor_cores.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 256, kRows = 128, kInputs = 128, kColumns = 64, kStages = 3, kMatrices = 8;
constexpr int kInputBytes = kInputs * kColumns * 2;
constexpr int row_bytes(Format f) { return f == Format::bf16 ? 2 * kColumns : kColumns; }
constexpr int stage_bytes(Format f) { return kInputBytes + kRows * row_bytes(f); }

struct FastMatrix {
    MatrixView m;
    float* out;
    std::int64_t stride;
    int first_tile;  ///< tiles of 128 rows before this matrix
};

struct FastTask {
    FastMatrix matrices[kMatrices];
    int count = 0, rows = 0, stages = 0;
    const uint4* x = nullptr;  ///< [rows][stages][8]
};

/// Unit u of a stage: columns 16w + 2u, 16w + 2u + 1 for w = 0..3.
__global__ void round_rows(const float* x, std::int64_t units, int cols, int stages, bool even, uint4* to) {
    const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= units) return;
    const std::int64_t row = i / (8 * stages);
    const int stage = static_cast<int>(i / 8 % stages), u = static_cast<int>(i % 8);
    const float* from = x + row * cols;
    std::uint32_t pairs[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const int k = stage * kColumns + 16 * w + 2 * u;
        float2 v;
        if (even && k + 2 <= cols) {
            v = *reinterpret_cast<const float2*>(from + k);
        } else {
            v.x = k < cols ? from[k] : 0.0f;
            v.y = k + 1 < cols ? from[k + 1] : 0.0f;
        }
        pairs[w] = fast_bf16_pair(v.x, v.y);
    }
    to[i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/// Rows [row0, row0 + 128) of the matrix, inputs [input0, input0 + 128).
template <Format F>
__device__ __forceinline__ void fast_tile(const FastTask& a, const FastMatrix& matrix, int row0, int input0) {
    constexpr bool kBlocks = FormatTraits<F>::kBlockScaled;
    constexpr int kUnits = row_bytes(F) / 16, kBatches = kRows * kUnits / kThreads, P = words128_of(F);
    const MatrixView& m = matrix.m;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4,
              w = lane % 4;
    const unsigned shared = shared_address(shared_bytes());
    const int chunks = m.chunks;

    const auto bring = [&](int stage) {
        const unsigned inputs = shared + stage % kStages * stage_bytes(F), weights = inputs + kInputBytes;
#pragma unroll
        for (int i = 0; i < kInputs * 8 / kThreads; ++i) {
            const int input = thread / 8 + i * (kThreads / 8), u = thread % 8;
            const bool there = input0 + input < a.rows;
            const std::int64_t from =
                (static_cast<std::int64_t>(there ? input0 + input : 0) * a.stages + stage) * 8 + u;
            copy_async_or_zero(inputs + input * 128 + (u ^ (input & 7)) * 16, a.x + from, there);
        }
        const int set = 2 * stage / 32 * 32, n = chunks - set < 32 ? chunks - set : 32;
#pragma unroll
        for (int i = 0; i < kBatches; ++i) {
            const int row = thread / kUnits + i * (kThreads / kUnits), piece = thread % kUnits / 2,
                      which = thread % 2;
            const int chunk = 2 * stage + which, unit = which * P + piece;
            const bool there = row0 + row < m.rows && chunk < chunks;
            const std::int64_t from =
                there ? (row0 + row) * m.code_pitch + (set * P + piece * n + chunk - set) * kWord128 : 0;
            const int at = F == Format::bf16 ? unit ^ (row & 1) : unit;
            copy_async_or_zero(weights + row * row_bytes(F) + at * 16, m.codes + from, there);
        }
    };

    float acc[2][8][4];  // tile of 16 rows, tile of 8 inputs
    float outer[kBlocks ? 2 : 1][kBlocks ? 8 : 1][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                acc[i][j][e] = 0.0f;
                if constexpr (kBlocks) outer[i][j][e] = 0.0f;
            }

    const int own_row = warp / 2 * 32 + g, own_input = warp % 2 * 64;
    // ldmatrix: matrices are (8 inputs, first half), (same, second half), (next 8 inputs, ..)
    const int load_input = own_input + lane / 16 * 8 + lane % 8, load_half = lane / 8 % 2;

#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
        if (s < a.stages) bring(s);
        close_copy_group();
    }
    for (int stage = 0; stage < a.stages; ++stage) {
        wait_copy_groups<kStages - 2>();
        __syncthreads();  // the stage is there for all, and the buffer of the one before is free
        if (stage + kStages - 1 < a.stages) bring(stage + kStages - 1);
        close_copy_group();
        const unsigned char* weights =
            shared_bytes() + stage % kStages * stage_bytes(F) + kInputBytes + own_row * row_bytes(F);
        const unsigned inputs = shared + stage % kStages * stage_bytes(F) + load_input * 128;
        uint4 codes[4];  // rows g, g + 8, g + 16, g + 24
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            if (F == Format::bf16 ? s % 2 == 0 : s == 0) {
                const int unit = F == Format::bf16 ? (2 * w + s / 2) ^ (g & 1) : w;
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    codes[i] = *reinterpret_cast<const uint4*>(weights + 8 * i * row_bytes(F) + unit * 16);
            }
            std::uint32_t rows[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                std::uint32_t &first = rows[i / 2][i % 2], &second = rows[i / 2][2 + i % 2];
                if constexpr (F == Format::bf16) {
                    first = s % 2 ? codes[i].z : codes[i].x;
                    second = s % 2 ? codes[i].w : codes[i].y;
                } else {
                    bf16_of_e4m3(s == 0   ? codes[i].x
                                 : s == 1 ? codes[i].y
                                 : s == 2 ? codes[i].z
                                          : codes[i].w,
                                 first, second);
                }
            }
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                std::uint32_t b[4];
                load_matrices(b, inputs + j * 8 * 128 + ((2 * s + load_half) ^ (lane & 7)) * 16);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    multiply_bf16(acc[i][j], rows[i], b[0], b[1]);
                    multiply_bf16(acc[i][j + 1], rows[i], b[2], b[3]);
                }
            }
        }
        if constexpr (kBlocks) {
            if (stage % 2 == 1 || stage + 1 == a.stages) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int row = row0 + own_row + 8 * i;
                    const float scale =
                        row < m.rows ? __ldg(reinterpret_cast<const float*>(m.scales + row * m.scale_pitch) +
                                             stage / 2)
                                     : 0.0f;
#pragma unroll
                    for (int j = 0; j < 8; ++j)
#pragma unroll
                        for (int e = 2 * (i % 2); e < 2 * (i % 2) + 2; ++e) {
                            outer[i / 2][j][e] = num::fma(acc[i / 2][j][e], scale, outer[i / 2][j][e]);
                            acc[i / 2][j][e] = 0.0f;
                        }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = row0 + own_row + 8 * i;
        if (row >= m.rows) continue;
        const float multiplier = m.multipliers ? m.multipliers[row] : 1.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int input = input0 + own_input + 8 * j + 2 * w + e;
                if (input >= a.rows) continue;
                float value;
                if constexpr (kBlocks) value = outer[i / 2][j][2 * (i % 2) + e];
                else value = acc[i / 2][j][2 * (i % 2) + e];
                matrix.out[input * matrix.stride + row] = m.multipliers ? multiplier * value : value;
            }
    }
}

template <bool Blocks>
__global__ void __launch_bounds__(kThreads, Blocks ? 1 : 2)
    gemm_bf16_tiles(const __grid_constant__ FastTask a) {
    const int tile = static_cast<int>(blockIdx.x);
    int j = 0;
    while (j + 1 < a.count && tile >= a.matrices[j + 1].first_tile) ++j;
    const FastMatrix& matrix = a.matrices[j];
    const int row0 = (tile - matrix.first_tile) * kRows, input0 = static_cast<int>(blockIdx.y) * kInputs;
    if constexpr (Blocks) fast_tile<Format::fp8_block>(a, matrix, row0, input0);
    else if (matrix.m.format == Format::bf16) fast_tile<Format::bf16>(a, matrix, row0, input0);
    else fast_tile<Format::fp8_row>(a, matrix, row0, input0);
}

template <bool Blocks>
void launch_tiles(const FastTask& a, int tiles, std::size_t shared, cudaStream_t stream) {
    static const bool allowed =
        (allow_shared(gemm_bf16_tiles<Blocks>,
                      kStages * std::size_t{stage_bytes(Blocks ? Format::fp8_block : Format::bf16)}),
         true);
    static_cast<void>(allowed);
    launch("fast matrix tiles", gemm_bf16_tiles<Blocks>,
           dim3(static_cast<unsigned>(tiles), static_cast<unsigned>((a.rows + kInputs - 1) / kInputs)),
           dim3(kThreads), shared, stream, a);
}

std::int64_t stages_of(std::int64_t cols) { return (cols + kColumns - 1) / kColumns; }

}  // namespace

std::size_t gemm_bf16_scratch(std::int64_t rows, std::int64_t cols) {
    return static_cast<std::size_t>(rows * stages_of(cols)) * kColumns * 2;
}

void gemm_bf16(std::span<const Projection> to, const float* x, std::int64_t rows, std::int64_t cols,
               const Scratch& scratch, cudaStream_t stream) {
    FastTask a;
    a.rows = static_cast<int>(rows);
    a.stages = static_cast<int>(stages_of(cols));
    a.x = static_cast<const uint4*>(scratch.data);
    bool rounded = false;
    for (const bool blocks : {false, true}) {
        int tiles = 0;
        std::size_t shared = 0;
        const auto queue = [&] {
            if (a.count == 0) return;
            if (!rounded) {
                const std::int64_t units = rows * a.stages * 8;
                const bool even = cols % 2 == 0 && reinterpret_cast<std::uintptr_t>(x) % 8 == 0;
                launch("rounding to bf16", round_rows, dim3(static_cast<unsigned>((units + 255) / 256)),
                       dim3(256), 0, stream, x, units, static_cast<int>(cols), a.stages, even,
                       static_cast<uint4*>(scratch.data));
                rounded = true;
            }
            blocks ? launch_tiles<true>(a, tiles, shared, stream)
                   : launch_tiles<false>(a, tiles, shared, stream);
            a.count = tiles = 0;
            shared = 0;
        };
        for (const Projection& p : to) {
            const MatrixView& m = cuda_matrix(*p.matrix).view();
            if (m.rows == 0 || (m.format == Format::fp8_block) != blocks) continue;
            a.matrices[a.count++] = {m, p.out, p.stride, tiles};
            tiles += (m.rows + kRows - 1) / kRows;
            shared = std::max(shared, kStages * static_cast<std::size_t>(stage_bytes(m.format)));
            if (a.count == kMatrices) queue();
        }
        queue();
    }
}

}  // namespace ftmpi::cuda
