// Copies between host and device that do not make the host wait longer than it must.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "handles.hpp"

namespace ftmpi::cuda {

/// Copies of at most kMost bytes through page-locked memory: from pageable memory the driver would stage them
/// itself, and wait.
class SmallCopies {
public:
    static constexpr std::size_t kMost = 4096;

    SmallCopies() : memory_((kSlots + 1) * kMost, "small copies in page-locked host memory") {}

    /// Returns when `host` has been read.
    void in(void* device, const void* host, std::size_t bytes, cudaStream_t stream) {
        const std::size_t slot = next_++ % kSlots;
        free_[slot].wait();
        std::memcpy(at(slot), host, bytes);
        FTMPI_CUDA(cudaMemcpyAsync(device, at(slot), bytes, cudaMemcpyHostToDevice, stream));
        free_[slot].record(stream);
    }
    /// Returns when `host` has been written.
    void out(void* host, const void* device, std::size_t bytes, cudaStream_t stream) {
        FTMPI_CUDA(cudaMemcpyAsync(at(kSlots), device, bytes, cudaMemcpyDeviceToHost, stream));
        FTMPI_CUDA(cudaStreamSynchronize(stream));
        std::memcpy(host, at(kSlots), bytes);
    }

private:
    static constexpr std::size_t kSlots = 16;
    char* at(std::size_t slot) const { return static_cast<char*>(memory_.data()) + slot * kMost; }

    PinnedMemory memory_;
    EventHandle free_[kSlots];
    std::size_t next_ = 0;
};

/// Copies out on a stream of their own, behind the main stream, which goes on meanwhile.
class CopiesBehind {
public:
    CopiesBehind(cudaStream_t main, int device) : main_(main), device_(device) {
        last_.record(stream_.get());
    }
    ~CopiesBehind() { cudaStreamSynchronize(stream_.get()); }

    std::uint64_t start(void* host, const void* device, std::size_t bytes) {
        ready_.record(main_);
        FTMPI_CUDA(cudaStreamWaitEvent(stream_.get(), ready_.get(), 0));
        FTMPI_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_.get()));
        const std::uint64_t ticket = next_++;
        done_[ticket % kEvents].record(stream_.get());
        last_.record(stream_.get());
        return ticket;
    }
    /// From any thread. An event that a later copy has taken over comes later still, so it does as well.
    void wait(std::uint64_t ticket) {
        FTMPI_CUDA(cudaSetDevice(device_));  // or the thread would open the first GPU
        done_[ticket % kEvents].wait();
    }
    /// The main stream goes on when all copies started so far are done; in a graph: those started when it is
    /// launched.
    void hold(bool capturing) {
        FTMPI_CUDA(cudaStreamWaitEvent(main_, last_.get(),
                                       capturing ? cudaEventWaitExternal : cudaEventWaitDefault));
    }

private:
    static constexpr std::size_t kEvents = 64;

    cudaStream_t main_;
    int device_;
    StreamHandle stream_;
    EventHandle ready_, last_, done_[kEvents];
    std::uint64_t next_ = 0;
};

}  // namespace ftmpi::cuda
