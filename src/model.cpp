#include "model.hpp"

#include <algorithm>

#include "error.hpp"

namespace ftmpi {

Model::Model(Backend& backend, Communicator& communicator, const ModelConfig& config, const ShardPlan& plan,
             const Weights& weights, SequenceState& state)
    : backend_(backend), communicator_(communicator), config_(config), plan_(plan), weights_(weights),
      state_(state), rank_(static_cast<std::size_t>(communicator.rank())), sole_(sole_rank(plan)),
      max_rows_(std::max<std::int64_t>(plan.prefill_rows, plan.slots)),
      residual_(backend, max_rows_, config.hidden, config.eps) {
    for (std::size_t i = 0; i < config.layers.size(); ++i) {
        std::vector<Range> columns;
        for (const Range& units : plan.layers[i].mixer)
            columns.push_back(config.layers[i] == LayerKind::attention
                                  ? units * config.head_dim
                                  : value_head_range(config, units) * config.value_dim);
        mixer_columns_.push_back(std::move(columns));
    }
    const Workspace w = workspace_of(config, plan, communicator.rank());
    const auto floats = [&](std::int64_t n) { return DeviceArray<float>(backend, n, "workspace"); };
    q_ = floats(w.q);
    k_ = floats(w.k);
    v_ = floats(w.v);
    qkv_ = floats(w.qkv);
    z_ = floats(w.z);
    b_ = floats(w.b);
    a_ = floats(w.a);
    mixed_ = floats(w.mixed);
    router_ = floats(w.router);
    act_ = floats(w.act);
    shared_gate_ = floats(w.shared_gate);
    shared_act_ = floats(w.shared_act);
    logits_ = floats(w.logits);
    static_assert(sizeof(Row) == 3 * sizeof(float));
    rows_ = DeviceArray<Row>(backend, w.rows / 3, "workspace");
    expert_ids_ = DeviceArray<std::int32_t>(backend, w.expert_ids, "workspace");
    expert_weights_ = floats(w.expert_weights);
    routes_ = {expert_ids_.data(), expert_weights_.data(), config.top_k};
}

namespace {

std::int64_t rows_in(std::span<const Range> ranges) {
    std::int64_t n = 0;
    for (const Range& range : ranges) n += range.size();
    return n;
}

}  // namespace

const float* Model::prefill(std::span<const Row> rows, std::span<const Range> wanted) {
    return forward(rows, wanted, false, nullptr);
}

const float* Model::decode(std::span<const Row> rows, const std::int32_t* tokens) {
    const Range all{0, static_cast<std::int64_t>(rows.size())};
    return forward(rows, {&all, 1}, true, tokens);
}

const float* Model::forward(std::span<const Row> host_rows, std::span<const Range> wanted, bool decodes,
                            const std::int32_t* tokens) {
    const std::int64_t logits = rows_in(wanted);
    if (host_rows.empty() || static_cast<std::int64_t>(host_rows.size()) > max_rows_ || logits > plan_.slots)
        throw Error(Exit::failure, "a step of " + std::to_string(host_rows.size()) +
                                       " rows was asked for; the workspace holds " +
                                       std::to_string(max_rows_));
    state_.advance(host_rows);
    if (sole_ && *sole_ != communicator_.rank()) {
        if (logits == 0) return nullptr;
        backend_.fence_copies();
        return logits_of_all(logits);
    }
    if (tokens) backend_.resolve_tokens(rows_.data(), host_rows, tokens, config_.vocab);
    else backend_.copy_in(rows_.data(), host_rows.data(), host_rows.size_bytes());
    const Rows rows{host_rows, rows_.data(), tokens != nullptr};
    backend_.embed(weights_.embedding(), rows, residual_.begin());
    fast_step_ = fast_prefill_ && !decodes;
    seen("embed", -1, residual_.x(), rows.count(), config_.hidden);
    if (decodes && can_replay(rows))
        backend_.replay(this, static_cast<std::uint64_t>(rows.count()), [&] { layers(rows, wanted); });
    else layers(rows, wanted);
    return logits == 0 ? nullptr : logits_.data();
}

/// One token a slot and all logits: then all that is done depends on the number of rows alone.
bool Model::can_replay(const Rows& rows) const {
    if (observer_ || !communicator_.capturable()) return false;
    for (std::size_t r = 1; r < rows.host.size(); ++r)
        if (rows.host[r].slot <= rows.host[r - 1].slot) return false;
    return true;
}

void Model::layers(const Rows& rows, std::span<const Range> wanted) {
    for (std::size_t layer = 0; layer < weights_.layers().size(); ++layer) {
        mixer(layer, rows);
        experts(layer, rows);
    }
    head(rows, wanted);
}

void Model::mixer(std::size_t layer, const Rows& rows) {
    const LayerWeights& w = weights_.layers()[layer];
    const LayerCut& cut = plan_.layers[layer];
    const std::int64_t T = rows.count(), H = config_.hidden;

    backend_.set_fast(fast_step_);
    if (w.kind == LayerKind::attention) attention(layer, rows);
    else delta_net(layer, rows);
    if (layer > 0) seen("hidden", static_cast<int>(layer) - 1, residual_.x(), T, H);
    const ShardedColumns heads{mixed_.data(), T, w.matrix(Role::out)->cols, mixer_columns_[layer]};
    gather("mixer", {&heads, 1});

    float* const y = residual_.part();
    const Projection out{w.matrix(Role::out), y + cut.out[rank_].begin, H};
    backend_.project({&out, 1}, mixed_.data(), T);
    backend_.set_fast(false);
    const ShardedColumns hidden{y, T, H, cut.out};
    if (!plan_.out_replicated) gather("output projection", {&hidden, 1});
    seen("mixer", static_cast<int>(layer), y, T, H);
}

void Model::experts(std::size_t layer, const Rows& rows) {
    const LayerWeights& w = weights_.layers()[layer];
    const LayerCut& cut = plan_.layers[layer];
    const std::int64_t T = rows.count(), H = config_.hidden, width = config_.expert_width,
                       shared_width = config_.shared_width;
    const std::size_t parts = w.matrix(Role::shared_gate) ? 2 : 1;  // with a shared expert, or without

    const Projection gates[] = {w.onto(Role::router, router_), w.onto(Role::shared_gate, shared_gate_)};
    residual_.norm_project(w.vector(Role::post_norm), {gates, parts}, T);
    seen("router", static_cast<int>(layer), router_.data(), T, config_.experts);
    backend_.route_up(router_.data(), config_.experts, *w.matrix(Role::gate_up),
                      w.matrix(Role::shared_gate_up), routes_, residual_.normed(), T,
                      act_.data() + cut.expert[rank_].begin, width,
                      shared_act_.data() + cut.shared[rank_].begin, shared_width);
    const ShardedColumns act[] = {{act_.data(), T * config_.top_k, width, cut.expert},
                                  {shared_act_.data(), T, shared_width, cut.shared}};
    gather("expert intermediates", {act, parts});

    float* const y = residual_.part();
    backend_.experts_down(*w.matrix(Role::down), w.matrix(Role::shared_down), routes_, act_.data(),
                          shared_act_.data(), shared_gate_.data(), T, y + cut.down[rank_].begin, H);
    const ShardedColumns hidden{y, T, H, cut.down};
    gather("down projection", {&hidden, 1});
    seen("moe", static_cast<int>(layer), y, T, H);
}

/// Logits of the rows that are wanted; where they are not all, all rows are summed up and some are normed.
void Model::head(const Rows& rows, std::span<const Range> wanted) {
    const std::int64_t T = rows.count(), H = config_.hidden, logits = rows_in(wanted);
    const Projection head{&weights_.head(), logits_.data() + plan_.head[rank_].begin, config_.vocab};
    if (logits) backend_.fence_copies();
    if (logits == T) {
        residual_.norm_project(weights_.final_norm(), {&head, 1}, T);
    } else {
        residual_.add(T);
        if (logits) residual_.norm_project(weights_.final_norm(), {&head, 1}, wanted);
    }
    if (!weights_.layers().empty())
        seen("hidden", static_cast<int>(weights_.layers().size()) - 1, residual_.x(), T, H);
    if (logits == 0) return;
    seen("final_norm", -1, residual_.normed(), logits, H);
    logits_of_all(logits);
}

const float* Model::logits_of_all(std::int64_t rows) {
    const ShardedColumns columns{logits_.data(), rows, config_.vocab, plan_.head};
    if (communicator_.size() > 1) communicator_.all_gather({&columns, 1}, "logits", backend_.stream());
    return logits_.data();
}

void Model::gather(std::string_view name, std::span<const ShardedColumns> parts) {
    if (communicator_.size() > 1 && !sole_) communicator_.all_gather(parts, name, backend_.stream());
}

void Model::seen(std::string_view name, int layer, const float* values, std::int64_t rows,
                 std::int64_t width) {
    if (observer_) observer_(name, layer, values, rows, width);
}

}  // namespace ftmpi
