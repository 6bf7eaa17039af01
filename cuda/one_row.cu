// Matrices times one input row of whole sets of chunks: a step of decoding at the sizes of real models.
//
// At such sizes project_few spends most of its instructions on finding its way: 6.7 for each FP8 weight, where the products and the
// decoding take 2.5 (H200: 5.3 us of issue slots for 8192 + 4096 rows of 2048, which are read in 5.6 us). Here addresses and
// bounds are known to the compiler, and a set's registers are loaded again with the next rows' as soon as it has been used, so
// that eight loads a lane are always under way. Predicted for those rows: 3.2 instructions a weight, and with the start of a kernel and
// the norm 7 us. Measured: 9.3 us after 10.5; NVFP4 248320 x 2048 71 us after 93 (87% of the read rate). What is left above the read
// in small matrices is the way from the kernel's start to the first products, the norm included: about 4 us that nothing hides.
#include <algorithm>

#include "few_rows.cuh"
#include "whole_sets.cuh"

namespace ftmpi::cuda {
namespace {

/// Rows that a warp works on together: eight loads a lane.
__host__ __device__ constexpr int rows_of(Format f, int sets) { return std::clamp(8 / (pieces_of(f) * sets), 1, 4); }

constexpr unsigned bit_of(Format f) { return 1u << static_cast<int>(f); }
constexpr unsigned kCoded = bit_of(Format::nvfp4) | bit_of(Format::mxfp4);

/// The rows of format F, dealt to the warps from the one behind those that had the last rows of formats before.
template <Format F, int kSets>
__device__ __forceinline__ void run(const VecTask& a, const uint4* staged, SumBuffer& buffer, int warp, int warps, int lane, int& dealt) {
    constexpr int R = rows_of(F, kSets), kPitch = plane_pitch(32 * kSets), kFormat = static_cast<int>(F);
    const int units = a.units[kFormat], end = a.begin[kFormat + 1];
    int unit = warp - dealt % warps, matrix = a.begin[kFormat];
    if (unit < 0) unit += warps;
    dealt += units;
    if (unit >= units) return;

    struct Place {
        const std::uint8_t* codes;
        const std::uint8_t* scales;
        int matrix, row;
    };
    const auto place_of = [&](int u) {
        while (matrix + 1 < end && u >= a.matrices[matrix + 1].first_unit) ++matrix;
        const VecMatrix& m = a.matrices[matrix];
        const int row = (u - m.first_unit) * R;
        return Place{m.codes + std::int64_t{row} * code_pitch_of_sets<F, kSets> + lane * kPiece,
                     m.scales + std::int64_t{row} * scale_pitch_of_sets<F, kSets>, matrix, row};
    };
    Place here = place_of(unit);
    Fetched<F, R> sets[kSets];
    each<kSets>([&](auto s) { fetch_set<F, R, R, kSets, s()>(sets[s()], here.codes, here.scales, 0, lane); });
    OrderedSums<F, R, 1, false> sums(buffer, lane);
    for (;;) {
        const int next = unit + warps;
        const bool more = next < units;
        const Place then = more ? place_of(next) : here;
        each<kSets>([&](auto s) {
            float v[1][R];
            chunk_values<F, R, 1>(sets[s()], staged, 0, kPitch, s() * 32 + lane, v);
            Fetched<F, R> used;
#pragma unroll
            for (int r = 0; r < R; ++r) used.scale[r] = sets[s()].scale[r];
            if (more) fetch_set<F, R, R, kSets, s()>(sets[s()], then.codes, then.scales, 0, lane);
            sums.put(s(), true, v, used, s() + 1 == kSets);
        });
        const VecMatrix& m = a.matrices[here.matrix];
        if (const int row = here.row + lane; lane < R && row < m.rows) {
            const float total = sums.total();
            m.out[row] = m.multipliers ? m.multipliers[row] * total : total;
        }
        if (!more) return;
        unit = next;
        here = then;
    }
}

/// Bits of kMask: formats that occur.
template <int kSets, unsigned kMask>
__global__ void __launch_bounds__(kThreads, (kMask & kCoded) ? 2 : 3) one_row(const __grid_constant__ VecTask a) {
    constexpr int kChunks = 32 * kSets;
    auto* buffers = reinterpret_cast<SumBuffer*>(shared_bytes());
    auto* floats = reinterpret_cast<uint4*>(buffers + kWarps);
    uint4* codes = floats + ((kMask & ~kCoded) != 0 || a.norm.weight ? staged_floats(kChunks) : 0);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    float4 w[kWeights];
    load_norm_weights(a, w, thread);
    if (a.norm.weight) {
        stage_normed<1, kChunks>(a, w, reinterpret_cast<float*>(buffers), floats, thread);
        if constexpr ((kMask & kCoded) != 0)
            stage_codes(StagedRow{reinterpret_cast<const float4*>(floats), plane_pitch(kChunks)}, kChunks * num::kChunk, kChunks, codes, thread, kThreads);
    } else {
        if constexpr ((kMask & ~kCoded) != 0) stage_floats(a.x, kChunks * num::kChunk, kChunks, reinterpret_cast<float4*>(floats), thread, kThreads);
        if constexpr ((kMask & kCoded) != 0) stage_codes(GlobalRow{a.x}, kChunks * num::kChunk, kChunks, codes, thread, kThreads);
    }
    __syncthreads();
    // Neighbouring blocks take neighbouring rows, so that few rows are spread over all multiprocessors.
    const int warp = thread / 32 * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x), warps = static_cast<int>(gridDim.x) * kWarps;
    SumBuffer& buffer = buffers[thread / 32];
    int dealt = 0;
    if constexpr ((kMask & bit_of(Format::fp8_row)) != 0) run<Format::fp8_row, kSets>(a, floats, buffer, warp, warps, lane, dealt);
    if constexpr ((kMask & bit_of(Format::fp8_block)) != 0) run<Format::fp8_block, kSets>(a, floats, buffer, warp, warps, lane, dealt);
    if constexpr ((kMask & bit_of(Format::nvfp4)) != 0) run<Format::nvfp4, kSets>(a, codes, buffer, warp, warps, lane, dealt);
    if constexpr ((kMask & bit_of(Format::mxfp4)) != 0) run<Format::mxfp4, kSets>(a, codes, buffer, warp, warps, lane, dealt);
    if constexpr ((kMask & bit_of(Format::bf16)) != 0) run<Format::bf16, kSets>(a, floats, buffer, warp, warps, lane, dealt);
}

template <int kSets, unsigned kMask>
void launch_one(const VecTask& a, int units, const Card& card, cudaStream_t stream) {
    constexpr int kChunks = 32 * kSets;
    const std::size_t shared = kWarps * sizeof(SumBuffer) +
                               kPiece * (((kMask & ~kCoded) != 0 || a.norm.weight ? staged_floats(kChunks) : 0) + ((kMask & kCoded) != 0 ? staged_codes(kChunks) : 0));
    static const bool allowed = (allow_shared(one_row<kSets, kMask>, card.shared_per_block), true);
    static_cast<void>(allowed);
    const int most = ((kMask & kCoded) != 0 ? 2 : 3) * card.multiprocessors;
    const int blocks = std::min(std::max((units + kWarps - 1) / kWarps, std::min(units, card.multiprocessors)), most);
    launch("project", one_row<kSets, kMask>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), shared, stream, a);
}

template <int kSets>
bool launch_known(unsigned mask, const VecTask& a, int units, const Card& card, cudaStream_t stream) {
    constexpr unsigned bf16 = bit_of(Format::bf16), row = bit_of(Format::fp8_row), block = bit_of(Format::fp8_block),
                       nvfp4 = bit_of(Format::nvfp4), mxfp4 = bit_of(Format::mxfp4);
    switch (mask) {
        case bf16: return launch_one<kSets, bf16>(a, units, card, stream), true;
        case row: return launch_one<kSets, row>(a, units, card, stream), true;
        case block: return launch_one<kSets, block>(a, units, card, stream), true;
        case nvfp4: return launch_one<kSets, nvfp4>(a, units, card, stream), true;
        case mxfp4: return launch_one<kSets, mxfp4>(a, units, card, stream), true;
        case row | bf16: return launch_one<kSets, row | bf16>(a, units, card, stream), true;
        case block | bf16: return launch_one<kSets, block | bf16>(a, units, card, stream), true;
        default: return false;
    }
}

}  // namespace

bool project_one_row(std::span<const Projection> to, const float* x, const Norm& norm, const Card& card, cudaStream_t stream) {
    const int chunks = cuda_matrix(*to[0].matrix).view().chunks, sets = chunks / 32;
    if (chunks % 32 != 0 || to[0].matrix->cols != std::int64_t{chunks} * num::kChunk || (sets != 1 && sets != 2 && sets != 4)) return false;
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
            if (m.format != format || m.rows == 0) continue;
            a.matrices[count++] = {m.codes, m.scales, m.multipliers, m.code_pitch, m.scale_pitch, p.out, p.stride, m.rows, a.units[f]};
            a.units[f] += (m.rows + rows_of(format, sets) - 1) / rows_of(format, sets);
            mask |= bit_of(format);
        }
        units += a.units[f];
    }
    a.begin[kFormats] = count;
    return sets == 1   ? launch_known<1>(mask, a, units, card, stream)
           : sets == 2 ? launch_known<2>(mask, a, units, card, stream)
                       : launch_known<4>(mask, a, units, card, stream);
}

}  // namespace ftmpi::cuda
