// Times, and the figures of many that were measured one by one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace ftmpi {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The value below which `share` of the values lie (nearest rank, so one that was measured); 0 of none.
inline double percentile(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const double rank = std::ceil(share * static_cast<double>(values.size()));
    return values[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

/// Of an even number of values the lower of the two in the middle.
inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

}  // namespace ftmpi
