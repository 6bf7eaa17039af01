// The folder of a model, as every command that reads one opens it.
#pragma once

#include <filesystem>

#include "../checkpoint.hpp"
#include "../config.hpp"
#include "../tokenizer.hpp"

namespace ftmpi {

/// Checkpoint::open(). Where that fails, what is wrong with the configuration is said first: weights of a
/// family that is not known need not be downloaded.
Checkpoint open_checkpoint(const std::filesystem::path& directory);

/// Adds the end tokens that tokenizer_config.json and a known chat template name, and a note where others
/// than those of generation_config.json end a text. Error(bad_input) when none is left.
void add_stop_tokens(ModelConfig& config, const Tokenizer& tokenizer, const std::filesystem::path& directory);

}  // namespace ftmpi
