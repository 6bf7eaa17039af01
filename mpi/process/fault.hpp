// Test only: makes one rank fail on purpose, to show that every failure ends the job. Inert unless
// FTMPI_FAULT is set.
#pragma once

#include <string>
#include <string_view>

namespace ftmpi::mpi {

/// FTMPI_FAULT="RANK:PHASE:ACTION" or "RANK:PHASE#N:ACTION" (the N-th time this phase is reached, from 1).
/// Several are joined by commas. Actions: throw (an Error), exit (code 3, no clean-up), abort, kill
/// (SIGKILL), stop (SIGSTOP), hang, term and int (SIGTERM, SIGINT to itself), int2 (SIGINT twice), mark
/// (nothing). The phase PHASE.done is reached when the work of an agreed phase is done. Before it acts a
/// fault adds the line "reached PHASE RANK PID" to the file that FTMPI_FAULT_REACHED names, if any.
struct PlantedFault {
    int rank = 0;
    std::string phase;
    long time = 1;
    std::string action;
};

/// Throws Error(Exit::usage) when `text` is not of that form.
PlantedFault parse_fault(std::string_view text);

/// Does what FTMPI_FAULT asks for if this is the rank, phase and time it names.
void fault_point(int rank, std::string_view phase);

}  // namespace ftmpi::mpi
