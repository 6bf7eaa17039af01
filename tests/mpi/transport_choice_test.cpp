// Which transports are tried, and in which order, for the devices that ranks run on.
#define BOOST_TEST_MODULE transport_choice
#include "transport/choice.hpp"

#include <boost/test/unit_test.hpp>

#include "error.hpp"
#include "transport/columns.hpp"

namespace {

using namespace ftmpi;
using namespace ftmpi::mpi;

std::vector<Transport> order(Transport wanted, const std::vector<RankInfo>& ranks) {
    std::vector<Transport> out;
    for (const auto& candidate : candidates(wanted, ranks)) {
        BOOST_TEST(!candidate.reason.empty());
        out.push_back(candidate.transport);
    }
    return out;
}

void refused(Transport wanted, const std::vector<RankInfo>& ranks, const std::string& words) {
    BOOST_CHECK_EXCEPTION(candidates(wanted, ranks), Error, [&](const Error& error) {
        const std::string text = error.what();
        return error.code() == Exit::usage && text.find(words) != std::string::npos &&
               text.find(name_of(wanted)) != std::string::npos;
    });
}

using Order = std::vector<Transport>;
const RankInfo a0{"a", "cuda", "GPU-0", true}, a1{"a", "cuda", "GPU-1", true}, cpu{"a", "cpu", "", true};
const RankInfo far_a{"a", "cuda", "GPU-0", false}, far_b{"b", "cuda", "GPU-0", false};

}  // namespace

BOOST_AUTO_TEST_CASE(automatic_takes_the_nearest_and_ends_with_mpi) {
    BOOST_TEST(
        (order(Transport::automatic, {a0, a1}) == Order{Transport::peer, Transport::pinned, Transport::mpi}));
    BOOST_TEST((order(Transport::automatic, {far_a, far_b}) == Order{Transport::nccl, Transport::mpi}));
    BOOST_TEST((order(Transport::automatic, {cpu, cpu}) == Order{Transport::mpi}));
    BOOST_TEST((order(Transport::automatic, {a0, cpu}) == Order{Transport::mpi}));
}

BOOST_AUTO_TEST_CASE(ranks_that_share_a_gpu_do_not_spin_on_it) {
    BOOST_TEST((order(Transport::automatic, {a0, a1, a0}) == Order{Transport::mpi}));
    BOOST_TEST(candidates(Transport::automatic, {a0, a1, a0})[0].reason.find(
                   "ranks 0 and 2 share the GPU GPU-0") != std::string::npos);
    refused(Transport::nccl, {a0, a0}, "ranks 0 and 1 share the GPU GPU-0");
    // Asked for, it is slow but it works.
    BOOST_TEST((order(Transport::pinned, {a0, a0}) == Order{Transport::pinned}));
    // The same UUID on two hosts is not one GPU.
    BOOST_TEST((order(Transport::nccl, {far_a, far_b}) == Order{Transport::nccl}));
}

BOOST_AUTO_TEST_CASE(what_is_asked_for_is_the_only_one) {
    for (const auto wanted : {Transport::peer, Transport::pinned, Transport::nccl, Transport::mpi})
        BOOST_TEST((order(wanted, {a0, a1}) == Order{wanted}));
    BOOST_TEST((order(Transport::mpi, {cpu, a1}) == Order{Transport::mpi}));
    for (const auto wanted : {Transport::peer, Transport::pinned, Transport::nccl})
        refused(wanted, {cpu, cpu}, "CUDA backend");
    for (const auto wanted : {Transport::peer, Transport::pinned})
        refused(wanted, {far_a, far_b}, "several hosts");
}

BOOST_AUTO_TEST_CASE(pieces_must_tile_the_width) {
    const std::vector<Range> good = {{0, 3}, {3, 3}, {3, 10}}, hole = {{0, 3}, {4, 4}, {4, 10}},
                             outside = {{0, 3}, {3, 3}, {4, 11}};
    float data = 0;
    const auto check = [&](const std::vector<Range>& ranges, int size, std::int64_t rows = 2) {
        const ShardedColumns part{&data, rows, 10, ranges};
        check_columns({&part, 1}, size, "heads");
        return floats_of({&part, 1}, 2);
    };
    BOOST_TEST(check(good, 3) == 14u);
    BOOST_TEST(check(good, 3, 0) == 0u);
    for (const auto& wrong : {hole, outside})
        BOOST_CHECK_EXCEPTION(check(wrong, 3), Error, [](const Error& e) {
            return std::string(e.what()).find("'heads'") != std::string::npos;
        });
    BOOST_CHECK_THROW(check(good, 2), Error);
    BOOST_CHECK_THROW(check(good, 3, -1), Error);
}
