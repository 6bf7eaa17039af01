// CUDA objects that free themselves, and calls whose failure is an Error naming the call and the file. Header
// only, so that the device communicators can use it without the kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "../../src/error.hpp"

namespace ftmpi::cuda {

/// Throws when `status` is a failure. `call` and `where` name the call and its place; `what` and `bytes` an
/// allocation.
inline void check(cudaError_t status, std::string_view call, std::string_view where,
                  std::string_view what = {}, std::size_t bytes = 0) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // an error that does not stick must not be reported again by the next check
    const std::string reason = std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
    const std::string_view file =
        where.substr(where.rfind('/') == std::string_view::npos ? 0 : where.rfind('/') + 1);
    const std::string_view name = call.substr(0, call.find('('));
    if (status == cudaErrorMemoryAllocation)
        throw Error(Exit::does_not_fit,
                    "out of memory in " + std::string(name) + ": " + std::to_string(bytes) + " bytes for " +
                        std::string(what.empty() ? "a buffer" : what) + " (" + reason + ")");
    throw Error(Exit::failure, std::string(name) + " failed" +
                                   (what.empty() ? "" : " for " + std::string(what)) + ": " + reason + " (" +
                                   std::string(file) + ")");
}

#define FTMPI_CUDA(call) ::ftmpi::cuda::check((call), #call, __FILE__)
#define FTMPI_CUDA_ALLOCATE(call, what, bytes) ::ftmpi::cuda::check((call), #call, __FILE__, (what), (bytes))

class StreamHandle {
public:
    StreamHandle() { FTMPI_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    StreamHandle(const StreamHandle&) = delete;
    StreamHandle& operator=(const StreamHandle&) = delete;
    ~StreamHandle() { cudaStreamDestroy(stream_); }
    cudaStream_t get() const { return stream_; }

private:
    cudaStream_t stream_ = nullptr;
};

class EventHandle {
public:
    explicit EventHandle(unsigned flags = cudaEventDisableTiming) {
        FTMPI_CUDA(cudaEventCreateWithFlags(&event_, flags));
    }
    EventHandle(const EventHandle&) = delete;
    EventHandle& operator=(const EventHandle&) = delete;
    ~EventHandle() { cudaEventDestroy(event_); }
    cudaEvent_t get() const { return event_; }
    void record(cudaStream_t stream) { FTMPI_CUDA(cudaEventRecord(event_, stream)); }
    void wait() { FTMPI_CUDA(cudaEventSynchronize(event_)); }

private:
    cudaEvent_t event_ = nullptr;
};

/// Memory that Kind allocates and frees.
template <class Kind> class OwnedMemory {
public:
    OwnedMemory() = default;
    OwnedMemory(std::size_t bytes, std::string_view what) : bytes_(bytes) {
        if (bytes) check(Kind::allocate(&data_, bytes), Kind::call, __FILE__, what, bytes);
    }
    OwnedMemory(OwnedMemory&& o) noexcept { swap(o); }
    OwnedMemory& operator=(OwnedMemory&& o) noexcept {
        swap(o);
        return *this;
    }
    ~OwnedMemory() {
        if (data_) Kind::free(data_);
    }
    void* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    void swap(OwnedMemory& o) noexcept {
        std::swap(data_, o.data_);
        std::swap(bytes_, o.bytes_);
    }
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

struct PinnedKind {
    static constexpr std::string_view call = "cudaHostAlloc";
    static cudaError_t allocate(void** p, std::size_t bytes) {
        return cudaHostAlloc(p, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    }
    static void free(void* p) { cudaFreeHost(p); }
};
struct DeviceKind {
    static constexpr std::string_view call = "cudaMalloc";
    static cudaError_t allocate(void** p, std::size_t bytes) { return cudaMalloc(p, bytes); }
    static void free(void* p) { cudaFree(p); }
};
/// Page-locked host memory that kernels can read directly.
using PinnedMemory = OwnedMemory<PinnedKind>;
/// Device memory outside the backend's own count; not zeroed.
using DeviceMemory = OwnedMemory<DeviceKind>;

}  // namespace ftmpi::cuda
