// Gated full attention: how a rank's heads of a layer look to the backend.
#pragma once

#include "backend.hpp"
#include "config.hpp"
#include "shard.hpp"
#include "state.hpp"
#include "weights.hpp"

namespace ftmpi {

/// Heads `heads` of the layer with its cache.
Attention attention_of(const ModelConfig& config, Range heads, const LayerWeights& weights,
                       const SequenceState& state, std::size_t layer, KvType kv);

}  // namespace ftmpi
