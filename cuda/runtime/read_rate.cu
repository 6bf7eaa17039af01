#include "read_rate.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "handles.hpp"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 512;
constexpr std::size_t kMost = std::size_t{2} << 30, kLeast = std::size_t{256} << 20;
constexpr int kWarmUp = 10, kPasses = 51;

/// Values without a pattern: a memory that is all zeros may be cheaper to move.
__global__ void fill(uint4* p, std::size_t n) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
         i += std::size_t{gridDim.x} * blockDim.x) {
        std::uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        p[i] = make_uint4(static_cast<unsigned>(x), static_cast<unsigned>(x >> 32),
                          static_cast<unsigned>(x * 3), static_cast<unsigned>(i));
    }
}

/// Every thread keeps eight loads of 16 bytes in flight. The sink is written by chance only, but the compiler
/// cannot know.
__global__ void __launch_bounds__(kThreads) read(const uint4* __restrict__ p, std::size_t n, unsigned* sink) {
    constexpr int in_flight = 8;
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    unsigned sum = 0;
    for (; i + (in_flight - 1) * stride < n; i += in_flight * stride) {
        uint4 v[in_flight];
#pragma unroll
        for (int j = 0; j < in_flight; ++j) v[j] = __ldcs(p + i + j * stride);
#pragma unroll
        for (int j = 0; j < in_flight; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += stride) {
        const uint4 v = __ldcs(p + i);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x5EED5EEDu) *sink = sum;
}

}  // namespace

double read_rate(int multiprocessors, cudaStream_t stream) {
    std::size_t free = 0, total = 0;
    FTMPI_CUDA(cudaMemGetInfo(&free, &total));
    const std::size_t bytes = std::min(kMost, free / 2 / 4096 * 4096);
    if (bytes < kLeast) return 0;
    const DeviceMemory memory(bytes, "the read rate's probe"),
        sink(sizeof(unsigned), "the read rate's probe");
    const std::size_t n = bytes / sizeof(uint4);
    const int blocks = multiprocessors * (2048 / kThreads);
    fill<<<blocks, kThreads, 0, stream>>>(static_cast<uint4*>(memory.data()), n);
    FTMPI_CUDA(cudaGetLastError());
    EventHandle begin(cudaEventDefault), end(cudaEventDefault);
    std::vector<float> milliseconds;
    for (int pass = -kWarmUp; pass < kPasses; ++pass) {
        begin.record(stream);
        read<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(memory.data()), n,
                                              static_cast<unsigned*>(sink.data()));
        FTMPI_CUDA(cudaGetLastError());
        end.record(stream);
        end.wait();
        float ms = 0;
        FTMPI_CUDA(cudaEventElapsedTime(&ms, begin.get(), end.get()));
        if (pass >= 0) milliseconds.push_back(ms);
    }
    const auto middle = milliseconds.begin() + kPasses / 2;
    std::nth_element(milliseconds.begin(), middle, milliseconds.end());
    return static_cast<double>(bytes) / (*middle * 1e-3);
}

}  // namespace ftmpi::cuda
