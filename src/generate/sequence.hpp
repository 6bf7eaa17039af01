// What the loop keeps of a request that runs, and of a step under way. Internal to the generator.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "../generate.hpp"
#include "../text/utf8.hpp"
#include "ledger.hpp"

namespace ftmpi {

struct Generator::Sequence {
    Sequence(const Request& r, int s, bool show) : request(r), slot(s), shown(show) {}
    const Request& request;
    int slot;
    bool shown;  ///< text goes out as it is made
    std::vector<std::int32_t> output;
    std::vector<double> step_seconds;
    std::int64_t prefilled = 0;  ///< tokens of the prompt that steps have taken
    double begin = 0;            ///< when its first step was asked for
    double prefill_seconds = 0;
    std::vector<Communicator::Wait> waits_before;
    LogitsAccount account;
    Utf8Stream stream;
    bool finished = false;
};

struct Generator::Step {
    std::vector<Sequence*>
        sequences;  ///< one a row; null: it ended in the step before, and what the row made is left aside
    const float* logits = nullptr;          ///< valid until the next step writes its own
    const std::int32_t* tokens = nullptr;   ///< in device memory
    std::span<std::int32_t> token, finite;  ///< in host memory, once `copy` is there
    std::uint64_t copy = 0;
    std::vector<LogitsWorker::Copy> captured;  ///< one a row, those of null left out
    double begin = 0;                          ///< when it was asked for
    std::string_view phase;
};

/// Seconds of a clock that never goes back.
inline double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ftmpi
