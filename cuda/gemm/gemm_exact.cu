// Tiles of BF16, F16 and F32 weights: fma chains in registers.
//
// 128 threads, 8 x 8 results each (8 x 4 for at most 32 inputs). A stage is one chunk of 32 columns: decoded
// weights and inputs lie in shared memory by column, the next chunk's are on their way in registers. A
// chunk's chain starts at +0, so there are two sets of accumulators in registers (chunk and segment) and the
// outer sums, touched every 512 columns, lie in shared memory. Of 2350 instructions a
// stage 2048 are fmas: at most 87% of the fma rate.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <type_traits>

#include "../gemv/chunk_dot.cuh"
#include "gemm.hpp"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 128;

/// Shared memory in floats: two stages of weights and inputs, then the outer sums of every thread.
template <int Q> struct Shape {
    static constexpr int kInputs = 32 * Q, kResults = 8 * 4 * Q;
    static constexpr int kA = num::kChunk * kTileRows, kB = num::kChunk * kInputs;
    static constexpr int kStage = kA + kB;
    static constexpr std::size_t kBytes = sizeof(float) * (2 * kStage + kResults * kThreads);
};

/// What a thread has under way of the next stage: its row's chunk, and 2 * Q times four columns of inputs.
template <Format F, int Q> struct Ahead {
    uint4 codes[words128_of(F)];
    float4 x[2 * Q];
};

/// Inputs [part, part + 32 * Q) of the tile.
template <Format F, TileKind Kind, int Q>
__device__ __forceinline__ void float_tile(const TileTask& a, const TileExtent& p, int part) {
    using S = Shape<Q>;
    constexpr int P = words128_of(F), C = 4 * Q;  // pieces of a chunk, result columns of a thread
    auto* shared = reinterpret_cast<float*>(shared_bytes());
    float* total =
        shared + 2 * S::kStage + static_cast<int>(threadIdx.x);  // element e at total[e * kThreads]
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, ty = thread / 8, tx = thread % 8;
    const int chunks = p.m.chunks, cols = p.m.cols;

    // This thread brings tile row `thread`, and columns 4 * quad .. of inputs token, token + 16, ...
    const bool upper = thread >= kTileRows / 2;
    const int row = upper ? p.high + thread - kTileRows / 2 : p.low + thread, quad = lane % 8,
              token = thread / 32 * 4 + lane / 8;
    const bool has_row = row < (upper ? p.high_limit : p.low_limit);
    const std::uint8_t* codes = p.m.codes + row * p.m.code_pitch;
    const float* inputs[2 * Q];
#pragma unroll
    for (int i = 0; i < 2 * Q; ++i)
        inputs[i] =
            p.matrix->x + static_cast<std::int64_t>(input_row<Kind>(a, p, part + token + 16 * i)) * cols;
    const bool wide = cols % 4 == 0 && (reinterpret_cast<std::uintptr_t>(p.matrix->x) & 15) == 0;

    const auto bring = [&](Ahead<F, Q>& n, int c) {
        const int set = c / 32 * 32, size = chunks - set < 32 ? chunks - set : 32;
#pragma unroll
        for (int i = 0; i < P; ++i)
            n.codes[i] = has_row
                             ? __ldg(reinterpret_cast<const uint4*>(codes) + set * P + i * size + (c - set))
                             : make_uint4(0, 0, 0, 0);
        const int k = c * num::kChunk + 4 * quad;
#pragma unroll
        for (int i = 0; i < 2 * Q; ++i) {
            if (wide && k + 4 <= cols) {
                n.x[i] = *reinterpret_cast<const float4*>(inputs[i] + k);
            } else {
                n.x[i].x = k < cols ? inputs[i][k] : 0.0f;
                n.x[i].y = k + 1 < cols ? inputs[i][k + 1] : 0.0f;
                n.x[i].z = k + 2 < cols ? inputs[i][k + 2] : 0.0f;
                n.x[i].w = k + 3 < cols ? inputs[i][k + 3] : 0.0f;
            }
        }
    };
    // Weights at [column][row]. Inputs at [column][input], quads of inputs permuted by the column's quad: no
    // bank conflicts.
    const auto put = [&](const Ahead<F, Q>& n, float* stage) {
        float* w = stage + thread;
#pragma unroll
        for (int i = 0; i < P; ++i)
#pragma unroll
            for (int q = 0; q < 8 / P; ++q) {
                float v[4];
                FormatTraits<F>::decode(n.codes[i], q, v);
#pragma unroll
                for (int e = 0; e < 4; ++e) w[(4 * (i * (8 / P) + q) + e) * kTileRows] = v[e];
            }
#pragma unroll
        for (int i = 0; i < 2 * Q; ++i) {
            const int input = token + 16 * i;
            float* x = stage + S::kA + 4 * quad * S::kInputs + ((input / 4) ^ quad) * 4 + input % 4;
            x[0] = n.x[i].x;
            x[S::kInputs] = n.x[i].y;
            x[2 * S::kInputs] = n.x[i].z;
            x[3 * S::kInputs] = n.x[i].w;
        }
    };

    float inner[8][C];  // segment
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < C; ++j) inner[i][j] = 0.0f;

    Ahead<F, Q> next;
    bring(next, 0);
    put(next, shared);
    __syncthreads();
    for (int c = 0; c < chunks; ++c) {
        const float* stage = shared + c % 2 * S::kStage;
        if (c + 1 < chunks) bring(next, c + 1);
        float acc[8][C];
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < C; ++j) acc[i][j] = 0.0f;
#pragma unroll 2
        for (int kq = 0; kq < 8; ++kq)
#pragma unroll
            for (int k = 4 * kq; k < 4 * kq + 4; ++k) {
                float w[8], x[C];
                *reinterpret_cast<float4*>(w) =
                    *reinterpret_cast<const float4*>(stage + k * kTileRows + 4 * ty);
                *reinterpret_cast<float4*>(w + 4) =
                    *reinterpret_cast<const float4*>(stage + k * kTileRows + kTileRows / 2 + 4 * ty);
#pragma unroll
                for (int q = 0; q < Q; ++q)
                    *reinterpret_cast<float4*>(x + 4 * q) = *reinterpret_cast<const float4*>(
                        stage + S::kA + k * S::kInputs + ((8 * q + tx) ^ kq) * 4);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < C; ++j) acc[i][j] = num::fma(w[i], x[j], acc[i][j]);
            }
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < C; ++j) inner[i][j] = inner[i][j] + acc[i][j];

        const bool last = c + 1 == chunks, first_segment = c < 16;
        if (c % 16 == 15 || last) {
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < C; ++j) {
                    float& t = total[(i * C + j) * kThreads];
                    t = (first_segment ? 0.0f : t) + inner[i][j];
                    inner[i][j] = 0.0f;
                }
        }
        if (!last) {
            put(next, shared + (c + 1) % 2 * S::kStage);  // read last before the barrier of the chunk before
            __syncthreads();
        }
    }
    __syncthreads();  // the next part writes the first stage
    for (int j = 0; j < C; ++j) {
        const int n = part + j / 4 * 32 + 4 * tx + j % 4;
        if (n >= p.count) continue;
        float* out = p.matrix->out + result_row(p, n) * p.matrix->stride;
        for (int i = 0; i < 4; ++i)
            store_result<Kind>(a, p, 4 * ty + i, out, total[(i * C + j) * kThreads],
                               total[((i + 4) * C + j) * kThreads]);
    }
}

template <Format F, TileKind Kind, bool Wide>
__global__ void __launch_bounds__(kThreads, 2) gemm_exact_tiles(const __grid_constant__ TileTask a) {
    TileExtent p;
    if (!extent_of<Kind>(a, F, p)) return;
    if constexpr (Wide)
        if (p.count > 32) return float_tile<F, Kind, 2>(a, p, 0);
    for (int part = 0; part < p.count; part += 32) float_tile<F, Kind, 1>(a, p, part);
}

template <Format F, TileKind Kind> void launch_kind(const TileTask& a, dim3 grid, cudaStream_t stream) {
    static const int most = [] {
        int device = 0, bytes = 0;
        FTMPI_CUDA(cudaGetDevice(&device));
        FTMPI_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
        return bytes;
    }();
    if (Shape<2>::kBytes <= static_cast<std::size_t>(most)) {
        static const bool allowed = (allow_shared(gemm_exact_tiles<F, Kind, true>, Shape<2>::kBytes), true);
        static_cast<void>(allowed);
        launch("matrix tiles", gemm_exact_tiles<F, Kind, true>, grid, dim3(kThreads), Shape<2>::kBytes,
               stream, a);
    } else {
        static const bool allowed = (allow_shared(gemm_exact_tiles<F, Kind, false>, Shape<1>::kBytes), true);
        static_cast<void>(allowed);
        launch("matrix tiles", gemm_exact_tiles<F, Kind, false>, grid, dim3(kThreads), Shape<1>::kBytes,
               stream, a);
    }
}

}  // namespace

void gemm_exact(TileKind kind, const TileTask& task, Format format, int grid_rows, int grid_inputs,
                cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(grid_rows), static_cast<unsigned>(grid_inputs));
    with_format(format, [&]<Format F>() {
        if constexpr (is_plain(F))
            with_kind(kind, [&]<TileKind K>() { launch_kind<F, K>(task, grid, stream); });
    });
}

}  // namespace ftmpi::cuda
