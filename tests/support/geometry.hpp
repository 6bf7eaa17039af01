// Model sizes built by hand: the published 35B model in mixed NVFP4/FP8, and random small ones.
#pragma once

#include <random>

#include "shard.hpp"

namespace ftmpi::test {

struct Formats {
    Format projections = Format::bf16, experts = Format::bf16, head = Format::bf16;
};

/// Matrices of a model with this configuration, all layers alike.
inline ModelSizes sizes_with(const ModelConfig& config, Formats formats) {
    ModelSizes sizes;
    sizes.config = config;
    if (config.model_type.empty()) sizes.config.model_type = "qwen3_5_moe";
    for (const auto kind : config.layers) {
        LayerSizes layer;
        layer.kind = kind;
        for (const TensorRole& role : family_of(sizes.config).roles(kind)) {
            if (!role.is_matrix()) continue;
            const bool small = role.cut == Cut::whole || role.role == Role::in_a || role.role == Role::in_b;
            const bool mixer = role.group == Group::attention || role.group == Group::delta_net;
            layer[role.role] = size_of(role, sizes.config,
                                       small   ? Format::bf16
                                       : mixer ? formats.projections
                                               : formats.experts);
        }
        sizes.layers.push_back(layer);
    }
    sizes.embedding = {Format::bf16, 1, config.vocab, config.hidden};
    sizes.head = {formats.head, 1, config.vocab, config.hidden};
    return sizes;
}

inline std::vector<LayerKind> layer_kinds(int count, int attention_every) {
    std::vector<LayerKind> kinds;
    for (int l = 1; l <= count; ++l)
        kinds.push_back(l % attention_every ? LayerKind::delta_net : LayerKind::attention);
    return kinds;
}

/// 35B with 3B active: 40 layers, every fourth one attention; experts and head NVFP4, projections FP8, the
/// rest BF16.
inline ModelSizes sizes_of_35b() {
    ModelConfig c;
    c.hidden = 2048;
    c.vocab = 248320;
    c.layers = layer_kinds(40, 4);
    c.query_heads = 16;
    c.kv_heads = 2;
    c.head_dim = 256;
    c.rotary_dim = 64;
    c.key_heads = 16;
    c.value_heads = 32;
    c.key_dim = c.value_dim = 128;
    c.conv_taps = 4;
    c.experts = 256;
    c.top_k = 8;
    c.expert_width = c.shared_width = 512;
    c.max_positions = 262144;
    return sizes_with(c, {Format::fp8_row, Format::nvfp4, Format::nvfp4});
}

/// Qwen3-30B-A3B: attention in all 48 layers, no shared expert; all but router and head in `format`.
inline ModelSizes sizes_of_30b(Format format) {
    ModelConfig c;
    c.model_type = "qwen3_moe";
    c.hidden = 2048;
    c.vocab = 151936;
    c.layers.assign(48, LayerKind::attention);
    c.query_heads = 32;
    c.kv_heads = 4;
    c.head_dim = c.rotary_dim = 128;
    c.experts = 128;
    c.top_k = 8;
    c.expert_width = 768;
    c.max_positions = 40960;
    return sizes_with(c, {format, format, Format::bf16});
}

/// Any shape the plan must cope with, odd numbers of rows and heads among them.
inline ModelSizes random_sizes(std::mt19937& random) {
    const auto pick = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
    };
    ModelConfig c;
    c.hidden = pick(0, 1) ? 16 * pick(1, 20) : 2 * pick(4, 100);
    c.vocab = pick(1, 3000);
    c.layers = layer_kinds(pick(1, 12), pick(1, 4));
    c.kv_heads = pick(1, 4);
    c.query_heads = c.kv_heads * pick(1, 5);
    c.head_dim = 8 * pick(1, 8);
    c.rotary_dim = 2 * pick(1, 4);
    c.key_heads = pick(1, 9);
    c.value_heads = c.key_heads * pick(1, 4);
    c.key_dim = pick(1, 16);
    c.value_dim = pick(1, 16);
    c.conv_taps = pick(2, 4);
    c.experts = pick(1, 16);
    c.top_k = pick(1, c.experts);
    c.expert_width = pick(0, 1) ? 16 * pick(1, 40) : 2 * pick(1, 300);
    c.shared_width = 2 * pick(1, 300);
    c.max_positions = 1024;
    const Format formats[] = {Format::bf16, Format::fp8_row, Format::fp8_block, Format::nvfp4, Format::mxfp4};
    return sizes_with(c, {formats[pick(0, 2)], formats[pick(0, 4)], formats[pick(0, 4)]});
}

inline PlanRequest request_for(std::vector<RankMemory> ranks, Policy policy) {
    PlanRequest request;
    request.ranks = std::move(ranks);
    request.policy = policy;
    return request;
}

inline PlanRequest request_for_shares(std::vector<double> shares) {
    PlanRequest request;
    for (std::size_t r = 0; r < shares.size(); ++r) request.ranks.push_back({1ull << 44, 0, ""});
    request.policy = Policy::shares;
    request.shares = std::move(shares);
    request.context = 16;
    return request;
}

inline RankMemory card(double gib, double gb_per_s = 0) {
    return {static_cast<std::uint64_t>(gib * (1ull << 30)), gb_per_s, ""};
}

}  // namespace ftmpi::test
