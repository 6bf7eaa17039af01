// The choice of GPUs, with the lists that launchers, containers and users make.
#define BOOST_TEST_MODULE gpu_choice
#include "../../cuda/runtime/gpu_choice.hpp"
#include "../../src/packing.hpp"

#include <boost/test/unit_test.hpp>
#include <functional>

#include "error.hpp"

namespace {

using namespace ftmpi;
using namespace ftmpi::cuda;

const std::string u0 = "GPU-aaaa1111-0000-0000-0000-000000000000",
                  u1 = "GPU-bbbb2222-0000-0000-0000-000000000000",
                  u2 = "GPU-bbbb3333-0000-0000-0000-000000000000";

RankGpus rank(const std::string& host, int local_rank, std::vector<std::string> visible,
              std::optional<std::string> environment = {}) {
    RankGpus gpus;
    gpus.host = host;
    gpus.local_rank = local_rank;
    gpus.visible = std::move(visible);
    gpus.visible_devices = std::move(environment);
    return gpus;
}

std::vector<std::pair<int, std::string>> choices(const std::vector<RankGpus>& ranks,
                                                 const std::vector<std::string>& asked = {}) {
    std::vector<std::pair<int, std::string>> out;
    for (const auto& choice : choose_gpus(ranks, asked)) out.emplace_back(choice.device, choice.uuid);
    return out;
}

using Expected = std::vector<std::pair<int, std::string>>;

/// The error is the user's to mend and its text holds all `words`.
void refused(const std::vector<RankGpus>& ranks, const std::vector<std::string>& asked,
             const std::vector<std::string>& words) {
    BOOST_CHECK_EXCEPTION(choose_gpus(ranks, asked), Error, [&](const Error& error) {
        const std::string text = std::string(error.what()) + " | " + error.hint();
        bool all = error.code() == Exit::usage;
        for (const auto& word : words) all = all && text.find(word) != std::string::npos;
        if (!all) BOOST_TEST_MESSAGE(text);
        return all;
    });
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_local_rank_is_the_ordinal_when_all_see_all) {
    BOOST_TEST((choices({rank("a", 0, {u0, u1}), rank("a", 1, {u0, u1})}) == Expected{{0, u0}, {1, u1}}));
    // The order that CUDA_VISIBLE_DEVICES=1,0 or CUDA_DEVICE_ORDER makes is CUDA's to know.
    BOOST_TEST((choices({rank("a", 0, {u1, u0}, "1,0"), rank("a", 1, {u1, u0}, "1,0")}) ==
                Expected{{0, u1}, {1, u0}}));
    BOOST_TEST((choices({rank("a", 0, {u0, u1}, u0 + "," + u1), rank("a", 1, {u0, u1}, u0 + "," + u1)}) ==
                Expected{{0, u0}, {1, u1}}));
    BOOST_TEST((choices({rank("a", 0, {u0, u1, u2})}) == Expected{{0, u0}}));
}

BOOST_AUTO_TEST_CASE(a_rank_that_sees_one_gpu_takes_it) {
    BOOST_TEST((choices({rank("a", 0, {u0}, "0"), rank("a", 1, {u1}, "1")}) == Expected{{0, u0}, {0, u1}}));
    BOOST_TEST((choices({rank("a", 0, {"GPU-c0ffee00-0000-0000-0000-000000000000"}, "MIG-c0ffee00"),
                         rank("a", 1, {u1}, "MIG-bbbb")})[1]
                    .first == 0));
    // The same UUID on two hosts is no conflict: hosts are told apart by name.
    BOOST_TEST((choices({rank("a", 0, {u0}), rank("b", 0, {u0})}) == Expected{{0, u0}, {0, u0}}));
}

BOOST_AUTO_TEST_CASE(two_ranks_never_share_a_gpu_unasked) {
    refused({rank("a", 0, {u0}, "0"), rank("a", 1, {u0}, "0")}, {},
            {"ranks 0 and 1 (a)", u0, "CUDA_VISIBLE_DEVICES is \"0\"", "--gpus"});
    // Lists in unlike orders can meet at one GPU although ordinals differ.
    refused({rank("a", 0, {u0, u1}, "0,1"), rank("a", 1, {u1, u0}, "1,0")}, {}, {"ranks 0 and 1", u0});
    refused({rank("b", 0, {u2}), rank("a", 0, {u0}), rank("a", 1, {u0})}, {},
            {"ranks 1 and 2 (a)", "CUDA_VISIBLE_DEVICES is not set"});
    refused({rank("a", 0, {u0, u1}), rank("a", 1, {u0, u1}), rank("a", 2, {u0, u1})}, {},
            {"rank 2 (a)", "sees 2 GPUs"});
    BOOST_TEST(
        (choices({rank("a", 0, {u0}), rank("a", 1, {u0})}, {u0, "aaaa1111"}) == Expected{{0, u0}, {0, u0}}));
}

BOOST_AUTO_TEST_CASE(gpus_are_named_by_uuid_or_its_beginning) {
    const std::vector<RankGpus> two = {rank("a", 0, {u0, u1, u2}), rank("a", 1, {u0, u1, u2})};
    BOOST_TEST((choices(two, {u1, u0}) == Expected{{1, u1}, {0, u0}}));
    BOOST_TEST((choices(two, {"GPU-bbbb3", "aaaa"}) == Expected{{2, u2}, {0, u0}}));
    BOOST_TEST((choices(two, {"gpu-BBBB2", "AAAA1111-0000"}) == Expected{{1, u1}, {0, u0}}));
    refused(two, {"bbbb", "aaaa"}, {"\"bbbb\" fits", u1, u2, "rank 0"});
    refused(two, {"aaaa", "cccc"}, {"rank 1 (a)", "\"cccc\"", u0, u1, u2});
    refused(two, {"aaaa"}, {"names 1 GPU for 2 ranks"});
    for (const char* index : {"0", "1", "", "GPU-", "GPU-a", "zzzz", "all"})
        refused(two, {index, "aaaa"}, {"is no UUID", "nvidia-smi -L"});
    // A rank that sees only its own GPU cannot be given another's.
    refused({rank("a", 0, {u0}, "0"), rank("a", 1, {u1}, "1")}, {u1, u0},
            {"rank 0 (a)", u1, "CUDA_VISIBLE_DEVICES is \"0\""});
}

BOOST_AUTO_TEST_CASE(a_rank_without_a_gpu_is_told_what_hides_it) {
    for (const char* value : {"", "-1", "MIG-ffff", " 0"})
        refused({rank("a", 0, {u0}), rank("a", 1, {}, value)}, {},
                {"rank 1 (a) sees no GPU", "CUDA_VISIBLE_DEVICES is \"" + std::string(value) + "\"",
                 "--backend cpu"});
    auto driverless = rank("a", 0, {});
    driverless.trouble = "CUDA driver version is insufficient for CUDA runtime version";
    refused({driverless}, {}, {driverless.trouble, "CUDA_VISIBLE_DEVICES is not set"});
    refused({driverless}, {"aaaa"}, {driverless.trouble});
}

BOOST_AUTO_TEST_CASE(facts_travel_whole) {
    for (const auto& environment : {std::optional<std::string>(), std::optional<std::string>(""),
                                    std::optional<std::string>("1,0 \n 7 GPU-")}) {
        auto gpus = rank("host with 3 words", 7, {u0, u1}, environment);
        gpus.trouble = "12 words\nin 2 lines";
        const auto back = unpacked<RankGpus>(packed(gpus), "GPUs");
        BOOST_TEST((back.host == gpus.host && back.local_rank == 7 && back.visible == gpus.visible &&
                    back.trouble == gpus.trouble));
        BOOST_TEST((back.visible_devices == gpus.visible_devices));
    }
    BOOST_CHECK_THROW(unpacked<RankGpus>(packed(rank("a", 0, {u0})).substr(0, 30), "GPUs"), Error);
    BOOST_CHECK_THROW(unpacked<RankGpus>("", "GPUs"), Error);
    BOOST_TEST(uuid_text({0xaa, 0xaa, 0x11, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0f}) ==
               "GPU-aaaa1111-0000-0000-0000-00000000000f");
}
