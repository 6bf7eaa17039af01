// Rows on their way from a page-locked buffer into the kernels' layout.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "matrix.hpp"

namespace ftmpi::cuda {

/// Rows of one block in a buffer, in the order of the file, padded with zeroes to the layout's pitches.
struct Run {
    const std::uint8_t* codes = nullptr;   ///< [rows][code_pitch], 16-byte aligned
    const std::uint8_t* scales = nullptr;  ///< 4-bit: [rows][scale_pitch], 4-byte aligned; fp8_block: float
                                           ///< [plane rows][scale_pitch / 4]
    const float* multipliers = nullptr;    ///< [rows]
    std::int64_t first = 0;                ///< row of the matrix, counted with the padding of groups
    int rows = 0;
    int plane_row =
        0;  ///< fp8_block: rows between the start of the first staged plane row's block and the first row
    int block = 0;  ///< index in MatrixSource::blocks
};

/// Queues the writing of `count` runs. *first_fault (device memory) becomes the smallest block index with a
/// forbidden value.
void launch_repack(const Run* runs, int count, const MatrixView& to, int* first_fault, cudaStream_t stream);

}  // namespace ftmpi::cuda
