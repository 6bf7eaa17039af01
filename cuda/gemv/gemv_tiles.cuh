// What the kernels of gemv_tiles.cu share: their task, and the rows of BF16 beside FP8. Only for files
// compiled by nvcc.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#pragma once

#include "fixed_width.cuh"
#include "gemv.cuh"

namespace ftmpi::cuda {

/// Warps of a block: of one row, whose input each block codes, two blocks a multiprocessor; of more rows,
/// one.
constexpr int tile_warps(int kT) { return kT == 1 ? 8 : 16; }
constexpr int kPieceUnits = 2,
              kPieceChunks = kPieceUnits * kUnitChunks;  ///< what a warp has of a row at a time
constexpr int kChainPitch = 36;                          ///< as kSpread of mixers.cuh

struct TileTask {
    VecTask v;
    const uint4* digits;  ///< groups of kT rows
    const float* units;   ///< (T, segments)
    int tiles;            ///< of 16 rows, over all FP8 matrices
    int kept;             ///< rounds of tiles whose sums wait together
    int spread;           ///< blocks that the rows of BF16 are dealt to
};

/// Rows of BF16 by the last `spread` blocks, a warp a row; all threads of the block call. One input row is
/// already among the floats.
template <int kT, int kSets>
__device__ __forceinline__ void multiply_bf16(const TileTask& a, SumBuffer* buffers, uint4* floats,
                                              int thread) {
    constexpr int kTileWarps = tile_warps(kT), kTileThreads = 32 * kTileWarps;
    constexpr int kFormat = static_cast<int>(Format::bf16), kGroup = std::min(kT, 4), kChunks = 32 * kSets,
                  kBetween = static_cast<int>(staged_floats(kChunks)), kCols = kChunks * num::kChunk;
    const int lane = thread % 32, warp = thread / 32, behind = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    if (behind >= a.spread) return;
    const int first = static_cast<int>(blockIdx.y) * kT, rows = min(a.v.rows - first, kT);
    if constexpr (kT > 1) {
        const float* x = (a.v.norm.weight ? a.v.norm.out : a.v.x) + std::int64_t{first} * kCols;
        for (int t = 0; t < rows; ++t)
            stage_floats(x + std::int64_t{t} * kCols, kCols, kChunks,
                         reinterpret_cast<float4*>(floats + t * kBetween), thread, kTileThreads);
        __syncthreads();
    }
    for (int unit = warp * a.spread + behind; unit < a.v.units[kFormat]; unit += kTileWarps * a.spread) {
        int i = a.v.begin[kFormat];
        while (i + 1 < a.v.begin[kFormat + 1] && unit >= a.v.matrices[i + 1].first_unit) ++i;
        const VecMatrix& m = a.v.matrices[i];
        const int row = unit - m.first_unit;
        const std::uint8_t* codes =
            m.codes + std::int64_t{row} * code_pitch_of_sets<Format::bf16, kSets> + lane * kWord128;
        for (int t0 = 0; t0 < rows; t0 += kGroup) {
            OrderedSums<Format::bf16, 1, kGroup, false> sums(buffers[warp], lane);
            each<kSets>([&](auto s) {
                Fetched<Format::bf16, 1> f;
                fetch_set<Format::bf16, 1, 1, kSets, s()>(f, codes, nullptr, 0, lane);
                float v[kGroup][1];
                chunk_values<Format::bf16, 1, kGroup>(f, floats + t0 * kBetween, kBetween,
                                                      plane_pitch(kChunks), s() * 32 + lane, v);
                sums.put(s(), true, v, f, s() + 1 == kSets);
            });
            if (lane < kGroup && t0 + lane < rows) m.out[(first + t0 + lane) * m.stride + row] = sums.total();
        }
    }
}

}  // namespace ftmpi::cuda
