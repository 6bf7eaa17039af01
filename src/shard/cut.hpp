// Dealing rows to ranks. Internal to the plan.
#pragma once

#include <vector>

#include "../shard.hpp"

namespace ftmpi::shard {

/// Rows of every matrix that is not cut by heads are dealt in this many.
inline constexpr std::int64_t kUnitRows = kRowTile;

/// Deals the units of one kind of matrix, layer after layer.
class Dealer {
public:
    /// `shares` add up to 1. `order` lists the ranks; of two equal claims the earlier rank's goes first, so
    /// that the same ranks in another order get the same counts.
    Dealer(const std::vector<double>& shares, const std::vector<int>& order)
        : shares_(shares), order_(order), owed_(shares.size(), 0.0), given_(shares.size(), 0.0) {}

    /// Units of each rank; each is its share of `units` rounded down or up. `unit_bytes` weighs the layer
    /// against the others.
    std::vector<std::int64_t> deal(std::int64_t units, double unit_bytes);

    /// Bytes dealt to each rank so far.
    const std::vector<double>& given() const { return given_; }

private:
    const std::vector<double>& shares_;
    const std::vector<int>& order_;
    std::vector<double> owed_;  // bytes asked for and not given so far
    std::vector<double> given_;
};

struct CutChoice {
    std::vector<double> shares;  ///< add up to 1
    bool whole_kv_groups = false;
    bool out_replicated = false;
};

/// Fills layers, head, asked, given and the two flags of `plan`.
void cut_model(const ModelSizes& sizes, const CutChoice& choice, const std::vector<int>& order,
               ShardPlan& plan);

/// Bytes of one stored row, its scales included.
double row_bytes(const MatrixSize& matrix);

}  // namespace ftmpi::shard
