// What the checks of Gated DeltaNet and of attention share: steps of rows, the memory of a run, the CPU to
// compare with.
#pragma once

#include <algorithm>
#include <thread>

#include "../../cuda/launch.hpp"
#include "../../src/cpu_backend.hpp"
#include "guarded.hpp"

namespace ftmpi::gpu_check {

using cuda::Scratch;
using Steps = std::vector<std::vector<Row>>;

/// n rows of a slot cut into steps.
inline Steps steps_of(int slot, int position, int n, int step) {
    Steps steps;
    for (int i = 0; i < n; i += step) append(steps.emplace_back(), slot, position + i, std::min(step, n - i));
    return steps;
}

inline std::int64_t count_of(const Steps& steps) {
    std::int64_t n = 0;
    for (const auto& s : steps) n += static_cast<std::int64_t>(s.size());
    return n;
}

/// Device rows, scratch and tickets of a run of steps. Every other run may start each step early, as behind
/// an embed().
struct Workplace {
    Workplace(const std::vector<std::vector<Row>>& steps, std::size_t scratch_bytes)
        : rows(flat(steps)), scratch((scratch_bytes + 255) / 256 * 256),
          tickets(std::vector<unsigned>(cuda::kTickets, 0u)) {
        static int runs = 0;
        early = ++runs % 2 == 0;
        halves = runs % 3 == 0;
    }
    /// What begins a step; the kernels before have ended when those that follow begin.
    bool begin_step() const {
        if (early) FTMPI_CUDA(cudaMemsetAsync(barrier.data(), 0, 1, nullptr));
        return early;
    }
    static std::vector<Row> flat(const std::vector<std::vector<Row>>& steps) {
        std::vector<Row> all;
        for (const auto& s : steps) all.insert(all.end(), s.begin(), s.end());
        return all;
    }
    Scratch get() const {
        return {scratch.data(), scratch.bytes(), reinterpret_cast<unsigned*>(tickets.data())};
    }
    std::string trouble() const {
        if (!rows.intact() || !scratch.intact() || !tickets.intact())
            return "memory beside rows, scratch or tickets was written";
        for (unsigned t : tickets.read<unsigned>())
            if (t != 0) return "a ticket is left";
        return {};
    }

    struct ScratchMemory : Guarded {
        explicit ScratchMemory(std::size_t n) : Guarded(n), bytes_(n) {}
        std::size_t bytes() const { return bytes_; }
        std::size_t bytes_;
    };
    Guarded rows;
    ScratchMemory scratch;
    Guarded tickets;
    Guarded barrier{std::size_t{16}};
    bool early = false, halves = false;
};

inline Backend& cpu() {
    static const auto backend =
        make_cpu_backend(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
    return *backend;
}

/// All shapes, or in the short form few. Each reports a line a check.
void check_delta_net();
void check_attention();

}  // namespace ftmpi::gpu_check
