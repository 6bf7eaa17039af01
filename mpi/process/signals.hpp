// Asking the program to stop: SIGTERM, the first SIGINT and SIGUSR1 set a flag that the decode loop reads
// once a step.
//
// What launchers do (seen with Open MPI 4.1.4 and Slurm 22.05):
// - SIGUSR1 to mpirun is passed on to the ranks at once and mpirun waits for them: the way to stop early and
// keep the exit code.
// - SIGTERM or SIGINT to mpirun: the ranks get SIGCONT, 1 s later SIGTERM and 1 s later SIGKILL; mpirun
// itself returns 1.
//   OMPI_MCA_odls_base_sigkill_timeout=N makes both pauses N seconds. After a second SIGINT mpirun leaves at
//   once and the ranks are gone about 1 s later. Killed with SIGKILL, it leaves ranks that end within 3 s.
// - srun, scancel and Slurm's time limit: the ranks get SIGTERM at once and SIGKILL after KillWait (30 s
// unless the site says
//   otherwise); srun returns the ranks' code. sbatch --signal=USR1@60 comes 60 s before the limit.
#pragma once

#include <string>
#include <string_view>

namespace ftmpi::mpi {

/// Installs the handlers. The second SIGINT has its default action, so that a user is never held.
void install_stop_signals();
/// The signal that asked to stop, or 0. Safe to call at any time.
int stop_signal() noexcept;
/// "stopped by signal Terminated"; of the signal that came.
std::string stop_text();

/// Bounds work of which nothing would be kept: after a signal that asks to stop it has five seconds, then the
/// process says so and ends with Exit::interrupted, whatever it waits for. In the main thread; one inside
/// another adds nothing.
class StopBound {
public:
    explicit StopBound(std::string_view phase);
    ~StopBound();
    StopBound(const StopBound&) = delete;

private:
    bool inner_;
};

/// How messages from signal handlers name this process: "rank 1 (node7)". Empty until it is known.
void name_for_handlers(int rank, const std::string& name);
/// Writes "ftmpi: error on NAME: WHAT MORE" and ends the process with `code`. May be called in a signal
/// handler. Ranks above 0 wait before they speak: the launcher ends them when rank 0 has the same to say.
[[noreturn]] void leave_in_handler(const char* what, const char* more, int code) noexcept;

/// Ends the process with `code` after `seconds`, with `message`, by SIGALRM; for when no thread can be
/// started. end_never() undoes it.
void end_after(double seconds, const std::string& message, int code);
void end_never();

}  // namespace ftmpi::mpi
