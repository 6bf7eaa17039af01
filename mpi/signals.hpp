// Asking the program to stop: SIGTERM, the first SIGINT and SIGUSR1 set a flag that the decode loop reads once a step.
//
// What launchers do (seen with Open MPI 4.1.4 and Slurm 22.05):
// - SIGUSR1 to mpirun is passed on to the ranks at once and mpirun waits for them: the way to stop early and keep the exit
// code.
// - SIGTERM or SIGINT to mpirun: the ranks get SIGCONT, 1 s later SIGTERM and 1 s later SIGKILL; mpirun itself returns 1.
//   OMPI_MCA_odls_base_sigkill_timeout=N makes both pauses N seconds. After a second SIGINT mpirun leaves at once and the ranks
//   are gone about 1 s later. Killed with SIGKILL, it leaves ranks that end within 3 s.
// - srun, scancel and Slurm's time limit: the ranks get SIGTERM at once and SIGKILL after KillWait (30 s unless the site says
//   otherwise); srun returns the ranks' code. sbatch --signal=USR1@60 comes 60 s before the limit.
#pragma once

namespace ftmpi::mpi {

/// Installs the handlers. The second SIGINT has its default action, so that a user is never held.
void install_stop_signals();
/// The signal that asked to stop, or 0. Safe to call at any time.
int stop_signal() noexcept;

}  // namespace ftmpi::mpi
