#include "delta_net.hpp"

namespace ftmpi {

DeltaNet delta_net_of(const ModelConfig& config, Range groups, const LayerWeights& weights,
                      const SequenceState& state, std::size_t layer) {
    DeltaNet n;
    n.key_heads = static_cast<int>(groups.size());
    n.value_heads = static_cast<int>(value_head_range(config, groups).size());
    n.key_dim = config.key_dim;
    n.value_dim = config.value_dim;
    n.taps = config.conv_taps;
    n.eps = config.eps;
    n.conv = weights.conv.data();
    n.neg_exp_a = weights.neg_exp_a.data();
    n.dt_bias = weights.dt_bias.data();
    n.norm = weights.norm.data();
    n.conv_state = state.layer(layer).conv.data();
    n.state = state.layer(layer).recurrent.data();
    return n;
}

}  // namespace ftmpi
