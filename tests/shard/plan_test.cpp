// Bytes, capacity, prediction and policies, for machines that are not here.
#define BOOST_TEST_MODULE plan
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <sstream>

#include "error.hpp"
#include "geometry.hpp"
#include "shard/request.hpp"

using namespace ftmpi;
using namespace ftmpi::test;

namespace {

/// The pair of the report this program was made for: 24 GB at 1008 GB/s beside 16 GB at 288 GB/s, fixed costs
/// subtracted.
std::vector<RankMemory> pair() {
    const double fixed = static_cast<double>(kGpuFixedBytes) / (1ull << 30);
    return {card(24 - fixed, 1008), card(16 - fixed, 288)};
}

PlanRequest fp8_request(std::vector<RankMemory> ranks, Policy policy, std::int64_t context = 0) {
    auto request = request_for(std::move(ranks), policy);
    request.kv = KvType::fp8;
    request.context = context;
    return request;
}

struct Refusal {
    Exit code = Exit::ok;
    std::string what, hint;
};

Refusal refusal_of(const ModelSizes& sizes, const PlanRequest& request) {
    try {
        make_plan(sizes, request);
    } catch (const Error& error) { return {error.code(), error.what(), error.hint()}; }
    return {};
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// The number after `label` in `text`.
std::int64_t number_after(const std::string& text, const std::string& label) {
    const auto found = text.find(label);
    BOOST_TEST_REQUIRE(found != std::string::npos, "no '" << label << "' in: " << text);
    return std::stoll(text.substr(found + label.size()));
}

}  // namespace

BOOST_AUTO_TEST_CASE(bytes_read_for_a_token) {
    // 2383.4 MB by the arithmetic of the formats alone; ours adds row scales and keeps norms and convolution
    // in fp32.
    const auto plan = make_plan(sizes_of_35b(), fp8_request({card(80, 4800)}, Policy::speed));
    BOOST_TEST(std::abs(plan.reads[0].token() / 1e6 - 2383.4) < 0.01 * 2383.4, plan.reads[0].token() / 1e6);
    BOOST_TEST(plan.exchanges == 0);  // one rank gathers nothing
    BOOST_TEST(std::abs(plan.seconds_per_token - plan.reads[0].token() / 4800e9) < 1e-12);
    BOOST_TEST(plan.context == 262144);
    BOOST_TEST((plan.head[0] == Range{0, 248320}));
}

BOOST_AUTO_TEST_CASE(a_model_of_attention_layers_alone) {
    // Parameters of Qwen3-30B-A3B from its published configuration: 30,532,122,624.
    const std::int64_t expert = 3 * 768 * 2048,
                       layer = 128 * expert + 2 * 32 * 128 * 2048 + 2 * 4 * 128 * 2048 + 128 * 2048,
                       vectors = 2 * 2048 + 2 * 128, ends = 2 * 151936 * 2048 + 2048;
    BOOST_TEST(48 * (layer + vectors) + ends == 30532122624);
    const auto sizes = sizes_of_30b(Format::bf16);
    auto request = request_for({card(80, 3350)}, Policy::speed);
    request.embedding_on_host = false;
    const auto plan = make_plan(sizes, request);
    // Matrices in BF16, norms in FP32.
    BOOST_TEST(plan.bytes[0].weights() ==
               static_cast<std::uint64_t>(2 * (48 * layer + 2 * 151936 * 2048) + 4 * (48 * vectors + 2048)));
    BOOST_TEST(plan.bytes[0].shared_expert == 0u);
    BOOST_TEST(plan.bytes[0].delta_net == 0u);
    BOOST_TEST(plan.bytes[0].recurrent_state == 0u);
    // Read for a token: 8 of 128 experts, one row of the embedding.
    BOOST_TEST(plan.reads[0].token() ==
               2.0 * (48.0 * (layer - 120 * expert) + 151936 * 2048 + 2048) + 4.0 * (48 * vectors + 2048));
    // Keys and values of 4 heads of 128 in BF16.
    BOOST_TEST(plan.bytes[0].kv_cache == static_cast<std::uint64_t>(plan.context * 48 * 2 * 4 * 128 * 2));
    const auto w = workspace_of(sizes.config, plan, 0);
    BOOST_TEST(w.q == 256 * 32 * 128);
    BOOST_TEST(w.mixed == 256 * 32 * 128);
    BOOST_TEST(w.shared_act == 0);
    BOOST_TEST(w.shared_gate == 0);

    // Two cards that differ, in 4 bits: all heads and all columns once, a key/value head on one or two ranks.
    const auto cut =
        make_plan(sizes_of_30b(Format::nvfp4), request_for({card(12, 936), card(8, 448)}, Policy::speed));
    for (const auto& l : cut.layers) {
        BOOST_TEST_REQUIRE(l.mixer[0].end == l.mixer[1].begin);
        BOOST_TEST_REQUIRE(l.mixer[1].end == 32);
        BOOST_TEST_REQUIRE(l.expert[1].end == 768);
        BOOST_TEST_REQUIRE(l.expert[0].end % 16 == 0);
        BOOST_TEST_REQUIRE((l.shared[0].empty() && l.shared[1].empty()));
    }
    BOOST_TEST(cut.bytes[0].experts > cut.bytes[1].experts);
    BOOST_TEST(cut.context > 8192);
}

BOOST_AUTO_TEST_CASE(shares_are_quotients_whatever_their_size) {
    const auto sizes = sizes_of_35b();
    const auto cut = [&](std::vector<double> shares) {
        return make_plan(sizes, request_for_shares(std::move(shares))).layers[0].expert;
    };
    const auto even = cut({1, 1}), uneven = cut({3, 1});
    BOOST_TEST((cut({1e308, 1e308}) == even));
    BOOST_TEST((cut({5e-324, 5e-324}) == even));
    BOOST_TEST((cut({1.5e308, 0.5e308}) == uneven));
    BOOST_TEST((uneven != even));
}

BOOST_AUTO_TEST_CASE(bytes_held_are_those_of_the_rows) {
    const auto sizes = sizes_of_35b();
    const auto& c = sizes.config;
    auto request = request_for_shares({5, 3});
    request.slots = 3;
    request.context = 1000;
    request.embedding_on_host = false;
    const auto plan = make_plan(sizes, request);
    for (int rank = 0; rank < 2; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        std::uint64_t kv = 0, state = 0, experts = 0, attention = 0;
        for (std::size_t l = 0; l < plan.layers.size(); ++l) {
            const auto& cut = plan.layers[l];
            if (c.layers[l] == LayerKind::attention) {
                const auto heads = kv_heads_of(c, cut.mixer[r]).size();
                kv += static_cast<std::uint64_t>(3 * 2 * heads * 1000 * 256 * 2);
                attention += stored_bytes(Format::fp8_row, 1, cut.mixer[r].size() * 512, 2048) +
                             2 * stored_bytes(Format::fp8_row, 1, heads * 256, 2048) +
                             stored_bytes(Format::fp8_row, 1, cut.out[r].size(), 4096) + 2 * 256 * 4;
            } else {
                const auto groups = cut.mixer[r].size();
                state += static_cast<std::uint64_t>(3 * (groups * 2 * 128 * 128 + 3 * groups * 512) * 4);
            }
            experts += stored_bytes(Format::nvfp4, 256, 2 * cut.expert[r].size(), 2048) +
                       stored_bytes(Format::nvfp4, 256, cut.down[r].size(), 512);
        }
        const auto& bytes = plan.bytes[r];
        BOOST_TEST(bytes.kv_cache == kv);
        BOOST_TEST(bytes.recurrent_state == state);
        BOOST_TEST(bytes.experts == experts);
        BOOST_TEST(bytes.attention == attention);
        BOOST_TEST(bytes.head == stored_bytes(Format::nvfp4, 1, plan.head[r].size(), 2048));
        BOOST_TEST(bytes.embedding == stored_bytes(Format::bf16, 1, 248320, 2048));
        BOOST_TEST(bytes.rope == 1000u * 64 * 4);
        BOOST_TEST(bytes.replicated == 40u * (256 * 2048 * 2 + 16 * 2048 * 2 + 2 * 2048 * 4) + 2048 * 4);
        BOOST_TEST(bytes.workspace == 4 * static_cast<std::uint64_t>(workspace_of(c, plan, rank).total()));
    }
    const auto w = workspace_of(c, plan, 0);
    BOOST_TEST(w.stream == 256 * 2048);
    BOOST_TEST(w.mixed == 256 * 4096);
    BOOST_TEST(w.qkv == 256 * 10 * 512);
    BOOST_TEST(w.act == 256 * 8 * 512);
    BOOST_TEST(w.logits == 3 * 248320);
    const auto whole = make_plan(sizes, request_for_shares({1}));
    BOOST_TEST(plan.bytes[0].experts + plan.bytes[1].experts == whole.bytes[0].experts);
    BOOST_TEST(plan.bytes[0].head + plan.bytes[1].head == whole.bytes[0].head);
    BOOST_TEST(plan.bytes[0].shared_expert + plan.bytes[1].shared_expert == whole.bytes[0].shared_expert);
}

BOOST_AUTO_TEST_CASE(what_lacks_memory_is_told_in_units_that_fit) {
    const auto sizes = sizes_of_35b();
    Options options;
    options.backend = BackendChoice::cpu;
    options.hardware = {{24, 1008}};
    options.bare_size = "24";
    options.batch = 2;
    auto refusal = refusal_of(sizes, plan_request(options, ranks_of(options)));
    BOOST_TEST((refusal.code == Exit::does_not_fit));
    BOOST_TEST(contains(refusal.what, "rank 0 (24B@1008) needs "), refusal.what);
    BOOST_TEST(contains(refusal.what, ", has 24 B, misses "), refusal.what);
    BOOST_TEST(contains(refusal.what, " GiB"), refusal.what);
    BOOST_TEST(refusal.hint.starts_with("24 is 24 bytes; 24GiB?"), refusal.hint);
    BOOST_TEST(contains(refusal.hint, "a smaller --batch needs less"), refusal.hint);
    options.command = Command::bench;
    options.bare_size = "24000";
    refusal = refusal_of(sizes, plan_request(options, ranks_of(options)));
    BOOST_TEST(refusal.hint.starts_with("24000 is 24000 bytes; 24000MiB?"), refusal.hint);
    BOOST_TEST(contains(refusal.hint, "smaller --batches need less"), refusal.hint);
    options.backend = BackendChoice::cuda;
    BOOST_TEST(contains(refusal_of(sizes, plan_request(options, ranks_of(options))).what,
                        ", has 0 B beside the 614 MiB that a GPU's driver takes"));
    options.backend = BackendChoice::cpu;
    const std::pair<std::uint64_t, const char*> names[] = {
        {20ull << 20, "20MiB@288.5"},   {1, "1B@288.5"},
        {1536, "1.5KiB@288.5"},         {24ull << 30, "24GiB@288.5"},
        {16000000000, "14.9GiB@288.5"}, {2048ull << 30, "2TiB@288.5"}};
    for (const auto& [bytes, name] : names) {
        options.hardware = {{bytes, 288.5}};
        BOOST_TEST(ranks_of(options)[0].name == name);
    }
    auto shares = request_for({card(24)}, Policy::shares);
    shares.shares = {3, 1};
    BOOST_TEST(contains(refusal_of(sizes, shares).what, "--shares names 2 shares for 1 rank"));
    const Options none;
    try {
        ranks_of(none);
        BOOST_ERROR("a plan without hardware");
    } catch (const Error& error) { BOOST_TEST(contains(error.hint(), "--memory-limit")); }
}

BOOST_AUTO_TEST_CASE(unlike_cards_are_used_for_what_they_have) {
    const auto sizes = sizes_of_35b();
    const auto memory = make_plan(sizes, fp8_request(pair(), Policy::memory));
    const auto even = make_plan(sizes, fp8_request(pair(), Policy::even));
    BOOST_TEST(memory.context == 262144);
    BOOST_TEST(memory.context_capacity >
               1.5 * even.context_capacity);  // no key/value head twice, and both cards full
    BOOST_TEST(memory.given[0] > memory.given[1]);
    auto request = fp8_request(pair(), Policy::memory);
    request.slots = 8;
    const auto more = make_plan(sizes, request);
    BOOST_TEST(more.context < 262144);
    BOOST_TEST(more.context == more.context_capacity);
    for (std::size_t r = 0; r < 2; ++r) {
        const auto free = more.available[r] - more.bytes[r].total();
        BOOST_TEST(free < more.available[r] / 50, "rank " << r << " leaves " << free << " bytes unused");
    }
}

BOOST_AUTO_TEST_CASE(memory_policy_beats_every_share) {
    const auto sizes = sizes_of_35b();
    for (const double small : {2.0, 6.0, 16.0}) {
        auto request = fp8_request({card(24), card(small)}, Policy::memory);
        request.slots = 16;
        const auto best = make_plan(sizes, request);
        request.policy = Policy::shares;
        for (int percent = 40; percent <= 100; percent += 2) {
            request.shares = {percent / 100.0, 1 - percent / 100.0};
            try {
                BOOST_TEST(make_plan(sizes, request).context_capacity <= best.context_capacity,
                           small << " GiB, " << percent << "%");
            } catch (const Error& error) { BOOST_TEST((error.code() == Exit::does_not_fit)); }
        }
    }
    std::int64_t last = 0;
    for (int gib = 10; gib <= 24; ++gib) {
        auto request = fp8_request({card(24), card(gib)}, Policy::memory);
        const auto capacity = make_plan(sizes, request).context_capacity;
        BOOST_TEST(capacity > last);
        last = capacity;
    }
}

BOOST_AUTO_TEST_CASE(fixed_costs_come_before_the_ratio) {
    // A card with a ninth of the memory must not get a tenth of the model: workspace and replicated rows do
    // not shrink.
    const auto sizes = sizes_of_35b();
    for (const double small : {0.2, 0.5, 1.0, 2.4}) {
        const auto plan = make_plan(sizes, fp8_request({card(22), card(small)}, Policy::memory, 4096));
        for (std::size_t r = 0; r < 2; ++r) BOOST_TEST(plan.bytes[r].total() <= plan.available[r]);
        // A small card without attention heads has no cache and may hold a little more for it.
        BOOST_TEST(plan.given[1] < (plan.bytes[1].kv_cache ? 1.0 : 1.1) * small / (22 + small));
        const auto speed =
            make_plan(sizes, fp8_request({card(22, 500), card(small, 500)}, Policy::speed, 4096));
        for (std::size_t r = 0; r < 2; ++r) BOOST_TEST(speed.bytes[r].total() <= speed.available[r]);
    }
}

BOOST_AUTO_TEST_CASE(speed_follows_bandwidth_and_memory_clips_it) {
    const auto sizes = sizes_of_35b();
    auto request = fp8_request({card(60, 3000), card(60, 1000)}, Policy::speed);
    request.exchange_seconds = 1e-7;
    const auto free = make_plan(sizes, request);
    BOOST_TEST(std::abs(free.rank_seconds[0] / free.rank_seconds[1] - 1) < 0.02);
    request.ranks[0] = card(8, 3000);
    const auto clipped = make_plan(sizes, request);
    BOOST_TEST(clipped.given[0] < free.given[0]);
    BOOST_TEST(clipped.bytes[0].total() <= clipped.available[0]);
    BOOST_TEST(clipped.context >= 8192);
    BOOST_TEST(clipped.given[0] > 0.3);  // nothing is left unused for no reason

    std::mt19937 random(5);
    for (int round = 0; round < 20; ++round) {
        const auto any = [&](double low, double high) {
            return std::uniform_real_distribution<>(low, high)(random);
        };
        request.ranks = {card(any(12, 40), any(200, 4000)), card(any(12, 40), any(200, 4000)),
                         card(any(4, 40), any(200, 4000))};
        request.policy = Policy::speed;
        request.context = 8192;
        const auto best = make_plan(sizes, request);
        request.policy = Policy::shares;
        for (int other = 0; other < 20; ++other) {
            request.shares = {any(0, 1), any(0, 1), any(0, 1)};
            try {  // whole heads are coarse: another rounding may win by a part of one
                BOOST_TEST(make_plan(sizes, request).seconds_per_token > best.seconds_per_token * 0.99);
            } catch (const Error& error) { BOOST_TEST((error.code() == Exit::does_not_fit)); }
        }
    }
}

BOOST_AUTO_TEST_CASE(a_rank_must_save_more_than_its_gathers_cost) {
    const auto sizes = sizes_of_35b();
    const auto slow = make_plan(sizes, fp8_request(pair(), Policy::speed));
    BOOST_TEST(sole_rank(slow).value() == 0);
    BOOST_TEST(slow.given[1] == 0);
    BOOST_TEST(contains(plan_table(sizes, slow), "holds every row"));
    auto request = fp8_request(pair(), Policy::speed);
    request.exchange_seconds = 1e-6;
    const auto quick = make_plan(sizes, request);
    BOOST_TEST(quick.given[1] > 0.05);
    BOOST_TEST(quick.seconds_per_token < slow.seconds_per_token);
    BOOST_TEST(quick.exchanges == 40 * (quick.out_replicated ? 3 : 4) + 1);
    // Where one card cannot hold the context, the other is used whatever the gathers cost.
    request.exchange_seconds = 1e-4;
    request.ranks[0] = card(16, 1008);
    BOOST_TEST(make_plan(sizes, request).given[1] > 0.05);
}

BOOST_AUTO_TEST_CASE(output_projection_is_replicated_when_that_is_faster_and_fits) {
    const auto sizes = sizes_of_35b();
    auto request = fp8_request({card(40, 4800), card(40, 4800)}, Policy::even, 8192);
    request.exchange_seconds = 20e-6;
    const auto dear = make_plan(sizes, request);
    BOOST_TEST(dear.out_replicated);
    BOOST_TEST(dear.exchanges == 121);
    for (const auto& cut : dear.layers)
        for (const auto range : cut.out) BOOST_TEST_REQUIRE((range == Range{0, 2048}));
    request.exchange_seconds = 1e-7;
    const auto cheap = make_plan(sizes, request);
    BOOST_TEST(!cheap.out_replicated);
    BOOST_TEST(cheap.exchanges == 161);
    BOOST_TEST(dear.bytes[0].total() > cheap.bytes[0].total());
    request.exchange_seconds = 20e-6;
    for (std::size_t r = 0; r < 2; ++r)
        request.ranks[r].bytes = cheap.bytes[r].total();  // no room to replicate
    BOOST_TEST(!make_plan(sizes, request).out_replicated);
}

BOOST_AUTO_TEST_CASE(unknown_bandwidth_means_equal_and_no_time) {
    const auto sizes = sizes_of_35b();
    const auto plan = make_plan(sizes, fp8_request({card(24), card(16)}, Policy::speed));
    BOOST_TEST(std::abs(plan.given[0] - 0.5) < 0.01);
    BOOST_TEST(plan.seconds_per_token == 0);
    BOOST_TEST(contains(plan_table(sizes, plan), "unknown"));
    BOOST_TEST(contains(plan_json(sizes, plan), "\"seconds_per_token\": null"));
    const auto half_known = make_plan(sizes, fp8_request({card(24, 500), card(24)}, Policy::even));
    BOOST_TEST(half_known.gb_per_s[1] == 500);
    BOOST_TEST(contains(half_known.notes.at(0), "unknown"));
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused_with_what_would) {
    const auto sizes = sizes_of_35b();
    for (const auto policy : {Policy::memory, Policy::speed, Policy::even}) {
        auto request = fp8_request(pair(), policy, 262144);
        request.slots = 12;
        const auto refusal = refusal_of(sizes, request);
        BOOST_TEST((refusal.code == Exit::does_not_fit));
        BOOST_TEST(contains(refusal.what, "rank 1"));
        BOOST_TEST(contains(refusal.what, "misses"));
        request.context = number_after(refusal.hint, "with this cut --context ");
        BOOST_TEST(make_plan(sizes, request).context == request.context);
        ++request.context;
        if (policy != Policy::speed) BOOST_TEST((refusal_of(sizes, request).code == Exit::does_not_fit));
    }
    // An even cut stops at the smallest card; the message names the shares that do not.
    auto request = fp8_request({card(24), card(8)}, Policy::even, 4096);
    const auto refusal = refusal_of(sizes, request);
    BOOST_TEST((refusal.code == Exit::does_not_fit));
    const auto shares = refusal.hint.substr(refusal.hint.find("--shares ") + 9);
    request.policy = Policy::shares;
    request.shares = {std::stod(shares), std::stod(shares.substr(shares.find(',') + 1))};
    BOOST_TEST(make_plan(sizes, request).context == 4096);

    const auto none = refusal_of(sizes, fp8_request({card(8), card(6)}, Policy::memory));
    BOOST_TEST((none.code == Exit::does_not_fit));
    const std::string before = "all ranks together miss ";
    BOOST_TEST_REQUIRE(contains(none.hint, before), none.hint);
    const auto missing = std::stod(none.hint.substr(none.hint.find(before) + before.size())) * 1024;
    BOOST_TEST(contains(none.hint, " GiB"), none.hint);
    const auto whole = make_plan(sizes, fp8_request({card(40)}, Policy::memory, 1)).bytes[0].total() >> 20;
    const auto expected = static_cast<double>(whole) - 14 * 1024;
    BOOST_TEST((missing >= expected - 6 && missing < expected + 200),
               missing);  // more by what both ranks hold
    const auto tiny = refusal_of(sizes, fp8_request({card(24), card(0.01)}, Policy::memory));
    BOOST_TEST(contains(tiny.hint, "rank 1 cannot hold even what every rank needs"));
}

BOOST_AUTO_TEST_CASE(context_is_chosen_from_memory_and_bounded_by_the_model) {
    const auto sizes = sizes_of_35b();
    auto request = fp8_request({card(22)}, Policy::speed);
    request.kv = KvType::bf16;
    request.slots = 2;
    const auto plan = make_plan(sizes, request);
    BOOST_TEST(plan.context < 262144);
    BOOST_TEST(plan.context > 10000);
    BOOST_TEST(plan.context == plan.context_capacity);
    BOOST_TEST(plan.bytes[0].total() <= plan.available[0]);
    BOOST_TEST(plan.available[0] - plan.bytes[0].total() <
               2u * 10 * 2 * 2 * 256 * 2 + 256);  // not one token more
    request.ranks[0] = card(200);
    const auto large = make_plan(sizes, request);
    BOOST_TEST(large.context == 262144);
    BOOST_TEST(large.context_capacity > 262144);
    request.context = 262145;
    const auto refusal = refusal_of(sizes, request);
    BOOST_TEST((refusal.code == Exit::usage));
    BOOST_TEST(contains(refusal.hint, "262144"));
}

BOOST_AUTO_TEST_CASE(a_request_that_cannot_fit_takes_nothing_from_those_that_can) {
    const auto sizes = sizes_of_35b();
    Options options;
    // Unlike cards: for speed the fast one is filled, and 8192 tokens are all that such a cut must hold.
    auto request = fp8_request({card(10.5, 1008), card(10.5, 288)}, Policy::speed);
    request.kv = KvType::bf16;
    const auto most = make_plan(sizes, request).context;
    const auto all = make_plan(sizes,
                               [&] {
                                   auto r = request;
                                   r.policy = Policy::memory;
                                   return r;
                               }())
                         .context;
    BOOST_TEST_REQUIRE(most < all);
    const auto fits = (most + all) / 2;
    BOOST_TEST(plan_for(options, sizes, request, false, {4096, fits}).context == fits);
    BOOST_TEST(plan_for(options, sizes, request, false, {4096, fits, all + 1, 262144}).context == fits);
    BOOST_TEST(plan_for(options, sizes, request, false, {4096, 8192, 262144}).context == most);
    BOOST_TEST(plan_for(options, sizes, request, false, {4096}).context == 4096);
}

BOOST_AUTO_TEST_CASE(policies_hold_on_any_geometry) {
    std::mt19937 random(11);
    const auto pick = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
    };
    int fitted = 0;
    for (int round = 0; round < 150; ++round) {
        const auto sizes = random_sizes(random);
        std::vector<RankMemory> ranks;
        const auto whole = make_plan(sizes, request_for_shares({1})).bytes[0].total();
        const int n = pick(1, 9);
        for (int r = 0; r < n; ++r)
            ranks.push_back({whole * static_cast<std::uint64_t>(pick(1, 40)) / 20,
                             pick(0, 2) ? 10.0 * pick(1, 100) : 0.0, "x"});
        for (const auto policy : {Policy::memory, Policy::speed, Policy::even}) {
            auto request = request_for(ranks, policy);
            request.prefill_rows = 4;
            request.context = pick(0, 1) ? 0 : pick(1, 512);
            try {
                const auto plan = make_plan(sizes, request);
                ++fitted;
                for (std::size_t r = 0; r < ranks.size(); ++r)
                    BOOST_TEST_REQUIRE(plan.bytes[r].total() <= ranks[r].bytes);
                BOOST_TEST_REQUIRE(plan.context <= plan.context_capacity);
                BOOST_TEST_REQUIRE((plan.context >= 1 && plan.context <= 1024));
                std::int64_t next = 0;
                for (const auto range : plan.head) {
                    BOOST_TEST_REQUIRE(range.begin == next);
                    next = range.end;
                }
                BOOST_TEST_REQUIRE(next == sizes.config.vocab);
                std::istringstream lines(plan_table(sizes, plan));
                for (std::string line; std::getline(lines, line);)
                    BOOST_TEST_REQUIRE(line.size() <= 120u, line);
            } catch (const Error& error) {
                BOOST_TEST_REQUIRE((error.code() == Exit::does_not_fit));
                BOOST_TEST_REQUIRE(!error.hint().empty());
            }
        }
    }
    BOOST_TEST(fitted > 100);
}

BOOST_AUTO_TEST_CASE(options_describe_the_hardware) {
    Options options;
    options.hardware = {{24ull << 30, 1008}, {16ull << 30, 288}};
    auto ranks = ranks_of(options);
    BOOST_TEST(ranks.size() == 2u);
    BOOST_TEST(ranks[0].bytes == (24ull << 30) - kGpuFixedBytes);
    BOOST_TEST(ranks[1].gb_per_s == 288);
    BOOST_TEST(ranks[1].name == "16GiB@288");
    options.backend = BackendChoice::cpu;
    BOOST_TEST(ranks_of(options)[0].bytes == 24ull << 30);
    options = {};
    BOOST_CHECK_THROW(ranks_of(options), Error);
    options.memory_limit = {1ull << 30};
    options.bandwidth = {100, 200, 300};
    BOOST_TEST(ranks_of(options).size() == 3u);
    BOOST_TEST(ranks_of(options)[2].gb_per_s == 300);
    options.memory_limit = {1ull << 30, 1ull << 29};
    BOOST_CHECK_THROW(ranks_of(options), Error);
    options.hardware = {{1ull << 30, 1}};
    BOOST_CHECK_THROW(ranks_of(options), Error);

    options = {};
    options.policy = Policy::memory;
    options.context = 77;
    options.batch = 5;
    options.kv = KvType::fp32;
    options.prefill_chunk = 7;
    options.embedding_on_host = false;
    const auto request = plan_request(options, {card(1)});
    BOOST_TEST((request.policy == Policy::memory && request.context == 77 && request.slots == 5 &&
                request.kv == KvType::fp32 && request.prefill_rows == 7 && !request.embedding_on_host &&
                request.ranks.size() == 1));
}

BOOST_AUTO_TEST_CASE(the_embedding_goes_to_gpus_that_have_room) {
    const auto sizes = sizes_of_35b();
    const auto on_host = [&](std::vector<RankMemory> ranks, Policy policy, std::int64_t context,
                             std::optional<bool> asked = {}, bool on_gpus = true) {
        Options options;
        options.embedding_on_host = asked;
        auto request = fp8_request(std::move(ranks), policy, context);
        request.embedding_on_host = asked.value_or(true);
        return plan_for(options, sizes, request, on_gpus).embedding_on_host;
    };
    const std::vector<RankMemory> large{card(80, 4800)}, two{card(80, 4800), card(80, 4800)};
    for (const Policy policy : {Policy::speed, Policy::memory}) {
        BOOST_TEST(!on_host(large, policy, 0));
        BOOST_TEST(!on_host(two, policy, 4096));
    }
    BOOST_TEST(on_host(large, Policy::speed, 0, true));
    BOOST_TEST(!on_host(large, Policy::speed, 0, false));
    BOOST_TEST(on_host(large, Policy::speed, 0, {}, false));  // no GPUs
    // A card that holds the model with some context, but not the table's 970 MiB beside it.
    const auto plan = make_plan(sizes, fp8_request(large, Policy::speed, 4096));
    const auto needed = static_cast<double>(plan.bytes[0].total()) / (1ull << 30);
    BOOST_TEST(on_host({card(needed + 0.5, 1008)}, Policy::speed, 4096));
    BOOST_TEST(!on_host({card(needed + 1, 1008)}, Policy::speed, 4096));
    BOOST_TEST(on_host({card(needed + 1, 1008)}, Policy::speed, 0));  // it would shorten the context
    // Where the table would change the cut, it stays: the cut by bandwidth fits without it only.
    const auto cut = make_plan(sizes, fp8_request({card(80, 1008), card(80, 288)}, Policy::speed, 4096));
    const auto first = static_cast<double>(cut.bytes[0].total()) / (1ull << 30),
               second = static_cast<double>(cut.bytes[1].total()) / (1ull << 30);
    BOOST_TEST(on_host({card(first + 0.5, 1008), card(second + 0.5, 288)}, Policy::speed, 4096));
    BOOST_TEST(!on_host({card(first + 1, 1008), card(second + 1, 288)}, Policy::speed, 4096));
}

BOOST_AUTO_TEST_CASE(json_is_well_formed) {
    const auto sizes = sizes_of_35b();
    auto ranks = pair();
    ranks[0].name = "quote \" backslash \\ newline \n";
    const auto json = plan_json(sizes, make_plan(sizes, fp8_request(ranks, Policy::memory)));
    int depth = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < json.size(); ++i) {
        if (in_string) {
            if (json[i] == '\\') ++i;
            else if (json[i] == '"') in_string = false;
            else BOOST_TEST_REQUIRE(static_cast<unsigned char>(json[i]) >= 0x20);
        } else if (json[i] == '"') in_string = true;
        else if (json[i] == '{' || json[i] == '[') ++depth;
        else if (json[i] == '}' || json[i] == ']') BOOST_TEST_REQUIRE(--depth >= 0);
    }
    BOOST_TEST(depth == 0);
    BOOST_TEST(contains(json, "\"policy\": \"memory\""));
    BOOST_TEST(contains(json, "\"context_capacity\": "));
    BOOST_TEST(number_after(json, "\"context\": ") == 262144);
}
