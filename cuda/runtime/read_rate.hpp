// How fast this card reads its memory, for the roofline of a measurement.
#pragma once

#include <cuda_runtime_api.h>

namespace ftmpi::cuda {

/// Bytes a second of a kernel that only reads: the median of many passes over 2 GiB, or over half of what is
/// free where that is less. 0 when less than 512 MiB are free, too little to be sure that no cache holds it.
/// Waits for the stream.
double read_rate(int multiprocessors, cudaStream_t stream);

}  // namespace ftmpi::cuda
