// How a command turns its options into a plan request, and the plan that the request gets.
#pragma once

#include <cstdint>
#include <vector>

#include "../options.hpp"
#include "../shard.hpp"

namespace ftmpi {

/// What one GPU loses to the CUDA context, the kernels' modules and the NCCL communicator before the first
/// weight is placed: 0.3 to 0.5 GiB were reported for these, the rest is a reserve for the allocator's
/// rounding. `plan` subtracts it from each card of --hardware and --memory-limit, which mean whole cards;
/// `run` on a GPU asks the device for what is free instead.
inline constexpr std::uint64_t kGpuFixedBytes = 614ull << 20;  // 0.6 GiB

/// Rows of a prefill step when --prefill-chunk does not say: on GPUs enough that an expert of 256, of which 8
/// are chosen, gets a tile's worth of rows; on the CPU few, so that a step's activations stay in the cache.
inline constexpr std::int64_t kPrefillRowsCpu = 256, kPrefillRowsGpu = 1024;

/// What an option says for `rank`: one value for all ranks or one a rank; `none` where it was not given.
template <class T> T of_rank(const std::vector<T>& values, std::size_t rank, T none) {
    if (values.empty()) return none;
    return values.size() == 1 ? values[0] : values.at(rank);
}

/// The request that `options` make for these ranks.
PlanRequest plan_request(const Options& options, const std::vector<RankMemory>& ranks);

/// make_plan() with the embedding where `options` want it. Where they do not say, and the ranks have GPUs, it
/// goes there if that changes neither cut nor context: a GPU that finds its tokens' rows itself need not wait
/// for the host between two steps.
ShardPlan plan_for(const Options& options, const ModelSizes& sizes, PlanRequest request, bool on_gpus);

/// The same where no context was asked for: `contexts` (rising, at least one) are what the requests need.
/// Serves all of them if that fits, else the longest that does, or as much as there is where that is more:
/// answers may end early.
ShardPlan plan_for(const Options& options, const ModelSizes& sizes, PlanRequest request, bool on_gpus,
                   const std::vector<std::int64_t>& contexts);

/// The ranks that --hardware, or --memory-limit with --bandwidth, describe; fixed costs subtracted unless
/// --backend cpu. Throws Error(Exit::usage) when neither is given or the numbers of values differ.
std::vector<RankMemory> ranks_of(const Options& options);

}  // namespace ftmpi
