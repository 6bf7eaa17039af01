// Device memory for weights, caches and workspace. Header only, plain C++.
#pragma once

#include <cstddef>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "handles.hpp"

namespace ftmpi::cuda {

/// Arrays of device memory and the count of their bytes. The driver hands memory out in pages of 2 MiB: a
/// model's thousand arrays, each of its own, would take 1 to 2% more than they hold, which is as much as the
/// plan leaves free. Cut from one piece they do not.
class Arrays {
public:
    /// Takes one piece for `bytes` of arrays to come. Without it, and when it is full, each array is one of
    /// its own; so too when the piece cannot be had, so that the array that does not fit is named.
    void open(std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        if (piece_.data() || bytes == 0) return;
        try {
            piece_ = DeviceMemory(bytes + kRounding, "weights and caches");
        } catch (const Error&) {}
    }

    /// Not zeroed; 256-byte aligned. Throws as FTMPI_CUDA_ALLOCATE does.
    void* take(std::size_t bytes, std::string_view what) {
        const std::lock_guard lock(mutex_);
        const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
        void* p = nullptr;
        if (whole <= piece_.bytes() - used_) {
            p = static_cast<char*>(piece_.data()) + used_;
            used_ += whole;
        } else {
            FTMPI_CUDA_ALLOCATE(cudaMalloc(&p, bytes), what, bytes);
        }
        sizes_[p] = bytes;
        allocated_ += bytes;
        return p;
    }

    /// What lies in the piece is not handed out again: weights and caches live as long as the backend.
    void give_back(void* p) noexcept {
        const std::lock_guard lock(mutex_);
        const auto at = sizes_.find(p);
        if (at == sizes_.end()) return;
        allocated_ -= at->second;
        sizes_.erase(at);
        const auto* const begin = static_cast<const char*>(piece_.data());
        if (p < begin || p >= begin + piece_.bytes()) cudaFree(p);  // waits for the kernels that use it
    }

    /// Bytes asked for and not given back.
    std::size_t allocated() const {
        const std::lock_guard lock(mutex_);
        return allocated_;
    }

private:
    static constexpr std::size_t kAlignment = 256;
    static constexpr std::size_t kRounding = std::size_t{1}
                                             << 20;  ///< of some thousand arrays to the alignment

    mutable std::mutex mutex_;
    DeviceMemory piece_;
    std::size_t used_ = 0, allocated_ = 0;
    std::unordered_map<void*, std::size_t> sizes_;
};

}  // namespace ftmpi::cuda
