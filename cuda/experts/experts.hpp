// The experts of a step: what a call computes, and the kernels that do it (kernels.hpp says when).
//
// T rows, E experts, F their intermediate width, H hidden.
#pragma once

#include "../kernels.hpp"

namespace ftmpi::cuda {

/// act = silu(gate) * up of every row's chosen experts, and of the shared expert.
struct ExpertsUp {
    MatrixView routed;              ///< [E][2 F here][H]: gate rows, then up rows
    MatrixView shared;              ///< the same of the shared expert; without rows where there is none
    std::int64_t groups = 0;        ///< E
    Routes routes;                  ///< [T][top_k]
    const float* logits = nullptr;  ///< [T][E]: the kernel chooses; null: routes.experts are chosen
    int experts = 0;                ///< E, of logits
    const float* x = nullptr;       ///< [T][H]
    std::int64_t rows = 0;          ///< T
    float* act = nullptr;           ///< [T][top_k][stride]
    float* shared_act = nullptr;    ///< [T][shared_stride]
    std::int64_t stride = 0, shared_stride = 0;
};

/// The sum of down(act) over a row's experts in rising id, the shared expert last.
struct ExpertsDown {
    MatrixView routed;        ///< [E][H here][F]
    MatrixView shared;        ///< the same; without rows where there is no shared expert
    std::int64_t groups = 0;  ///< E
    Routes routes;
    const float* act = nullptr;          ///< [T][top_k][F]
    const float* shared_act = nullptr;   ///< [T][F of the shared expert]
    const float* shared_gate = nullptr;  ///< [T]
    std::int64_t rows = 0;               ///< T
    float* out = nullptr;                ///< [T][stride]
    std::int64_t stride = 0;
};

/// Refuses more than the kernels of many rows count: experts, and experts chosen in one step.
void check_sorted(std::int64_t rows, int top_k, std::int64_t experts);

void decode_experts_up(const ExpertsUp& e, const Card& card, cudaStream_t stream);
void any_experts_up(const ExpertsUp& e, const Card& card, cudaStream_t stream);
void prefill_experts_up(const ExpertsUp& e, Scratch scratch, cudaStream_t stream);

void decode_experts_down(const ExpertsDown& e, cudaStream_t stream);
void any_experts_down(const ExpertsDown& e, const Card& card, cudaStream_t stream);
void prefill_experts_down(const ExpertsDown& e, Scratch scratch, cudaStream_t stream);

}  // namespace ftmpi::cuda
