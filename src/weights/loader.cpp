#include "../error.hpp"
#include "../numerics.hpp"
#include "../weights.hpp"

namespace ftmpi {

/// Loads one rank's share, layer by layer, and counts the file bytes it touches.
class Loader {
public:
    Loader(const Checkpoint& checkpoint, const Inventory& inventory, const ShardPlan& plan, int rank,
           Backend& backend, const Weights::Progress& progress, Weights& to)
        : checkpoint_(checkpoint), inventory_(inventory), config_(inventory.config()), plan_(plan),
          rank_(static_cast<std::size_t>(rank)), backend_(backend), progress_(progress), to_(to) {}

    void load() {
        const auto& table = inventory_.embedding();
        MatrixSource source{
            .format = table.format, .groups = 1, .rows = table.rows, .cols = table.cols, .blocks = {}};
        source.blocks.push_back(table.block({0, table.rows}));
        in(&RankBytes::embedding,
           [&] { to_.embedding_ = backend_.load_table(source, plan_.embedding_on_host); });
        if (!plan_.embedding_on_host) {
            to_.read_.replicated += table.bytes({0, table.rows});
            to_.matrix_bytes_ += to_.embedding_->bytes;
        }
        in(&RankBytes::replicated, [&] { to_.final_norm_ = norm(inventory_.final_norm()); });
        to_.layers_.resize(inventory_.layers().size());
        for (std::size_t i = 0; i < to_.layers_.size(); ++i) {
            layer(inventory_.layers()[i], plan_.layers[i], to_.layers_[i]);
            checkpoint_.drop_pages();  // of the scales and vectors too
            if (progress_) progress_(i + 1, to_.layers_.size() + 1);
        }
        in(&RankBytes::head, [&] { to_.head_ = rows_of(inventory_.head(), plan_.head[rank_]); });
        checkpoint_.drop_pages();
        checkpoint_.check_unchanged();
        if (progress_) progress_(to_.layers_.size() + 1, to_.layers_.size() + 1);
    }

private:
    /// What `load` takes counts to this group.
    template <class Load> void in(std::uint64_t RankBytes::*group, Load load) {
        const HeldSpan span(backend_, to_.held_.*group);
        load();
    }

    void layer(const Inventory::Layer& from, const LayerCut& cut, LayerWeights& to) {
        to.kind = from.kind;
        const auto mixer = from.kind == LayerKind::attention ? &RankBytes::attention : &RankBytes::delta_net;
        in(mixer, [&] {
            if (from.kind == LayerKind::attention) attention(from, cut.mixer[rank_], to);
            else delta_net(from, cut.mixer[rank_], to);
        });
        in(plan_.out_replicated ? &RankBytes::replicated : mixer,
           [&] { to.out = rows_of(from.out, cut.out[rank_]); });
        in(&RankBytes::replicated, [&] {
            to.input_norm = norm(*from.input_norm);
            to.post_norm = norm(*from.post_norm);
            to.router = whole(from.router);
            to.shared_gate = whole(from.shared_gate);
        });
        in(&RankBytes::experts, [&] {
            to.gate_up = experts_of(from.experts, cut.expert[rank_], true);
            to.down = experts_of(from.experts, cut.down[rank_], false);
        });
        in(&RankBytes::shared, [&] {
            to.shared_gate_up = experts_of({from.shared}, cut.shared[rank_], true);
            to.shared_down = experts_of({from.shared}, cut.down[rank_], false);
        });
    }

    void attention(const Inventory::Layer& from, Range heads, LayerWeights& to) {
        const Range kv = kv_heads_of(config_, heads);
        to.q = rows_of(from.q, heads * (2 * config_.head_dim));
        to.k = rows_of(from.k, kv * config_.head_dim);
        to.v = rows_of(from.v, kv * config_.head_dim);
        // Read in any case, so that a bad value is refused alike on all ranks.
        auto q_norm = norm_values(*from.q_norm), k_norm = norm_values(*from.k_norm);
        if (!heads.empty()) {
            to.q_norm = upload(q_norm, from.q_norm->name);
            to.k_norm = upload(k_norm, from.k_norm->name);
        }
        if (plan_.kv == KvType::fp8) {
            if (from.k_scale) to.k_scale = cache_scale(*from.k_scale);
            if (from.v_scale) to.v_scale = cache_scale(*from.v_scale);
        }
    }

    void delta_net(const Inventory::Layer& from, Range groups, LayerWeights& to) {
        const Range values = value_head_range(config_, groups);
        to.in_qkv = rows_of(from.in_qkv, qkv_rows(config_, groups));
        to.in_z = rows_of(from.in_z, values * config_.value_dim);
        to.in_b = rows_of(from.in_b, values);
        to.in_a = rows_of(from.in_a, values);

        const auto conv = floats_of(*from.conv);
        std::vector<float> own;
        for (const Range& rows : qkv_rows(config_, groups))
            own.insert(own.end(), conv.begin() + rows.begin * config_.conv_taps,
                       conv.begin() + rows.end * config_.conv_taps);
        to.conv = upload(own, from.conv->name);
        to_.read_.cut += own.size() * size_of(from.conv->dtype);

        auto head_values = [&](const TensorView& t, auto map) {
            const auto all = floats_of(t);
            std::vector<float> part;
            for (auto h = values.begin; h < values.end; ++h)
                part.push_back(map(all[static_cast<std::size_t>(h)]));
            to_.read_.cut += part.size() * size_of(t.dtype);
            return upload(part, t.name);
        };
        to.neg_exp_a = head_values(*from.a_log, [](float a) { return -num::exp(a); });
        to.dt_bias = head_values(*from.dt_bias, [](float b) { return b; });
        const auto norm = replicated(*from.norm);
        if (!groups.empty()) to.norm = upload(norm, from.norm->name);
    }

    std::unique_ptr<Matrix> rows_of(const StoredMatrix& m, Range rows) {
        return rows_of(m, std::vector<Range>{rows});
    }

    std::unique_ptr<Matrix> rows_of(const StoredMatrix& m, const std::vector<Range>& pieces) {
        MatrixSource source{.format = m.format, .groups = 1, .rows = 0, .cols = m.cols, .blocks = {}};
        for (const Range& r : pieces) {
            if (r.empty()) continue;
            source.rows += r.size();
            source.blocks.push_back(m.block(r));
            to_.read_.cut += m.bytes(r);
        }
        if (source.rows) to_.read_.replicated += m.scalar_bytes;
        return keep(source);
    }

    /// A matrix every rank holds whole (router, shared gate).
    std::unique_ptr<Matrix> whole(const StoredMatrix& m) {
        MatrixSource source{.format = m.format,
                            .groups = 1,
                            .rows = m.rows,
                            .cols = m.cols,
                            .blocks = {m.block({0, m.rows})}};
        to_.read_.replicated += m.bytes({0, m.rows}) + m.scalar_bytes;
        return keep(source);
    }

    /// The same rows of every expert: gate rows then up rows, or rows of down.
    std::unique_ptr<Matrix> experts_of(const std::vector<Inventory::Expert>& experts, Range rows,
                                       bool gate_up) {
        const StoredMatrix& first = gate_up ? experts[0].gate : experts[0].down;
        MatrixSource source{.format = first.format,
                            .groups = static_cast<std::int64_t>(experts.size()),
                            .rows = rows.size() * (gate_up ? 2 : 1),
                            .cols = first.cols,
                            .blocks = {}};
        if (!rows.empty())
            for (const auto& e : experts)
                for (const StoredMatrix* m : gate_up ? std::vector{&e.gate, &e.up} : std::vector{&e.down}) {
                    source.blocks.push_back(m->block(rows));
                    to_.read_.cut += m->bytes(rows);
                    to_.read_.replicated += m->scalar_bytes;
                }
        return keep(source);
    }

    std::unique_ptr<Matrix> keep(const MatrixSource& source) {
        auto matrix = backend_.load(source);
        to_.matrix_bytes_ += matrix->bytes;
        for (const RowBlock& b : source.blocks)
            checkpoint_.drop_pages(b.codes, static_cast<std::size_t>(b.rows) * b.pitch);
        return matrix;
    }

    std::vector<float> replicated(const TensorView& t) {
        to_.read_.replicated += t.bytes;
        return floats_of(t);
    }

    /// Weight of a zero-centred RMSNorm, kept as 1 + w in fp32.
    std::vector<float> norm_values(const TensorView& t) {
        auto values = replicated(t);
        for (float& v : values) v = 1.0f + v;
        return values;
    }
    DeviceArray<float> norm(const TensorView& t) { return upload(norm_values(t), t.name); }

    float cache_scale(const TensorView& t) {
        const float s = replicated(t)[0];
        if (!(s > 0.0f)) throw Error(Exit::bad_input, "tensor " + t.name + ": a cache scale must be above 0");
        return s;
    }

    DeviceArray<float> upload(const std::vector<float>& values, std::string_view name) {
        DeviceArray<float> a(backend_, static_cast<std::int64_t>(values.size()), name);
        if (!values.empty()) backend_.copy_in(a.data(), values.data(), a.bytes());
        return a;
    }

    const Checkpoint& checkpoint_;
    const Inventory& inventory_;
    const ModelConfig& config_;
    const ShardPlan& plan_;
    std::size_t rank_;
    Backend& backend_;
    const Weights::Progress& progress_;
    Weights& to_;
};

Weights::Weights(const Checkpoint& checkpoint, const Inventory& inventory, const ShardPlan& plan, int rank,
                 Backend& backend, const Progress& progress) {
    Loader(checkpoint, inventory, plan, rank, backend, progress, *this).load();
}

}  // namespace ftmpi
