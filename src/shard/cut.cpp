#include "cut.hpp"

#include <algorithm>
#include <cmath>

namespace ftmpi {

Range kv_heads_of(const ModelConfig& config, Range q) {
    const std::int64_t group = config.query_heads / config.kv_heads;
    if (q.empty()) return {q.begin / group, q.begin / group};
    return {q.begin / group, (q.end + group - 1) / group};
}

Range value_head_range(const ModelConfig& config, Range key_head_groups) {
    return key_head_groups * config.groups();
}

std::vector<Range> qkv_rows(const ModelConfig& config, Range key_head_groups) {
    const Range key = key_head_groups * config.key_dim;
    const Range value = value_head_range(config, key_head_groups) * config.value_dim;
    const auto n = config.key_channels();
#ifdef FTMPI_NAIVE_QKV_CUT  // a test build only: q | k | v cut as if it were one matrix, to see that the
                            // checks notice
    const auto first = 2 * key.begin + value.begin, rows = 2 * key.size() + value.size();
    return {{first, first + key.size()},
            {first + key.size(), first + 2 * key.size()},
            {first + 2 * key.size(), first + rows}};
#endif
    return {key, {n + key.begin, n + key.end}, {2 * n + value.begin, 2 * n + value.end}};
}

MatrixSize size_of(const TensorRole& role, const ModelConfig& config, Format format) {
    return {format, role.groups(config), role.parts() * role.rows(config), role.cols(config)};
}

namespace {

/// The ranges by which a role's rows are dealt; null for rows that are not.
std::vector<Range> LayerCut::*dealt_by(Cut cut) {
    switch (cut) {
        case Cut::whole:
        case Cut::with_heads: return nullptr;
        case Cut::query_heads:
        case Cut::kv_heads:
        case Cut::qkv_heads:
        case Cut::value_heads: return &LayerCut::mixer;
        case Cut::out: return &LayerCut::out;
        case Cut::expert: return &LayerCut::expert;
        case Cut::shared: return &LayerCut::shared;
        case Cut::down: return &LayerCut::down;
    }
    return nullptr;
}

}  // namespace

std::vector<Range> rows_held(const TensorRole& role, const ModelConfig& config, const LayerCut& cut,
                             std::size_t rank) {
    const std::int64_t rows = role.rows(config);
    const Range heads = cut.mixer[rank];
    switch (role.cut) {
        case Cut::whole: return {{0, rows}};
        case Cut::with_heads: return {{0, heads.empty() ? 0 : rows}};
        case Cut::query_heads: return {heads * (rows / config.query_heads)};
        case Cut::kv_heads: return {kv_heads_of(config, heads) * (rows / config.kv_heads)};
        case Cut::value_heads: return {value_head_range(config, heads) * (rows / config.value_heads)};
        case Cut::qkv_heads: return qkv_rows(config, heads);
        default: return {(cut.*dealt_by(role.cut))[rank]};
    }
}

ByRole<std::int64_t> most_rows_held(const ModelConfig& config, const ShardPlan& plan, int rank) {
    const Family& family = family_of(config);
    ByRole<std::int64_t> most;
    for (std::size_t l = 0; l < plan.layers.size(); ++l)
        for (const TensorRole& role : family.roles(config.layers[l])) {
            std::int64_t rows = 0;
            for (const Range& range : rows_held(role, config, plan.layers[l], static_cast<std::size_t>(rank)))
                rows += range.size();
            most[role.role] = std::max(most[role.role], rows);
        }
    return most;
}

std::optional<int> sole_rank(const ShardPlan& plan) {
    for (int sole = 0; sole < plan.ranks; ++sole) {
        const auto only = [&](const std::vector<Range>& ranges) {
            for (int r = 0; r < plan.ranks; ++r)
                if (r != sole && !ranges[static_cast<std::size_t>(r)].empty()) return false;
            return true;
        };
        const bool all =
            only(plan.head) && std::all_of(plan.layers.begin(), plan.layers.end(), [&](const LayerCut& cut) {
                return only(cut.mixer) && (plan.out_replicated || only(cut.out)) && only(cut.expert) &&
                       only(cut.shared) && only(cut.down);
            });
        if (all) return sole;
    }
    return std::nullopt;
}

namespace shard {
namespace {

constexpr double kNothing = 1e-9;  // a fraction of a unit that is only rounding of the share

/// Counts to consecutive ranges in rank order, in rows; the last unit of a matrix may be short.
std::vector<Range> ranges_of(const std::vector<std::int64_t>& units, std::int64_t unit_rows,
                             std::int64_t rows) {
    std::vector<Range> ranges;
    std::int64_t begin = 0;
    for (const auto n : units) {
        ranges.push_back({std::min(begin * unit_rows, rows), std::min((begin + n) * unit_rows, rows)});
        begin += n;
    }
    return ranges;
}

std::vector<Range> deal_rows(Dealer& dealer, std::int64_t rows, std::int64_t unit_rows,
                             double bytes_per_row) {
    const auto units = (rows + unit_rows - 1) / unit_rows;
    return ranges_of(dealer.deal(units, bytes_per_row * static_cast<double>(unit_rows)), unit_rows, rows);
}

}  // namespace

std::vector<std::int64_t> Dealer::deal(std::int64_t units, double unit_bytes) {
    std::vector<std::int64_t> counts(shares_.size(), 0);
    std::vector<std::int64_t> claims(shares_.size(), 0);
    std::vector<int> candidates;
    std::int64_t rest = units;
    for (const int rank : order_) {
        const auto r = static_cast<std::size_t>(rank);
        const double quota = shares_[r] * static_cast<double>(units);
        counts[r] = static_cast<std::int64_t>(std::floor(quota + kNothing));
        rest -= counts[r];
        const double fraction = quota - static_cast<double>(counts[r]);
        if (fraction > kNothing) candidates.push_back(rank);
        // Compared as integers so that claims equal but for the rounding of the shares are equal.
        claims[r] = std::llround((fraction + (unit_bytes > 0 ? owed_[r] / unit_bytes : 0)) * 1e7);
    }
    std::stable_sort(candidates.begin(), candidates.end(), [&](int a, int b) {
        return claims[static_cast<std::size_t>(a)] > claims[static_cast<std::size_t>(b)];
    });
    for (const int rank : candidates) {
        if (rest <= 0) break;
        ++counts[static_cast<std::size_t>(rank)];
        --rest;
    }
    // Shares that add up to 1 only nearly can leave a unit over; whoever holds most takes it.
    if (rest > 0) {
        const auto most = *std::max_element(order_.begin(), order_.end(), [&](int a, int b) {
            return shares_[static_cast<std::size_t>(a)] < shares_[static_cast<std::size_t>(b)];
        });
        counts[static_cast<std::size_t>(most)] += rest;
    }
    for (std::size_t r = 0; r < shares_.size(); ++r) {
        const double got = static_cast<double>(counts[r]) * unit_bytes;
        owed_[r] += shares_[r] * static_cast<double>(units) * unit_bytes - got;
        given_[r] += got;
    }
    return counts;
}

double row_bytes(const MatrixSize& matrix) {
    return static_cast<double>(stored_bytes(matrix.format, matrix.groups, kRowTile, matrix.cols)) /
           static_cast<double>(kRowTile);
}

void cut_model(const ModelSizes& sizes, const CutChoice& choice, const std::vector<int>& order,
               ShardPlan& plan) {
    const auto& config = sizes.config;
    const Family& family = family_of(config);
    const auto ranks = choice.shares.size();
    // One dealer a kind of matrix: what a rank is owed in delta-net heads is made good in delta-net heads, so
    // that not only the bytes held but also the bytes read for each token and the sequence state follow the
    // shares.
    Dealer delta_net(choice.shares, order), attention(choice.shares, order), out(choice.shares, order),
        expert(choice.shares, order), shared(choice.shares, order), down(choice.shares, order),
        head(choice.shares, order);

    plan.layers.clear();
    for (const auto& layer : sizes.layers) {
        LayerCut cut;
        // Units of all matrices that are dealt by the same ranges, weighed by their bytes.
        const auto deal = [&](std::vector<Range> LayerCut::*by, Dealer& dealer, std::int64_t rows,
                              std::int64_t unit_rows) {
            double bytes = 0;
            for (const TensorRole& role : family.roles(layer.kind))
                if (role.is_matrix() && dealt_by(role.cut) == by)
                    bytes += row_bytes(layer[role.role]) * static_cast<double>(layer[role.role].rows);
            cut.*by = deal_rows(dealer, rows, unit_rows, rows ? bytes / static_cast<double>(rows) : 0);
        };
        if (layer.kind == LayerKind::delta_net) deal(&LayerCut::mixer, delta_net, config.key_heads, 1);
        else
            deal(&LayerCut::mixer, attention, config.query_heads,
                 choice.whole_kv_groups ? config.query_heads / config.kv_heads : 1);
        if (choice.out_replicated) cut.out.assign(ranks, Range{0, config.hidden});
        else deal(&LayerCut::out, out, config.hidden, kUnitRows);
        deal(&LayerCut::expert, expert, config.expert_width, kUnitRows);
        deal(&LayerCut::shared, shared, config.shared_width, kUnitRows);
        deal(&LayerCut::down, down, config.hidden, kUnitRows);
        plan.layers.push_back(std::move(cut));
    }
    plan.head = deal_rows(head, sizes.head.rows, kUnitRows, row_bytes(sizes.head));

    plan.ranks = static_cast<int>(ranks);
    plan.asked = choice.shares;
    plan.given.assign(ranks, 0.0);
    double all = 0;
    for (const auto* dealer : {&delta_net, &attention, &out, &expert, &shared, &down, &head})
        for (std::size_t r = 0; r < ranks; ++r) {
            plan.given[r] += dealer->given()[r];
            all += dealer->given()[r];
        }
    for (auto& share : plan.given) share = all > 0 ? share / all : 0;
    plan.whole_kv_groups = choice.whole_kv_groups;
    plan.out_replicated = choice.out_replicated;
}

}  // namespace shard
}  // namespace ftmpi
