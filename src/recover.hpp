// `ftmpi recover FILE.h5`: the result of what a run had finished before it was killed.
#pragma once

#include "options.hpp"

namespace ftmpi {

/// Makes each named FILE.h5 from FILE.h5.journal and says on stdout how many requests were recovered and what
/// was left out.
int recover_command(const Options& options);

}  // namespace ftmpi
