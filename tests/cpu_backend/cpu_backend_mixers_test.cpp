// Gated DeltaNet and attention of the CPU backend against the scalar reference, token by token, bit by bit:
// one call, chunks, single rows, several sequences together.
#define BOOST_TEST_MODULE cpu_backend_mixers
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "cpu_backend.hpp"
#include "cpu_backends.hpp"
#include "error.hpp"
#include "scalar_steps.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;
using reference::Random;

namespace {

/// Rows [from, to) of one sequence.
std::vector<Row> rows_of(std::int32_t slot, std::int64_t from, std::int64_t to) {
    std::vector<Row> rows;
    for (std::int64_t p = from; p < to; ++p) rows.push_back({0, slot, static_cast<std::int32_t>(p)});
    return rows;
}

// ---- delta net
// -------------------------------------------------------------------------------------------------

struct DeltaCase {
    DeltaNet net;
    int slots;
    std::vector<float> conv, neg_exp_a, dt_bias, norm, conv_state, state;

    DeltaCase(int key_heads, int value_heads, int key_dim, int value_dim, int taps, int slots_)
        : slots(slots_) {
        net = {key_heads, value_heads, key_dim, value_dim, taps,    1e-6f,
               nullptr,   nullptr,     nullptr, nullptr,   nullptr, nullptr};
        Random random(11);
        conv = random.floats(static_cast<std::size_t>(net.channels() * taps));
        neg_exp_a = random.floats(static_cast<std::size_t>(value_heads));
        for (auto& x : neg_exp_a) x = -std::abs(x) - 0.01f;
        dt_bias = random.floats(static_cast<std::size_t>(value_heads));
        norm = random.floats(static_cast<std::size_t>(value_dim));
        net.conv = conv.data();
        net.neg_exp_a = neg_exp_a.data();
        net.dt_bias = dt_bias.data();
        net.norm = norm.data();
        reset();
    }
    void reset() {
        conv_state.assign(static_cast<std::size_t>(slots * (net.taps - 1) * net.channels()), 0.0f);
        state.assign(static_cast<std::size_t>(slots * net.value_heads * net.key_dim * net.value_dim), 0.0f);
        net.conv_state = conv_state.data();
        net.state = state.data();
    }
    int out_width() const { return net.value_heads * net.value_dim; }
};

struct DeltaInputs {
    std::vector<float> qkv, z, b, a;
    DeltaInputs(const DeltaCase& c, std::int64_t tokens, std::uint64_t seed) {
        Random random(seed);
        const auto n = static_cast<std::size_t>(tokens);
        qkv = random.floats(n * static_cast<std::size_t>(c.net.channels()), 2.0f);
        z = random.floats(n * static_cast<std::size_t>(c.out_width()), 2.0f);
        b = random.floats(n * static_cast<std::size_t>(c.net.value_heads), 2.0f);
        a = random.floats(n * static_cast<std::size_t>(c.net.value_heads), 2.0f);
    }
};

/// Outputs, then final states, of one sequence by the reference.
std::vector<float> delta_reference(const DeltaCase& c, const DeltaInputs& in, std::int64_t tokens,
                                   std::vector<float>& state, std::vector<float>& conv_state) {
    reference::DeltaReference reference(c.net);
    std::vector<float> out(static_cast<std::size_t>(tokens * c.out_width()));
    for (std::int64_t t = 0; t < tokens; ++t)
        reference.token(&in.qkv[static_cast<std::size_t>(t * c.net.channels())],
                        &in.z[static_cast<std::size_t>(t * c.out_width())],
                        &in.b[static_cast<std::size_t>(t * c.net.value_heads)],
                        &in.a[static_cast<std::size_t>(t * c.net.value_heads)],
                        &out[static_cast<std::size_t>(t * c.out_width())]);
    state = reference.state;
    conv_state.clear();
    for (std::size_t i = reference.history.size() - static_cast<std::size_t>(c.net.taps - 1);
         i < reference.history.size(); ++i)
        conv_state.insert(conv_state.end(), reference.history[i].begin(), reference.history[i].end());
    return out;
}

void check_delta(const std::vector<NamedBackend>& all, DeltaCase& c, std::int64_t tokens,
                 const std::vector<std::int64_t>& cuts) {
    const DeltaInputs in(c, tokens, static_cast<std::uint64_t>(tokens));
    std::vector<float> state, conv_state;
    const auto want = delta_reference(c, in, tokens, state, conv_state);
    for (const auto& [name, backend] : all)
        for (const std::int64_t cut : cuts) {
            const std::string where =
                name + ", " + std::to_string(tokens) + " tokens by " + std::to_string(cut);
            c.reset();
            const std::int64_t width = c.out_width(), stride = width + 5;
            std::vector<float> out(want.size());
            for (std::int64_t t = 0; t < tokens; t += cut) {
                const auto rows = rows_of(0, t, std::min(tokens, t + cut));
                std::vector<float> part(rows.size() * static_cast<std::size_t>(stride));
                backend->delta_net(
                    c.net, {rows, rows.data()}, &in.qkv[static_cast<std::size_t>(t * c.net.channels())],
                    &in.z[static_cast<std::size_t>(t * width)],
                    &in.b[static_cast<std::size_t>(t * c.net.value_heads)],
                    &in.a[static_cast<std::size_t>(t * c.net.value_heads)], part.data(), stride);
                for (std::size_t r = 0; r < rows.size(); ++r)
                    std::copy_n(part.begin() + static_cast<std::int64_t>(r) * stride, width,
                                out.begin() + (t + static_cast<std::int64_t>(r)) * width);
            }
            check_equal(out, want, where);
            check_equal(c.state, state, where + ", state");
            check_equal(c.conv_state, conv_state, where + ", conv state");
        }
}

}  // namespace

BOOST_AUTO_TEST_CASE(delta_net_equals_token_by_token_for_every_cut) {
    const auto all = cpu_backends();
    DeltaCase c(2, 4, 128, 128, 4, 1);
    check_delta(all, c, 130, {1, 7, 64, 130});
    DeltaCase wide(1, 2, 64, 256, 4, 1);  // blocks and their tail
    check_delta(all, wide, 20, {1, 7, 20});
}

BOOST_AUTO_TEST_CASE(delta_net_of_any_size_and_short_sequences) {
    const auto all = cpu_backends();
    DeltaCase small(2, 4, 16, 16, 4, 1), odd(2, 2, 40, 20, 3, 1), three(1, 3, 10, 6, 2, 1),
        uneven(2, 3, 16, 16, 4, 1);
    for (DeltaCase* c : {&small, &odd, &three, &uneven})
        for (std::int64_t tokens : {1, 2, 3, 4, 5, 9}) check_delta(all, *c, tokens, {1, 2, 4, tokens});
}

BOOST_AUTO_TEST_CASE(delta_net_of_several_sequences_is_each_alone) {
    const auto all = cpu_backends();
    constexpr int kSlots = 5;
    DeltaCase c(2, 4, 32, 48, 4, kSlots + 1);
    const std::int64_t lengths[kSlots] = {1, 9, 4, 17, 2};
    std::vector<DeltaInputs> in;
    std::vector<std::vector<float>> want, state(kSlots), conv_state(kSlots);
    for (int s = 0; s < kSlots; ++s) {
        in.emplace_back(c, 17, 100 + static_cast<std::uint64_t>(s));
        want.push_back(delta_reference(c, in.back(), lengths[s], state[static_cast<std::size_t>(s)],
                                       conv_state[static_cast<std::size_t>(s)]));
    }
    // Rows of the sequences alternate, as in a batch, in slots given backwards.
    std::vector<Row> rows;
    std::vector<std::pair<int, std::int64_t>> from;
    for (std::int64_t t = 0; t < 17; ++t)
        for (int s = 0; s < kSlots; ++s)
            if (t < lengths[s]) {
                rows.push_back({0, kSlots - s, static_cast<std::int32_t>(t)});
                from.emplace_back(s, t);
            }
    const auto gather = [&](std::int64_t width, auto member) {
        std::vector<float> v;
        for (const auto& [s, t] : from) {
            const auto& x = in[static_cast<std::size_t>(s)].*member;
            v.insert(v.end(), x.begin() + t * width, x.begin() + (t + 1) * width);
        }
        return v;
    };
    const auto qkv = gather(c.net.channels(), &DeltaInputs::qkv), z = gather(c.out_width(), &DeltaInputs::z);
    const auto b = gather(c.net.value_heads, &DeltaInputs::b), a = gather(c.net.value_heads, &DeltaInputs::a);
    for (const auto& [name, backend] : all) {
        c.reset();
        std::vector<float> out(rows.size() * static_cast<std::size_t>(c.out_width()));
        backend->delta_net(c.net, {rows, rows.data()}, qkv.data(), z.data(), b.data(), a.data(), out.data(),
                           c.out_width());
        for (std::size_t r = 0; r < rows.size(); ++r) {
            const auto& w = want[static_cast<std::size_t>(from[r].first)];
            const auto width = static_cast<std::size_t>(c.out_width());
            check_equal({out.begin() + static_cast<std::int64_t>(r * width),
                         out.begin() + static_cast<std::int64_t>((r + 1) * width)},
                        {w.begin() + from[r].second * c.out_width(),
                         w.begin() + (from[r].second + 1) * c.out_width()},
                        name + ", row " + std::to_string(r));
        }
        for (int s = 0; s < kSlots; ++s) {
            const auto& one = state[static_cast<std::size_t>(s)];
            const auto at = static_cast<std::int64_t>(one.size()) * (kSlots - s);
            check_equal({c.state.begin() + at, c.state.begin() + at + static_cast<std::int64_t>(one.size())},
                        one, name + ", state");
        }
        BOOST_TEST(std::all_of(c.state.begin(), c.state.begin() + static_cast<std::int64_t>(state[0].size()),
                               [](float x) { return x == 0; }));
    }
}

BOOST_AUTO_TEST_CASE(delta_net_gates_at_their_ends) {
    // exp(-exp(A) * softplus(x)): no decay at all, everything forgotten, and softplus far beyond where exp
    // overflows.
    for (const auto& [name, backend] : cpu_backends()) {
        DeltaCase c(1, 2, 16, 16, 4, 1);
        c.neg_exp_a = {-0.0f, -50.0f};
        c.dt_bias = {0.0f, 60.0f};
        const DeltaInputs in(c, 3, 5);
        std::vector<float> a(6, 40.0f), out(3 * 32);
        const auto rows = rows_of(0, 0, 3);
        backend->delta_net(c.net, {rows, rows.data()}, in.qkv.data(), in.z.data(), in.b.data(), a.data(),
                           out.data(), 32);
        reference::DeltaReference reference(c.net);
        std::vector<float> want(out.size());
        for (std::size_t t = 0; t < 3; ++t)
            reference.token(&in.qkv[t * 64], &in.z[t * 32], &in.b[t * 2], &a[t * 2], &want[t * 32]);
        check_equal(out, want, name);
        BOOST_TEST(std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }));
    }
}

BOOST_AUTO_TEST_CASE(the_convolution_keeps_its_last_raw_inputs) {
    // Inputs 1, 2, 3, ...; after 1, 2, 3, 4, 5 tokens the last three, zeros before the start.
    const float want[5][3] = {{0, 0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4, 5}};
    for (const auto& [name, backend] : cpu_backends())
        for (bool together : {true, false})
            for (std::int64_t tokens = 1; tokens <= 5; ++tokens) {
                DeltaCase c(1, 1, 1, 1, 4, 1);
                std::vector<float> qkv, zeros(5), out(5);
                for (std::int64_t t = 0; t < tokens; ++t) qkv.insert(qkv.end(), 3, static_cast<float>(t + 1));
                for (std::int64_t t = 0; t < tokens; t += together ? tokens : 1) {
                    const auto rows = rows_of(0, t, together ? tokens : t + 1);
                    backend->delta_net(c.net, {rows, rows.data()}, qkv.data() + t * 3, zeros.data(),
                                       zeros.data(), zeros.data(), out.data(), 1);
                }
                for (std::size_t i = 0; i < 9; ++i)
                    BOOST_TEST(c.conv_state[i] == want[tokens - 1][i / 3],
                               name << ", " << tokens << " tokens");
            }
}

// ---- attention
// -------------------------------------------------------------------------------------------------

namespace {

struct AttentionCase {
    Attention a;
    int slots;
    std::vector<float> q_norm, k_norm, cos, sin;
    std::vector<std::byte> keys, values;

    AttentionCase(int query_heads, int kv_heads, int first_query, int first_kv, int group, int dim,
                  int rotary, KvType kv, std::int64_t capacity, int slots_)
        : slots(slots_) {
        Random random(21);
        q_norm = random.floats(static_cast<std::size_t>(dim), 2.0f);
        k_norm = random.floats(static_cast<std::size_t>(dim), 2.0f);
        cos = random.floats(static_cast<std::size_t>(capacity * rotary / 2));
        sin = random.floats(static_cast<std::size_t>(capacity * rotary / 2));
        a.query_heads = query_heads;
        a.kv_heads = kv_heads;
        a.first_query_head = first_query;
        a.first_kv_head = first_kv;
        a.group = group;
        a.head_dim = dim;
        a.rotary_dim = rotary;
        a.eps = 1e-6f;
        a.scale = num::inverse_root_of(dim);
        a.q_norm = q_norm.data();
        a.k_norm = k_norm.data();
        a.cos = cos.data();
        a.sin = sin.data();
        a.kv = kv;
        a.k_scale = 0.03125f;
        a.v_scale = 0.017f;
        a.capacity = capacity;
        reset();
    }
    void reset() {
        keys.assign(static_cast<std::size_t>(slots * a.kv_heads * a.capacity * a.head_dim) * size_of(a.kv),
                    std::byte{0});
        values = keys;
        a.keys = keys.data();
        a.values = values.data();
    }
    int out_width() const { return a.query_heads * a.head_dim; }
    int query_width() const { return a.gated ? 2 * out_width() : out_width(); }
};

struct AttentionInputs {
    std::vector<float> qg, k, v;
    AttentionInputs(const AttentionCase& c, std::int64_t tokens, std::uint64_t seed) {
        Random random(seed);
        const auto n = static_cast<std::size_t>(tokens);
        qg = random.floats(n * static_cast<std::size_t>(c.query_width()), 3.0f);
        k = random.floats(n * static_cast<std::size_t>(c.a.kv_heads * c.a.head_dim), 3.0f);
        v = random.floats(n * static_cast<std::size_t>(c.a.kv_heads * c.a.head_dim), 3.0f);
    }
};

std::vector<float> attention_reference(const AttentionCase& c, const AttentionInputs& in,
                                       std::int64_t tokens) {
    reference::AttentionReference reference(c.a);
    std::vector<float> out(static_cast<std::size_t>(tokens * c.out_width()));
    const std::int64_t kv = c.a.kv_heads * c.a.head_dim;
    for (std::int64_t t = 0; t < tokens; ++t)
        reference.token(t, in.qg.data() + t * c.query_width(), in.k.data() + t * kv, in.v.data() + t * kv,
                        out.data() + t * c.out_width());
    return out;
}

void check_attention(const std::vector<NamedBackend>& all, AttentionCase& c, std::int64_t tokens,
                     const std::vector<std::int64_t>& cuts) {
    const AttentionInputs in(c, tokens, 3);
    const auto want = attention_reference(c, in, tokens);
    const std::int64_t kv = c.a.kv_heads * c.a.head_dim, width = c.out_width(), stride = width + 3;
    for (const auto& [name, backend] : all)
        for (const std::int64_t cut : cuts) {
            c.reset();
            std::vector<float> out(want.size());
            for (std::int64_t t = 0; t < tokens; t += cut) {
                const auto rows = rows_of(0, t, std::min(tokens, t + cut));
                std::vector<float> part(rows.size() * static_cast<std::size_t>(stride));
                backend->attention(c.a, {rows, rows.data()}, in.qg.data() + t * c.query_width(),
                                   in.k.data() + t * kv, in.v.data() + t * kv, part.data(), stride);
                for (std::size_t r = 0; r < rows.size(); ++r)
                    std::copy_n(part.begin() + static_cast<std::int64_t>(r) * stride, width,
                                out.begin() + (t + static_cast<std::int64_t>(r)) * width);
            }
            check_equal(out, want,
                        name + ", " + std::string(name_of(c.a.kv)) + ", head dim " +
                            std::to_string(c.a.head_dim) + ", " + std::to_string(tokens) + " tokens by " +
                            std::to_string(cut));
        }
}

}  // namespace

BOOST_AUTO_TEST_CASE(attention_equals_token_by_token_for_every_cut_and_cache) {
    const auto all = cpu_backends();
    for (KvType kv : {KvType::fp32, KvType::bf16, KvType::fp8}) {
        AttentionCase c(4, 2, 0, 0, 2, 32, 8, kv, 620, 1);
        check_attention(all, c, 610, {1, 7, 610});
    }
}

BOOST_AUTO_TEST_CASE(attention_of_the_real_head_size_and_of_odd_ones) {
    const auto all = cpu_backends();
    for (KvType kv : {KvType::fp32, KvType::bf16, KvType::fp8}) {
        AttentionCase real(4, 1, 0, 0, 8, 256, 64, kv, 80, 1), odd(3, 2, 5, 2, 2, 26, 6, kv, 300, 1),
            tiny(2, 2, 2, 2, 1, 3, 2, kv, 40, 1);
        check_attention(all, real, 70, {1, 33, 70});
        check_attention(all, odd, 270, {1, 100});
        check_attention(all, tiny, 37, {1, 5});
    }
}

BOOST_AUTO_TEST_CASE(attention_without_a_gate_rotates_whole_heads) {
    const auto all = cpu_backends();
    for (KvType kv : {KvType::fp32, KvType::bf16, KvType::fp8}) {
        AttentionCase real(16, 2, 0, 0, 8, 128, 128, kv, 300, 1), odd(3, 2, 5, 2, 2, 26, 26, kv, 300, 1);
        real.a.gated = odd.a.gated = false;
        check_attention(all, real, 270, {1, 33, 270});
        check_attention(all, odd, 270, {1, 100});
    }
    AttentionCase gated(4, 1, 0, 0, 4, 64, 64, KvType::bf16, 80, 1);
    check_attention(all, gated, 70, {1, 70});
}

BOOST_AUTO_TEST_CASE(attention_of_several_sequences_is_each_alone) {
    const auto all = cpu_backends();
    constexpr int kSlots = 5;
    AttentionCase c(4, 2, 0, 0, 2, 32, 8, KvType::bf16, 64, kSlots);
    const std::int64_t lengths[kSlots] = {3, 1, 40, 17, 2}, width = c.out_width();
    std::vector<Row> rows;
    std::vector<float> qg, k, v, want;
    for (int s = 0; s < kSlots; ++s) {
        const AttentionInputs in(c, lengths[s], 50 + static_cast<std::uint64_t>(s));
        const auto one = attention_reference(c, in, lengths[s]);
        const auto more = rows_of(s, 0, lengths[s]);
        rows.insert(rows.end(), more.begin(), more.end());
        qg.insert(qg.end(), in.qg.begin(), in.qg.end());
        k.insert(k.end(), in.k.begin(), in.k.end());
        v.insert(v.end(), in.v.begin(), in.v.end());
        want.insert(want.end(), one.begin(), one.end());
    }
    for (const auto& [name, backend] : all) {
        c.reset();
        std::vector<float> out(want.size());
        backend->attention(c.a, {rows, rows.data()}, qg.data(), k.data(), v.data(), out.data(), width);
        check_equal(out, want, name);
        auto beyond = rows_of(0, c.a.capacity, c.a.capacity + 1);
        BOOST_CHECK_THROW(backend->attention(c.a, {beyond, beyond.data()}, qg.data(), k.data(), v.data(),
                                             out.data(), width),
                          Error);
        std::vector<Row> gap{{0, 0, 1}, {0, 0, 3}};
        BOOST_CHECK_THROW(
            backend->attention(c.a, {gap, gap.data()}, qg.data(), k.data(), v.data(), out.data(), width),
            Error);
    }
}

BOOST_AUTO_TEST_CASE(a_rank_may_hold_no_heads) {
    for (const auto& [name, backend] : cpu_backends()) {
        const auto rows = rows_of(0, 0, 2);
        backend->delta_net(DeltaNet{}, {rows, rows.data()}, nullptr, nullptr, nullptr, nullptr, nullptr, 0);
        backend->attention(Attention{}, {rows, rows.data()}, nullptr, nullptr, nullptr, nullptr, 0);
        BOOST_TEST(true, name);
    }
}
