// make_plan: checks the request, takes the policy's cut, settles the context, and says in words what was
// decided.
#include <algorithm>
#include <cmath>

#include "../error.hpp"
#include "../text/size.hpp"
#include "policy.hpp"

namespace ftmpi {
namespace {

using shard::Candidate;
using shard::Problem;

std::string tokens(std::int64_t n) { return counted(static_cast<std::uint64_t>(n), "token"); }

void check(const ModelSizes& sizes, const PlanRequest& request) {
    const auto& config = sizes.config;
    const auto refuse = [](const std::string& what, const std::string& hint = {}) {
        throw Error(Exit::usage, what, hint);
    };
    if (request.ranks.empty()) refuse("a plan needs at least one rank");
    if (request.slots < 1) refuse("a plan needs at least one sequence, not " + std::to_string(request.slots));
    if (request.prefill_rows < 1)
        refuse("a prefill step needs at least one row, not " + std::to_string(request.prefill_rows));
    if (request.context < 0) refuse("--context cannot be negative: " + std::to_string(request.context));
    if (request.context > config.max_positions)
        refuse(
            "--context " + std::to_string(request.context) + " is more than this model was made for",
            "max_position_embeddings allows --context " + std::to_string(config.max_positions) + " at most");
    if (request.policy == Policy::shares) {
        if (request.shares.size() != request.ranks.size())
            refuse("--shares names " + counted(request.shares.size(), "share") + " for " +
                       counted(request.ranks.size(), "rank"),
                   "give one share a rank; 0 leaves a rank without rows");
        double sum = 0;
        for (const double share : request.shares) {
            if (!std::isfinite(share) || share < 0)
                refuse("a share must be a number from 0 on, not " + std::to_string(share));
            sum += share;
        }
        if (sum <= 0) refuse("every share is 0: no rank would hold the model");
    }
    for (const auto& rank : request.ranks)
        if (!std::isfinite(rank.gb_per_s) || rank.gb_per_s < 0)
            refuse("a bandwidth must be a number from 0 (unknown) on, not " + std::to_string(rank.gb_per_s));
    if (sizes.layers.size() != config.layers.size())
        throw Error(Exit::bad_input, "the checkpoint has " + counted(sizes.layers.size(), "layer") +
                                         " and config.json names " + std::to_string(config.layers.size()));
}

/// Shares of `cut` in the form --shares takes, if the cut they give holds `context` too.
std::string shares_that_fit(const Problem& problem, const Candidate& cut, std::int64_t context) {
    std::string text;
    std::vector<double> rounded;
    double sum = 0;
    for (const double share : cut.plan.asked) {
        const auto digits = number_text(share, 4);
        text += (text.empty() ? "" : ",") + digits;
        rounded.push_back(std::stod(digits));
        sum += rounded.back();
    }
    if (sum <= 0) return {};
    for (auto& share : rounded) share /= sum;
    return try_cut(problem, {rounded, false, false}).capacity(problem) >= context ? text : std::string();
}

/// The error of a cut that does not hold `context`: what each rank lacks, and what would fit.
[[noreturn]] void refuse(const Problem& problem, const Candidate& cut, std::int64_t context) {
    const auto& request = problem.request;
    std::string what = "a context of " + tokens(context) + " does not fit";
    if (request.context == 0) what = "the model does not fit";
    std::uint64_t needed_all = 0, available_all = 0;
    for (int r = 0; r < problem.ranks(); ++r) {
        const auto needed = cut.costs[static_cast<std::size_t>(r)].at(context).total();
        const auto available = request.ranks[static_cast<std::size_t>(r)].bytes;
        what += (r ? "; " : ": ") + shard::rank_name(request, r) + " needs " + size_text(needed) + ", has " +
                size_text(available);
        if (const auto fixed = request.ranks[static_cast<std::size_t>(r)].fixed; needed > available && fixed)
            what += " beside the " + size_text(fixed) + " that a GPU's driver takes";
        if (needed > available) what += ", misses " + size_text(needed - available);
    }

    std::vector<std::string> ways;
    if (!request.size_hint.empty()) ways.push_back(request.size_hint);
    const auto capacity = cut.capacity(problem);
    const auto best = cut_for_memory(problem);
    const auto best_capacity = best.capacity(problem);
    const auto usable = [&](std::int64_t tokens) {
        return std::to_string(std::min(tokens, problem.sizes.config.max_positions));
    };
    if (best_capacity >= context) {
        const auto shares = shares_that_fit(problem, best, context);
        ways.push_back("--policy memory would fit it" +
                       (shares.empty() ? "" : ", as would --shares " + shares));
    }
    if (capacity >= 1) ways.push_back("with this cut --context " + usable(capacity) + " fits");
    if (best_capacity < context && best_capacity > std::max<std::int64_t>(capacity, 0))
        ways.push_back("--policy memory fits --context " + usable(best_capacity));
    if (capacity < 1 && best_capacity < 1) {
        std::uint64_t missing = 0;
        for (int r = 0; r < problem.ranks(); ++r) {
            const auto needed = best.costs[static_cast<std::size_t>(r)].at(context).total();
            const auto available = request.ranks[static_cast<std::size_t>(r)].bytes;
            needed_all += needed;
            available_all += available;
            if (needed > available) missing += needed - available;
            if (best.plan.asked[static_cast<std::size_t>(r)] == 0 && needed > available)
                ways.push_back(shard::rank_name(request, r) +
                               " cannot hold even what every rank needs; leave it out");
        }
        if (needed_all > available_all) missing = needed_all - available_all;
        ways.push_back((problem.ranks() == 1 ? "no cut fits: the rank misses "
                                             : "no cut fits: all ranks together miss ") +
                       size_text(missing));
        if (!request.embedding_on_host) ways.push_back("the embedding can stay in host memory");
    }
    if (request.slots > 1) ways.push_back(request.slots_hint);
    if (size_of(request.kv) > 1 && capacity >= 1) ways.push_back("--kv fp8 needs less");
    std::string hint;
    for (const auto& way : ways) hint += (hint.empty() ? "" : "; ") + way;
    throw Error(Exit::does_not_fit, what, hint);
}

void note_replicas(const ModelSizes& sizes, ShardPlan& plan) {
    const auto& config = sizes.config;
    std::int64_t copies = 0, heads = 0;
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
        if (config.layers[l] != LayerKind::attention) continue;
        heads += config.kv_heads;
        copies -= config.kv_heads;
        for (const auto range : plan.layers[l].mixer) copies += kv_heads_of(config, range).size();
    }
    if (copies > 0) {
        const auto cache =
            static_cast<std::uint64_t>(copies * 2 * plan.context * config.head_dim * plan.slots) *
            size_of(plan.kv);
        plan.notes.push_back("query heads of one key/value head lie on several ranks: " +
                             counted(static_cast<std::uint64_t>(copies), "copy", "copies") + " beside the " +
                             counted(static_cast<std::uint64_t>(heads), "key/value head") +
                             " of all layers, " + size_text(cache) + " of cache");
    }
    if (plan.whole_kv_groups && heads > 0)
        plan.notes.push_back(
            "attention is cut between key/value heads only, so that no part of the cache is held twice");
    if (plan.out_replicated)
        plan.notes.push_back("every rank holds the output projections whole: one gather a layer less");
}

void note_ranks(const PlanRequest& request, ShardPlan& plan) {
    for (int r = 0; r < plan.ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        if (plan.given[i] == 0 && plan.asked[i] > 0)
            plan.notes.push_back(shard::rank_name(request, r) + " holds no rows: its share of " +
                                 percent(plan.asked[i]) + "% is less than a unit");
        else if (plan.given[i] == 0) plan.notes.push_back(shard::rank_name(request, r) + " holds no rows");
        else if (std::abs(plan.given[i] - plan.asked[i]) > 0.01)
            plan.notes.push_back(shard::rank_name(request, r) + " was asked to hold " +
                                 percent(plan.asked[i]) + "% and holds " + percent(plan.given[i]) +
                                 "%: the model has too few units to come closer");
    }
}

}  // namespace

ShardPlan make_plan(const ModelSizes& sizes, const PlanRequest& request) {
    check(sizes, request);
    Problem problem(sizes, request);
    const auto cut = choose_cut(problem);
    const auto capacity = cut.capacity(problem);
    if (capacity < std::max<std::int64_t>(request.context, 1))
        refuse(problem, cut, std::max<std::int64_t>(request.context, 1));

    ShardPlan plan = cut.plan;
    plan.context_capacity = capacity;
    plan.context = request.context ? request.context : std::min(capacity, sizes.config.max_positions);
    plan.notes = problem.notes;
    plan.exchange_seconds = problem.exchange;
    for (int r = 0; r < plan.ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const auto& rank = request.ranks[i];
        plan.bytes.push_back(cut.costs[i].at(plan.context));
        plan.available.push_back(rank.bytes);
        plan.reads.push_back(cut.costs[i].reads);
        plan.names.push_back(rank.name);
        plan.gb_per_s.push_back(problem.timed ? problem.bandwidth[i] / 1e9 : 0);
        plan.rank_seconds.push_back(problem.timed ? cut.costs[i].read_bytes / problem.bandwidth[i] : 0);
    }
    plan.seconds_per_token = problem.timed ? cut.seconds : 0;

    if (request.context == 0 && capacity < sizes.config.max_positions) {
        int full = 0;
        for (int r = 1; r < plan.ranks; ++r)
            if (cut.capacity(problem, r) < cut.capacity(problem, full)) full = r;
        plan.notes.push_back("the context is limited to " + tokens(capacity) + " by the memory of " +
                             shard::rank_name(request, full));
    } else if (request.context == 0) {
        plan.notes.push_back("the context is max_position_embeddings, " + tokens(plan.context));
    }
    if (!problem.timed && plan.ranks > 1)
        plan.notes.push_back("no bandwidth is known: all ranks count as equally fast");
    note_ranks(request, plan);
    note_replicas(sizes, plan);
    return plan;
}

}  // namespace ftmpi
