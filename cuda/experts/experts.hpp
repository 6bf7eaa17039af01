// The kernels of the experts; kernels.hpp says which one when.
#pragma once

#include "../kernels.hpp"

namespace ftmpi::cuda {

/// Refuses more than the kernels of many rows count: experts, and experts chosen in one step.
void check_sorted(std::int64_t rows, int top_k, std::int64_t experts);

void decode_experts_up(const ExpertsUp& e, const Card& card, cudaStream_t stream);
void any_experts_up(const ExpertsUp& e, const Card& card, cudaStream_t stream);
void prefill_experts_up(const ExpertsUp& e, Scratch scratch, cudaStream_t stream);

void decode_experts_down(const ExpertsDown& e, cudaStream_t stream);
void any_experts_down(const ExpertsDown& e, const Card& card, cudaStream_t stream);
void prefill_experts_down(const ExpertsDown& e, Scratch scratch, cudaStream_t stream);

}  // namespace ftmpi::cuda
