// Matrices times many input rows, in tiles of matrix rows and input rows, a tile a block. Three kernels:
// BF16, F16 and F32 weights (fma chains, 128 x up to 64), FP8 weights (integer products of bytes, tiles of
// many shapes) and 4-bit weights (integer products of bytes or halves, 128 x up to 40); all serve project()
// and the experts.
#pragma once

#include "../device_code.hpp"
#include "../launch.hpp"

namespace ftmpi::cuda {

constexpr int kTileRows = 128, kTileInputs = 64, kTileMatrices = 8;

/// Activations as block fixed point, for 4-bit weights. A chunk is words of four elements, for few inputs as
/// bytes: word w of the high plane of group 0, of group 1, of the low plane of group 0, of group 1, for w =
/// 0..3; for many as half precision numbers: for each group for w = 0..3 word w of 256 times the high plane,
/// of the low plane. Beside it num::block_unit of the chunk, -12 times the sum of the codes of both groups,
/// 0. Rows are padded to a multiple of 8 chunks with zeroes.
enum class CodedForm { bytes, halves };
struct CodedRows {
    uint4* codes = nullptr;  ///< [rows][coded_chunks][4], halves: [8]
    float4* meta = nullptr;  ///< [rows][coded_chunks]
    static constexpr std::size_t bytes_per_chunk = 144;
};
constexpr std::int64_t coded_chunks(std::int64_t cols) { return (cols + 255) / 256 * 8; }

/// Activations as 24-bit block fixed point, for FP8 weights (numerics.hpp): per row and segment of 512
/// columns 8 pieces, the halves of 16 columns of four chunks each: all first halves of chunks 0..3, all
/// second ones, those of chunks 4..7, ... A piece has the planes of the codes' signed bytes, the lowest
/// first, and a plane the first eight columns of the four halves, then the others: 16 words of four columns.
/// And num::wide_unit of the segment. Rows are padded to whole segments with zeroes.
struct WideRows {
    uint4* codes = nullptr;  ///< [rows][wide_segments][kSegmentWords]
    float* units = nullptr;  ///< [rows][wide_segments]
    static constexpr std::size_t bytes_per_segment = 96 * 16 + 4;
};
constexpr int kSegmentWords = 96;
constexpr int wide_segments(std::int64_t cols) {
    return static_cast<int>((cols + num::kSegment - 1) / num::kSegment);
}

/// What a tile computes.
enum class TileKind {
    plain,  ///< 128 rows of one matrix, inputs in order
    up,     ///< 64 gate rows and the 64 up rows that belong to them; act = silu(gate) * up
    down,   ///< 128 rows of one expert
};

/// f.operator()<K>() for the K that `kind` is.
template <class Function> void with_kind(TileKind kind, Function f) {
    switch (kind) {
        case TileKind::plain: return f.template operator()<TileKind::plain>();
        case TileKind::up: return f.template operator()<TileKind::up>();
        case TileKind::down: return f.template operator()<TileKind::down>();
    }
}

/// One matrix, or all routed experts, or the shared expert.
struct TileMatrix {
    MatrixView m;
    const float* x = nullptr;  ///< inputs of BF16, F16 and F32 weights, [..][cols]
    CodedRows coded;           ///< inputs of 4-bit weights
    WideRows wide;             ///< inputs of FP8 weights
    float* out = nullptr;
    std::int64_t stride = 0;
    int first_tile = 0;  ///< plain: tiles of 128 rows before this matrix
};

/// Some inputs of one expert, as many as the kernel takes: entries [first, first + count) of the sorted
/// choices; of the shared expert
/// (-1): rows of the step.
struct ExpertTile {
    std::int32_t expert, first, count;
};

struct TileTask {
    TileMatrix matrices[kTileMatrices];  ///< plain: count of them; experts: routed, shared
    int count = 0;
    int rows = 0;                       ///< plain: inputs
    int tile_inputs = kTileInputs;      ///< most inputs of a tile
    const ExpertTile* tiles = nullptr;  ///< experts: the work, *tile_count entries
    const std::int32_t* tile_count = nullptr;
    const std::int32_t* order = nullptr;  ///< choices (row * top_k + k) sorted by expert
    int divisor = 1;                      ///< up: top_k, from a choice to its input row; down: 1
    int first_row = 0,
        most_rows = 0;  ///< down: the slice of output rows computed now; out points at its results
};

/// Queues the tiles of weights of one kind: the matrices of `format`. grid_rows: tiles along the matrix rows,
/// grid_inputs: groups of inputs (experts: at least *tile_count). gemm_fp8 of matrices takes tiles of its own
/// and counts them itself.
void gemm_exact(TileKind kind, const TileTask& task, Format format, int grid_rows, int grid_inputs,
                cudaStream_t stream);
/// task.tile_inputs: what code_tile_inputs() says.
void gemm_4bit(TileKind kind, const TileTask& task, Format format, int grid_rows, int grid_inputs,
               cudaStream_t stream);

void gemm_fp8(TileKind kind, const TileTask& task, Format format, int grid_rows, int grid_inputs,
              cudaStream_t stream);

/// Inputs of a tile of 4-bit weights where a matrix meets `inputs` of them, so that its weights are read and
/// decoded once, or a few times; and the form in which such tiles take them.
constexpr int kFewCoded = 8, kSomeCoded = 16, kMostCoded = 40;
constexpr int code_tile_inputs(std::int64_t inputs) {
    return inputs <= kFewCoded ? kFewCoded : inputs <= kSomeCoded ? kSomeCoded : kMostCoded;
}
constexpr CodedForm coded_form(int tile_inputs) {
    return tile_inputs == kFewCoded ? CodedForm::bytes : CodedForm::halves;
}

/// Queues the coding of x [rows][cols].
void code_rows(const float* x, std::int64_t rows, std::int64_t cols, CodedForm form, CodedRows to,
               cudaStream_t stream);
void code_wide(const float* x, std::int64_t rows, std::int64_t cols, WideRows to, cudaStream_t stream);

#ifdef __CUDACC__

/// A block's part of a task. Tile row i of the lower half is matrix row low + i, of the upper one high + i -
/// half; rows at or beyond their limit do not count.
struct TileExtent {
    const TileMatrix* matrix;
    MatrixView m;  ///< of the tile's group
    int low, high, low_limit, high_limit;
    int first, count;           ///< inputs
    const std::int32_t* order;  ///< null: inputs in order
};

/// False when this block has nothing to do.
template <TileKind Kind, int kRows = kTileRows, int kInputs = 0>
__device__ inline bool extent_of(const TileTask& a, Format format, TileExtent& p) {
    const int inputs = kInputs ? kInputs : a.tile_inputs;
    int tile = static_cast<int>(blockIdx.x);
    if constexpr (Kind == TileKind::plain) {
        int j = 0;
        while (j + 1 < a.count && tile >= a.matrices[j + 1].first_tile) ++j;
        p.matrix = &a.matrices[j];
        p.m = p.matrix->m;
        tile -= p.matrix->first_tile;
        p.first = static_cast<int>(blockIdx.y) * inputs;
        p.count = a.rows - p.first;
        p.order = nullptr;
        if (p.m.format != format) return false;
    } else {
        if (static_cast<int>(blockIdx.y) >= *a.tile_count) return false;
        const ExpertTile t = a.tiles[blockIdx.y];
        p.matrix = &a.matrices[t.expert < 0 ? 1 : 0];
        p.m = p.matrix->m;
        if (p.m.format != format) return false;
        const std::int64_t row = t.expert < 0 ? 0 : t.expert * p.m.padded;
        p.m.codes += row * p.m.code_pitch;
        p.m.scales += row * p.m.scale_pitch;
        if (p.m.multipliers) p.m.multipliers += row;
        p.first = t.first;
        p.count = t.count;
        p.order = t.expert < 0 ? nullptr : a.order;
    }
    if (p.count > inputs) p.count = inputs;
    if constexpr (Kind == TileKind::up) {
        const int width = p.m.rows / 2;
        p.low = tile * (kRows / 2);
        p.high = width + p.low;
        p.low_limit = width;
        p.high_limit = p.m.rows;
    } else {
        const int end = Kind == TileKind::down && a.first_row + a.most_rows < p.m.rows
                            ? a.first_row + a.most_rows
                            : p.m.rows;
        p.low = (Kind == TileKind::down ? a.first_row : 0) + tile * kRows;
        p.high = p.low + kRows / 2;
        p.low_limit = p.high_limit = end;
    }
    return p.low < p.low_limit;
}

/// Input row and result row of the tile's input n (any n: those beyond the last repeat it).
template <TileKind Kind> __device__ inline int input_row(const TileTask& a, const TileExtent& p, int n) {
    const int i = p.first + (n < p.count ? n : p.count - 1);
    return p.order ? p.order[i] / a.divisor : i;
}
__device__ inline int result_row(const TileExtent& p, int n) {
    return p.order ? p.order[p.first + n] : p.first + n;
}

/// What becomes of finished values: (tile row, input) -> value of the whole dot product but the multiplier.
/// `upper` is that of the row in the tile's upper half.
template <TileKind Kind>
__device__ inline void store_result(const TileTask& a, const TileExtent& p, int row, float* out, float value,
                                    float upper) {
    const int low = p.low + row;
    if constexpr (Kind == TileKind::up) {
        if (low >= p.low_limit) return;
        const float* f = p.m.multipliers;
        out[low] = num::expert_act(f ? f[low] * value : value, f ? f[p.high + row] * upper : upper);
    } else {
        const int high = p.high + row, base = Kind == TileKind::down ? a.first_row : 0;
        if (low < p.low_limit) out[low - base] = p.m.multipliers ? p.m.multipliers[low] * value : value;
        if (high < p.high_limit) out[high - base] = p.m.multipliers ? p.m.multipliers[high] * upper : upper;
    }
}

#endif

}  // namespace ftmpi::cuda
