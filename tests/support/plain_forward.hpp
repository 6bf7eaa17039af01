// A plain forward of the model in double, straight from the formulas: no cut, no cache, no chunking, no code
// of src/.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plain_weights.hpp"

namespace ftmpi::testing {

/// Everything one pass gives; matrices have one row a position.
struct PlainTrace {
    struct Layer {
        PlainMatrix mixer, moe;                     ///< block outputs before they are added to the residual
        PlainMatrix hidden;                         ///< residual stream after the layer
        PlainMatrix router_logits, router_weights;  ///< [position][expert], [position][k]
        std::vector<std::vector<int>>
            router_experts;        ///< [position][k], by falling probability, ties to the lower id
        PlainMatrix keys, values;  ///< attention: [position][kv head * head dim], keys after norm and RoPE
        PlainMatrix recurrent;     ///< delta net, after the last position: [value head * key dim][value dim]
        PlainMatrix conv_inputs;   ///< delta net: [position][channel], before the convolution
    };
    PlainMatrix embedding;
    std::vector<Layer> layers;
    PlainMatrix final_norm;
};

class PlainReference {
public:
    /// Reads a model directory of any layout. Throws std::runtime_error.
    explicit PlainReference(const std::filesystem::path& directory);

    PlainTrace trace(const std::vector<int>& ids) const;
    /// Logits of the last `last` positions (0: of all).
    std::vector<std::vector<double>> logits(const std::vector<int>& ids, std::size_t last = 0) const;
    /// Logits of one final-norm row.
    std::vector<double> head(const double* normed) const;

    int layer_count() const { return static_cast<int>(layers_.size()); }
    int vocab() const { return static_cast<int>(head_.rows); }

private:
    struct Expert {
        PlainMatrix gate, up, down;
    };
    struct Layer {
        bool attention = false;
        std::vector<double> norm1, norm2;
        PlainMatrix q, k, v, out;
        std::vector<double> q_norm, k_norm;
        PlainMatrix qkv, z, b, a, conv;
        std::vector<double> a_log, dt_bias, gated_norm;
        PlainMatrix router, shared_gate;
        std::vector<Expert> experts;
        Expert shared;
    };

    void read_config(const std::filesystem::path& directory);
    Layer read_layer(const PlainSafetensors& files, const std::string& prefix, bool attention) const;
    PlainMatrix rms_norm(const PlainMatrix& x, const std::vector<double>& weight) const;
    PlainMatrix attention(const Layer& layer, const PlainMatrix& x, PlainTrace::Layer& out) const;
    PlainMatrix delta_net(const Layer& layer, const PlainMatrix& x, PlainTrace::Layer& out) const;
    PlainMatrix mixture(const Layer& layer, const PlainMatrix& x, PlainTrace::Layer& out) const;

    std::vector<bool> attention_layers_;
    std::int64_t hidden_ = 0;
    int heads_ = 0, kv_heads_ = 0, head_dim_ = 0, rotary_ = 0, key_heads_ = 0, value_heads_ = 0, key_dim_ = 0,
        value_dim_ = 0, taps_ = 0, experts_ = 0, top_k_ = 0;
    double theta_ = 0, eps_ = 0;
    bool tied_ = false;
    bool qwen3_moe_ = false;  ///< no output gate, no shared expert, norm weights as they multiply
    PlainMatrix embedding_, head_;
    std::vector<double> norm_;
    std::vector<Layer> layers_;
};

}  // namespace ftmpi::testing
