// The CPU backend against the scalar reference of every step, bit by bit: each instruction set, threads, any
// number of rows.
#define BOOST_TEST_MODULE cpu_backend
#include "cpu_backend.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "cpu_backends.hpp"
#include "error.hpp"
#include "scalar_steps.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;
using reference::Random;
using reference::StoredMatrix;

namespace {

constexpr Format kFormats[] = {Format::bf16,  Format::fp8_row, Format::fp8_block, Format::nvfp4,
                               Format::mxfp4, Format::f16,     Format::f32};

void check_projection(const std::vector<NamedBackend>& all, Format f, std::int64_t matrix_rows,
                      std::int64_t cols, const std::vector<std::int64_t>& row_counts,
                      const std::vector<float>& x) {
    const StoredMatrix stored(f, 1, matrix_rows, cols, static_cast<std::uint64_t>(matrix_rows * 7 + cols));
    const auto most = *std::max_element(row_counts.begin(), row_counts.end());
    std::vector<float> want;
    for (std::int64_t t = 0; t < most; ++t)
        for (std::int64_t r = 0; r < matrix_rows; ++r) want.push_back(stored.dot(0, r, x.data() + t * cols));
    for (const auto& [name, backend] : all) {
        const auto matrix = backend->load(stored.source());
        BOOST_TEST(matrix->bytes == stored_bytes(f, 1, matrix_rows, cols));
        for (const std::int64_t rows : row_counts) {
            const std::int64_t stride = matrix_rows + 3;
            std::vector<float> out(static_cast<std::size_t>(rows * stride), -7.0f), expected = out;
            for (std::int64_t t = 0; t < rows; ++t)
                std::copy_n(want.begin() + t * matrix_rows, matrix_rows, expected.begin() + t * stride);
            const Projection p{matrix.get(), out.data(), stride};
            backend->project({&p, 1}, x.data(), rows);
            check_equal(out, expected,
                        name + ", " + std::string(name_of(f)) + " " + std::to_string(matrix_rows) + " x " +
                            std::to_string(cols) + ", " + std::to_string(rows) + " rows");
        }
    }
}

}  // namespace

BOOST_AUTO_TEST_CASE(projections_equal_the_scalar_dot_products) {
    const auto all = cpu_backends();
    Random random(1);
    const auto x = random.floats(33 * 2048, 4.0f);
    for (Format f : kFormats)
        for (std::int64_t matrix_rows : {1, 16, 40, 128})
            for (std::int64_t cols : {16, 32, 48, 64, 256, 520, 2048})
                check_projection(all, f, matrix_rows, cols, {1, 2, 7, 16, 33}, x);
}

BOOST_AUTO_TEST_CASE(columns_that_fill_no_vector) {
    const auto all = cpu_backends();
    Random random(2);
    const auto x = random.floats(70 * 700);
    for (Format f : kFormats)
        for (std::int64_t cols : {2, 6, 34, 62, 128, 130, 154, 642})
            check_projection(all, f, 20, cols, {1, 3, 5, 8, 9, 65, 70}, x);
    for (Format f : {Format::bf16, Format::fp8_row, Format::fp8_block, Format::f16, Format::f32})
        for (std::int64_t cols : {1, 3, 33, 129, 513}) check_projection(all, f, 20, cols, {1, 4, 10}, x);
    std::vector<std::int64_t> every(70);
    std::iota(every.begin(), every.end(), 1);
    for (Format f : {Format::fp8_row, Format::fp8_block}) check_projection(all, f, 17, 643, every, x);
}

BOOST_AUTO_TEST_CASE(activations_of_every_size) {
    const auto all = cpu_backends();
    Random random(3);
    std::vector<float> x(10 * 256);
    for (auto& v : x) {  // from subnormal to near the largest, and zeros of both signs
        const std::uint32_t u = random.bits() | random.bits() << 1;
        v = random.bits() % 11 == 0 ? num::float_of(u & 0x80000000u)
                                    : num::float_of((u & 0x807fffffu) | (random.bits() % 240) << 23);
    }
    std::fill_n(x.begin() + 256, 256, 0.0f);  // a row of zeros
    for (std::size_t i = 768; i < 1024; ++i)
        x[i] = i % 50 ? 0.0f : num::pow2(120);  // 256 times these would overflow
    for (Format f : kFormats) check_projection(all, f, 33, 256, {1, 3, 10}, x);
    // e4m3 subnormals alone: codes 1 to 7
    for (const auto& [name, backend] : all) {
        StoredMatrix stored(Format::fp8_row, 1, 16, 256, 5);
        for (auto& c : stored.codes) c = static_cast<std::uint8_t>((c & 0x80) | (c % 8));
        const auto matrix = backend->load(stored.source());
        std::vector<float> out(16), want;
        for (int r = 0; r < 16; ++r) want.push_back(stored.dot(0, r, x.data() + 512));
        const Projection p{matrix.get(), out.data(), 16};
        backend->project({&p, 1}, x.data() + 512, 1);
        check_equal(out, want, name + ", subnormal codes");
    }
}

BOOST_AUTO_TEST_CASE(a_value_that_is_not_finite_reaches_every_output) {
    for (const auto& [name, backend] : cpu_backends())
        for (Format f : kFormats)
            for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::nanf("")}) {
                const StoredMatrix stored(f, 1, 16, 64, 9);
                const auto matrix = backend->load(stored.source());
                std::vector<float> x(64, 1.0f), out(16);
                x[37] = bad;
                const Projection p{matrix.get(), out.data(), 16};
                backend->project({&p, 1}, x.data(), 1);
                for (float y : out) BOOST_TEST(!std::isfinite(y), name << " " << name_of(f) << " gave " << y);
            }
}

BOOST_AUTO_TEST_CASE(several_matrices_read_the_same_input) {
    Random random(4);
    const auto x = random.floats(40 * 256);
    const StoredMatrix a(Format::fp8_row, 1, 200, 256, 1), b(Format::nvfp4, 1, 8, 256, 2),
        c(Format::bf16, 1, 0, 256, 3);
    std::vector<float> want_a, want_b;
    for (int t = 0; t < 40; ++t) {
        for (int r = 0; r < 200; ++r) want_a.push_back(a.dot(0, r, &x[static_cast<std::size_t>(t) * 256]));
        for (int r = 0; r < 8; ++r) want_b.push_back(b.dot(0, r, &x[static_cast<std::size_t>(t) * 256]));
    }
    for (const auto& [name, backend] : cpu_backends()) {
        const auto ma = backend->load(a.source()), mb = backend->load(b.source()),
                   mc = backend->load(c.source());
        std::vector<float> out_a(want_a.size()), out_b(want_b.size());
        const Projection p[] = {
            {ma.get(), out_a.data(), 200}, {mc.get(), nullptr, 0}, {mb.get(), out_b.data(), 8}};
        backend->project(p, x.data(), 40);
        check_equal(out_a, want_a, name + ", first");
        check_equal(out_b, want_b, name + ", last");
    }
}

namespace {

struct ExpertsCase {
    int experts, top_k;
    std::int64_t hidden, width, shared_width;  ///< shared_width 0: the model has no shared expert
};

/// route(), experts_up() and experts_down() of every backend against the dot products of numerics.hpp.
void check_experts(const std::vector<NamedBackend>& all, const ExpertsCase& s, Format f, std::int64_t rows) {
    Random random(static_cast<std::uint64_t>(rows));
    const bool has_shared = s.shared_width > 0;
    const StoredMatrix up(f, s.experts, 2 * s.width, s.hidden, 1),
        shared_up(f == Format::bf16 ? Format::nvfp4 : f, 1, 2 * s.shared_width, s.hidden, 2);
    const StoredMatrix down(f, s.experts, s.hidden, s.width, 3),
        shared_down(Format::bf16, 1, s.hidden, has_shared ? s.shared_width : 16, 4);
    const auto n = static_cast<std::size_t>(rows), experts = static_cast<std::size_t>(s.experts),
               top = static_cast<std::size_t>(s.top_k), hidden = static_cast<std::size_t>(s.hidden);
    const auto x = random.floats(n * hidden, 2.0f), logits = random.floats(n * experts, 3.0f),
               gate = random.floats(n, 2.0f);
    std::vector<std::int32_t> ids(n * top);
    std::vector<float> weights(n * top), act, shared_act, out(n * hidden);
    for (std::size_t t = 0; t < n; ++t)
        num::route(&logits[t * experts], s.experts, s.top_k, &ids[t * top], &weights[t * top]);
    for (std::size_t t = 0; t < n; ++t) {
        const float* in = &x[t * hidden];
        for (std::size_t c = t * top; c < (t + 1) * top; ++c)
            for (std::int64_t i = 0; i < s.width; ++i)
                act.push_back(num::expert_act(up.dot(ids[c], i, in), up.dot(ids[c], i + s.width, in)));
        for (std::int64_t i = 0; i < s.shared_width; ++i)
            shared_act.push_back(
                num::expert_act(shared_up.dot(0, i, in), shared_up.dot(0, i + s.shared_width, in)));
        for (std::int64_t r = 0; r < s.hidden; ++r) {
            float acc = 0.0f;
            for (std::size_t c = t * top; c < (t + 1) * top; ++c)
                acc = num::expert_add(weights[c],
                                      down.dot(ids[c], r, &act[c * static_cast<std::size_t>(s.width)]), acc);
            if (has_shared)
                acc = num::expert_add(
                    num::sigmoid(gate[t]),
                    shared_down.dot(0, r, &shared_act[t * static_cast<std::size_t>(s.shared_width)]), acc);
            out[t * hidden + static_cast<std::size_t>(r)] = acc;
        }
    }
    for (const auto& [name, backend] : all) {
        const std::string where = name + ", " + std::string(name_of(f)) + ", " + std::to_string(rows) +
                                  " rows" + (has_shared ? "" : ", no shared expert");
        const auto m_up = backend->load(up.source()), m_shared_up = backend->load(shared_up.source());
        const auto m_down = backend->load(down.source()), m_shared_down = backend->load(shared_down.source());
        std::vector<std::int32_t> got_ids(n * top);
        std::vector<float> got_weights(n * top), got_act(act.size()), got_shared(shared_act.size()),
            got(out.size(), 3.0f);
        const Routes routes{got_ids.data(), got_weights.data(), s.top_k};
        backend->route(logits.data(), rows, s.experts, routes);
        BOOST_TEST(got_ids == ids, where);
        check_equal(got_weights, weights, where + ", weights");
        backend->experts_up(*m_up, has_shared ? m_shared_up.get() : nullptr, routes, x.data(), rows,
                            got_act.data(), s.width, has_shared ? got_shared.data() : nullptr,
                            s.shared_width);
        check_equal(got_act, act, where + ", act");
        check_equal(got_shared, shared_act, where + ", shared act");
        backend->experts_down(*m_down, has_shared ? m_shared_down.get() : nullptr, routes, act.data(),
                              has_shared ? shared_act.data() : nullptr, has_shared ? gate.data() : nullptr,
                              rows, got.data(), s.hidden);
        check_equal(got, out, where + ", out");
    }
}

}  // namespace

BOOST_AUTO_TEST_CASE(experts_equal_the_reference) {
    const auto all = cpu_backends();
    for (Format f : kFormats)
        for (std::int64_t rows : {1, 7, 70})
            for (std::int64_t shared_width : {40, 0})
                check_experts(all, {6, 3, 96, 24, shared_width}, f, rows);
}

BOOST_AUTO_TEST_CASE(eight_of_128_experts_of_width_768_equal_the_reference) {
    const auto all = cpu_backends();
    for (Format f : {Format::fp8_block, Format::nvfp4})
        for (std::int64_t rows : {1, 9}) check_experts(all, {128, 8, 128, 768, 0}, f, rows);
}

BOOST_AUTO_TEST_CASE(a_rank_may_hold_no_experts_rows) {
    for (const auto& [name, backend] : cpu_backends()) {
        const StoredMatrix none(Format::nvfp4, 4, 0, 64, 1), none_shared(Format::bf16, 1, 0, 64, 1);
        const auto a = backend->load(none.source()), b = backend->load(none_shared.source());
        BOOST_TEST(a->bytes == 0u);
        std::vector<std::int32_t> ids{0, 3};
        std::vector<float> weights{0.5f, 0.5f}, x(64, 1.0f), act(1, 5.0f), out(1, 5.0f);
        const Routes routes{ids.data(), weights.data(), 2};
        for (const Matrix* shared : {b.get(), static_cast<Matrix*>(nullptr)}) {
            backend->experts_up(*a, shared, routes, x.data(), 1, act.data(), 0, act.data(), 0);
            backend->experts_down(*a, shared, routes, x.data(), x.data(), x.data(), 1, out.data(), 0);
        }
        BOOST_TEST(act[0] == 5.0f);
        BOOST_TEST(out[0] == 5.0f, name);
    }
}

BOOST_AUTO_TEST_CASE(routing_takes_the_lower_id_on_a_tie) {
    for (const auto& [name, backend] : cpu_backends()) {
        const std::vector<float> logits{1, 2, 2, -3, 2, 1};
        std::vector<std::int32_t> ids(4);
        std::vector<float> weights(4);
        backend->route(logits.data(), 1, 6, {ids.data(), weights.data(), 4});
        BOOST_TEST((ids == std::vector<std::int32_t>{0, 1, 2, 4}), name);
        std::vector<float> bad{1, 2, std::numeric_limits<float>::quiet_NaN(), 0, 0, 0};
        backend->route(bad.data(), 1, 6, {ids.data(), weights.data(), 4});
        BOOST_TEST(std::isnan(weights[0]));
    }
}

BOOST_AUTO_TEST_CASE(argmax_skips_padding_masks_and_reports_what_is_not_finite) {
    for (const auto& [name, backend] : cpu_backends()) {
        std::vector<float> logits{
            0, 5, 5, 7, 1, 9, /* row 2 */ -1, -2, -1, std::numeric_limits<float>::infinity(), -8, 9};
        const std::vector<std::uint8_t> masked{0, 0, 0, 1, 0};
        std::vector<std::int32_t> token(2), finite(2);
        backend->argmax(logits.data(), 2, 6, 5, masked.data(), token.data(), finite.data());
        BOOST_TEST((token == std::vector<std::int32_t>{1, 0}), name);
        BOOST_TEST((finite == std::vector<std::int32_t>{1, 0}), name);
        backend->argmax(logits.data(), 1, 6, 5, nullptr, token.data(), finite.data());
        BOOST_TEST(token[0] == 3);
    }
}

BOOST_AUTO_TEST_CASE(norms_sums_and_lookup) {
    Random random(6);
    for (std::int64_t width : {1, 31, 256, 700}) {
        const auto x = random.floats(static_cast<std::size_t>(3 * width), 3.0f),
                   w = random.floats(static_cast<std::size_t>(width));
        std::vector<float> want;
        for (int t = 0; t < 3; ++t) {
            const float scale = num::rms_scale(
                num::sum_of_squares(&x[static_cast<std::size_t>(t * width)], width), width, 1e-6f);
            for (std::int64_t i = 0; i < width; ++i)
                want.push_back(num::rms_apply(x[static_cast<std::size_t>(t * width + i)], scale,
                                              w[static_cast<std::size_t>(i)]));
        }
        for (const auto& [name, backend] : cpu_backends()) {
            std::vector<float> y(want.size()), h = x, sum = x;
            backend->rms_norm(x.data(), w.data(), 1e-6f, 3, width, y.data());
            check_equal(y, want, name);
            backend->add(h.data(), y.data(), h.data(), 3 * width);
            for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = x[i] + want[i];
            check_equal(h, sum, name);
        }
    }
    for (const auto& [name, backend] : cpu_backends())
        for (const auto& [f, on_host] : {std::pair{Format::bf16, true},
                                         {Format::bf16, false},
                                         {Format::f16, true},
                                         {Format::f16, false},
                                         {Format::f32, true},
                                         {Format::f32, false}}) {
            const StoredMatrix table(f, 1, 9, 20, 7);
            const auto m = backend->load_table(table.source(), on_host);
            BOOST_TEST(m->bytes == (on_host ? 0u : 9u * code_bytes(f, 20)));
            const std::vector<Row> host{{8, 0, 0}, {0, 1, 0}};
            std::vector<float> x(40), want;
            backend->embed(*m, {host, host.data()}, x.data());
            for (const Row& row : host) {
                const auto values = table.floats(row.token);
                want.insert(want.end(), values.begin(), values.end());
            }
            check_equal(x, want, name);
            const std::vector<Row> beyond{{9, 0, 0}};
            BOOST_CHECK_THROW(backend->embed(*m, {beyond, beyond.data()}, x.data()), Error);
        }
}

BOOST_AUTO_TEST_CASE(the_environment_chooses_the_kernels) {
    setenv("FTMPI_SIMD", "plain", 1);
    BOOST_TEST(make_cpu_backend(1)->info().capability == "plain");
    setenv("FTMPI_SIMD", "sse9", 1);
    BOOST_CHECK_EXCEPTION(make_cpu_backend(1), Error, [](const Error& e) { return e.code() == Exit::usage; });
    unsetenv("FTMPI_SIMD");
    BOOST_CHECK_THROW(make_cpu_backend(0), Error);
}

BOOST_AUTO_TEST_CASE(memory_is_zeroed_aligned_and_free_until_touched) {
    const auto backend = make_cpu_backend(1);
    for (std::size_t bytes :
         {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20, std::size_t{5000001}}) {
        auto* p = static_cast<unsigned char*>(backend->allocate(bytes, "test"));
        BOOST_TEST(reinterpret_cast<std::uintptr_t>(p) % 64 == 0u);
        BOOST_TEST(std::all_of(p, p + bytes, [](unsigned char c) { return c == 0; }));
        backend->release(p);
    }
    BOOST_TEST(backend->allocate(0, "nothing") == nullptr);
    const auto resident = [] {
        long total = 0, rss = 0;
        FILE* f = std::fopen("/proc/self/statm", "r");
        if (std::fscanf(f, "%ld %ld", &total, &rss) != 2) rss = -1;
        std::fclose(f);
        return rss * 4096;
    };
    const long before = resident();
    void* p = backend->allocate(std::size_t{256} << 20, "cache");
    BOOST_TEST(resident() - before < (16 << 20));
    backend->release(p);
    BOOST_CHECK_EXCEPTION(backend->allocate(std::size_t{1} << 60, "cache"), Error, [](const Error& e) {
        return e.code() == Exit::does_not_fit && std::string(e.what()).find("cache") != std::string::npos;
    });
}
