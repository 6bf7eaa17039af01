// The command `bench`: how long load, prefill and decode take here, beside what the memory and the exchange
// allow.
#pragma once

#include "../mpi/session.hpp"
#include "options.hpp"

namespace ftmpi {

/// Returns the exit code; throws mpi::Session::Agreed after a failure that was already printed.
Exit bench_command(const Options& options, mpi::Session& session);

}  // namespace ftmpi
