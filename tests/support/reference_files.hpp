// The stored outputs of an independent implementation (data/references) for tests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plain_safetensors.hpp"

namespace ftmpi::testing {

struct ReferencePrompt {
    std::string name, text, greedy_text;
    std::vector<int> prompt_ids, greedy_ids;
    std::vector<double> margin;  ///< top-1 minus top-2 logit, one a greedy step
    int first_stop = -1;         ///< index of the first stop id in greedy_ids, -1 when there is none
};

/// reference-VARIANT.safetensors and .json of one checkpoint. Row i of NAME.top_ids, NAME.top_logits (64
/// each, largest first) and NAME.logits gives greedy token i; row 0 belongs to the last prompt position.
/// trace.* has one row a prompt position.
class ReferenceFiles {
public:
    ReferenceFiles(const std::filesystem::path& directory, const std::string& variant);

    const std::vector<ReferencePrompt>& prompts() const { return prompts_; }
    const ReferencePrompt& prompt(const std::string& name) const;
    bool has(const std::string& tensor) const { return tensors_.find(tensor) != nullptr; }
    std::vector<int> ids(const std::string& tensor) const;
    std::vector<float> floats(const std::string& tensor) const;
    const std::vector<std::int64_t>& shape(const std::string& tensor) const {
        return tensors_.at(tensor).shape;
    }

private:
    PlainSafetensors tensors_;
    std::vector<ReferencePrompt> prompts_;
};

}  // namespace ftmpi::testing
