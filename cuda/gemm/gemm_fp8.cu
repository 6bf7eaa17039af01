// Tiles of FP8 weights: 24-bit block fixed point as integer products of bytes on the tensor cores, exact in
// any order (numerics.hpp).
//
// A weight in units of 2^-9 is three bytes, of which the upper one has the sign, and an activation's code is
// three signed bytes; the nine products of their planes that have equal weight share one of five
// accumulators. A warp owns 16 rows of the tile, some inputs and some segments. It expands its weights in
// registers, those of the next 32 columns while the tensor cores multiply the present ones, and each of them
// once for all of the warp's inputs.
//
// With few inputs there are too few tiles to fill a card, so the warps of a block also share the segments of
// a row: they leave the segments' values in shared memory, where these are added in rising order.
#include <algorithm>
#include <utility>

#include "../gemv/chunk_dot.cuh"
#include "byte_products.cuh"
#include "gemm.hpp"

namespace ftmpi::cuda {
namespace {

constexpr int kPieces = 8;  ///< of a segment: 64 columns, the halves of four chunks
constexpr int kMostStages = 4;
constexpr int kPad = 4;  ///< floats behind the rows of an input: no bank conflicts

/// How the warps of a block share a tile.
struct Tile {
    int columns;        ///< groups of 8 inputs of a warp
    int row_warps;      ///< warps over the rows, 16 each
    int input_warps;    ///< over the inputs
    int segment_warps;  ///< over the segments
    int pieces;         ///< that a stage holds of a segment
    int blocks;         ///< that a multiprocessor of the largest kind holds

    constexpr int warps() const { return row_warps * input_warps * segment_warps; }
    constexpr int rows() const { return 16 * row_warps; }
    constexpr int inputs() const { return 8 * columns * input_warps; }
    /// Bytes of a stage: the warps' weights, then the inputs' codes of every segment under way.
    constexpr int weight_bytes() const { return warps() * pieces * 1024; }
    constexpr int stage_bytes() const {
        return weight_bytes() + segment_warps * inputs() * pieces * kPlanes * 64;
    }
    /// Floats of results: the sums, and where warps share segments the values of those.
    constexpr int pitch() const { return rows() + kPad; }
    constexpr int result_floats() const {
        return inputs() * pitch() * (segment_warps > 1 ? segment_warps + 1 : 1);
    }
    constexpr std::size_t bytes(int stages) const {
        return static_cast<std::size_t>(stages) * stage_bytes() +
               4 * static_cast<std::size_t>(result_floats() + (segment_warps + 1) * inputs());
    }
};

/// The tiles, and what 16 rows of a matrix times 8 inputs take in them for 512 columns when all
/// multiprocessors are busy, in ns as measured on an H200.
struct TileCost {
    Tile tile;
    double cost;
};
constexpr TileCost kTiles[] = {
    {{2, 6, 1, 2, 1, 1}, 1.6},  {{2, 1, 1, 8, 1, 1}, 2.3},  {{4, 6, 1, 2, 1, 1}, 1.2},
    {{4, 1, 1, 8, 1, 1}, 1.75}, {{4, 6, 2, 1, 1, 1}, 1.05}, {{8, 2, 1, 4, 1, 1}, 1.2},
    {{8, 4, 1, 1, 2, 2}, 0.84}, {{8, 8, 1, 1, 1, 1}, 1.0},
};
/// Of experts: the tiles that they are sorted into.
constexpr int kExpertTile = std::size(kTiles) - 1;
static_assert(kTiles[kExpertTile].tile.rows() == kTileRows &&
              kTiles[kExpertTile].tile.inputs() == kTileInputs);
constexpr double kLaunch = 3000;  ///< ns that a wave of blocks takes at least

/// wait_copy_groups() of all but the last stages - 2 groups.
__device__ __forceinline__ void wait_stage(int stages) {
    if (stages == 2) wait_copy_groups<0>();
    else if (stages == 3) wait_copy_groups<1>();
    else wait_copy_groups<kMostStages - 2>();
}

template <Format F, TileKind Kind, int T>
__global__ void __launch_bounds__(32 * kTiles[T].tile.warps(), kTiles[T].tile.blocks)
    gemm_fp8_tiles(const __grid_constant__ TileTask a, int stages) {
    constexpr Tile S = kTiles[T].tile;
    constexpr bool kBlocks = FormatTraits<F>::kBlockScaled;
    constexpr int kN = S.columns, kInputs = S.inputs(), kThreads = 32 * S.warps(),
                  kSteps = kPieces / S.pieces;  // of a segment
    constexpr int kPair = kN > 1 ? 2 : 1;
    TileExtent p;
    if (!extent_of<Kind, S.rows(), kInputs>(a, F, p)) return wait_for_prerequisites();
    unsigned char* shared = shared_bytes();
    auto* values = reinterpret_cast<float*>(shared + stages * S.stage_bytes());
    float* total = values + (S.segment_warps > 1 ? S.segment_warps * kInputs * S.pitch() : 0);
    float* units = total + kInputs * S.pitch();
    int* rows_in = reinterpret_cast<int*>(units + S.segment_warps * kInputs);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, g = lane / 4,
              w = lane % 4;
    const int row_warp = warp % S.row_warps, input_warp = warp / S.row_warps % S.input_warps,
              segment_warp = warp / (S.row_warps * S.input_warps);
    const int chunks = p.m.chunks, segments = wide_segments(p.m.cols),
              rounds = (segments + S.segment_warps - 1) / S.segment_warps, steps = rounds * kSteps;
    const int columns = (p.count - 8 * kN * input_warp + 7) / 8;  // of this warp

    // Rows at or beyond the limit read the last row, chunks behind the last one that, segments behind the
    // last one that: their codes are 0, or the result is not stored.
    const std::uint8_t* weights[2];
    const float* scales[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int at = 16 * row_warp + g + 8 * i, half = S.rows() / 2;
        const int row =
            at < half ? min(p.low + at, p.low_limit - 1) : min(p.high + at - half, p.high_limit - 1);
        weights[i] = p.m.codes + row * p.m.code_pitch;
        scales[i] = reinterpret_cast<const float*>(p.m.scales + row * p.m.scale_pitch);
    }
    const auto segment_at = [&](int step, int segment_warp) {
        const int s = step / kSteps * S.segment_warps + segment_warp;
        return s < segments ? s : segments - 1;
    };
    // A warp's weights are its own, each lane's what the lane itself brings.
    const auto bring_weights = [&](int step, int slot) {
        const int chunk = segment_at(step, segment_warp) * 16 + step % kSteps * S.pieces / 2 * 4,
                  set = chunk / 32 * 32, n = chunks - set < 32 ? chunks - set : 32;
        const int from =
            (set * 2 + min(chunk + w, chunks - 1) - set + (S.pieces == 1 ? step % 2 * n : 0)) * kWord128;
        auto* to = reinterpret_cast<uint4*>(shared + slot * S.stage_bytes()) + warp * S.pieces * 64 + lane;
#pragma unroll
        for (int i = 0; i < 2 * S.pieces; ++i)
            copy_async(to + 32 * i, weights[i % 2] + from + i / 2 * n * kWord128);
    };
    // Of each group of 8 inputs, piece and plane: 8 bytes a lane for the first 32 columns, then the others.
    const auto bring_inputs = [&](int step, int slot) {
        unsigned char* stage = shared + slot * S.stage_bytes() + S.weight_bytes();
        constexpr int kJobs = S.segment_warps * (kInputs / 8) * S.pieces;
#pragma unroll
        for (int job = warp; job < kJobs; job += S.warps()) {
            const int piece = job % S.pieces, n = job / S.pieces % (kInputs / 8),
                      k = job / S.pieces / (kInputs / 8);
            const std::int64_t from =
                static_cast<std::int64_t>(rows_in[8 * n + g]) * segments + segment_at(step, k);
            const uint4* codes = p.matrix->wide.codes + from * kSegmentWords +
                                 (step % kSteps * S.pieces + piece) * 4 * kPlanes + w;
            unsigned char* to = stage + ((k * (kInputs / 8) + n) * S.pieces + piece) * kPlanes * 512 +
                                w / 2 * 256 + g * 32 + w % 2 * 16;
#pragma unroll
            for (int plane = 0; plane < kPlanes; ++plane) copy_async(to + plane * 512, codes + plane * 4);
        }
    };

    if (thread < kInputs) rows_in[thread] = input_row<Kind>(a, p, thread);
    for (int i = thread; i < kInputs * S.pitch(); i += kThreads) total[i] = 0.0f;
    for (int i = 0; i < stages - 1 && i < steps; ++i) bring_weights(i, i);
    __syncthreads();
    wait_for_prerequisites();
    for (int i = 0; i < stages - 1; ++i) {
        if (i < steps) bring_inputs(i, i);
        close_copy_group();
    }

    Sums sums[kN];
    float segment[kBlocks ? kN : 1][4];
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4 * (2 * kPlanes - 1); ++i) sums[n][i / 4][i % 4] = 0;

    const auto weights_in = [&](int slot, int piece, uint4(&to)[2]) {
        const auto* from = reinterpret_cast<const uint4*>(shared + slot * S.stage_bytes()) +
                           (warp * S.pieces + piece) * 64 + lane;
        to[0] = from[0];
        to[1] = from[32];
    };
    /// Products of the planes with the codes at `from` of the stage.
    const auto multiply = [&](const Planes& planes, const unsigned char* from) {
#pragma unroll
        for (int n = 0; n < kN; n += kPair) {
            if (Kind != TileKind::plain && n >= columns) break;
            uint2 b[kPair][kPlanes];
#pragma unroll
            for (int i = 0; i < kPair; ++i)
#pragma unroll
                for (int plane = 0; plane < kPlanes; ++plane)
                    b[i][plane] = *reinterpret_cast<const uint2*>(
                        from + ((n + i) * S.pieces * kPlanes + plane) * 512 + lane * 8);
            multiply_group(sums + n, planes, b);
        }
    };

    uint4 raw[2];
    Planes now, next;
    wait_stage(stages);
    weights_in(0, 0, raw);
    expand_rows<0>(raw, now);
    int slot = 0, free_slot = stages - 1;
    for (int round = 0; round < rounds; ++round) {
        float unit = 0.0f;
        if (thread < S.segment_warps * kInputs)
            unit = __ldcg(p.matrix->wide.units +
                          static_cast<std::int64_t>(rows_in[thread % kInputs]) * segments +
                          segment_at(round * kSteps, thread / kInputs));
#pragma unroll 1
        for (int i = 0; i < kSteps; ++i) {
            const int step = round * kSteps + i, after = slot + 1 == stages ? 0 : slot + 1;
            float scale[2] = {};
            if constexpr (kBlocks) {
                const int block = segment_at(step, segment_warp) * 4 + i * S.pieces / 2;
#pragma unroll
                for (int r = 0; r < 2; ++r) scale[r] = 4 * block < chunks ? __ldg(scales[r] + block) : 0.0f;
            }
            __syncthreads();  // the stage has come, and the one before is free
            if (step + stages - 1 < steps) {
                bring_weights(step + stages - 1, free_slot);
                bring_inputs(step + stages - 1, free_slot);
            }
            close_copy_group();
            if (i == 1 && thread < S.segment_warps * kInputs) units[thread] = unit;
            const unsigned char* codes =
                shared + slot * S.stage_bytes() + S.weight_bytes() +
                (segment_warp * S.input_warps + input_warp) * kN * S.pieces * kPlanes * 512;
#pragma unroll
            for (int piece = 0; piece < S.pieces; ++piece) {
                expand_rows<2>(raw, next);
                multiply(now, codes + piece * kPlanes * 512);
                const bool last = piece + 1 == S.pieces;
                if (last) wait_stage(stages);
                weights_in(last ? after : slot, last ? 0 : piece + 1, raw);
                expand_rows<0>(raw, now);
                multiply(next, codes + piece * kPlanes * 512 + 256);
            }
            free_slot = slot;
            slot = after;
            if constexpr (kBlocks)
                if (S.pieces == 2 || i % 2 == 1) {
#pragma unroll
                    for (int n = 0; n < kN; ++n)
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            segment[n][e] = num::fma(block_of(sums[n], e), scale[e / 2],
                                                     i * S.pieces < 2 ? 0.0f : segment[n][e]);
#pragma unroll
                            for (int k = 0; k < 2 * kPlanes - 1; ++k) sums[n][k][e] = 0;
                        }
                }
        }
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int input = 8 * (kN * input_warp + n) + 2 * w + e % 2,
                          at = input * S.pitch() + 16 * row_warp + g + e / 2 * 8;
                const float value = (kBlocks ? segment[n][e] : segment_of(sums[n], e)) *
                                    units[segment_warp * kInputs + input];
                if constexpr (S.segment_warps > 1) values[segment_warp * kInputs * S.pitch() + at] = value;
                else total[at] = total[at] + value;
                if constexpr (!kBlocks)
#pragma unroll
                    for (int k = 0; k < 2 * kPlanes - 1; ++k) sums[n][k][e] = 0;
            }
        if constexpr (S.segment_warps > 1) {
            __syncthreads();
            const int some = min(S.segment_warps, segments - round * S.segment_warps);
            for (int i = thread; i < kInputs * S.pitch(); i += kThreads) {
                float sum = total[i];
                for (int k = 0; k < some; ++k) sum = sum + values[k * kInputs * S.pitch() + i];
                total[i] = sum;
            }
        }
    }
    trigger_dependents();
    __syncthreads();
    constexpr int kHalf = S.rows() / 2;
    const int inputs = min(p.count, kInputs);
    for (int i = thread; i < inputs * kHalf; i += kThreads) {
        const int input = i / kHalf, row = i % kHalf;
        const float* sum = total + input * S.pitch() + row;
        store_result<Kind>(a, p, row, p.matrix->out + result_row(p, input) * p.matrix->stride, sum[0],
                           sum[kHalf]);
    }
}

/// A block's warps code a segment of a row each: blockIdx.x counts rows, blockIdx.y fours of segments. A lane
/// has half a chunk.
__global__ void code_segments(const float* x, std::int64_t cols, int segments, WideRows to) {
    trigger_dependents();
    wait_for_prerequisites();
    const int lane = static_cast<int>(threadIdx.x % 32),
              segment = static_cast<int>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
    if (segment >= segments) return;
    const std::int64_t row = blockIdx.x;
    float v[2][8];
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        load_octet(x + row * cols, segment * num::kSegment + 16 * lane + 8 * i, static_cast<int>(cols), v[i]);
#pragma unroll
        for (int k = 0; k < 8; ++k) most = max(most, num::bits_of(v[i][k]) & 0x7fffffffu);
    }
    most = __reduce_max_sync(kWholeWarp, most);
    const int e = num::wide_exponent(most);
    const bool finite = e != num::kNotFinite;
    const float inverse = num::pow2(finite ? -e : 0);
    // Four chunks are eight pieces; of a piece and plane the first eight columns of the chunks, then the
    // others.
    const int piece = lane / 8 * 2 + lane % 2, chunk = lane / 2 % 4;
    auto* codes = reinterpret_cast<uint2*>(to.codes + (row * segments + segment) * kSegmentWords +
                                           piece * 4 * kPlanes) +
                  chunk;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint2 planes[kPlanes];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            std::uint32_t q[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int code = finite ? num::wide_code(v[i][4 * half + k], inverse) : 0;
                q[k] = static_cast<std::uint32_t>(code) + 0x8080u;  // lower bytes: 128 more than the digits
            }
            const std::uint32_t first = permute(q[0], q[1], 0x5140), last = permute(q[2], q[3], 0x5140);
            (half ? planes[0].y : planes[0].x) = permute(first, last, 0x5410) ^ 0x80808080u;
            (half ? planes[1].y : planes[1].x) = permute(first, last, 0x7632) ^ 0x80808080u;
            (half ? planes[2].y : planes[2].x) =
                permute(permute(q[0], q[1], 0x0062), permute(q[2], q[3], 0x0062), 0x5410);
        }
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) codes[plane * 8 + i * 4] = planes[plane];
    }
    if (lane == 0) to.units[row * segments + segment] = num::wide_unit(e);
}

struct Limits {
    int multiprocessors, shared_bytes;
};
const Limits& limits() {
    static const Limits known = [] {
        int device = 0;
        Limits l{};
        FTMPI_CUDA(cudaGetDevice(&device));
        FTMPI_CUDA(cudaDeviceGetAttribute(&l.multiprocessors, cudaDevAttrMultiProcessorCount, device));
        FTMPI_CUDA(cudaDeviceGetAttribute(&l.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
        return l;
    }();
    return known;
}

/// Stages that fit beside the other blocks of a multiprocessor; below 2 the tile does not.
int stages_of(const Tile& t) {
    const std::size_t most = static_cast<std::size_t>(limits().shared_bytes);
    const std::size_t share = t.blocks > 1 && t.bytes(2) * t.blocks <= most ? most / t.blocks - 1024 : most;
    int stages = kMostStages;
    while (stages > 1 && t.bytes(stages) > share) --stages;
    return stages;
}

/// ns of `inputs` inputs times the task's matrices.
double cost_of(const TileCost& t, const TileTask& a) {
    std::int64_t blocks = 0;
    for (int i = 0; i < a.count; ++i) blocks += (a.matrices[i].m.rows + t.tile.rows() - 1) / t.tile.rows();
    blocks *= (a.rows + t.tile.inputs() - 1) / t.tile.inputs();
    const std::int64_t at_once = std::int64_t{limits().multiprocessors} * t.tile.blocks,
                       waves = (blocks + at_once - 1) / at_once;
    const int segments = wide_segments(a.matrices[0].m.cols),
              rounds = (segments + t.tile.segment_warps - 1) / t.tile.segment_warps;
    const double of_wave = t.cost * t.tile.blocks * t.tile.warps() * t.tile.columns * rounds;
    return static_cast<double>(waves) * (kLaunch + of_wave);
}

template <Format F, TileKind Kind, int T>
void launch_tile(const TileTask& a, dim3 grid, cudaStream_t stream) {
    constexpr Tile S = kTiles[T].tile;
    static_assert(S.segment_warps * S.inputs() <= 32 * S.warps());
    const int stages = stages_of(S);
    const std::size_t bytes = S.bytes(stages);
    allow_shared_once<gemm_fp8_tiles<F, Kind, T>>(bytes);
    // The tiles of experts are read before the kernel waits for the one that writes them.
    launch_pdl_if(Kind == TileKind::plain, "matrix tiles", gemm_fp8_tiles<F, Kind, T>, grid,
                  dim3(32 * S.warps()), bytes, stream, a, stages);
}

template <Format F> void launch_plain(TileTask a, cudaStream_t stream) {
    const auto* best =
        std::min_element(std::begin(kTiles), std::end(kTiles), [&](const TileCost& l, const TileCost& r) {
            const bool fits = stages_of(l.tile) > 1;
            if (fits != (stages_of(r.tile) > 1)) return fits;
            return cost_of(l, a) < cost_of(r, a);
        });
    const auto launch_if = [&]<int I>() {
        constexpr Tile S = kTiles[I].tile;
        if (best != kTiles + I) return;
        int tiles = 0;
        for (int i = 0; i < a.count; ++i) {
            a.matrices[i].first_tile = tiles;
            tiles += (a.matrices[i].m.rows + S.rows() - 1) / S.rows();
        }
        launch_tile<F, TileKind::plain, I>(
            a, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>((a.rows - 1) / S.inputs() + 1)),
            stream);
    };
    [&]<std::size_t... I>(std::index_sequence<I...>) { (launch_if.template operator()<I>(), ...); }
    (std::make_index_sequence<std::size(kTiles)>());
}

}  // namespace

void gemm_fp8(TileKind kind, const TileTask& task, Format format, int grid_rows, int grid_inputs,
              cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(grid_rows), static_cast<unsigned>(grid_inputs));
    with_format(format, [&]<Format F>() {
        if constexpr (is_fp8(F)) {
            if (kind == TileKind::plain) launch_plain<F>(task, stream);
            if (kind == TileKind::up) launch_tile<F, TileKind::up, kExpertTile>(task, grid, stream);
            if (kind == TileKind::down) launch_tile<F, TileKind::down, kExpertTile>(task, grid, stream);
        }
    });
}

void code_wide(const float* x, std::int64_t rows, std::int64_t cols, WideRows to, cudaStream_t stream) {
    const int segments = wide_segments(cols), warps = std::min(segments, 4);
    launch_pdl("code activations", code_segments,
               dim3(static_cast<unsigned>(rows), static_cast<unsigned>((segments + warps - 1) / warps)),
               dim3(static_cast<unsigned>(32 * warps)), 0, stream, x, cols, segments, to);
}

}  // namespace ftmpi::cuda
