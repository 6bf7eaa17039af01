// The dot product of few input rows with rows of a matrix, one warp at work. A lane computes one chunk of 32
// columns; the chunk values pass through shared memory, where a lane adds the 16 of a segment in rising
// order; the segments are added in rising order by shuffles. Only for files compiled by nvcc.
//
// A set is 32 chunks of a row, one a lane. When a row has at most 16 chunks ("half"), the upper half of the
// warp works on other rows than the lower one, so that no lane idles.
#pragma once

#include "../device_code.hpp"
#include "../runtime/matrix.hpp"

namespace ftmpi::cuda {

// ---- inputs in shared memory
// --------------------------------------------------------------------------------------

/// Distance of two planes of a staged row, in 16-byte units: odd, so that neither filling nor reading has
/// bank conflicts.
__host__ __device__ constexpr int plane_pitch(int chunks) { return chunks | 1; }
/// Planes of 16 bytes a chunk: 32 floats; or the two byte planes of 32 codes, then {-12 * sums of both
/// groups, unit}.
constexpr int kFloatPlanes = 8, kCodePlanes = 5;

/// One row of floats: element k of chunk c is float k % 4 of to[k / 4 * pitch + c]; zeroes behind the last
/// column.
__device__ inline void stage_floats(const float* x, int cols, int chunks, float4* to, int thread,
                                    int threads) {
    const int pitch = plane_pitch(chunks);
    const bool wide = (reinterpret_cast<std::uintptr_t>(x) & 15) == 0;
    for (int i = thread; i < chunks * kFloatPlanes; i += threads) {
        const int k = 4 * i;
        float4 v;
        if (wide && k + 4 <= cols) {
            v = *reinterpret_cast<const float4*>(x + k);
        } else {
            v.x = k < cols ? x[k] : 0.0f;
            v.y = k + 1 < cols ? x[k + 1] : 0.0f;
            v.z = k + 2 < cols ? x[k + 2] : 0.0f;
            v.w = k + 3 < cols ? x[k + 3] : 0.0f;
        }
        to[(i & 7) * pitch + (i >> 3)] = v;
    }
}

/// Eight neighbouring activations as block fixed point. Four neighbouring lanes hold a chunk; all lanes of a
/// warp call.
struct CodeOctet {
    std::uint32_t high[2], low[2];  ///< q = num::kPlane * high + low, elements 0..3 and 4..7
    int minus12;                    ///< -12 * sum of the q of these lanes' group of 16
    float unit;                     ///< num::block_unit of the chunk
};

/// x * inverse is exact, or so small that it counts as 0, so one fma rounds as num::block_code does; the
/// clamp there is never reached from the block's own exponent. Added to 1.5 * 2^23 an integer's lower two
/// bytes are its low plane and, when 128 more, its high plane.
__device__ inline CodeOctet quantize_octet(const float (&x)[8]) {
    const auto larger = [](float a, float b) {  // of the magnitudes; NaN for a NaN
#if defined(__CUDA_ARCH__)
        float m;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(fabsf(a)), "f"(fabsf(b)));
        return m;
#else
        const std::uint32_t u = num::bits_of(a) & 0x7fffffffu, v = num::bits_of(b) & 0x7fffffffu;
        return num::float_of(u > v ? u : v);
#endif
    };
    float most = larger(larger(larger(x[0], x[1]), larger(x[2], x[3])),
                        larger(larger(x[4], x[5]), larger(x[6], x[7])));
    most = larger(most, __shfl_xor_sync(kWholeWarp, most, 1));
    most = larger(most, __shfl_xor_sync(kWholeWarp, most, 2));
    const int e = num::block_exponent(num::bits_of(most));
    const bool finite = e != num::kNotFinite;
    const float inverse = num::pow2(finite ? -e : 0), magic = 12582912.0f;
    CodeOctet out;
    int sum_high = 0, sum_low = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        std::uint32_t low[4], high[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            low[i] = num::bits_of(num::fma(x[4 * half + i], inverse, magic));
            high[i] = num::bits_of(num::fma(x[4 * half + i], inverse, magic + num::kPlane / 2));
        }
        out.low[half] = permute(permute(low[0], low[1], 0x0040u), permute(low[2], low[3], 0x0040u), 0x5410u);
        out.high[half] =
            permute(permute(high[0], high[1], 0x0051u), permute(high[2], high[3], 0x0051u), 0x5410u);
        if (!finite) out.low[half] = out.high[half] = 0;
        sum_low = dot4(out.low[half], 0x01010101u, sum_low);
        sum_high = dot4(out.high[half], 0x01010101u, sum_high);
    }
    const int sum = sum_high * num::kPlane + sum_low;
    out.minus12 = -12 * (sum + __shfl_xor_sync(kWholeWarp, sum, 1));
    out.unit = num::block_unit(e);
    return out;
}

/// Eight activations from column k, zeroes behind the last column.
__device__ inline void load_octet(const float* x, int k, int cols, float (&v)[8]) {
    if ((reinterpret_cast<std::uintptr_t>(x) & 15) == 0 && k + 8 <= cols) {
        const float4 a = *reinterpret_cast<const float4*>(x + k),
                     b = *reinterpret_cast<const float4*>(x + k + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = k + i < cols ? x[k + i] : 0.0f;
}

/// Where stage_codes() takes its input from: a row in device memory, or one of stage_floats().
struct GlobalRow {
    const float* x;
    __device__ void load(int octet, int cols, float (&v)[8]) const { load_octet(x, 8 * octet, cols, v); }
};
struct StagedRow {
    const float4* x;
    int pitch;
    __device__ void load(int octet, int cols, float (&v)[8]) const {
        if (8 * octet >= cols) {  // the staged row ends with its last chunk
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = 0.0f;
            return;
        }
        const float4 a = x[((2 * octet) & 7) * pitch + (octet >> 2)],
                     b = x[((2 * octet + 1) & 7) * pitch + (octet >> 2)];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    }
};

/// Octet i of a row into the planes that stage_codes() describes.
__device__ __forceinline__ void store_octet(const CodeOctet& q, uint4* to, int pitch, int i) {
    const int chunk = i >> 2, part = i & 3, group = part >> 1;
    // Octet `part & 1` of its group: words 2 * (part & 1) and the next of the plane.
    *reinterpret_cast<uint2*>(reinterpret_cast<std::uint32_t*>(to + group * pitch + chunk) + 2 * (part & 1)) =
        make_uint2(q.high[0], q.high[1]);
    *reinterpret_cast<uint2*>(reinterpret_cast<std::uint32_t*>(to + (2 + group) * pitch + chunk) +
                              2 * (part & 1)) = make_uint2(q.low[0], q.low[1]);
    auto* meta = reinterpret_cast<std::uint32_t*>(to + 4 * pitch + chunk);
    if ((part & 1) == 0) meta[group] = static_cast<std::uint32_t>(q.minus12);
    if (part == 0) {
        meta[2] = num::bits_of(q.unit);
        meta[3] = 0;
    }
}

/// One row as block fixed point. Planes 0, 1: high bytes of group 0, 1; 2, 3: low bytes; 4: {minus12 of both,
/// unit, 0}. `threads` is a multiple of 32 and all of them call.
template <class Row>
__device__ inline void stage_codes(const Row& row, int cols, int chunks, uint4* to, int thread, int threads) {
    const int pitch = plane_pitch(chunks);
    for (int first = 0; first < chunks * 4; first += threads) {
        const int i = first + thread, chunk = i >> 2;
        float v[8];
        row.load(i, chunk < chunks ? cols : 0, v);
        const CodeOctet q = quantize_octet(v);
        if (chunk >= chunks) continue;
        store_octet(q, to, pitch, i);
    }
}

/// stage_codes() of kChunks whole chunks at a 16-byte aligned address.
template <int kChunks>
__device__ __forceinline__ void stage_whole_codes(const float* x, uint4* to, int thread, int threads) {
#pragma unroll 1
    for (int i = thread; i < 4 * kChunks; i += threads) {
        const float4 a = *reinterpret_cast<const float4*>(x + 8 * i),
                     b = *reinterpret_cast<const float4*>(x + 8 * i + 4);
        const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        store_octet(quantize_octet(v), to, plane_pitch(kChunks), i);
    }
}

// ---- rows of the matrix
// ---------------------------------------------------------------------------------------------

/// R rows: row r lies (r % H) steps and (r / H) jumps behind the first, H = R / 2 or 1.
struct RowSet {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    std::int64_t code_step, scale_step, code_jump, scale_jump;
    int chunks;
};
constexpr int half_of(int r) { return r > 1 ? r / 2 : 1; }

/// The lane's chunk of R rows.
template <Format F, int R> struct Fetched {
    uint4 raw[R * words128_of(F)];
    std::uint32_t
        scale[R];  ///< nvfp4: two codes; mxfp4: one; fp8_block: the bits of the scale of the chunk's block
};

/// Reads chunk set + lane of the rows (half: chunk lane % 16). Rows with r % H >= limit are not touched and
/// count as zeroes.
template <Format F, int R>
__device__ __forceinline__ void fetch(Fetched<F, R>& f, const RowSet& rows, int set, int lane, int limit) {
    constexpr int P = words128_of(F), H = half_of(R);
    const int n = rows.chunks - set < 32 ? rows.chunks - set : 32;
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const bool valid = lane < n && r % H < limit;
        const std::uint8_t* codes = rows.codes + (r % H) * rows.code_step + (r / H) * rows.code_jump;
        const std::uint8_t* scales = rows.scales + (r % H) * rows.scale_step + (r / H) * rows.scale_jump;
#pragma unroll
        for (int p = 0; p < P; ++p)
            f.raw[r * P + p] =
                valid ? load_once(codes + static_cast<std::uint32_t>((set * P + p * n + lane) * kWord128))
                      : make_uint4(0, 0, 0, 0);
        f.scale[r] = 0;
        if (!valid) continue;
        f.scale[r] = scale_of_chunk<F>(scales, set + lane, [](const auto* p) { return __ldg(p); });
    }
}

/// Value of a chunk of 4-bit weights from its group sums.
template <Format F>
__device__ __forceinline__ float chunk_of_sums(int sum0, int sum1, std::uint32_t scale, float unit) {
    float s[2];
    FormatTraits<F>::decode_scale(scale, s);
    return FormatTraits<F>::chunk_value(sum0, sum1, s, unit);
}

/// The values of chunk `chunk` of R rows with T input rows. `in` points at the first staged row, `between`
/// 16-byte units from one to the next.
template <Format F, int R, int T>
__device__ __forceinline__ void chunk_values(const Fetched<F, R>& f, const uint4* in, int between, int pitch,
                                             int chunk, float (&v)[T][R]) {
    if constexpr (is_4bit(F)) {
        std::uint32_t w[R][8];
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int i = 0; i < 4; ++i) decode_e2m1(word_of(f.raw[r], i), w[r][2 * i], w[r][2 * i + 1]);
#pragma unroll
        for (int t = 0; t < T; ++t) {
            const uint4* x = in + t * between + chunk;
            const uint4 meta = x[4 * pitch];
            int sum[2][R];
#pragma unroll
            for (int g = 0; g < 2; ++g) {
                const uint4 high = x[g * pitch], low = x[(2 + g) * pitch];
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    int hi = 0, lo = static_cast<int>(g == 0 ? meta.x : meta.y);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        hi = dot4(w[r][2 * i + g], word_of(high, i), hi);
                        lo = dot4(w[r][2 * i + g], word_of(low, i), lo);
                    }
                    sum[g][r] = hi * num::kPlane + lo;
                }
            }
#pragma unroll
            for (int r = 0; r < R; ++r)
                v[t][r] = chunk_of_sums<F>(sum[0][r], sum[1][r], f.scale[r], num::float_of(meta.z));
        }
    } else {
        constexpr int P = words128_of(F), quads = kFloatPlanes / P;  // of four elements in a piece
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
            for (int r = 0; r < R; ++r) v[t][r] = 0.0f;
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
            for (int q = 0; q < quads; ++q) {
                float w[R][4];
#pragma unroll
                for (int r = 0; r < R; ++r) FormatTraits<F>::decode(f.raw[r * P + p], q, w[r]);
#pragma unroll
                for (int t = 0; t < T; ++t) {
                    const uint4 bits = in[t * between + (p * quads + q) * pitch + chunk];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
#pragma unroll
                        for (int r = 0; r < R; ++r)
                            v[t][r] = num::fma(w[r][i], num::float_of(word_of(bits, i)), v[t][r]);
                }
            }
    }
}

// ---- sums in the order of num::ordered_sum
// ------------------------------------------------------------------------------------------

constexpr int kSlots = 16, kSlotPitch = 36;
/// Shared memory of one warp: 16 slots of a set's 32 chunk values, and 8 block scales a slot.
struct SumBuffer {
    float values[kSlots * kSlotPitch];
    float scales[kSlots * 8];
};

/// Adds up the chunk values of T x R results ("pairs", pair = t * R + r) set by set.
template <Format F, int R, int T, bool TwoRows> class OrderedSums {
public:
    static constexpr int kPairs = R * T, kSets = kSlots / kPairs;  ///< sets that wait in the buffer
    static_assert(kPairs <= kSlots && kSlots % kPairs == 0);

    __device__ OrderedSums(SumBuffer& buffer, int lane) : buffer_(buffer), lane_(lane) {}

    /// The values of set number `set` (0, 1, ...); `valid` says that this lane has a chunk. `last`: no more
    /// sets come.
    __device__ void put(int set, bool valid, const float (&v)[T][R], const Fetched<F, R>& f, bool last) {
        const int waiting = set % kSets;
        if (set == 0) total_ = 0.0f;
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
            for (int r = 0; r < R; ++r)
                buffer_.values[(waiting * kPairs + t * R + r) * kSlotPitch + lane_] = valid ? v[t][r] : 0.0f;
        if constexpr (FormatTraits<F>::kBlockScaled)
            if ((lane_ & 3) == 0)
#pragma unroll
                for (int r = 0; r < R; ++r)
                    buffer_.scales[(waiting * R + r) * 8 + (lane_ >> 2)] = num::float_of(f.scale[r]);
        if (last || waiting == kSets - 1) add(waiting + 1);
    }

    /// Of pair lane % kPairs; half: of pair lane / 2 % kPairs, upper rows in odd lanes.
    __device__ float total() const { return total_; }

private:
    __device__ void add(int sets) {
        __syncwarp();
        const int slot = lane_ >> 1, first = (lane_ & 1) * 16;
        float segment = 0.0f;
        if (slot < sets * kPairs) {
            const float* v = buffer_.values + slot * kSlotPitch + first;
            const float* scales = buffer_.scales + (slot / kPairs * R + slot % kPairs % R) * 8 + first / 4;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 c = *reinterpret_cast<const float4*>(v + 4 * i);
                if constexpr (FormatTraits<F>::kBlockScaled) {
                    const float block = (((0.0f + c.x) + c.y) + c.z) + c.w;
                    segment = num::fma(block, scales[i], segment);
                } else {
                    segment = (((segment + c.x) + c.y) + c.z) + c.w;
                }
            }
        }
        if constexpr (TwoRows) {
            total_ = total_ + segment;
        } else {
#pragma unroll
            for (int set = 0; set < kSets; ++set) {
                if (set >= sets) break;
                const int from = 2 * (set * kPairs + lane_ % kPairs);
                total_ = total_ + __shfl_sync(kWholeWarp, segment, from);
                total_ = total_ + __shfl_sync(kWholeWarp, segment, from + 1);
            }
        }
        __syncwarp();
    }

    SumBuffer& buffer_;
    int lane_;
    float total_ = 0.0f;
};

/// Rows of 4 loads a lane, or one: what one warp works on together in project().
constexpr int rows_at_once(Format f) { return words128_of(f) > 4 ? 1 : 4 / words128_of(f); }

}  // namespace ftmpi::cuda
