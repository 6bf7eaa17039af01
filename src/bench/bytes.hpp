// What a decode step reads from memory, by group, from the plan.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../shard.hpp"

namespace ftmpi {

/// Bytes one rank reads (and, of the recurrent state, writes) in one decode step.
struct StepBytes {
    double delta_net = 0, attention = 0, experts = 0, shared_expert = 0, replicated = 0, head = 0,
           embedding = 0;
    double recurrent_state = 0;  ///< read and written
    double kv_cache = 0;

    double total() const {
        return delta_net + attention + experts + shared_expert + replicated + head + embedding +
               recurrent_state + kv_cache;
    }
    std::vector<std::pair<std::string_view, double>> groups() const;
};

/// Of a step of `batch` sequences that hold `position` tokens each. Weights are read once a step, of the
/// experts those that are chosen: top_k of one sequence, for more the number to be expected when experts are
/// chosen evenly.
StepBytes step_bytes(const ModelConfig& config, const ShardPlan& plan, int rank, int batch, double position);

}  // namespace ftmpi
