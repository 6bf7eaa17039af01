// Gate and up of the chosen experts of few rows at fixed width, as in a step of decoding: all sizes of a row
// of the matrices are known when a kernel is compiled.
//
// Bytes of one row at 8 + 1 experts of 512 x 2048 NVFP4: 10.6 MB (2.4 us at 4.5 TB/s). What is above that is
// the way from a kernel's start to its first loads and from the last ones to its end, so a block has a warp
// for each choice, and one for the shared expert, of one or two units of rows; one more warp chooses. The
// shared expert's weights are asked for at once, each choice's as soon as that choice is known, while the
// search for the next goes on: memory is busy from then on, since an expert's rows take it longer than a
// search. The warps of the last choices, which wait longest, stage the input meanwhile. Ids are found in
// falling order of their logits; where an expert's hidden values belong is needed, and known, when they are
// ready.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <algorithm>

#include "decode.cuh"
#include "route.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kMostUpWarps = 20;  ///< 96 registers a thread, and room for two blocks of half as many warps
enum Barrier { kStaged = 1, kPlaced, kFound };  ///< kFound + n: choice n; all are below 16

struct UpTask {
    ExpertsUp e;
    Groups routed, shared;
    int members;              ///< experts of a row: the chosen ones, and the shared one where there is one
    int width, shared_width;  ///< intermediate rows held here
    int copies;               ///< units of each expert that a block works on, 1 or 2
};

/// What a block found out about its row.
struct Choice {
    RouteSpace space;
    std::int32_t expert[kMostUpChoices];  ///< in the order of being found
    int place[32];                        ///< of each of them, when ids rise
    float weights[kMostUpChoices];        ///< of a row that is not finite
};

/// The warp that chooses.
__device__ __forceinline__ void choose(const UpTask& a, Choice& choice, int t, int lane) {
    const int count = a.e.groups, top_k = a.e.routes.top_k, each = 32 * (1 + a.copies);
    const float* logits = a.e.logits + std::int64_t{t} * count;
    LaneChoice mine;
    const bool finite = choose_by_warp<kRouteEach>(logits, count, top_k, mine, [&](int n, std::uint32_t id) {
        if (lane == 0) choice.expert[n] = static_cast<std::int32_t>(id);
        __syncwarp();
        arrive_at(kFound + n, each);
    });
    int place = lane;
    if (finite) {
        place = place_by_warp(mine, top_k);
    } else {  // rare: the plain order of comparisons decides, and every weight is NaN
        if (lane == 0) route_plainly(logits, count, top_k, choice.expert, choice.weights);
        __syncwarp();
#pragma unroll 1
        for (int n = 0; n < top_k; ++n) arrive_at(kFound + n, each);
    }
    choice.place[lane] = place;
    __syncwarp();
    arrive_at(kPlaced, 32 * (1 + top_k * a.copies));
    if (blockIdx.x != 0) return;
    std::int32_t* ids = a.e.routes.experts + t * top_k;
    float* weights = a.e.routes.weights + t * top_k;
    if (finite) {
        weigh_by_warp(mine, place, top_k, ids, weights, choice.space);
    } else if (lane < top_k) {
        ids[lane] = choice.expert[lane];
        weights[lane] = choice.weights[lane];
    }
    publish_to_dependents();
}

/// grid.y counts the step's rows. A unit is the rows of gate and of up that a warp works on together.
template <Format F, int kSets, bool kRoute>
__global__ void __launch_bounds__(32 * kMostUpWarps, 1) experts_up_decode(const __grid_constant__ UpTask a) {
    constexpr int R = expert_rows(F), H = R / 2, kChunks = 32 * kSets;
    constexpr int kCodePitch = code_pitch_of_sets<F, kSets>, kScalePitch = scale_pitch_of_sets<F, kSets>;
    __shared__ Choice choice;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, t = static_cast<int>(blockIdx.y);
    if (!kRoute || blockIdx.x != 0) trigger_dependents();  // the first block publishes the choice before
    const int warp = thread / 32 - (kRoute ? 1 : 0), members = a.members, workers = members * a.copies,
              top_k = a.e.routes.top_k;
    if constexpr (kRoute)
        if (warp < 0) {
            wait_for_prerequisites();
            return choose(a, choice, t, lane);
        }
    SumBuffer& buffer = reinterpret_cast<SumBuffer*>(shared_bytes())[warp];
    auto* staged = reinterpret_cast<uint4*>(reinterpret_cast<SumBuffer*>(shared_bytes()) + workers);
    const int copy = warp >= members, nth = copy ? warp - members : warp;
    const bool shared = nth == top_k;
    const Groups m = shared ? a.shared : a.routed;
    const int width = shared ? a.shared_width : a.width,
              mine = (static_cast<int>(blockIdx.x) * a.copies + copy) * H;
    const bool any = mine < width;  // a warp without rows goes along
    const int first = any ? mine : 0;
    std::uint32_t group = 0;
    if (!shared) wait_for_prerequisites();
    if constexpr (!kRoute)
        if (!shared) group = static_cast<std::uint32_t>(a.e.routes.experts[t * top_k + nth]);
    // The warps of the last choices stage the input: before their weights when they have to wait for the
    // choice.
    const int late = top_k / 2, stagers = top_k - late;
    const bool stages = !shared && nth >= late;
    const auto stage = [&] {
        stage_whole<F, kChunks>(a.e.x + std::int64_t{t} * (kChunks * num::kChunk), staged,
                                32 * (nth - late + copy * stagers) + lane, 32 * stagers * a.copies);
    };
    if (kRoute && stages) {
        stage();
        wait_at(kStaged, 32 * workers);
    }
    const std::uint8_t* codes = m.codes + static_cast<std::uint32_t>(first * kCodePitch + lane * kWord128);
    const std::uint8_t* scales = m.scales + static_cast<std::uint32_t>(first * kScalePitch);
    const std::uint32_t codes_up = static_cast<std::uint32_t>(width * kCodePitch),
                        scales_up = static_cast<std::uint32_t>(width * kScalePitch);
    const std::uint32_t multiplied = static_cast<std::uint32_t>(first + lane % R / H * width + lane % H);
    if constexpr (kRoute)
        if (!shared) {
            wait_at(kFound + nth, 32 * (1 + a.copies));
            group = static_cast<std::uint32_t>(choice.expert[nth]);
        }
    codes += std::uint64_t{group} * m.code_bytes;
    scales += std::uint64_t{group} * m.scale_bytes;
    Fetched<F, R> sets[kSets];
#pragma unroll
    for (int s = 0; s < kSets; ++s)
#pragma unroll
        for (int r = 0; r < R; ++r)
            fetch_chunk(
                sets[s], r,
                codes + (r / H) * codes_up + (r % H) * kCodePitch + s * words128_of(F) * 32 * kWord128,
                32 * kWord128, scales + (r / H) * scales_up + (r % H) * kScalePitch, s * 32 + lane);
    const float multiplier = m.multipliers ? m.multipliers[group * m.rows + multiplied] : 1.0f;
    if (shared) wait_for_prerequisites();  // its weights do not depend on the kernel before
    if (!kRoute && stages) stage();
    if (!kRoute || !stages) wait_at(kStaged, 32 * workers);
    RowSums<F, R, 1, false> sums(buffer, lane, staged, 0, plane_pitch(kChunks));
    each<kSets>([&](auto s) {
        ChunkValue<F> v[1][R];
        values_of<F, kChunks>(sets[s()], staged, s() * 32 + lane, v);
        sums.put(s(), true, v, sets[s()], s() + 1 == kSets);
    });
    const float y = m.multipliers ? multiplier * sums.total() : sums.total(),
                up = __shfl_sync(kWholeWarp, y, lane % H + H);
    const float value = num::expert_act(y, up);
    int place = nth;
    if constexpr (kRoute)
        if (!shared) {
            wait_at(kPlaced, 32 * (1 + top_k * a.copies));
            place = choice.place[nth];
        }
    float* act = shared ? a.e.shared_act + t * a.e.shared_stride
                        : a.e.act + (std::int64_t{t} * top_k + place) * a.e.stride;
    if (any && lane < H) act[first + lane] = value;
}

}  // namespace

void decode_experts_up(const ExpertsUp& e, const Card& card, cudaStream_t stream) {
    constexpr int kSets = kUpSets;
    UpTask a{.e = e,
             .routed = groups_of(e.routed),
             .shared = groups_of(e.shared),
             .members = e.routes.top_k + (e.shared.rows ? 1 : 0),
             .width = e.routed.rows / 2,
             .shared_width = e.shared.rows / 2,
             .copies = 1};
    with_format_of(CommonFormats{}, e.routed.format, [&]<Format F>() {
        constexpr auto most_bytes = [](int workers) {
            return static_cast<std::size_t>(workers) * sizeof(SumBuffer) +
                   std::size_t{planes_of(F)} * plane_pitch(32 * kSets) * kWord128;
        };
        allow_shared_once<experts_up_decode<F, kSets, true>>(most_bytes(kMostUpWarps));
        allow_shared_once<experts_up_decode<F, kSets, false>>(most_bytes(kMostUpWarps));
        const int each = expert_rows(F) / 2, units = std::max(a.width, a.shared_width) / each;
        a.copies = units > card.multiprocessors ? 2 : 1;
        const int workers = a.copies * a.members;
        // As in decode_any.cu: a kernel that chose the experts has ended before this one lets the next
        // begin.
        launch_pdl_if(
            e.logits, "experts_up",
            e.logits ? experts_up_decode<F, kSets, true> : experts_up_decode<F, kSets, false>,
            dim3(static_cast<unsigned>((units + a.copies - 1) / a.copies), static_cast<unsigned>(e.rows)),
            dim3(static_cast<unsigned>(32 * (workers + (e.logits ? 1 : 0)))), most_bytes(workers), stream, a);
    });
}

}  // namespace ftmpi::cuda
