// The experts of many rows, and of few rows at the shapes of real models, apart from those of few rows of any
// shape.
#pragma once

#include "../launch.hpp"

namespace ftmpi::cuda {

/// Rows of gate and up, or of down, that a warp works on together; at least one gate row and its up row.
constexpr int expert_rows(Format f) { return f == Format::bf16 ? 2 : 4 / pieces_of(f); }

/// Without a shared expert, a matrix without rows.
inline MatrixView view_of(const Matrix* m) { return m ? cuda_matrix(*m).view() : MatrixView{}; }

/// Refuses more than the kernels of many rows count: experts, and experts chosen in one step.
void check_sorted(std::int64_t rows, int top_k, std::int64_t experts);
/// Both have rows; checked by the caller, as are the numbers of columns and output rows.
void experts_up_many(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* x,
                     std::int64_t rows, float* act, std::int64_t stride, float* shared_act,
                     std::int64_t shared_stride, Scratch scratch, cudaStream_t stream);
void experts_down_many(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* act,
                       const float* shared_act, const float* shared_gate, std::int64_t rows, float* out,
                       std::int64_t stride, Scratch scratch, cudaStream_t stream);

/// route_up() (with `logits` of `experts` experts) or experts_up() (null: routes.experts are chosen) of few
/// rows of whole sets of chunks. False: there is none for these shapes and formats, and nothing was launched.
bool experts_up_whole(const MatrixView& routed, const MatrixView& shared, const Routes& routes,
                      const float* logits, int experts, const float* x, std::int64_t rows, float* act,
                      std::int64_t stride, float* shared_act, std::int64_t shared_stride, const Card& card,
                      cudaStream_t stream);
/// experts_down() of few rows of 16 chunks; false as above.
bool experts_down_segments(const MatrixView& routed, const MatrixView& shared, const Routes& routes,
                           const float* act, const float* shared_act, const float* shared_gate,
                           std::int64_t rows, float* out, std::int64_t stride, const Card& card,
                           cudaStream_t stream);

}  // namespace ftmpi::cuda
