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
        if (layer.kind == LayerKind::delta_net) {
            const double bytes = row_bytes(layer.in_qkv) * static_cast<double>(layer.in_qkv.rows) +
                                 row_bytes(layer.in_z) * static_cast<double>(layer.in_z.rows) +
                                 row_bytes(layer.in_b) * static_cast<double>(layer.in_b.rows) +
                                 row_bytes(layer.in_a) * static_cast<double>(layer.in_a.rows);
            cut.mixer = deal_rows(delta_net, config.key_heads, 1, bytes / config.key_heads);
        } else {
            const double bytes = row_bytes(layer.q) * static_cast<double>(layer.q.rows) +
                                 row_bytes(layer.k) * static_cast<double>(layer.k.rows) +
                                 row_bytes(layer.v) * static_cast<double>(layer.v.rows);
            const std::int64_t unit = choice.whole_kv_groups ? config.query_heads / config.kv_heads : 1;
            cut.mixer = deal_rows(attention, config.query_heads, unit, bytes / config.query_heads);
        }
        if (choice.out_replicated) cut.out.assign(ranks, Range{0, layer.out.rows});
        else cut.out = deal_rows(out, layer.out.rows, kUnitRows, row_bytes(layer.out));
        cut.expert = deal_rows(expert, config.expert_width, kUnitRows, 2 * row_bytes(layer.gate_up));
        cut.shared = deal_rows(shared, config.shared_width, kUnitRows, 2 * row_bytes(layer.shared_gate_up));
        cut.down =
            deal_rows(down, layer.down.rows, kUnitRows, row_bytes(layer.down) + row_bytes(layer.shared_down));
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
