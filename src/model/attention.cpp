// Full attention of this rank's query heads, with or without an output gate.
#include <cmath>

#include "../model.hpp"

namespace ftmpi {

void Model::attention(std::size_t layer, const Rows& rows) {
    const LayerWeights& w = weights_.layers()[layer];
    const Range heads = plan_.layers[layer].mixer[rank_], kv_heads = kv_heads_of(config_, heads);
    const Projection in[] = {w.onto(Role::q, q_), w.onto(Role::k, k_), w.onto(Role::v, v_)};
    residual_.norm_project(w.vector(Role::input_norm), heads.empty() ? std::span<const Projection>{} : in,
                           rows.count());
    if (heads.empty()) return;

    Attention a;
    a.query_heads = static_cast<int>(heads.size());
    a.kv_heads = static_cast<int>(kv_heads.size());
    a.first_query_head = static_cast<int>(heads.begin);
    a.first_kv_head = static_cast<int>(kv_heads.begin);
    a.group = config_.query_heads / config_.kv_heads;
    a.head_dim = config_.head_dim;
    a.rotary_dim = config_.rotary_dim;
    a.eps = config_.eps;
    a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
    a.gated = family_of(config_).output_gate;
    a.q_norm = w.vector(Role::q_norm);
    a.k_norm = w.vector(Role::k_norm);
    a.cos = state_.cos();
    a.sin = state_.sin();
    a.kv = plan_.kv;
    a.k_scale = w.k_scale;
    a.v_scale = w.v_scale;
    a.capacity = state_.capacity();
    a.keys = state_.layer(layer).keys.data();
    a.values = state_.layer(layer).values.data();
    backend_.attention(a, rows, q_.data(), k_.data(), v_.data(),
                       mixed_.data() + mixer_columns_[layer][rank_].begin, w.matrix(Role::out)->cols);
}

}  // namespace ftmpi
