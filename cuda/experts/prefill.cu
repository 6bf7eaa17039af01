// The experts of many rows: choices sorted by expert on the device, tiles of up to 64 choices of one expert,
// and the experts' results added row by row in rising id.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <algorithm>

#include "../device_code.hpp"
#include "../gemm/gemm.hpp"
#include "experts.hpp"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr std::size_t kMostResults =
    std::size_t{32} << 20;  ///< bytes of a slice of down results, unless 128 columns take more

constexpr std::size_t kBytesPerExpert = 8;  ///< of shared memory, to sort
constexpr std::int64_t kMostTiles = 65535;  ///< blocks in y

/// Tiles of at most 64 choices of one expert, those of the shared expert among them.
std::int64_t most_tiles(std::int64_t rows, int top_k, std::int64_t experts) {
    const std::int64_t choices = rows * top_k;
    return std::min(choices, experts + choices / kTileInputs) + (rows + kTileInputs - 1) / kTileInputs;
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
    std::int64_t most_tiles;
    std::size_t bytes;
};

/// `inputs` and `shared_inputs`: rows to code, with their columns. Results of `result_rows` choices, of up to
/// `columns` columns.
Layout layout_of(void* base, std::int64_t rows, int top_k, std::int64_t experts, std::int64_t inputs,
                 std::int64_t shared_inputs, std::int64_t cols, std::int64_t shared_cols,
                 std::int64_t result_rows, std::int64_t columns) {
    Layout l{};
    Parts parts(base);
    const std::int64_t choices = rows * top_k;
    l.most_tiles = most_tiles(rows, top_k, experts);
    l.order = parts.take<std::int32_t>(choices);
    l.tile_count = parts.take<std::int32_t>(1);
    l.tiles = parts.take<ExpertTile>(l.most_tiles);
    const auto coded = [&](std::int64_t n, std::int64_t c) {
        CodedRows r;
        r.codes = parts.take<uint4>(4 * n * coded_chunks(c));
        r.units = parts.take<float>(n * coded_chunks(c));
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

/// One block. Sorts the choices by expert and lists tiles: the shared expert's first, then the experts' in
/// rising id. The order of choices inside an expert is free: each result is computed by itself.
__global__ void __launch_bounds__(kThreads)
    sort_by_expert(const std::int32_t* experts_of, int choices, int experts, int rows, bool any_routed,
                   bool any_shared, std::int32_t* order, ExpertTile* tiles, std::int32_t* tile_count) {
    auto* count = reinterpret_cast<int*>(shared_bytes());
    int* next = count + experts;
    const int thread = static_cast<int>(threadIdx.x),
              shared_tiles = any_shared ? (rows + kTileInputs - 1) / kTileInputs : 0;
    for (int e = thread; e < experts; e += kThreads) count[e] = 0;
    __syncthreads();
    if (any_routed)
        for (int c = thread; c < choices; c += kThreads) atomicAdd(&count[experts_of[c]], 1);
    __syncthreads();
    for (int e = thread; e < experts; e += kThreads) {
        int first = 0, tile = shared_tiles;
        for (int i = 0; i < e; ++i) {
            first += count[i];
            tile += (count[i] + kTileInputs - 1) / kTileInputs;
        }
        next[e] = first;
        for (int done = 0; done < count[e]; done += kTileInputs)
            tiles[tile++] = {e, first + done, count[e] - done < kTileInputs ? count[e] - done : kTileInputs};
        if (e == experts - 1) *tile_count = tile;
    }
    for (int t = thread; t < shared_tiles; t += kThreads) {
        const int first = t * kTileInputs;
        tiles[t] = {-1, first, rows - first < kTileInputs ? rows - first : kTileInputs};
    }
    __syncthreads();
    if (any_routed)
        for (int c = thread; c < choices; c += kThreads) order[atomicAdd(&next[experts_of[c]], 1)] = c;
}

/// out[t][column] = the sum over the row's experts in rising id, then the shared expert (no gate: there is
/// none). One block of columns a row.
__global__ void combine(const float* results, const float* shared_results, const float* weights,
                        const float* shared_gate, int top_k, int columns, std::int64_t pitch, float* out,
                        std::int64_t stride) {
    const std::int64_t t = blockIdx.x;
    const float shared_weight = shared_gate ? num::sigmoid(shared_gate[t]) : 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < columns; i += static_cast<int>(blockDim.x)) {
        float sum = 0.0f;
        for (int k = 0; k < top_k; ++k)
            sum = num::expert_add(weights[t * top_k + k], results[(t * top_k + k) * pitch + i], sum);
        if (shared_gate) sum = num::expert_add(shared_weight, shared_results[t * pitch + i], sum);
        out[t * stride + i] = sum;
    }
}

void sort(const Routes& routes, std::int64_t rows, std::int64_t experts, bool any_routed, bool any_shared,
          const Layout& l, cudaStream_t stream) {
    check_sorted(rows, routes.top_k, experts);
    const std::size_t shared = static_cast<std::size_t>(experts) * kBytesPerExpert;
    launch("sort choices", sort_by_expert, dim3(1), dim3(kThreads), shared, stream, routes.experts,
           static_cast<int>(rows * routes.top_k), static_cast<int>(experts), static_cast<int>(rows),
           any_routed, any_shared, l.order, l.tiles, l.tile_count);
}

TileTask task_of(const MatrixView& routed, const MatrixView& shared, const Layout& l) {
    TileTask a;
    a.matrices[0].m = routed;
    a.matrices[1].m = shared;
    a.count = 2;
    a.tiles = l.tiles;
    a.tile_count = l.tile_count;
    a.order = l.order;
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
    if (most_tiles(rows, top_k, experts) > kMostTiles)
        throw Error(Exit::usage,
                    "steps of " + std::to_string(rows) + " tokens with " + std::to_string(top_k) + " of " +
                        std::to_string(experts) + " experts each are more than the GPU kernels count",
                    "use a smaller --prefill-chunk");
}

std::size_t experts_up_scratch(std::int64_t rows, int top_k, std::int64_t experts, std::int64_t cols) {
    return layout_of(nullptr, rows, top_k, experts, rows, 0, cols, 0, 0, 0).bytes;
}

std::size_t experts_down_scratch(std::int64_t rows, int top_k, std::int64_t experts, std::int64_t cols,
                                 std::int64_t shared_cols, std::int64_t columns) {
    return layout_of(nullptr, rows, top_k, experts, rows * top_k, rows, cols, shared_cols, rows * (top_k + 1),
                     columns)
        .bytes;
}

void prefill_experts_up(const ExpertsUp& e, Scratch scratch, cudaStream_t stream) {
    const MatrixView &r = e.routed, &s = e.shared;
    const std::int64_t cols = r.rows ? r.cols : s.cols;
    const Layout l = layout_of(scratch.data, e.rows, e.routes.top_k, e.groups, e.rows, 0, cols, 0, 0, 0);
    sort(e.routes, e.rows, e.groups, r.rows > 0, s.rows > 0, l, stream);
    if ((r.rows && is_4bit(r.format)) || (s.rows && is_4bit(s.format)))
        code_rows(e.x, e.rows, cols, l.coded, stream);
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
    const bool any_shared = s.rows > 0;
    const std::int64_t choices = e.rows * e.routes.top_k;
    const Layout l = layout_of(scratch.data, e.rows, e.routes.top_k, e.groups, choices, e.rows, r.cols,
                               s.cols, choices + e.rows, r.rows);
    sort(e.routes, e.rows, e.groups, true, any_shared, l, stream);
    if (is_4bit(r.format)) code_rows(e.act, choices, r.cols, l.coded, stream);
    if (is_fp8(r.format)) code_wide(e.act, choices, r.cols, l.wide, stream);
    if (any_shared && is_4bit(s.format)) code_rows(e.shared_act, e.rows, s.cols, l.shared_coded, stream);
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
        launch("combine experts", combine, dim3(static_cast<unsigned>(e.rows)), dim3(256), 0, stream,
               l.results, a.matrices[1].out, e.routes.weights, e.shared_gate, e.routes.top_k, columns, slice,
               e.out + first, e.stride);
    }
}

}  // namespace ftmpi::cuda
