// `ftmpi verify A.h5 B.h5`: whether two runs gave the same bits.
#pragma once

#include "options.hpp"

namespace ftmpi {

/// Prints one line to stdout: equal, or the first difference. Returns Exit::ok or Exit::different; throws
/// Error for files that cannot be compared, two files without a request included.
int verify_command(const Options& options);

}  // namespace ftmpi
