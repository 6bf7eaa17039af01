// The chosen experts of few rows at the shapes of real models, as in a step of decoding: all sizes of a row
// of the matrices are known when a kernel is compiled.
//
// Bytes of one row at 8 + 1 experts of 512 x 2048 NVFP4: 10.6 MB up and gate (2.4 us at 4.5 TB/s), 5.3 MB
// down (1.2 us). What is above that is the way from a kernel's start to its first loads and from the last
// ones to its end, so:
// - Up: a block has a warp for each choice, and one for the shared expert, of one or two units of rows; one
// more warp chooses. The
//   shared expert's weights are asked for at once, each choice's as soon as that choice is known, while the
//   search for the next goes on: memory is busy from then on, since an expert's rows take it longer than a
//   search. The warps of the last choices, which wait longest, stage the input meanwhile. Ids are found in
//   falling order of their logits; where an expert's hidden values belong is needed, and known, when they are
//   ready.
// - Down: a block owns 16 output rows, a pair of warps an expert; the experts' results meet in shared memory
// and are added in
//   rising id.
#include <algorithm>

#include "chunk_dot.hpp"
#include "experts.hpp"
#include "route.cuh"
#include "whole_sets.cuh"

namespace ftmpi::cuda {
namespace {

// Named barriers: of some warps of a block; those that have something to say arrive, those that need it wait.
__device__ __forceinline__ void wait_at(int barrier, int threads) {
#if defined(__CUDA_ARCH__)
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
#endif
}
__device__ __forceinline__ void arrive_at(int barrier, int threads) {
#if defined(__CUDA_ARCH__)
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
#endif
}

/// Groups of one matrix and the distances from one to the next, of codes and scales in bytes.
struct Groups {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    const float* multipliers;
    std::uint32_t code_bytes, scale_bytes, rows;
};
Groups groups_of(const MatrixView& m) {
    const auto times = [&](std::int64_t pitch) { return static_cast<std::uint32_t>(m.padded * pitch); };
    return {m.codes, m.scales, m.multipliers, times(m.code_pitch), times(m.scale_pitch), times(1)};
}
/// The distances fit.
bool near(const MatrixView& m) {
    return m.padded * std::max(m.code_pitch, m.scale_pitch) < (std::int64_t{1} << 32);
}

// Weights that are on their way when a warp comes to the next barrier. load_once() is free to be asked for
// behind it, where it is used: that costs the latency of memory once more.
__device__ __forceinline__ uint4 load_now(const uint4* p) {
#if defined(__CUDA_ARCH__)
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
#else
    return *p;
#endif
}
__device__ __forceinline__ std::uint32_t load_now(const std::uint32_t* p) {
#if defined(__CUDA_ARCH__)
    std::uint32_t v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#else
    return *p;
#endif
}
__device__ __forceinline__ std::uint32_t load_now(const std::uint16_t* p) {
#if defined(__CUDA_ARCH__)
    std::uint32_t v;
    asm volatile("{ .reg .u16 h; ld.global.u16 h, [%1]; cvt.u32.u16 %0, h; }" : "=r"(v) : "l"(p) : "memory");
    return v;
#else
    return *p;
#endif
}
__device__ __forceinline__ std::uint32_t load_now(const std::uint8_t* p) {
#if defined(__CUDA_ARCH__)
    std::uint32_t v;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#else
    return *p;
#endif
}

/// Chunk `chunk` of a row, row r of f. `codes` is its first piece, the others are `between` bytes apart.
template <Format F, int R>
__device__ __forceinline__ void fetch_chunk(Fetched<F, R>& f, int r, const std::uint8_t* codes, int between,
                                            const std::uint8_t* scales, int chunk) {
#pragma unroll
    for (int p = 0; p < pieces_of(F); ++p)
        f.raw[r * pieces_of(F) + p] = load_now(reinterpret_cast<const uint4*>(codes + p * between));
    f.scale[r] = 0;
    if constexpr (F == Format::nvfp4)
        f.scale[r] = load_now(reinterpret_cast<const std::uint16_t*>(scales) + chunk);
    if constexpr (F == Format::mxfp4) f.scale[r] = load_now(scales + chunk);
    if constexpr (F == Format::fp8_block)
        f.scale[r] = load_now(reinterpret_cast<const std::uint32_t*>(scales) + chunk / 4);
}

bool aligned(const void* p) { return (reinterpret_cast<std::uintptr_t>(p) & 15) == 0; }

template <Format F> constexpr int planes_of = is_4bit(F) ? kCodePlanes : kFloatPlanes;

/// A row of kChunks whole chunks, as chunk_values<F> wants it.
template <Format F, int kChunks>
__device__ __forceinline__ void stage_whole(const float* x, uint4* to, int thread, int threads) {
    if constexpr (is_4bit(F)) stage_whole_codes<kChunks>(x, to, thread, threads);
    else stage_floats(x, kChunks * num::kChunk, kChunks, reinterpret_cast<float4*>(to), thread, threads);
}

/// chunk_values() of one input row for 4-bit weights, decoded after a barrier at the earliest: so that the
/// loads before it need not wait for registers, the tables come from memory that it guards. The last word of
/// a chunk's sums is 0.
template <Format F, int R>
__device__ __forceinline__ void code_values(const Fetched<F, R>& f, const uint4* x, int pitch,
                                            float (&v)[1][R]) {
    const uint4 meta = x[4 * pitch];
    const std::uint32_t positive = 0x0f0e0d0cu | meta.w, negative = 0x090a0b0cu | meta.w;  // as decode_e2m1()
    int sum[2][R];
#pragma unroll
    for (int g = 0; g < 2; ++g) {
        const uint4 high = x[g * pitch], low = x[(2 + g) * pitch];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            int hi = 0, lo = static_cast<int>(g == 0 ? meta.x : meta.y);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const std::uint32_t codes = word_of(f.raw[r], i) >> (16 * g);
                const std::uint32_t w = permute(positive, 0x18141210u, codes) |
                                        permute(negative, 0x00040608u, codes ^ 0x88888888u);
                hi = dot4(w, word_of(high, i), hi);
                lo = dot4(w, word_of(low, i), lo);
            }
            sum[g][r] = hi * num::kPlane + lo;
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
        v[0][r] = chunk_of_sums<F>(sum[0][r], sum[1][r], f.scale[r], num::float_of(meta.z));
}

/// The values of staged chunk `chunk` of rows of kChunks.
template <Format F, int kChunks, int R>
__device__ __forceinline__ void values_of(const Fetched<F, R>& f, const uint4* staged, int chunk,
                                          float (&v)[1][R]) {
    if constexpr (is_4bit(F)) code_values<F, R>(f, staged + chunk, plane_pitch(kChunks), v);
    else chunk_values<F, R, 1>(f, staged, 0, plane_pitch(kChunks), chunk, v);
}

// ---- up
// ----------------------------------------------------------------------------------------------------------

constexpr int kRouteEach = 8, kMostRouted = 32 * kRouteEach, kMostTop = 8;
constexpr int kMostUpWarps = 20;  ///< 96 registers a thread, and room for two blocks of half as many warps
enum Barrier { kStaged = 1, kPlaced, kFound };  ///< kFound + n: choice n; all are below 16

struct UpTask {
    Groups routed, shared;
    const std::int32_t* experts;  ///< chosen already, when the kernel does not
    const float* logits;
    std::int32_t* chosen;
    float* weights;
    const float* x;
    float* act;
    float* shared_act;
    std::int64_t stride, shared_stride;
    int top_k, width, shared_width, count;  ///< `width`: intermediate rows held here; `count` of experts
    int copies;                             ///< units of each expert that a block works on, 1 or 2
};

/// What a block found out about its row.
struct Choice {
    RouteSpace space;
    std::int32_t expert[kMostTop];  ///< in the order of being found
    int place[32];                  ///< of each of them, when ids rise
    float weights[kMostTop];        ///< of a row that is not finite
};

/// The warp that chooses.
__device__ __forceinline__ void choose(const UpTask& a, Choice& choice, int t, int lane) {
    const float* logits = a.logits + std::int64_t{t} * a.count;
    const int each = 32 * (1 + a.copies);
    LaneChoice mine;
    const bool finite =
        choose_by_warp<kRouteEach>(logits, a.count, a.top_k, mine, [&](int n, std::uint32_t id) {
            if (lane == 0) choice.expert[n] = static_cast<std::int32_t>(id);
            __syncwarp();
            arrive_at(kFound + n, each);
        });
    int place = lane;
    if (finite) {
        place = place_by_warp(mine, a.top_k);
    } else {  // rare: the plain order of comparisons decides, and every weight is NaN
        if (lane == 0) route_plainly(logits, a.count, a.top_k, choice.expert, choice.weights);
        __syncwarp();
#pragma unroll 1
        for (int n = 0; n < a.top_k; ++n) arrive_at(kFound + n, each);
    }
    choice.place[lane] = place;
    __syncwarp();
    arrive_at(kPlaced, 32 * (1 + a.top_k * a.copies));
    if (blockIdx.x != 0) return;
    std::int32_t* ids = a.chosen + t * a.top_k;
    float* weights = a.weights + t * a.top_k;
    if (finite) {
        weigh_by_warp(mine, place, a.top_k, ids, weights, choice.space);
    } else if (lane < a.top_k) {
        ids[lane] = choice.expert[lane];
        weights[lane] = choice.weights[lane];
    }
    publish_to_next();
}

/// grid.y counts the step's rows. A unit is the rows of gate and of up that a warp works on together.
template <Format F, int kSets, bool kRoute>
__global__ void __launch_bounds__(32 * kMostUpWarps, 1) experts_up_step(const __grid_constant__ UpTask a) {
    constexpr int R = expert_rows(F), H = R / 2, kChunks = 32 * kSets;
    constexpr int kCodePitch = code_pitch_of_sets<F, kSets>, kScalePitch = scale_pitch_of_sets<F, kSets>;
    __shared__ Choice choice;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, t = static_cast<int>(blockIdx.y);
    if (!kRoute || blockIdx.x != 0) start_next();  // the first block publishes the choice before
    const int warp = thread / 32 - (kRoute ? 1 : 0), members = a.top_k + 1, workers = members * a.copies;
    if constexpr (kRoute)
        if (warp < 0) {
            await_previous();
            return choose(a, choice, t, lane);
        }
    SumBuffer& buffer = reinterpret_cast<SumBuffer*>(shared_bytes())[warp];
    auto* staged = reinterpret_cast<uint4*>(reinterpret_cast<SumBuffer*>(shared_bytes()) + workers);
    const int copy = warp >= members, nth = copy ? warp - members : warp;
    const bool shared = nth == a.top_k;
    const Groups m = shared ? a.shared : a.routed;
    const int width = shared ? a.shared_width : a.width,
              mine = (static_cast<int>(blockIdx.x) * a.copies + copy) * H;
    const bool any = mine < width;  // a warp without rows goes along
    const int first = any ? mine : 0;
    std::uint32_t group = 0;
    if (!shared) await_previous();
    if constexpr (!kRoute)
        if (!shared) group = static_cast<std::uint32_t>(a.experts[t * a.top_k + nth]);
    // The warps of the last choices stage the input: before their weights when they have to wait for the
    // choice.
    const int late = a.top_k / 2, stagers = a.top_k - late;
    const bool stages = !shared && nth >= late;
    const auto stage = [&] {
        stage_whole<F, kChunks>(a.x + std::int64_t{t} * (kChunks * num::kChunk), staged,
                                32 * (nth - late + copy * stagers) + lane, 32 * stagers * a.copies);
    };
    if (kRoute && stages) {
        stage();
        wait_at(kStaged, 32 * workers);
    }
    const std::uint8_t* codes = m.codes + static_cast<std::uint32_t>(first * kCodePitch + lane * kPiece);
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
            fetch_chunk(sets[s], r,
                        codes + (r / H) * codes_up + (r % H) * kCodePitch + s * pieces_of(F) * 32 * kPiece,
                        32 * kPiece, scales + (r / H) * scales_up + (r % H) * kScalePitch, s * 32 + lane);
    const float multiplier = m.multipliers ? m.multipliers[group * m.rows + multiplied] : 1.0f;
    if (shared) await_previous();  // its weights do not depend on the kernel before
    if (!kRoute && stages) stage();
    if (!kRoute || !stages) wait_at(kStaged, 32 * workers);
    OrderedSums<F, R, 1, false> sums(buffer, lane);
    each<kSets>([&](auto s) {
        float v[1][R];
        values_of<F, kChunks>(sets[s()], staged, s() * 32 + lane, v);
        sums.put(s(), true, v, sets[s()], s() + 1 == kSets);
    });
    const float y = m.multipliers ? multiplier * sums.total() : sums.total(),
                up = __shfl_sync(kWholeWarp, y, lane % H + H);
    const float value = num::expert_act(y, up);
    int place = nth;
    if constexpr (kRoute)
        if (!shared) {
            wait_at(kPlaced, 32 * (1 + a.top_k * a.copies));
            place = choice.place[nth];
        }
    float* act =
        shared ? a.shared_act + t * a.shared_stride : a.act + (std::int64_t{t} * a.top_k + place) * a.stride;
    if (any && lane < H) act[first + lane] = value;
}

// ---- down
// ----------------------------------------------------------------------------------------------------------

constexpr int kMostDownTop = 10, kMostDownWarps = 2 * (kMostDownTop + 1);  ///< 88 registers a thread
constexpr int kDownChunks = 16, kDownRows = static_cast<int>(kRowTile) / 2, kValuePitch = 20;

struct DownTask {
    Groups routed, shared;
    const std::int32_t* experts;
    const float* weights;
    const float* act;
    const float* shared_act;
    const float* shared_gate;
    float* out;
    std::int64_t stride;
    int top_k, rows;  ///< output rows
};

/// grid.x counts tiles of 16 output rows, grid.y the step's rows; a pair of warps for each expert, the shared
/// one last. Of the half of a tile that a warp has, the lower lanes have the even rows, a chunk a lane.
template <Format F>
__global__ void __launch_bounds__(32 * kMostDownWarps) experts_down_step(const __grid_constant__ DownTask a) {
    constexpr unsigned P = pieces_of(F), R = kDownRows / 2, kCodePitch = kDownChunks * P * kPiece,
                       kColumns = kDownChunks * num::kChunk;
    constexpr unsigned kScalePitch = static_cast<unsigned>(scale_pitch_of(F, kDownChunks)),
                       kInput = planes_of<F> * plane_pitch(kDownChunks);
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32, j = warp / 2,
                   half = warp % 2, t = blockIdx.y;
    const auto top_k = static_cast<unsigned>(a.top_k), chosen = t * top_k;
    const bool shared = j == top_k;
    start_next();
    const std::uint32_t group = shared ? 0u : static_cast<std::uint32_t>(__ldcg(a.experts + chosen + j));
    auto* inputs = reinterpret_cast<uint4*>(shared_bytes());  // [top_k + 1][kInput]
    auto* values =
        reinterpret_cast<float*>(inputs + (top_k + 1) * kInput);  // [2 * (top_k + 1)][kDownRows][kValuePitch]
    float* results = values + 2 * (top_k + 1) * (kDownRows * kValuePitch);  // [top_k + 1][16]
    uint4* staged = inputs + j * kInput;
    values += warp * (kDownRows * kValuePitch);
    const unsigned tile = blockIdx.x * unsigned{kRowTile}, first = tile + half * kDownRows, upper = lane / 16,
                   place = lane % 16;
    const float* x =
        shared ? a.shared_act + std::size_t{t} * kColumns : a.act + std::size_t{chosen + j} * kColumns;
    const Groups m = shared ? a.shared : a.routed;
    const std::uint8_t* codes =
        m.codes + ((first + upper) * kCodePitch + place * kPiece) + std::uint64_t{group} * m.code_bytes;
    const std::uint8_t* scales =
        m.scales + (first + upper) * kScalePitch + std::uint64_t{group} * m.scale_bytes;
    Fetched<F, R> f;
#pragma unroll
    for (unsigned i = 0; i < R; ++i)
        fetch_chunk(f, static_cast<int>(i), codes + 2 * i * kCodePitch, kDownChunks * kPiece,
                    scales + 2 * i * kScalePitch, static_cast<int>(place));
    const float multiplier = m.multipliers ? m.multipliers[group * m.rows + first + lane % kDownRows] : 1.0f;
    await_previous();
    float weight = 0.0f, gate = 0.0f;  // of the first warp, which adds up
    if (warp == 0) {
        if (lane < top_k) weight = a.weights[chosen + lane];
        gate = a.shared_gate[t];
    }
    stage_whole<F, kDownChunks>(x, staged, static_cast<int>(32 * half + lane), 64);
    if (warp == 0) gate = num::sigmoid(gate);
    wait_at(static_cast<int>(1 + j), 64);
    float v[1][R];
    values_of<F, kDownChunks>(f, staged, static_cast<int>(place), v);
#pragma unroll
    for (unsigned i = 0; i < R; ++i) values[(2 * i + upper) * kValuePitch + place] = v[0][i];
    __syncwarp();
    float segment = 0.0f;
#pragma unroll
    for (int i = 0; i < kDownChunks; i += 4) {
        const float4 c = *reinterpret_cast<const float4*>(values + lane % kDownRows * kValuePitch + i);
        segment = (((segment + c.x) + c.y) + c.z) + c.w;
    }
    const float total = 0.0f + segment;
    if (lane < kDownRows)
        results[j * kRowTile + half * kDownRows + lane] = m.multipliers ? multiplier * total : total;
    __syncthreads();
    if (warp != 0) return;
    float sum = 0.0f;
#pragma unroll
    for (unsigned i = 0; i < kMostDownTop; ++i) {
        const float w = __shfl_sync(kWholeWarp, weight, static_cast<int>(i));
        if (i < top_k) sum = num::expert_add(w, results[i * kRowTile + place], sum);
    }
    sum = num::expert_add(gate, results[top_k * kRowTile + place], sum);
    if (lane < kRowTile && tile + lane < static_cast<unsigned>(a.rows))
        a.out[t * a.stride + tile + lane] = sum;
}

/// Calls f with the format that both have; false when it is none of `formats`.
template <Format... formats, class Function>
bool with_format(const MatrixView& routed, const MatrixView& shared, Function f) {
    return routed.format == shared.format &&
           ((routed.format == formats && (f(std::integral_constant<Format, formats>{}), true)) || ...);
}

}  // namespace

bool experts_up_whole(const MatrixView& routed, const MatrixView& shared, const Routes& routes,
                      const float* logits, int experts, const float* x, std::int64_t rows, float* act,
                      std::int64_t stride, float* shared_act, std::int64_t shared_stride, const Card& card,
                      cudaStream_t stream) {
    constexpr int kSets = 2;
    const auto whole = [](const MatrixView& m) {
        return m.rows != 0 && near(m) && m.cols == kSets * 32 * num::kChunk &&
               m.rows / 2 % (expert_rows(m.format) / 2) == 0;
    };
    if (!whole(routed) || !whole(shared) || !aligned(x) || routes.top_k < 1 || routes.top_k > kMostTop)
        return false;
    if (logits && (experts > kMostRouted || routes.top_k > experts)) return false;
    UpTask a{groups_of(routed),
             groups_of(shared),
             routes.experts,
             logits,
             routes.experts,
             routes.weights,
             x,
             act,
             shared_act,
             stride,
             shared_stride,
             routes.top_k,
             routed.rows / 2,
             shared.rows / 2,
             experts,
             1};
    return with_format<Format::bf16, Format::fp8_row, Format::fp8_block, Format::nvfp4, Format::mxfp4>(
        routed, shared, [&](auto format) {
            constexpr Format F = format();
            constexpr auto most_bytes = [](int workers) {
                return static_cast<std::size_t>(workers) * sizeof(SumBuffer) +
                       std::size_t{planes_of<F>} * plane_pitch(32 * kSets) * kPiece;
            };
            static const bool allowed =
                (allow_shared(experts_up_step<F, kSets, true>, most_bytes(kMostUpWarps)),
                 allow_shared(experts_up_step<F, kSets, false>, most_bytes(kMostUpWarps)), true);
            static_cast<void>(allowed);
            const int each = expert_rows(F) / 2, units = std::max(a.width, a.shared_width) / each;
            a.copies = units > card.multiprocessors ? 2 : 1;
            const int workers = a.copies * (a.top_k + 1);
            // As in experts.cu: a kernel that chose the experts has ended before this one lets the next
            // begin.
            launch_when(
                logits, "experts_up",
                logits ? experts_up_step<F, kSets, true> : experts_up_step<F, kSets, false>,
                dim3(static_cast<unsigned>((units + a.copies - 1) / a.copies), static_cast<unsigned>(rows)),
                dim3(static_cast<unsigned>(32 * (workers + (logits ? 1 : 0)))), most_bytes(workers), stream,
                a);
        });
}

bool experts_down_segments(const MatrixView& routed, const MatrixView& shared, const Routes& routes,
                           const float* act, const float* shared_act, const float* shared_gate,
                           std::int64_t rows, float* out, std::int64_t stride, const Card&,
                           cudaStream_t stream) {
    const auto whole = [](const MatrixView& m) { return near(m) && m.cols == kDownChunks * num::kChunk; };
    if (!whole(routed) || !whole(shared) || !aligned(act) || !aligned(shared_act) || routes.top_k < 1 ||
        routes.top_k > kMostDownTop)
        return false;
    const DownTask a{groups_of(routed),
                     groups_of(shared),
                     routes.experts,
                     routes.weights,
                     act,
                     shared_act,
                     shared_gate,
                     out,
                     stride,
                     routes.top_k,
                     routed.rows};
    return with_format<Format::fp8_row, Format::nvfp4, Format::mxfp4>(routed, shared, [&](auto format) {
        constexpr Format F = format();
        const auto experts = static_cast<std::size_t>(a.top_k + 1);
        const std::size_t bytes = experts * (planes_of<F> * plane_pitch(kDownChunks) * kPiece +
                                             (2 * kDownRows * kValuePitch + kRowTile) * sizeof(float));
        static const bool allowed = (allow_shared(experts_down_step<F>, 64 * 1024), true);
        static_cast<void>(allowed);
        launch_early("experts_down", experts_down_step<F>,
                     dim3(static_cast<unsigned>(padded_rows(a.rows) / kRowTile), static_cast<unsigned>(rows)),
                     dim3(static_cast<unsigned>(64 * experts)), bytes, stream, a);
    });
}

}  // namespace ftmpi::cuda
