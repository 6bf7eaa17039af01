// Times of Gated DeltaNet and attention at the real model's size, beside the card's read rate and fp32 rate.
#include "mixers_times.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "../../cuda/attention/attention.cuh"
#include "guarded.hpp"

namespace ftmpi::gpu_check {
namespace {

using cuda::DeviceMemory;
using cuda::Scratch;

/// Milliseconds of `work` on the stream, the median of several.
double time_of(cudaStream_t stream, int repeats, const std::function<void()>& work) {
    cuda::EventHandle begin(cudaEventDefault), end(cudaEventDefault);
    work();
    std::vector<float> all;
    for (int i = 0; i < repeats; ++i) {
        begin.record(stream);
        work();
        end.record(stream);
        end.wait();
        float ms = 0;
        FTMPI_CUDA(cudaEventElapsedTime(&ms, begin.get(), end.get()));
        all.push_back(ms);
    }
    std::nth_element(all.begin(), all.begin() + repeats / 2, all.end());
    return all[static_cast<std::size_t>(repeats / 2)];
}

/// The same of work captured as a graph.
double graph_time_of(cudaStream_t stream, int repeats, const std::function<void()>& work) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    FTMPI_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work();
    FTMPI_CUDA(cudaStreamEndCapture(stream, &graph));
    FTMPI_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    const double ms = time_of(stream, repeats, [&] { FTMPI_CUDA(cudaGraphLaunch(exec, stream)); });
    FTMPI_CUDA(cudaGraphExecDestroy(exec));
    FTMPI_CUDA(cudaGraphDestroy(graph));
    return ms;
}

__global__ void read_all(const uint4* p, std::int64_t n, unsigned* sink) {
    unsigned x = 0;
    const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
    std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = cuda::load_once(p + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; ++j) x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (x == 0x12345678u) *sink = x;
}

__global__ void fill_random(float* p, std::int64_t n, float size, float middle) {
    for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
         i += std::int64_t{gridDim.x} * blockDim.x) {
        std::uint32_t u = static_cast<std::uint32_t>(i) * 2654435761u;
        u ^= u >> 15, u *= 2246822519u, u ^= u >> 13, u *= 3266489917u, u ^= u >> 16;
        p[i] = middle + size * static_cast<float>(static_cast<std::int32_t>(u)) * 4.656612873e-10f;
    }
}
__global__ void fill_random_bf16(std::uint16_t* p, std::int64_t n) {
    for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
         i += std::int64_t{gridDim.x} * blockDim.x) {
        std::uint32_t u = static_cast<std::uint32_t>(i) * 2654435761u;
        u ^= u >> 15, u *= 2246822519u, u ^= u >> 13;
        p[i] = num::to_bf16(static_cast<float>(static_cast<std::int32_t>(u)) * 4.656612873e-10f);
    }
}

struct Floats {
    explicit Floats(std::int64_t n, float size = 1.0f, float middle = 0.0f)
        : memory(static_cast<std::size_t>(n) * 4, "a timing buffer") {
        cuda::launch("fill_random", fill_random, dim3(1024), dim3(256), 0, nullptr, get(), n, size, middle);
    }
    float* get() const { return static_cast<float*>(memory.data()); }
    DeviceMemory memory;
};

struct Clock {
    cuda::StreamHandle stream;
    double bytes_per_us = 0, fma_per_us = 0;
    DeviceMemory tickets{cuda::kTickets * 4, "tickets"};
};

void read_rate(Clock& clock) {
    const std::int64_t bytes = std::int64_t{4} << 30;
    const DeviceMemory memory(static_cast<std::size_t>(bytes), "the read test"), sink(4, "the read test");
    FTMPI_CUDA(cudaMemset(memory.data(), 1, memory.bytes()));
    int processors = 0, khz = 0;
    FTMPI_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    FTMPI_CUDA(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
    const double ms = time_of(clock.stream.get(), 7, [&] {
        cuda::launch("read_all", read_all, dim3(static_cast<unsigned>(processors * 8)), dim3(256), 0,
                     clock.stream.get(), static_cast<const uint4*>(memory.data()), bytes / 16,
                     static_cast<unsigned*>(sink.data()));
    });
    clock.bytes_per_us = static_cast<double>(bytes) / ms / 1e3;
    clock.fma_per_us = processors * 128.0 * khz / 1e3;
    std::printf("pure read %.2f TB/s; %d processors at up to %d MHz: %.1f T fp32 fma/s\n",
                clock.bytes_per_us / 1e6, processors, khz / 1000, clock.fma_per_us / 1e6);
}

void time_delta_net(Clock& clock) {
    constexpr int kLayers = 40, kRows = 8192;
    DeltaNet net;
    net.key_heads = 16, net.value_heads = 32, net.key_dim = 128, net.value_dim = 128, net.taps = 4,
    net.eps = 1e-6f;
    const std::int64_t channels = net.channels(), values = 4096, state_size = 32 * 128 * 128;
    const Floats conv(channels * 4), nea(32, 1.0f, -1.5f), dt(32), norm(128), qkv(kRows * channels),
        z(kRows * values), b(kRows * 32), a(kRows * 32), conv_state(kLayers * 3 * channels),
        state(kLayers * state_size, 0.1f), out(kRows * values);
    net.conv = conv.get(), net.neg_exp_a = nea.get(), net.dt_bias = dt.get(), net.norm = norm.get();
    const DeviceMemory scratch_memory(cuda::delta_net_scratch(kRows, 16, 32, 128, 128), "scratch");
    const Scratch scratch{scratch_memory.data(), scratch_memory.bytes(),
                          static_cast<unsigned*>(clock.tickets.data())};
    std::vector<Row> rows;
    append(rows, 0, 0, kRows);
    const Guarded device(rows);
    const auto run = [&](int layer, std::int64_t n) {
        DeltaNet d = net;
        d.conv_state = conv_state.get() + layer * 3 * channels, d.state = state.get() + layer * state_size;
        cuda::delta_net(d,
                        {std::span<const Row>(rows).first(static_cast<std::size_t>(n)),
                         reinterpret_cast<const Row*>(device.data())},
                        qkv.get(), z.get(), b.get(), a.get(), out.get(), values, scratch, clock.stream.get());
    };
    FTMPI_CUDA(cudaDeviceSynchronize());
    const double us = graph_time_of(clock.stream.get(), 9,
                                    [&] {
                                        for (int l = 0; l < kLayers; ++l) run(l, 1);
                                    }) *
                      1e3 / kLayers;
    const double bytes = 2.0 * state_size * 4 + channels * 4.0 * (4 + 3 + 3 + 1) + values * 8.0;
    std::printf("delta_net, one row: %.2f us a layer, %.0f%% of the read rate\n", us,
                100 * bytes / us / clock.bytes_per_us);
    for (const int n : {64, 512, 2048, 8192}) {
        const double t = time_of(clock.stream.get(), 3, [&] { run(0, n); }) * 1e3;
        std::printf("delta_net, %d rows: %.0f us a layer, %.3f us a row\n", n, t, t / n);
    }
}

void time_attention(Clock& clock) {
    constexpr int kLayers = 40, kRows = 8192;
    constexpr std::int64_t kCapacity = 32768;
    Attention t;
    t.query_heads = 16, t.kv_heads = 2, t.group = 8, t.head_dim = 256, t.rotary_dim = 64, t.eps = 1e-6f,
    t.scale = 0.0625f;
    t.capacity = kCapacity;
    const std::int64_t qg_width = 16 * 512, kv_width = 512, out_width = 4096;
    const Floats norm(256, 0.5f, 1.0f), angle(kCapacity * 32), qg(kRows * qg_width), k(kRows * kv_width),
        v(kRows * kv_width), out(kRows * out_width);
    t.q_norm = t.k_norm = norm.get(), t.cos = t.sin = angle.get();
    const DeviceMemory scratch_memory(cuda::attention_scratch(kRows, 16, 256, kCapacity), "scratch");
    const Scratch scratch{scratch_memory.data(), scratch_memory.bytes(),
                          static_cast<unsigned*>(clock.tickets.data())};

    // One slot a layer, so that no layer finds its cache in the second-level cache.
    const std::int64_t slot = kCapacity * kv_width;
    const DeviceMemory keys(static_cast<std::size_t>(kLayers * slot) * 2, "keys"),
        values(keys.bytes(), "values");
    for (const DeviceMemory* m : {&keys, &values})
        cuda::launch("fill_random_bf16", fill_random_bf16, dim3(1024), dim3(256), 0, nullptr,
                     static_cast<std::uint16_t*>(m->data()), kLayers * slot);
    t.kv = KvType::bf16;
    const auto run = [&](int layer, const std::vector<Row>& rows, const Guarded& device) {
        Attention a = t;
        a.keys = static_cast<std::uint16_t*>(keys.data()) + layer * slot,
        a.values = static_cast<std::uint16_t*>(values.data()) + layer * slot;
        cuda::attention(a, {rows, reinterpret_cast<const Row*>(device.data())}, qg.get(), k.get(), v.get(),
                        out.get(), out_width, scratch, clock.stream.get());
    };
    FTMPI_CUDA(cudaDeviceSynchronize());
    for (const int context : {64, 1024, 8192, 32768}) {
        std::vector<Row> rows;
        append(rows, 0, context - 1, 1);
        const Guarded device(rows);
        const double us = graph_time_of(clock.stream.get(), 9,
                                        [&] {
                                            for (int l = 0; l < kLayers; ++l) run(l, rows, device);
                                        }) *
                          1e3 / kLayers;
        std::printf("attention, one row at %d positions, bf16: %.2f us a layer, %.0f%% of the read rate\n",
                    context, us, 100 * (2.0 * context * kv_width * 2 / us) / clock.bytes_per_us);
    }
    const auto prefill = [&](int position, int n) {
        std::vector<Row> rows;
        append(rows, 0, position, n);
        const Guarded device(rows);
        const double us = time_of(clock.stream.get(), 3, [&] { run(0, rows, device); }) * 1e3;
        const double fma = 16.0 * 512 * (static_cast<double>(position) * n + 0.5 * n * (n + 1.0));
        std::printf(
            "attention, %d rows from %d, %s: %.0f us a layer, %.3f us a row, %.0f%% of the fp32 rate\n", n,
            position, std::string(name_of(t.kv)).c_str(), us, us / n, 100 * fma / us / clock.fma_per_us);
    };
    prefill(0, 256), prefill(7936, 256), prefill(6144, 2048), prefill(0, 8192);
    t.kv = KvType::fp8;
    prefill(6144, 2048);
}

}  // namespace

void time_mixers() {
    Clock clock;
    FTMPI_CUDA(cudaMemset(clock.tickets.data(), 0, clock.tickets.bytes()));
    read_rate(clock);
    time_delta_net(clock);
    time_attention(clock);
}

}  // namespace ftmpi::gpu_check
