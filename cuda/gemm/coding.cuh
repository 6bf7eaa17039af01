// Activations as the tiles of 4-bit weights take them (CodedRows in gemm.hpp). Only for files compiled by
// nvcc.
#pragma once

#include "../gemv/chunk_dot.cuh"
#include "gemm.hpp"

namespace ftmpi::cuda {

/// The work of one thread in coding: four neighbouring ones have a chunk.
__host__ __device__ constexpr std::int64_t coding_threads(std::int64_t rows, std::int64_t cols) {
    return rows * coded_chunks(cols) * 4;
}

/// Four bytes, as half precision numbers `unit` times as large.
__device__ __forceinline__ uint2 halves_of_bytes(std::uint32_t bytes, float unit) {
    const auto value = [=](int i) {
        return static_cast<float>(static_cast<std::int8_t>(bytes >> (8 * i))) * unit;
    };
    return make_uint2(f16_pair(value(0), value(1)), f16_pair(value(2), value(3)));
}

/// Part `i` of coding_threads(); whole warps call. Parts beyond the last do nothing.
template <CodedForm kForm>
__device__ __forceinline__ void code_part(const float* x, std::int64_t rows, std::int64_t cols,
                                          const CodedRows& to, std::int64_t i) {
    const std::int64_t coded = coded_chunks(cols), at = i / 4, row = at / coded;
    const int part = static_cast<int>(i % 4), group = part / 2, chunk = static_cast<int>(at % coded);
    const bool any = row < rows;
    float v[8];
    load_octet(any ? x + row * cols : x, 8 * (4 * chunk + part), any ? static_cast<int>(cols) : 0, v);
    const CodeOctet q = quantize_octet(v);
    const int minus1 = __shfl_down_sync(kWholeWarp, q.minus12, 2);  // of the second group
    if (!any) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int word = part % 2 * 2 + h;
        if constexpr (kForm == CodedForm::bytes) {
            auto* codes = reinterpret_cast<std::uint32_t*>(to.codes + at * 4);
            codes[4 * word + group] = q.high[h];
            codes[4 * word + 2 + group] = q.low[h];
        } else {
            const uint2 high = halves_of_bytes(q.high[h], static_cast<float>(num::kPlane)),
                        low = halves_of_bytes(q.low[h], 1.0f);
            to.codes[at * 8 + group * 4 + word] = make_uint4(high.x, high.y, low.x, low.y);
        }
    }
    if (part == 0)
        to.meta[at] = make_float4(q.unit, static_cast<float>(q.minus12), static_cast<float>(minus1), 0.0f);
}

}  // namespace ftmpi::cuda
