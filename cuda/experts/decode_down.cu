// Down of the chosen experts of few rows at fixed width: a block owns 16 output rows, a pair of warps an
// expert; the experts' results meet in shared memory and are added in rising id.
//
// Bytes of one row at 8 + 1 experts of 512 x 2048 NVFP4: 5.3 MB (1.2 us at 4.5 TB/s).
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include "decode.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kMostDownWarps = 2 * (kMostDownChoices + 1);  ///< 88 registers a thread
constexpr int kDownRows = static_cast<int>(kRowTile) / 2, kValuePitch = 20;

struct DownTask {
    ExpertsDown e;
    Groups routed, shared;
};

/// grid.x counts tiles of 16 output rows, grid.y the step's rows; a pair of warps for each expert, the shared
/// one last. Of the half of a tile that a warp has, the lower lanes have the even rows, a chunk a lane.
template <Format F>
__global__ void __launch_bounds__(32 * kMostDownWarps)
    experts_down_decode(const __grid_constant__ DownTask a) {
    constexpr unsigned P = words128_of(F), R = kDownRows / 2, kCodePitch = kDownChunks * P * kWord128,
                       kColumns = kDownChunks * num::kChunk;
    constexpr unsigned kScalePitch = static_cast<unsigned>(scale_pitch_of(F, kDownChunks)),
                       kInput = planes_of(F) * plane_pitch(kDownChunks);
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32, j = warp / 2,
                   half = warp % 2, t = blockIdx.y;
    const auto top_k = static_cast<unsigned>(a.e.routes.top_k), chosen = t * top_k;
    const bool shared = j == top_k;
    trigger_dependents();
    const std::uint32_t group =
        shared ? 0u : static_cast<std::uint32_t>(__ldcg(a.e.routes.experts + chosen + j));
    auto* inputs = reinterpret_cast<uint4*>(shared_bytes());  // [top_k + 1][kInput]
    auto* values =
        reinterpret_cast<float*>(inputs + (top_k + 1) * kInput);  // [2 * (top_k + 1)][kDownRows][kValuePitch]
    float* results = values + 2 * (top_k + 1) * (kDownRows * kValuePitch);  // [top_k + 1][16]
    uint4* staged = inputs + j * kInput;
    values += warp * (kDownRows * kValuePitch);
    const unsigned tile = blockIdx.x * unsigned{kRowTile}, first = tile + half * kDownRows, upper = lane / 16,
                   place = lane % 16;
    const float* x =
        shared ? a.e.shared_act + std::size_t{t} * kColumns : a.e.act + std::size_t{chosen + j} * kColumns;
    const Groups m = shared ? a.shared : a.routed;
    const std::uint8_t* codes =
        m.codes + ((first + upper) * kCodePitch + place * kWord128) + std::uint64_t{group} * m.code_bytes;
    const std::uint8_t* scales =
        m.scales + (first + upper) * kScalePitch + std::uint64_t{group} * m.scale_bytes;
    Fetched<F, R> f;
#pragma unroll
    for (unsigned i = 0; i < R; ++i)
        fetch_chunk(f, static_cast<int>(i), codes + 2 * i * kCodePitch, kDownChunks * kWord128,
                    scales + 2 * i * kScalePitch, static_cast<int>(place));
    const float multiplier = m.multipliers ? m.multipliers[group * m.rows + first + lane % kDownRows] : 1.0f;
    wait_for_prerequisites();
    float weight = 0.0f, gate = 0.0f;  // of the first warp, which adds up
    if (warp == 0) {
        if (lane < top_k) weight = a.e.routes.weights[chosen + lane];
        gate = a.e.shared_gate[t];
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
    for (unsigned i = 0; i < kMostDownChoices; ++i) {
        const float w = __shfl_sync(kWholeWarp, weight, static_cast<int>(i));
        if (i < top_k) sum = num::expert_add(w, results[i * kRowTile + place], sum);
    }
    sum = num::expert_add(gate, results[top_k * kRowTile + place], sum);
    if (lane < kRowTile && tile + lane < static_cast<unsigned>(a.e.routed.rows))
        a.e.out[t * a.e.stride + tile + lane] = sum;
}

}  // namespace

void decode_experts_down(const ExpertsDown& e, cudaStream_t stream) {
    const DownTask a{.e = e, .routed = groups_of(e.routed), .shared = groups_of(e.shared)};
    with_format(e.routed.format, [&]<Format F>() {
        if constexpr (is_4bit(F)) {  // more words of 16 bytes a lane are too many registers
            const auto experts = static_cast<std::size_t>(e.routes.top_k + 1);
            const std::size_t bytes = experts * (planes_of(F) * plane_pitch(kDownChunks) * kWord128 +
                                                 (2 * kDownRows * kValuePitch + kRowTile) * sizeof(float));
            allow_shared_once<experts_down_decode<F>>(64 * 1024);
            launch_pdl("experts_down", experts_down_decode<F>,
                       dim3(static_cast<unsigned>(padded_rows(e.routed.rows) / kRowTile),
                            static_cast<unsigned>(e.rows)),
                       dim3(static_cast<unsigned>(64 * experts)), bytes, stream, a);
        }
    });
}

}  // namespace ftmpi::cuda
