#include "policy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "../error.hpp"
#include "../text/size.hpp"

namespace ftmpi::shard {
namespace {

constexpr auto kUnlimited = static_cast<double>(kUnlimitedContext);
constexpr double kGroupHandicap = 1.02;

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

void normalise(const Problem& problem, std::vector<double>& shares) {
    // By the largest first: the sum of large numbers, or the quotient of small ones, need not be a number.
    double most = 0, sum = 0;
    for (const int r : problem.order) most = std::max(most, shares[at(r)]);
    if (most > 0)
        for (auto& share : shares) share /= most;
    for (const int r : problem.order) sum += shares[at(r)];
    for (auto& share : shares) share = sum > 0 ? share / sum : 1.0 / problem.ranks();
}

std::vector<double> all_on(const Problem& problem, int rank) {
    std::vector<double> shares(at(problem.ranks()), 0.0);
    shares[at(rank)] = 1;
    return shares;
}

/// Costs of a rank without any row and of one with all of them; those of a share lie nearly on the line
/// between.
struct Ends {
    RankCost none, all;

    Ends(const Problem& problem, bool whole_kv_groups, bool out_replicated) {
        const auto ends =
            try_cut(problem, {all_on(problem, problem.order[0]), whole_kv_groups, out_replicated});
        all = ends.costs[at(problem.order[0])];
        none = ends.costs[at(problem.order[1])];
    }
    /// Share that fills `bytes` at `context`, between 0 and 1.
    double share_of_bytes(double bytes, double context) const {
        const double least =
            static_cast<double>(none.fixed.total()) + static_cast<double>(none.per_token()) * context;
        const double most =
            static_cast<double>(all.fixed.total()) + static_cast<double>(all.per_token()) * context;
        if (most <= least) return bytes >= least ? 1 : 0;
        return std::clamp((bytes - least) / (most - least), 0.0, 1.0);
    }
    /// Share whose rows are read in `seconds`.
    double share_of_time(double seconds, double bandwidth) const {
        if (all.read_bytes <= none.read_bytes) return 1;
        return std::max(0.0, (seconds * bandwidth - none.read_bytes) / (all.read_bytes - none.read_bytes));
    }
};

/// Moves a little from the rank that is full first to the one that is full last as long as that gains
/// context: heads and replicated key/value heads come in steps that the line between the ends does not show.
Candidate refine_for_memory(const Problem& problem, Candidate best) {
    double step = 1.0 / 32;
    for (int tries = 0; tries < 64 && step > 1.0 / 4096; ++tries) {
        const auto less = [&](int a, int b) { return best.capacity(problem, a) < best.capacity(problem, b); };
        const int full = *std::min_element(problem.order.begin(), problem.order.end(), less);
        const int roomy = *std::max_element(problem.order.begin(), problem.order.end(), less);
        auto shares = best.plan.asked;
        const double moved = std::min(step, shares[at(full)]);
        shares[at(full)] -= moved;
        shares[at(roomy)] += moved;
        auto next =
            try_cut(problem, {std::move(shares), best.plan.whole_kv_groups, best.plan.out_replicated});
        const auto least = [&](const Candidate& c) {
            double capacity = kUnlimited;
            for (const int r : problem.order) capacity = std::min(capacity, c.capacity(problem, r));
            return capacity;
        };
        if (moved > 0 && full != roomy && least(next) > least(best)) best = std::move(next);
        else step /= 2;
    }
    return best;
}

Candidate cut_for_memory(const Problem& problem, bool whole_kv_groups) {
    const Ends ends(problem, whole_kv_groups, false);
    std::vector<double> shares(at(problem.ranks()));
    const auto claim = [&](double context) {
        double sum = 0;
        for (const int r : problem.order) {
            shares[at(r)] =
                ends.share_of_bytes(static_cast<double>(problem.request.ranks[at(r)].bytes), context);
            sum += shares[at(r)];
        }
        return sum;
    };
    // The largest context at which the ranks together can still claim the whole model.
    double low = 0, high = 1;
    while (high < kUnlimited && claim(high) >= 1) high *= 2;
    for (int i = 0; i < 60; ++i) {
        const double middle = (low + high) / 2;
        (claim(middle) >= 1 ? low : high) = middle;
    }
    claim(low);
    normalise(problem, shares);
    return refine_for_memory(problem, try_cut(problem, {shares, whole_kv_groups, false}));
}

/// Least predicted time with every rank at most as full as `context` allows; nothing when this kind of cut
/// cannot hold it.
std::optional<Candidate> cut_for_speed(const Problem& problem, std::int64_t context, bool whole_kv_groups,
                                       bool out_replicated) {
    const Ends ends(problem, whole_kv_groups, out_replicated);
    const double whole = static_cast<double>(ends.all.at(context).total()) -
                         static_cast<double>(ends.none.at(context).total());
    std::vector<double> limit(at(problem.ranks()), 0.0), shares(at(problem.ranks()), 0.0);
    for (const int r : problem.order)
        limit[at(r)] = ends.share_of_bytes(static_cast<double>(problem.request.ranks[at(r)].bytes),
                                           static_cast<double>(context));

    for (int tries = 0; tries < 40; ++tries) {
        // Water filling: the time at which the shares that can be read in it, each within its limit, add up
        // to the model.
        const auto fill = [&](double seconds) {
            double sum = 0;
            for (const int r : problem.order) {
                shares[at(r)] = std::min(limit[at(r)], ends.share_of_time(seconds, problem.bandwidth[at(r)]));
                sum += shares[at(r)];
            }
            return sum;
        };
        double low = 0, high = ends.all.read_bytes /
                               *std::min_element(problem.bandwidth.begin(), problem.bandwidth.end());
        if (fill(high) < 1) return std::nullopt;
        for (int i = 0; i < 60; ++i) {
            const double middle = (low + high) / 2;
            (fill(middle) < 1 ? low : high) = middle;
        }
        fill(high);
        normalise(problem, shares);

        auto candidate = try_cut(problem, {shares, whole_kv_groups, out_replicated});
        bool fits = true;
        for (const int r : problem.order) {
            const auto needed = candidate.costs[at(r)].at(context).total();
            const auto available = problem.request.ranks[at(r)].bytes;
            if (needed <= available) continue;
            // Rounding to whole heads and replicated key/value heads took more than the share: allow this
            // rank less.
            fits = false;
            limit[at(r)] =
                std::max(0.0, shares[at(r)] - static_cast<double>(needed - available) / whole - 1e-4);
        }
        if (fits) return candidate;
    }
    return std::nullopt;
}

/// The same shares with the output projection whole on every rank, if that is predicted to be faster and
/// holds `context`.
Candidate with_out_replicated(const Problem& problem, Candidate plain, std::int64_t context) {
    if (!problem.timed || sole_rank(plain.plan)) return plain;
    auto other = try_cut(problem, {plain.plan.asked, plain.plan.whole_kv_groups, true});
    return other.capacity(problem) >= context && other.seconds < plain.seconds ? other : plain;
}

std::optional<Candidate> fastest(Problem& problem, std::int64_t context) {
    std::optional<Candidate> together;
    for (const bool whole_kv_groups : {false, true}) {
        // Whole groups leave single attention layers uneven, which a prediction over all layers does not see:
        // they must win clearly, as they do where the copies of key/value heads take the memory.
        const double handicap = whole_kv_groups ? kGroupHandicap : 1;
        for (const bool out_replicated : {false, true}) {
            if (out_replicated && !problem.timed) continue;
            auto candidate = cut_for_speed(problem, context, whole_kv_groups, out_replicated);
            if (candidate && (!together || candidate->seconds * handicap < together->seconds))
                together = std::move(candidate);
        }
    }
    if (!problem.timed) return together;

    // A rank is worth its rows only if they save more than the gathers that come with them.
    std::optional<Candidate> alone;
    int sole = 0;
    for (const int r : problem.order) {
        auto candidate = try_cut(problem, {all_on(problem, r), false, false});
        if (candidate.capacity(problem) < context || (alone && candidate.seconds >= alone->seconds)) continue;
        alone = std::move(candidate);
        sole = r;
    }
    if (!alone || (together && together->seconds < alone->seconds)) return together;
    std::string note = rank_name(problem.request, sole) +
                       " holds every row and the other ranks none: predicted " +
                       milliseconds(alone->seconds) + " a token";
    if (together && together->plan.exchanges)
        note += " against " + milliseconds(together->seconds) + " shared, of which the gathers are " +
                milliseconds(together->plan.exchanges * problem.exchange);
    problem.notes.push_back(note +
                            ". Starting this rank alone is as good; --policy memory and --shares use all.");
    return alone;
}

}  // namespace

std::string rank_name(const PlanRequest& request, int rank) {
    const auto& name = request.ranks[at(rank)].name;
    return "rank " + std::to_string(rank) + (name.empty() ? "" : " (" + name + ")");
}

Problem::Problem(const ModelSizes& model, const PlanRequest& asked)
    : sizes(model), request(asked),
      exchange(asked.exchange_seconds > 0 ? asked.exchange_seconds : kExchangeSeconds) {
    order.resize(request.ranks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        const auto &x = request.ranks[at(a)], &y = request.ranks[at(b)];
        return x.bytes != y.bytes ? x.bytes > y.bytes : x.gb_per_s > y.gb_per_s;
    });
    double slowest = 0;
    for (const auto& rank : request.ranks)
        if (rank.gb_per_s > 0 && (slowest == 0 || rank.gb_per_s < slowest)) slowest = rank.gb_per_s;
    timed = slowest > 0;
    for (std::size_t r = 0; r < request.ranks.size(); ++r) {
        const double known = request.ranks[r].gb_per_s;
        bandwidth.push_back(timed ? (known > 0 ? known : slowest) * 1e9 : 1.0);
        if (timed && known <= 0)
            notes.push_back("the bandwidth of " + rank_name(request, static_cast<int>(r)) +
                            " is unknown: counted as " + number_text(slowest) + " GB/s, the slowest known");
    }
}

double Candidate::capacity(const Problem& problem, int rank) const {
    const auto& cost = costs[at(rank)];
    const double room =
        static_cast<double>(problem.request.ranks[at(rank)].bytes) - static_cast<double>(cost.fixed.total());
    if (cost.per_token() == 0) return room >= 0 ? kUnlimited : room;
    return std::min(kUnlimited, room / static_cast<double>(cost.per_token()));
}

std::int64_t Candidate::capacity(const Problem& problem) const {
    auto least = static_cast<std::int64_t>(kUnlimited);
    for (int r = 0; r < problem.ranks(); ++r) {
        const auto& cost = costs[at(r)];
        const auto available = problem.request.ranks[at(r)].bytes;
        if (available < cost.fixed.total()) return -1;
        if (cost.per_token())
            least = std::min(least,
                             static_cast<std::int64_t>((available - cost.fixed.total()) / cost.per_token()));
    }
    return least;
}

Candidate try_cut(const Problem& problem, const CutChoice& choice) {
    Candidate candidate;
    auto& plan = candidate.plan;
    const auto& request = problem.request;
    plan.policy = request.policy;
    plan.slots = request.slots;
    plan.kv = request.kv;
    plan.prefill_rows = request.prefill_rows;
    plan.embedding_on_host = request.embedding_on_host;
    cut_model(problem.sizes, choice, problem.order, plan);

    const int per_layer = plan.out_replicated ? 3 : 4;
    plan.exchanges = sole_rank(plan) ? 0 : per_layer * static_cast<int>(plan.layers.size()) + 1;
    double slowest = 0;
    for (int r = 0; r < problem.ranks(); ++r) {
        candidate.costs.push_back(cost_of(problem.sizes, plan, r));
        slowest = std::max(slowest, candidate.costs.back().read_bytes / problem.bandwidth[at(r)]);
    }
    candidate.seconds = slowest + (problem.timed ? plan.exchanges * problem.exchange : 0);
    return candidate;
}

Candidate cut_for_memory(const Problem& problem) {
    if (problem.ranks() == 1) return try_cut(problem, {{1.0}, false, false});
    auto heads = cut_for_memory(problem, false);
    auto groups = cut_for_memory(problem, true);
    return groups.capacity(problem) > heads.capacity(problem) ? groups : heads;
}

Candidate choose_cut(Problem& problem) {
    const auto& request = problem.request;
    const auto most = problem.sizes.config.max_positions;
    if (problem.ranks() == 1) return try_cut(problem, {{1.0}, false, false});

    if (request.policy == Policy::even || request.policy == Policy::shares) {
        auto shares =
            request.policy == Policy::shares ? request.shares : std::vector<double>(at(problem.ranks()), 1.0);
        normalise(problem, shares);
        auto plain = try_cut(problem, {shares, false, false});
        const auto wanted = request.context ? request.context : std::min(most, plain.capacity(problem));
        return with_out_replicated(problem, std::move(plain), std::max<std::int64_t>(wanted, 1));
    }
    if (request.policy == Policy::speed) {
        const auto wanted = request.context ? request.context : std::min(most, kSpeedContext);
        if (auto cut = fastest(problem, wanted)) return *cut;
        problem.notes.push_back("no cut by bandwidth holds " +
                                counted(static_cast<std::uint64_t>(wanted), "token") +
                                ": cut for memory instead");
    }
    return cut_for_memory(problem);
}

}  // namespace ftmpi::shard
