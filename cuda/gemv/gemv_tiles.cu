// FP8 matrices, alone or with BF16 ones, times 2 to kManyRows - 1 rows of whole sets of chunks, on half
// precision tensor cores (fp8_tile.cuh): every weight is read and expanded once for up to eight rows.
//
// A kernel before norms the rows and codes them as digits; the products' kernel asks for its first weights
// meanwhile. There a team of warps has 16 rows of a matrix at a time, a warp 256 columns of them; the exact
// sums of all its tiles meet in shared memory at the end, where a thread rounds a segment. Rows of BF16 are
// fma chains as in gemv.cu, by the blocks with fewest tiles.
//
// Bytes and operations of 12288 + 64 rows of 2048: 25.4 MB, 5.6 us at 4.5 TB/s; for eight input rows 4.6 us
// of tensor cores.
#include <algorithm>

#include "fixed_width.cuh"
#include "fp8_tile.cuh"
#include "gemv_tiles.cuh"
#include "row_input.cuh"

namespace ftmpi::cuda {
namespace {

/// Norm and digits: a block a row, a warp a segment.
template <int kT, int kSets>
__global__ void __launch_bounds__(64 * kSets)
    code_rows_fp8(const __grid_constant__ TileTask a, uint4* to, float* units) {
    constexpr int kSegments = 2 * kSets, kCols = num::kSegment * kSegments;
    __shared__ float sums[kSegments];
    __shared__ alignas(16) float chains[kSegments][16 * kChainPitch];
    const int lane = static_cast<int>(threadIdx.x) % 32, s = static_cast<int>(threadIdx.x) / 32,
              t = static_cast<int>(blockIdx.x);
    const Norm& norm = a.v.norm;
    const auto at = [&](const float* row, int h) {  // quad h % 2 of octet h / 2 of the lane
        return reinterpret_cast<const float4*>(row) + 128 * s + 64 * (h / 2) + 2 * lane + h % 2;
    };
    const auto row_of = [&](const float* rows) { return rows + std::int64_t{t} * kCols; };
    trigger_dependents();
    float4 x[4], weight[4];
    if (norm.weight)
#pragma unroll
        for (int h = 0; h < 4; ++h) weight[h] = __ldg(at(norm.weight, h));
    wait_for_prerequisites();
#pragma unroll
    for (int h = 0; h < 4; ++h) x[h] = *at(row_of(norm.weight ? norm.from : a.v.x), h);
    if (norm.weight) {
        if (norm.plus)
#pragma unroll
            for (int h = 0; h < 4; ++h) {
                const float4 b = *at(row_of(norm.plus), h);
                x[h] = {x[h].x + b.x, x[h].y + b.y, x[h].z + b.z, x[h].w + b.w};
                *const_cast<float4*>(at(row_of(norm.sum), h)) = x[h];
            }
        float* chain = chains[s];
#pragma unroll
        for (int h = 0; h < 4; ++h) {
            const int octet = 32 * (h / 2) + lane;
            *reinterpret_cast<float4*>(chain + octet / 4 * kChainPitch + octet % 4 * 8 + 4 * (h % 2)) = x[h];
        }
        __syncwarp();
        float sum = 0.0f, segment = 0.0f;
#pragma unroll
        for (int k = 0; k < 8; ++k)
            sum = add_squares(*reinterpret_cast<const float4*>(chain + lane % 16 * kChainPitch + 4 * k), sum);
#pragma unroll
        for (int k = 0; k < 16; ++k) segment = segment + __shfl_sync(kWholeWarp, sum, k);
        if (lane == 0) sums[s] = segment;
        __syncthreads();
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < kSegments; ++k) total = total + sums[k];
        const float scale = num::rms_scale(total, kCols, norm.eps);
#pragma unroll
        for (int h = 0; h < 4; ++h) {
            x[h] = rms_apply(x[h], scale, weight[h]);
            *const_cast<float4*>(at(row_of(norm.out), h)) = x[h];
        }
    }
    const float v[16] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w,
                         x[2].x, x[2].y, x[2].z, x[2].w, x[3].x, x[3].y, x[3].z, x[3].w};
    constexpr int kUnits = 4 * kSegments;
    stage_segment<kT>(v, s, 16 * kUnits, t % kT, to + t / kT * digit_words(kT, kUnits),
                      units + t * kSegments + s, lane);
}

/// Bytes of shared memory before the partial sums.
template <int kT, int kSets>
constexpr std::size_t digit_bytes = std::size_t{digit_words(kT, 8 * kSets)} * kWord128;
template <int kT, bool kBlocks, int kSets>
constexpr std::size_t round_bytes = std::size_t{kPartBytes<kT>} *
                                    (kBlocks ? kPieceUnits : 1) * std::max(tile_warps(kT), 4 * kSets);

/// The next rows of a warp: 16 of one matrix, 256 columns.
struct TilePlace {
    const std::uint8_t* codes;  ///< of the lane
    int round, piece;
    bool any;
};

/// grid.y counts groups of kT input rows. The other format is BF16, or there is none.
template <int kT, Format F, bool kBf16, int kSets> class TileProducts {
public:
    static constexpr bool kBlocks = FormatTraits<F>::kBlockScaled;
    static constexpr int kFormat = static_cast<int>(F), kPieces = 4 * kSets, kSegments = 2 * kSets;
    static constexpr int kTileWarps = tile_warps(kT), kTileThreads = 32 * kTileWarps;
    static constexpr int kTeam = std::min(kTileWarps, kPieces), kTeams = kTileWarps / kTeam;
    static constexpr int kParts = kPieces * (kBlocks ? kPieceUnits : 1), kPart = kPartBytes<kT>;
    static constexpr int kPitch = code_pitch_of_sets<F, kSets>;
    static_assert(kPieces % kTeam == 0 && kSegments <= 32);

    __device__ __forceinline__ TileProducts(const TileTask& a, int thread)
        : a_(a), thread_(thread), lane_(thread % 32), team_(thread / 32 / kTeam),
          member_(thread / 32 % kTeam), rows_(min(a.v.rows - static_cast<int>(blockIdx.y) * kT, kT)) {}

    /// Asks for the warp's first weights, and for what the thread's first segment needs at the end.
    __device__ __forceinline__ void ask() {
        here_ = place_of(0, member_);
        if (here_.any)
#pragma unroll
            for (int q = 0; q < 4; ++q) load(here_, q);
        ask_scales(0, thread_);
    }
    __device__ __forceinline__ void run(const uint4* digits, const float* units, unsigned char* parts) {
        const int rounds = (a_.tiles + kTeams * blocks() - 1) / (kTeams * blocks());
        const uint4* mine = digits + lane_digits<kT>(lane_, rows_);
        for (int batch = 0; batch < rounds; batch += a_.kept) {
            if (batch) __syncthreads();
            while (here_.any && here_.round < batch + a_.kept)
                multiply(mine, parts + (((here_.round - batch) * kTeams + team_) * kParts) * kPart);
            __syncthreads();
            finish(batch, min(rounds - batch, a_.kept), units, parts);
        }
    }

private:
    static __device__ __forceinline__ int blocks() { return static_cast<int>(gridDim.x); }
    /// The last blocks are the first ones without tiles.
    __device__ __forceinline__ int tile_of(int round, int team) const {
        return (round * blocks() + static_cast<int>(blockIdx.x)) * kTeams + team;
    }
    __device__ __forceinline__ const VecMatrix& matrix_of(int tile) const {
        int m = a_.v.begin[kFormat];
        while (m + 1 < a_.v.begin[kFormat + 1] && tile >= a_.v.matrices[m + 1].first_unit) ++m;
        return a_.v.matrices[m];
    }
    __device__ __forceinline__ TilePlace place_of(int round, int piece) const {
        const int tile = tile_of(round, team_);
        TilePlace p{nullptr, round, piece, tile < a_.tiles};
        if (!p.any) return p;
        const VecMatrix& m = matrix_of(tile);
        p.codes = m.codes + std::int64_t{(tile - m.first_unit) * kTileHeight + lane_ / 4} * kPitch +
                  piece / 4 * (32 * num::kChunk) + (piece % 4 * kPieceChunks + lane_ % 4) * kWord128;
        return p;
    }
    /// Words q % 2 of the chunks of unit q / 2.
    __device__ __forceinline__ void load(const TilePlace& p, int q) {
        const std::uint8_t* from = p.codes + (q % 2 * 32 + q / 2 * kUnitChunks) * kWord128;
        upper_[q] = load_once(from);
        lower_[q] = load_once(from + 8 * kPitch);
    }
    __device__ __forceinline__ void multiply(const uint4* mine, unsigned char* part) {
        const bool last = here_.piece + kTeam >= kPieces;
        const TilePlace next =
            last ? place_of(here_.round + 1, member_) : place_of(here_.round, here_.piece + kTeam);
        const uint4* x = mine + digit_words(kT, kPieceUnits) * here_.piece;
        part += here_.piece * (kParts / kPieces) * kPart;
        TileSums<kT> sums;
        sums.clear();
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            multiply_words<kT>(upper_[q], lower_[q], x + q * 8 * kDigits * kT, sums);
            if (next.any) load(next, q);
            if (kBlocks && q == 1) {
                store_part<kT>(sums, part, lane_);
                part += kPart;
                sums.clear();
            }
        }
        store_part<kT>(sums, part, lane_);
        here_ = next;
    }

    // A thread has a segment of a row of a matrix and an input row; kSegments neighbours have all of them.
    struct Item {
        int slot, t, row, segment;
    };
    static __device__ __forceinline__ Item item_of(int i) {
        return {i / (kSegments * kTileHeight * kT), i / (kSegments * kTileHeight) % kT,
                i / kSegments % kTileHeight, i % kSegments};
    }
    __device__ __forceinline__ void ask_scales(int batch, int i) {
        const Item item = item_of(i);
        const int tile = tile_of(batch + item.slot / kTeams, item.slot % kTeams);
        if (tile >= a_.tiles) return;
        const VecMatrix& m = matrix_of(tile);
        const int row = (tile - m.first_unit) * kTileHeight + item.row;  // scales are padded as rows are
        if (m.multipliers && row < m.rows) multiplier_ = __ldg(m.multipliers + row);
        if constexpr (kBlocks)
            scales_ = __ldg(reinterpret_cast<const float4*>(
                                m.scales + row * std::int64_t{scale_pitch_of_sets<F, kSets>}) +
                            item.segment);
    }
    __device__ __forceinline__ void finish(int batch, int rounds, const float* units,
                                           const unsigned char* parts) {
        const int items = rounds * kTeams * kTileHeight * kT * kSegments;
        static_assert(kTileHeight * kSegments % 32 == 0);
#pragma unroll 1
        for (int i = thread_; i < items; i += kTileThreads) {  // whole warps
            const Item item = item_of(i);
            const int tile = tile_of(batch + item.slot / kTeams, item.slot % kTeams);
            if (tile >= a_.tiles || item.t >= rows_) continue;  // a warp's items have these in common
            if (i != thread_ || batch) ask_scales(batch, i);
            const unsigned char* from =
                parts + (item.slot * kParts + item.segment * (kParts / kSegments)) * kPart;
            float segment = 0.0f;
            if constexpr (kBlocks) {
                const float scale[4] = {scales_.x, scales_.y, scales_.z, scales_.w};
#pragma unroll
                for (int b = 0; b < 4; ++b)
                    segment = num::fma(float_of_exact(load_part<kT>(from + b * kPart, item.row, item.t)),
                                       scale[b], segment);
            } else {
                segment = float_of_exact(load_part<kT>(from, item.row, item.t) +
                                         load_part<kT>(from + kPart, item.row, item.t));
            }
            segment = segment * units[item.t * kSegments + item.segment];
            float total = 0.0f;
#pragma unroll
            for (int k = 0; k < kSegments; ++k)
                total = total + __shfl_sync(kWholeWarp, segment, k, kSegments);
            const VecMatrix& m = matrix_of(tile);
            const int row = (tile - m.first_unit) * kTileHeight + item.row;
            if (item.segment == 0 && row < m.rows)
                m.out[(static_cast<int>(blockIdx.y) * kT + item.t) * m.stride + row] =
                    m.multipliers ? multiplier_ * total : total;
        }
    }

    const TileTask& a_;
    int thread_, lane_, team_, member_, rows_;
    TilePlace here_;
    uint4 upper_[4], lower_[4];
    float multiplier_ = 1.0f;
    float4 scales_ = {0, 0, 0, 0};
};

/// One row: every block norms and codes it for itself.
template <Format F, bool kBf16, int kSets>
__global__ void __launch_bounds__(kThreads, 2) gemv_tiles_row(const __grid_constant__ TileTask a) {
    constexpr int kChunks = 32 * kSets;
    __shared__ float units[2 * kSets];
    __shared__ alignas(16) std::uint32_t most[8 * kSets];
    unsigned char* shared = shared_bytes();
    auto* floats = reinterpret_cast<float4*>(shared);
    auto* digits = reinterpret_cast<uint4*>(floats + staged_floats(kChunks));
    const int thread = static_cast<int>(threadIdx.x);
    trigger_dependents();
    TileProducts<1, F, kBf16, kSets> products(a, thread);
    products.ask();
    RowInput<kChunks> input(a.v, thread);
    wait_for_prerequisites();
    input.ask();
    if (a.v.norm.weight) input.template stage_normed<kBf16>(floats, reinterpret_cast<float*>(digits));
    else if (kBf16) input.stage(floats);
    input.template segments(
        most, [&](const float4& x, int quad, float inverse) { store_digit_quad(x, inverse, digits, quad); },
        units);
    __syncthreads();
    products.run(digits, units, reinterpret_cast<unsigned char*>(digits) + digit_bytes<1, kSets>);
    if constexpr (kBf16) {
        __syncthreads();
        multiply_bf16<1, kSets>(a, reinterpret_cast<SumBuffer*>(digits), reinterpret_cast<uint4*>(floats),
                                thread);
    }
}

template <int kT, Format F, bool kBf16, int kSets>
__global__ void __launch_bounds__(32 * tile_warps(kT), 1)
    gemv_tiles_rows(const __grid_constant__ TileTask a) {
    constexpr int kTileWarps = tile_warps(kT), kTileThreads = 32 * kTileWarps;
    constexpr int kUnits = 8 * kSets, kSegments = 2 * kSets, kWords = digit_words(kT, kUnits);
    __shared__ float units[kT * kSegments];
    unsigned char* shared = shared_bytes();
    auto* digits = reinterpret_cast<uint4*>(shared);
    const int thread = static_cast<int>(threadIdx.x), group = static_cast<int>(blockIdx.y);
    trigger_dependents();
    TileProducts<kT, F, kBf16, kSets> products(a, thread);
    products.ask();
    wait_for_prerequisites();
#pragma unroll 4
    for (int i = thread; i < kWords; i += kTileThreads)
        copy_async(digits + i, a.digits + std::int64_t{group} * kWords + i);
    close_copy_group();
    const int rows = min(a.v.rows - group * kT, kT);
    for (int i = thread; i < rows * kSegments; i += kTileThreads)
        units[i] = a.units[group * kT * kSegments + i];
    wait_copy_groups<0>();
    __syncthreads();
    products.run(digits, units, shared + digit_bytes<kT, kSets>);
    if constexpr (kBf16) {
        __syncthreads();
        auto* buffers = reinterpret_cast<SumBuffer*>(shared);
        multiply_bf16<kT, kSets>(a, buffers, reinterpret_cast<uint4*>(buffers + kTileWarps), thread);
    }
}

template <int kT, Format F, bool kBf16, int kSets>
void launch_tiles(TileTask a, const Card& card, uint4* digits, float* units, cudaStream_t stream) {
    using Products = TileProducts<kT, F, kBf16, kSets>;
    constexpr int kWarps = Products::kTileWarps, kMostBlocks = kT == 1 ? 2 : 1;
    constexpr std::size_t round = round_bytes<kT, Products::kBlocks, kSets>,
                          floats = staged_floats(32 * kSets) * kWord128,
                          first = digit_bytes<kT, kSets> + (kT == 1 ? floats : 0);
    const int blocks = std::min((a.tiles + Products::kTeams - 1) / Products::kTeams,
                                kMostBlocks * card.multiprocessors),
              deal = blocks * Products::kTeams, rounds = (a.tiles + deal - 1) / deal,
              rest = rounds * deal - a.tiles;
    const std::size_t most = card.shared_per_block - 1024,
                      shared = kT == 1 ? std::max(most / 2, first + round) : most;
    a.kept = std::clamp(static_cast<int>((shared - first) / round), 1, rounds);
    std::size_t bytes = first + static_cast<std::size_t>(a.kept) * round;
    if constexpr (kBf16) {
        const int rows = a.v.units[static_cast<int>(Format::bf16)];
        a.spread = std::min({blocks, rows, std::max((rows + kWarps - 1) / kWarps, rest / Products::kTeams)});
        bytes = std::max(bytes, kWarps * sizeof(SumBuffer) + kT * floats);
    }
    a.digits = digits;
    a.units = units;
    if constexpr (kT == 1) {
        allow_shared_once<gemv_tiles_row<F, kBf16, kSets>>(most);
        launch_pdl("project", gemv_tiles_row<F, kBf16, kSets>, dim3(static_cast<unsigned>(blocks)),
                   dim3(kThreads), bytes, stream, a);
    } else {
        launch_pdl("project", code_rows_fp8<kT, kSets>, dim3(static_cast<unsigned>(a.v.rows)),
                   dim3(64 * kSets), 0, stream, a, digits, units);
        allow_shared_once<gemv_tiles_rows<kT, F, kBf16, kSets>>(most);
        launch_pdl("project", gemv_tiles_rows<kT, F, kBf16, kSets>,
                   dim3(static_cast<unsigned>(blocks), static_cast<unsigned>((a.v.rows + kT - 1) / kT)),
                   dim3(32 * kWarps), bytes, stream, a);
    }
}

/// The format of FP8 in a mask, and whether BF16 is there too.
template <int kSets>
void launch_known(unsigned mask, const TileTask& a, const Card& card, uint4* digits, float* units,
                  cudaStream_t stream) {
    for_each_of(FormatList<Format::fp8_row, Format::fp8_block>{}, [&]<Format F>() {
        if (!(mask & bit_of(F))) return;
        const auto launch = [&]<bool kBf16>() {
            const auto fits = [&]<int kT>() {
                return digit_bytes<kT, kSets> + round_bytes<kT, FormatTraits<F>::kBlockScaled, kSets> +
                           1024 <=
                       card.shared_per_block;
            };
            if (a.v.rows > 4 && fits.template operator()<8>())
                launch_tiles<8, F, kBf16, kSets>(a, card, digits, units, stream);
            else if (a.v.rows > 2) launch_tiles<4, F, kBf16, kSets>(a, card, digits, units, stream);
            else if (a.v.rows > 1) launch_tiles<2, F, kBf16, kSets>(a, card, digits, units, stream);
            else launch_tiles<1, F, kBf16, kSets>(a, card, digits, units, stream);
        };
        if constexpr (kSets == 2)
            if (mask & bit_of(Format::bf16)) return launch.template operator()<true>();
        launch.template operator()<false>();
    });
}

}  // namespace

std::size_t gemv_tiles_scratch(std::int64_t rows, std::int64_t cols) {
    const auto padded = std::min<std::int64_t>(rows, kManyRows - 1) + 7;  // whole groups
    const std::int64_t segments = (cols + num::kSegment - 1) / num::kSegment;
    return static_cast<std::size_t>(padded * segments) * (kDigits * 2 * num::kSegment + sizeof(float)) + 256;
}

void gemv_tiles(std::span<const Projection> to, const float* x, std::int64_t rows, const Norm& norm,
                const Card& card, Scratch scratch, cudaStream_t stream) {
    const std::int64_t cols = to[0].matrix->cols;
    check_scratch("a projection", gemv_tiles_scratch(rows, cols), scratch);
    TileTask a{};
    a.v.x = x;
    a.v.rows = static_cast<int>(rows);
    a.v.cols = static_cast<int>(cols);
    a.v.chunks = cuda_matrix(*to[0].matrix).view().chunks;
    a.v.norm = norm;
    int count = 0;
    unsigned mask = 0;
    for (int f = 0; f < kFormats; ++f) {
        a.v.begin[f] = count;
        const auto format = static_cast<Format>(f);
        const int unit_rows = is_fp8(format) ? kTileHeight : 1;
        for (const Projection& p : to) {
            const MatrixView& m = cuda_matrix(*p.matrix).view();
            if (m.format != format) continue;
            a.v.matrices[count++] = {m.codes, m.scales, m.multipliers, m.code_pitch, m.scale_pitch,
                                     p.out,   p.stride, m.rows,        a.v.units[f]};
            a.v.units[f] += (m.rows + unit_rows - 1) / unit_rows;
            mask |= bit_of(format);
        }
        if (is_fp8(format)) a.tiles += a.v.units[f];
    }
    a.v.begin[kFormats] = count;
    Parts parts(scratch.data);
    const std::int64_t segments = cols / num::kSegment, groups = rows + 7;
    auto* digits = parts.take<uint4>(groups * segments * (kDigits * 2 * num::kSegment / kWord128));
    auto* units = parts.take<float>(groups * segments);
    (cols == 2048 ? launch_known<2> : launch_known<4>)(mask, a, card, digits, units, stream);
}

}  // namespace ftmpi::cuda
