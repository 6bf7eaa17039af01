// Lookup, norms, projections, experts and the choice of a token.
#include <algorithm>
#include <cstring>

#include "../cpu_backend.hpp"
#include "../error.hpp"
#include "../numerics.hpp"
#include "kernels.hpp"
#include "matrix.hpp"
#include "parallel.hpp"
#include "traced.hpp"

namespace ftmpi {

using cpu::cpu_matrix;
using cpu::InputRow;
using cpu::QuantChunk;
using cpu::TileView;
using cpu::WideRow;
using cpu::work_of;

void CpuBackend::trace_kernels(bool on) {
    tracing_ = on;
    trace_.take();
}

void CpuBackend::embed(const Matrix& matrix, const Rows& rows, float* x) {
    check_denormals();
    const auto* table = dynamic_cast<const cpu::CpuTable*>(&matrix);
    if (!table) throw Error(Exit::failure, "a matrix that is no lookup table was given to embed");
    for (const Row& row : rows.tokens_on_device ? std::span(rows.device, rows.host.size()) : rows.host) {
        if (row.token < 0 || row.token >= table->rows)
            throw Error(Exit::bad_input, "token id " + std::to_string(row.token) + " is not among the " +
                                             std::to_string(table->rows) + " rows of the embedding");
        table->stored.copy_row(row.token, table->cols, x);
        x += table->cols;
    }
}

void CpuBackend::resolve_tokens(Row* to, std::span<const Row> rows, const std::int32_t* tokens,
                                std::int64_t ids) {
    for (const Row& row : rows) {
        const std::int32_t token = tokens[row.token];
        *to++ = {token >= 0 && token < ids ? token : 0, row.slot, row.position};
    }
}

void CpuBackend::rms_norm(const float* x, const float* weight, float eps, std::int64_t rows,
                          std::int64_t width, float* y) {
    const Traced traced(*this, "rms_norm", rows, [&] { return std::string("norm"); });
    parallel(rows, static_cast<double>(rows * width) * 4, [=, this](std::int64_t r, int) {
        kernels_.rms_norm(x + r * width, weight, eps, width, y + r * width);
    });
}

void CpuBackend::Coded::add(const Matrix& m) {
    if (m.rows == 0) return;
    chunks = chunks || is_4bit(m.format);
    wide = wide || m.format == Format::fp8_row || m.format == Format::fp8_block;
}

const InputRow* CpuBackend::inputs(const float* x, std::int64_t rows, std::int64_t cols, Coded coded,
                                   cpu::Scratch& codes, std::vector<InputRow>& to) {
    const auto chunks = static_cast<std::size_t>((cols + num::kChunk - 1) / num::kChunk),
               count = static_cast<std::size_t>(rows);
    const std::size_t wide_bytes = coded.wide ? kernels_.wide_bytes(cols) : 0,
                      chunk_bytes = coded.chunks ? chunks * sizeof(QuantChunk) : 0;
    auto* wide = codes.get<std::byte>(count * (wide_bytes + chunk_bytes));
    auto* q = reinterpret_cast<QuantChunk*>(wide + count * wide_bytes);
    to.resize(count);
    for (std::size_t r = 0; r < count; ++r)
        to[r] = {x + static_cast<std::int64_t>(r) * cols, coded.chunks ? q + r * chunks : nullptr,
                 coded.wide ? reinterpret_cast<WideRow*>(wide + r * wide_bytes) : nullptr};
    if (coded.chunks || coded.wide)
        parallel(rows, static_cast<double>(rows * cols) * 8, [=, this](std::int64_t row, int) {
            const auto r = static_cast<std::size_t>(row);
            if (coded.chunks) kernels_.quantize(x + row * cols, cols, q + r * chunks);
            if (coded.wide)
                kernels_.quantize_wide(x + row * cols, cols,
                                       reinterpret_cast<WideRow*>(wide + r * wide_bytes));
        });
    return to.data();
}

void CpuBackend::project(std::span<const Projection> to, const float* x, std::int64_t rows) {
    const Traced traced(*this, "dot", rows, [&] { return operation_name(to); });
    if (to.empty() || rows == 0) return;
    const std::int64_t cols = to[0].matrix->cols;
    Coded coded;
    double work = 0;
    std::int64_t all_tiles = 0;
    for (const Projection& p : to) {
        if (p.matrix->cols != cols)
            throw Error(Exit::failure, "matrices of one step differ in their number of columns");
        coded.add(*p.matrix);
        work += work_of(*p.matrix) * static_cast<double>(rows);
        all_tiles += cpu_matrix(*p.matrix).tiles();
    }
    const InputRow* in = inputs(x, rows, cols, coded, codes_, inputs_);

    struct Part {
        TileView view;
        std::int64_t begin, end;
        const Projection* to;
    };
    std::vector<Part> parts;
    const std::int64_t grain =
        threads_ == 1 ? all_tiles : std::max<std::int64_t>(1, all_tiles / (4 * threads_));
    for (const Projection& p : to) {
        const auto& m = cpu_matrix(*p.matrix);
        for (std::int64_t t = 0; t < m.tiles(); t += grain)
            parts.push_back({m.view(0), t, std::min(m.tiles(), t + grain), &p});
    }
    parallel(static_cast<std::int64_t>(parts.size()), work, [&](std::int64_t i, int) {
        const Part& part = parts[static_cast<std::size_t>(i)];
        float* out[64];
        for (std::int64_t r0 = 0; r0 < rows; r0 += 64) {
            const std::int64_t n = std::min<std::int64_t>(64, rows - r0);
            for (std::int64_t r = 0; r < n; ++r)
                out[r] = part.to->out + (r0 + r) * part.to->stride + part.begin * kRowTile;
            kernels_.dot(part.view, part.begin, part.end, in + r0, n, out);
        }
    });
}

void CpuBackend::route(const float* logits, std::int64_t rows, int experts, const Routes& routes) {
    const Traced traced(*this, "route", rows, [&] { return std::string("route"); });
    const int k = routes.top_k;
    if (k < 1 || k > experts)
        throw Error(Exit::failure,
                    "cannot choose " + std::to_string(k) + " of " + std::to_string(experts) + " experts");
    parallel(rows, static_cast<double>(rows) * experts * k * 4, [=, this](std::int64_t r, int) {
        kernels_.route(logits + r * experts, experts, k, routes.experts + r * k, routes.weights + r * k);
    });
}

void CpuBackend::group_by_expert(const Routes& routes, std::int64_t rows, std::int64_t experts) {
    const std::int64_t choices = rows * routes.top_k;
    begin_.assign(static_cast<std::size_t>(experts + 1), 0);
    order_.resize(static_cast<std::size_t>(choices));
    for (std::int64_t c = 0; c < choices; ++c) {
        const std::int32_t e = routes.experts[c];
        if (e < 0 || e >= experts)
            throw Error(Exit::failure,
                        "expert " + std::to_string(e) + " was chosen of " + std::to_string(experts));
        ++begin_[static_cast<std::size_t>(e) + 1];
    }
    for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) begin_[e + 1] += begin_[e];
    std::vector<std::int64_t> next(begin_.begin(), begin_.end() - 1);
    for (std::int64_t c = 0; c < choices; ++c)
        order_[static_cast<std::size_t>(next[static_cast<std::size_t>(routes.experts[c])]++)] = c;
}

void CpuBackend::experts_up(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* x,
                            std::int64_t rows, float* act, std::int64_t stride, float* shared_act,
                            std::int64_t shared_stride) {
    const Traced traced(*this, "dot", rows, [&] { return operation_name("experts_up", routed, shared); });
    const auto& experts = cpu_matrix(routed);
    const std::int64_t shared_rows = shared ? shared->rows : 0;
    const bool any_routed = routed.rows > 0, any_shared = shared_rows > 0;
    if (rows == 0 || (!any_routed && !any_shared)) return;
    if (any_routed && any_shared && routed.cols != shared->cols)
        throw Error(Exit::failure, "routed and shared experts differ in their number of columns");
    Coded coded;
    coded.add(routed);
    if (shared) coded.add(*shared);
    const InputRow* in = inputs(x, rows, any_routed ? routed.cols : shared->cols, coded, codes_, inputs_);
    const std::int64_t k = any_routed ? routes.top_k : 0, choices = rows * k;
    if (any_routed) group_by_expert(routes, rows, routed.groups);

    // Gate and up rows of every choice, then of the shared expert for every row.
    float* raw = results_.get<float>(static_cast<std::size_t>(choices * routed.rows + rows * shared_rows));
    float* raw_shared = raw + choices * routed.rows;
    struct Part {
        std::int64_t expert, begin, end;  ///< expert -1: the shared one; tiles
    };
    std::vector<Part> parts;
    const auto add_parts = [&](std::int64_t expert, std::int64_t tiles) {
        const std::int64_t half = threads_ == 1 ? tiles : (tiles + 1) / 2;
        for (std::int64_t t = 0; t < tiles; t += half)
            parts.push_back({expert, t, std::min(tiles, t + half)});
    };
    if (any_shared) add_parts(-1, cpu_matrix(*shared).tiles());
    for (std::int64_t e = 0; any_routed && e < routed.groups; ++e)
        if (begin_[static_cast<std::size_t>(e)] != begin_[static_cast<std::size_t>(e) + 1])
            add_parts(e, experts.tiles());

    const double work = work_of(routed) * static_cast<double>(choices) +
                        (shared ? work_of(*shared) * static_cast<double>(rows) : 0);
    parallel(static_cast<std::int64_t>(parts.size()), work, [&](std::int64_t i, int) {
        const Part& part = parts[static_cast<std::size_t>(i)];
        const bool is_shared = part.expert < 0;
        const TileView view = is_shared ? cpu_matrix(*shared).view(0) : experts.view(part.expert);
        const std::int64_t first = is_shared ? 0 : begin_[static_cast<std::size_t>(part.expert)];
        const std::int64_t last = is_shared ? rows : begin_[static_cast<std::size_t>(part.expert) + 1];
        InputRow list[64];
        float* out[64];
        for (std::int64_t c0 = first; c0 < last; c0 += 64) {
            const std::int64_t n = std::min<std::int64_t>(64, last - c0);
            for (std::int64_t c = 0; c < n; ++c) {
                const std::int64_t choice = is_shared ? c0 + c : order_[static_cast<std::size_t>(c0 + c)];
                list[c] = in[is_shared ? choice : choice / k];
                out[c] = (is_shared ? raw_shared + choice * shared_rows : raw + choice * routed.rows) +
                         part.begin * kRowTile;
            }
            kernels_.dot(view, part.begin, part.end, list, n, out);
        }
    });

    const std::int64_t width = routed.rows / 2, shared_width = shared_rows / 2;
    parallel(rows, static_cast<double>(choices * width + rows * shared_width) * 16, [&](std::int64_t r, int) {
        for (std::int64_t c = r * k; c < (r + 1) * k; ++c)
            kernels_.expert_act(raw + c * routed.rows, raw + c * routed.rows + width, width,
                                act + c * stride);
        if (!any_shared) return;
        const float* s = raw_shared + r * shared_rows;
        kernels_.expert_act(s, s + shared_width, shared_width, shared_act + r * shared_stride);
    });
}

void CpuBackend::experts_down(const Matrix& routed, const Matrix* shared, const Routes& routes,
                              const float* act, const float* shared_act, const float* shared_gate,
                              std::int64_t rows, float* out, std::int64_t stride) {
    const Traced traced(*this, "dot", rows, [&] { return operation_name("experts_down", routed, shared); });
    const auto& experts = cpu_matrix(routed);
    if (shared && routed.rows != shared->rows)
        throw Error(Exit::failure, "routed and shared experts differ in their number of output rows");
    if (rows == 0 || routed.rows == 0) return;
    const std::int64_t choices = rows * routes.top_k;
    Coded coded, coded_shared;
    coded.add(routed);
    const InputRow* in = inputs(act, choices, routed.cols, coded, codes_, inputs_);
    if (shared) coded_shared.add(*shared);
    const InputRow* in_shared =
        shared ? inputs(shared_act, rows, shared->cols, coded_shared, shared_codes_, shared_inputs_)
               : nullptr;
    group_by_expert(routes, rows, routed.groups);

    // A task owns some output rows for all of the step's rows, and adds the experts there in rising id.
    const std::int64_t tiles = experts.tiles(), fit = std::max<std::int64_t>(2, 256 / rows);
    const std::int64_t grain =
        std::min(fit, threads_ == 1 ? tiles : (tiles + 2 * threads_ - 1) / (2 * threads_));
    const std::size_t per_thread = static_cast<std::size_t>(64 * grain * kRowTile);
    float* results = results_.get<float>(per_thread * static_cast<std::size_t>(threads_));
    const double work = work_of(routed) * static_cast<double>(choices) +
                        (shared ? work_of(*shared) * static_cast<double>(rows) : 0);
    parallel((tiles + grain - 1) / grain, work, [&](std::int64_t i, int thread) {
        const std::int64_t begin = i * grain, end = std::min(tiles, begin + grain), first = begin * kRowTile;
        const std::int64_t width = std::min(routed.rows, end * kRowTile) - first;
        float* y = results + per_thread * static_cast<std::size_t>(thread);
        InputRow list[64];
        float* to[64];
        for (std::int64_t r = 0; r < rows; ++r)
            std::memset(out + r * stride + first, 0, static_cast<std::size_t>(width) * 4);
        for (std::int64_t n = 0; n < 64; ++n) to[n] = y + n * grain * kRowTile;
        for (std::int64_t e = 0; e < routed.groups; ++e)
            for (std::int64_t c0 = begin_[static_cast<std::size_t>(e)],
                              last = begin_[static_cast<std::size_t>(e) + 1];
                 c0 < last; c0 += 64) {
                const std::int64_t n = std::min<std::int64_t>(64, last - c0);
                const std::int64_t* choice = order_.data() + c0;
                for (std::int64_t c = 0; c < n; ++c) list[c] = in[choice[c]];
                kernels_.dot(experts.view(e), begin, end, list, n, to);
                for (std::int64_t c = 0; c < n; ++c)
                    kernels_.expert_add(routes.weights[choice[c]], to[c], width,
                                        out + choice[c] / routes.top_k * stride + first);
            }
        for (std::int64_t r0 = 0; shared && r0 < rows; r0 += 64) {
            const std::int64_t n = std::min<std::int64_t>(64, rows - r0);
            kernels_.dot(cpu_matrix(*shared).view(0), begin, end, in_shared + r0, n, to);
            for (std::int64_t r = 0; r < n; ++r)
                kernels_.expert_add(num::sigmoid(shared_gate[r0 + r]), to[r], width,
                                    out + (r0 + r) * stride + first);
        }
    });
}

void CpuBackend::add(const float* h, const float* y, float* sum, std::int64_t n) {
    const Traced traced(*this, "add", 1, [&] { return std::string("add"); });
    kernels_.add(h, y, sum, n);
}

void CpuBackend::argmax(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t ids,
                        const std::uint8_t* masked, std::int32_t* token, std::int32_t* finite) {
    const Traced traced(*this, "argmax", rows, [&] { return std::string("argmax"); });
    parallel(rows, static_cast<double>(rows * ids) * 4, [=, this](std::int64_t r, int) {
        kernels_.argmax(logits + r * stride, ids, masked, token + r, finite + r);
    });
}

}  // namespace ftmpi
