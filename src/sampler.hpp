// Choosing a token from logits: greedy elsewhere (Backend::argmax), here temperature, top-k and top-p.
#pragma once

#include <cstdint>
#include <span>

namespace ftmpi {

struct Sampling {
    double temperature = 0;  ///< 0 = greedy
    double top_p = 1;        ///< smallest set of candidates whose probability reaches this
    std::int64_t top_k = 0;  ///< 0 = all
    std::uint64_t seed = 0;
    bool greedy() const { return temperature == 0 || top_k == 1; }
};

/// A uniform number in [0, 1) with 53 bits from a counter: the same everywhere for (seed, request, token).
/// Philox4x32-10, counter (token, request), key seed.
double uniform(std::uint64_t seed, std::uint64_t request, std::uint64_t token);

/// The token: candidates (ids below logits.size() whose masked byte is 0) sorted by logit down, id up; top-k,
/// then softmax at the temperature, then top-p on it; the first candidate whose cumulative weight exceeds
/// uniform() times the total.
std::int32_t sample(std::span<const float> logits, std::span<const std::uint8_t> masked,
                    const Sampling& sampling, std::uint64_t request, std::uint64_t token);

}  // namespace ftmpi
