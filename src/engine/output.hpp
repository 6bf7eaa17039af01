// Where the results go.
#pragma once

#include <filesystem>
#include <string>

#include "../options.hpp"

namespace ftmpi {

/// This moment in UTC by a strftime format.
std::string utc(const char* format);

/// --output, or PREFIX-TIME-PID.h5 in the current folder. Error(usage) for a file inside the checkpoint's
/// folder: nothing is ever written there.
std::filesystem::path output_of(const Options& options, const char* prefix);

}  // namespace ftmpi
