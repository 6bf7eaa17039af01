// The choice of experts by one warp.
#pragma once

#include "device_code.hpp"

namespace ftmpi::cuda {

/// A finite logit as a number that is larger for a larger logit; 0 is no logit. -0 counts as +0.
__device__ __forceinline__ std::uint32_t rising_of(float logit) {
    const std::uint32_t bits = num::bits_of(logit + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(std::uint32_t rising) {
    return num::float_of(rising & 0x80000000u ? rising ^ 0x80000000u : ~rising);
}

struct RouteSpace {
    std::uint32_t id[32], logit[32];
};

/// num::route of one row of at most 32 * kEach experts and 32 choices: lane l keeps logits l, l + 32, ... as rising numbers. Each
/// choice is a maximum over the warp and the lowest id that has it; then lane i has the i-th choice. `space` is shared memory;
/// ids and weights may be too.
template <int kEach>
__device__ __forceinline__ void route_by_warp(const float* logits, int experts, int top_k, std::int32_t* ids, float* weights,
                                              RouteSpace& space) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t rising[kEach];
    float x[kEach];
    bool finite = true;
#pragma unroll
    for (int j = 0; j < kEach; ++j) x[j] = lane + 32 * j < experts ? logits[lane + 32 * j] : 0.0f;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        finite = finite && num::is_finite(x[j]);
        rising[j] = lane + 32 * j < experts ? rising_of(x[j]) : 0u;
    }
    if (!__all_sync(kWholeWarp, finite)) {  // rare: the plain order of comparisons decides, and every weight is NaN
        if (lane == 0) num::route(logits, experts, top_k, ids, weights);
        return;
    }
    std::uint32_t my_id = 0xffffffffu, my_logit = 0, largest = 0;
    for (int n = 0; n < top_k; ++n) {
        std::uint32_t best = rising[0];
        int at = 0;
#pragma unroll
        for (int j = 1; j < kEach; ++j)
            if (rising[j] > best) best = rising[j], at = j;
        const std::uint32_t top = __reduce_max_sync(kWholeWarp, best), own = static_cast<std::uint32_t>(lane + 32 * at);
        const std::uint32_t id = __reduce_min_sync(kWholeWarp, best == top ? own : 0xffffffffu);
#pragma unroll
        for (int j = 0; j < kEach; ++j)
            if (id == static_cast<std::uint32_t>(lane + 32 * j)) rising[j] = 0;
        if (n == 0) largest = top;
        if (lane == n) my_id = id, my_logit = top;
    }
    int place = 0;  // ids rising
    for (int n = 0; n < top_k; ++n) place += __shfl_sync(kWholeWarp, my_id, n) < my_id;
    if (lane < top_k) space.id[place] = my_id, space.logit[place] = my_logit;
    __syncwarp();
    const float value = lane < top_k ? num::exp(logit_of(space.logit[lane]) - logit_of(largest)) : 0.0f;
    float total = 0.0f;
    for (int n = 0; n < top_k; ++n) total = total + __shfl_sync(kWholeWarp, value, n);
    if (lane < top_k) {
        ids[lane] = static_cast<std::int32_t>(space.id[lane]);
        weights[lane] = value / total;
    }
}

}  // namespace ftmpi::cuda
