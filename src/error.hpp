// Errors and exit codes that every module and every rank reports in the same way.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "text/quoting.hpp"

namespace ftmpi {

/// Process exit codes. A job script may branch on them; jobs/README.md lists them.
enum class Exit : int {
    ok = 0,
    failure = 1,        ///< a fault of the program or of the machine (I/O error, internal check)
    usage = 2,          ///< the command line or a job file is wrong
    bad_input = 3,      ///< a checkpoint, tokenizer, prompt or result file is wrong
    does_not_fit = 4,   ///< the plan does not fit the memory it was given
    rank_failed = 5,    ///< another rank failed; that rank's message was printed
    timed_out = 6,      ///< a collective or a phase passed its deadline
    interrupted = 7,    ///< SIGTERM, SIGINT or SIGUSR1: finished requests were saved, the rest were not run
    different = 8,      ///< `verify` found a difference
    partly_failed = 9,  ///< the run ended, but at least one request ended with an error of its own
};

/// "1 rank", "2 ranks"; `many` where the plural is not `one` with an s.
inline std::string counted(std::uint64_t n, const std::string& one, const std::string& many = {}) {
    return std::to_string(n) + ' ' + (n == 1 ? one : many.empty() ? one + 's' : many);
}

/// An error with the exit code it leads to. what() is one sentence that names the file, tensor or
/// option concerned; hint() says what to do about it and may be empty. Both are printable().
class Error : public std::runtime_error {
public:
    Error(Exit code, const std::string& what, const std::string& hint = {})
        : std::runtime_error(printable(what)), code_(code), hint_(printable(hint)) {}

    Exit code() const noexcept { return code_; }
    const std::string& hint() const noexcept { return hint_; }

private:
    Exit code_;
    std::string hint_;
};

}  // namespace ftmpi
