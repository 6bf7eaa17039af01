// Matrices times many input rows, in tiles of 128 matrix rows and up to 64 input rows a block. Two kernels:
// floating weights (fma chains) and 4-bit weights (integer products of bytes); both serve project() and the
// experts.
#pragma once

#include "../device_code.hpp"
#include "../launch.hpp"

namespace ftmpi::cuda {

constexpr int kTileRows = 128, kTileInputs = 64, kTileMatrices = 8;

/// Activations as block fixed point, for 4-bit weights: per row and chunk 64 bytes, word w (of four elements)
/// of the high bytes of group 0, of group 1, of the low bytes of group 0, of group 1, for w = 0..3; and
/// num::block_unit of the chunk. Rows are padded to a multiple of 4 chunks with zeroes.
struct CodedRows {
    uint4* codes = nullptr;  ///< [rows][coded_chunks][4]
    float* units = nullptr;  ///< [rows][coded_chunks]
    static constexpr std::size_t bytes_per_chunk = 68;
};
constexpr std::int64_t coded_chunks(std::int64_t cols) { return (cols + 127) / 128 * 4; }

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
    const float* x = nullptr;  ///< inputs of floating weights, [..][cols]
    CodedRows coded;           ///< inputs of 4-bit weights
    float* out = nullptr;
    std::int64_t stride = 0;
    int first_tile = 0;  ///< plain: tiles of 128 rows before this matrix
};

/// Up to 64 inputs of one expert: entries [first, first + count) of the sorted choices; of the shared expert
/// (-1): rows of the step.
struct ExpertTile {
    std::int32_t expert, first, count;
};

struct TileTask {
    TileMatrix matrices[kTileMatrices];  ///< plain: count of them; experts: routed, shared
    int count = 0;
    int rows = 0;                       ///< plain: inputs
    const ExpertTile* tiles = nullptr;  ///< experts: the work, *tile_count entries
    const std::int32_t* tile_count = nullptr;
    const std::int32_t* order = nullptr;  ///< choices (row * top_k + k) sorted by expert
    int divisor = 1;                      ///< up: top_k, from a choice to its input row; down: 1
    int first_row = 0,
        most_rows = 0;  ///< down: the slice of output rows computed now; out points at its results
};

/// Queues the tiles of weights of one kind: the matrices whose format is floating, or 4-bit. grid_rows: tiles
/// along the matrix rows, grid_inputs: groups of inputs (experts: at least *tile_count).
void gemm_exact(TileKind kind, const TileTask& task, Format format, int grid_rows, int grid_inputs,
                cudaStream_t stream);
void gemm_4bit(TileKind kind, const TileTask& task, Format format, int grid_rows, int grid_inputs,
               cudaStream_t stream);

/// Queues the coding of x [rows][cols].
void code_rows(const float* x, std::int64_t rows, std::int64_t cols, CodedRows to, cudaStream_t stream);

#ifdef __CUDACC__

/// A block's part of a task. Tile row i < 64 is matrix row low + i, tile row i >= 64 is high + i - 64; rows
/// at or beyond their limit do not count.
struct TileExtent {
    const TileMatrix* matrix;
    MatrixView m;  ///< of the tile's group
    int low, high, low_limit, high_limit;
    int first, count;           ///< inputs
    const std::int32_t* order;  ///< null: inputs in order
};

/// False when this block has nothing to do.
template <TileKind Kind> __device__ inline bool extent_of(const TileTask& a, Format format, TileExtent& p) {
    int tile = static_cast<int>(blockIdx.x);
    if constexpr (Kind == TileKind::plain) {
        int j = 0;
        while (j + 1 < a.count && tile >= a.matrices[j + 1].first_tile) ++j;
        p.matrix = &a.matrices[j];
        p.m = p.matrix->m;
        tile -= p.matrix->first_tile;
        p.first = static_cast<int>(blockIdx.y) * kTileInputs;
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
    if (p.count > kTileInputs) p.count = kTileInputs;
    if constexpr (Kind == TileKind::up) {
        const int width = p.m.rows / 2;
        p.low = tile * (kTileRows / 2);
        p.high = width + p.low;
        p.low_limit = width;
        p.high_limit = p.m.rows;
    } else {
        const int end = Kind == TileKind::down && a.first_row + a.most_rows < p.m.rows
                            ? a.first_row + a.most_rows
                            : p.m.rows;
        p.low = (Kind == TileKind::down ? a.first_row : 0) + tile * kTileRows;
        p.high = p.low + kTileRows / 2;
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
/// `upper` is that of tile row + 64.
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
