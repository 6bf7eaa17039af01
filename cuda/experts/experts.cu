// The experts' launchers.
#include "experts.hpp"

namespace ftmpi::cuda {
namespace {

/// Null for a matrix without rows.
const MatrixView* if_any(const MatrixView& m) { return m.rows ? &m : nullptr; }
MatrixView view_of(const Matrix* m) { return m ? cuda_matrix(*m).view() : MatrixView{}; }

void up(const ExpertsUp& e, const Card& card, Scratch scratch, cudaStream_t stream) {
    if (e.rows == 0 || (e.routed.rows == 0 && e.shared.rows == 0)) return;
    if (e.routed.rows && e.shared.rows && e.routed.cols != e.shared.cols)
        throw Error(Exit::failure, "routed and shared experts differ in their number of columns");
    switch (choose({.op = Operator::experts_up,
                    .rows = e.rows,
                    .aligned = aligned({e.x}),
                    .routed = if_any(e.routed),
                    .shared = if_any(e.shared),
                    .experts = e.experts,
                    .top_k = e.routes.top_k,
                    .routes = e.logits != nullptr})
                .kernel) {
        case Kernel::prefill: return prefill_experts_up(e, scratch, stream);
        case Kernel::decode: return decode_experts_up(e, card, stream);
        default: return any_experts_up(e, card, stream);
    }
}

}  // namespace

void experts_up(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* x,
                std::int64_t rows, float* act, std::int64_t stride, float* shared_act,
                std::int64_t shared_stride, const Card& card, Scratch scratch, cudaStream_t stream) {
    up({cuda_matrix(routed).view(), view_of(shared), routed.groups, routes, nullptr, 0, x, rows, act,
        shared_act, stride, shared_stride},
       card, scratch, stream);
}

void route_up(const float* logits, int experts, const Matrix& routed, const Matrix* shared,
              const Routes& routes, const float* x, std::int64_t rows, float* act, std::int64_t stride,
              float* shared_act, std::int64_t shared_stride, const Card& card, Scratch scratch,
              cudaStream_t stream) {
    ExpertsUp e{cuda_matrix(routed).view(),
                view_of(shared),
                routed.groups,
                routes,
                logits,
                experts,
                x,
                rows,
                act,
                shared_act,
                stride,
                shared_stride};
    // A rank without rows here launches nothing, but needs the choice for its rows of down.
    const bool any = e.routed.rows || e.shared.rows;
    const Call formats{.routed = if_any(e.routed), .shared = if_any(e.shared)};
    const bool chooses = any && few_rows_serve_experts(formats.formats());
    if (!route_if_apart(logits, rows, experts, routes, chooses, stream)) e.logits = nullptr;
    up(e, card, scratch, stream);
}

void experts_down(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* act,
                  const float* shared_act, const float* shared_gate, std::int64_t rows, float* out,
                  std::int64_t stride, const Card& card, Scratch scratch, cudaStream_t stream) {
    const ExpertsDown e{cuda_matrix(routed).view(),
                        view_of(shared),
                        routed.groups,
                        routes,
                        act,
                        shared_act,
                        shared_gate,
                        rows,
                        out,
                        stride};
    if (shared && e.routed.rows != e.shared.rows)
        throw Error(Exit::failure, "routed and shared experts differ in their number of output rows");
    if (rows == 0 || e.routed.rows == 0) return;
    switch (choose({.op = Operator::experts_down,
                    .rows = rows,
                    .aligned = aligned({act, shared_act}),
                    .routed = &e.routed,
                    .shared = if_any(e.shared),
                    .top_k = routes.top_k})
                .kernel) {
        case Kernel::prefill: return prefill_experts_down(e, scratch, stream);
        case Kernel::decode: return decode_experts_down(e, stream);
        default: return any_experts_down(e, card, stream);
    }
}

}  // namespace ftmpi::cuda
