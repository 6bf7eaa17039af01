// Matrices times the rows of a step.
//
// Few rows: the matrices' rows are dealt to all warps, four 16-byte loads a lane at a time with the next four
// under way. Bytes: every weight once per four input rows. One matrix-row set of 8192x2048 FP8 is 16.8
// MB, 3.7 us at 4.5 TB/s.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <algorithm>

#include "gemv.cuh"

namespace ftmpi::cuda {
namespace {

std::size_t shared_of(int t, const VecTask& a) {
    return std::max(kWarps * sizeof(SumBuffer),
                    a.norm.weight ? static_cast<std::size_t>(norm_sums(t, a.chunks)) * sizeof(float) : 0) +
           static_cast<std::size_t>(t) * kWord128 *
               ((a.floats || a.norm.weight ? staged_floats(a.chunks) : 0) +
                (a.codes ? staged_codes(a.chunks) : 0) + (a.wide ? staged_wide(a.chunks) : 0));
}

template <Format F, int T, bool TwoRows>
__device__ void run_format(const VecTask& a, const uint4* staged, SumBuffer& buffer, int warp, int warps,
                           int lane) {
    constexpr int R = rows_at_once(F), kUnitRows = R * (TwoRows ? 2 : 1), kFormat = static_cast<int>(F);
    const int units = a.units[kFormat], sets = (a.chunks + 31) / 32, pitch = plane_pitch(a.chunks);
    const int between = planes_of(F) * pitch, place = TwoRows ? lane & 15 : lane;
    const auto matrix_of = [&](int unit) {
        int m = a.begin[kFormat];
        while (m + 1 < a.begin[kFormat + 1] && unit >= a.matrices[m + 1].first_unit) ++m;
        return m;
    };
    const auto load = [&](Fetched<F, R>& f, int unit, int set) {
        const VecMatrix& m = a.matrices[matrix_of(unit)];
        const std::int64_t row =
            static_cast<std::int64_t>(unit - m.first_unit) * kUnitRows + (TwoRows && lane >= 16 ? R : 0);
        constexpr int H = half_of(R);
        const RowSet rows{m.codes + row * m.code_pitch,
                          m.scales + row * m.scale_pitch,
                          m.code_pitch,
                          m.scale_pitch,
                          H * m.code_pitch,
                          H * m.scale_pitch,
                          a.chunks};
        fetch<F, R>(f, rows, set * 32, place, H);
    };
    RowSums<F, R, T, TwoRows> sums(buffer, lane, staged, between, pitch);
    Fetched<F, R> current, next;
    int unit = warp, set = 0;
    if (unit < units) load(current, unit, 0);
    while (unit < units) {
        const bool last = set + 1 == sets;
        const int next_unit = last ? unit + warps : unit, next_set = last ? 0 : set + 1;
        if (next_unit < units) load(next, next_unit, next_set);
        const int chunk = set * 32 + place;
        const bool valid = chunk < a.chunks;
        ChunkValue<F> v[T][R];
        chunk_values<F, R, T>(current, staged, between, pitch, valid ? chunk : 0, v);
        sums.put(set, valid, v, current, last);
        if (last) {
            const VecMatrix& m = a.matrices[matrix_of(unit)];
            const int pair = TwoRows ? lane / 2 : lane, r = pair % R,
                      t = static_cast<int>(blockIdx.y) * T + pair / R;
            const int row = (unit - m.first_unit) * kUnitRows + (TwoRows ? (lane & 1) * R : 0) + r;
            if (pair < R * T && t < a.rows && row < m.rows) {
                const float total = sums.total();
                m.out[t * m.stride + row] = m.multipliers ? m.multipliers[row] * total : total;
            }
        }
        current = next;
        unit = next_unit;
        set = next_set;
    }
}

/// grid.y counts groups of T input rows (any number of them for matrices of few rows). List: the formats that
/// occur; one body for more would need more registers.
template <class List, int T, bool TwoRows>
__global__ void __launch_bounds__(kThreads, 2) gemv_any_rows(const __grid_constant__ VecTask a) {
    auto* buffers = reinterpret_cast<SumBuffer*>(shared_bytes());
    const int norm_bytes = a.norm.weight ? norm_sums(T, a.chunks) * 4 : 0,
              first_bytes = static_cast<int>(kWarps * sizeof(SumBuffer));
    auto* floats = reinterpret_cast<uint4*>(
        shared_bytes() + (norm_bytes > first_bytes ? (norm_bytes + 15) / 16 * 16 : first_bytes));
    uint4* codes = floats + (a.floats || a.norm.weight ? T * staged_floats(a.chunks) : 0);
    uint4* wide = codes + (a.codes ? T * staged_codes(a.chunks) : 0);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    float4 w[kWeights];
    load_norm_weights(a, w, thread);
    if (a.norm.weight) {
        stage_normed<T>(a, w, reinterpret_cast<float*>(buffers), floats, thread);
        for (int i = 0; i < T; ++i) {
            const StagedRow row{reinterpret_cast<const float4*>(floats + i * staged_floats(a.chunks)),
                                plane_pitch(a.chunks)};
            if (a.codes)
                stage_codes(row, a.cols, a.chunks, codes + i * staged_codes(a.chunks), thread, kThreads);
            if (a.wide) stage_wide(row, a.cols, a.chunks, wide + i * staged_wide(a.chunks), thread, kThreads);
        }
    } else {
        for (int i = 0; i < T; ++i) {
            const int t = static_cast<int>(blockIdx.y) * T + i;
            const float* x = a.x + static_cast<std::int64_t>(t < a.rows ? t : a.rows - 1) * a.cols;
            if (a.floats)
                stage_floats(x, a.cols, a.chunks,
                             reinterpret_cast<float4*>(floats + i * staged_floats(a.chunks)), thread,
                             kThreads);
            if (a.codes)
                stage_codes(GlobalRow{x}, a.cols, a.chunks, codes + i * staged_codes(a.chunks), thread,
                            kThreads);
            if (a.wide)
                stage_wide(GlobalRow{x}, a.cols, a.chunks, wide + i * staged_wide(a.chunks), thread,
                           kThreads);
        }
    }
    __syncthreads();
    // Neighbouring blocks take neighbouring rows, so that few rows are spread over all multiprocessors.
    const int warp = thread / 32 * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
              warps = static_cast<int>(gridDim.x) * kWarps;
    SumBuffer& buffer = buffers[thread / 32];
    for_each_of(List{}, [&]<Format F>() {
        if (a.units[static_cast<int>(F)])
            run_format<F, T, TwoRows>(a,
                                      is_4bit(F)  ? codes
                                      : is_fp8(F) ? wide
                                                  : floats,
                                      buffer, warp, warps, lane);
    });
}

template <class List, int T, bool TwoRows>
void launch_rows(const VecTask& a, const Card& card, cudaStream_t stream) {
    const std::size_t shared = shared_of(T, a);
    static const bool allowed = (allow_shared(gemv_any_rows<List, T, TwoRows>, card.shared_per_block), true);
    static_cast<void>(allowed);
    const int units = *std::max_element(a.units, a.units + kFormats), groups = (a.rows + T - 1) / T;
    // Every block stages its group of inputs, so many groups share the GPU rather than each spreading over
    // it.
    const int share = std::max(2 * card.multiprocessors / groups, 1);
    const int blocks =
        groups < kManyRows / T
            ? std::min(std::max((units + kWarps - 1) / kWarps, std::min(units, card.multiprocessors)),
                       2 * card.multiprocessors)
            : std::min(units, share);
    launch("project", gemv_any_rows<List, T, TwoRows>,
           dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(groups)), dim3(kThreads), shared, stream,
           a);
}

[[noreturn]] void refuse_columns(std::int64_t cols, std::size_t needed, const Card& card) {
    refuse("a matrix of " + std::to_string(cols) + " columns, whose input takes " + std::to_string(needed) +
               " bytes of shared memory",
           "up to " + std::to_string(card.shared_per_block) + " bytes on this GPU");
}

template <class List, bool TwoRows>
void launch_gemv_any(const VecTask& a, const Card& card, cudaStream_t stream) {
    if (a.rows > 2 && shared_of(4, a) <= card.shared_per_block)
        return launch_rows<List, 4, TwoRows>(a, card, stream);
    if (a.rows > 1 && shared_of(2, a) <= card.shared_per_block)
        return launch_rows<List, 2, TwoRows>(a, card, stream);
    if (shared_of(1, a) <= card.shared_per_block) return launch_rows<List, 1, TwoRows>(a, card, stream);
    refuse_columns(a.cols, shared_of(1, a), card);
}

}  // namespace

void check_columns_limits(const StepLimits& l, const Card& card) {
    VecTask a{};
    a.cols = static_cast<int>(l.max_cols);
    a.chunks = static_cast<int>((l.max_cols + num::kChunk - 1) / num::kChunk);
    a.codes = true;  // the smaller of the two
    if (shared_of(1, a) > card.shared_per_block) refuse_columns(l.max_cols, shared_of(1, a), card);
}

namespace {

/// The matrices of `to` by format; `half`: VecTask of rows of at most 16 chunks.
VecTask task_of(std::span<const Projection> to, const float* x, std::int64_t rows, bool half) {
    VecTask a{};
    a.x = x;
    a.rows = static_cast<int>(rows);
    a.cols = static_cast<int>(to[0].matrix->cols);
    a.chunks = cuda_matrix(*to[0].matrix).view().chunks;
    int count = 0;
    for (int f = 0; f < kFormats; ++f) {
        a.begin[f] = count;
        const auto format = static_cast<Format>(f);
        const int unit_rows = rows_at_once(format) * (half ? 2 : 1);
        for (const Projection& p : to) {
            const MatrixView& m = cuda_matrix(*p.matrix).view();
            if (m.format != format) continue;
            a.matrices[count++] = {m.codes, m.scales, m.multipliers, m.code_pitch, m.scale_pitch,
                                   p.out,   p.stride, m.rows,        a.units[f]};
            a.units[f] += (m.rows + unit_rows - 1) / unit_rows;
            (is_4bit(format) ? a.codes : is_fp8(format) ? a.wide : a.floats) = true;
        }
    }
    a.begin[kFormats] = count;
    return a;
}

}  // namespace

bool gemv_any(std::span<const Projection> to, const float* x, std::int64_t rows, const Norm& norm,
              const Card& card, cudaStream_t stream) {
    for (std::size_t begin = 0; begin < to.size(); begin += kMatrices) {
        const auto part = to.subspan(begin, std::min<std::size_t>(kMatrices, to.size() - begin));
        const bool half = cuda_matrix(*part[0].matrix).view().chunks <= 16;
        VecTask a = task_of(part, x, rows, half);
        a.norm = norm;
        if (norm.weight && shared_of(1, a) > card.shared_per_block) return false;
        const bool common = bit_of(part[0].matrix->format) & bits_of(CommonFormats{});
        (common ? half ? launch_gemv_any<CommonFormats, true> : launch_gemv_any<CommonFormats, false>
         : half ? launch_gemv_any<OtherFormats, true>
                : launch_gemv_any<OtherFormats, false>)(a, card, stream);
    }
    return true;
}

}  // namespace ftmpi::cuda
