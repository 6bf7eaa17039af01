// What the CPU backend takes and refuses of stored weights: codes and scales that would become NaN are named
// with their tensor, count and place.
#define BOOST_TEST_MODULE cpu_backend_load
#include <boost/test/unit_test.hpp>

#include "cpu_backend.hpp"
#include "error.hpp"
#include "refusal.hpp"
#include "scalar_steps.hpp"

using namespace ftmpi;
using ftmpi::testing::refusal;
using reference::StoredMatrix;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();

/// Loading must fail as bad input with all of the words.
void check_refused(const MatrixSource& source, const std::vector<std::string>& words) {
    const auto backend = make_cpu_backend(1);
    const auto message = refusal(Exit::bad_input, [&] { backend->load(source); });
    for (const auto& word : words)
        BOOST_TEST(message.find(word) != std::string::npos, "\"" << message << "\" lacks \"" << word << "\"");
}

std::vector<float> times_ones(const MatrixSource& source) {
    const auto backend = make_cpu_backend(1);
    const auto matrix = backend->load(source);
    std::vector<float> x(static_cast<std::size_t>(source.cols), 1.0f),
        out(static_cast<std::size_t>(source.rows));
    const Projection p{matrix.get(), out.data(), source.rows};
    backend->project({&p, 1}, x.data(), 1);
    return out;
}

/// 8 bytes with each e2m1 code once, under one scale byte.
MatrixSource sixteen_codes(const std::vector<std::uint8_t>& codes, const std::uint8_t& scale,
                           float multiplier, Format format = Format::nvfp4) {
    MatrixSource s{format, 1, 1, 16, {}};
    RowBlock b;
    b.rows = 1;
    b.codes = reinterpret_cast<const std::byte*>(codes.data());
    b.pitch = 8;
    b.scales = reinterpret_cast<const std::byte*>(&scale);
    b.scale_pitch = 1;
    b.multiplier = multiplier;
    b.name = "model.layers.0.mlp.experts.3.down_proj.weight";
    s.blocks.push_back(b);
    return s;
}

const std::vector<std::uint8_t> kAllCodes{0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};

}  // namespace

BOOST_AUTO_TEST_CASE(a_row_computed_by_hand) {
    // Every code once, block scale 1, global scale 0.5: 0 .25 .5 .75 1 1.5 2 3 and their negatives. One
    // column at a time.
    const float want[] = {0, .25f, .5f, .75f, 1, 1.5f, 2, 3, -0.0f, -.25f, -.5f, -.75f, -1, -1.5f, -2, -3};
    const std::uint8_t one = 0x38;
    for (Simd simd : {Simd::plain, Simd::avx2, Simd::avx512, Simd::avx512vnni, Simd::avx512amx}) {
        if (!supported(simd)) continue;
        const auto backend = make_cpu_backend(1, simd);
        const auto matrix = backend->load(sixteen_codes(kAllCodes, one, 0.5f));
        for (std::size_t k = 0; k < 16; ++k) {
            std::vector<float> x(16), out(1);
            x[k] = 1.0f;
            const Projection p{matrix.get(), out.data(), 1};
            backend->project({&p, 1}, x.data(), 1);
            BOOST_TEST(out[0] == want[k]);
        }
    }
}

BOOST_AUTO_TEST_CASE(small_scales_do_not_vanish) {
    // Subnormal e4m3 scales and a small global scale: 0x01 is 2^-9, codes of 6 at 2^-9 * 2^-9.
    const std::vector<std::uint8_t> sixes(8, 0x77);
    for (std::uint8_t scale = 1; scale < 8; ++scale) {
        const auto out = times_ones(sixteen_codes(sixes, scale, 0.001953125f));
        BOOST_TEST(out[0] == 16 * 6 * scale * 0.001953125f * 0.001953125f);
    }
}

BOOST_AUTO_TEST_CASE(a_scale_that_is_nan_is_refused_unless_it_scales_nothing) {
    for (std::uint8_t nan : {std::uint8_t{0x7f}, std::uint8_t{0xff}}) {
        check_refused(sixteen_codes(kAllCodes, nan, 1.0f),
                      {"experts.3.down_proj.weight", "1 scale is NaN", "row 0, column 0"});
        const std::vector<std::uint8_t> zeros(8, 0x00), signed_zeros(8, 0x80);
        const std::uint8_t largest = 0x7e;
        BOOST_TEST(times_ones(sixteen_codes(zeros, nan, 1.0f)) ==
                   times_ones(sixteen_codes(zeros, largest, 1.0f)));
        BOOST_TEST(times_ones(sixteen_codes(signed_zeros, nan, 1.0f))[0] == 0.0f);
    }
    const std::uint8_t negative = 0xb8, minus_zero = 0x80, e8m0_nan = 0xff;
    check_refused(sixteen_codes(kAllCodes, negative, 1.0f), {"negative", "row 0, column 0"});
    BOOST_TEST(times_ones(sixteen_codes(kAllCodes, minus_zero, 1.0f))[0] == 0.0f);
    check_refused(sixteen_codes(kAllCodes, e8m0_nan, 1.0f, Format::mxfp4), {"1 scale is NaN"});
}

BOOST_AUTO_TEST_CASE(a_multiplier_must_be_finite_and_above_zero) {
    const std::uint8_t one = 0x38;
    for (float bad : {0.0f, -1.0f, kNan, kInfinity, -kInfinity})
        check_refused(sixteen_codes(kAllCodes, one, bad), {"down_proj", "above 0"});
    StoredMatrix rows(Format::fp8_row, 1, 20, 32, 1);
    rows.row_scales[13] = kNan;
    check_refused(rows.source(), {"test.weight", "above 0", "row 13"});
}

BOOST_AUTO_TEST_CASE(codes_that_are_not_numbers_are_counted_and_placed) {
    for (Format f : {Format::fp8_row, Format::fp8_block}) {
        StoredMatrix m(f, 2, 40, 48, 3);
        m.codes[(40 + 20) * m.pitch + 5] = 0x7f;
        m.codes[(40 + 20) * m.pitch + 47] = 0xff;
        m.codes[(40 + 39) * m.pitch + 0] = 0x7f;
        check_refused(m.source(), {"test.weight", "3 weights are coded as NaN", "row 20, column 5"});
    }
    for (const auto& [f, bad] : {std::pair{Format::bf16, 0x7f80u},
                                 {Format::bf16, 0xff80u},
                                 {Format::bf16, 0x7fc1u},
                                 {Format::f16, 0x7c00u},
                                 {Format::f16, 0xfc00u},
                                 {Format::f16, 0x7c01u},
                                 {Format::f32, 0x7f800000u},
                                 {Format::f32, 0xff800000u},
                                 {Format::f32, 0x7f800001u}}) {
        StoredMatrix m(f, 1, 6, 33, 3);
        std::memcpy(&m.codes[m.pitch + code_bytes(f, 32)], &bad, code_bytes(f, 1));
        check_refused(m.source(), {"test.weight", "1 weight is infinite or NaN", "row 1, column 32"});
        const auto backend = make_cpu_backend(1);
        BOOST_TEST(refusal(Exit::bad_input, [&] {
                       backend->load_table(m.source(), false);
                   }).find("row 1, column 32") != std::string::npos);
        const auto on_host = backend->load_table(
            m.source(), true);  // the file is not read through; the row is checked when used
        std::vector<float> x(33);
        const Row good{0, 0, 0}, row{1, 0, 0};
        backend->embed(*on_host, {{&good, 1}, &good}, x.data());
        BOOST_TEST(refusal(Exit::bad_input, [&] {
                       backend->embed(*on_host, {{&row, 1}, &row}, x.data());
                   }).starts_with("tensor test.weight: the weight at row 1, column 32 is infinite or NaN"));
    }
}

BOOST_AUTO_TEST_CASE(block_scales_are_found_by_the_row_in_the_stored_tensor) {
    // Tiles of 128 x 128 with scales 1 2 4 8, weights 1: rows 192 to 511 of the tensor, columns 0 to 255.
    const std::vector<std::uint8_t> codes(320 * 256, 0x38);
    const float scales[4][2] = {{1, 1}, {2, 2}, {4, 4}, {8, 8}};
    const std::uint16_t bf16_scales[4][2] = {
        {0x3f80, 0x3f80}, {0x4000, 0x4000}, {0x4080, 0x4080}, {0x4100, 0x4100}};
    const std::uint16_t f16_scales[4][2] = {
        {0x3c00, 0x3c00}, {0x4000, 0x4000}, {0x4400, 0x4400}, {0x4800, 0x4800}};
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        MatrixSource s{Format::fp8_block, 1, 320, 256, {}};
        RowBlock b;
        b.rows = 320;
        b.codes = reinterpret_cast<const std::byte*>(codes.data());
        b.pitch = 256;
        b.scales = type == DType::f32    ? reinterpret_cast<const std::byte*>(scales)
                   : type == DType::bf16 ? reinterpret_cast<const std::byte*>(bf16_scales)
                                         : reinterpret_cast<const std::byte*>(f16_scales);
        b.scale_pitch = 2 * size_of(type);
        b.scale_type = type;
        b.first_row = 192;
        b.name = "w";
        s.blocks.push_back(b);
        const auto out = times_ones(s);
        for (std::size_t r = 0; r < 320; ++r) BOOST_TEST(out[r] == 256.0f * (r < 64 ? 2 : r < 192 ? 4 : 8));
        s.blocks[0].scale_type = DType::f64;
        check_refused(s, {"scales of type F64"});
    }
    for (float bad : {kNan, -1.0f, kInfinity}) {
        StoredMatrix m(Format::fp8_block, 1, 16, 256, 1);
        std::memcpy(&m.scales[4], &bad, 4);
        check_refused(m.source(),
                      {"test.weight", "5 scales are NaN, negative or infinite", "row 0, column 1"});
    }
}

BOOST_AUTO_TEST_CASE(what_the_source_says_must_fit) {
    StoredMatrix m(Format::bf16, 2, 10, 8, 1);
    auto source = m.source();
    source.blocks.pop_back();
    BOOST_CHECK_THROW(make_cpu_backend(1)->load(source), Error);
    MatrixSource odd{Format::nvfp4, 1, 0, 7, {}};
    BOOST_CHECK_THROW(make_cpu_backend(1)->load(odd), Error);
    // A table is no matrix, and the reverse.
    const auto backend = make_cpu_backend(1);
    const StoredMatrix t(Format::bf16, 1, 4, 8, 1);
    const auto matrix = backend->load(t.source()), table = backend->load_table(t.source(), true);
    std::vector<float> x(8), out(4);
    const Row row{0, 0, 0};
    const Projection p{table.get(), out.data(), 4};
    BOOST_CHECK_THROW(backend->project({&p, 1}, x.data(), 1), Error);
    BOOST_CHECK_THROW(backend->embed(*matrix, {{&row, 1}, &row}, x.data()), Error);
}
