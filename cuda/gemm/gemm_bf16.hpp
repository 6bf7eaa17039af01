// Fast numerics: floating weights times the rows of a step on bf16 tensor cores. A result depends on its
// matrix row's codes and its input row alone, not on the other rows of the matrix or the step: every element
// goes through the same products in the same order of columns.
#pragma once

#include "../launch.hpp"

namespace ftmpi::cuda {

/// Queues the products of matrices that are not 4-bit, all of x's `cols` columns.
void gemm_bf16(std::span<const Projection> to, const float* x, std::int64_t rows, std::int64_t cols,
               const Scratch& scratch, cudaStream_t stream);
std::size_t gemm_bf16_scratch(std::int64_t rows, std::int64_t cols);

}  // namespace ftmpi::cuda
