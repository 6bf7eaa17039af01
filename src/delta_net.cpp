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
    n.conv = weights.vector(Role::conv);
    n.neg_exp_a = weights.vector(Role::neg_exp_a);
    n.dt_bias = weights.vector(Role::dt_bias);
    n.norm = weights.vector(Role::norm);
    n.conv_state = state.layer(layer).conv.data();
    n.state = state.layer(layer).recurrent.data();
    return n;
}

}  // namespace ftmpi
