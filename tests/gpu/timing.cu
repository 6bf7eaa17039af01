// Timing of calls as graph replays, and the rate of a kernel that only reads.
#include <cuda_runtime.h>

#include "../../cuda/runtime/handles.hpp"
#include "checks.hpp"

namespace ftmpi::check {
namespace {

__global__ void read_all(const uint4* p, std::size_t n, unsigned* sink) {
    unsigned sum = 0;
    const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
    std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = __ldcs(p + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += step) sum ^= p[i].x;
    if (sum == 0x12345678u) *sink = sum;  // keeps the loads
}

}  // namespace

double median_microseconds(Backend& b, int calls, const std::function<void(int)>& call) {
    auto* stream = static_cast<cudaStream_t>(b.stream());
    for (int i = 0; i < calls; ++i) call(i);
    b.synchronize();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    FTMPI_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < calls; ++i) call(i);
    FTMPI_CUDA(cudaStreamEndCapture(stream, &graph));
    FTMPI_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    cuda::EventHandle begin(cudaEventDefault), end(cudaEventDefault);
    std::vector<double> times;
    for (int repeat = 0; repeat < 9; ++repeat) {
        begin.record(stream);
        FTMPI_CUDA(cudaGraphLaunch(exec, stream));
        end.record(stream);
        end.wait();
        float ms = 0;
        FTMPI_CUDA(cudaEventElapsedTime(&ms, begin.get(), end.get()));
        if (repeat) times.push_back(1e3 * ms / calls);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

double read_rate(Backend& b) {
    const std::size_t bytes = std::size_t{4} << 30;
    DeviceArray<std::uint8_t> data(b, static_cast<std::int64_t>(bytes), "pure read");
    DeviceArray<unsigned> sink(b, 1, "pure read");
    auto* stream = static_cast<cudaStream_t>(b.stream());
    const double us = median_microseconds(b, 1, [&](int) {
        read_all<<<132 * 8, 256, 0, stream>>>(reinterpret_cast<const uint4*>(data.data()), bytes / 16,
                                              sink.data());
    });
    return static_cast<double>(bytes) / us * 1e6;
}

}  // namespace ftmpi::check
