// "mpi" for GPU memory: this rank's columns are packed by a kernel, travel by MPI, and are unpacked by a
// kernel. The buffers lie in GPU memory when the library takes such pointers, else in page-locked host memory
// that the kernels read and write directly. The host takes part in every exchange, so none can be captured in
// a graph.
#pragma once

#include <string>

#include "device.hpp"

namespace ftmpi::mpi {

/// `cuda_aware`: hand GPU pointers to MPI. Makes first exchanges; any failure is the attempt's trouble.
Attempt make_device_mpi(Session& session, Backend& backend, bool cuda_aware, std::string reason);

}  // namespace ftmpi::mpi
