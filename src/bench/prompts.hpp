// Prompts to measure with: token ids with the frequencies of natural text, the same in every run.
#pragma once

#include <cstdint>
#include <vector>

#include "../tokenizer.hpp"

namespace ftmpi {

class PromptSource {
public:
    /// Draws from the tokenizer's ordinary tokens; Error(bad_input) when it has none.
    PromptSource(const Tokenizer& tokenizer, std::uint64_t seed);

    /// Prompt number `index`, `length` ids. A longer one of the same number begins with the shorter one's
    /// ids.
    std::vector<std::int32_t> prompt(std::int64_t index, std::int64_t length) const;

private:
    std::vector<std::int32_t> ids_;
    std::uint64_t seed_;
};

}  // namespace ftmpi
