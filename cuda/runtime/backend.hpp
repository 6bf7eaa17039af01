// The backend that runs on one NVIDIA GPU, with the bits of the CPU backend. No CUDA header is needed to use
// it.
#pragma once

#include <memory>

#include "../../src/backend.hpp"

namespace ftmpi {

struct CudaOptions {
    int device = 0;  ///< ordinal among the GPUs this process sees
};

/// Makes the process' context on the device, with every kernel loaded, so that DeviceInfo::free_bytes of
/// info() is what is left for the model. Error(Exit::failure) when there is no such device, no driver, or
/// this program holds no code for its architecture.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

}  // namespace ftmpi
