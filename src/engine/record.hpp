// What the result file says of a run before its first prompt.
#pragma once

#include "../results.hpp"
#include "engine.hpp"

namespace ftmpi {

RunRecord record_of(Engine& engine, const std::string& prompts_digest, std::int64_t requests_asked);

/// What every rank holds, group by group as in /ranks, where the plan's bytes are.
void add_allocated(const Engine& engine, SummaryRecord& summary);

/// Facts of this build: version, commit, compiler, instruction sets or CUDA.
std::string version_line();

}  // namespace ftmpi
