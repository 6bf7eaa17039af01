// The figures of bench: bytes of a step against the plan's own count, percentiles, prompts that never change.
#define BOOST_TEST_MODULE bench_figures
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <set>

#include "bench/prompts.hpp"
#include "bench/report.hpp"
#include "geometry.hpp"

using namespace ftmpi;

namespace {

/// A plan whose bytes are given, so that every part of a figure can be worked out by hand.
ShardPlan small_plan() {
    ShardPlan plan;
    plan.ranks = 2;
    plan.reads.resize(2);
    StepBytes& unit = plan.reads[0].unit;
    plan.reads[0].routed = 8.0 / 64;
    unit.delta_net = 1000;
    unit.experts = 6400;
    unit.embedding = 16;
    unit.recurrent_state = 200;
    unit.kv_cache = 20;
    return plan;
}

}  // namespace

BOOST_AUTO_TEST_CASE(bytes_by_hand) {
    const auto one = small_plan().reads[0].at(1, 10);
    BOOST_TEST(one.delta_net == 1000);
    BOOST_TEST(one.experts == 800);  // 8 of 64
    BOOST_TEST(one.recurrent_state == 200);
    BOOST_TEST(one.kv_cache == 200);  // 10 tokens of one sequence
    BOOST_TEST(one.embedding == 16);
    BOOST_TEST(one.total() == 1000 + 800 + 200 + 200 + 16);
    const auto two = small_plan().reads[0].at(2, 10);
    BOOST_TEST(two.experts == 6400 * (1 - 0.875 * 0.875), boost::test_tools::tolerance(1e-12));
    BOOST_TEST(two.delta_net == 1000);
    BOOST_TEST(two.recurrent_state == 400);
    BOOST_TEST(two.kv_cache == 400);
    BOOST_TEST(two.embedding == 32);
}

BOOST_AUTO_TEST_CASE(bench_and_plan_see_the_same_bytes) {
    const auto sizes = test::sizes_of_35b();
    for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}, {3, 1}})
        for (const int slots : {1, 3}) {
            PlanRequest request;
            request.policy = Policy::shares;
            request.shares = shares;
            request.ranks.resize(shares.size(), {32ull << 30, 500, "card"});
            request.context = 4096;
            request.slots = slots;
            const auto plan = make_plan(sizes, request);
            const std::vector<std::vector<double>> times(shares.size(), {1});
            Surroundings around;
            around.read_bytes_per_second.assign(shares.size(), 500e9);
            const auto first = figures_of({{0, 0, 1}, times, {}, times, {}}, plan, around);
            const std::string json = plan_json(sizes, plan);
            std::size_t at = 0;
            for (int r = 0; r < plan.ranks; ++r) {
                const std::string key = "\"read_bytes_per_token\": ";
                at = json.find(key, at) + key.size();
                BOOST_TEST(std::stod(json.substr(at)) == first.bytes[static_cast<std::size_t>(r)].total(),
                           boost::test_tools::tolerance(1e-8));  // nine digits are printed
            }
            BOOST_TEST(first.roofline_seconds ==
                       *std::max_element(plan.rank_seconds.begin(), plan.rank_seconds.end()));

            // Later steps of several sequences read what the plan holds for them.
            const auto later = figures_of({{100, 8, slots}, times, {}, times, {}}, plan, around);
            for (std::size_t r = 0; r < shares.size(); ++r) {
                const auto& held = plan.bytes[r];
                const auto& read = later.bytes[r];
                BOOST_TEST(read.delta_net <= static_cast<double>(held.delta_net));
                BOOST_TEST(read.delta_net > 0.99 * static_cast<double>(held.delta_net));
                BOOST_TEST(read.attention == static_cast<double>(held.attention));
                BOOST_TEST(read.shared_expert == static_cast<double>(held.shared_expert));
                BOOST_TEST(read.head == static_cast<double>(held.head));
                BOOST_TEST(read.recurrent_state == 2.0 * static_cast<double>(held.recurrent_state));
                BOOST_TEST(read.kv_cache * 4096 == 104.0 * static_cast<double>(held.kv_cache));
                BOOST_TEST(read.embedding == 2.0 * static_cast<double>(sizes.config.hidden) * slots);
                BOOST_TEST(
                    read.experts == (1 - std::pow(1 - 8.0 / 256, slots)) * static_cast<double>(held.experts),
                    boost::test_tools::tolerance(1e-12));
                // Held, but not read: 15 rows of padding of each shared expert's gate.
                BOOST_TEST(read.replicated == static_cast<double>(held.replicated) -
                                                  40.0 * 15 * 2 * static_cast<double>(sizes.config.hidden));
            }
        }
}

BOOST_AUTO_TEST_CASE(percentiles_are_values_that_were_measured) {
    std::vector<double> v;
    for (int i = 100; i >= 1; --i) v.push_back(i);
    BOOST_TEST(median(v) == 50);
    BOOST_TEST(percentile(v, 0.05) == 5);
    BOOST_TEST(percentile(v, 0.99) == 99);
    BOOST_TEST(percentile(v, 1) == 100);
    BOOST_TEST(percentile(v, 0) == 1);
    BOOST_TEST(median({7}) == 7);
    BOOST_TEST(median({1, 8}) == 1);  // of an even number the lower of the two in the middle, not their mean
    BOOST_TEST(median({9, 1, 4, 2}) == 2);
    BOOST_TEST(median({}) == 0);
}

BOOST_AUTO_TEST_CASE(figures_of_a_case) {
    CaseTimes t;
    t.what = {100, 3, 2};
    t.prefill_seconds = {{4, 2, 2}, {2, 6, 2}};
    t.prefill_gather_seconds = {{0, 0, 0}, {0, 0, 0}};
    t.step_seconds = {{1, 2, 3}, {2, 1, 4}};
    t.gather_seconds = {{0.1, 0.2, 0.3}, {0.5, 0.4, 0.6}};
    Surroundings around;
    around.read_bytes_per_second = {1000, 500};
    const auto f = figures_of(t, small_plan(), around);
    BOOST_TEST(f.prefill_seconds == 2);  // of the slowest rank 4, 6, 2: median 4, for two prompts
    BOOST_TEST(f.prefill_tokens_per_second == 50);
    BOOST_TEST(f.step_median == 2);  // of 2, 2, 4
    BOOST_TEST(f.step_p99 == 4);
    BOOST_TEST(f.decode_tokens_per_second == 1);
    BOOST_TEST(f.gather_median[1] == 0.5);
    const double read = small_plan().reads[0].at(2, 101.5).total();
    BOOST_TEST(f.roofline_seconds == read / 1000, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(f.roofline_share == read / 2000, boost::test_tools::tolerance(1e-12));
    around.read_bytes_per_second[1] = 0;
    BOOST_TEST(figures_of(t, small_plan(), around).roofline_seconds == 0);
}

BOOST_AUTO_TEST_CASE(prompts_are_the_same_always_and_vary) {
    const auto tokenizer = Tokenizer::load(FTMPI_DATA "/tiny-nvfp4");
    const PromptSource source(tokenizer, 0);
    const auto a = source.prompt(0, 512);
    BOOST_TEST(a == PromptSource(tokenizer, 0).prompt(0, 512));
    BOOST_TEST(a.size() == 512u);
    const auto shorter = source.prompt(0, 100);
    BOOST_TEST(std::equal(shorter.begin(), shorter.end(), a.begin()));
    BOOST_TEST(a != source.prompt(1, 512));
    BOOST_TEST(a != PromptSource(tokenizer, 1).prompt(0, 512));
    const std::set<std::int32_t> distinct(a.begin(), a.end());
    BOOST_TEST(distinct.size() > 150u);
    for (const auto id : distinct) BOOST_TEST((tokenizer.has(id) && !tokenizer.is_special(id)));
}
