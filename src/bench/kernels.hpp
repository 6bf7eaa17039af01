// Which kernel serves each operator of a model: `bench --kernels`.
#pragma once

#include <string>

#include "../engine/engine.hpp"
#include "prompts.hpp"

namespace ftmpi {

/// Runs prefill steps of 1, 2, 4, ... rows up to a whole chunk and decode steps of 2, 4, ... sequences up to
/// the batch, with kernels traced on every rank. A line for each operator and kernel of this rank's part,
/// with its calls and microseconds a call. All ranks call it.
std::string kernels_table(Engine& engine, const PromptSource& prompts);

}  // namespace ftmpi
