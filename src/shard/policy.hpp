// Choosing the shares. Internal to the plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cost.hpp"
#include "cut.hpp"

namespace ftmpi::shard {

/// "rank 1 (16GiB@288)".
std::string rank_name(const PlanRequest& request, int rank);

/// The request with what every step of the search needs.
struct Problem {
    Problem(const ModelSizes& sizes, const PlanRequest& request);

    const ModelSizes& sizes;
    const PlanRequest& request;
    /// Ranks from most to least memory (then bandwidth). Every sum over ranks and every tie follows it, so
    /// that the plan does not depend on the order in which the ranks are named.
    std::vector<int> order;
    std::vector<double> bandwidth;  ///< bytes per second, or 1 for all when none is known
    bool timed = false;             ///< a bandwidth is known
    double exchange = 0;            ///< seconds a gather
    std::vector<std::string> notes;

    int ranks() const { return static_cast<int>(request.ranks.size()); }
};

/// A cut with its costs; the context is still open.
struct Candidate {
    ShardPlan plan;
    std::vector<RankCost> costs;
    double seconds = 0;  ///< predicted; relative where no bandwidth is known

    /// Context at which this rank is full; negative when it is full before. Infinite when context costs
    /// nothing.
    double capacity(const Problem& problem, int rank) const;
    /// The least of them, rounded down; -1 when the cut does not fit at all.
    std::int64_t capacity(const Problem& problem) const;
};

Candidate try_cut(const Problem& problem, const CutChoice& choice);

/// The cut with the largest context that was found (it may still not fit: capacity() < 1).
Candidate cut_for_memory(const Problem& problem);

/// The cut the request's policy asks for. Notes what the choice needs explained.
Candidate choose_cut(Problem& problem);

}  // namespace ftmpi::shard
