#include "prompts.hpp"

#include <algorithm>
#include <cmath>

#include "../error.hpp"

namespace ftmpi {
namespace {

/// SplitMix64's finalizer: the bits of a counter, thoroughly mixed.
std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

}  // namespace

PromptSource::PromptSource(const Tokenizer& tokenizer, std::uint64_t seed) : seed_(seed) {
    // Byte tokens stand first in byte-level vocabularies and are rare in text; they are used only where there
    // is little else.
    constexpr std::int32_t bytes = 256;
    for (std::int32_t id = 0; id < tokenizer.end(); ++id)
        if (tokenizer.has(id) && !tokenizer.is_special(id)) ids_.push_back(id);
    if (ids_.empty())
        throw Error(Exit::bad_input, "tokenizer.json has no ordinary token to make a prompt of");
    if (ids_.size() > 2 * bytes) ids_.erase(ids_.begin(), ids_.begin() + bytes);
}

std::vector<std::int32_t> PromptSource::prompt(std::int64_t index, std::int64_t length) const {
    std::vector<std::int32_t> ids;
    ids.reserve(static_cast<std::size_t>(length));
    const std::uint64_t stream = mixed(seed_ + 0x9E3779B97F4A7C15u * static_cast<std::uint64_t>(index + 1));
    for (std::int64_t i = 0; i < length; ++i) {
        const double uniform =
            static_cast<double>(mixed(stream + static_cast<std::uint64_t>(i)) >> 11) * 0x1p-53;
        // Zipf's law: the token of rank r has a frequency of about 1/r, so the logarithm of the rank is
        // uniform.
        const auto rank =
            static_cast<std::size_t>(std::exp(uniform * std::log(static_cast<double>(ids_.size()))));
        ids.push_back(ids_[std::min(rank, ids_.size()) - 1]);
    }
    return ids;
}

}  // namespace ftmpi
