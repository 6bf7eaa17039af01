#include "request.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "../error.hpp"
#include "../text/size.hpp"

namespace ftmpi {
namespace {

/// "24GiB@1008", as --hardware takes it.
std::string card_name(std::uint64_t bytes, double gb_per_s) {
    auto name = size_text(bytes, "");
    if (gb_per_s > 0) {
        char text[64];
        name.append("@").append(text, std::to_chars(text, text + sizeof text, gb_per_s).ptr);
    }
    return name;
}

/// A size without a unit is one of bytes; of few bytes it was hardly meant so.
std::string size_hint(const std::string& bare) {
    if (bare.empty()) return {};
    const auto n = std::stoull(bare);
    return std::to_string(n) + " is " + counted(n, "byte") + "; " + std::to_string(n) +
           (n < 1024 ? "GiB?" : "MiB?");
}

}  // namespace

PlanRequest plan_request(const Options& options, const std::vector<RankMemory>& ranks) {
    PlanRequest request;
    request.ranks = ranks;
    request.policy = options.policy;
    request.shares = options.shares;
    request.context = options.context;
    request.slots = options.batch;
    request.kv = options.kv;
    request.prefill_rows = options.prefill_chunk                   ? options.prefill_chunk
                           : options.backend == BackendChoice::cpu ? kPrefillRowsCpu
                                                                   : kPrefillRowsGpu;
    request.embedding_on_host = options.embedding_on_host.value_or(true);
    if (options.command == Command::bench) request.slots_hint = "smaller --batches need less";
    request.size_hint = size_hint(options.bare_size);
    return request;
}

ShardPlan plan_for(const Options& options, const ModelSizes& sizes, PlanRequest request, bool on_gpus) {
    ShardPlan plan = make_plan(sizes, request);
    if (options.embedding_on_host || !on_gpus) return plan;
    request.embedding_on_host = false;
    try {
        ShardPlan with_table = make_plan(sizes, request);
        if (with_table.context == plan.context && with_table.given == plan.given &&
            with_table.out_replicated == plan.out_replicated)
            return with_table;
    } catch (const Error& error) {
        if (error.code() != Exit::does_not_fit) throw;
    }
    return plan;
}

ShardPlan plan_for(const Options& options, const ModelSizes& sizes, PlanRequest request, bool on_gpus,
                   const std::vector<std::int64_t>& contexts) {
    std::optional<ShardPlan> best;
    // By halves, the longest first: that is the one in nearly every run.
    for (std::size_t low = 0, high = contexts.size(), at = high - 1; low < high;
         at = low + (high - low) / 2) {
        request.context = contexts[at];
        try {
            best = plan_for(options, sizes, request, on_gpus);
            low = at + 1;
        } catch (const Error& e) {
            if (e.code() != Exit::does_not_fit) throw;
            high = at;
        }
    }
    if (best && best->context == contexts.back()) return std::move(*best);
    request.context = 0;
    ShardPlan most = plan_for(options, sizes, request, on_gpus);
    return best && best->context > most.context ? std::move(*best) : most;
}

std::vector<RankMemory> ranks_of(const Options& options) {
    std::vector<RankMemory> ranks;
    const auto add = [&](std::uint64_t bytes, double gb_per_s) {
        const std::uint64_t fixed = options.backend == BackendChoice::cpu ? 0 : kGpuFixedBytes;
        ranks.push_back({bytes > fixed ? bytes - fixed : 0, gb_per_s, card_name(bytes, gb_per_s), fixed});
    };
    if (!options.hardware.empty()) {
        if (!options.memory_limit.empty() || !options.bandwidth.empty())
            throw Error(Exit::usage, "--hardware already says memory and bandwidth",
                        "leave --memory-limit and --bandwidth out, or use them instead of --hardware");
        for (const auto& card : options.hardware) add(card.bytes, card.gb_per_s);
        return ranks;
    }
    if (options.memory_limit.empty())
        throw Error(Exit::usage, "plan needs to know the hardware",
                    "for example --hardware 24GiB@1008,16GiB@288 (memory@GB/s of each rank), or "
                    "--memory-limit 24GiB,16GiB alone");
    const auto count =
        std::max({options.memory_limit.size(), options.bandwidth.size(), options.shares.size()});
    for (const auto n : {options.memory_limit.size(), options.bandwidth.size()})
        if (n > 1 && n != count)
            throw Error(Exit::usage,
                        "--memory-limit, --bandwidth and --shares name different numbers of ranks: " +
                            std::to_string(options.memory_limit.size()) + ", " +
                            std::to_string(options.bandwidth.size()) + " and " +
                            std::to_string(options.shares.size()),
                        "give one value for all ranks or one a rank");
    for (std::size_t r = 0; r < count; ++r)
        add(of_rank<std::uint64_t>(options.memory_limit, r, 0), of_rank<double>(options.bandwidth, r, 0));
    return ranks;
}

}  // namespace ftmpi
