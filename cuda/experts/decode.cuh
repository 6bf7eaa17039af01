// What the kernels of the chosen experts at fixed width share: groups of a matrix, loads that are asked for
// before a barrier, and the values of a staged chunk.
#pragma once

#include "../gemv/fixed_width.cuh"
#include "../gemv/wide_dot.cuh"
#include "experts.hpp"

namespace ftmpi::cuda {

// Named barriers: of some warps of a block; those that have something to say arrive, those that need it wait.
__device__ __forceinline__ void wait_at(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Groups of one matrix and the distances from one to the next, of codes and scales in bytes.
struct Groups {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    const float* multipliers;
    std::uint32_t code_bytes, scale_bytes, rows;
};
inline Groups groups_of(const MatrixView& m) {
    const auto times = [&](std::int64_t pitch) { return static_cast<std::uint32_t>(m.padded * pitch); };
    return {m.codes, m.scales, m.multipliers, times(m.code_pitch), times(m.scale_pitch), times(1)};
}
// Weights that are on their way when a warp comes to the next barrier. load_once() is free to be asked for
// behind it, where it is used: that costs the latency of memory once more.
__device__ __forceinline__ uint4 load_now(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
template <class T> __device__ __forceinline__ std::uint32_t load_now(const T* p) {
    std::uint32_t v;
    if constexpr (sizeof(T) == 4) asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    if constexpr (sizeof(T) == 2)
        asm volatile("{ .reg .u16 h; ld.global.u16 h, [%1]; cvt.u32.u16 %0, h; }"
                     : "=r"(v)
                     : "l"(p)
                     : "memory");
    if constexpr (sizeof(T) == 1) asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/// Chunk `chunk` of a row, row r of f. `codes` is its first piece, the others are `between` bytes apart.
template <Format F, int R>
__device__ __forceinline__ void fetch_chunk(Fetched<F, R>& f, int r, const std::uint8_t* codes, int between,
                                            const std::uint8_t* scales, int chunk) {
#pragma unroll
    for (int p = 0; p < words128_of(F); ++p)
        f.raw[r * words128_of(F) + p] = load_now(reinterpret_cast<const uint4*>(codes + p * between));
    f.scale[r] = scale_of_chunk<F>(scales, chunk, [](const auto* p) { return load_now(p); });
}

/// A row of kChunks whole chunks, as chunk_values<F> wants it.
template <Format F, int kChunks>
__device__ __forceinline__ void stage_whole(const float* x, uint4* to, int thread, int threads) {
    if constexpr (is_4bit(F)) stage_whole_codes<kChunks>(x, to, thread, threads);
    else if constexpr (is_fp8(F))
        stage_wide(GlobalRow{x}, kChunks * num::kChunk, kChunks, to, thread, threads);
    else stage_floats(x, kChunks * num::kChunk, kChunks, reinterpret_cast<float4*>(to), thread, threads);
}

/// chunk_values() of one input row for 4-bit weights, decoded after a barrier at the earliest: so that the
/// loads before it need not wait for registers, the tables come from memory that it guards. The last word of
/// a chunk's sums is 0.
template <Format F, int R>
__device__ __forceinline__ void code_values(const Fetched<F, R>& f, const uint4* x, int pitch,
                                            float (&v)[1][R]) {
    const uint4 meta = x[4 * pitch];
    const std::uint32_t positive = 0x0f0e0d0cu | meta.w, negative = 0x090a0b0cu | meta.w;  // as decode_e2m1()
    int sum[2][R];
#pragma unroll
    for (int g = 0; g < 2; ++g) {
        const uint4 high = x[g * pitch], low = x[(2 + g) * pitch];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            int hi = 0, lo = static_cast<int>(g == 0 ? meta.x : meta.y);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const std::uint32_t codes = word_of(f.raw[r], i) >> (16 * g);
                const std::uint32_t w = permute(positive, 0x18141210u, codes) |
                                        permute(negative, 0x00040608u, codes ^ 0x88888888u);
                hi = dot4(w, word_of(high, i), hi);
                lo = dot4(w, word_of(low, i), lo);
            }
            sum[g][r] = hi * num::kPlane + lo;
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
        v[0][r] = chunk_of_sums<F>(sum[0][r], sum[1][r], f.scale[r], num::float_of(meta.z));
}

/// The values of staged chunk `chunk` of rows of kChunks.
template <Format F, int kChunks, int R>
__device__ __forceinline__ void values_of(const Fetched<F, R>& f, const uint4* staged, int chunk,
                                          ChunkValue<F> (&v)[1][R]) {
    if constexpr (is_4bit(F)) code_values<F, R>(f, staged + chunk, plane_pitch(kChunks), v);
    else chunk_values<F, R, 1>(f, staged, 0, plane_pitch(kChunks), chunk, v);
}

}  // namespace ftmpi::cuda
