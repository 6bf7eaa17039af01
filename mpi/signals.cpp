#include "signals.hpp"

#include <atomic>
#include <csignal>

namespace ftmpi::mpi {
namespace {

std::atomic<int> asked{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void remember_signal(int signal) {
    int none = 0;
    asked.compare_exchange_strong(none, signal);
}

}  // namespace

void install_stop_signals() {
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
        struct sigaction action = {};
        action.sa_handler = remember_signal;
        sigemptyset(&action.sa_mask);
        // Restarted calls: a stop must not turn into a failed read or write of a file.
        action.sa_flags = SA_RESTART;
        if (signal == SIGINT) action.sa_flags |= static_cast<int>(SA_RESETHAND);
        sigaction(signal, &action, nullptr);
    }
}

int stop_signal() noexcept { return asked.load(std::memory_order_relaxed); }

}  // namespace ftmpi::mpi
