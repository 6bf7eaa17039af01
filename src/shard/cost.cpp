#include "cost.hpp"

#include <algorithm>

namespace ftmpi {

Workspace workspace_of(const ModelConfig& config, const ShardPlan& plan, int rank) {
    const auto rows = std::max<std::int64_t>(plan.prefill_rows, plan.slots);
    const auto most = most_rows_held(config, plan, rank);
    Workspace w;
    w.stream = w.normed = rows * config.hidden;
    const Family& family = family_of(config);
    for (const LayerKind kind : config.layers)
        for (const TensorRole& role : family.roles(kind))
            if (role.role == Role::out) w.mixed = std::max(w.mixed, rows * role.cols(config));
    w.qkv = rows * most[Role::in_qkv];
    w.z = rows * most[Role::in_z];
    w.b = rows * most[Role::in_b];
    w.a = rows * most[Role::in_a];
    w.q = rows * most[Role::q];
    w.k = rows * most[Role::k];
    w.v = rows * most[Role::v];
    w.router = rows * most[Role::router];
    w.shared_gate = rows * most[Role::shared_gate];
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
    const Family& family = family_of(config);
    const double routed = config.experts ? static_cast<double>(config.top_k) / config.experts : 0;
    RankCost cost;
    Sum sum;
    for (std::size_t l = 0; l < sizes.layers.size(); ++l) {
        const auto& layer = sizes.layers[l];
        const Range mixer = plan.layers[l].mixer[r];
        std::int64_t channels = 0;
        for (const TensorRole& role : family.roles(layer.kind)) {
            if (role.stored == Stored::cache_scale) continue;
            std::int64_t rows = 0;
            for (const Range& range : rows_held(role, config, plan.layers[l], r)) rows += range.size();
            if (role.role == Role::conv) channels = rows;
            cost.fixed.*bytes_of(role, plan) += role.is_matrix()
                                                    ? sum.matrix(layer[role.role], role.parts() * rows,
                                                                 role.stored == Stored::experts ? routed : 1)
                                                    : sum.floats(rows * role.cols(config));
        }
        if (layer.kind == LayerKind::delta_net) {
            const auto state = value_head_range(config, mixer).size() * config.key_dim * config.value_dim +
                               (config.conv_taps - 1) * channels;
            cost.fixed.recurrent_state += static_cast<std::uint64_t>(plan.slots * state) * 4;
            sum.read += 2 * 4.0 * static_cast<double>(state);  // read and written for every token
        } else {
            const auto kv = kv_heads_of(config, mixer).size();
            cost.kv_per_token +=
                static_cast<std::uint64_t>(plan.slots * 2 * kv * config.head_dim) * size_of(plan.kv);
            // cos and sin, half of them each, where heads are turned by them
            if (!mixer.empty()) cost.rope_per_token = static_cast<std::uint64_t>(config.rotary_dim) * 4;
        }
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
