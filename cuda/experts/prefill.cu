// The experts of many rows: choices sorted by expert on the device, tiles of up to 64 choices of one expert,
// and the experts' results added row by row in rising id.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <algorithm>

#include "../device_code.hpp"
#include "../gemm/coding.cuh"
#include "../gemm/gemm.hpp"
#include "experts.hpp"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 1024, kCombineThreads = 128;
constexpr std::size_t kMostResults =
    std::size_t{32} << 20;  ///< bytes of a slice of down results, unless 128 columns take more

constexpr std::size_t kBytesPerExpert = 8;  ///< of shared memory, to sort
constexpr std::int64_t kMostTiles = 65535;  ///< blocks in y

/// Tiles of at most `inputs` choices of one expert, those of the shared expert among them.
std::int64_t most_tiles(std::int64_t rows, int top_k, std::int64_t experts, int inputs) {
    const std::int64_t choices = rows * top_k;
    return std::min(choices, experts + choices / inputs) + (rows + inputs - 1) / inputs;
}

/// Most inputs of a tile. 4-bit weights: nearly all that an expert is chosen by when choices are spread
/// evenly.
int tile_inputs(std::int64_t rows, int top_k, std::int64_t experts, bool coded) {
    return coded ? code_tile_inputs(2 * rows * top_k / experts) : kTileInputs;
}

/// Where everything lies in the scratch memory of one call.
struct Layout {
    std::int32_t* order;
    std::int32_t* tile_count;
    ExpertTile* tiles;
    CodedRows coded, shared_coded;
    WideRows wide, shared_wide;
    float* results;
    std::size_t result_bytes;
    int tile_inputs;          ///< of this call
    std::int64_t most_tiles;  ///< of this call
    std::size_t bytes;
};

/// `any_coded`: 4-bit weights are among the experts'; it changes no place. `inputs` and `shared_inputs`: rows
/// to code, with their columns. Results of `result_rows` choices, of up to `columns` columns.
Layout layout_of(void* base, bool any_coded, std::int64_t rows, int top_k, std::int64_t experts,
                 std::int64_t inputs, std::int64_t shared_inputs, std::int64_t cols, std::int64_t shared_cols,
                 std::int64_t result_rows, std::int64_t columns) {
    Layout l{};
    Parts parts(base);
    const std::int64_t choices = rows * top_k;
    l.tile_inputs = tile_inputs(rows, top_k, experts, any_coded);
    l.most_tiles = most_tiles(rows, top_k, experts, l.tile_inputs);
    l.order = parts.take<std::int32_t>(choices);
    l.tile_count = parts.take<std::int32_t>(1);
    l.tiles = parts.take<ExpertTile>(most_tiles(rows, top_k, experts, code_tile_inputs(0)));
    const auto coded = [&](std::int64_t n, std::int64_t c) {
        CodedRows r;
        r.codes = parts.take<uint4>(8 * n * coded_chunks(c));
        r.meta = parts.take<float4>(n * coded_chunks(c));
        return r;
    };
    l.coded = coded(inputs, cols);
    l.shared_coded = coded(shared_inputs, shared_cols);
    const auto wide = [&](std::int64_t n, std::int64_t c) {
        WideRows r;
        r.codes = parts.take<uint4>(kSegmentWords * n * wide_segments(c));
        r.units = parts.take<float>(n * wide_segments(c));
        return r;
    };
    l.wide = wide(inputs, cols);
    l.shared_wide = wide(shared_inputs, shared_cols);
    const auto column = static_cast<std::size_t>(result_rows) * 4 * kTileRows;  // of 128 columns
    const auto whole = column * static_cast<std::size_t>((columns + kTileRows - 1) / kTileRows);
    l.result_bytes = std::max(std::min(whole, kMostResults), std::min(column, whole));
    l.results = parts.take<float>(static_cast<std::int64_t>(l.result_bytes / sizeof(float)));
    l.bytes = parts.bytes();
    return l;
}

/// The sums of `a` and `b` over the threads before this one; all threads of the block call.
__device__ void sums_before(int& a, int& b, int (&of_warps)[2][kThreads / 32]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const auto rising = [&](int v) {
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int before = __shfl_up_sync(kWholeWarp, v, d);
            if (lane >= d) v += before;
        }
        return v;
    };
    const int own_a = a, own_b = b;
    a = rising(a);
    b = rising(b);
    if (lane == 31) of_warps[0][warp] = a, of_warps[1][warp] = b;
    __syncthreads();
    if (warp < 2) of_warps[warp][lane] = rising(of_warps[warp][lane]);
    __syncthreads();
    a += (warp ? of_warps[0][warp - 1] : 0) - own_a;
    b += (warp ? of_warps[1][warp - 1] : 0) - own_b;
}

struct SortTask {
    const std::int32_t* experts_of;
    int choices, experts, rows, tile_inputs;
    bool any_routed, any_shared;
    std::int32_t* order;
    ExpertTile* tiles;
    std::int32_t* tile_count;
};

/// Sorts the choices by expert and lists tiles: the shared expert's first, then the experts' in
/// rising id. The order of choices inside an expert is free: each result is computed by itself.
__device__ void sort_by_expert(const SortTask& a) {
    constexpr int kHeld = 8;  // choices of a thread that it keeps
    auto* count = reinterpret_cast<int*>(shared_bytes());
    int* next = count + a.experts;
    __shared__ int of_warps[2][kThreads / 32];
    const int thread = static_cast<int>(threadIdx.x), inputs = a.tile_inputs,
              shared_tiles = a.any_shared ? (a.rows + inputs - 1) / inputs : 0,
              choices = a.any_routed ? a.choices : 0;
    int held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int c = thread + i * kThreads;
        held[i] = c < choices ? a.experts_of[c] : 0;
    }
    for (int e = thread; e < a.experts; e += kThreads) count[e] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
        if (thread + i * kThreads < choices) atomicAdd(&count[held[i]], 1);
    for (int c = thread + kHeld * kThreads; c < choices; c += kThreads) atomicAdd(&count[a.experts_of[c]], 1);
    for (int t = thread; t < shared_tiles; t += kThreads) {
        const int first = t * inputs;
        a.tiles[t] = {-1, first, a.rows - first < inputs ? a.rows - first : inputs};
    }
    __syncthreads();
    const int each = (a.experts + kThreads - 1) / kThreads, begin = thread * each,
              end = begin + each < a.experts ? begin + each : a.experts;
    int first = 0, tile = 0;
    for (int e = begin; e < end; ++e) {
        first += count[e];
        tile += (count[e] + inputs - 1) / inputs;
    }
    sums_before(first, tile, of_warps);
    tile += shared_tiles;
    for (int e = begin; e < end; ++e) {
        next[e] = first;
        for (int done = 0; done < count[e]; done += inputs)
            a.tiles[tile++] = {e, first + done, count[e] - done < inputs ? count[e] - done : inputs};
        first += count[e];
    }
    if (thread == kThreads - 1) *a.tile_count = tile;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int c = thread + i * kThreads;
        if (c < choices) a.order[atomicAdd(&next[held[i]], 1)] = c;
    }
    for (int c = thread + kHeld * kThreads; c < choices; c += kThreads)
        a.order[atomicAdd(&next[a.experts_of[c]], 1)] = c;
}

/// Inputs to be coded.
struct CodeTask {
    const float* x = nullptr;
    std::int64_t rows = 0, cols = 0;
    CodedRows to;
    unsigned blocks() const {
        return static_cast<unsigned>((coding_threads(rows, cols) + kThreads - 1) / kThreads);
    }
};
struct PrepareTask {
    SortTask sort;
    CodeTask routed, shared;
    unsigned routed_blocks;
};

/// What the tiles wait for: the first block sorts, the others code.
template <CodedForm kForm>
__global__ void __launch_bounds__(kThreads) prepare(const __grid_constant__ PrepareTask a) {
    if (blockIdx.x == 0) return sort_by_expert(a.sort);
    const unsigned block = blockIdx.x - 1;
    const bool shared = block >= a.routed_blocks;
    const CodeTask& c = shared ? a.shared : a.routed;
    code_part<kForm>(c.x, c.rows, c.cols, c.to,
                     std::int64_t{shared ? block - a.routed_blocks : block} * kThreads + threadIdx.x);
}

struct CombineTask {
    const float* results;         ///< [rows * top_k][pitch]
    const float* shared_results;  ///< [rows][pitch]
    const float* weights;         ///< [rows][top_k]
    const float* shared_gate;     ///< [rows]; null: there is no shared expert
    int top_k, columns;
    std::int64_t pitch;  ///< a multiple of 4
    float* out;
    std::int64_t stride;
};

/// out[t][column] = the sum over the row's experts in rising id, then the shared expert. Block x has row x,
/// block y 4 columns a thread.
__global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ CombineTask a) {
    constexpr int kTogether = 4;  // results that are asked for before the first is added
    const std::int64_t t = blockIdx.x;
    const int column = 4 * static_cast<int>(blockIdx.y * kCombineThreads + threadIdx.x);
    if (column >= a.columns) return;
    const float shared_weight = a.shared_gate ? num::sigmoid(a.shared_gate[t]) : 0.0f;
    float4 last{};
    if (a.shared_gate) last = *reinterpret_cast<const float4*>(a.shared_results + t * a.pitch + column);
    float sum[4] = {};
    const auto add = [&](float weight, const float4& y) {
        sum[0] = num::expert_add(weight, y.x, sum[0]);
        sum[1] = num::expert_add(weight, y.y, sum[1]);
        sum[2] = num::expert_add(weight, y.z, sum[2]);
        sum[3] = num::expert_add(weight, y.w, sum[3]);
    };
    const float* from = a.results + t * a.top_k * a.pitch + column;
    const float* weights = a.weights + t * a.top_k;
    int k = 0;
    for (; k + kTogether <= a.top_k; k += kTogether) {
        float4 y[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) y[i] = *reinterpret_cast<const float4*>(from + (k + i) * a.pitch);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) add(weights[k + i], y[i]);
    }
    for (; k < a.top_k; ++k) add(weights[k], *reinterpret_cast<const float4*>(from + k * a.pitch));
    if (a.shared_gate) add(shared_weight, last);
    float* out = a.out + t * a.stride + column;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (column + i < a.columns) out[i] = sum[i];
}

/// Sorts, and codes what has rows.
void queue_prepare(const Routes& routes, std::int64_t rows, std::int64_t experts, bool any_routed,
                   bool any_shared, const CodeTask& routed, const CodeTask& shared, const Layout& l,
                   cudaStream_t stream) {
    check_sorted(rows, routes.top_k, experts);
    const std::size_t bytes = static_cast<std::size_t>(experts) * kBytesPerExpert;
    const PrepareTask a{.sort = {.experts_of = routes.experts,
                                 .choices = static_cast<int>(rows * routes.top_k),
                                 .experts = static_cast<int>(experts),
                                 .rows = static_cast<int>(rows),
                                 .tile_inputs = l.tile_inputs,
                                 .any_routed = any_routed,
                                 .any_shared = any_shared,
                                 .order = l.order,
                                 .tiles = l.tiles,
                                 .tile_count = l.tile_count},
                        .routed = routed,
                        .shared = shared,
                        .routed_blocks = routed.blocks()};
    launch("sort choices, code inputs",
           coded_form(l.tile_inputs) == CodedForm::bytes ? prepare<CodedForm::bytes>
                                                         : prepare<CodedForm::halves>,
           dim3(1 + routed.blocks() + shared.blocks()), dim3(kThreads), bytes, stream, a);
}

TileTask task_of(const MatrixView& routed, const MatrixView& shared, const Layout& l) {
    TileTask a;
    a.matrices[0].m = routed;
    a.matrices[1].m = shared;
    a.count = 2;
    a.tiles = l.tiles;
    a.tile_count = l.tile_count;
    a.order = l.order;
    a.tile_inputs = l.tile_inputs;
    return a;
}

void launch_tiles(TileKind kind, const TileTask& task, Format format, int grid_rows, const Layout& l,
                  cudaStream_t stream) {
    (is_4bit(format)  ? gemm_4bit
     : is_fp8(format) ? gemm_fp8
                      : gemm_exact)(kind, task, format, grid_rows, static_cast<int>(l.most_tiles), stream);
}

/// Both sides in one launch when they have one format.
void launch_sides(TileKind kind, const TileTask& task, int routed_grid, int shared_grid, const Layout& l,
                  cudaStream_t stream) {
    const Format routed = task.matrices[0].m.format, shared = task.matrices[1].m.format;
    if (routed == shared)
        return launch_tiles(kind, task, routed, std::max(routed_grid, shared_grid), l, stream);
    if (routed_grid) launch_tiles(kind, task, routed, routed_grid, l, stream);
    if (shared_grid) launch_tiles(kind, task, shared, shared_grid, l, stream);
}

}  // namespace

void check_sorted(std::int64_t rows, int top_k, std::int64_t experts) {
    constexpr std::int64_t kMost = 48 * 1024 / kBytesPerExpert;
    if (experts > kMost) refuse(std::to_string(experts) + " experts", "up to " + std::to_string(kMost));
    if (most_tiles(rows, top_k, experts, kMostCoded) > kMostTiles)
        throw Error(Exit::usage,
                    "steps of " + std::to_string(rows) + " tokens with " + std::to_string(top_k) + " of " +
                        std::to_string(experts) + " experts each are more than the GPU kernels count",
                    "use a smaller --prefill-chunk");
}

std::size_t experts_up_scratch(std::int64_t rows, int top_k, std::int64_t experts, std::int64_t cols) {
    return layout_of(nullptr, false, rows, top_k, experts, rows, 0, cols, 0, 0, 0).bytes;
}

std::size_t experts_down_scratch(std::int64_t rows, int top_k, std::int64_t experts, std::int64_t cols,
                                 std::int64_t shared_cols, std::int64_t columns) {
    return layout_of(nullptr, false, rows, top_k, experts, rows * top_k, rows, cols, shared_cols,
                     rows * (top_k + 1), columns)
        .bytes;
}

void prefill_experts_up(const ExpertsUp& e, Scratch scratch, cudaStream_t stream) {
    const MatrixView &r = e.routed, &s = e.shared;
    const std::int64_t cols = r.rows ? r.cols : s.cols;
    const bool any_coded = (r.rows && is_4bit(r.format)) || (s.rows && is_4bit(s.format));
    const Layout l =
        layout_of(scratch.data, any_coded, e.rows, e.routes.top_k, e.groups, e.rows, 0, cols, 0, 0, 0);
    CodeTask code{.x = e.x, .cols = cols, .to = l.coded};
    if (any_coded) code.rows = e.rows;
    queue_prepare(e.routes, e.rows, e.groups, r.rows > 0, s.rows > 0, code, {}, l, stream);
    if ((r.rows && is_fp8(r.format)) || (s.rows && is_fp8(s.format)))
        code_wide(e.x, e.rows, cols, l.wide, stream);
    TileTask a = task_of(r, s, l);
    a.matrices[0].out = e.act;
    a.matrices[0].stride = e.stride;
    a.matrices[1].out = e.shared_act;
    a.matrices[1].stride = e.shared_stride;
    for (int i = 0; i < 2; ++i) {
        a.matrices[i].x = e.x;
        a.matrices[i].coded = l.coded;
        a.matrices[i].wide = l.wide;
    }
    a.divisor = e.routes.top_k;
    const auto grid = [](int matrix_rows) { return (matrix_rows / 2 + kTileRows / 2 - 1) / (kTileRows / 2); };
    launch_sides(TileKind::up, a, grid(r.rows), grid(s.rows), l, stream);
}

void prefill_experts_down(const ExpertsDown& e, Scratch scratch, cudaStream_t stream) {
    const MatrixView &r = e.routed, &s = e.shared;
    const bool any_shared = s.rows > 0, any_coded = is_4bit(r.format) || (any_shared && is_4bit(s.format));
    const std::int64_t choices = e.rows * e.routes.top_k;
    const Layout l = layout_of(scratch.data, any_coded, e.rows, e.routes.top_k, e.groups, choices, e.rows,
                               r.cols, s.cols, choices + e.rows, r.rows);
    CodeTask code{.x = e.act, .cols = r.cols, .to = l.coded},
        shared_code{.x = e.shared_act, .cols = s.cols, .to = l.shared_coded};
    if (is_4bit(r.format)) code.rows = choices;
    if (any_shared && is_4bit(s.format)) shared_code.rows = e.rows;
    queue_prepare(e.routes, e.rows, e.groups, true, any_shared, code, shared_code, l, stream);
    if (is_fp8(r.format)) code_wide(e.act, choices, r.cols, l.wide, stream);
    if (any_shared && is_fp8(s.format)) code_wide(e.shared_act, e.rows, s.cols, l.shared_wide, stream);
    // As many output columns at a time as the scratch memory holds results of.
    const std::int64_t whole = (r.rows + kTileRows - 1) / kTileRows * kTileRows;
    const std::int64_t fit =
        static_cast<std::int64_t>(l.result_bytes) / (4 * (choices + e.rows)) / kTileRows * kTileRows;
    const std::int64_t slice = std::min(whole, fit);
    TileTask a = task_of(r, s, l);
    a.matrices[0].x = e.act;
    a.matrices[0].coded = l.coded;
    a.matrices[0].wide = l.wide;
    a.matrices[0].out = l.results;
    a.matrices[1].x = e.shared_act;
    a.matrices[1].coded = l.shared_coded;
    a.matrices[1].wide = l.shared_wide;
    a.matrices[1].out = l.results + choices * slice;
    a.matrices[0].stride = a.matrices[1].stride = slice;
    a.most_rows = static_cast<int>(slice);
    for (std::int64_t first = 0; first < r.rows; first += slice) {
        a.first_row = static_cast<int>(first);
        const auto columns = static_cast<int>(std::min(slice, r.rows - first)),
                   tiles = (columns + kTileRows - 1) / kTileRows;
        launch_sides(TileKind::down, a, tiles, any_shared ? tiles : 0, l, stream);
        const CombineTask c{.results = l.results,
                            .shared_results = a.matrices[1].out,
                            .weights = e.routes.weights,
                            .shared_gate = e.shared_gate,
                            .top_k = e.routes.top_k,
                            .columns = columns,
                            .pitch = slice,
                            .out = e.out + first,
                            .stride = e.stride};
        launch("combine experts", combine,
               dim3(static_cast<unsigned>(e.rows),
                    static_cast<unsigned>((columns + 4 * kCombineThreads - 1) / (4 * kCombineThreads))),
               dim3(kCombineThreads), 0, stream, c);
    }
}

}  // namespace ftmpi::cuda
