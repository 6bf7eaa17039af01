// Matrices times the rows of a step.
//
// Few rows: the matrices' rows are dealt to all warps, four 16-byte loads a lane at a time with the next four under way.
// Bytes: every weight once per four input rows. One matrix-row set of 8192x2048 FP8 is 16.8 MB, 3.7 us at 4.5 TB/s.
#include <algorithm>
#include <utility>
#include <vector>

#include "chunk_dot.hpp"
#include "launch.hpp"
#include "tiles.hpp"
#include "tiles_fast.hpp"

namespace ftmpi::cuda {
namespace {

constexpr int kWarps = 8, kMatrices = 8;
constexpr int kFormats = 5;

struct VecMatrix {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    const float* multipliers;
    std::int64_t code_pitch, scale_pitch;
    float* out;
    std::int64_t stride;
    int rows;
    int first_unit;  ///< units of the matrices of the same format before this one
};

struct VecTask {
    VecMatrix matrices[kMatrices];
    int begin[kFormats + 1];  ///< matrices of format f are [begin[f], begin[f + 1])
    int units[kFormats];      ///< sets of rows that a warp works on together
    const float* x;
    int rows, cols, chunks;
    bool floats, codes;  ///< what must be staged
};

__host__ __device__ constexpr std::size_t staged_floats(int chunks) { return static_cast<std::size_t>(kFloatPlanes * plane_pitch(chunks)); }
__host__ __device__ constexpr std::size_t staged_codes(int chunks) { return static_cast<std::size_t>(kCodePlanes * plane_pitch(chunks)); }

std::size_t shared_of(int t, const VecTask& a) {
    return kWarps * sizeof(SumBuffer) +
           static_cast<std::size_t>(t) * kPiece * ((a.floats ? staged_floats(a.chunks) : 0) + (a.codes ? staged_codes(a.chunks) : 0));
}

template <Format F, int T, bool Half>
__device__ void run_format(const VecTask& a, const uint4* staged, SumBuffer& buffer, int warp, int warps, int lane) {
    constexpr int R = rows_at_once(F), kUnitRows = R * (Half ? 2 : 1), kFormat = static_cast<int>(F);
    const int units = a.units[kFormat], sets = (a.chunks + 31) / 32, pitch = plane_pitch(a.chunks);
    const int between = (is_4bit(F) ? kCodePlanes : kFloatPlanes) * pitch, place = Half ? lane & 15 : lane;
    const auto matrix_of = [&](int unit) {
        int m = a.begin[kFormat];
        while (m + 1 < a.begin[kFormat + 1] && unit >= a.matrices[m + 1].first_unit) ++m;
        return m;
    };
    const auto load = [&](Fetched<F, R>& f, int unit, int set) {
        const VecMatrix& m = a.matrices[matrix_of(unit)];
        const std::int64_t row = static_cast<std::int64_t>(unit - m.first_unit) * kUnitRows + (Half && lane >= 16 ? R : 0);
        constexpr int H = half_of(R);
        const RowSet rows{m.codes + row * m.code_pitch, m.scales + row * m.scale_pitch, m.code_pitch, m.scale_pitch,
                          H * m.code_pitch, H * m.scale_pitch, a.chunks};
        fetch<F, R>(f, rows, set * 32, place, H);
    };
    OrderedSums<F, R, T, Half> sums(buffer, lane);
    Fetched<F, R> current, next;
    int unit = warp, set = 0;
    if (unit < units) load(current, unit, 0);
    while (unit < units) {
        const bool last = set + 1 == sets;
        const int next_unit = last ? unit + warps : unit, next_set = last ? 0 : set + 1;
        if (next_unit < units) load(next, next_unit, next_set);
        const int chunk = set * 32 + place;
        const bool valid = chunk < a.chunks;
        float v[T][R];
        chunk_values<F, R, T>(current, staged, between, pitch, valid ? chunk : 0, v);
        sums.put(set, valid, v, current, last);
        if (last) {
            const VecMatrix& m = a.matrices[matrix_of(unit)];
            const int pair = Half ? lane / 2 : lane, r = pair % R, t = static_cast<int>(blockIdx.y) * T + pair / R;
            const int row = (unit - m.first_unit) * kUnitRows + (Half ? (lane & 1) * R : 0) + r;
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

/// grid.y counts groups of T input rows.
template <int T, bool Half>
__global__ void __launch_bounds__(32 * kWarps, 2) project_few(const __grid_constant__ VecTask a) {
    auto* buffers = reinterpret_cast<SumBuffer*>(shared_bytes());
    auto* floats = reinterpret_cast<uint4*>(buffers + kWarps);
    uint4* codes = floats + (a.floats ? T * staged_floats(a.chunks) : 0);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    for (int i = 0; i < T; ++i) {
        const int t = static_cast<int>(blockIdx.y) * T + i;
        const float* x = a.x + static_cast<std::int64_t>(t < a.rows ? t : a.rows - 1) * a.cols;
        if (a.floats) stage_floats(x, a.cols, a.chunks, reinterpret_cast<float4*>(floats + i * staged_floats(a.chunks)), thread, 32 * kWarps);
        if (a.codes) stage_codes(x, a.cols, a.chunks, codes + i * staged_codes(a.chunks), thread, 32 * kWarps);
    }
    __syncthreads();
    // Neighbouring warps of the grid take neighbouring rows.
    const int warp = static_cast<int>(blockIdx.x) * kWarps + thread / 32, warps = static_cast<int>(gridDim.x) * kWarps;
    SumBuffer& buffer = buffers[thread / 32];
    if (a.units[0]) run_format<Format::bf16, T, Half>(a, floats, buffer, warp, warps, lane);
    if (a.units[1]) run_format<Format::fp8_row, T, Half>(a, floats, buffer, warp, warps, lane);
    if (a.units[2]) run_format<Format::fp8_block, T, Half>(a, floats, buffer, warp, warps, lane);
    if (a.units[3]) run_format<Format::nvfp4, T, Half>(a, codes, buffer, warp, warps, lane);
    if (a.units[4]) run_format<Format::mxfp4, T, Half>(a, codes, buffer, warp, warps, lane);
}

template <int T, bool Half>
void launch_few(const VecTask& a, const Card& card, cudaStream_t stream) {
    const std::size_t shared = shared_of(T, a);
    static const bool allowed = (allow_shared(project_few<T, Half>, card.shared_per_block), true);
    static_cast<void>(allowed);
    const int units = *std::max_element(a.units, a.units + kFormats);
    const int blocks = std::min((units + kWarps - 1) / kWarps, 2 * card.multiprocessors);
    launch("project", project_few<T, Half>, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>((a.rows + T - 1) / T)),
           dim3(32 * kWarps), shared, stream, a);
}

template <bool Half>
void launch_few(const VecTask& a, const Card& card, cudaStream_t stream) {
    if (a.rows > 2 && shared_of(4, a) <= card.shared_per_block) return launch_few<4, Half>(a, card, stream);
    if (a.rows > 1 && shared_of(2, a) <= card.shared_per_block) return launch_few<2, Half>(a, card, stream);
    if (shared_of(1, a) <= card.shared_per_block) return launch_few<1, Half>(a, card, stream);
    throw Error(Exit::failure, "a matrix of " + std::to_string(a.cols) + " columns needs " + std::to_string(shared_of(1, a)) +
                                   " bytes of shared memory, the GPU gives a block " + std::to_string(card.shared_per_block));
}

constexpr std::int64_t kManyRows = 16;  ///< from here on tiles

void project_many(std::span<const Projection> to, const float* x, std::int64_t rows, std::int64_t cols, Scratch scratch, cudaStream_t stream) {
    CodedRows coded;
    coded.codes = static_cast<uint4*>(scratch.data);
    coded.units = reinterpret_cast<float*>(coded.codes + rows * coded_chunks(cols) * 4);
    bool done = false;
    for (const Format format : {Format::bf16, Format::fp8_row, Format::fp8_block, Format::nvfp4, Format::mxfp4}) {
        TileTask a;
        int tiles = 0;
        const auto queue = [&] {
            if (a.count == 0) return;
            if (is_4bit(format) && !std::exchange(done, true)) code_rows(x, rows, cols, coded, stream);
            (is_4bit(format) ? launch_4bit_tiles : launch_float_tiles)(TileKind::plain, a, format, tiles,
                                                                       static_cast<int>((rows + kTileInputs - 1) / kTileInputs), stream);
            a.count = tiles = 0;
        };
        a.rows = static_cast<int>(rows);
        for (const Projection& p : to) {
            const MatrixView& m = cuda_matrix(*p.matrix).view();
            if (m.format != format || m.rows == 0) continue;
            a.matrices[a.count++] = {m, x, coded, p.out, p.stride, tiles};
            tiles += (m.rows + kTileRows - 1) / kTileRows;
            if (a.count == kTileMatrices) queue();
        }
        queue();
    }
}

}  // namespace

std::size_t project_scratch(std::int64_t rows, std::int64_t cols) {
    const std::size_t coded = rows < kManyRows ? 0 : static_cast<std::size_t>(rows * coded_chunks(cols)) * CodedRows::bytes_per_chunk;
    return std::max(coded, fast_tiles_scratch(rows, cols));
}

void project(std::span<const Projection> to, const float* x, std::int64_t rows, const Card& card, Scratch scratch,
             cudaStream_t stream, bool fast) {
    if (to.empty() || rows == 0) return;
    const std::int64_t cols = to[0].matrix->cols;
    for (const Projection& p : to)
        if (p.matrix->cols != cols) throw Error(Exit::failure, "matrices of one step differ in their number of columns");
    if (fast) {  // however few the rows are; 4-bit weights have exact tensor cores of their own
        std::vector<Projection> floating, coded;
        for (const Projection& p : to) (is_4bit(p.matrix->format) ? coded : floating).push_back(p);
        if (!floating.empty()) fast_tiles(floating, x, rows, cols, scratch, stream);
        return project(coded, x, rows, card, scratch, stream);
    }
    if (rows >= kManyRows) return project_many(to, x, rows, cols, scratch, stream);
    for (std::size_t begin = 0; begin < to.size(); begin += kMatrices) {
        const auto part = to.subspan(begin, std::min<std::size_t>(kMatrices, to.size() - begin));
        VecTask a{};
        a.x = x;
        a.rows = static_cast<int>(rows);
        a.cols = static_cast<int>(cols);
        a.chunks = cuda_matrix(*to[0].matrix).view().chunks;
        const bool half = a.chunks <= 16;
        int count = 0;
        for (int f = 0; f < kFormats; ++f) {
            a.begin[f] = count;
            const auto format = static_cast<Format>(f);
            const int unit_rows = rows_at_once(format) * (half ? 2 : 1);
            for (const Projection& p : part) {
                const MatrixView& m = cuda_matrix(*p.matrix).view();
                if (m.format != format || m.rows == 0) continue;
                a.matrices[count++] = {m.codes, m.scales, m.multipliers, m.code_pitch, m.scale_pitch, p.out, p.stride, m.rows, a.units[f]};
                a.units[f] += (m.rows + unit_rows - 1) / unit_rows;
                (is_4bit(format) ? a.codes : a.floats) = true;
            }
        }
        a.begin[kFormats] = count;
        if (count == 0) continue;
        if (half)
            launch_few<true>(a, card, stream);
        else
            launch_few<false>(a, card, stream);
    }
}

}  // namespace ftmpi::cuda
