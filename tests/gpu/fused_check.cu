// Holds the GPU's fused and small kernels of a decode step, its graphs and its copies behind the stream equal
// to the plain forms on the CPU, and times the kernels inside a graph. FTMPI_CHECK_SHORT=1: few shapes, no
// times.
#include <chrono>
#include <cmath>

#include "../../cuda/runtime/backend.hpp"
#include "../../src/cpu_backend.hpp"
#include "checks.hpp"
#include "short_form.hpp"

using namespace ftmpi;
using namespace ftmpi::check;

namespace {

constexpr float kEps = 1e-6f;

void check_norms(Backend& cpu, Backend& gpu, Random& r, Tally& tally, std::int64_t rows, std::int64_t width,
                 std::int64_t shift) {
    auto h = random_activations(r, rows, width + shift), y = random_activations(r, rows, width),
         w = random_activations(r, 1, width);
    std::vector<float> results[2];
    for (int side = 0; side < 2; ++side) {
        Backend& b = side ? gpu : cpu;
        auto sum = upload(b, h), add = upload(b, y), weight = upload(b, w);
        DeviceArray<float> out(b, 3 * rows * width, "check"), other(b, rows * width, "check");
        b.rms_norm(sum.data() + shift, weight.data(), kEps, rows, width, out.data());
        b.norm({sum.data() + shift, add.data(), other.data(), weight.data(), kEps, width,
                out.data() + rows * width},
               rows);
        b.norm({sum.data() + shift, add.data(), sum.data() + shift, weight.data(), kEps, width,
                out.data() + 2 * rows * width},
               rows);
        results[side] = download(b, other.data(), other.size());
        const auto in_place = download(b, sum.data(), sum.size());
        results[side].insert(results[side].end(), in_place.begin(), in_place.end());
        const auto v = download(b, out.data(), out.size());
        results[side].insert(results[side].end(), v.begin(), v.end());
    }
    const auto d = difference(results[0], results[1]);
    tally.add(d.empty(), "norm " + std::to_string(rows) + " x " + std::to_string(width) + " from " +
                             std::to_string(shift) + d);
}

void check_route(Backend& cpu, Backend& gpu, Random& r, Tally& tally, std::int64_t rows, int experts,
                 int top_k) {
    std::vector<float> logits;
    for (std::int64_t t = 0; t < rows; ++t)
        for (int e = 0; e < experts; ++e) {
            const float any = (static_cast<float>(bits(r, 16)) - 32768.0f) / 4096.0f,
                        few = static_cast<float>(bits(r, 2)) - 2.0f;
            switch (t % 6) {
                case 0: logits.push_back(any); break;
                case 1: logits.push_back(few); break;                     // many ties
                case 2: logits.push_back(e % 3 ? -0.0f : 0.0f); break;    // ties of both zeros
                case 3: logits.push_back(-std::abs(any) * 1e37f); break;  // weights that vanish, all negative
                case 4: logits.push_back(any * 1e-42f); break;            // subnormal
                default:
                    logits.push_back(e == static_cast<int>(t) % experts ? (t % 4 == 1 ? INFINITY : NAN)
                                                                        : any);
            }
        }
    std::vector<std::int32_t> ids[2];
    std::vector<float> weights[2];
    for (int side = 0; side < 2; ++side) {
        Backend& b = side ? gpu : cpu;
        auto l = upload(b, logits);
        DeviceArray<std::int32_t> id(b, rows * top_k, "check");
        DeviceArray<float> weight(b, rows * top_k, "check");
        b.route(l.data(), rows, experts, {id.data(), weight.data(), top_k});
        ids[side] = download(b, id.data(), id.size());
        weights[side] = download(b, weight.data(), weight.size());
    }
    const auto d = difference(weights[0], weights[1]);
    const std::string what =
        std::to_string(top_k) + " of " + std::to_string(experts) + ", " + std::to_string(rows) + " rows";
    tally.add(ids[0] == ids[1], "route: ids, " + what);
    tally.add(d.empty(), "route: weights, " + what + d);
}

/// A recorded step must do on new contents of its memory what the plain calls do; its copies out must be of
/// their own step.
void check_replay(Backend& cpu, Backend& gpu, Random& r, Tally& tally) {
    // A copy takes many times as long as a step, so that it is caught when the next step does not wait for
    // it.
    constexpr std::int64_t kRows = 2, kSteps = 12;
    const std::int64_t kBig = short_form() ? 100'000 : 4'000'000;
    const auto w = random_activations(r, 1, 2048);
    std::vector<std::vector<float>> steps;
    for (int s = 0; s < kSteps; ++s) steps.push_back(random_activations(r, kRows, 2048));
    std::vector<float> results[2], ramp;
    for (std::int64_t i = 0; i < kBig; ++i) ramp.push_back(static_cast<float>(i % 1000));
    for (int side = 0; side < 2; ++side) {
        Backend& b = side ? gpu : cpu;
        const int owner = 0, other = 0;
        auto each = upload(b, ramp);
        auto weight = upload(b, w);
        DeviceArray<float> in(b, kRows * 2048, "check"), sum(b, kRows * 2048, "check"),
            normed(b, kRows * 2048, "check"), big(b, kBig, "check");
        std::vector<HostArray<float>> copies;
        std::vector<std::uint64_t> tickets;
        for (int s = 0; s < kSteps; ++s) copies.emplace_back(b, kBig, "check");
        for (int s = 0; s < kSteps; ++s) {
            b.copy_in(in.data(), steps[static_cast<std::size_t>(s)].data(), in.bytes());
            const auto step = [&](std::int64_t rows) {
                b.norm({sum.data(), in.data(), sum.data(), weight.data(), kEps, 2048, normed.data()}, rows);
                b.fence_copies();
                b.add(big.data(), each.data(), big.data(), kBig);
                b.add(big.data() + kBig - rows * 2048, normed.data(), big.data() + kBig - rows * 2048,
                      rows * 2048);
            };
            if (s % 3 == 2) b.replay(&other, 1, [&] { step(1); });
            else b.replay(&owner, 2, [&] { step(kRows); });
            tickets.push_back(
                b.copy_async(copies[static_cast<std::size_t>(s)].data(), big.data(), big.bytes()));
            if (s == 8) b.forget_replays(&owner);
        }
        for (int s = 0; s < kSteps; ++s) {
            b.wait_copy(tickets[static_cast<std::size_t>(s)]);
            const auto v = copies[static_cast<std::size_t>(s)].span();
            results[side].insert(results[side].end(), v.begin(), v.end());
        }
        b.forget_replays(&owner);
        b.forget_replays(&other);
    }
    const auto d = difference(results[0], results[1]);
    tally.add(d.empty(), "steps as graphs, with copies behind them" + d);
}

/// Microseconds of one call among `kCalls` in a graph.
double in_graph(Backend& b, const std::function<void()>& call) {
    constexpr int kCalls = 200;
    const int owner = 0;
    const auto all = [&] {
        for (int i = 0; i < kCalls; ++i) call();
    };
    std::vector<double> times;
    for (int i = 0; i < 12; ++i) {
        b.synchronize();
        const auto begin = std::chrono::steady_clock::now();
        b.replay(&owner, 0, all);
        b.synchronize();
        if (i > 2)
            times.push_back(
                std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
                kCalls);
    }
    b.forget_replays(&owner);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

}  // namespace

int main() {
    Tally tally("fused_check");
    try {
        const auto cpu = make_cpu_backend(8), gpu = make_cuda_backend({});
        Random r(5);
        for (const auto rows : shapes<std::int64_t>({1, 3}, {1, 3, 33}))
            for (const auto width : shapes<std::int64_t>(
                     {1, 36, 516, 2050, 4100, 8196},
                     {1, 4, 31, 32, 36, 100, 512, 516, 2048, 2050, 4096, 4100, 5120, 8192, 8196}))
                for (const std::int64_t shift : {0, 1})
                    check_norms(*cpu, *gpu, r, tally, rows, width, rows == 1 ? shift : 0);
        for (const auto rows : shapes<std::int64_t>({18}, {1, 18, 300}))
            for (const auto& [experts, top_k] : shapes<std::pair<int, int>>(
                     {{31, 3}, {256, 8}, {512, 10}, {600, 8}, {100, 40}}, {{1, 1},
                                                                           {8, 2},
                                                                           {8, 8},
                                                                           {31, 3},
                                                                           {40, 32},
                                                                           {60, 4},
                                                                           {256, 8},
                                                                           {257, 9},
                                                                           {512, 10},
                                                                           {600, 8},
                                                                           {100, 40}}))
                check_route(*cpu, *gpu, r, tally, rows, experts, top_k);
        check_replay(*cpu, *gpu, r, tally);
        if (short_form()) return tally.finish();

        auto h = upload(*gpu, random_activations(r, 1, 2048)),
             y = upload(*gpu, random_activations(r, 1, 2048)),
             w = upload(*gpu, random_activations(r, 1, 2048)),
             l = upload(*gpu, random_activations(r, 1, 256));
        DeviceArray<float> out(*gpu, 2048, "times"), weights(*gpu, 8, "times");
        DeviceArray<std::int32_t> ids(*gpu, 8, "times");
        std::printf("add       2048       %6.2f us\n",
                    in_graph(*gpu, [&] { gpu->add(h.data(), y.data(), h.data(), 2048); }));
        std::printf("rms_norm  2048       %6.2f us\n",
                    in_graph(*gpu, [&] { gpu->rms_norm(h.data(), w.data(), kEps, 1, 2048, out.data()); }));
        std::printf("add, norm 2048       %6.2f us\n", in_graph(*gpu, [&] {
                        gpu->norm({h.data(), y.data(), h.data(), w.data(), kEps, 2048, out.data()}, 1);
                    }));
        std::printf("route     8 of 256   %6.2f us\n", in_graph(*gpu, [&] {
                        gpu->route(l.data(), 1, 256, {ids.data(), weights.data(), 8});
                    }));
    } catch (const Error& error) {
        std::printf("FAILED  %s\n", error.what());
        return 1;
    }
    return tally.finish();
}
