// How this process was started, read from the environment that launchers set. Pure functions, so that every
// launcher can be tested.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ftmpi::mpi {

using Environment = std::map<std::string, std::string>;

Environment process_environment();

/// What the innermost launcher says about this process.
struct Launch {
    std::string launcher;   ///< "mpirun of Open MPI", "mpiexec of MPICH or Intel MPI", "srun", ...
    std::string variables;  ///< the variables that say so, "PMI_RANK=1 PMI_SIZE=2"
    int rank = 0;
    int size = 1;
    int ranks_here = 0;  ///< on this host; 0 when the launcher does not say
    bool whole_on_host = false;
};

/// The innermost launcher that tells a number of ranks; none in a plain shell or in the body of a batch
/// script. `library` is what MPI_Get_library_version says: its own launcher's word goes before that of an
/// outer one.
std::optional<Launch> launch_of(const Environment& environment, std::string_view library);

/// True when a launcher left the means by which MPI processes find each other (PMI or PMIx).
bool is_wired(const Environment& environment);

/// Why this launch cannot be what was meant, as one sentence, when MPI counts `size` ranks; empty when it is
/// sound. Finds N processes that a foreign mpirun or a plain srun started and that each became a job of one
/// rank.
std::string launch_problem(const Environment& environment, std::string_view library, int size);
/// What to do about it.
std::string launch_hint(std::string_view library);

/// What MPI_Init should find in the environment: variables to set, and variables to hide until it is done.
struct StartSettings {
    Environment set;
    std::vector<std::string> hide;
};

/// Settings that let Open MPI start fast inside one host, and a single process without ssh and under `srun -n
/// 1`; only those that the user left open. The same on all ranks of a job. `reads_siblings`: see
/// reads_siblings_memory().
StartSettings start_settings(const Environment& environment, std::string_view library, bool reads_siblings);
/// Whether the system call by which MPI copies out of another process is allowed here (containers may forbid
/// it).
bool reads_siblings_memory();

/// "Open MPI v4.1.4" out of the long text of MPI_Get_library_version.
std::string short_library(std::string_view text);

}  // namespace ftmpi::mpi
