// The launchers of matrices times the rows of a step: T rows of H columns against matrices that read the
// same.
#include <algorithm>
#include <utility>
#include <vector>

#include "gemm/gemm.hpp"
#include "gemm/gemm_bf16.hpp"
#include "gemv/gemv.cuh"

namespace ftmpi::cuda {
namespace {

WideRows wide_rows(void* scratch, std::int64_t rows, std::int64_t cols) {
    Parts parts(scratch);
    WideRows w;
    w.codes = parts.take<uint4>(rows * wide_segments(cols) * kSegmentWords);
    w.units = parts.take<float>(rows * wide_segments(cols));
    return w;
}

CodedRows coded_rows(void* scratch, std::int64_t rows, std::int64_t cols) {
    Parts parts(scratch);
    CodedRows c;
    c.codes = parts.take<uint4>(rows * coded_chunks(cols) * 8);
    c.meta = parts.take<float4>(rows * coded_chunks(cols));
    return c;
}

/// Tiles of the matrices of `to`, a launch for each format and every kTileMatrices of them. The scratch holds
/// x as FP8 weights take it, later as 4-bit weights do.
void project_gemm(std::span<const Projection> to, const float* x, std::int64_t rows, std::int64_t cols,
                  Scratch scratch, cudaStream_t stream) {
    const CodedRows coded = coded_rows(scratch.data, rows, cols);
    const WideRows wide = wide_rows(scratch.data, rows, cols);
    bool has_coded = false, has_wide = false;
    for_each_format([&]<Format F>() {
        TileTask a;
        int tiles = 0;
        const auto queue = [&] {
            if (a.count == 0) return;
            if (is_4bit(F) && !std::exchange(has_coded, true))
                code_rows(x, rows, cols, coded_form(code_tile_inputs(rows)), coded, stream);
            if (is_fp8(F) && !std::exchange(has_wide, true)) code_wide(x, rows, cols, wide, stream);
            a.tile_inputs = is_4bit(F) ? code_tile_inputs(rows) : kTileInputs;
            (is_4bit(F)  ? gemm_4bit
             : is_fp8(F) ? gemm_fp8
                         : gemm_exact)(TileKind::plain, a, F, tiles,
                                       static_cast<int>((rows + a.tile_inputs - 1) / a.tile_inputs), stream);
            a.count = tiles = 0;
        };
        a.rows = static_cast<int>(rows);
        for (const Projection& p : to) {
            const MatrixView& m = cuda_matrix(*p.matrix).view();
            if (m.format != F) continue;
            a.matrices[a.count++] = {m, x, coded, wide, p.out, p.stride, tiles};
            tiles += (m.rows + kTileRows - 1) / kTileRows;
            if (a.count == kTileMatrices) queue();
        }
        queue();
    });
}

/// Those with rows here.
std::vector<Projection> with_rows(std::span<const Projection> to) {
    std::vector<Projection> some;
    for (const Projection& p : to) {
        if (p.matrix->cols != to[0].matrix->cols)
            throw Error(Exit::failure, "matrices of one step differ in their number of columns");
        if (p.matrix->rows > 0) some.push_back(p);
    }
    return some;
}

}  // namespace

std::size_t project_scratch(std::int64_t rows, std::int64_t cols) {
    Parts wide(nullptr), coded(nullptr);
    if (rows >= kManyFp8Rows) {
        wide.take<uint4>(rows * wide_segments(cols) * kSegmentWords);
        wide.take<float>(rows * wide_segments(cols));
    }
    if (rows >= kManyCodedRows) {
        coded.take<uint4>(rows * coded_chunks(cols) * 8);
        coded.take<float4>(rows * coded_chunks(cols));
    }
    return std::max(
        {wide.bytes(), coded.bytes(), gemm_bf16_scratch(rows, cols), gemv_tiles_scratch(rows, cols)});
}

void project(std::span<const Projection> to, const float* x, std::int64_t rows, const Card& card,
             Scratch scratch, cudaStream_t stream, bool fast) {
    if (rows == 0) return;
    for (std::vector<Projection> left = with_rows(to); !left.empty();) {
        const KernelRow& row = choose(
            {.op = Operator::project, .rows = rows, .fast = fast, .aligned = aligned({x}), .to = left});
        std::vector<Projection> part, rest;
        for (const Projection& p : left) (bit_of(p.matrix->format) & row.formats ? part : rest).push_back(p);
        const std::int64_t cols = part[0].matrix->cols;
        switch (row.kernel) {
            case Kernel::gemm_bf16: gemm_bf16(part, x, rows, cols, scratch, stream); break;
            case Kernel::gemv: gemv(part, x, {}, card, stream); break;
            case Kernel::gemv_tiles: gemv_tiles(part, x, rows, {}, card, scratch, stream); break;
            case Kernel::gemv_any: gemv_any(part, x, rows, {}, card, stream); break;
            default: project_gemm(part, x, rows, cols, scratch, stream);
        }
        left = std::move(rest);
    }
}

void norm_project(const Norm& n, std::span<const Projection> to, std::int64_t rows, const Card& card,
                  Scratch scratch, cudaStream_t stream, bool fast) {
    if (rows == 0) return;
    const std::vector<Projection> some = with_rows(to);
    if (!to.empty() && to[0].matrix->cols != n.width)
        throw Error(Exit::failure, "a norm's width is not its projections' number of columns");
    // The kernels of few rows norm them first, each block for itself.
    if (!fast && rows < kManyRows && n.width % 4 == 0 && !some.empty() && some.size() <= kMatrices &&
        aligned({n.from, n.plus, n.sum, n.weight, n.out})) {
        const Call call{.op = Operator::project, .rows = rows, .to = some};
        const KernelRow& row = choose(call);
        const bool all = (call.formats() & ~row.formats) == 0;  // else a second kernel would norm them again
        if (all && row.kernel == Kernel::gemv) return gemv(some, nullptr, n, card, stream);
        if (all && row.kernel == Kernel::gemv_tiles)
            return gemv_tiles(some, nullptr, rows, n, card, scratch, stream);
        if (all && row.kernel == Kernel::gemv_any && gemv_any(some, nullptr, rows, n, card, stream)) return;
    }
    norm(n, rows, stream);
    project(to, n.out, rows, card, scratch, stream, fast);
}

}  // namespace ftmpi::cuda
