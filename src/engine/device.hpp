// Where a rank runs: the backend and, on GPUs, which one.
#pragma once

#include <memory>

#include "../../mpi/session.hpp"
#include "../backend.hpp"
#include "../cpu_backend/host_share.hpp"
#include "../options.hpp"

namespace ftmpi {

struct RankDevice {
    std::unique_ptr<Backend> backend;
    int threads = 0;      ///< that do the arithmetic on the CPU; 0 on GPUs
    double gb_per_s = 0;  ///< what the device says of itself; 0 = unknown
};

/// What this rank may have of its host's processors or memory (bytes). All ranks call.
double share_of_host(Bound::Of of, mpi::Session& session);

/// The backend asked for; `auto` takes CUDA when this build has it and any rank sees a GPU, else the CPU. All
/// ranks decide alike. Phase "device"; Error(usage) when what was asked for is not there, or a rank has no
/// GPU where others do.
RankDevice open_device(const Options& options, mpi::Session& session);

}  // namespace ftmpi
