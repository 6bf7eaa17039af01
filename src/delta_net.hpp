// Gated DeltaNet: how a rank's heads of a layer look to the backend.
#pragma once

#include "backend.hpp"
#include "config.hpp"
#include "shard.hpp"
#include "state.hpp"
#include "weights.hpp"

namespace ftmpi {

/// Key-head groups `groups` of the layer with their state.
DeltaNet delta_net_of(const ModelConfig& config, Range groups, const LayerWeights& weights,
                      const SequenceState& state, std::size_t layer);

}  // namespace ftmpi
