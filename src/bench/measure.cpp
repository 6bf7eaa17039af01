#include "measure.hpp"

#include <algorithm>
#include <chrono>

#include "../error.hpp"

namespace ftmpi {
namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string BenchCase::name() const {
    return "p" + std::to_string(prompt) + "_d" + std::to_string(decode) + "_b" + std::to_string(batch);
}

StepClock::Tick StepClock::tick(bool decodes) const {
    Tick tick{now(), 0, decodes};
    if (watch_gathers_)
        for (const auto& wait : communicator_.waits()) tick.waited += wait.seconds;
    return tick;
}

void StepClock::step() {
    if (ticks_.empty()) ticks_.push_back(tick(false));
}

void StepClock::read(std::string_view phase) { ticks_.push_back(tick(phase == "decode")); }

RunTimes StepClock::times(std::int64_t decode) const {
    const auto first = std::find_if(ticks_.begin(), ticks_.end(), [](const Tick& t) { return t.decodes; });
    const auto steps = std::count_if(ticks_.begin(), ticks_.end(), [](const Tick& t) { return t.decodes; });
    if (steps <= decode || first - ticks_.begin() < 2 || first + steps != ticks_.end())
        throw Error(
            Exit::failure,
            "a measured run had " + counted(static_cast<std::uint64_t>(steps), "decode step") + " after " +
                counted(static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(first - ticks_.begin() - 1, 0)),
                        "prompt") +
                ", where " + std::to_string(decode + 1) + " were to come");
    const auto prefilled = first - 1;
    RunTimes times;
    times.prefill_seconds = prefilled->at - ticks_.front().at;
    times.prefill_gather_seconds = prefilled->waited - ticks_.front().waited;
    for (auto tick = first; tick != first + decode; ++tick) {
        times.step_seconds.push_back(tick->at - (tick - 1)->at);
        if (watch_gathers_) times.gather_seconds.push_back(tick->waited - (tick - 1)->waited);
    }
    return times;
}

double measure_exchange(Backend& backend, Communicator& communicator, std::int64_t width) {
    if (communicator.size() == 1) return 0;
    constexpr int rounds = 41, in_a_row = 10, warm = 5;
    const DeviceArray<float> row(backend, width, "the exchange's probe");
    std::vector<Range> of_rank;
    for (std::int64_t r = 0; r < communicator.size(); ++r)
        of_rank.push_back({width * r / communicator.size(), width * (r + 1) / communicator.size()});
    const ShardedColumns columns{row.data(), 1, width, of_rank};
    std::vector<double> seconds;
    for (int round = -warm; round < rounds; ++round) {
        backend.synchronize();
        const double begin = now();
        for (int i = 0; i < in_a_row; ++i) communicator.all_gather({&columns, 1}, "probe", backend.stream());
        backend.synchronize();
        if (round >= 0) seconds.push_back((now() - begin) / in_a_row);
    }
    return median(std::move(seconds));
}

}  // namespace ftmpi
