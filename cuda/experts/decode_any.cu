// The chosen experts of few rows, and the shared expert beside them in the same launch.
//
// Bytes of one row at 8 + 1 experts of 512 x 2048 NVFP4: 10.6 MB up and gate (2.4 us at 4.5 TB/s), 5.3 MB
// down (1.2 us). Up: the rows of all experts are one flat list dealt to all warps. Down: a block owns 16
// output rows, a warp an expert; the experts' results meet in shared memory and are added in rising id.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <algorithm>

#include "../gemv/wide_dot.cuh"
#include "experts.hpp"
#include "route.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kWarps =
    9;  ///< 264 blocks of them hold a warp for every four rows of nine experts of width 512
constexpr int kMostDownWarps = 16;
constexpr int kMixed = -1;

__device__ __forceinline__ MatrixView group_of(MatrixView m, int group) {
    const std::int64_t row = group * m.padded;
    m.codes += row * m.code_pitch;
    m.scales += row * m.scale_pitch;
    if (m.multipliers) m.multipliers += row;
    return m;
}

__host__ __device__ inline int acts_per_unit(Format f, int chunks) {
    return expert_rows(f) / 2 * (chunks <= 16 ? 2 : 1);
}

struct UpTask {
    ExpertsUp e;
    int width, shared_width;          ///< intermediate rows held here
    int units = 0, shared_units = 0;  ///< of one expert
    bool floats = false, codes = false, wide = false;
};

/// What the block found out about its row.
struct Choice {
    RouteSpace space;
    std::int32_t experts[kMostChoices];
    float weights[kMostChoices];
};

/// Gate and up rows `first` .. of one expert: act = silu(gate) * up.
template <Format F, bool TwoRows>
__device__ __forceinline__ void up_unit(const MatrixView& m, int width, int first, const uint4* staged,
                                        SumBuffer& buffer, int lane, float* act) {
    constexpr int R = expert_rows(F), H = R / 2;
    const int sets = (m.chunks + 31) / 32, pitch = plane_pitch(m.chunks), place = TwoRows ? lane & 15 : lane;
    const int mine = first + (TwoRows && lane >= 16 ? H : 0), limit = width - mine;
    const RowSet rows{
        m.codes + mine * m.code_pitch, m.scales + mine * m.scale_pitch, m.code_pitch, m.scale_pitch,
        width * m.code_pitch,          width * m.scale_pitch,           m.chunks};
    RowSums<F, R, 1, TwoRows> sums(buffer, lane, staged, 0, pitch);
    Fetched<F, R> current, next;
    fetch<F, R>(current, rows, 0, place, limit);
    for (int set = 0; set < sets; ++set) {
        if (set + 1 < sets) fetch<F, R>(next, rows, (set + 1) * 32, place, limit);
        const int chunk = set * 32 + place;
        const bool valid = chunk < m.chunks;
        ChunkValue<F> v[1][R];
        chunk_values<F, R, 1>(current, staged, 0, pitch, valid ? chunk : 0, v);
        sums.put(set, valid, v, current, set + 1 == sets);
        current = next;
    }
    const int r = (TwoRows ? lane / 2 : lane) % R, i = first + (TwoRows ? (lane & 1) * H : 0) + r % H;
    float y = sums.total();
    if (m.multipliers && i < width) y = m.multipliers[(r / H) * width + i] * y;
    const float up = __shfl_sync(kWholeWarp, y, TwoRows ? 2 * (r % H + H) + (lane & 1) : r % H + H);
    if (lane < (TwoRows ? 2 * H : H) && i < width) act[i] = num::expert_act(y, up);
}

template <Format F>
__device__ __forceinline__ void up_unit_of(const MatrixView& m, int width, int unit, const uint4* staged,
                                           SumBuffer& buffer, int lane, float* act) {
    const int first = unit * acts_per_unit(F, m.chunks);
    if (m.chunks <= 16) up_unit<F, true>(m, width, first, staged, buffer, lane, act);
    else up_unit<F, false>(m, width, first, staged, buffer, lane, act);
}

/// f.operator()<F>() for Known, the format of all, or for `format`.
template <int Known, class Function>
__device__ __forceinline__ void with_known_format(Format format, Function f) {
    if constexpr (Known == kMixed) with_format_of(CommonFormats{}, format, f);
    else f.template operator()<static_cast<Format>(Known)>();
}

/// grid.y counts the step's rows. Known is the format of routed and shared experts, or kMixed: one body for
/// all formats needs many more registers. With kRoute every block chooses the experts itself, in one warp
/// while the others stage the input.
template <int Known, bool kRoute>
__global__ void __launch_bounds__(32 * kWarps, 2) experts_up_any(const __grid_constant__ UpTask a) {
    __shared__ Choice choice;
    auto* buffers = reinterpret_cast<SumBuffer*>(shared_bytes());
    auto* floats = reinterpret_cast<uint4*>(buffers + kWarps);
    const ExpertsUp& e = a.e;
    const int top_k = e.routes.top_k;
    const MatrixView& any = a.units ? e.routed : e.shared;
    uint4* codes = floats + (a.floats ? kFloatPlanes * plane_pitch(any.chunks) : 0);
    uint4* wide = codes + (a.codes ? kCodePlanes * plane_pitch(any.chunks) : 0);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, t = static_cast<int>(blockIdx.y);
    const float* x = e.x + static_cast<std::int64_t>(t) * any.cols;
    if (!kRoute || blockIdx.x != 0) trigger_dependents();  // the first block publishes the choice before
    wait_for_prerequisites();
    if (thread >= 32) {
        if (a.floats)
            stage_floats(x, any.cols, any.chunks, reinterpret_cast<float4*>(floats), thread - 32,
                         32 * (kWarps - 1));
        if (a.codes) stage_codes(GlobalRow{x}, any.cols, any.chunks, codes, thread - 32, 32 * (kWarps - 1));
        if (a.wide) stage_wide(GlobalRow{x}, any.cols, any.chunks, wide, thread - 32, 32 * (kWarps - 1));
    } else if (kRoute) {
        const int count = e.groups;
        route_by_warp<kRouteEach>(e.logits + std::int64_t{t} * count, count, top_k, choice.experts,
                                  choice.weights, choice.space);
        __syncwarp();
        if (blockIdx.x == 0 && lane < top_k) {
            e.routes.experts[t * top_k + lane] = choice.experts[lane];
            e.routes.weights[t * top_k + lane] = choice.weights[lane];
        }
        if (blockIdx.x == 0) publish_to_dependents();
    }
    __syncthreads();
    const auto expert_of = [&](int i) {
        return kRoute ? choice.experts[i] : e.routes.experts[static_cast<std::int64_t>(t) * top_k + i];
    };
    const int routed_units = a.units * top_k, all = routed_units + a.shared_units;
    for (int unit = static_cast<int>(blockIdx.x) * kWarps + thread / 32; unit < all;
         unit += static_cast<int>(gridDim.x) * kWarps) {
        const bool shared = unit >= routed_units;
        const int nth = shared ? 0 : unit / a.units;
        const MatrixView m = shared ? e.shared : group_of(e.routed, expert_of(nth));
        float* act = shared ? e.shared_act + t * e.shared_stride
                            : e.act + (static_cast<std::int64_t>(t) * top_k + nth) * e.stride;
        const int width = shared ? a.shared_width : a.width,
                  u = shared ? unit - routed_units : unit % a.units;
        SumBuffer& buffer = buffers[thread / 32];
        with_known_format<Known>(m.format, [&]<Format F>() {
            up_unit_of<F>(m, width, u, is_4bit(F) ? codes : is_fp8(F) ? wide : floats, buffer, lane, act);
        });
    }
}

struct DownTask {
    ExpertsDown e;
    int members;  ///< experts of a row: the chosen ones, and the shared one where there is one
    int staged;   ///< 16-byte units of one warp's input
};

/// 16 rows from `first` of one expert into y[16], with the warp's own input x.
template <Format F, bool TwoRows>
__device__ __forceinline__ void down_rows(const MatrixView& m, int first, const float* x, uint4* staged,
                                          SumBuffer& buffer, int lane, float* y) {
    constexpr int R = rows_at_once(F), kUnitRows = R * (TwoRows ? 2 : 1), H = half_of(R),
                  kUnits = static_cast<int>(kRowTile) / kUnitRows;
    const int sets = (m.chunks + 31) / 32, pitch = plane_pitch(m.chunks), place = TwoRows ? lane & 15 : lane;
    const auto load = [&](Fetched<F, R>& f, int unit, int set) {
        const std::int64_t row = first + unit * kUnitRows + (TwoRows && lane >= 16 ? R : 0);
        const RowSet rows{m.codes + row * m.code_pitch,
                          m.scales + row * m.scale_pitch,
                          m.code_pitch,
                          m.scale_pitch,
                          H * m.code_pitch,
                          H * m.scale_pitch,
                          m.chunks};
        fetch<F, R>(f, rows, set * 32, place, H);
    };
    RowSums<F, R, 1, TwoRows> sums(buffer, lane, staged, 0, pitch);
    Fetched<F, R> current, next;
    load(current, 0, 0);
    if constexpr (is_4bit(F)) stage_codes(GlobalRow{x}, m.cols, m.chunks, staged, lane, 32);
    else if constexpr (is_fp8(F)) stage_wide(GlobalRow{x}, m.cols, m.chunks, staged, lane, 32);
    else stage_floats(x, m.cols, m.chunks, reinterpret_cast<float4*>(staged), lane, 32);
    __syncwarp();
    for (int unit = 0, set = 0; unit < kUnits;) {
        const bool last = set + 1 == sets;
        const int next_unit = last ? unit + 1 : unit, next_set = last ? 0 : set + 1;
        if (next_unit < kUnits) load(next, next_unit, next_set);
        const int chunk = set * 32 + place;
        const bool valid = chunk < m.chunks;
        ChunkValue<F> v[1][R];
        chunk_values<F, R, 1>(current, staged, 0, pitch, valid ? chunk : 0, v);
        sums.put(set, valid, v, current, last);
        const int r = TwoRows ? lane / 2 : lane, row = unit * kUnitRows + (TwoRows ? (lane & 1) * R : 0) + r;
        if (last && r < R) y[row] = m.multipliers ? m.multipliers[first + row] * sums.total() : sums.total();
        current = next;
        unit = next_unit;
        set = next_set;
    }
}

template <Format F>
__device__ __forceinline__ void down_rows_of(const MatrixView& m, int first, const float* x, uint4* staged,
                                             SumBuffer& buffer, int lane, float* y) {
    if (m.chunks <= 16) down_rows<F, true>(m, first, x, staged, buffer, lane, y);
    else down_rows<F, false>(m, first, x, staged, buffer, lane, y);
}

/// grid.x counts tiles of 16 output rows, grid.y the step's rows.
template <int Known>
__global__ void __launch_bounds__(32 * kMostDownWarps) experts_down_any(const __grid_constant__ DownTask a) {
    const int warps = static_cast<int>(blockDim.x) / 32, thread = static_cast<int>(threadIdx.x),
              warp = thread / 32, lane = thread % 32;
    auto* buffers = reinterpret_cast<SumBuffer*>(shared_bytes());
    const ExpertsDown& e = a.e;
    const int top_k = e.routes.top_k;
    auto* results = reinterpret_cast<float*>(buffers + warps);                  // [top_k + 1][16]
    auto* inputs = reinterpret_cast<uint4*>(results + (top_k + 1) * kRowTile);  // [warps][staged]
    const int first = static_cast<int>(blockIdx.x * kRowTile);
    const std::int64_t t = blockIdx.y;
    trigger_dependents();
    wait_for_prerequisites();
    for (int j = warp; j < a.members; j += warps) {
        const bool shared = j == top_k;
        const MatrixView m = shared ? e.shared : group_of(e.routed, e.routes.experts[t * top_k + j]);
        const float* x = shared ? e.shared_act + t * m.cols : e.act + (t * top_k + j) * m.cols;
        uint4* staged = inputs + warp * a.staged;
        SumBuffer& buffer = buffers[warp];
        float* y = results + j * kRowTile;
        with_known_format<Known>(m.format,
                                 [&]<Format F>() { down_rows_of<F>(m, first, x, staged, buffer, lane, y); });
        __syncwarp();  // before the input is overwritten by the warp's next expert's
    }
    __syncthreads();
    if (thread >= kRowTile || first + thread >= e.routed.rows) return;
    float sum = 0.0f;
    for (int j = 0; j < top_k; ++j)
        sum = num::expert_add(e.routes.weights[t * top_k + j], results[j * kRowTile + thread], sum);
    if (a.members > top_k)
        sum = num::expert_add(num::sigmoid(e.shared_gate[t]), results[top_k * kRowTile + thread], sum);
    e.out[t * e.stride + first + thread] = sum;
}

/// Bytes of dynamic shared memory that a block of experts_up_any may take beside its own.
std::size_t most_dynamic(const Card& card) { return card.shared_per_block - sizeof(Choice); }

void check_shared(std::size_t bytes, const Card& card) {
    if (bytes > most_dynamic(card))
        refuse("experts whose input takes " + std::to_string(bytes) + " bytes of shared memory",
               "up to " + std::to_string(most_dynamic(card)) + " bytes on this GPU");
}

/// Shared memory of a block of experts_up_any that stages `planes` pieces, and of experts_down_any with
/// `warps` warps.
constexpr std::size_t up_bytes(std::size_t planes) { return kWarps * sizeof(SumBuffer) + planes * kWord128; }
constexpr std::size_t down_bytes(int warps, std::size_t planes, int top_k) {
    return static_cast<std::size_t>(warps) * (sizeof(SumBuffer) + planes * kWord128) +
           static_cast<std::size_t>(top_k + 1) * kRowTile * sizeof(float);
}

/// Those that routed and shared experts may have in common.
using KnownFormats =
    FormatList<Format::bf16, Format::fp8_row, Format::fp8_block, Format::nvfp4, Format::mxfp4, Format::f16>;

/// Calls f with the format that routed and shared experts have in common (a matrix without rows has any), or
/// kMixed.
template <class Function> void with_known(const MatrixView& routed, const MatrixView& shared, Function f) {
    const Format format = routed.rows ? routed.format : shared.format;
    if (routed.rows && shared.rows && routed.format != shared.format)
        return f(std::integral_constant<int, kMixed>{});
    with_format_of(KnownFormats{}, format,
                   [&]<Format F>() { f(std::integral_constant<int, static_cast<int>(F)>{}); });
}

}  // namespace

void check_experts_limits(const StepLimits& l, const Card& card) {
    if (l.experts == 0) return;
    check_sorted(l.rows, l.top_k, l.experts);
    const auto planes = [](std::int64_t cols) {  // of codes, which take less than floats
        return static_cast<std::size_t>(
            kCodePlanes * plane_pitch(static_cast<int>((cols + num::kChunk - 1) / num::kChunk)));
    };
    check_shared(up_bytes(planes(l.hidden)), card);
    check_shared(down_bytes(1, planes(std::max(l.expert_width, l.shared_width)), l.top_k), card);
}

void any_experts_up(const ExpertsUp& e, const Card& card, cudaStream_t stream) {
    UpTask a{.e = e, .width = e.routed.rows / 2, .shared_width = e.shared.rows / 2};
    const auto units_of = [](const MatrixView& m, int width) {
        const int acts = acts_per_unit(m.format, m.chunks);
        return (width + acts - 1) / acts;
    };
    a.units = units_of(e.routed, a.width);
    a.shared_units = units_of(e.shared, a.shared_width);
    for (const auto& [units, m] : {std::pair(a.units, &e.routed), std::pair(a.shared_units, &e.shared)})
        if (units) (is_4bit(m->format) ? a.codes : is_fp8(m->format) ? a.wide : a.floats) = true;
    const int pitch = plane_pitch(a.units ? e.routed.chunks : e.shared.chunks);
    const std::size_t bytes =
        up_bytes(static_cast<std::size_t>(pitch) *
                 ((a.floats ? kFloatPlanes : 0) + (a.codes ? kCodePlanes : 0) + (a.wide ? kWidePlanes : 0)));
    check_shared(bytes, card);
    const int units = a.units * e.routes.top_k + a.shared_units,
              blocks = std::min((units + kWarps - 1) / kWarps, 4 * card.multiprocessors);
    with_known(e.routed, e.shared, [&](auto known) {
        constexpr int kKnown = decltype(known)::value;
        allow_shared_once<experts_up_any<kKnown, false>>(most_dynamic(card));
        allow_shared_once<experts_up_any<kKnown, true>>(most_dynamic(card));
        // Experts chosen by a kernel of their own: that one must have ended before the kernel behind this one
        // reads them, early.
        launch_pdl_if(e.logits, "experts_up",
                      e.logits ? experts_up_any<kKnown, true> : experts_up_any<kKnown, false>,
                      dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(e.rows)), dim3(32 * kWarps),
                      bytes, stream, a);
    });
}

void any_experts_down(const ExpertsDown& e, const Card& card, cudaStream_t stream) {
    const auto planes = [](const MatrixView& m) { return planes_of(m.format) * plane_pitch(m.chunks); };
    const int top_k = e.routes.top_k;
    const DownTask a{.e = e,
                     .members = top_k + (e.shared.rows ? 1 : 0),
                     .staged = std::max(planes(e.routed), planes(e.shared))};
    int warps = std::min(a.members, kMostDownWarps);
    const auto bytes_with = [&](int w) { return down_bytes(w, static_cast<std::size_t>(a.staged), top_k); };
    while (warps > 1 && bytes_with(warps) > most_dynamic(card)) --warps;
    check_shared(bytes_with(warps), card);
    const auto tiles = static_cast<unsigned>(padded_rows(e.routed.rows) / kRowTile);
    with_known(e.routed, e.shared, [&](auto known) {
        constexpr int kKnown = decltype(known)::value;
        allow_shared_once<experts_down_any<kKnown>>(card.shared_per_block);
        launch_pdl("experts_down", experts_down_any<kKnown>, dim3(tiles, static_cast<unsigned>(e.rows)),
                   dim3(static_cast<unsigned>(32 * warps)), bytes_with(warps), stream, a);
    });
}

}  // namespace ftmpi::cuda
