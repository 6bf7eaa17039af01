#include "../error.hpp"
#include "../numerics.hpp"
#include "../weights.hpp"

namespace ftmpi {

/// Loads one rank's share, layer by layer, and counts the file bytes it touches.
class Loader {
public:
    Loader(const Checkpoint& checkpoint, const Inventory& inventory, const ShardPlan& plan, int rank,
           Backend& backend, const Weights::Progress& progress, Weights& to)
        : checkpoint_(checkpoint), inventory_(inventory), config_(inventory.config()),
          family_(family_of(config_)), plan_(plan), rank_(static_cast<std::size_t>(rank)), backend_(backend),
          progress_(progress), to_(to) {}

    void load() {
        const auto& table = inventory_.embedding();
        MatrixSource source{
            .format = table.format, .groups = 1, .rows = table.rows, .cols = table.cols, .blocks = {}};
        source.blocks.push_back(table.block({0, table.rows}));
        in(&RankBytes::embedding,
           [&] { to_.embedding_ = backend_.load_table(source, plan_.embedding_on_host); });
        if (!plan_.embedding_on_host) to_.read_.replicated += table.bytes({0, table.rows});
        in(&RankBytes::replicated, [&] {
            const std::int64_t hidden = config_.hidden;
            to_.final_norm_ = vector(inventory_.final_norm(), Form::norm, true, {{0, hidden}}, 1);
        });
        to_.layers_.resize(inventory_.layers().size());
        for (std::size_t i = 0; i < to_.layers_.size(); ++i) {
            const Inventory::Layer& layer = inventory_.layers()[i];
            to_.layers_[i].kind = layer.kind;
            for (const TensorRole& role : family_.roles(layer.kind))
                in(bytes_of<std::uint64_t>(role, plan_),
                   [&] { load(role, layer[role.role], plan_.layers[i], to_.layers_[i]); });
            checkpoint_.drop_pages();  // of the scales and vectors too
            if (progress_) progress_(i + 1, to_.layers_.size() + 1);
        }
        in(&RankBytes::head, [&] { to_.head_ = matrix({inventory_.head()}, 1, false, {plan_.head[rank_]}); });
        checkpoint_.drop_pages();
        checkpoint_.check_unchanged();
        if (progress_) progress_(to_.layers_.size() + 1, to_.layers_.size() + 1);
    }

private:
    /// What `load` takes counts to this group.
    template <class Load> void in(std::uint64_t RankBytes::*group, Load load) {
        const AllocationCounter span(backend_, to_.allocated_.*group);
        load();
    }

    void load(const TensorRole& role, const Inventory::Tensor& from, const LayerCut& cut, LayerWeights& to) {
        if (role.stored == Stored::cache_scale) {
            if (plan_.kv == KvType::fp8 && from.vector)
                (role.role == Role::k_scale ? to.k_scale : to.v_scale) = cache_scale(*from.vector);
            return;
        }
        const auto rows = rows_held(role, config_, cut, rank_);
        const bool whole = role.cut == Cut::whole || role.cut == Cut::with_heads;
        if (role.is_matrix())
            to.matrices[role.role] = matrix(from.matrices, role.groups(config_), whole, rows);
        else to.vectors[role.role] = vector(*from.vector, role.form, whole, rows, role.cols(config_));
    }

    /// `rows` of each stored matrix, one below the other in each group. `whole`: every rank reads them.
    std::unique_ptr<Matrix> matrix(const std::vector<StoredMatrix>& stored, std::int64_t groups, bool whole,
                                   const std::vector<Range>& rows) {
        MatrixSource source{
            .format = stored[0].format, .groups = groups, .rows = 0, .cols = stored[0].cols, .blocks = {}};
        for (const StoredMatrix& m : stored) {
            for (const Range& r : rows) {
                if (r.empty()) continue;
                source.rows += r.size();
                source.blocks.push_back(m.block(r));
                (whole ? to_.read_.replicated : to_.read_.cut) += m.bytes(r);
            }
            if (!source.blocks.empty()) to_.read_.replicated += m.scalar_bytes;
        }
        source.rows /= groups;
        return keep(source);
    }

    /// The values of these rows in the form they are held in. All are read, so that a bad value is refused
    /// alike on all ranks.
    DeviceArray<float> vector(const TensorView& stored, Form form, bool whole, const std::vector<Range>& rows,
                              std::int64_t cols) {
        const auto all = floats_of(stored);
        std::vector<float> own;
        for (const Range& r : rows)
            own.insert(own.end(), all.begin() + r.begin * cols, all.begin() + r.end * cols);
        for (float& value : own) {
            if (form == Form::neg_exp) value = -num::exp(value);
            if (form == Form::norm && family_.zero_centred_norms) value = 1.0f + value;
        }
        if (whole) to_.read_.replicated += stored.bytes;
        else to_.read_.cut += own.size() * size_of(stored.dtype);
        DeviceArray<float> array(backend_, static_cast<std::int64_t>(own.size()), stored.name);
        if (!own.empty()) backend_.copy_in(array.data(), own.data(), array.bytes());
        return array;
    }

    float cache_scale(const TensorView& t) {
        to_.read_.replicated += t.bytes;
        const float s = floats_of(t)[0];
        if (!(s > 0.0f)) throw Error(Exit::bad_input, "tensor " + t.name + ": a cache scale must be above 0");
        return s;
    }

    std::unique_ptr<Matrix> keep(const MatrixSource& source) {
        auto matrix = backend_.load(source);
        for (const RowBlock& b : source.blocks)
            checkpoint_.drop_pages(b.codes, static_cast<std::size_t>(b.rows) * b.pitch);
        return matrix;
    }

    const Checkpoint& checkpoint_;
    const Inventory& inventory_;
    const ModelConfig& config_;
    const Family& family_;
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
