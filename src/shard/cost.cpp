#include "cost.hpp"

#include <algorithm>

namespace ftmpi {

Workspace workspace_of(const ModelConfig& config, const ShardPlan& plan, int rank) {
    const auto rows = std::max<std::int64_t>(plan.prefill_rows, plan.slots);
    const auto r = static_cast<std::size_t>(rank);
    Workspace w;
    std::int64_t mixer = 0, key_groups = 0, query = 0, kv = 0;
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
        const Range own = plan.layers[l].mixer[r];
        if (config.layers[l] == LayerKind::delta_net) {
            mixer = std::max(mixer, config.value_channels());
            key_groups = std::max(key_groups, own.size());
        } else {
            mixer = std::max<std::int64_t>(mixer, std::int64_t{config.query_heads} * config.head_dim);
            query = std::max(query, own.size());
            kv = std::max(kv, kv_heads_of(config, own).size());
        }
    }
    const std::int64_t value_heads = key_groups ? key_groups * config.groups() : 0;
    w.stream = w.normed = rows * config.hidden;
    w.mixer = rows * mixer;
    w.qkv = rows * (2 * key_groups * config.key_dim + value_heads * config.value_dim);
    w.z = rows * value_heads * config.value_dim;
    w.b = w.a = rows * value_heads;
    w.qg = rows * query * 2 * config.head_dim;
    w.k = w.v = rows * kv * config.head_dim;
    w.router = rows * config.experts;
    w.shared_gate = rows;
    w.act = rows * config.top_k * config.expert_width;
    w.shared_act = rows * config.shared_width;
    w.logits = plan.slots * config.vocab;
    w.rows = rows * 3;
    w.expert_ids = w.expert_weights = rows * config.top_k;
    w.token_mask = (config.vocab + 3) / 4;
    w.chosen = 4 * plan.slots;
    return w;
}

namespace shard {
namespace {

/// Bytes held and bytes read for one token, added up together so that no matrix is counted in one and
/// forgotten in the other.
struct Sum {
    double read = 0;

    /// `rows` of each of the matrix's groups; `touched` is the part of them that one token reads.
    std::uint64_t matrix(const MatrixSize& m, std::int64_t rows, double touched = 1) {
        if (rows <= 0) return 0;
        const auto padded = stored_bytes(m.format, m.groups, rows, m.cols);
        read += touched * static_cast<double>(padded) * static_cast<double>(rows) /
                static_cast<double>(padded_rows(rows));
        return padded;
    }
    std::uint64_t floats(std::int64_t count) {
        read += 4.0 * static_cast<double>(count);
        return 4 * static_cast<std::uint64_t>(count);
    }
};

}  // namespace

RankCost cost_of(const ModelSizes& sizes, const ShardPlan& plan, int rank) {
    const auto& config = sizes.config;
    const auto r = static_cast<std::size_t>(rank);
    RankCost cost;
    Sum sum;
    for (std::size_t l = 0; l < sizes.layers.size(); ++l) {
        const auto& layer = sizes.layers[l];
        const auto& cut = plan.layers[l];
        const Range mixer = cut.mixer[r];
        std::uint64_t group = 0;
        if (layer.kind == LayerKind::delta_net) {
            const auto value_heads = value_head_range(config, mixer).size();
            std::int64_t channels = 0;
            for (const auto range : qkv_rows(config, mixer)) channels += range.size();
            group += sum.matrix(layer.in_qkv, channels);
            group += sum.matrix(layer.in_z, value_heads * config.value_dim);
            group += sum.matrix(layer.in_b, value_heads);
            group += sum.matrix(layer.in_a, value_heads);
            // convolution, -exp(A_log), dt_bias; the norm of a head, which all heads share
            group += sum.floats(channels * config.conv_taps + 2 * value_heads +
                                (mixer.empty() ? 0 : config.value_dim));
            const auto state =
                value_heads * config.key_dim * config.value_dim + (config.conv_taps - 1) * channels;
            cost.fixed.recurrent_state += static_cast<std::uint64_t>(plan.slots * state) * 4;
            sum.read += 2 * 4.0 * static_cast<double>(state);  // read and written for every token
        } else {
            const auto kv = kv_heads_of(config, mixer).size();
            group += sum.matrix(layer.q, mixer.size() * 2 * config.head_dim);
            group += sum.matrix(layer.k, kv * config.head_dim);
            group += sum.matrix(layer.v, kv * config.head_dim);
            group += sum.floats(mixer.empty() ? 0 : 2 * config.head_dim);
            cost.kv_per_token +=
                static_cast<std::uint64_t>(plan.slots * 2 * kv * config.head_dim) * size_of(plan.kv);
            // cos and sin, half of them each, where heads are turned by them
            if (!mixer.empty()) cost.rope_per_token = static_cast<std::uint64_t>(config.rotary_dim) * 4;
        }
        const auto out = sum.matrix(layer.out, cut.out[r].size());
        (plan.out_replicated ? cost.fixed.replicated : group) += out;
        (layer.kind == LayerKind::delta_net ? cost.fixed.delta_net : cost.fixed.attention) += group;

        const double routed = config.experts ? static_cast<double>(config.top_k) / config.experts : 0;
        cost.fixed.experts += sum.matrix(layer.gate_up, 2 * cut.expert[r].size(), routed);
        cost.fixed.experts += sum.matrix(layer.down, cut.down[r].size(), routed);
        cost.fixed.shared += sum.matrix(layer.shared_gate_up, 2 * cut.shared[r].size());
        cost.fixed.shared += sum.matrix(layer.shared_down, cut.down[r].size());
        cost.fixed.replicated += sum.matrix(layer.router, layer.router.rows);
        cost.fixed.replicated += sum.matrix(layer.shared_gate, layer.shared_gate.rows);
        cost.fixed.replicated += sum.floats(2 * config.hidden);
    }
    cost.fixed.replicated += sum.floats(config.hidden);
    cost.fixed.head += sum.matrix(sizes.head, plan.head[r].size());

    // One row of the embedding is read for each token, from wherever it lies.
    const double one_row = sizes.embedding.rows > 0 ? 1.0 / static_cast<double>(sizes.embedding.rows) : 0;
    const auto embedding = sum.matrix(sizes.embedding, sizes.embedding.rows, one_row);
    if (!plan.embedding_on_host) cost.fixed.embedding = embedding;

    cost.fixed.workspace = 4 * static_cast<std::uint64_t>(workspace_of(config, plan, rank).total());
    cost.read_bytes = sum.read;
    return cost;
}

}  // namespace shard
}  // namespace ftmpi
