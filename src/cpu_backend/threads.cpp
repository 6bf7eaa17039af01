#include "threads.hpp"

#include <immintrin.h>

#include <utility>

namespace ftmpi {
namespace {

/// Polls before a thread sleeps, about 15 us: as long as the serial part of a step, shorter than a
/// scheduler's turn.
constexpr int kPolls = 300;

void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
    for (int i = 0; i < kPolls; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        _mm_pause();
    }
    value.wait(old, std::memory_order_acquire);
}

}  // namespace

Threads::Threads(int count) {
    try {
        for (int t = 1; t < count; ++t) workers_.emplace_back([this, t] { serve(t); });
    } catch (...) {  // a limit on threads or memory
        stop();
        throw;
    }
}

Threads::~Threads() { stop(); }

void Threads::stop() {
    end_ = true;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (auto& w : workers_) w.join();
}

void Threads::attempt(int thread) {
    try {
        (*work_)(thread);
    } catch (...) {
        const std::lock_guard lock(failing_);
        failure_ = std::current_exception();
    }
}

void Threads::serve(int thread) {
    for (std::uint32_t seen = 0;; ++seen) {
        wait_while(round_, seen);
        if (end_) return;
        attempt(thread);
        if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
    }
}

void Threads::run(const std::function<void(int)>& work) {
    work_ = &work;
    working_.store(static_cast<std::uint32_t>(workers_.size()), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    attempt(0);
    for (std::uint32_t left; (left = working_.load(std::memory_order_acquire)) != 0;)
        wait_while(working_, left);
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace ftmpi
