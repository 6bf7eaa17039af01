// How the CPU backend spreads a step over its threads. Which thread does what never changes a bit: no sum
// crosses tasks.
#pragma once

#include "../cpu_backend.hpp"
#include "threads.hpp"

namespace ftmpi {

/// Multiply-adds from which starting the threads pays: some 60 us of one thread, against about 10 us to wake
/// another.
inline constexpr double kWorthThreads = 2e6;

template <class Task> void CpuBackend::parallel(std::int64_t count, double work, Task task) {
    if (threads_ == 1 || count < 2 || work < kWorthThreads) {
        for (std::int64_t i = 0; i < count; ++i) task(i, 0);
        return;
    }
    pool_->run([&](int thread) {
        const std::int64_t end = count * (thread + 1) / threads_;
        for (std::int64_t i = count * thread / threads_; i < end; ++i) task(i, thread);
    });
}

}  // namespace ftmpi
