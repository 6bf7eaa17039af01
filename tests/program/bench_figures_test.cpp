// The figures of bench: bytes of a step against the plan's own count, percentiles, prompts that never change.
#define BOOST_TEST_MODULE bench_figures
#include <boost/test/unit_test.hpp>
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
    plan.slots = 4;
    plan.context = 100;
    plan.bytes.resize(2);
    plan.bytes[0].delta_net = 1000;
    plan.bytes[0].experts = 6400;
    plan.bytes[0].recurrent_state = 400;
    plan.bytes[0].kv_cache = 8000;
    return plan;
}

ModelConfig small_config() {
    ModelConfig config;
    config.hidden = 8;
    config.experts = 64;
    config.top_k = 8;
    return config;
}

}  // namespace

BOOST_AUTO_TEST_CASE(bytes_by_hand) {
    const auto one = step_bytes(small_config(), small_plan(), 0, 1, 10);
    BOOST_TEST(one.delta_net == 1000);
    BOOST_TEST(one.experts == 800, boost::test_tools::tolerance(1e-12));  // 8 of 64
    BOOST_TEST(one.recurrent_state == 200);                               // a quarter, twice
    BOOST_TEST(one.kv_cache == 200);                                      // 20 a token of one sequence
    BOOST_TEST(one.embedding == 16);
    BOOST_TEST(one.total() == 1000 + 800 + 200 + 200 + 16, boost::test_tools::tolerance(1e-12));
    const auto two = step_bytes(small_config(), small_plan(), 0, 2, 10);
    BOOST_TEST(two.experts == 6400 * (1 - 0.875 * 0.875), boost::test_tools::tolerance(1e-12));
    BOOST_TEST(two.delta_net == 1000);
    BOOST_TEST(two.kv_cache == 400);
    double sum = 0;
    for (const auto& [name, bytes] : two.groups()) sum += bytes;
    BOOST_TEST(sum == two.total(), boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(bytes_of_one_sequence_are_what_the_plan_counts) {
    const auto sizes = test::sizes_of_35b();
    for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}, {3, 1}})
        for (const int slots : {1, 3}) {
            PlanRequest request;
            request.policy = Policy::shares;
            request.shares = shares;
            request.ranks.resize(shares.size(), {32ull << 30, 0, "card"});
            request.context = 4096;
            request.slots = slots;
            const auto plan = make_plan(sizes, request);
            for (int r = 0; r < plan.ranks; ++r)
                BOOST_TEST(step_bytes(sizes.config, plan, r, 1, 0).total() ==
                               plan.read_bytes[static_cast<std::size_t>(r)],
                           boost::test_tools::tolerance(
                               1e-2));  // tiles that a rank's rows do not fill are held, not counted
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
    const auto f = figures_of(t, small_config(), small_plan(), around);
    BOOST_TEST(f.prefill_seconds == 2);  // of the slowest rank 4, 6, 2: median 4, for two prompts
    BOOST_TEST(f.prefill_tokens_per_second == 50);
    BOOST_TEST(f.step_median == 2);  // of 2, 2, 4
    BOOST_TEST(f.step_p99 == 4);
    BOOST_TEST(f.decode_tokens_per_second == 1);
    BOOST_TEST(f.gather_median[1] == 0.5);
    const double read = step_bytes(small_config(), small_plan(), 0, 2, 101.5).total();
    BOOST_TEST(f.roofline_seconds == read / 1000, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(f.roofline_share == read / 2000, boost::test_tools::tolerance(1e-12));
    around.read_bytes_per_second[1] = 0;
    BOOST_TEST(figures_of(t, small_config(), small_plan(), around).roofline_seconds == 0);
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
