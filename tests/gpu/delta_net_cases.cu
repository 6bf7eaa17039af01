// Gated DeltaNet on the GPU against the CPU backend, bit by bit.
#include "../../src/numerics.hpp"
#include "mixers_cases.hpp"
#include "short_form.hpp"

namespace ftmpi::gpu_check {
namespace {

struct DeltaResult {
    std::vector<float> out, conv_state, state;
};

struct DeltaCase {
    DeltaNet net;
    int slots;
    std::vector<float> conv, neg_exp_a, dt_bias, norm, conv_state, state;

    DeltaCase(int key_heads, int value_heads, int key_dim, int value_dim, int taps, int slot_count,
              std::uint64_t seed)
        : slots(slot_count) {
        Random random(seed);
        net.key_heads = key_heads, net.value_heads = value_heads, net.key_dim = key_dim,
        net.value_dim = value_dim;
        net.taps = taps, net.eps = 1e-6f;
        conv = random.floats(std::int64_t{net.channels()} * taps);
        neg_exp_a = random.floats(value_heads, 1.0f, -1.5f);
        dt_bias = random.floats(value_heads);
        norm = random.floats(value_dim, 0.5f, 1.0f);
        conv_state = random.floats(std::int64_t{slots} * (taps - 1) * net.channels());
        state = random.floats(std::int64_t{slots} * value_heads * key_dim * value_dim, 0.2f);
    }
    std::string name() const {
        return "delta_net " + std::to_string(net.key_heads) + "/" + std::to_string(net.value_heads) + " x " +
               std::to_string(net.key_dim) + "/" + std::to_string(net.value_dim) + ", " +
               std::to_string(net.taps) + " taps";
    }
    std::int64_t values() const { return std::int64_t{net.value_heads} * net.value_dim; }

    struct Inputs {
        std::vector<float> qkv, z, b, a;
    };
    Inputs inputs(std::int64_t rows) const {
        Random random(77);
        return {random.floats(rows * net.channels()), random.floats(rows * values(), 3.0f),
                random.floats(rows * net.value_heads, 2.0f), random.floats(rows * net.value_heads, 2.0f)};
    }

    template <class Step> void over(const std::vector<std::vector<Row>>& steps, Step step) const {
        std::int64_t at = 0;
        for (const auto& rows : steps) {
            step(rows, at);
            at += static_cast<std::int64_t>(rows.size());
        }
    }
    DeltaResult on_cpu(const std::vector<std::vector<Row>>& steps, std::int64_t stride) const {
        const std::int64_t n = count_of(steps);
        const Inputs in = inputs(n);
        DeltaResult r{std::vector<float>(static_cast<std::size_t>(n * stride), num::float_of(Guarded::kNan)),
                      conv_state, state};
        DeltaNet d = net;
        d.conv = conv.data(), d.neg_exp_a = neg_exp_a.data(), d.dt_bias = dt_bias.data(),
        d.norm = norm.data();
        d.conv_state = r.conv_state.data(), d.state = r.state.data();
        over(steps, [&](const std::vector<Row>& rows, std::int64_t at) {
            cpu().delta_net(d, {rows, rows.data()}, in.qkv.data() + at * net.channels(),
                            in.z.data() + at * values(), in.b.data() + at * net.value_heads,
                            in.a.data() + at * net.value_heads, r.out.data() + at * stride, stride);
        });
        return r;
    }
    DeltaResult on_gpu(const std::vector<std::vector<Row>>& steps, std::int64_t stride,
                       std::string& trouble) const {
        const std::int64_t n = count_of(steps);
        const Inputs in = inputs(n);
        const Guarded qkv(in.qkv), z(in.z), b(in.b), a(in.a), w(conv), nea(neg_exp_a), dt(dt_bias), nw(norm),
            cs(conv_state), st(state), out(static_cast<std::size_t>(n * stride) * 4);
        DeltaNet d = net;
        d.conv = w.floats(), d.neg_exp_a = nea.floats(), d.dt_bias = dt.floats(), d.norm = nw.floats();
        d.conv_state = cs.floats(), d.state = st.floats();
        std::size_t most = 0;
        for (const auto& rows : steps) most = std::max(most, rows.size());
        const Workplace work(steps, cuda::delta_net_scratch(static_cast<std::int64_t>(most), net.key_heads,
                                                            net.value_heads, net.key_dim, net.value_dim));
        const auto* device = reinterpret_cast<const Row*>(work.rows.data());
        over(steps, [&](const std::vector<Row>& rows, std::int64_t at) {
            const bool early = work.begin_step();
            cuda::delta_net(d, {rows, device + at}, qkv.floats() + at * net.channels(),
                            z.floats() + at * values(), b.floats() + at * net.value_heads,
                            a.floats() + at * net.value_heads, out.floats() + at * stride, stride, work.get(),
                            nullptr, early);
        });
        FTMPI_CUDA(cudaDeviceSynchronize());
        for (const Guarded* g : {&qkv, &z, &b, &a, &w, &nea, &dt, &nw, &cs, &st, &out})
            if (!g->intact()) trouble = "memory beside a buffer was written";
        if (trouble.empty()) trouble = work.trouble();
        return {out.read<float>(), cs.read<float>(), st.read<float>()};
    }
    void check(const std::string& what, const std::vector<std::vector<Row>>& steps,
               const std::vector<std::vector<Row>>* cpu_steps = nullptr) const {
        const std::int64_t stride = values() + 5;  // columns of others lie between the rows
        const DeltaResult want = on_cpu(cpu_steps ? *cpu_steps : steps, stride);
        std::string trouble;
        const DeltaResult got = on_gpu(steps, stride, trouble);
        for (const auto& d : {difference("out", got.out, want.out),
                              difference("convolution state", got.conv_state, want.conv_state),
                              difference("state", got.state, want.state)})
            if (!d.empty()) trouble += (trouble.empty() ? "" : "; ") + d;
        report(trouble.empty(), name() + ", " + what, trouble);
    }
};

/// The short form: each kernel's instances, one or a few rows a slot, parts of tiles.
void check_delta_net_shortly() {
    const DeltaCase cases[] = {{2, 4, 128, 128, 4, 3, 2}, {2, 2, 16, 16, 4, 3, 3}, {2, 2, 200, 136, 6, 3, 5}};
    for (const DeltaCase& c : cases) {
        c.check("19 rows", steps_of(1, 5, 19, 19));
        c.check("a row of each of 3 slots",
                Steps{{{0, 2, 0}, {0, 0, 9}, {0, 1, 3}}, {{0, 2, 1}, {0, 0, 10}, {0, 1, 4}}});
        Steps mixed(1);
        append(mixed[0], 0, 4, 3), append(mixed[0], 2, 7, 2), append(mixed[0], 0, 7, 1);
        c.check("6 rows of 2 slots", mixed);
    }
}

void check_delta_net_wholly() {
    const DeltaCase cases[] = {{16, 32, 128, 128, 4, 3, 1}, {4, 8, 128, 128, 4, 3, 2},
                               {4, 8, 16, 16, 4, 3, 3},     {3, 3, 32, 48, 2, 3, 4},
                               {2, 8, 200, 136, 6, 3, 5},   {2, 2, 64, 256, 8, 3, 6}};
    for (const DeltaCase& c : cases) {
        for (const int n : {1, 2, 7, 33, 300}) c.check(std::to_string(n) + " rows", steps_of(1, 5, n, n));
        const auto whole = steps_of(2, 0, 300, 300);
        for (const int step : {7, 1}) {
            const auto cut = steps_of(2, 0, 300, step);
            c.check("300 rows in steps of " + std::to_string(step), cut, &whole);
        }
        std::vector<std::vector<Row>> decode;
        for (int i = 0; i < 5; ++i) decode.push_back({{0, 2, i}, {0, 0, 9 + i}, {0, 1, 3 + i}});
        c.check("a row of each of 3 slots", decode);
        std::vector<std::vector<Row>> mixed(1);
        append(mixed[0], 0, 4, 20), append(mixed[0], 2, 7, 13), append(mixed[0], 0, 24, 5),
            append(mixed[0], 1, 0, 1);
        c.check("39 rows of 3 slots", mixed);
        std::vector<std::vector<Row>> woven(1);
        for (int i = 0; i < 6; ++i) append(woven[0], 0, i, 1), append(woven[0], 1, i, 1);
        c.check("rows of 2 slots in turn", woven);
    }
    const DeltaCase many(4, 8, 16, 16, 4, 700, 9);
    std::vector<std::vector<Row>> decode(3);
    for (auto& s : decode)
        for (int i = 0; i < 650; ++i) s.push_back({0, (i * 37) % 700, 1});
    many.check("a row of each of 650 slots", decode);
    std::vector<std::vector<Row>> pairs(1);
    for (int i = 0; i < 70; ++i) append(pairs[0], i, 3, 2);
    many.check("two rows of each of 70 slots", pairs);
}

}  // namespace

void check_delta_net() { check::short_form() ? check_delta_net_shortly() : check_delta_net_wholly(); }

}  // namespace ftmpi::gpu_check
