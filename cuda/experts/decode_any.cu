// The chosen experts of few rows, and the shared expert beside them in the same launch.
//
// Bytes of one row at 8 + 1 experts of 512 x 2048 NVFP4: 10.6 MB up and gate (2.4 us at 4.5 TB/s), 5.3 MB
// down (1.2 us). Up: the rows of all experts are one flat list dealt to all warps. Down: a block owns 16
// output rows, a warp an expert; the experts' results meet in shared memory and are added in rising id.
#include <algorithm>

#include "../gemv/chunk_dot.cuh"
#include "../launch.hpp"
#include "experts.hpp"
#include "route.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kWarps =
    9;  ///< 264 blocks of them hold a warp for every four rows of nine experts of width 512
constexpr int kMostDownWarps = 16;
constexpr int kMixed = -1;
constexpr std::int64_t kManyRows = 16;  ///< from here on tiles

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
    MatrixView routed, shared;
    const std::int32_t* experts;
    const float* x;
    float* act;
    float* shared_act;
    std::int64_t stride, shared_stride;
    int top_k, width, shared_width;  ///< intermediate rows held here
    int units, shared_units;         ///< of one expert
    bool floats, codes;
    const float* logits;   ///< null when `experts` are already chosen
    int count;             ///< of experts
    std::int32_t* chosen;  ///< where the choice is to be left
    float* weights;
};

constexpr int kRouteEach = 8, kMostRouted = 32 * kRouteEach, kMostChoices = 32;

/// What the block found out about its row.
struct Choice {
    RouteSpace space;
    std::int32_t experts[kMostChoices];
    float weights[kMostChoices];
};

/// Gate and up rows `first` .. of one expert: act = silu(gate) * up.
template <Format F, bool Half>
__device__ __forceinline__ void up_unit(const MatrixView& m, int width, int first, const uint4* staged,
                                        SumBuffer& buffer, int lane, float* act) {
    constexpr int R = expert_rows(F), H = R / 2;
    const int sets = (m.chunks + 31) / 32, pitch = plane_pitch(m.chunks), place = Half ? lane & 15 : lane;
    const int mine = first + (Half && lane >= 16 ? H : 0), limit = width - mine;
    const RowSet rows{
        m.codes + mine * m.code_pitch, m.scales + mine * m.scale_pitch, m.code_pitch, m.scale_pitch,
        width * m.code_pitch,          width * m.scale_pitch,           m.chunks};
    OrderedSums<F, R, 1, Half> sums(buffer, lane);
    Fetched<F, R> current, next;
    fetch<F, R>(current, rows, 0, place, limit);
    for (int set = 0; set < sets; ++set) {
        if (set + 1 < sets) fetch<F, R>(next, rows, (set + 1) * 32, place, limit);
        const int chunk = set * 32 + place;
        const bool valid = chunk < m.chunks;
        float v[1][R];
        chunk_values<F, R, 1>(current, staged, 0, pitch, valid ? chunk : 0, v);
        sums.put(set, valid, v, current, set + 1 == sets);
        current = next;
    }
    const int r = (Half ? lane / 2 : lane) % R, i = first + (Half ? (lane & 1) * H : 0) + r % H;
    float y = sums.total();
    if (m.multipliers && i < width) y = m.multipliers[(r / H) * width + i] * y;
    const float up = __shfl_sync(kWholeWarp, y, Half ? 2 * (r % H + H) + (lane & 1) : r % H + H);
    if (lane < (Half ? 2 * H : H) && i < width) act[i] = num::expert_act(y, up);
}

template <Format F>
__device__ __forceinline__ void up_unit_of(const MatrixView& m, int width, int unit, const uint4* staged,
                                           SumBuffer& buffer, int lane, float* act) {
    const int first = unit * acts_per_unit(F, m.chunks);
    if (m.chunks <= 16) up_unit<F, true>(m, width, first, staged, buffer, lane, act);
    else up_unit<F, false>(m, width, first, staged, buffer, lane, act);
}

/// grid.y counts the step's rows. Known is the format of routed and shared experts, or kMixed: one body for
/// all formats needs many more registers. With kRoute every block chooses the experts itself, in one warp
/// while the others stage the input.
template <int Known, bool kRoute>
__global__ void __launch_bounds__(32 * kWarps, 2) experts_up_few(const __grid_constant__ UpTask a) {
    __shared__ Choice choice;
    auto* buffers = reinterpret_cast<SumBuffer*>(shared_bytes());
    auto* floats = reinterpret_cast<uint4*>(buffers + kWarps);
    const MatrixView& any = a.units ? a.routed : a.shared;
    uint4* codes = floats + (a.floats ? kFloatPlanes * plane_pitch(any.chunks) : 0);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, t = static_cast<int>(blockIdx.y);
    const float* x = a.x + static_cast<std::int64_t>(t) * any.cols;
    if (!kRoute || blockIdx.x != 0) start_next();  // the first block publishes the choice before
    await_previous();
    if (thread >= 32) {
        if (a.floats)
            stage_floats(x, any.cols, any.chunks, reinterpret_cast<float4*>(floats), thread - 32,
                         32 * (kWarps - 1));
        if (a.codes) stage_codes(GlobalRow{x}, any.cols, any.chunks, codes, thread - 32, 32 * (kWarps - 1));
    } else if (kRoute) {
        route_by_warp<kRouteEach>(a.logits + std::int64_t{t} * a.count, a.count, a.top_k, choice.experts,
                                  choice.weights, choice.space);
        __syncwarp();
        if (blockIdx.x == 0 && lane < a.top_k) {
            a.chosen[t * a.top_k + lane] = choice.experts[lane];
            a.weights[t * a.top_k + lane] = choice.weights[lane];
        }
        if (blockIdx.x == 0) publish_to_next();
    }
    __syncthreads();
    const auto expert_of = [&](int i) {
        return kRoute ? choice.experts[i] : a.experts[static_cast<std::int64_t>(t) * a.top_k + i];
    };
    const int routed_units = a.units * a.top_k, all = routed_units + a.shared_units;
    for (int unit = static_cast<int>(blockIdx.x) * kWarps + thread / 32; unit < all;
         unit += static_cast<int>(gridDim.x) * kWarps) {
        const bool shared = unit >= routed_units;
        const int nth = shared ? 0 : unit / a.units;
        const MatrixView m = shared ? a.shared : group_of(a.routed, expert_of(nth));
        float* act = shared ? a.shared_act + t * a.shared_stride
                            : a.act + (static_cast<std::int64_t>(t) * a.top_k + nth) * a.stride;
        const int width = shared ? a.shared_width : a.width,
                  u = shared ? unit - routed_units : unit % a.units;
        SumBuffer& buffer = buffers[thread / 32];
        switch (Known == kMixed ? m.format : static_cast<Format>(Known)) {
            case Format::bf16: up_unit_of<Format::bf16>(m, width, u, floats, buffer, lane, act); break;
            case Format::fp8_row: up_unit_of<Format::fp8_row>(m, width, u, floats, buffer, lane, act); break;
            case Format::fp8_block:
                up_unit_of<Format::fp8_block>(m, width, u, floats, buffer, lane, act);
                break;
            case Format::nvfp4: up_unit_of<Format::nvfp4>(m, width, u, codes, buffer, lane, act); break;
            case Format::mxfp4: up_unit_of<Format::mxfp4>(m, width, u, codes, buffer, lane, act); break;
        }
    }
}

struct DownTask {
    MatrixView routed, shared;
    const std::int32_t* experts;
    const float* weights;
    const float* act;
    const float* shared_act;
    const float* shared_gate;
    float* out;
    std::int64_t stride;
    int top_k, members;  ///< experts of a row: the chosen ones, and the shared one where there is one
    int staged;          ///< 16-byte units of one warp's input
};

/// 16 rows from `first` of one expert into y[16], with the warp's own input x.
template <Format F, bool Half>
__device__ __forceinline__ void down_rows(const MatrixView& m, int first, const float* x, uint4* staged,
                                          SumBuffer& buffer, int lane, float* y) {
    constexpr int R = rows_at_once(F), kUnitRows = R * (Half ? 2 : 1), H = half_of(R),
                  kUnits = static_cast<int>(kRowTile) / kUnitRows;
    const int sets = (m.chunks + 31) / 32, pitch = plane_pitch(m.chunks), place = Half ? lane & 15 : lane;
    const auto load = [&](Fetched<F, R>& f, int unit, int set) {
        const std::int64_t row = first + unit * kUnitRows + (Half && lane >= 16 ? R : 0);
        const RowSet rows{m.codes + row * m.code_pitch,
                          m.scales + row * m.scale_pitch,
                          m.code_pitch,
                          m.scale_pitch,
                          H * m.code_pitch,
                          H * m.scale_pitch,
                          m.chunks};
        fetch<F, R>(f, rows, set * 32, place, H);
    };
    OrderedSums<F, R, 1, Half> sums(buffer, lane);
    Fetched<F, R> current, next;
    load(current, 0, 0);
    if constexpr (is_4bit(F)) stage_codes(GlobalRow{x}, m.cols, m.chunks, staged, lane, 32);
    else stage_floats(x, m.cols, m.chunks, reinterpret_cast<float4*>(staged), lane, 32);
    __syncwarp();
    for (int unit = 0, set = 0; unit < kUnits;) {
        const bool last = set + 1 == sets;
        const int next_unit = last ? unit + 1 : unit, next_set = last ? 0 : set + 1;
        if (next_unit < kUnits) load(next, next_unit, next_set);
        const int chunk = set * 32 + place;
        const bool valid = chunk < m.chunks;
        float v[1][R];
        chunk_values<F, R, 1>(current, staged, 0, pitch, valid ? chunk : 0, v);
        sums.put(set, valid, v, current, last);
        const int r = Half ? lane / 2 : lane, row = unit * kUnitRows + (Half ? (lane & 1) * R : 0) + r;
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
__global__ void __launch_bounds__(32 * kMostDownWarps) experts_down_few(const __grid_constant__ DownTask a) {
    const int warps = static_cast<int>(blockDim.x) / 32, thread = static_cast<int>(threadIdx.x),
              warp = thread / 32, lane = thread % 32;
    auto* buffers = reinterpret_cast<SumBuffer*>(shared_bytes());
    auto* results = reinterpret_cast<float*>(buffers + warps);                    // [top_k + 1][16]
    auto* inputs = reinterpret_cast<uint4*>(results + (a.top_k + 1) * kRowTile);  // [warps][staged]
    const int first = static_cast<int>(blockIdx.x * kRowTile);
    const std::int64_t t = blockIdx.y;
    start_next();
    await_previous();
    for (int j = warp; j < a.members; j += warps) {
        const bool shared = j == a.top_k;
        const MatrixView m = shared ? a.shared : group_of(a.routed, a.experts[t * a.top_k + j]);
        const float* x = shared ? a.shared_act + t * m.cols : a.act + (t * a.top_k + j) * m.cols;
        uint4* staged = inputs + warp * a.staged;
        SumBuffer& buffer = buffers[warp];
        float* y = results + j * kRowTile;
        switch (Known == kMixed ? m.format : static_cast<Format>(Known)) {
            case Format::bf16: down_rows_of<Format::bf16>(m, first, x, staged, buffer, lane, y); break;
            case Format::fp8_row: down_rows_of<Format::fp8_row>(m, first, x, staged, buffer, lane, y); break;
            case Format::fp8_block:
                down_rows_of<Format::fp8_block>(m, first, x, staged, buffer, lane, y);
                break;
            case Format::nvfp4: down_rows_of<Format::nvfp4>(m, first, x, staged, buffer, lane, y); break;
            case Format::mxfp4: down_rows_of<Format::mxfp4>(m, first, x, staged, buffer, lane, y); break;
        }
        __syncwarp();  // before the input is overwritten by the warp's next expert's
    }
    __syncthreads();
    if (thread >= kRowTile || first + thread >= a.routed.rows) return;
    float sum = 0.0f;
    for (int j = 0; j < a.top_k; ++j)
        sum = num::expert_add(a.weights[t * a.top_k + j], results[j * kRowTile + thread], sum);
    if (a.members > a.top_k)
        sum = num::expert_add(num::sigmoid(a.shared_gate[t]), results[a.top_k * kRowTile + thread], sum);
    a.out[t * a.stride + first + thread] = sum;
}

/// Bytes of dynamic shared memory that a block of experts_up_few may take beside its own.
std::size_t most_dynamic(const Card& card) { return card.shared_per_block - sizeof(Choice); }

void check_shared(std::size_t bytes, const Card& card) {
    if (bytes > most_dynamic(card))
        refuse("experts whose input takes " + std::to_string(bytes) + " bytes of shared memory",
               "up to " + std::to_string(most_dynamic(card)) + " bytes on this GPU");
}

/// Shared memory of a block of experts_up_few that stages `planes` pieces, and of experts_down_few with
/// `warps` warps.
constexpr std::size_t up_bytes(std::size_t planes) { return kWarps * sizeof(SumBuffer) + planes * kPiece; }
constexpr std::size_t down_bytes(int warps, std::size_t planes, int top_k) {
    return static_cast<std::size_t>(warps) * (sizeof(SumBuffer) + planes * kPiece) +
           static_cast<std::size_t>(top_k + 1) * kRowTile * sizeof(float);
}

/// Calls f with the format that routed and shared experts have in common (a matrix without rows has any), or
/// kMixed.
template <class Function> void with_known(const MatrixView& routed, const MatrixView& shared, Function f) {
    const Format format = routed.rows ? routed.format : shared.format;
    if (routed.rows && shared.rows && routed.format != shared.format)
        return f(std::integral_constant<int, kMixed>{});
    switch (format) {
        case Format::bf16: return f(std::integral_constant<int, static_cast<int>(Format::bf16)>{});
        case Format::fp8_row: return f(std::integral_constant<int, static_cast<int>(Format::fp8_row)>{});
        case Format::fp8_block: return f(std::integral_constant<int, static_cast<int>(Format::fp8_block)>{});
        case Format::nvfp4: return f(std::integral_constant<int, static_cast<int>(Format::nvfp4)>{});
        case Format::mxfp4: return f(std::integral_constant<int, static_cast<int>(Format::mxfp4)>{});
    }
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

namespace {

void up(UpTask a, const Matrix& routed, const Matrix* shared, const Routes& routes, const float* x,
        std::int64_t rows, float* act, std::int64_t stride, float* shared_act, std::int64_t shared_stride,
        const Card& card, Scratch scratch, cudaStream_t stream) {
    a.routed = cuda_matrix(routed).view();
    a.shared = view_of(shared);
    if (rows == 0 || (a.routed.rows == 0 && a.shared.rows == 0)) return;
    if (a.routed.rows && a.shared.rows && a.routed.cols != a.shared.cols)
        throw Error(Exit::failure, "routed and shared experts differ in their number of columns");
    if (rows >= kManyRows)
        return experts_up_many(routed, shared, routes, x, rows, act, stride, shared_act, shared_stride,
                               scratch, stream);
    if (experts_up_whole(a.routed, a.shared, routes, a.logits, a.count, x, rows, act, stride, shared_act,
                         shared_stride, card, stream))
        return;
    a.experts = routes.experts;
    a.x = x;
    a.act = act;
    a.shared_act = shared_act;
    a.stride = stride;
    a.shared_stride = shared_stride;
    a.top_k = routes.top_k;
    a.width = a.routed.rows / 2;
    a.shared_width = a.shared.rows / 2;
    const int acts = acts_per_unit(a.routed.format, a.routed.chunks),
              shared_acts = acts_per_unit(a.shared.format, a.shared.chunks);
    a.units = (a.width + acts - 1) / acts;
    a.shared_units = (a.shared_width + shared_acts - 1) / shared_acts;
    a.codes = (a.units && is_4bit(a.routed.format)) || (a.shared_units && is_4bit(a.shared.format));
    a.floats = (a.units && !is_4bit(a.routed.format)) || (a.shared_units && !is_4bit(a.shared.format));
    const int pitch = plane_pitch(a.units ? a.routed.chunks : a.shared.chunks);
    const std::size_t bytes = up_bytes(static_cast<std::size_t>(pitch) *
                                       ((a.floats ? kFloatPlanes : 0) + (a.codes ? kCodePlanes : 0)));
    check_shared(bytes, card);
    const int units = a.units * a.top_k + a.shared_units,
              blocks = std::min((units + kWarps - 1) / kWarps, 4 * card.multiprocessors);
    with_known(a.routed, a.shared, [&](auto known) {
        constexpr int kKnown = decltype(known)::value;
        static const bool allowed = (allow_shared(experts_up_few<kKnown, false>, most_dynamic(card)),
                                     allow_shared(experts_up_few<kKnown, true>, most_dynamic(card)), true);
        static_cast<void>(allowed);
        // Experts chosen by a kernel of their own: that one must have ended before the kernel behind this one
        // reads them, early.
        launch_when(a.logits, "experts_up",
                    a.logits ? experts_up_few<kKnown, true> : experts_up_few<kKnown, false>,
                    dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows)), dim3(32 * kWarps),
                    bytes, stream, a);
    });
}

}  // namespace

void experts_up(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* x,
                std::int64_t rows, float* act, std::int64_t stride, float* shared_act,
                std::int64_t shared_stride, const Card& card, Scratch scratch, cudaStream_t stream) {
    up({}, routed, shared, routes, x, rows, act, stride, shared_act, shared_stride, card, scratch, stream);
}

void route_up(const float* logits, int experts, const Matrix& routed, const Matrix* shared,
              const Routes& routes, const float* x, std::int64_t rows, float* act, std::int64_t stride,
              float* shared_act, std::int64_t shared_stride, const Card& card, Scratch scratch,
              cudaStream_t stream) {
    UpTask a{};
    // A rank without rows here launches nothing, but needs the choice for its rows of down.
    const bool any = routed.rows != 0 || (shared && shared->rows != 0);
    if (any && rows < kManyRows && experts <= kMostRouted &&
        routes.top_k <= std::min(experts, kMostChoices)) {
        a.logits = logits;
        a.count = experts;
        a.chosen = routes.experts;
        a.weights = routes.weights;
    } else {
        route(logits, rows, experts, routes, stream);
    }
    up(a, routed, shared, routes, x, rows, act, stride, shared_act, shared_stride, card, scratch, stream);
}

void experts_down(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* act,
                  const float* shared_act, const float* shared_gate, std::int64_t rows, float* out,
                  std::int64_t stride, const Card& card, Scratch scratch, cudaStream_t stream) {
    DownTask a{};
    a.routed = cuda_matrix(routed).view();
    a.shared = view_of(shared);
    if (shared && a.routed.rows != a.shared.rows)
        throw Error(Exit::failure, "routed and shared experts differ in their number of output rows");
    if (rows == 0 || a.routed.rows == 0) return;
    if (rows >= kManyRows)
        return experts_down_many(routed, shared, routes, act, shared_act, shared_gate, rows, out, stride,
                                 scratch, stream);
    if (shared && experts_down_segments(a.routed, a.shared, routes, act, shared_act, shared_gate, rows, out,
                                        stride, card, stream))
        return;
    a.experts = routes.experts;
    a.weights = routes.weights;
    a.act = act;
    a.shared_act = shared_act;
    a.shared_gate = shared_gate;
    a.out = out;
    a.stride = stride;
    a.top_k = routes.top_k;
    a.members = a.top_k + (shared ? 1 : 0);
    const auto planes = [](const MatrixView& m) {
        return (is_4bit(m.format) ? kCodePlanes : kFloatPlanes) * plane_pitch(m.chunks);
    };
    a.staged = std::max(planes(a.routed), planes(a.shared));
    int warps = std::min(a.members, kMostDownWarps);
    const auto bytes_with = [&](int w) { return down_bytes(w, static_cast<std::size_t>(a.staged), a.top_k); };
    while (warps > 1 && bytes_with(warps) > most_dynamic(card)) --warps;
    check_shared(bytes_with(warps), card);
    const auto tiles = static_cast<unsigned>(padded_rows(a.routed.rows) / kRowTile);
    with_known(a.routed, a.shared, [&](auto known) {
        constexpr int kKnown = decltype(known)::value;
        static const bool allowed = (allow_shared(experts_down_few<kKnown>, card.shared_per_block), true);
        static_cast<void>(allowed);
        launch_early("experts_down", experts_down_few<kKnown>, dim3(tiles, static_cast<unsigned>(rows)),
                     dim3(static_cast<unsigned>(32 * warps)), bytes_with(warps), stream, a);
    });
}

}  // namespace ftmpi::cuda
