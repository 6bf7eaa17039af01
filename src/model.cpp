#include "model.hpp"

#include <algorithm>

#include "attention.hpp"
#include "delta_net.hpp"
#include "error.hpp"

namespace ftmpi {

Model::Model(Backend& backend, Communicator& communicator, const ModelConfig& config, const ShardPlan& plan,
             const Weights& weights, SequenceState& state)
    : backend_(backend), communicator_(communicator), config_(config), plan_(plan), weights_(weights),
      state_(state), rank_(static_cast<std::size_t>(communicator.rank())), sole_(sole_rank(plan)),
      max_rows_(std::max<std::int64_t>(plan.prefill_rows, plan.slots)) {
    for (std::size_t i = 0; i < config.layers.size(); ++i) {
        std::vector<Range> columns;
        for (const Range& units : plan.layers[i].mixer)
            columns.push_back(config.layers[i] == LayerKind::attention
                                  ? units * config.head_dim
                                  : value_head_range(config, units) * config.value_dim);
        mixer_columns_.push_back(std::move(columns));
    }
    const Workspace w = workspace_of(config, plan, communicator.rank());
    auto floats = [&](std::int64_t n) { return DeviceArray<float>(backend, n, "workspace"); };
    for (auto& stream : streams_) stream = floats(w.stream);
    normed_ = floats(w.normed);
    mixed_ = floats(w.mixer);
    qkv_ = floats(w.qkv);
    z_ = floats(w.z);
    b_ = floats(w.b);
    a_ = floats(w.a);
    qg_ = floats(w.qg);
    k_ = floats(w.k);
    v_ = floats(w.v);
    router_ = floats(w.router);
    shared_gate_ = floats(w.shared_gate);
    act_ = floats(w.act);
    shared_act_ = floats(w.shared_act);
    logits_ = floats(w.logits);
    static_assert(sizeof(Row) == 3 * sizeof(float));
    rows_ = DeviceArray<Row>(backend, w.rows / 3, "workspace");
    expert_ids_ = DeviceArray<std::int32_t>(backend, w.expert_ids, "workspace");
    expert_weights_ = floats(w.expert_weights);
    routes_ = {expert_ids_.data(), expert_weights_.data(), config.top_k};
}

const float* Model::forward(std::span<const Row> host_rows, Range wanted, const std::int32_t* tokens) {
    if (host_rows.empty() || static_cast<std::int64_t>(host_rows.size()) > max_rows_ ||
        wanted.size() > plan_.slots)
        throw Error(Exit::failure, "a step of " + std::to_string(host_rows.size()) +
                                       " rows was asked for; the workspace holds " +
                                       std::to_string(max_rows_));
    state_.advance(host_rows);
    if (sole_ && *sole_ != communicator_.rank()) {
        if (wanted.empty()) return nullptr;
        backend_.hold_for_copies();
        return logits_of_all(wanted.size());
    }
    if (tokens) backend_.place_rows(rows_.data(), host_rows, tokens, config_.vocab);
    else backend_.copy_in(rows_.data(), host_rows.data(), host_rows.size_bytes());
    const Rows rows{host_rows, rows_.data(), tokens != nullptr};
    x_ = streams_[0].data(), part_ = streams_[1].data(), sum_ = streams_[2].data();
    backend_.embed(weights_.embedding(), rows, x_);
    fast_step_ = fast_prefill_ && wanted.size() < rows.count();
    seen("embed", -1, x_, rows.count(), config_.hidden);
    if (is_decode(rows, wanted))
        backend_.replay(this, static_cast<std::uint64_t>(rows.count()), [&] { layers(rows, wanted); });
    else layers(rows, wanted);
    return wanted.empty() ? nullptr : logits_.data();
}

/// One token a slot and all logits: then all that is done depends on the number of rows alone.
bool Model::is_decode(const Rows& rows, Range wanted) const {
    if (observer_ || !communicator_.capturable() || wanted.begin != 0 || wanted.size() != rows.count())
        return false;
    for (std::size_t r = 1; r < rows.host.size(); ++r)
        if (rows.host[r].slot <= rows.host[r - 1].slot) return false;
    return true;
}

void Model::layers(const Rows& rows, Range wanted) {
    const std::int64_t n = rows.count(), hidden = config_.hidden;
    const std::size_t count = weights_.layers().size();
    // Each part of a layer begins with a norm, of the stream and what the part before it adds.
    Norm norm{.from = x_,
              .weight = count ? weights_.layers()[0].vector(Role::input_norm) : weights_.final_norm(),
              .eps = config_.eps,
              .width = hidden,
              .out = normed_.data()};
    const auto normed_next = [&](const float* weight) {
        norm = {x_, part_, sum_, weight, config_.eps, hidden, normed_.data()};
    };
    for (std::size_t layer = 0; layer < count; ++layer) {
        const LayerWeights& w = weights_.layers()[layer];
        mixer(layer, rows, norm);
        normed_next(w.vector(Role::post_norm));
        experts(layer, rows, norm);
        normed_next(layer + 1 < count ? weights_.layers()[layer + 1].vector(Role::input_norm)
                                      : weights_.final_norm());
    }
    const int last = static_cast<int>(count) - 1;
    if (wanted.size() != n) {  // all rows are summed up, some are normed
        if (norm.plus) backend_.add(x_, part_, sum_, n * hidden);
        after(norm);
        if (count) seen("hidden", last, x_, n, hidden);
        if (wanted.empty()) return;
        norm = {.from = x_ + wanted.begin * hidden,
                .weight = weights_.final_norm(),
                .eps = config_.eps,
                .width = hidden,
                .out = normed_.data()};
    }
    backend_.hold_for_copies();
    const Projection head{&weights_.head(), logits_.data() + plan_.head[rank_].begin, config_.vocab};
    backend_.norm_project(norm, {&head, 1}, wanted.size());
    if (wanted.size() == n) {
        after(norm);
        if (count) seen("hidden", last, x_, n, hidden);
    }
    seen("final_norm", -1, normed_.data(), wanted.size(), hidden);
    logits_of_all(wanted.size());
}

/// The sum is the stream now; the memory of the other two takes the next part and the next sum.
void Model::after(const Norm& norm) {
    if (!norm.plus) return;
    float* const free = x_;
    x_ = sum_, sum_ = part_, part_ = free;
}

const float* Model::logits_of_all(std::int64_t rows) {
    const Columns columns{logits_.data(), rows, config_.vocab, plan_.head};
    if (communicator_.size() > 1) communicator_.all_gather({&columns, 1}, "logits", backend_.stream());
    return logits_.data();
}

void Model::mixer(std::size_t layer, const Rows& rows, const Norm& norm) {
    const LayerWeights& w = weights_.layers()[layer];
    const LayerCut& cut = plan_.layers[layer];
    const Range units = cut.mixer[rank_], own = mixer_columns_[layer][rank_];
    const bool attends = w.kind == LayerKind::attention;
    backend_.set_fast(fast_step_);
    const std::int64_t n = rows.count(), width = attends
                                                     ? std::int64_t{config_.query_heads} * config_.head_dim
                                                     : config_.value_channels();

    std::vector<Projection> in;
    if (!units.empty() && attends)
        in = {{w.matrix(Role::q), qg_.data(), w.matrix(Role::q)->rows},
              {w.matrix(Role::k), k_.data(), w.matrix(Role::k)->rows},
              {w.matrix(Role::v), v_.data(), w.matrix(Role::v)->rows}};
    else if (!units.empty())
        in = {{w.matrix(Role::in_qkv), qkv_.data(), w.matrix(Role::in_qkv)->rows},
              {w.matrix(Role::in_z), z_.data(), w.matrix(Role::in_z)->rows},
              {w.matrix(Role::in_b), b_.data(), w.matrix(Role::in_b)->rows},
              {w.matrix(Role::in_a), a_.data(), w.matrix(Role::in_a)->rows}};
    backend_.norm_project(norm, in, n);
    after(norm);
    if (layer > 0) seen("hidden", static_cast<int>(layer) - 1, x_, n, config_.hidden);
    if (!units.empty() && attends) {
        backend_.attention(attention_of(config_, units, w, state_, layer, plan_.kv), rows, qg_.data(),
                           k_.data(), v_.data(), mixed_.data() + own.begin, width);
    } else if (!units.empty()) {
        backend_.delta_net(delta_net_of(config_, units, w, state_, layer), rows, qkv_.data(), z_.data(),
                           b_.data(), a_.data(), mixed_.data() + own.begin, width);
    }
    const Columns heads{mixed_.data(), n, width, mixer_columns_[layer]};
    gather("mixer", {&heads, 1});

    const Projection out{w.matrix(Role::out), part_ + cut.out[rank_].begin, config_.hidden};
    backend_.project({&out, 1}, mixed_.data(), n);
    backend_.set_fast(false);
    const Columns hidden{part_, n, config_.hidden, cut.out};
    if (!plan_.out_replicated) gather("output projection", {&hidden, 1});
    seen("mixer", static_cast<int>(layer), part_, n, config_.hidden);
}

void Model::experts(std::size_t layer, const Rows& rows, const Norm& norm) {
    const LayerWeights& w = weights_.layers()[layer];
    const LayerCut& cut = plan_.layers[layer];
    const std::int64_t n = rows.count(), width = config_.expert_width, shared_width = config_.shared_width;

    const Projection gates[] = {{w.matrix(Role::router), router_.data(), config_.experts},
                                {w.matrix(Role::shared_gate), shared_gate_.data(), 1}};
    backend_.norm_project(norm, gates, n);
    after(norm);
    seen("router", static_cast<int>(layer), router_.data(), n, config_.experts);
    backend_.route_up(router_.data(), config_.experts, *w.matrix(Role::gate_up),
                      w.matrix(Role::shared_gate_up), routes_, normed_.data(), n,
                      act_.data() + cut.expert[rank_].begin, width,
                      shared_act_.data() + cut.shared[rank_].begin, shared_width);
    const Columns act[] = {{act_.data(), n * config_.top_k, width, cut.expert},
                           {shared_act_.data(), n, shared_width, cut.shared}};
    gather("expert intermediates", act);

    backend_.experts_down(*w.matrix(Role::down), w.matrix(Role::shared_down), routes_, act_.data(),
                          shared_act_.data(), shared_gate_.data(), n, part_ + cut.down[rank_].begin,
                          config_.hidden);
    const Columns hidden{part_, n, config_.hidden, cut.down};
    gather("down projection", {&hidden, 1});
    seen("moe", static_cast<int>(layer), part_, n, config_.hidden);
}

void Model::gather(std::string_view name, std::span<const Columns> parts) {
    if (communicator_.size() > 1 && !sole_) communicator_.all_gather(parts, name, backend_.stream());
}

void Model::seen(std::string_view name, int layer, const float* values, std::int64_t rows,
                 std::int64_t width) {
    if (observer_) observer_(name, layer, values, rows, width);
}

}  // namespace ftmpi
