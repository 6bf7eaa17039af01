// What the plan says a rank holds, group by group, against what its backend has in fact given out.
#define BOOST_TEST_MODULE allocated_bytes
#include <boost/test/unit_test.hpp>

#include "fleet.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

void check_fleet(const std::string& model, const FleetOptions& options) {
    Fleet fleet(std::filesystem::path(FTMPI_DATA) / model, options);
    for (int r = 0; r < options.ranks; ++r) {
        const RankBytes& planned = fleet.plan().bytes[static_cast<std::size_t>(r)];
        RankBytes held = fleet.weights(r).allocated();
        held.kv_cache = fleet.state(r).allocated().kv_cache;
        held.recurrent_state = fleet.state(r).allocated().recurrent_state;
        held.rope = fleet.state(r).allocated().rope;
        const std::uint64_t all = fleet.backend(r).allocated_bytes();
        BOOST_TEST_REQUIRE(all >= held.arrays());
        // The rest is workspace; what the decode loop takes is not there yet.
        const Workspace w = workspace_of(fleet.config(), fleet.plan(), r);
        held.workspace = all - held.arrays() + 4 * static_cast<std::uint64_t>(w.token_mask + w.chosen);
        for (const auto& group : kByteGroups)
            BOOST_TEST((held.*group.bytes) == (planned.*group.bytes),
                       model << ", rank " << r << " of " << options.ranks << ": " << group.name
                             << " is planned with " << planned.*group.bytes << " bytes and holds "
                             << held.*group.bytes);
    }
}

const std::vector<double> kCuts[] = {{1},    {1, 1},  {3, 1},    {9, 7},    {1, 0},
                                     {0, 1}, {40, 1}, {5, 2, 1}, {1, 0, 1}, {30, 1, 1}};

}  // namespace

BOOST_AUTO_TEST_CASE(every_group_is_held_as_planned) {
    bool without_heads = false, without_rows = false;
    for (const char* model : {"tiny-nvfp4", "tiny-fp8", "tiny-qwen3-moe-fp8"})
        for (const auto& shares : kCuts) {
            FleetOptions options;
            options.ranks = static_cast<int>(shares.size());
            options.shares = shares;
            options.context = 300;
            options.prefill_rows = 20;
            options.edit_plan = [&](ShardPlan& plan) {
                for (int r = 0; r < plan.ranks; ++r) {
                    const RankBytes& b = plan.bytes[static_cast<std::size_t>(r)];
                    without_heads = without_heads || (b.kv_cache == 0 && b.experts > 0);
                    without_rows = without_rows || (b.kv_cache == 0 && b.experts == 0);
                }
            };
            check_fleet(model, options);
        }
    BOOST_TEST(without_heads);  // or the cuts do not show what they are there for
    BOOST_TEST(without_rows);
}

BOOST_AUTO_TEST_CASE(caches_slots_and_a_table_on_the_rank) {
    for (const KvType kv : {KvType::bf16, KvType::fp8, KvType::fp32})
        for (const bool on_host : {true, false}) {
            FleetOptions options;
            options.ranks = 2;
            options.shares = {5, 3};
            options.kv = kv;
            options.slots = 5;
            options.context = 77;
            options.prefill_rows = 3;  // fewer rows than sequences
            options.embedding_on_host = on_host;
            check_fleet("tiny-nvfp4", options);
        }
}

BOOST_AUTO_TEST_CASE(what_is_released_is_held_no_more) {
    const auto backend = make_cpu_backend(1);
    BOOST_TEST(backend->allocated_bytes() == 0u);
    std::uint64_t span = 0;
    {
        const AllocationCounter counted(*backend, span);
        const DeviceArray<float> small(*backend, 10, "test");
        DeviceArray<float> large(*backend, 1 << 20, "test");
        BOOST_TEST(backend->allocated_bytes() == 40u + (4u << 20));
        large = {};
        BOOST_TEST(backend->allocated_bytes() == 40u);
    }
    BOOST_TEST(backend->allocated_bytes() == 0u);
}
