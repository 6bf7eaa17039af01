// Bounds a call that may never come back (MPI_Init, MPI_Finalize, MPI_Abort): says so and ends the process.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

namespace ftmpi::mpi {

class Watchdog {
public:
    /// Unless destroyed before `seconds` are over, prints `message` (when not empty) and leaves with `code`
    /// by _exit.
    Watchdog(double seconds, const std::string& message, int code);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
    std::thread thread_;
};

/// Writes to standard error, in a signal handler too. False when it was given up: no byte could be written
/// for `patience_ms`.
bool write_error(const char* text, std::size_t bytes, int patience_ms) noexcept;

/// One write of the whole text to standard error, so that lines of several ranks are not mixed. A full pipe
/// that nobody reads is given up after 5 seconds: the process must end all the same.
void say(const std::string& text);

}  // namespace ftmpi::mpi
