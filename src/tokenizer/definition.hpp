// What tokenizer.json says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "added_tokens.hpp"
#include "merges.hpp"
#include "pattern.hpp"
#include "vocabulary.hpp"

namespace ftmpi {

struct TokenizerDefinition {
    Vocabulary vocabulary;  ///< holds the added tokens too, but find() knows only those of the model
    Merges merges;
    bool nfc = false;
    std::optional<Pattern> pattern;
    AddedTokens raw;         ///< matched in the text as it is given
    AddedTokens normalized;  ///< matched in the normalized text
    std::unordered_map<std::string, std::int32_t> added_ids;
    std::unordered_set<std::int32_t> special_ids;
    std::string sha256;              ///< of the file's bytes
    std::vector<std::string> notes;  ///< keys that are not followed
};

/// Reads a tokenizer.json. Error(bad_input) names the file and the key.
TokenizerDefinition read_definition(const std::filesystem::path& file);

}  // namespace ftmpi
