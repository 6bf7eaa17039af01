// What a cut costs each rank. Internal to the plan.
#pragma once

#include "../shard.hpp"

namespace ftmpi::shard {

/// Bytes of one rank as a function of the context, and what its steps read.
struct RankCost {
    RankBytes fixed;                 ///< kv_cache and rope are 0 here
    std::uint64_t kv_per_token = 0;  ///< a token of context, all slots
    std::uint64_t rope_per_token = 0;
    StepReads reads;
    double read_bytes = 0;  ///< reads.token()

    std::uint64_t per_token() const { return kv_per_token + rope_per_token; }
    RankBytes at(std::int64_t context) const {
        RankBytes bytes = fixed;
        bytes.kv_cache = kv_per_token * static_cast<std::uint64_t>(context);
        bytes.rope = rope_per_token * static_cast<std::uint64_t>(context);
        return bytes;
    }
};

/// Needs the ranges, slots, kv, prefill_rows and embedding_on_host of `plan`.
RankCost cost_of(const ModelSizes& sizes, const ShardPlan& plan, int rank);

}  // namespace ftmpi::shard
