// "nccl": NCCL moves one contiguous buffer, kernels pack and unpack it. For ranks on several hosts.
#pragma once

#include <string>

#include "device.hpp"

namespace ftmpi::mpi {

/// Joins a communicator whose id travels by MPI, within the session's deadline, and makes first exchanges, so
/// that its memory is taken when this returns. Refused (the attempt's trouble): two ranks on one GPU, unlike
/// NCCL versions, a library older than the header that this was built with. A start that does not end is the
/// end of the job: Agreed, with Exit::timed_out. Graphs that hold its exchanges must be destroyed before it:
/// NCCL would wait for them without end.
Attempt make_nccl_transport(Session& session, Backend& backend, std::string reason);

}  // namespace ftmpi::mpi
