// Rows of whole sets of 32 chunks, their addresses known when a kernel is compiled.
#pragma once

#include <type_traits>

#include "chunk_dot.cuh"

namespace ftmpi::cuda {

template <Format F, int kSets>
inline constexpr int code_pitch_of_sets = 32 * kSets* words128_of(F) * kWord128;
template <Format F, int kSets>
inline constexpr int scale_pitch_of_sets = static_cast<int>(scale_pitch_of(F, 32 * kSets));

/// Calls f(std::integral_constant<int, 0>) .. f(<int, N - 1>).
template <int N, class Function> __device__ __forceinline__ void each(Function f) {
    if constexpr (N > 0) {
        each<N - 1>(f);
        f(std::integral_constant<int, N - 1>{});
    }
}

/// Set S of R rows: H neighbouring ones, the next H `jump` rows behind them. `codes` is the lane's place in
/// the first row.
template <Format F, int R, int H, int kSets, int S>
__device__ __forceinline__ void fetch_set(Fetched<F, R>& f, const std::uint8_t* codes,
                                          const std::uint8_t* scales, std::int64_t jump, int lane) {
    constexpr int P = words128_of(F), kCodePitch = code_pitch_of_sets<F, kSets>,
                  kScalePitch = scale_pitch_of_sets<F, kSets>;
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const std::uint8_t* row_codes = codes + (r / H) * (jump * kCodePitch) + (r % H) * kCodePitch;
#pragma unroll
        for (int p = 0; p < P; ++p) f.raw[r * P + p] = load_once(row_codes + (S * P + p) * 32 * kWord128);
        const std::uint8_t* row = scales + (r / H) * (jump * kScalePitch) + (r % H) * kScalePitch;
        f.scale[r] = scale_of_chunk<F>(row, S * 32 + lane, [](const auto* p) { return __ldg(p); });
    }
}

}  // namespace ftmpi::cuda
