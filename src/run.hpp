// The command `run`: prompts in, text and a result file out.
#pragma once

#include "../mpi/session.hpp"
#include "options.hpp"

namespace ftmpi {

/// Returns the exit code; throws mpi::Session::Agreed after a failure that was already printed.
Exit run_command(const Options& options, mpi::Session& session);

}  // namespace ftmpi
