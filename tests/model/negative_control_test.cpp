// Proof that the hash check can fail: this program is linked with a cut of q | k | v as if it were one
// matrix, the mistake that keeps every shape valid and gives fluent nonsense. One rank is not affected; with
// two the bits must differ.
#define BOOST_TEST_MODULE negative_control
#include <boost/test/unit_test.hpp>

#include "fleet.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

BOOST_AUTO_TEST_CASE(a_naive_cut_of_qkv_is_noticed) {
    const std::filesystem::path model = std::filesystem::path(FTMPI_DATA) / "tiny-nvfp4";
    auto bits = [&](std::vector<double> shares) {
        Fleet fleet(model, {.ranks = static_cast<int>(shares.size()), .shares = shares});
        const auto prompt = fleet.tokenizer().encode("The capital of France is");
        return fleet.logits(prompt, {});
    };
    const auto whole = bits({1});
    BOOST_TEST(
        (bits({1, 0}) == whole));  // one rank holds all heads: nothing is cut, nothing can be cut wrongly
    BOOST_TEST((bits({1, 1}) != whole));
    BOOST_TEST((bits({3, 1}) != whole));
}
