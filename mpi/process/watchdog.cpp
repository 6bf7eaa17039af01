#include "watchdog.hpp"

#include <poll.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>

#include "signals.hpp"

namespace ftmpi::mpi {

Watchdog::Watchdog(double seconds, const std::string& message, int code) {
    // Signals belong to the main thread; a handler that runs here would not interrupt its sleeps.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this, seconds, message, code] {
            std::unique_lock lock(mutex_);
            if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; }))
                return;
            if (!message.empty()) say(message);
            _exit(code);
        });
    } catch (const std::system_error&) {  // out of threads: what is bounded here is often the end of just
                                          // such a process
        end_after(seconds, message, code);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
    if (!thread_.joinable()) {
        end_never();
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        done_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

bool write_error(const char* text, std::size_t bytes, int patience_ms) noexcept {
    while (bytes > 0) {
        pollfd place{STDERR_FILENO, POLLOUT, 0};
        const int ready = ::poll(&place, 1, patience_ms);
        if (ready == 0 || (ready < 0 && errno != EINTR)) return false;
        const auto n = ::write(STDERR_FILENO, text, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        text += n;
        bytes -= static_cast<std::size_t>(n);
    }
    return true;
}

void say(const std::string& text) { write_error(text.data(), text.size(), 5000); }

}  // namespace ftmpi::mpi
