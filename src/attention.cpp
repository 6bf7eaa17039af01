#include "attention.hpp"

#include <cmath>

namespace ftmpi {

Attention attention_of(const ModelConfig& config, Range heads, const LayerWeights& weights,
                       const SequenceState& state, std::size_t layer, KvType kv) {
    const Range kv_heads = kv_heads_of(config, heads);
    Attention a;
    a.query_heads = static_cast<int>(heads.size());
    a.kv_heads = static_cast<int>(kv_heads.size());
    a.first_query_head = static_cast<int>(heads.begin);
    a.first_kv_head = static_cast<int>(kv_heads.begin);
    a.group = config.query_heads / config.kv_heads;
    a.head_dim = config.head_dim;
    a.rotary_dim = config.rotary_dim;
    a.eps = config.eps;
    a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
    a.q_norm = weights.vector(Role::q_norm);
    a.k_norm = weights.vector(Role::k_norm);
    a.cos = state.cos();
    a.sin = state.sin();
    a.kv = kv;
    a.k_scale = weights.k_scale;
    a.v_scale = weights.v_scale;
    a.capacity = state.capacity();
    a.keys = state.layer(layer).keys.data();
    a.values = state.layer(layer).values.data();
    return a;
}

}  // namespace ftmpi
