// The figures of a benchmark: computed once, shown as a table, as JSON and in the result file.
#pragma once

#include <string>
#include <vector>

#include "../results.hpp"
#include "../shard.hpp"
#include "measure.hpp"

namespace ftmpi {

/// A case as measured: the times of all ranks, all repeats one after the other. Gathers are watched in a run
/// of their own.
struct CaseTimes {
    BenchCase what;
    std::vector<std::vector<double>> prefill_seconds;  ///< [rank][repeat]
    std::vector<std::vector<double>>
        prefill_gather_seconds;                       ///< [rank][1]; of one more run, none of one rank
    std::vector<std::vector<double>> step_seconds;    ///< [rank][step]
    std::vector<std::vector<double>> gather_seconds;  ///< [rank][step], likewise
};

/// What the times of one case say.
struct CaseFigures {
    BenchCase what;
    double prefill_seconds = 0;  ///< median, of one prompt
    double prefill_tokens_per_second = 0;
    double step_median = 0, step_p5 = 0, step_p95 = 0,
           step_p99 = 0;                  ///< seconds, of the slowest rank in each step
    double decode_tokens_per_second = 0;  ///< of all sequences together, at the median
    std::vector<double> gather_median;    ///< [rank] seconds of a step inside collectives
    std::vector<StepBytes> bytes;         ///< [rank] of a step halfway through
    double roofline_seconds = 0;  ///< of the rank that needs longest to read its bytes; 0: a rate is unknown
    double roofline_share = 0;    ///< of that time in the median step
};

/// What was measured beside the cases.
struct Surroundings {
    std::vector<double> read_bytes_per_second;  ///< [rank], 0: unknown
    double exchange_seconds = 0;
    double load_seconds = 0;
    std::vector<std::uint64_t> loaded_bytes;  ///< [rank], of the checkpoint
    std::string prompt_sha256;                ///< logits of the prompt that was hashed beforehand
    bool hash_on = false;                     ///< while measuring
};

CaseFigures figures_of(const CaseTimes& times, const ShardPlan& plan, const Surroundings& around);

/// The table for the screen.
std::string bench_table(const std::vector<CaseFigures>& cases, const Surroundings& around);
/// One object in one line.
std::string bench_json(const std::vector<CaseFigures>& cases, const Surroundings& around);
/// Everything, for the result file: figures as values, times as series.
SummaryRecord bench_summary(const std::vector<CaseTimes>& times, const std::vector<CaseFigures>& cases,
                            const Surroundings& around, double wall_seconds);

}  // namespace ftmpi
