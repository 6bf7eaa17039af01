// `ftmpi plan`: the plan for hardware that need not be here.
#pragma once

#include "options.hpp"
#include "shard.hpp"

namespace ftmpi {

/// Prints the table, or JSON with --json, on stdout. Returns the exit code; a plan that does not fit is
/// thrown by make_plan.
int plan_command(const Options& options, const ModelSizes& sizes);

}  // namespace ftmpi
