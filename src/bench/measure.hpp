// One measured run of some prompts, timed on every rank, and the probes beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../engine/engine.hpp"
#include "../engine/figures.hpp"
#include "../generate.hpp"

namespace ftmpi {

/// What is measured together: `batch` prompts of `prompt` tokens, then `decode` steps.
struct BenchCase {
    std::int64_t prompt = 0, decode = 0;
    int batch = 1;
    /// Tokens a sequence holds at the end: one token comes from prefill, and one step more is run than
    /// measured, so that the last measured step is followed by another as all others are.
    std::int64_t tokens() const { return prompt + new_tokens(); }
    std::int64_t new_tokens() const { return decode + 2; }
    std::string name() const;  ///< "p1024_d64_b4"
};

/// Times of one run on this rank.
struct RunTimes {
    double prefill_seconds = 0;          ///< of all prompts of the batch, several in a step
    std::vector<double> step_seconds;    ///< one a decode step
    double prefill_gather_seconds = 0;   ///< waiting in collectives; only of a run whose gathers are watched
    std::vector<double> gather_seconds;  ///< likewise, one a decode step
};

/// Times the steps of a generator's run as it goes. A step lasts from the tokens of the step before to its
/// own, both read by the host: when it was asked for says nothing, since that may be while the step before
/// still runs.
class StepClock {
public:
    /// Asking a communicator for its waits may stop the device, so gathers are watched in a run of their own,
    /// whose steps are not the ones that are stated. It must not run ahead: what the next step has waited for
    /// by then would count to this one.
    StepClock(Communicator& communicator, bool watch_gathers)
        : communicator_(communicator), watch_gathers_(watch_gathers) {}
    /// To be called before each step.
    void step();
    /// To be called when a step's tokens have been read.
    void read(std::string_view phase);
    /// Throws Error(failure) when fewer steps were run than `decode`.
    RunTimes times(std::int64_t decode) const;

private:
    struct Tick {
        double at = 0, waited = 0;
        bool decodes = false;
    };
    Tick tick(bool decodes) const;
    Communicator& communicator_;
    bool watch_gathers_;
    std::vector<Tick> ticks_;  ///< the first step asked for, then each step read
};

/// Seconds of one small gather, the median of many: `width` floats of one row, spread evenly. 0 for one rank.
double measure_exchange(Backend& backend, Communicator& communicator, std::int64_t width);

}  // namespace ftmpi
