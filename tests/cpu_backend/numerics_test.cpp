// The arithmetic of the promise against literal tables, double precision and cases computed by hand.
#define BOOST_TEST_MODULE numerics
#include "numerics.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cfenv>
#include <cstdio>
#include <limits>
#include <vector>

#include "random.hpp"

using namespace ftmpi;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The code of the finite value nearest to x, ties to the even code, saturating; values[i] is the value of
/// code i, rising.
unsigned nearest(const std::vector<double>& values, double x) {
    const auto above =
        static_cast<std::size_t>(std::lower_bound(values.begin(), values.end(), x) - values.begin());
    if (above == values.size()) return static_cast<unsigned>(values.size() - 1);
    if (above == 0 || values[above] == x) return static_cast<unsigned>(above);
    const double down = x - values[above - 1], up = values[above] - x;
    if (down != up) return static_cast<unsigned>(down < up ? above - 1 : above);
    return static_cast<unsigned>(above % 2 ? above - 1 : above);
}

/// Values of the non-negative finite bf16 codes, from their definition.
std::vector<double> bf16_values() {
    std::vector<double> v;
    for (int code = 0; code < 0x7f80; ++code) {
        const int e = code >> 7, m = code & 127;
        v.push_back(e ? std::ldexp(1 + m / 128.0, e - 127) : std::ldexp(m / 128.0, -126));
    }
    return v;
}
std::vector<double> e4m3_values() {
    std::vector<double> v;
    for (int code = 0; code < 0x7f; ++code) {
        const int e = code >> 3, m = code & 7;
        v.push_back(e ? std::ldexp(1 + m / 8.0, e - 7) : std::ldexp(m / 8.0, -6));
    }
    return v;
}

/// Error of `got` in units in the last place of the float nearest to `want`.
double ulps(float got, double want) {
    int e = 0;
    std::frexp(std::abs(want), &e);
    return std::abs(static_cast<double>(got) - want) / std::ldexp(1.0, std::max(e - 24, -149));
}

/// Largest error over a sweep of all floats in [low, high].
template <class Ours, class Exact> double worst(Ours ours, Exact exact, float low, float high) {
    double most = 0;
    for (std::uint64_t u = 0; u < 0x100000000u; u += 3001) {
        const float x = num::float_of(static_cast<std::uint32_t>(u));
        if (x >= low && x <= high) most = std::max(most, ulps(ours(x), exact(static_cast<double>(x))));
    }
    return most;
}

double exact_softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

}  // namespace

BOOST_AUTO_TEST_CASE(stored_formats_decode_to_their_tables) {
    const int e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (unsigned c = 0; c < 16; ++c) BOOST_TEST(num::twice_e2m1(c) == e2m1[c]);

    const std::pair<int, float> e4m3[] = {{0x00, 0.0f},      {0x01, 0.001953125f}, {0x07, 0.013671875f},
                                          {0x08, 0.015625f}, {0x38, 1.0f},         {0x3c, 1.5f},
                                          {0x77, 240.0f},    {0x78, 256.0f},       {0x7e, 448.0f},
                                          {0xb8, -1.0f},     {0xfe, -448.0f},      {0x81, -0.001953125f}};
    for (const auto& [code, value] : e4m3)
        BOOST_TEST(num::from_e4m3(static_cast<std::uint8_t>(code)) == value);
    BOOST_TEST(std::isnan(num::from_e4m3(0x7f)));
    BOOST_TEST(std::isnan(num::from_e4m3(0xff)));
    BOOST_TEST(std::signbit(num::from_e4m3(0x80)));
    const auto all = e4m3_values();
    for (unsigned c = 0; c < 0x7f; ++c) {
        BOOST_TEST(num::from_e4m3(static_cast<std::uint8_t>(c)) == all[c]);
        BOOST_TEST(num::from_e4m3(static_cast<std::uint8_t>(c | 0x80)) == -all[c]);
    }
    for (int b = 0; b < 255; ++b)
        BOOST_TEST(num::from_e8m0(static_cast<std::uint8_t>(b)) == std::ldexp(1.0, b - 127));
    BOOST_TEST(std::isnan(num::from_e8m0(0xff)));
}

BOOST_AUTO_TEST_CASE(every_half_precision_code_has_its_value) {
    for (int code = 0; code < 0x10000; ++code) {
        const int exponent = code >> 10 & 31, fraction = code & 1023;
        const double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                                 : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                                : std::ldexp(fraction, -24);
        const float x = num::from_f16(static_cast<std::uint16_t>(code));
        BOOST_REQUIRE(std::signbit(x) == (code >= 0x8000));
        if (std::isnan(magnitude)) BOOST_REQUIRE(std::isnan(x));
        else BOOST_REQUIRE_EQUAL(std::fabs(double{x}), magnitude);
    }
}

BOOST_AUTO_TEST_CASE(bf16_rounds_to_nearest_even_and_saturates) {
    const auto values = bf16_values();
    for (std::uint32_t c = 0; c < 0x10000; ++c) {  // every code comes back; infinity saturates
        const auto code = static_cast<std::uint16_t>(c);
        const float x = num::from_bf16(code);
        if (std::isnan(x)) BOOST_REQUIRE(std::isnan(num::from_bf16(num::to_bf16(x))));
        else BOOST_REQUIRE_EQUAL(num::to_bf16(x), std::isinf(x) ? (code & 0x8000) | 0x7f7f : code);
    }
    const auto check = [&](float x) {
        const unsigned code =
            nearest(values, std::abs(static_cast<double>(x))) | (std::signbit(x) ? 0x8000u : 0u);
        BOOST_REQUIRE_MESSAGE(num::to_bf16(x) == code, "to_bf16(" << x << ")");
    };
    for (std::uint32_t c = 0; c < 0x7f80; ++c)  // halfway to the next code and its neighbours
        for (std::uint32_t low : {0x7fffu, 0x8000u, 0x8001u}) {
            check(num::float_of(c << 16 | low));
            check(num::float_of(0x80000000u | c << 16 | low));
        }
    for (std::uint64_t u = 0; u < 0x100000000u; u += 40009)
        if (const float x = num::float_of(static_cast<std::uint32_t>(u)); std::isfinite(x)) check(x);
}

BOOST_AUTO_TEST_CASE(e4m3_rounds_to_nearest_even_and_saturates) {
    const auto values = e4m3_values();
    for (unsigned c = 0; c < 256; ++c)
        if ((c & 0x7f) != 0x7f) BOOST_TEST(num::to_e4m3(num::from_e4m3(static_cast<std::uint8_t>(c))) == c);
    BOOST_TEST(num::to_e4m3(std::nanf("")) == 0x7f);
    BOOST_TEST(num::to_e4m3(kInfinity) == 0x7e);
    BOOST_TEST(num::to_e4m3(-1e30f) == 0xfe);
    const auto check = [&](float x) {
        const unsigned code =
            nearest(values, std::abs(static_cast<double>(x))) | (std::signbit(x) ? 0x80u : 0u);
        BOOST_REQUIRE_MESSAGE(num::to_e4m3(x) == code, "to_e4m3(" << x << ")");
    };
    for (std::size_t c = 0; c + 1 < values.size(); ++c) {
        const auto middle = static_cast<float>((values[c] + values[c + 1]) / 2);
        for (float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInfinity)}) {
            check(x);
            check(-x);
        }
    }
    for (std::uint64_t u = 0; u < 0x100000000u; u += 10007)
        if (const float x = num::float_of(static_cast<std::uint32_t>(u)); std::isfinite(x)) check(x);
    BOOST_TEST(num::kv_from_fp8(num::kv_to_fp8(0.3f, 0.25f), 0.25f) == 0.3125f);  // 1.2 is stored as 1.25
}

BOOST_AUTO_TEST_CASE(elementary_functions_stay_within_their_stated_errors) {
    const auto e = [](double x) { return std::exp(x); };
    BOOST_TEST(worst([](float x) { return num::exp(x); }, e, -104.0f, 88.72f) < 1.01);
    BOOST_TEST(worst([](float x) { return num::log(x); }, [](double x) { return std::log(x); }, 1e-45f,
                     3.4e38f) < 0.94);
    BOOST_TEST(worst([](float x) { return num::log1p(x); }, [](double x) { return std::log1p(x); }, 0.0f,
                     3.4e38f) < 2.4);
    BOOST_TEST(worst([](float x) { return num::rsqrt(x); }, [](double x) { return 1 / std::sqrt(x); }, 1e-45f,
                     3.4e38f) < 1.5);
    BOOST_TEST(worst([](float x) { return num::sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); },
                     -87.0f, 1e30f) < 2.3);
    BOOST_TEST(worst([](float x) { return num::silu(x); }, [](double x) { return x / (1 + std::exp(-x)); },
                     -80.0f, 1e30f) < 2.3);
    BOOST_TEST(worst([](float x) { return num::softplus(x); }, exact_softplus, -87.0f, 1e30f) < 2.7);
    for (float a = -20.0f; a < 40.0f; a += 0.01f) {  // exp carries the relative error of its argument
        const double t = -1.5 * exact_softplus(static_cast<double>(a) + 0.25), want = std::exp(t);
        BOOST_REQUIRE(std::abs(num::delta_decay(-1.5f, a, 0.25f) - want) <=
                      want * (1 - 3 * t) * std::ldexp(1.0, -23));
    }
}

BOOST_AUTO_TEST_CASE(elementary_functions_at_their_ends) {
    BOOST_TEST(num::exp(0.0f) == 1.0f);
    BOOST_TEST(num::exp(-104.0f) == 0.0f);
    BOOST_TEST(num::exp(-103.9f) == 1.40129846e-45f);
    BOOST_TEST(num::exp(-1e30f) == 0.0f);
    BOOST_TEST(num::exp(-kInfinity) == 0.0f);
    BOOST_TEST(num::exp(88.72f) < kInfinity);
    BOOST_TEST(num::exp(88.74f) == kInfinity);
    BOOST_TEST(num::exp(kInfinity) == kInfinity);
    BOOST_TEST(std::isnan(num::exp(std::nanf(""))));
    BOOST_TEST(num::log(1.0f) == 0.0f);
    BOOST_TEST(num::log(0.0f) == -kInfinity);
    BOOST_TEST(num::log(-0.0f) == -kInfinity);
    BOOST_TEST(std::isnan(num::log(-1.0f)));
    BOOST_TEST(num::log(kInfinity) == kInfinity);
    BOOST_TEST(num::log1p(1e-20f) == 1e-20f);
    BOOST_TEST(num::log1p(kInfinity) == kInfinity);
    BOOST_TEST(num::softplus(20.0f) == 20.0f);
    BOOST_TEST(num::softplus(100.0f) == 100.0f);
    BOOST_TEST(num::softplus(30.0f) == 30.0f);
    BOOST_TEST(num::softplus(-200.0f) == 0.0f);
    BOOST_TEST(std::isnan(num::softplus(std::nanf(""))));
    BOOST_TEST(num::sigmoid(0.0f) == 0.5f);
    BOOST_TEST(num::sigmoid(kInfinity) == 1.0f);
    BOOST_TEST(num::sigmoid(-kInfinity) == 0.0f);
    BOOST_TEST(num::silu(-200.0f) == 0.0f);
    BOOST_TEST(num::delta_decay(-0.0f, 5.0f, 0.0f) == 1.0f);     // no decay: the state is kept exactly
    BOOST_TEST(num::delta_decay(-10.0f, 100.0f, 0.0f) == 0.0f);  // everything forgotten
    BOOST_TEST(num::round_even(2.5f) == 2.0f);
    BOOST_TEST(num::round_even(-3.5f) == -4.0f);
}

BOOST_AUTO_TEST_CASE(the_order_of_a_dot_product_shows) {
    // 2^24 absorbs a lone 1: the sum tells which partial sums were made.
    const float big = 16777216.0f;
    std::vector<float> x(1024, 0.0f), ones(1024, 1.0f);
    x[0] = big;
    for (int i = 1; i < 32; ++i)
        x[static_cast<std::size_t>(i)] = 1.0f;  // each lost to the chain that holds 2^24
    BOOST_TEST(num::dot(x.data(), ones.data(), 32) == big);
    for (int i = 32; i < 64; ++i)
        x[static_cast<std::size_t>(i)] = 1.0f;  // a chunk of its own: 32 arrive together
    BOOST_TEST(num::dot(x.data(), ones.data(), 64) == big + 32);
    // The same numbers in one chain would give 2^24; in pairs 2^24 + 62.
    float chain = 0.0f;
    for (int i = 0; i < 64; ++i) chain = num::fma(x[static_cast<std::size_t>(i)], 1.0f, chain);
    BOOST_TEST(chain == big);

    // Segments: chunks of one 1 each are lost beside 2^24 in their own segment, and arrive together from
    // another.
    std::fill(x.begin(), x.end(), 0.0f);
    x[0] = big;
    for (std::size_t c = 1; c < 16; ++c) x[c * 32] = 1.0f;
    BOOST_TEST(num::dot(x.data(), ones.data(), 512) == big);
    for (std::size_t c = 16; c < 32; ++c) x[c * 32] = 1.0f;
    BOOST_TEST(num::dot(x.data(), ones.data(), 1024) == big + 16);

    // A product enters its chain without being rounded first: (1 + 2^-12)^2 - (1 + 2^-11) is exactly 2^-24.
    const float a[2] = {-1.00048828125f, 1.000244140625f}, b[2] = {1.0f, 1.000244140625f};
    BOOST_TEST(num::dot(a, b, 2) == std::ldexp(1.0f, -24));
    BOOST_TEST(num::sum(a, 2) == a[0] + a[1]);
}

struct Wide {  ///< a row in 24-bit block fixed point
    std::vector<std::int32_t> q;
    std::vector<std::int8_t> e;
    explicit Wide(const std::vector<float>& x) : q(x.size()), e((x.size() + 511) / 512) {
        num::quantize_segments(x.data(), std::ssize(x), q.data(), e.data());
    }
    float row(const std::vector<std::uint8_t>& w, float multiplier = 1.0f) const {
        return num::dot_fp8_row(w.data(), multiplier, q.data(), e.data(), std::ssize(q));
    }
    float block(const std::vector<std::uint8_t>& w, const std::vector<float>& scales) const {
        return num::dot_fp8_block(w.data(), scales.data(), q.data(), e.data(), std::ssize(q));
    }
};

BOOST_AUTO_TEST_CASE(block_scales_enter_when_their_block_is_complete) {
    // Columns 0 to 127 sum to 1, the second block to 2^-22 of it; scales 1 and 0.25.
    const std::vector<std::uint8_t> w(256, 0x38);
    std::vector<float> x(256, 0.0f);
    x[0] = x[96] = 0.5f;
    x[128] = x[200] = std::ldexp(1.0f, -23);
    BOOST_TEST(Wide(x).block(w, {1.0f, 0.25f}) == 1.0f);  // 1 + 2^-24 rounds to even
    BOOST_TEST(Wide(x).block(w, {1.0f, 0.5f}) == 1.0f + std::ldexp(1.0f, -23));
    BOOST_TEST(Wide(x).row(w, 3.0f) == 3.0f * (1.0f + std::ldexp(1.0f, -22)));
}

BOOST_AUTO_TEST_CASE(e4m3_codes_are_integers_of_2_to_the_minus_9) {
    for (int code = 0; code < 256; ++code) {
        const auto b = static_cast<std::uint8_t>(code);
        if ((code & 0x7f) == 0x7f) continue;  // NaN
        BOOST_TEST(static_cast<float>(num::units_of_e4m3(b)) == num::from_e4m3(b) * 512.0f);
        BOOST_TEST(std::abs(num::units_of_e4m3(b)) <= 229376);
    }
}

BOOST_AUTO_TEST_CASE(activations_in_wide_fixed_point) {
    std::vector<float> x(1100);  // two segments and a short one
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = std::sin(static_cast<float>(i)) * std::ldexp(1.0f, static_cast<int>(i % 7) - 3);
    for (std::size_t i = 512; i < 1024; ++i) x[i] = i % 2 ? 0.0f : -0.0f;
    x[5] = 16.0f - std::ldexp(1.0f, -20);
    const Wide wide(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
        BOOST_TEST(std::abs(wide.q[i]) <= num::kMaxWideCode);
        const double unit = std::ldexp(1.0, wide.e[i / 512]);
        BOOST_TEST(std::abs(wide.q[i] * unit - static_cast<double>(x[i])) <= 0.5 * unit);
    }
    BOOST_TEST(int{wide.e[0]} == 4 - 22);  // so near 16 that 23 bits would pass the largest code
    BOOST_TEST(wide.q[5] == 1 << 22);
    BOOST_TEST(int{wide.e[1]} == 0);

    const auto exponent_of = [](float largest) { return num::wide_exponent(num::bits_of(largest)); };
    BOOST_TEST(exponent_of(std::numeric_limits<float>::max()) == 106);
    BOOST_TEST(exponent_of(1.0f) == -22);
    BOOST_TEST(exponent_of(8355711.0f) == 0);
    BOOST_TEST(exponent_of(8355711.5f) == 1);  // would round to 8355712
    BOOST_TEST(exponent_of(1e-44f) == -100);
    BOOST_TEST(exponent_of(0.0f) == 0);
    BOOST_TEST(num::wide_code(8355711.0f, 1.0f) == num::kMaxWideCode);
    BOOST_TEST(num::wide_code(-std::numeric_limits<float>::max(), num::pow2(-106)) == -(1 << 22));
    BOOST_TEST(num::wide_code(1e-44f, num::pow2(100)) == 0);
    BOOST_TEST(num::wide_code(0.5f, 1.0f) == 0);  // ties to even
    BOOST_TEST(num::wide_code(-1.5f, 1.0f) == -2);
    BOOST_TEST(num::wide_code(4194305.5f, 1.0f) == 4194306);
    BOOST_TEST(num::wide_unit(-100) == std::ldexp(1.0f, -109));

    // Cancellation is exact, whatever lies between: 448 times the largest code, then the same taken off.
    std::vector<float> big(512, 0.0f);
    std::vector<std::uint8_t> w(512, 0x7e);
    for (std::size_t i = 0; i < 512; i += 2) big[i] = 1.0f, big[i + 1] = -1.0f;
    big[511] = -1.0f + std::ldexp(1.0f, -22);
    BOOST_TEST(Wide(big).row(w) == 448.0f * std::ldexp(1.0f, -22));

    for (float bad : {kInfinity, -kInfinity, std::nanf("")}) {
        x[700] = bad;
        const Wide marked(x);
        BOOST_TEST(int{marked.e[1]} == num::kNotFinite);
        BOOST_TEST(marked.q[600] == 0);
        const std::vector<std::uint8_t> codes(x.size(), 0x38);
        BOOST_TEST(std::isnan(marked.row(codes)));
        BOOST_TEST(std::isnan(marked.block(codes, std::vector<float>(9, 1.0f))));
        BOOST_TEST(std::isfinite(Wide(std::vector<float>(x.begin(), x.begin() + 512)).row(codes)));
    }
}

/// A dot product of 2,048 columns, 4 outlier channels of a hundred: against double, in the result's rms.
BOOST_AUTO_TEST_CASE(the_error_of_a_wide_dot_product_is_near_that_of_floats) {
    Random random(7);
    double chain = 0, wide = 0, all = 0;
    for (int n = 0; n < 200; ++n) {
        std::vector<float> x(2048), weights(2048);
        std::vector<std::uint8_t> w(2048);
        double want = 0;
        for (std::size_t k = 0; k < x.size(); ++k) {
            x[k] = random.unit() * (k % 100 == 0 ? 30.0f : 1.0f);
            w[k] = num::to_e4m3(random.unit());
            weights[k] = num::from_e4m3(w[k]);
            want += static_cast<double>(x[k]) * static_cast<double>(weights[k]);
        }
        const auto squared = [&](float y) { return (y - want) * (y - want); };
        chain += squared(num::dot(x.data(), weights.data(), 2048));
        wide += squared(Wide(x).row(w));
        all += want * want;
    }
    const double of_chain = std::sqrt(chain / all), of_wide = std::sqrt(wide / all);
    std::printf("rms error over rms result: fma chain %.2g, 24 bits %.2g\n", of_chain, of_wide);
    BOOST_TEST(of_wide < 2e-6);
}

BOOST_AUTO_TEST_CASE(activations_in_block_fixed_point) {
    std::vector<float> x(70);
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = std::sin(static_cast<float>(i)) * std::ldexp(1.0f, static_cast<int>(i % 7) - 3);
    for (std::size_t i = 32; i < 64; ++i) x[i] = i % 2 ? 0.0f : -0.0f;  // a block of zeros
    x[5] = 63.999f;
    std::vector<std::int16_t> q(96);
    std::vector<std::int8_t> e(3);
    num::quantize_blocks(x.data(), 70, q.data(), e.data());
    for (std::size_t i = 0; i < 96; ++i) {
        BOOST_TEST(std::abs(q[i]) <= num::kMaxCode);
        const double unit = std::ldexp(1.0, e[i / 32]), value = i < 70 ? static_cast<double>(x[i]) : 0.0;
        BOOST_TEST(std::abs(q[i] * unit - value) <= 0.5 * unit);
        BOOST_TEST(num::plane_high(q[i]) * 256 + num::plane_low(q[i]) == q[i]);
        BOOST_TEST(std::abs(num::plane_high(q[i])) <= 127);
        BOOST_TEST((num::plane_low(q[i]) >= -128 && num::plane_low(q[i]) <= 127));
    }
    BOOST_TEST(q[5] == 16384);  // 63.999 is 32767.5 units of 2^-9, beyond 32639, and 16383.7 units of 2^-8
    BOOST_TEST(int{e[0]} == -8);
    BOOST_TEST(int{e[1]} == 0);

    const auto exponent_of = [](float largest) { return num::block_exponent(num::bits_of(largest)); };
    BOOST_TEST(exponent_of(std::numeric_limits<float>::max()) == 114);
    BOOST_TEST(exponent_of(1.0f) == -14);
    BOOST_TEST(exponent_of(32639.0f) == 0);
    BOOST_TEST(exponent_of(32640.0f) == 1);
    BOOST_TEST(num::block_code(32639.0f, 1.0f) == num::kMaxCode);
    BOOST_TEST(exponent_of(1e-44f) == -100);
    BOOST_TEST(exponent_of(0.0f) == 0);
    BOOST_TEST(num::block_code(std::numeric_limits<float>::max(), num::pow2(-114)) == 16384);
    BOOST_TEST(num::block_code(-std::numeric_limits<float>::max(), num::pow2(-114)) == -16384);
    BOOST_TEST(num::block_code(1e-44f, num::pow2(100)) == 0);
    BOOST_TEST(num::block_code(0.5f, 1.0f) == 0);  // ties to even
    BOOST_TEST(num::block_code(1.5f, 1.0f) == 2);

    // Nothing overflows at either end: the largest activations with the largest scales, and the smallest.
    BOOST_TEST(std::isfinite(num::nvfp4_chunk(0, 448.0f, 1, 448.0f, 100)));
    BOOST_TEST(num::nvfp4_chunk(2, 1.0f, 0, 0.0f, -100) == std::ldexp(1.0f, -100));

    for (float bad : {kInfinity, -kInfinity, std::nanf("")}) {  // marked, and NaN in the end
        x[40] = bad;
        num::quantize_blocks(x.data(), 70, q.data(), e.data());
        BOOST_TEST(int{e[1]} == num::kNotFinite);
        const std::vector<std::uint8_t> codes(48, 0x22), scales(6, 0x38);
        BOOST_TEST(std::isnan(num::dot_nvfp4(codes.data(), scales.data(), 1.0f, q.data(), e.data(), 70)));
        BOOST_TEST(std::isnan(num::dot_mxfp4(codes.data(), scales.data(), q.data(), e.data(), 70)));
        BOOST_TEST(std::isfinite(num::dot_nvfp4(codes.data(), scales.data(), 1.0f, q.data(), e.data(), 32)));
    }
}

BOOST_AUTO_TEST_CASE(a_row_of_4_bit_codes_by_hand) {
    // Element 2b is the low nibble of byte b. Block scale 1, global scale 0.5.
    const std::uint8_t codes[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}, one = 0x38,
                       e8m0_one = 127;
    const float want[16] = {0, .25f, .5f, .75f, 1, 1.5f, 2, 3, 0, -.25f, -.5f, -.75f, -1, -1.5f, -2, -3};
    for (std::size_t k = 0; k < 16; ++k) {
        float x[16] = {};
        x[k] = 1.0f;
        std::int16_t q[32];
        std::int8_t e;
        num::quantize_blocks(x, 16, q, &e);
        BOOST_TEST(num::dot_nvfp4(codes, &one, 0.5f, q, &e, 16) == want[k]);
        BOOST_TEST(num::dot_mxfp4(codes, &e8m0_one, q, &e, 16) == 2 * want[k]);
    }
}

BOOST_AUTO_TEST_CASE(the_delta_rule_against_its_golden) {
    // One key and one value dimension, q = k = 1, v = (t mod 7) + 1, decay exp(-0.01), beta 0.5.
    float state = 0.0f;
    const float k = 1.0f, q = 1.0f;
    std::vector<float> o;
    for (int t = 0; t < 130; ++t)
        o.push_back(num::delta_rule_column(&state, 1, 1, &k, &q, static_cast<float>(t % 7 + 1), 0.5f,
                                           num::exp(-0.01f)));
    const std::pair<std::size_t, double> golden[] = {{0, 0.5},
                                                     {63, 3.4757213632706336},
                                                     {64, 2.7205686789322616},
                                                     {127, 2.7205686789322616},
                                                     {128, 2.8467492841400395},
                                                     {129, 3.4092118277442047}};
    for (const auto& [t, value] : golden) BOOST_TEST(std::abs(o[t] - value) < 1e-5);
    BOOST_TEST(o[0] == 0.5f);
    BOOST_TEST(state == o[129]);
}

BOOST_AUTO_TEST_CASE(routing_attention_and_rotation_by_hand) {
    const float logits[5] = {0.0f, 3.0f, 3.0f, -1.0f, 3.0f};
    std::int32_t ids[3];
    float weights[3];
    num::route(logits, 5, 2, ids, weights);
    BOOST_TEST((ids[0] == 1 && ids[1] == 2));
    BOOST_TEST((weights[0] == 0.5f && weights[1] == 0.5f));
    num::route(logits, 5, 3, ids, weights);
    BOOST_TEST((ids[0] == 1 && ids[1] == 2 && ids[2] == 4));
    BOOST_TEST(weights[0] == 1.0f / 3.0f);

    // Two pieces of one position each: scores 0 and log 3 give weights 1/4 and 3/4.
    const num::Merge g = num::merge_of(0.0f, 1.09861229f);
    const float l = num::merge_value(1.0f, 1.0f, g), out = num::merge_value(8.0f, 4.0f, g);
    BOOST_TEST(std::abs(out / l - 5.0f) < 1e-5f);
    const num::Merge same = num::merge_of(2.0f, -500.0f);  // a piece far below leaves the bits as they are
    BOOST_TEST(num::merge_value(1.25f, 7.0f, same) == 1.25f);

    BOOST_TEST(num::rope_first(3.0f, 4.0f, 0.0f, 1.0f) == -4.0f);
    BOOST_TEST(num::rope_second(3.0f, 4.0f, 0.0f, 1.0f) == 3.0f);
    const float w[4] = {1, 10, 100, 1000}, u[4] = {1, 2, 3, 4};
    BOOST_TEST(num::causal_conv(w, 4, [&](int j) { return u[j]; }) == 4321.0f);
}
