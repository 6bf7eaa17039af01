#include "cost.hpp"

#include <algorithm>
#include <cmath>

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

StepBytes StepReads::at(int batch, double position) const {
    StepBytes read = unit;
    read.experts *= batch == 1 ? routed : 1 - std::pow(1 - routed, batch);
    read.embedding *= batch;
    read.recurrent_state *= batch;
    read.kv_cache *= batch * position;
    return read;
}

namespace shard {
namespace {

/// `rows` rows of each of the matrix's groups, as they are held and without the padding of their tiles.
struct RowBytes {
    std::uint64_t held = 0;
    double read = 0;
};
RowBytes bytes_of_rows(const MatrixSize& m, std::int64_t rows) {
    if (rows <= 0) return {};
    const auto held = stored_bytes(m.format, m.groups, rows, m.cols);
    return {held,
            static_cast<double>(held) * static_cast<double>(rows) / static_cast<double>(padded_rows(rows))};
}

}  // namespace

RankCost cost_of(const ModelSizes& sizes, const ShardPlan& plan, int rank) {
    const auto& config = sizes.config;
    const auto r = static_cast<std::size_t>(rank);
    const Family& family = family_of(config);
    RankCost cost;
    StepBytes& unit = cost.reads.unit;
    if (config.experts) cost.reads.routed = static_cast<double>(config.top_k) / config.experts;
    // Held and read are added up together, so that no tensor is counted in one and forgotten in the other.
    const auto add = [&](auto held, auto read, const RowBytes& bytes) {
        cost.fixed.*held += bytes.held;
        unit.*read += bytes.read;
    };
    const auto floats = [](std::int64_t n) {
        return RowBytes{static_cast<std::uint64_t>(n) * 4, static_cast<double>(n) * 4};
    };
    for (std::size_t l = 0; l < sizes.layers.size(); ++l) {
        const auto& layer = sizes.layers[l];
        const Range mixer = plan.layers[l].mixer[r];
        std::int64_t channels = 0;
        for (const TensorRole& role : family.roles(layer.kind)) {
            if (role.stored == Stored::cache_scale) continue;
            std::int64_t rows = 0;
            for (const Range& range : rows_held(role, config, plan.layers[l], r)) rows += range.size();
            if (role.role == Role::conv) channels = rows;
            add(bytes_of<std::uint64_t>(role, plan), bytes_of<double>(role, plan),
                role.is_matrix() ? bytes_of_rows(layer[role.role], role.parts() * rows)
                                 : floats(rows * role.cols(config)));
        }
        if (layer.kind == LayerKind::delta_net) {
            const auto state = value_head_range(config, mixer).size() * config.key_dim * config.value_dim +
                               (config.conv_taps - 1) * channels;
            const RowBytes bytes = floats(state);
            cost.fixed.recurrent_state += bytes.held * static_cast<std::uint64_t>(plan.slots);
            unit.recurrent_state += 2 * bytes.read;
        } else {
            const auto kv =
                static_cast<std::uint64_t>(2 * kv_heads_of(config, mixer).size() * config.head_dim) *
                size_of(plan.kv);
            cost.kv_per_token += kv * static_cast<std::uint64_t>(plan.slots);
            unit.kv_cache += static_cast<double>(kv);
            // cos and sin, half of them each, where heads are turned by them
            if (!mixer.empty()) cost.rope_per_token = static_cast<std::uint64_t>(config.rotary_dim) * 4;
        }
    }
    add(&RankBytes::replicated, &StepBytes::replicated, floats(config.hidden));
    add(&RankBytes::head, &StepBytes::head, bytes_of_rows(sizes.head, plan.head[r].size()));

    // A row of the embedding is read for each token, from wherever it lies.
    unit.embedding = bytes_of_rows(sizes.embedding, 1).read;
    if (!plan.embedding_on_host)
        cost.fixed.embedding = bytes_of_rows(sizes.embedding, sizes.embedding.rows).held;

    cost.fixed.workspace = 4 * static_cast<std::uint64_t>(workspace_of(config, plan, rank).total());
    cost.read_bytes = cost.reads.token();
    return cost;
}

}  // namespace shard
}  // namespace ftmpi
