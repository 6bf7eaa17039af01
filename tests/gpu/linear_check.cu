// Matrices, experts and steps of the CUDA backend against the CPU backend, to the bit, then their times at
// the sizes of a 35B model. --quick: small shapes and no times; FTMPI_CHECK_SHORT=1: fewer still.
#include <cmath>
#include <thread>

#include "../../cuda/runtime/backend.hpp"
#include "../../src/cpu_backend.hpp"
#include "linear_cases.hpp"
#include "short_form.hpp"

namespace {

using namespace ftmpi;
using namespace ftmpi::check;

/// Several matrices in one call, results side by side with gaps.
void check_project(Pair& p, const std::vector<Format>& formats, std::int64_t rows, std::int64_t cols,
                   std::int64_t inputs) {
    std::vector<std::unique_ptr<Matrix>> on_cpu, on_gpu;
    for (const Format f : formats) {
        const Stored stored(p.random, f, 1, rows, cols);
        on_cpu.push_back(p.cpu.load(stored.source));
        on_gpu.push_back(p.gpu.load(stored.source));
    }
    auto x = random_activations(p.random, inputs, cols);
    if (inputs > 3 && bits(p.random, 1)) x[static_cast<std::size_t>(2 * cols + cols / 2)] = INFINITY;
    const auto n = static_cast<std::int64_t>(formats.size()), stride = n * rows + 3;
    const std::vector<float> filled(static_cast<std::size_t>(stride * inputs), 77.0f);
    const auto stream = random_activations(p.random, inputs, cols),
               part = random_activations(p.random, inputs, cols),
               norm_weight = random_activations(p.random, 1, cols);
    std::vector<float> results[2];
    for (int side = 0; side < 2; ++side) {
        Backend& b = side ? p.gpu : p.cpu;
        auto in = upload(b, x), out = upload(b, filled), from = upload(b, stream), plus = upload(b, part),
             weight = upload(b, norm_weight);
        DeviceArray<float> sum(b, inputs * cols, "check"), normed(b, inputs * cols, "check");
        std::vector<Projection> to;
        for (std::size_t i = 0; i < formats.size(); ++i)
            to.push_back({(side ? on_gpu : on_cpu)[i].get(), out.data() + static_cast<std::int64_t>(i) * rows,
                          stride});
        b.project(to, in.data(), inputs);
        results[side] = download(b, out.data(), stride * inputs);
        for (int first = 0; first < 2; ++first) {  // the norm of a stream, and of its sum with another
            b.norm_project({from.data(), first ? nullptr : plus.data(), sum.data(), weight.data(), 1e-6f,
                            cols, normed.data()},
                           to, inputs);
            for (const auto* a : {&out, &sum, &normed}) {
                const auto v = download(b, a->data(), a->size());
                results[side].insert(results[side].end(), v.begin(), v.end());
            }
        }
    }
    std::string names;
    for (const Format f : formats) names += std::string(name_of(f)) + " ";
    const auto d = difference(results[0], results[1]);
    p.tally.add(d.empty(),
                "project " + names + text({rows, cols}) + ", " + std::to_string(inputs) + " inputs" + d);
}

struct MoeShape {
    Format routed, shared;
    std::int64_t experts, hidden, width, shared_width, own, own_shared, own_down, rows;
    int top_k;
    bool any_shared = true;  ///< false: the model has no shared expert
};

void check_experts(Pair& p, const MoeShape& s) {
    const Stored up(p.random, s.routed, s.experts, 2 * s.own, s.hidden),
        down(p.random, s.routed, s.experts, s.own_down, s.width);
    const Stored shared_up(p.random, s.shared, 1, 2 * s.own_shared, s.hidden),
        shared_down(p.random, s.shared, 1, s.own_down, s.shared_width);
    const auto x = random_activations(p.random, s.rows, s.hidden),
               gates = random_activations(p.random, s.rows, 1);
    const auto whole_act = random_activations(p.random, s.rows * s.top_k, s.width),
               whole_shared = random_activations(p.random, s.rows, s.shared_width);
    std::vector<float> logits(static_cast<std::size_t>(s.rows * s.experts));
    for (float& l : logits) l = static_cast<float>(static_cast<int>(bits(p.random, 7))) / 16.0f;  // with ties
    for (std::int64_t e = 0; s.rows > 4 && e < s.experts; ++e) {
        logits[static_cast<std::size_t>(s.experts + e)] = e % 3 ? -0.0f : 0.0f;
        logits[static_cast<std::size_t>(2 * s.experts + e)] *= -1e-42f;
        if (e % 5 == 2) logits[static_cast<std::size_t>(3 * s.experts + e)] = e % 2 ? NAN : -INFINITY;
    }
    std::vector<float> results[2];
    std::vector<std::int32_t> ids[2];
    for (int side = 0; side < 2; ++side) {
        Backend& b = side ? p.gpu : p.cpu;
        const auto m_up = b.load(up.source), m_down = b.load(down.source),
                   m_shared_up = b.load(shared_up.source), m_shared_down = b.load(shared_down.source);
        auto in = upload(b, x), gate = upload(b, gates), act = upload(b, whole_act),
             shared_act = upload(b, whole_shared), l = upload(b, logits);
        DeviceArray<std::int32_t> experts(b, s.rows * s.top_k, "check");
        DeviceArray<float> weights(b, s.rows * s.top_k, "check");
        const Routes routes{experts.data(), weights.data(), s.top_k};
        b.route(l.data(), s.rows, static_cast<int>(s.experts), routes);
        // This rank's columns of act, then the whole act as other ranks would have gathered it.
        DeviceArray<float> own_act(b, s.rows * s.top_k * s.width, "check"),
            own_shared_act(b, s.rows * s.shared_width, "check"), out(b, s.rows * (s.own_down + 5), "check");
        const auto if_shared = [&](auto* p) { return s.any_shared ? p : nullptr; };
        b.experts_up(*m_up, if_shared(m_shared_up.get()), routes, in.data(), s.rows, own_act.data(), s.width,
                     if_shared(own_shared_act.data()), s.shared_width);
        b.experts_down(*m_down, if_shared(m_shared_down.get()), routes, act.data(),
                       if_shared(shared_act.data()), if_shared(gate.data()), s.rows, out.data(),
                       s.own_down + 5);
        ids[side] = download(b, experts.data(), experts.size());
        {
            DeviceArray<std::int32_t> chosen(b, experts.size(), "check");
            DeviceArray<float> fused_weights(b, weights.size(), "check"),
                fused_act(b, own_act.size(), "check"), fused_shared(b, own_shared_act.size(), "check");
            b.route_up(l.data(), static_cast<int>(s.experts), *m_up, if_shared(m_shared_up.get()),
                       {chosen.data(), fused_weights.data(), s.top_k}, in.data(), s.rows, fused_act.data(),
                       s.width, if_shared(fused_shared.data()), s.shared_width);
            const auto more = download(b, chosen.data(), chosen.size());
            ids[side].insert(ids[side].end(), more.begin(), more.end());
            for (const auto* a : {&fused_weights, &fused_act, &fused_shared}) {
                const auto v = download(b, a->data(), a->size());
                results[side].insert(results[side].end(), v.begin(), v.end());
            }
        }
        for (const auto* a : {&weights, &own_act, &own_shared_act, &out}) {
            const auto v = download(b, a->data(), a->size());
            results[side].insert(results[side].end(), v.begin(), v.end());
        }
    }
    const std::string what = std::string(name_of(s.routed)) + " + " +
                             (s.any_shared ? std::string(name_of(s.shared)) : "no shared expert") + ", " +
                             std::to_string(s.top_k) + " of " + text({s.experts, s.own, s.hidden}) +
                             ", shared " + text({s.own_shared}) + ", down " +
                             text({s.own_down, s.width, s.shared_width}) + ", " + std::to_string(s.rows) +
                             " rows";
    p.tally.add(ids[0] == ids[1], "route " + what);
    const auto d = difference(results[0], results[1]);
    p.tally.add(d.empty(), "experts " + what + d);
}

/// A forbidden value is refused in the same words on both sides.
void check_refusals(Pair& p) {
    for (const Format f : kFormats)
        for (const bool in_scales : {false, true}) {
            if (in_scales ? is_plain(f) || f == Format::fp8_row : is_4bit(f)) continue;
            Stored stored(p.random, f, 3, 40, 256);
            RowBlock& b = stored.source.blocks.back();
            const std::size_t row = static_cast<std::size_t>(b.rows) - 2;
            if (!in_scales) {
                const std::size_t size = code_bytes(f, 1);
                const std::uint32_t infinity = f == Format::bf16  ? 0x7f80u
                                               : f == Format::f16 ? 0xfc00u
                                               : f == Format::f32 ? 0x7f800000u
                                                                  : 0xffu;  // e4m3 has NaN alone
                std::memcpy(const_cast<std::byte*>(b.codes) + row * b.pitch + 77 * size, &infinity, size);
            } else if (f == Format::fp8_block) {
                const std::size_t plane =
                    static_cast<std::size_t>(b.first_row + static_cast<std::int64_t>(row)) / 128;
                auto* scale =
                    const_cast<std::byte*>(b.scales) + plane * b.scale_pitch + size_of(b.scale_type);
                const float bad = -1.0f;
                const std::uint16_t half = num::to_bf16(bad);
                std::memcpy(scale, b.scale_type == DType::f32 ? static_cast<const void*>(&bad) : &half,
                            size_of(b.scale_type));
            } else {
                const_cast<std::byte*>(b.scales)[row * b.scale_pitch + 1] =
                    f == Format::mxfp4 ? std::byte{0xff} : std::byte{0x85};
            }
            std::string said[2];
            for (int side = 0; side < 2; ++side) {
                try {
                    (side ? p.gpu : p.cpu).load(stored.source);
                } catch (const Error& e) { said[side] = e.what(); }
            }
            p.tally.add(!said[0].empty() && said[0] == said[1], std::string("refusal ") +
                                                                    std::string(name_of(f)) + ": \"" +
                                                                    said[0] + "\" and \"" + said[1] + "\"");
        }
}

/// What the kernels cannot run is refused from its limits, and what lies just within is not.
void check_limits(Pair& p) {
    StepLimits fits;
    fits.rows = 65536, fits.slots = 1, fits.context = 1024, fits.max_cols = 16384, fits.hidden = 16384,
    fits.vocab = 1000;
    fits.experts = 6144, fits.top_k = 8, fits.expert_width = fits.shared_width = 16384;
    fits.key_heads = 4096, fits.value_heads = 8192, fits.key_dim = 256, fits.value_dim = 4, fits.taps = 8;
    fits.query_heads = 64, fits.kv_heads = 32, fits.head_dim = 256;
    const auto refused = [&](const char* what, Exit code, const std::function<void(StepLimits&)>& change) {
        StepLimits limits = fits;
        change(limits);
        Exit got = Exit::ok;
        std::string said;
        try {
            p.gpu.check_limits(limits);
        } catch (const Error& e) {
            got = e.code();
            said = e.what();
        }
        p.tally.add(got == code, std::string("limits: ") + what + ": \"" + said + "\"");
    };
    refused("what fits", Exit::ok, [](StepLimits&) {});
    refused("no heads here", Exit::ok, [](StepLimits& l) {
        l.query_heads = l.kv_heads = l.head_dim = l.key_heads = l.value_heads = l.taps = 0;
    });
    for (const int dim : {0, 4, 12, 264})
        refused("attention heads", Exit::bad_input, [&](StepLimits& l) { l.head_dim = dim; });
    refused("key/value heads", Exit::bad_input, [](StepLimits& l) { l.kv_heads = 1024; });
    for (const int dim : {0, 2, 6, 260}) {
        refused("keys of the delta net", Exit::bad_input, [&](StepLimits& l) { l.key_dim = dim; });
        refused("values of the delta net", Exit::bad_input, [&](StepLimits& l) { l.value_dim = dim; });
    }
    for (const int taps : {0, 1, 9}) refused("taps", Exit::bad_input, [&](StepLimits& l) { l.taps = taps; });
    refused("key heads", Exit::bad_input, [](StepLimits& l) { l.key_heads = 4097; });
    refused("columns", Exit::bad_input, [](StepLimits& l) { l.max_cols = 1 << 20; });
    refused("columns of experts", Exit::bad_input, [](StepLimits& l) { l.hidden = 1 << 20; });
    refused("expert width", Exit::bad_input, [](StepLimits& l) { l.expert_width = 1 << 20; });
    refused("experts", Exit::bad_input, [](StepLimits& l) { l.experts = 6145; });
    refused("choices of a step", Exit::usage, [](StepLimits& l) { l.top_k = 63; });
}

void check_all(Pair& p) {
    using Sizes = std::vector<std::int64_t>;
    const auto sizes = [&](Sizes few, Sizes quick, Sizes all) {
        return short_form() ? few : p.quick ? quick : all;
    };
    const Sizes cols =
        sizes({48, 1056}, {16, 64, 528, 1056}, {16, 32, 48, 64, 256, 512, 520, 528, 1040, 2048, 4096});
    const Sizes rows = sizes({40}, {1, 40}, {1, 16, 40, 512});
    const Sizes inputs = sizes({1, 3, 17}, {1, 3, 17, 70}, {1, 2, 5, 8, 9, 64, 257});
    for (const Format f : kFormats)
        for (const auto k : cols)
            for (const auto r : rows)
                for (const auto n : inputs)
                    if (r < 100 || n == 1 || n % 8)
                        check_project(p, {f}, r, k, n);  // large ones take the CPU its time
    // Those above have too few rows for the tiles of floats.
    for (const Format f : {Format::bf16, Format::f16, Format::f32})
        for (const auto n : sizes({17}, {17, 70}, {16, 64, 257})) check_project(p, {f}, 520, 264, n);
    for (const auto n : inputs)
        check_project(
            p,
            {Format::fp8_row, Format::nvfp4, Format::bf16, Format::mxfp4, Format::fp8_block, Format::fp8_row},
            40, 256, n);
    for (const auto n : inputs)
        for (const std::int64_t k : sizes({264}, {264, 2048}, {264, 2048}))
            check_project(p, {Format::fp8_row, Format::f32, Format::bf16, Format::f16}, 40, k, n);
    check_project(p, std::vector<Format>(11, Format::bf16), 17, 64, 3);
    if (!p.quick)
        for (const Format f : kFormats)
            for (const std::int64_t n : {1, 8, 64}) check_project(p, {f}, 8192, 2048, n);
    if (!p.quick) {  // several units a warp on a large card
        for (const Format f : kFormats) check_project(p, {f}, 17011, 1024, 1);
        for (const Format f : kFormats) check_project(p, {f}, 9001, 4096, 1);
        for (const Format f : {Format::fp8_row, Format::fp8_block}) {
            check_project(p, {f, Format::bf16}, 7003, 2048, 1);
            check_project(p, {f, f, Format::bf16, Format::bf16}, 1501, 2048, 1);
            check_project(p, {Format::bf16, f}, 26003, 1024, 1);
        }
    }

    for (const auto r : sizes({1, 12}, {1, 5, 40}, {1, 2, 5, 8, 9, 64, 257})) {
        for (const Format f : kFormats) check_experts(p, {f, f, 16, 256, 64, 128, 64, 128, 256, r, 4});
        check_experts(p, {Format::nvfp4, Format::bf16, 16, 256, 64, 128, 16, 40, 72, r, 4});
        check_experts(p, {Format::fp8_row, Format::nvfp4, 7, 64, 96, 48, 24, 48, 17, r, 3});
        check_experts(p, {Format::bf16, Format::fp8_block, 5, 512, 32, 64, 0, 16, 33, r, 5});
        check_experts(p, {Format::mxfp4, Format::fp8_row, 5, 544, 576, 64, 32, 0, 40, r, 1});
        check_experts(p, {Format::f16, Format::bf16, 16, 256, 64, 128, 16, 40, 72, r, 4});
        check_experts(p, {Format::nvfp4, Format::f32, 7, 544, 96, 48, 24, 48, 17, r, 3});
        check_experts(p, {Format::f32, Format::f16, 5, 512, 32, 64, 32, 0, 33, r, 5});
        // Tiles, which F32 takes, are long under the sanitizer: small ones are above.
        const auto few_wide = [&](Format f) { return r < 16 && !(short_form() && f == Format::f32); };
        for (const Format f : kFormats)
            if (few_wide(f))  // whole sets of columns up, one segment down
                check_experts(p, {f, f, 40, 2048, 512, 512, 8, 12, 72, r, r == 1 ? 8 : 7});
        if (r < 16) check_experts(p, {Format::nvfp4, Format::nvfp4, 8, 2048, 512, 512, 200, 8, 16, r, 8});
        for (const Format f : kFormats) {
            check_experts(p, {f, f, 16, 256, 64, 64, 64, 64, 256, r, 4, false});
            if (few_wide(f))  // the sizes of Qwen3-30B-A3B across a row
                check_experts(p, {f, f, 40, 2048, 768, 64, 8, 8, 72, r, r == 1 ? 8 : 7, false});
        }
        if (r < 16)
            check_experts(p, {Format::nvfp4, Format::nvfp4, 8, 2048, 512, 64, 200, 8, 16, r, 8, false});
        if (!p.quick && r < 100)
            check_experts(p, {Format::nvfp4, Format::nvfp4, 128, 2048, 768, 64, 768, 64, 2048, r, 8, false});
        if (!p.quick && r < 100)
            check_experts(p, {Format::nvfp4, Format::nvfp4, 64, 2048, 512, 512, 512, 512, 2048, r, 8});
    }
    for (const auto r : sizes({3}, {1, 3, 70}, {1, 3, 70}))
        for (const auto w : sizes({100, 2048, 5000}, {16, 100, 256, 2048, 5000}, {16, 100, 256, 2048, 5000}))
            check_steps(p, r, w);
    for (const auto r : sizes({5}, {1, 300}, {1, 5, 128, 129, 300})) check_device_tokens(p, r);
    check_halves(p);
    check_refusals(p);
    check_limits(p);
}

}  // namespace

void time_all(Backend& gpu);  // linear_times.cu

int main(int argc, char** argv) {
    try {
        Tally tally("linear_check");
        const auto cpu = make_cpu_backend(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
        const auto gpu = make_cuda_backend({});
        const auto info = gpu->info();
        std::printf("%s, %s, capability %s, driver %s\n", info.name.c_str(), info.uuid.c_str(),
                    info.capability.c_str(), info.driver.c_str());
        Pair pair{*cpu, *gpu, tally};
        pair.quick = short_form() || (argc > 1 && std::string(argv[1]) == "--quick");
        check_all(pair);
        if (!pair.quick) time_all(*gpu);
        return tally.finish();
    } catch (const Error& e) {
        std::printf("linear_check: error: %s\n", e.what());
        return 1;
    }
}
