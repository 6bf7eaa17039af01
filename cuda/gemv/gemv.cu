// Matrices times one input row of whole sets of chunks: a step of decoding at the sizes of real models.
//
// At such sizes gemv_any spends most of its instructions on finding its way. Here addresses and bounds are
// known to the compiler, and a set's registers are loaded again with the next rows' as soon as it has been
// used, so that eight loads a lane are always under way. A warp's first rows, and every row's multiplier, are
// asked for before the input is there, in part before the kernel before has ended. On an H200 NVFP4 248320 x
// 2048 takes 76 us with its start (84% of the read rate). A second unit waiting in shared memory was slower:
// its copies and the waiting for them cost more than the earlier request gained.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <algorithm>

#include "fixed_width.cuh"
#include "row_input.cuh"

namespace ftmpi::cuda {
namespace {

/// Rows that a warp works on together: eight loads a lane.
__host__ __device__ constexpr int rows_of(Format f, int sets) {
    return std::clamp(8 / (words128_of(f) * sets), 1, 4);
}

using FixedFormats = FormatList<Format::bf16, Format::nvfp4, Format::mxfp4>;

/// The rows of a kernel, dealt to the warps.
template <Format F, int kSets> class WarpRows {
public:
    __device__ __forceinline__ WarpRows(const VecTask& a, int warp, int warps, int lane)
        : a_(a), warps_(warps), lane_(lane), unit_(warp), matrix_(a.begin[kFormat]) {}
    /// Asks for the warp's first rows.
    __device__ __forceinline__ void ask() {
        if (unit_ >= a_.units[kFormat]) return;
        here_ = position_of(unit_);
        each<kSets>(
            [&](auto s) { fetch_set<F, R, R, kSets, s()>(sets_[s()], here_.codes, here_.scales, 0, lane_); });
        multiplier_ = multiplier_of(here_);
    }
    /// After ask(), with the input staged.
    __device__ __forceinline__ void run(const uint4* staged, SumBuffer& buffer) {
        const int units = a_.units[kFormat];
        if (unit_ >= units) return;
        OrderedSums<F, R, 1, false> sums(buffer, lane_);
        for (;;) {
            const int next = unit_ + warps_;
            const bool more = next < units;
            const Position then = more ? position_of(next) : here_;
            const float multiplier = multiplier_;
            if (more) multiplier_ = multiplier_of(then);
            each<kSets>([&](auto s) {
                float v[1][R];
                chunk_values<F, R, 1>(sets_[s()], staged, 0, kPitch, s() * 32 + lane_, v);
                Fetched<F, R> used;
#pragma unroll
                for (int r = 0; r < R; ++r) used.scale[r] = sets_[s()].scale[r];
                if (more) fetch_set<F, R, R, kSets, s()>(sets_[s()], then.codes, then.scales, 0, lane_);
                sums.put(s(), true, v, used, s() + 1 == kSets);
            });
            const VecMatrix& m = a_.matrices[here_.matrix];
            if (const int row = here_.row + lane_; lane_ < R && row < m.rows) {
                const float total = sums.total();
                m.out[row] = m.multipliers ? multiplier * total : total;
            }
            if (!more) return;
            unit_ = next;
            here_ = then;
        }
    }

private:
    static constexpr int R = rows_of(F, kSets), kPitch = plane_pitch(32 * kSets),
                         kFormat = static_cast<int>(F);
    struct Position {
        const std::uint8_t* codes;
        const std::uint8_t* scales;
        int matrix, row;
    };
    __device__ __forceinline__ Position position_of(int u) {
        const int end = a_.begin[kFormat + 1];
        while (matrix_ + 1 < end && u >= a_.matrices[matrix_ + 1].first_unit) ++matrix_;
        const VecMatrix& m = a_.matrices[matrix_];
        const int row = (u - m.first_unit) * R;
        return Position{m.codes + std::int64_t{row} * code_pitch_of_sets<F, kSets> + lane_ * kWord128,
                        m.scales + std::int64_t{row} * scale_pitch_of_sets<F, kSets>, matrix_, row};
    }

    /// Of the lane's row: asked for with the rows, or it would be waited for when they are done.
    __device__ __forceinline__ float multiplier_of(const Position& p) const {
        const VecMatrix& m = a_.matrices[p.matrix];
        return m.multipliers && lane_ < R && p.row + lane_ < m.rows ? __ldg(m.multipliers + p.row + lane_)
                                                                    : 1.0f;
    }

    const VecTask& a_;
    int warps_, lane_, unit_, matrix_;
    float multiplier_;
    Position here_;
    Fetched<F, R> sets_[kSets];
};

/// Blocks on a multiprocessor: as many as the rows' registers leave room for.
constexpr int blocks_of(Format f, int sets) { return is_4bit(f) || sets == 4 ? 2 : 3; }

/// The first rows of a warp are asked for before the input is normed.
template <int kSets, Format F>
__global__ void __launch_bounds__(kThreads, blocks_of(F, kSets))
    gemv_fixed(const __grid_constant__ VecTask a) {
    constexpr int kChunks = 32 * kSets;
    constexpr bool kCodes = is_4bit(F);
    auto* buffers = reinterpret_cast<SumBuffer*>(shared_bytes());
    auto* floats = reinterpret_cast<uint4*>(buffers + kWarps);
    auto* staged = reinterpret_cast<float4*>(floats);
    uint4* codes = floats + staged_floats(kChunks);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    // Neighbouring blocks take neighbouring rows, so that few rows are spread over all multiprocessors.
    const int warp = thread / 32 * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
              warps = static_cast<int>(gridDim.x) * kWarps;
    SumBuffer& buffer = buffers[thread / 32];

    trigger_dependents();
    RowInput<kChunks> input(a, thread);
    WarpRows<F, kSets> rows(a, warp, warps, lane);
    rows.ask();
    wait_for_prerequisites();
    input.ask();
    if (a.norm.weight) input.template stage_normed<true>(staged, reinterpret_cast<float*>(buffers));
    else input.stage(staged);
    __syncthreads();
    if constexpr (kCodes) {
        stage_codes(StagedRow{staged, plane_pitch(kChunks)}, kChunks * num::kChunk, kChunks, codes, thread,
                    kThreads);
        __syncthreads();
    }
    rows.run(kCodes ? codes : floats, buffer);
}

template <int kSets, Format F>
void launch_one(const VecTask& a, int units, const Card& card, cudaStream_t stream) {
    constexpr int kChunks = 32 * kSets;
    const std::size_t shared = kWarps * sizeof(SumBuffer) +
                               kWord128 * (staged_floats(kChunks) + (is_4bit(F) ? staged_codes(kChunks) : 0));
    static const bool allowed = (allow_shared(gemv_fixed<kSets, F>, card.shared_per_block), true);
    static_cast<void>(allowed);
    const int most = blocks_of(F, kSets) * card.multiprocessors;
    const int blocks =
        std::min(std::max((units + kWarps - 1) / kWarps, std::min(units, card.multiprocessors)), most);
    launch_pdl("project", gemv_fixed<kSets, F>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), shared,
               stream, a);
}

template <int kSets>
void launch_known(Format format, const VecTask& a, int units, const Card& card, cudaStream_t stream) {
    with_format_of(FixedFormats{}, format, [&]<Format F>() { launch_one<kSets, F>(a, units, card, stream); });
}

}  // namespace

void gemv(std::span<const Projection> to, const float* x, const Norm& norm, const Card& card,
          cudaStream_t stream) {
    const int chunks = cuda_matrix(*to[0].matrix).view().chunks, sets = chunks / 32;
    VecTask a{};
    a.x = x;
    a.rows = 1;
    a.cols = chunks * num::kChunk;
    a.chunks = chunks;
    a.norm = norm;
    int count = 0, units = 0;
    for (int f = 0; f < kFormats; ++f) {
        a.begin[f] = count;
        const auto format = static_cast<Format>(f);
        for (const Projection& p : to) {
            const MatrixView& m = cuda_matrix(*p.matrix).view();
            if (m.format != format) continue;
            a.matrices[count++] = {m.codes, m.scales, m.multipliers, m.code_pitch, m.scale_pitch,
                                   p.out,   p.stride, m.rows,        a.units[f]};
            a.units[f] += (m.rows + rows_of(format, sets) - 1) / rows_of(format, sets);
        }
        units += a.units[f];
    }
    a.begin[kFormats] = count;
    (sets == 1   ? launch_known<1>
     : sets == 2 ? launch_known<2>
                 : launch_known<4>)(to[0].matrix->format, a, units, card, stream);
}

}  // namespace ftmpi::cuda
