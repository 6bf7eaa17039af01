// Matrices times one input row of whole sets of chunks: a step of decoding at the sizes of real models.
//
// At such sizes gemv_any spends most of its instructions on finding its way: 6.7 for each FP8 weight,
// where the products and the decoding take 2.5 (H200: 5.3 us of issue slots for 8192 + 4096 rows of 2048,
// which are read in 5.6 us). Here addresses and bounds are known to the compiler, and a set's registers are
// loaded again with the next rows' as soon as it has been used, so that eight loads a lane are always under
// way. A warp's first rows, and every row's multiplier, are asked for before the input is there, in part
// before the kernel before has ended. In a step on an H200 those rows take 8 us from the end of the kernel
// before to their own, and NVFP4 248320 x 2048 takes 76 us with its start (84% of the read rate). A second
// unit waiting in shared memory was slower: its copies and the waiting for them cost more than the earlier
// request gained.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <algorithm>

#include "fixed_width.cuh"
#include "gemv.cuh"

namespace ftmpi::cuda {
namespace {

/// Rows that a warp works on together: eight loads a lane.
__host__ __device__ constexpr int rows_of(Format f, int sets) {
    return std::clamp(8 / (words128_of(f) * sets), 1, 4);
}

constexpr unsigned kCoded = bit_of(Format::nvfp4) | bit_of(Format::mxfp4);

/// The rows of format F in a kernel: dealt to the warps from the one behind those that had the last of the
/// `dealt` units before.
template <Format F, int kSets> class WarpRows {
public:
    __device__ __forceinline__ WarpRows(const VecTask& a, int warp, int warps, int lane, int dealt)
        : a_(a), warps_(warps), lane_(lane), unit_(warp - dealt % warps), matrix_(a.begin[kFormat]) {
        if (unit_ < 0) unit_ += warps;
    }
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

/// The input row: asked for at the start, staged as stage_floats() does it, normed before if there is a norm.
template <int kChunks> class Input {
public:
    /// Asks for the norm's weights.
    __device__ __forceinline__ Input(const VecTask& a, int thread) : a_(a), thread_(thread) {
        if (kEarly && a.norm.weight)
#pragma unroll
            for (int j = 0; j < kQuads; ++j) weight_[j] = weight_of(j);
    }
    /// Asks for the row.
    __device__ __forceinline__ void ask() {
        const auto* from = reinterpret_cast<const float4*>(a_.norm.weight ? a_.norm.from : a_.x);
        const auto* plus = reinterpret_cast<const float4*>(a_.norm.plus);
#pragma unroll
        for (int j = 0; j < kQuads; ++j) x_[j] = from[quad(j)];
        if (plus)
#pragma unroll
            for (int j = 0; j < kQuads; ++j) plus_[j] = plus[quad(j)];
    }
    __device__ __forceinline__ void stage(float4* staged) {
#pragma unroll
        for (int j = 0; j < kQuads; ++j) at(staged, j) = x_[j];
    }
    /// sum = from + plus, then the norm of it. Every block does it for itself, which costs less than a kernel
    /// of its own; one writes the results. `segments`: kChunks / 16 floats of shared memory.
    __device__ __forceinline__ void stage_normed(float4* staged, float* segments) {
        const bool writer = blockIdx.x == 0;
        if (a_.norm.plus) {
#pragma unroll
            for (int j = 0; j < kQuads; ++j) {
                x_[j] = {x_[j].x + plus_[j].x, x_[j].y + plus_[j].y, x_[j].z + plus_[j].z,
                         x_[j].w + plus_[j].w};
                if (writer) reinterpret_cast<float4*>(a_.norm.sum)[quad(j)] = x_[j];
            }
        }
        stage(staged);
        __syncthreads();
        if (thread_ < kChunks) {
            float chunk = 0.0f;
#pragma unroll
            for (int k = 0; k < kFloatPlanes; ++k) {
                const float4 v = staged[k * kPitch + thread_];
                chunk = num::fma(v.x, v.x, chunk);
                chunk = num::fma(v.y, v.y, chunk);
                chunk = num::fma(v.z, v.z, chunk);
                chunk = num::fma(v.w, v.w, chunk);
            }
            float segment = 0.0f;
#pragma unroll
            for (int k = 0; k < 16; ++k) segment = segment + __shfl_sync(kWholeWarp, chunk, k, 16);
            if (thread_ % 16 == 0) segments[thread_ / 16] = segment;
        }
        __syncthreads();
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < kChunks / 16; ++k) total = total + segments[k];
        const float scale = num::rms_scale(total, kChunks * num::kChunk, a_.norm.eps);
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
            const float4 w = kEarly ? weight_[j] : weight_of(j);
            const float4 y = {num::rms_apply(x_[j].x, scale, w.x), num::rms_apply(x_[j].y, scale, w.y),
                              num::rms_apply(x_[j].z, scale, w.z), num::rms_apply(x_[j].w, scale, w.w)};
            at(staged, j) = y;
            if (writer) reinterpret_cast<float4*>(a_.norm.out)[quad(j)] = y;
        }
    }

private:
    static constexpr int kQuads = kChunks * kFloatPlanes / kThreads, kPitch = plane_pitch(kChunks);
    static constexpr bool kEarly = kQuads <= 2;  // else they would not fit the registers
    static_assert(kQuads * kThreads == kChunks * kFloatPlanes && kChunks <= kThreads);
    __device__ __forceinline__ int quad(int j) const { return thread_ + j * kThreads; }
    __device__ __forceinline__ float4& at(float4* staged, int j) const {
        return staged[(quad(j) & 7) * kPitch + (quad(j) >> 3)];
    }
    __device__ __forceinline__ float4 weight_of(int j) const {
        return __ldg(reinterpret_cast<const float4*>(a_.norm.weight) + quad(j));
    }

    const VecTask& a_;
    int thread_;
    float4 x_[kQuads], plus_[kQuads], weight_[kQuads];
};

/// The format that is dealt first of those in a mask.
constexpr Format first_of(unsigned mask) {
    for (const Format f : {Format::fp8_row, Format::fp8_block, Format::nvfp4, Format::mxfp4})
        if (mask & bit_of(f)) return f;
    return Format::bf16;
}

/// Blocks on a multiprocessor: as many as the rows' registers leave room for.
constexpr int blocks_of(int sets, unsigned mask) {
    return (mask & kCoded) != 0 || (sets == 4 && mask != bit_of(Format::fp8_row)) ? 2 : 3;
}

/// kMask: formats that occur: one, or an FP8 format and BF16. The first rows of a warp are asked for before
/// the input is normed.
template <int kSets, unsigned kMask>
__global__ void __launch_bounds__(kThreads, blocks_of(kSets, kMask))
    gemv_fixed(const __grid_constant__ VecTask a) {
    constexpr int kChunks = 32 * kSets;
    constexpr Format kFirst = first_of(kMask);
    constexpr bool kCodes = (kMask & kCoded) != 0;
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
    Input<kChunks> input(a, thread);
    WarpRows<kFirst, kSets> first(a, warp, warps, lane, 0);
    first.ask();
    wait_for_prerequisites();
    input.ask();
    if (a.norm.weight) input.stage_normed(staged, reinterpret_cast<float*>(buffers));
    else input.stage(staged);
    __syncthreads();
    if constexpr (kCodes) {
        stage_codes(StagedRow{staged, plane_pitch(kChunks)}, kChunks * num::kChunk, kChunks, codes, thread,
                    kThreads);
        __syncthreads();
    }
    first.run(kCodes ? codes : floats, buffer);
    if constexpr (kFirst != Format::bf16 && (kMask & bit_of(Format::bf16)) != 0) {
        WarpRows<Format::bf16, kSets> rest(a, warp, warps, lane, a.units[static_cast<int>(kFirst)]);
        rest.ask();
        rest.run(floats, buffer);
    }
}

template <int kSets, unsigned kMask>
void launch_one(const VecTask& a, int units, const Card& card, cudaStream_t stream) {
    constexpr int kChunks = 32 * kSets;
    const std::size_t shared =
        kWarps * sizeof(SumBuffer) +
        kWord128 * (staged_floats(kChunks) + ((kMask & kCoded) != 0 ? staged_codes(kChunks) : 0));
    static const bool allowed = (allow_shared(gemv_fixed<kSets, kMask>, card.shared_per_block), true);
    static_cast<void>(allowed);
    const int most = blocks_of(kSets, kMask) * card.multiprocessors;
    const int blocks =
        std::min(std::max((units + kWarps - 1) / kWarps, std::min(units, card.multiprocessors)), most);
    launch_pdl("project", gemv_fixed<kSets, kMask>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
               shared, stream, a);
}

template <int kSets>
void launch_known(unsigned mask, const VecTask& a, int units, const Card& card, cudaStream_t stream) {
    for_each_of(CommonFormats{}, [&]<Format F>() {
        constexpr unsigned alone = bit_of(F), bf16 = bit_of(Format::bf16);
        if (mask == alone) launch_one<kSets, alone>(a, units, card, stream);
        if constexpr (F != Format::bf16 && !is_4bit(F))
            if (mask == (alone | bf16)) launch_one<kSets, alone | bf16>(a, units, card, stream);
    });
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
    unsigned mask = 0;
    for (int f = 0; f < kFormats; ++f) {
        a.begin[f] = count;
        const auto format = static_cast<Format>(f);
        for (const Projection& p : to) {
            const MatrixView& m = cuda_matrix(*p.matrix).view();
            if (m.format != format) continue;
            a.matrices[count++] = {m.codes, m.scales, m.multipliers, m.code_pitch, m.scale_pitch,
                                   p.out,   p.stride, m.rows,        a.units[f]};
            a.units[f] += (m.rows + rows_of(format, sets) - 1) / rows_of(format, sets);
            mask |= bit_of(format);
        }
        units += a.units[f];
    }
    a.begin[kFormats] = count;
    (sets == 1   ? launch_known<1>
     : sets == 2 ? launch_known<2>
                 : launch_known<4>)(mask, a, units, card, stream);
}

}  // namespace ftmpi::cuda
