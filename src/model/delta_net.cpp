// Gated DeltaNet (Yang, Kautz, Hatamizadeh: "Gated Delta Networks: Improving Mamba2 with Delta Rule",
// arXiv:2412.06464) of this rank's heads.
#include "../model.hpp"

namespace ftmpi {

void Model::delta_net(std::size_t layer, const Rows& rows) {
    const LayerWeights& w = weights_.layers()[layer];
    const Range key_heads = plan_.layers[layer].mixer[rank_];
    const Projection in[] = {w.onto(Role::in_qkv, qkv_), w.onto(Role::in_z, z_), w.onto(Role::in_b, b_),
                             w.onto(Role::in_a, a_)};
    residual_.norm_project(w.vector(Role::input_norm), key_heads.empty() ? std::span<const Projection>{} : in,
                           rows.count());
    if (key_heads.empty()) return;

    DeltaNet net;
    net.key_heads = static_cast<int>(key_heads.size());
    net.value_heads = static_cast<int>(value_head_range(config_, key_heads).size());
    net.key_dim = config_.key_dim;
    net.value_dim = config_.value_dim;
    net.taps = config_.conv_taps;
    net.eps = config_.eps;
    net.conv = w.vector(Role::conv);
    net.neg_exp_a = w.vector(Role::neg_exp_a);
    net.dt_bias = w.vector(Role::dt_bias);
    net.norm = w.vector(Role::norm);
    net.conv_state = state_.layer(layer).conv.data();
    net.state = state_.layer(layer).recurrent.data();
    backend_.delta_net(net, rows, qkv_.data(), z_.data(), b_.data(), a_.data(),
                       mixed_.data() + mixer_columns_[layer][rank_].begin, w.matrix(Role::out)->cols);
}

}  // namespace ftmpi
