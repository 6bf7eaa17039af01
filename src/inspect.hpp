// `ftmpi inspect`: what a checkpoint holds, and whether parts of it look damaged.
#pragma once

#include "options.hpp"

namespace ftmpi {

/// Lists the checkpoint named by --model (or the one positional argument) on stdout, as JSON with --json:
/// configuration, files, tensors by type and by part, weight formats by role, and text tensors with all-zero
/// rows or scales that are not finite. Returns the exit code: bad_input when config.json is refused (the
/// tensors are listed all the same). Throws Error when the checkpoint cannot be opened.
int inspect_command(const Options& options);

}  // namespace ftmpi
