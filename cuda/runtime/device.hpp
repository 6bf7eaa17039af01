// The GPUs of this process before and beside the backend: what is visible, and facts for the result file.
// Makes no context.
#pragma once

#include <string>

#include "gpu_choice.hpp"

namespace ftmpi::cuda {

/// What this process sees. No GPU and no driver are not errors here: `trouble` says so in CUDA's words.
RankGpus visible_gpus(const std::string& host, int local_rank);

/// Facts of one GPU. Numbers are 0 and texts empty where neither CUDA nor NVML tells them (NVML is opened at
/// run time and may be missing, and virtual machines hide some).
struct GpuFacts {
    std::string uuid, name, pci, serial, driver;
    double gb_per_s = 0;  ///< memory clock times bus width: what the data sheet calls bandwidth
    double sm_mhz = 0;    ///< clock now, and the highest
    double max_sm_mhz = 0;
    double memory_mhz = 0;
    double power_limit_watts = 0;
    int pcie_generation = 0;  ///< of the link now, and its lanes
    int pcie_lanes = 0;
    std::string peers;  ///< one word for each other visible GPU: "GPU-...=direct", "=atomics" (direct with
                        ///< atomics), "=none"
};

/// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". Throws Error(Exit::failure) when there is no such device, as
/// the next does.
std::string gpu_uuid(int device);
GpuFacts gpu_facts(int device);

/// True when the kernel was compiled for cards that let a kernel start before the one before has ended, and
/// the card is one: code that was compiled for older ones does not wait.
bool has_pdl(const void* kernel);

}  // namespace ftmpi::cuda
