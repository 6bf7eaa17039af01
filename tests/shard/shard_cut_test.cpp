// Which rows each rank holds: every unit once, as near to the shares as whole units allow, and never across a
// head, a q|k|v segment or a quantization group.
#define BOOST_TEST_MODULE shard_cut
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>
#include <numeric>

#include "error.hpp"
#include "geometry.hpp"

using namespace ftmpi;
using namespace ftmpi::test;

namespace {

/// One matrix role of a layer: its ranges, its rows and the rows of a unit.
struct Dealt {
    const char* name;
    const std::vector<Range>* ranges;
    std::int64_t rows, unit;
    double weight = 1;  // bytes of a row, up to a factor: what is owed is owed in bytes
};

std::vector<Dealt> dealt_in(const ModelSizes& sizes, const ShardPlan& plan, std::size_t layer) {
    const auto& c = sizes.config;
    const auto& cut = plan.layers[layer];
    const bool delta = c.layers[layer] == LayerKind::delta_net;
    std::vector<Dealt> roles{
        {delta ? "key heads" : "query heads", &cut.mixer, delta ? c.key_heads : c.query_heads,
         plan.whole_kv_groups && !delta ? c.query_heads / c.kv_heads : 1},
        {"expert", &cut.expert, c.expert_width, 16},
        {"shared", &cut.shared, c.shared_width, 16},
        {"down", &cut.down, c.hidden, 16}};
    if (!plan.out_replicated)
        roles.push_back(
            {"out", &cut.out, c.hidden, 16, static_cast<double>(sizes.layers[layer][Role::out].cols)});
    return roles;
}

/// Contiguous in rank order, from 0 to the last row, cut only between units.
bool dealt_once(const Dealt& role) {
    std::int64_t next = 0;
    for (const auto range : *role.ranges) {
        if (range.begin != next || range.end < range.begin) return false;
        if (range.begin % role.unit && range.begin != role.rows) return false;
        next = range.end;
    }
    return next == role.rows;
}

std::vector<std::int64_t> sizes_in(const std::vector<Range>& ranges) {
    std::vector<std::int64_t> n;
    for (const auto range : ranges) n.push_back(range.size());
    return n;
}

ModelSizes one_layer(std::int64_t expert_width, int key_heads = 16, int query_heads = 16, int kv_heads = 2) {
    auto config = sizes_of_35b().config;
    config.layers = layer_kinds(1, 2);
    config.expert_width = config.shared_width = expert_width;
    config.key_heads = key_heads;
    config.value_heads = 2 * key_heads;
    config.query_heads = query_heads;
    config.kv_heads = kv_heads;
    return sizes_with(config, {Format::fp8_row, Format::nvfp4, Format::nvfp4});
}

using Sizes = std::vector<std::int64_t>;

}  // namespace

BOOST_AUTO_TEST_CASE(packed_qkv_is_cut_by_heads_and_not_by_rows) {
    ModelConfig c;
    c.key_heads = 4;
    c.key_dim = 2;
    c.value_heads = 8;
    c.value_dim = 2;
    const std::vector<Range> first{{0, 6}, {8, 14}, {16, 28}}, second{{6, 8}, {14, 16}, {28, 32}};
    BOOST_TEST((qkv_rows(c, {0, 3}) == first));
    BOOST_TEST((qkv_rows(c, {3, 4}) == second));
    BOOST_TEST((value_head_range(c, {0, 3}) == Range{0, 6}));  // rows of in_proj_b, in_proj_a, A_log, dt_bias
    BOOST_TEST((value_head_range(c, {3, 4}) == Range{6, 8}));
    BOOST_TEST((value_head_range(c, {0, 3}) * c.value_dim == Range{0, 12}));  // rows of in_proj_z

    const auto real = sizes_of_35b().config;
    const std::vector<Range> real_first{{0, 1280}, {2048, 3328}, {4096, 6656}},
        real_second{{1280, 2048}, {3328, 4096}, {6656, 8192}};
    BOOST_TEST((qkv_rows(real, {0, 10}) == real_first));
    BOOST_TEST((qkv_rows(real, {10, 16}) == real_second));
}

BOOST_AUTO_TEST_CASE(value_heads_stay_with_the_key_head_they_read) {
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        const auto c = random_sizes(random).config;
        for (int k = 0; k < c.key_heads; ++k) {
            const auto values = value_head_range(c, {k, k + 1});
            for (auto j = values.begin; j < values.end; ++j)
                BOOST_TEST_REQUIRE(j * c.key_heads / c.value_heads == k);
        }
    }
}

BOOST_AUTO_TEST_CASE(key_value_heads_are_those_the_query_heads_read) {
    ModelConfig c;
    c.query_heads = 16;
    c.kv_heads = 2;
    BOOST_TEST((kv_heads_of(c, {0, 12}) == Range{0, 2}));
    BOOST_TEST((kv_heads_of(c, {12, 16}) == Range{1, 2}));
    BOOST_TEST((kv_heads_of(c, {0, 8}) == Range{0, 1}));
    BOOST_TEST((kv_heads_of(c, {7, 9}) == Range{0, 2}));
    BOOST_TEST(kv_heads_of(c, {16, 16}).empty());
    BOOST_TEST(kv_heads_of(c, {3, 3}).empty());
}

BOOST_AUTO_TEST_CASE(every_unit_is_dealt_once_whatever_the_shares) {
    std::mt19937 random(1);
    const auto pick = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
    };
    for (int round = 0; round < 1500; ++round) {
        const auto sizes = random_sizes(random);
        std::vector<double> shares(static_cast<std::size_t>(pick(1, 9)));
        for (auto& share : shares)
            share = pick(0, 3) == 0 ? 0 : pick(0, 1) ? pick(1, 5) : std::ldexp(pick(1, 1000), -pick(0, 20));
        shares[static_cast<std::size_t>(pick(0, static_cast<int>(shares.size()) - 1))] += 1;
        const auto plan = make_plan(sizes, request_for_shares(shares));
        const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
        BOOST_TEST_REQUIRE(plan.layers.size() == sizes.layers.size());

        std::map<std::string, std::vector<double>> drift;
        std::map<std::string, std::vector<std::int64_t>> totals;
        std::map<std::string, double> heaviest;
        auto look_at = [&](const Dealt& role) {
            BOOST_TEST_REQUIRE(role.ranges->size() == shares.size());
            BOOST_TEST_REQUIRE(dealt_once(role), role.name);
            auto& owed = drift[role.name];
            auto& total = totals[role.name];
            owed.resize(shares.size());
            total.resize(shares.size());
            heaviest[role.name] = std::max(heaviest[role.name], role.weight);
            for (std::size_t r = 0; r < shares.size(); ++r) {
                const double units =
                    std::ceil(static_cast<double>(role.rows) / static_cast<double>(role.unit));
                const double given =
                    std::ceil(static_cast<double>((*role.ranges)[r].size()) / static_cast<double>(role.unit));
                const double asked = shares[r] / sum * units;
                BOOST_TEST_REQUIRE(std::abs(given - asked) < 1 + 1e-6, role.name);
                if (shares[r] == 0) BOOST_TEST_REQUIRE(given == 0);
                owed[r] += (asked - given) * role.weight;
                total[r] += static_cast<std::int64_t>(given);
            }
        };
        for (std::size_t l = 0; l < plan.layers.size(); ++l)
            for (const auto& role : dealt_in(sizes, plan, l)) look_at(role);
        look_at({"vocabulary", &plan.head, sizes.config.vocab, 16});

        // Remainders are spread over the layers: over the whole model a role is off by little more than over
        // one matrix, and a rank with the larger share never ends with fewer rows than rounding explains.
        for (const auto& [name, owed] : drift)
            for (const double units : owed)
                BOOST_TEST_REQUIRE(std::abs(units) < 1.5 * heaviest[name], name << ' ' << units);
        for (const auto& [name, total] : totals)
            for (std::size_t a = 0; a < shares.size(); ++a)
                for (std::size_t b = 0; b < shares.size(); ++b)
                    if (name != "out" && shares[a] >= shares[b])
                        BOOST_TEST_REQUIRE(total[a] + 2 >= total[b], name);
        BOOST_TEST_REQUIRE(std::abs(std::accumulate(plan.given.begin(), plan.given.end(), 0.0) - 1) < 1e-9);
    }
}

BOOST_AUTO_TEST_CASE(rounding_does_not_drift_over_forty_layers) {
    const auto sizes = sizes_of_35b();
    const std::vector<double> shares{0.474, 0.526};
    const auto plan = make_plan(sizes, request_for_shares(shares));
    std::map<std::string, std::array<double, 3>> rows;  // of rank 0, of rank 1, of all
    bool varied = false;
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
        for (const auto& role : dealt_in(sizes, plan, l))
            for (std::size_t r = 0; r < 2; ++r) {
                rows[role.name][r] += static_cast<double>((*role.ranges)[r].size());
                rows[role.name][2] += static_cast<double>((*role.ranges)[r].size());
            }
        varied = varied || plan.layers[l].expert != plan.layers[0].expert;
    }
    for (const auto& [name, n] : rows)
        for (std::size_t r = 0; r < 2; ++r)
            BOOST_TEST(std::abs(n[r] / n[2] - shares[r]) < 0.01, name << ' ' << n[r] / n[2]);
    BOOST_TEST(varied);  // always rounding the same way would be off by 0.5 / 32 in every layer
    for (std::size_t r = 0; r < 2; ++r) {
        BOOST_TEST(std::abs(plan.given[r] - shares[r]) < 0.001);
        BOOST_TEST(plan.asked[r] == shares[r], boost::test_tools::tolerance(1e-12));
    }
}

BOOST_AUTO_TEST_CASE(cuts_fall_on_quantization_groups) {
    const auto experts = [](std::int64_t width, std::vector<double> shares) {
        return sizes_in(make_plan(one_layer(width), request_for_shares(std::move(shares))).layers[0].expert);
    };
    BOOST_TEST((experts(512, {24, 16}) == Sizes{304, 208}));
    BOOST_TEST((experts(512, {5, 3}) == Sizes{320, 192}));
    BOOST_TEST((experts(320, {1, 1}) ==
                Sizes{160, 160}));  // finer than a 128 x 128 block: rows find their block by index
    BOOST_TEST((experts(512, std::vector<double>(8, 1)) == Sizes(8, 64)));
    const auto eight = experts(1856, std::vector<double>(8, 1));  // 232 each would cut a group of 16
    BOOST_TEST(std::accumulate(eight.begin(), eight.end(), std::int64_t{0}) == 1856);
    for (const auto n : eight) BOOST_TEST((n == 224 || n == 240));
    BOOST_TEST((experts(4300, {1, 1}) == Sizes{2160, 2140}));  // the end of the matrix is with the last rank
    BOOST_TEST((experts(4300, {3, 1, 0}) == Sizes{3232, 1068, 0}));
}

BOOST_AUTO_TEST_CASE(heads_that_do_not_divide_by_the_ranks) {
    const auto sizes = sizes_of_35b();
    const auto plan = make_plan(sizes, request_for_shares({1, 1, 1}));
    BOOST_TEST((sizes_in(plan.layers[0].mixer) == Sizes{6, 5, 5}));
    BOOST_TEST((sizes_in(plan.layers[1].mixer) == Sizes{5, 6, 5}));
    BOOST_TEST((sizes_in(plan.layers[2].mixer) == Sizes{5, 5, 6}));
    BOOST_TEST((sizes_in(plan.layers[3].mixer) == Sizes{6, 5, 5}));
    BOOST_TEST((kv_heads_of(sizes.config, plan.layers[3].mixer[1]) ==
                Range{0, 2}));  // 6-11 read both key/value heads
    BOOST_TEST((plan.head[0] == Range{0, 82784}));
    BOOST_TEST((plan.head[2].end == 248320));
}

BOOST_AUTO_TEST_CASE(more_ranks_than_units_and_ranks_without_rows) {
    const auto sizes = one_layer(32, 2);
    const auto plan = make_plan(sizes, request_for_shares(std::vector<double>(9, 1)));
    std::int64_t with_heads = 0;
    for (const auto range : plan.layers[0].mixer) with_heads += range.size();
    BOOST_TEST(with_heads == 2);
    BOOST_TEST(plan.bytes[8].delta_net > 0);  // of the output projection; heads went to others
    BOOST_TEST(plan.bytes[8].recurrent_state == 0);
    BOOST_TEST(plan.bytes[8].replicated > 0);

    const auto alone = make_plan(sizes_of_35b(), request_for_shares({1, 0}));
    for (const auto& cut : alone.layers)
        for (const auto* ranges : {&cut.mixer, &cut.out, &cut.expert, &cut.shared, &cut.down})
            BOOST_TEST((*ranges)[1].empty());
    BOOST_TEST(alone.head[1].empty());
    BOOST_TEST(sole_rank(alone).value() == 0);
    BOOST_TEST(alone.bytes[1].weights() == alone.bytes[1].replicated);
    BOOST_TEST(!sole_rank(make_plan(sizes_of_35b(), request_for_shares({1, 1}))));
}

BOOST_AUTO_TEST_CASE(swapping_the_ranks_swaps_the_plan) {
    std::mt19937 random(3);
    const auto sizes = sizes_of_35b();
    for (int round = 0; round < 40; ++round) {
        const int n = std::uniform_int_distribution<int>(2, 5)(random);
        std::vector<RankMemory> ranks;
        std::vector<double> shares;
        for (int r = 0; r < n; ++r) {
            ranks.push_back(
                card(12 + 2.3 * r + std::uniform_real_distribution<>(0, 2)(random), 200 * (r + 1.5)));
            shares.push_back(1 + r);
        }
        std::shuffle(ranks.begin(), ranks.end(), random);
        for (const auto policy : {Policy::memory, Policy::speed, Policy::shares}) {
            auto request = request_for(ranks, policy);
            request.exchange_seconds = 1e-7;  // so that all ranks are worth using
            if (policy == Policy::shares) {
                request.shares = shares;
                for (auto& rank : request.ranks) rank.bytes *= 4;
            }
            auto swapped = request;
            std::reverse(swapped.ranks.begin(), swapped.ranks.end());
            std::reverse(swapped.shares.begin(), swapped.shares.end());
            const auto a = make_plan(sizes, request), b = make_plan(sizes, swapped);
            const auto mirrored = [](const std::vector<Range>& x, const std::vector<Range>& y) {
                for (std::size_t r = 0; r < x.size(); ++r)
                    if (x[r].size() != y[x.size() - 1 - r].size()) return false;
                return true;
            };
            for (std::size_t l = 0; l < a.layers.size(); ++l) {
                BOOST_TEST_REQUIRE(mirrored(a.layers[l].mixer, b.layers[l].mixer));
                BOOST_TEST_REQUIRE(mirrored(a.layers[l].out, b.layers[l].out));
                BOOST_TEST_REQUIRE(mirrored(a.layers[l].expert, b.layers[l].expert));
                BOOST_TEST_REQUIRE(mirrored(a.layers[l].shared, b.layers[l].shared));
                BOOST_TEST_REQUIRE(mirrored(a.layers[l].down, b.layers[l].down));
            }
            BOOST_TEST_REQUIRE(mirrored(a.head, b.head));
            BOOST_TEST_REQUIRE(a.context_capacity == b.context_capacity);
            for (std::size_t r = 0; r < ranks.size(); ++r)
                BOOST_TEST_REQUIRE(a.bytes[r].total() == b.bytes[ranks.size() - 1 - r].total());
        }
    }
}

BOOST_AUTO_TEST_CASE(a_large_layer_is_cut_by_its_own_bytes) {
    auto config = sizes_of_35b().config;
    config.layers = layer_kinds(4, 5);
    auto sizes = sizes_with(config, {Format::fp8_row, Format::nvfp4, Format::nvfp4});
    sizes.layers[1][Role::gate_up].format = sizes.layers[1][Role::down].format =
        Format::bf16;  // experts of 3.5 times the bytes
    const auto plan = make_plan(sizes, request_for_shares({0.7, 0.3}));
    const double bytes[] = {static_cast<double>(plan.bytes[0].experts),
                            static_cast<double>(plan.bytes[1].experts)};
    BOOST_TEST(std::abs(bytes[0] / (bytes[0] + bytes[1]) - 0.7) < 0.01);
}

BOOST_AUTO_TEST_CASE(shares_that_cannot_be_meant_are_refused) {
    const auto refused = [](std::vector<double> shares, std::size_t ranks) {
        auto request = request_for_shares(std::vector<double>(ranks, 1));
        request.shares = std::move(shares);
        try {
            make_plan(sizes_of_35b(), request);
        } catch (const Error& error) { return error.code() == Exit::usage; }
        return false;
    };
    BOOST_TEST(refused({1, 1, 1}, 2));
    BOOST_TEST(refused({1}, 2));
    BOOST_TEST(refused({0, 0}, 2));
    BOOST_TEST(refused({-1, 2}, 2));
    BOOST_TEST(refused({std::nan(""), 2}, 2));
    BOOST_TEST(refused({}, 0));
}
