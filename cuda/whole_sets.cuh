// Rows of whole sets of 32 chunks, their addresses known when a kernel is compiled.
#pragma once

#include <type_traits>

#include "chunk_dot.hpp"

namespace ftmpi::cuda {

template <Format F, int kSets>
inline constexpr int code_pitch_of_sets = 32 * kSets * pieces_of(F) * kPiece;
template <Format F, int kSets>
inline constexpr int scale_pitch_of_sets = static_cast<int>(scale_pitch_of(F, 32 * kSets));

/// Calls f(std::integral_constant<int, 0>) .. f(<int, N - 1>).
template <int N, class Function>
__device__ __forceinline__ void each(Function f) {
    if constexpr (N > 0) {
        each<N - 1>(f);
        f(std::integral_constant<int, N - 1>{});
    }
}

/// Set S of R rows: H neighbouring ones, the next H `jump` rows behind them. `codes` is the lane's place in the first row.
template <Format F, int R, int H, int kSets, int S>
__device__ __forceinline__ void fetch_set(Fetched<F, R>& f, const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t jump, int lane) {
    constexpr int P = pieces_of(F), kCodePitch = code_pitch_of_sets<F, kSets>, kScalePitch = scale_pitch_of_sets<F, kSets>;
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const std::uint8_t* row_codes = codes + (r / H) * (jump * kCodePitch) + (r % H) * kCodePitch;
#pragma unroll
        for (int p = 0; p < P; ++p) f.raw[r * P + p] = load_once(row_codes + (S * P + p) * 32 * kPiece);
        const std::uint8_t* row = scales + (r / H) * (jump * kScalePitch) + (r % H) * kScalePitch;
        f.scale[r] = 0;
        if constexpr (F == Format::nvfp4) f.scale[r] = __ldg(reinterpret_cast<const std::uint16_t*>(row) + S * 32 + lane);
        if constexpr (F == Format::mxfp4) f.scale[r] = __ldg(row + S * 32 + lane);
        if constexpr (F == Format::fp8_block) f.scale[r] = __ldg(reinterpret_cast<const std::uint32_t*>(row) + (S * 32 + lane) / 4);
    }
}

/// 16 neighbouring rows of 16 chunks each, a segment a row: the lower half of the warp has the even ones. All loads are under way at once.
template <Format F>
struct SegmentRows {
    static constexpr int kEach = 8, P = pieces_of(F), kCodePitch = 16 * P * kPiece, kScalePitch = static_cast<int>(scale_pitch_of(F, 16)), kPitch = 20;
    Fetched<F, 1> row[kEach];

    __device__ __forceinline__ void fetch(const std::uint8_t* codes, const std::uint8_t* scales, int lane) {
        const int upper = lane >> 4, place = lane & 15;
        codes += upper * kCodePitch + place * kPiece;
        scales += upper * kScalePitch;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
            for (int p = 0; p < P; ++p) row[i].raw[p] = load_once(codes + 2 * i * kCodePitch + p * 16 * kPiece);
            row[i].scale[0] = 0;
            if constexpr (F == Format::nvfp4) row[i].scale[0] = __ldg(reinterpret_cast<const std::uint16_t*>(scales + 2 * i * kScalePitch) + place);
            if constexpr (F == Format::mxfp4) row[i].scale[0] = __ldg(scales + 2 * i * kScalePitch + place);
        }
    }
    /// The dot product of row lane % 16 with the staged input; `values` holds 16 * kPitch floats.
    __device__ __forceinline__ float total(const uint4* staged, float* values, int lane) const {
        const int upper = lane >> 4, place = lane & 15;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            float v[1][1];
            chunk_values<F, 1, 1>(row[i], staged, 0, plane_pitch(16), place, v);
            values[(2 * i + upper) * kPitch + place] = v[0][0];
        }
        __syncwarp();
        float segment = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const float4 c = *reinterpret_cast<const float4*>(values + place * kPitch + i);
            segment = (((segment + c.x) + c.y) + c.z) + c.w;
        }
        __syncwarp();
        return 0.0f + segment;
    }
};

}  // namespace ftmpi::cuda
