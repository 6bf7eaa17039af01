// The experts of many rows, apart from those of few.
#pragma once

#include "launch.hpp"

namespace ftmpi::cuda {

/// Both have rows; checked by the caller, as are the numbers of columns and output rows.
void experts_up_many(const Matrix& routed, const Matrix& shared, const Routes& routes, const float* x, std::int64_t rows, float* act,
                     std::int64_t stride, float* shared_act, std::int64_t shared_stride, Scratch scratch, cudaStream_t stream);
void experts_down_many(const Matrix& routed, const Matrix& shared, const Routes& routes, const float* act, const float* shared_act,
                       const float* shared_gate, std::int64_t rows, float* out, std::int64_t stride, Scratch scratch,
                       cudaStream_t stream);

}  // namespace ftmpi::cuda
