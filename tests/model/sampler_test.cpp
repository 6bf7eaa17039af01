#define BOOST_TEST_MODULE sampler
#include "sampler.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <vector>

using namespace ftmpi;

BOOST_AUTO_TEST_CASE(philox_gives_the_published_vectors) {
    // Known answer of Philox4x32-10 for counter 0, key 0: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    const double want = static_cast<double>((std::uint64_t{0x6627e8d5u} << 32 | 0xe169c58du) >> 11) * 0x1p-53;
    BOOST_TEST(uniform(0, 0, 0) == want);
    BOOST_TEST(uniform(0, 0, 1) != uniform(0, 1, 0));
    BOOST_TEST(uniform(1, 0, 0) != uniform(0, 0, 0));
}

BOOST_AUTO_TEST_CASE(greedy_takes_the_largest_then_the_lowest_id) {
    const std::vector<float> logits{1, 5, 5, 2};
    const std::vector<std::uint8_t> none(4, 0), first_masked{0, 1, 0, 0};
    BOOST_TEST(sample(logits, none, {}, 0, 0) == 1);
    BOOST_TEST(sample(logits, first_masked, {}, 0, 0) == 2);
    BOOST_TEST(sample(logits, none, {.temperature = 2, .top_k = 1}, 0, 0) == 1);
    BOOST_TEST(sample(logits, std::vector<std::uint8_t>(4, 1), {}, 0, 0) == -1);
}

BOOST_AUTO_TEST_CASE(the_smallest_temperatures_are_greedy) {
    const std::vector<float> logits{1, 5, 4.999f, 2};
    const std::vector<std::uint8_t> none(4, 0);
    for (double t : {1e-6, 1e-37, 1e-39, 1e-300, 4.9e-324})
        for (std::uint64_t i = 0; i < 20; ++i)
            BOOST_TEST(sample(logits, none, {.temperature = t}, 0, i) == 1);
}

BOOST_AUTO_TEST_CASE(frequencies_follow_the_softmax) {
    const std::vector<float> logits{0, std::log(2.0f), std::log(5.0f), -30};
    const std::vector<std::uint8_t> none(4, 0);
    std::vector<int> count(4, 0);
    const int n = 20000;
    for (int t = 0; t < n; ++t)
        ++count[static_cast<std::size_t>(
            sample(logits, none, {.temperature = 1}, 7, static_cast<std::uint64_t>(t)))];
    for (auto [id, p] : {std::pair{0, 1.0 / 8}, {1, 2.0 / 8}, {2, 5.0 / 8}, {3, 0.0}})
        BOOST_TEST(std::abs(count[static_cast<std::size_t>(id)] - n * p) <=
                   4 * std::sqrt(n * p * (1 - p)) + 1);
}

BOOST_AUTO_TEST_CASE(top_k_and_top_p_cut_the_tail) {
    const std::vector<float> logits{0, std::log(2.0f), std::log(5.0f), std::log(0.5f)};
    const std::vector<std::uint8_t> none(4, 0);
    for (std::uint64_t t = 0; t < 2000; ++t) {
        BOOST_TEST(sample(logits, none, {.temperature = 1, .top_k = 2}, 0, t) != 0);
        // 5/8.5 = 0.588 is below 0.6, so the second candidate belongs to the set and the third does not.
        const auto id = sample(logits, none, {.temperature = 1, .top_p = 0.6}, 0, t);
        BOOST_TEST((id == 2 || id == 1));
        BOOST_TEST(sample(logits, none, {.temperature = 1, .top_p = 0.5}, 0, t) == 2);
    }
}
