// Times the CPU backend, not run as a test: multiply-adds per second of each format, and a token's worth of
// calls of a small model (hidden 256, three delta-net layers and one attention layer, 16 experts of which 4,
// vocabulary 2048). Usage: cpu_backend_bench [threads [plain|AVX2|AVX-512|AVX-512 VNNI|AVX-512 AMX]]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "cpu_backend.hpp"
#include "scalar_steps.hpp"

using namespace ftmpi;
using reference::Random;
using reference::StoredMatrix;
using Clock = std::chrono::steady_clock;

namespace {

double seconds(Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
}

std::unique_ptr<Matrix> load(Backend& b, Format f, std::int64_t groups, std::int64_t rows,
                             std::int64_t cols) {
    static std::uint64_t seed = 1;
    return b.load(StoredMatrix(f, groups, rows, cols, ++seed).source());
}

void formats(Backend& b) {
    const auto x = Random(1).floats(64 * 1024);
    std::vector<float> out(64 * 2048);
    for (Format f : {Format::bf16, Format::fp8_row, Format::fp8_block, Format::nvfp4, Format::mxfp4}) {
        std::printf("  %-12s", std::string(name_of(f)).c_str());
        for (std::int64_t cols : {256, 1024}) {
            const auto m = load(b, f, 1, 2048, cols);
            for (std::int64_t rows : {1, 5, 64}) {
                const Projection p{m.get(), out.data(), 2048};
                double best = 1e9;  // of short runs: the machine may be shared
                for (int run = 0; run < 40; ++run) {
                    const auto start = Clock::now();
                    const int repeat = static_cast<int>(64 / rows) / 4 + 1;
                    for (int i = 0; i < repeat; ++i) b.project({&p, 1}, x.data(), rows);
                    best = std::min(best, seconds(start) / repeat);
                }
                std::printf("  K %4d x %2d rows %6.1f", static_cast<int>(cols), static_cast<int>(rows),
                            2048.0 * static_cast<double>(cols * rows) / best / 1e9);
            }
        }
        std::printf("  GMAC/s\n");
    }
}

/// The small model with random weights in NVFP4 experts and head, FP8 projections.
struct SmallModel {
    static constexpr std::int64_t kHidden = 256, kContext = 2048, kMostRows = 256;
    struct Layer {
        bool full;
        std::unique_ptr<Matrix> in[4], out, router, shared_gate, gate_up, shared_gate_up, down, shared_down;
        std::vector<float> conv, state, conv_state;
        std::vector<std::uint16_t> keys, values;
    };
    Backend& b;
    std::vector<Layer> layers;
    std::unique_ptr<Matrix> head;
    std::vector<float> ones, angles, decay_in, x, y, qkv, z, beta, alpha, mixed, router, gate, weights, act,
        shared, logits;
    std::vector<std::int32_t> ids, token, finite;
    std::map<std::string, double> spent;

    explicit SmallModel(Backend& backend) : b(backend) {
        head = load(b, Format::nvfp4, 1, 2048, kHidden);
        for (int l = 0; l < 4; ++l) {
            Layer y;
            y.full = l == 3;
            const std::int64_t linear[] = {2048, 1024, 8, 8}, full[] = {2048, 512, 512, 0};
            for (int i = 0; i < 4; ++i)
                y.in[i] = load(b, !y.full && i > 1 ? Format::bf16 : Format::fp8_row, 1,
                               y.full ? full[i] : linear[i], kHidden);
            y.out = load(b, Format::fp8_row, 1, kHidden, 1024);
            y.router = load(b, Format::bf16, 1, 16, kHidden);
            y.shared_gate = load(b, Format::bf16, 1, 1, kHidden);
            y.gate_up = load(b, Format::nvfp4, 16, 128, kHidden);
            y.shared_gate_up = load(b, Format::nvfp4, 1, 256, kHidden);
            y.down = load(b, Format::nvfp4, 16, kHidden, 64);
            y.shared_down = load(b, Format::nvfp4, 1, kHidden, 128);
            y.conv = Random(7).floats(2048 * 4);
            y.state.resize(8 * 128 * 128);
            y.conv_state.resize(3 * 2048);
            y.keys.resize(2 * kContext * 256);
            y.values.resize(2 * kContext * 256);
            layers.push_back(std::move(y));
        }
        ones.assign(4096, 1.0f);
        decay_in.assign(64, -0.1f);
        angles = Random(3).floats(kContext * 32);
        const auto n = [](std::int64_t width) {
            return std::vector<float>(static_cast<std::size_t>(kMostRows * width));
        };
        x = Random(4).floats(kMostRows * kHidden);
        y = n(kHidden), qkv = n(2048), z = n(1024), beta = n(8), alpha = n(8), mixed = n(1024),
        router = n(16), gate = n(1);
        weights = n(4), act = n(4 * 64), shared = n(128), logits = n(2048);
        ids.resize(kMostRows * 4), token.resize(kMostRows), finite.resize(kMostRows);
    }

    template <class Call> void timed(const char* what, Call call) {
        const auto start = Clock::now();
        call();
        spent[what] += seconds(start);
    }

    void step(std::int64_t position, std::int64_t rows) {
        std::vector<Row> host;
        for (std::int64_t r = 0; r < rows; ++r)
            host.push_back({0, 0, static_cast<std::int32_t>(position + r)});
        const Rows step{host, host.data()};
        const auto norm = [&] {
            timed("norms", [&] { b.rms_norm(x.data(), ones.data(), 1e-6f, rows, kHidden, y.data()); });
        };
        for (Layer& l : layers) {
            norm();
            float* outs[] = {qkv.data(), z.data(), beta.data(), alpha.data()};
            const std::int64_t strides[] = {2048, l.full ? 512 : 1024, l.full ? 512 : 8, 8};
            if (l.full) outs[2] = z.data() + rows * 512;
            std::vector<Projection> in;
            for (int i = 0; i < 4; ++i) in.push_back({l.in[i].get(), outs[i], strides[i]});
            timed("in projections", [&] { b.project(in, y.data(), rows); });
            if (l.full) {
                Attention a{4,
                            2,
                            0,
                            0,
                            2,
                            256,
                            64,
                            1e-6f,
                            0.0625f,
                            ones.data(),
                            ones.data(),
                            angles.data(),
                            angles.data(),
                            KvType::bf16,
                            1,
                            1,
                            kContext,
                            l.keys.data(),
                            l.values.data()};
                timed("attention",
                      [&] { b.attention(a, step, qkv.data(), outs[1], outs[2], mixed.data(), 1024); });
            } else {
                DeltaNet d{4,
                           8,
                           128,
                           128,
                           4,
                           1e-6f,
                           l.conv.data(),
                           decay_in.data(),
                           ones.data(),
                           ones.data(),
                           l.conv_state.data(),
                           l.state.data()};
                timed("delta net", [&] {
                    b.delta_net(d, step, qkv.data(), z.data(), beta.data(), alpha.data(), mixed.data(), 1024);
                });
            }
            const Projection out{l.out.get(), y.data(), kHidden};
            timed("out projection", [&] { b.project({&out, 1}, mixed.data(), rows); });
            norm();
            const Projection choose[] = {{l.router.get(), router.data(), 16},
                                         {l.shared_gate.get(), gate.data(), 1}};
            const Routes routes{ids.data(), weights.data(), 4};
            timed("router", [&] {
                b.project(choose, y.data(), rows);
                b.route(router.data(), rows, 16, routes);
            });
            timed("experts up", [&] {
                b.experts_up(*l.gate_up, l.shared_gate_up.get(), routes, y.data(), rows, act.data(), 64,
                             shared.data(), 128);
            });
            timed("experts down", [&] {
                b.experts_down(*l.down, l.shared_down.get(), routes, act.data(), shared.data(), gate.data(),
                               rows, y.data(), kHidden);
            });
        }
        const Projection last{head.get(), logits.data(), 2048};
        norm();
        timed("head", [&] { b.project({&last, 1}, y.data() + (rows - 1) * kHidden, 1); });
        timed("argmax",
              [&] { b.argmax(logits.data(), 1, 2048, 2029, nullptr, token.data(), finite.data()); });
    }

    /// Best of several runs, microseconds a token.
    void report(const char* what, std::int64_t rows, int steps, int runs) {
        double best = 1e9;
        std::map<std::string, double> parts;
        for (int run = 0; run < runs; ++run) {
            spent.clear();
            const auto start = Clock::now();
            for (int i = 0; i < steps; ++i) step(i * rows, rows);
            if (const double t = seconds(start) / static_cast<double>(steps * rows); t < best) {
                best = t;
                parts = spent;
            }
        }
        std::printf("  %s: %.1f us a token, %.0f tok/s:", what, best * 1e6, 1 / best);
        for (const auto& [name, t] : parts)
            std::printf(" %s %.1f", name.c_str(), t / static_cast<double>(steps * rows) * 1e6);
        std::printf("\n");
    }
};

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
    for (Simd simd : {Simd::avx512amx, Simd::avx512vnni, Simd::avx512, Simd::avx2, Simd::plain}) {
        if (!supported(simd)) continue;
        const auto backend = make_cpu_backend(threads, simd);
        if (argc > 2 && backend->info().capability != argv[2]) continue;
        std::printf("%s, %d threads\n", backend->info().capability.c_str(), threads);
        formats(*backend);
        SmallModel model(*backend);
        const bool slow = simd == Simd::plain;
        model.report("decode", 1, 4, slow ? 5 : 200);
        model.report("prefill of 64", 64, 1, slow ? 2 : 40);
        model.report("prefill of 256", 256, 1, slow ? 1 : 20);
    }
}
