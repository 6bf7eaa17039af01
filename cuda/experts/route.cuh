// The choice of experts by one warp.
#pragma once

#include "../device_code.hpp"

namespace ftmpi::cuda {

/// A finite logit as a number that is larger for a larger logit; 0 is no logit. -0 counts as +0.
__device__ __forceinline__ std::uint32_t rising_of(float logit) {
    const std::uint32_t bits = num::bits_of(logit + 0.0f);
    return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ __forceinline__ float logit_of(std::uint32_t rising) {
    return num::float_of(rising & 0x80000000u ? rising ^ 0x80000000u : ~rising);
}

struct RouteSpace {
    std::uint32_t id[32], logit[32];
};

/// Lane n's: the n-th largest logit.
struct LaneChoice {
    std::uint32_t id = 0xffffffffu, logit = 0;
    std::uint32_t largest = 0;  ///< in every lane
};

/// The choice of num::route of one row of at most 32 * kEach experts and 32 choices: lane l keeps logits l, l
/// + 32, ... as rising numbers. Each choice is a maximum over the warp and the lowest id that has it, and
/// found(n, id) is called by the whole warp as soon as it is known. False: a logit is not finite, and nothing
/// was found.
template <int kEach, class Found>
__device__ __forceinline__ bool choose_by_warp(const float* logits, int experts, int top_k, LaneChoice& mine,
                                               Found found) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float x[kEach];
    std::uint32_t rising[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {  // no conditions, so that all are asked for before the first is used
        const int id = lane + 32 * j;
        x[j] = logits[id < experts ? id : experts - 1];
    }
    float nothing = 0.0f;  // but NaN after an infinity or a NaN
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        nothing = num::fma(x[j], 0.0f, nothing);
        rising[j] = lane + 32 * j < experts ? rising_of(x[j]) : 0u;
    }
    if (!__all_sync(kWholeWarp, nothing == 0.0f)) return false;
#pragma unroll 1  // its code is fetched once
    for (int n = 0; n < top_k; ++n) {
        std::uint32_t most[kEach];
#pragma unroll
        for (int j = 0; j < kEach; ++j) most[j] = rising[j];
#pragma unroll
        for (int half = kEach / 2; half > 0; half /= 2)
#pragma unroll
            for (int j = 0; j < half; ++j) most[j] = most[j] > most[j + half] ? most[j] : most[j + half];
        const std::uint32_t top = __reduce_max_sync(kWholeWarp, most[0]);
        std::uint32_t own = 0xffffffffu;
#pragma unroll
        for (int j = kEach - 1; j >= 0; --j)
            if (rising[j] == top) own = static_cast<std::uint32_t>(lane + 32 * j);
        const std::uint32_t id = __reduce_min_sync(kWholeWarp, own);
        found(n, id);
#pragma unroll
        for (int j = 0; j < kEach; ++j)
            if (id == static_cast<std::uint32_t>(lane + 32 * j)) rising[j] = 0;
        if (n == 0) mine.largest = top;
        if (lane == n) mine.id = id, mine.logit = top;
    }
    return true;
}

/// Place of this lane's choice when the ids rise; top_k for lanes without one.
__device__ __forceinline__ int place_by_warp(const LaneChoice& mine, int top_k) {
    int place = 0;
#pragma unroll 1
    for (int n = 0; n < top_k; ++n) place += __shfl_sync(kWholeWarp, mine.id, n) < mine.id;
    return place;
}

/// Ids rising and their weights. `space` is shared memory; ids and weights may be too.
__device__ __forceinline__ void weigh_by_warp(const LaneChoice& mine, int place, int top_k, std::int32_t* ids,
                                              float* weights, RouteSpace& space) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < top_k) space.id[place] = mine.id, space.logit[place] = mine.logit;
    __syncwarp();
    const float value = lane < top_k ? num::exp(logit_of(space.logit[lane]) - logit_of(mine.largest)) : 0.0f;
    float total = 0.0f;
#pragma unroll 1
    for (int n = 0; n < top_k; ++n) total = total + __shfl_sync(kWholeWarp, value, n);
    if (lane < top_k) {
        ids[lane] = static_cast<std::int32_t>(space.id[lane]);
        weights[lane] = value / total;
    }
}

/// num::route out of the way of kernels that hardly ever need it.
__device__ inline void route_plainly(const float* logits, int experts, int top_k, std::int32_t* ids,
                                     float* weights) {
    num::route(logits, experts, top_k, ids, weights);
}

/// num::route of one row, as choose_by_warp() and weigh_by_warp() say.
template <int kEach>
__device__ __forceinline__ void route_by_warp(const float* logits, int experts, int top_k, std::int32_t* ids,
                                              float* weights, RouteSpace& space) {
    LaneChoice mine;
    if (!choose_by_warp<kEach>(logits, experts, top_k, mine, [](int, std::uint32_t) {})) {
        // Rare: the plain order of comparisons decides, and every weight is NaN.
        if (threadIdx.x % 32 == 0) route_plainly(logits, experts, top_k, ids, weights);
        return;
    }
    weigh_by_warp(mine, place_by_warp(mine, top_k), top_k, ids, weights, space);
}

}  // namespace ftmpi::cuda
