// The process that started this rank: Open MPI's mpirun, or its daemon on another host.
#pragma once

namespace ftmpi::mpi {

/// Sees to it that the launcher ends: a process of its own sends it SIGKILL when it is still there after
/// `seconds`. For jobs that lost a host: mpirun of Open MPI 4 then waits for that host's daemon without a
/// bound, and takes no other signal (seen with 4.1.4, a host cut off or stopped). The daemons on other hosts
/// end with it. Does nothing when this process has another parent.
void end_launcher_after(int seconds) noexcept;

}  // namespace ftmpi::mpi
