// How the CPU backend spreads a step over its threads. Which thread does what never changes a bit: no sum crosses tasks.
#pragma once

#include <omp.h>

#include "../cpu_backend.hpp"

namespace ftmpi {

/// Multiply-adds from which starting the threads pays.
inline constexpr double kWorthThreads = 200e3;

template <class Task>
void CpuBackend::parallel(std::int64_t count, double work, Task task) {
    if (threads_ == 1 || count < 2 || work < kWorthThreads) {
        for (std::int64_t i = 0; i < count; ++i) task(i, 0);
        return;
    }
#pragma omp parallel for schedule(static) num_threads(threads_)
    for (std::int64_t i = 0; i < count; ++i) task(i, omp_get_thread_num());
}

}  // namespace ftmpi
