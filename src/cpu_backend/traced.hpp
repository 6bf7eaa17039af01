// A call of the CPU backend in the trace of kernels.
#pragma once

#include <chrono>

#include "../cpu_backend.hpp"

namespace ftmpi {

class CpuBackend::Traced {
public:
    /// `name` is asked for only when kernels are traced. `kernel`: the loops' name in kernels.hpp.
    template <class Name>
    Traced(CpuBackend& backend, const char* kernel, std::int64_t rows, Name name) : b_(backend) {
        if (!b_.tracing_) return;
        call_ = {name(), rows, std::string(kernel) + ", " + b_.info().capability};
        begin_ = std::chrono::steady_clock::now();
    }
    Traced(const Traced&) = delete;
    Traced& operator=(const Traced&) = delete;
    ~Traced() {
        if (!b_.tracing_) return;
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
        b_.trace_.add(call_.operation, call_.rows, call_.kernel, taken.count());
    }

private:
    CpuBackend& b_;
    KernelRun call_;
    std::chrono::steady_clock::time_point begin_;
};

}  // namespace ftmpi
