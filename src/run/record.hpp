// What the result file says of a run before its first prompt.
#pragma once

#include "../results.hpp"
#include "engine.hpp"

namespace ftmpi {

RunRecord record_of(Engine& engine, const std::string& prompts_digest, const std::string& start_time);

/// Facts of this build: version, commit, compiler, instruction sets or CUDA.
std::string version_line();

}  // namespace ftmpi
