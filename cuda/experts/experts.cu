// The experts' launchers.
#include "experts.hpp"

namespace ftmpi::cuda {
namespace {

/// Null for a matrix without rows.
const MatrixView* if_any(const MatrixView& m) { return m.rows ? &m : nullptr; }

}  // namespace

void experts_up(ExpertsUp e, const Card& card, Scratch scratch, cudaStream_t stream) {
    const Call formats{.routed = if_any(e.routed), .shared = if_any(e.shared)};
    // A rank without rows here launches nothing, but needs the choice for its rows of down.
    const bool any = e.routed.rows || e.shared.rows;
    const bool chooses =
        any && few_rows_serve_experts(formats.formats()) && e.rows < many_expert_rows(formats.formats());
    if (e.logits && !route_if_apart(e.logits, e.rows, e.groups, e.routes, chooses, stream))
        e.logits = nullptr;
    if (e.rows == 0 || !any) return;
    if (e.routed.rows && e.shared.rows && e.routed.cols != e.shared.cols)
        throw Error(Exit::failure, "routed and shared experts differ in their number of columns");
    switch (choose({.op = Operator::experts_up,
                    .rows = e.rows,
                    .aligned = aligned({e.x}),
                    .routed = formats.routed,
                    .shared = formats.shared,
                    .experts = e.groups,
                    .top_k = e.routes.top_k,
                    .routes = e.logits != nullptr})
                .kernel) {
        case Kernel::prefill: return prefill_experts_up(e, scratch, stream);
        case Kernel::decode: return decode_experts_up(e, card, stream);
        default: return any_experts_up(e, card, stream);
    }
}

void experts_down(const ExpertsDown& e, const Card& card, Scratch scratch, cudaStream_t stream) {
    if (e.shared.cols && e.routed.rows != e.shared.rows)
        throw Error(Exit::failure, "routed and shared experts differ in their number of output rows");
    if (e.rows == 0 || e.routed.rows == 0) return;
    switch (choose({.op = Operator::experts_down,
                    .rows = e.rows,
                    .aligned = aligned({e.act, e.shared_act}),
                    .routed = &e.routed,
                    .shared = if_any(e.shared),
                    .top_k = e.routes.top_k})
                .kernel) {
        case Kernel::prefill: return prefill_experts_down(e, scratch, stream);
        case Kernel::decode: return decode_experts_down(e, stream);
        default: return any_experts_down(e, card, stream);
    }
}

}  // namespace ftmpi::cuda
