// What chunk_dot.cuh has for other formats, for FP8: exact sums of 24-bit codes of activations
// (numerics.hpp). A lane has one chunk of a row's codes, in double precision where a GPU has that at full
// rate, else in 64-bit integers. No sum rounds, so their order is free; a segment, or a block of 128 columns,
// rounds once.
#pragma once

#include "../wide.cuh"
#include "chunk_dot.cuh"

namespace ftmpi::cuda {

// ---- one activation, one sum
#if FTMPI_FAST_FP64
/// A code times 2^1000; two in 16 bytes.
using WideCode = double;
/// A sum of products times 2^-25.
using WideSum = double;
#else
using WideCode = std::int32_t;
using WideSum = long long;
#endif

/// Planes of 16 bytes a chunk: 32 codes as doubles (as integers half of that), then the units of the
/// segments.
constexpr int kWidePlanes = 17;
constexpr int kCodesInWord = kWord128 / static_cast<int>(sizeof(WideCode));
__host__ __device__ constexpr std::size_t staged_wide(int chunks) {
    return static_cast<std::size_t>(kWidePlanes * plane_pitch(chunks));
}
/// Units of a staged row, one a segment.
__device__ __forceinline__ float* wide_units(uint4* staged, int pitch) {
    return reinterpret_cast<float*>(staged + (kWidePlanes - 1) * pitch);
}
__device__ __forceinline__ const float* wide_units(const uint4* staged, int pitch) {
    return reinterpret_cast<const float*>(staged + (kWidePlanes - 1) * pitch);
}

/// num::wide_code(), as sums take it. Below 2^23 adding and subtracting 2^23 of the same sign rounds to an
/// integer, ties to even.
__device__ __forceinline__ WideCode wide_code_of(float x, float inverse) {
#if FTMPI_FAST_FP64
    const float y = x * inverse, big = num::float_of((num::bits_of(y) & 0x80000000u) | 0x4b000000u);
    return wide_activation((y + big) - big);
#else
    return num::wide_code(x, inverse);
#endif
}

struct WideQuad {
    WideCode q[4];
};
/// Four neighbouring codes, the quad `i` of a row, into its planes.
__device__ __forceinline__ void store_wide_quad(const WideQuad& c, uint4* to, int pitch, int i) {
    const int quad = i & 7, chunk = i >> 3;
    if constexpr (kCodesInWord == 2) {
        auto* words = reinterpret_cast<double2*>(to + 2 * quad * pitch + chunk);
        words[0] = {static_cast<double>(c.q[0]), static_cast<double>(c.q[1])};
        words[pitch] = {static_cast<double>(c.q[2]), static_cast<double>(c.q[3])};
    } else {
        *reinterpret_cast<int4*>(to + quad * pitch + chunk) = {
            static_cast<int>(c.q[0]), static_cast<int>(c.q[1]), static_cast<int>(c.q[2]),
            static_cast<int>(c.q[3])};
    }
}
/// One row as codes: plane j of a chunk holds its j-th codes that fit 16 bytes. A warp takes whole segments;
/// `threads` is a multiple of 32 and all of them call.
template <class Row>
__device__ inline void stage_wide(const Row& row, int cols, int chunks, uint4* to, int thread, int threads) {
    const int pitch = plane_pitch(chunks), lane = thread % 32;
    for (int s = thread / 32; 16 * s < chunks; s += threads / 32) {
        float v[2][8];
        std::uint32_t most = 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            row.load(64 * s + 32 * h + lane, cols, v[h]);
#pragma unroll
            for (int k = 0; k < 8; ++k) most = max(most, num::bits_of(v[h][k]) & 0x7fffffffu);
        }
        const int e = num::wide_exponent(__reduce_max_sync(kWholeWarp, most));
        const bool finite = e != num::kNotFinite;
        const float inverse = num::pow2(finite ? -e : 0);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int octet = 64 * s + 32 * h + lane;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                WideQuad c;
#pragma unroll
                for (int k = 0; k < 4; ++k) c.q[k] = wide_code_of(finite ? v[h][4 * i + k] : 0.0f, inverse);
                if (octet < 4 * chunks) store_wide_quad(c, to, pitch, 2 * octet + i);
            }
        }
        if (lane == 0) {
            wide_units(to, pitch)[s] = num::wide_unit(e);
            if (16 * (s + 1) >= chunks)
                wide_units(to, pitch)[s + 1] = 0.0f;  // of half a set that is not there
        }
    }
}

// ---- products

/// sum += the four products of a word of codes with staged ones.
#if FTMPI_FAST_FP64
struct WideWeights {
    double w[4];
    __device__ __forceinline__ explicit WideWeights(std::uint32_t codes) {
        // Exponents and fractions, and signs of two codes with two zero bytes: three words for a byte
        // permute.
        const std::uint32_t values = (codes << 1) & 0xfefefefeu, low = codes & 0x00008080u,
                            high = codes & 0x80800000u;
        w[0] = of(permute(values, low, 0x4066u));
        w[1] = of(permute(values, low, 0x5166u));
        w[2] = of(permute(values, high, 0x6244u));
        w[3] = of(permute(values, high, 0x7344u));
    }
    static __device__ __forceinline__ double of(std::uint32_t top) {
        return __hiloint2double(static_cast<int>(top), 0);
    }
};
struct WideWords {
    uint4 raw[2];
    __device__ __forceinline__ double code(int i) const {
        const uint4& r = raw[i / 2];
        return __hiloint2double(static_cast<int>(i % 2 ? r.w : r.y), static_cast<int>(i % 2 ? r.z : r.x));
    }
    __device__ __forceinline__ void load(const uint4* x, int quad, int pitch) {
        raw[0] = x[2 * quad * pitch];
        raw[1] = x[(2 * quad + 1) * pitch];
    }
};
__device__ __forceinline__ WideSum add_wide(double w, double q, double sum) { return __fma_rn(w, q, sum); }
/// The sum as the integer's nearest float.
__device__ __forceinline__ float float_of_sum(WideSum sum) { return static_cast<float>(sum * kWideSum); }
#else
struct WideWeights {
    std::int32_t w[4];
    __device__ __forceinline__ explicit WideWeights(std::uint32_t codes) {
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = num::units_of_e4m3(static_cast<std::uint8_t>(codes >> (8 * i)));
    }
};
struct WideWords {
    uint4 raw;
    __device__ __forceinline__ std::int32_t code(int i) const {
        return static_cast<std::int32_t>(word_of(raw, i));
    }
    __device__ __forceinline__ void load(const uint4* x, int quad, int pitch) { raw = x[quad * pitch]; }
};
__device__ __forceinline__ WideSum add_wide(std::int32_t w, std::int32_t q, WideSum sum) {
    return sum + static_cast<long long>(w) * q;
}
__device__ __forceinline__ float float_of_sum(WideSum sum) { return __ll2float_rn(sum); }
#endif

/// chunk_values() of FP8. Few sums are added up in several chains each, or an fma would wait for the one
/// before.
template <Format F, int R, int T>
__device__ __forceinline__ void chunk_values(const Fetched<F, R>& f, const uint4* in, int between, int pitch,
                                             int chunk, WideSum (&v)[T][R]) {
    constexpr int kChains = R * T <= 4 ? 2 : 1;
    WideSum sums[T][R][kChains] = {};
#pragma unroll
    for (int quad = 0; quad < 8; ++quad) {
        WideWords x[T];
#pragma unroll
        for (int t = 0; t < T; ++t) x[t].load(in + t * between + chunk, quad, pitch);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const WideWeights w(word_of(f.raw[2 * r + quad / 4], quad % 4));
#pragma unroll
            for (int t = 0; t < T; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sums[t][r][i % kChains] = add_wide(w.w[i], x[t].code(i), sums[t][r][i % kChains]);
        }
    }
#pragma unroll
    for (int t = 0; t < T; ++t)
#pragma unroll
        for (int r = 0; r < R; ++r) {
            v[t][r] = sums[t][r][0];
#pragma unroll
            for (int i = 1; i < kChains; ++i) v[t][r] += sums[t][r][i];
        }
}

// ---- sums

/// OrderedSums of FP8. units: of the first staged row, `between` words of 16 bytes from one row to the next.
template <Format F, int R, int T, bool TwoRows> class WideSums {
public:
    static constexpr int kSlots = 8, kPairs = R * T,
                         kSets = kSlots / kPairs;  ///< sets that wait in the buffer
    static_assert(kPairs <= kSlots && kSlots % kPairs == 0);

    __device__ WideSums(SumBuffer& buffer, int lane, const uint4* staged, int between, int pitch)
        : values_(reinterpret_cast<WideSum*>(buffer.values)), scales_(buffer.scales), lane_(lane),
          units_(wide_units(staged, pitch)), between_(4 * between) {}

    __device__ void put(int set, bool valid, const WideSum (&v)[T][R], const Fetched<F, R>& f, bool last) {
        const int waiting = set % kSets;
        if (set == 0) total_ = 0.0f;
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
            for (int r = 0; r < R; ++r)
                values_[(waiting * kPairs + t * R + r) * kPitch + lane_ + lane_ / 16 * 2] =
                    valid ? v[t][r] : WideSum{};
        if constexpr (FormatTraits<F>::kBlockScaled)
            if ((lane_ & 3) == 0)
#pragma unroll
                for (int r = 0; r < R; ++r)
                    scales_[(waiting * R + r) * 8 + (lane_ >> 2)] = num::float_of(f.scale[r]);
        if (last || waiting == kSets - 1) add(set - waiting, waiting + 1);
    }

    /// As OrderedSums::total().
    __device__ float total() const { return total_; }

private:
    static constexpr int kPitch = 36;
    struct alignas(16) Two {
        WideSum first, second;
    };
    static_assert(kSlots * kPitch * sizeof(WideSum) <= sizeof(SumBuffer::values));

    __device__ void add(int first_set, int sets) {
        __syncwarp();
        // Four lanes have a slot, each eight chunks.
        const int slot = lane_ >> 2, part = lane_ & 3;
        float segment = 0.0f;
        WideSum block[2] = {};
        if (slot < sets * kPairs) {
            const auto* v = reinterpret_cast<const Two*>(values_ + slot * kPitch + part * 8 + part / 2 * 2);
#pragma unroll
            for (int i = 0; i < 4; ++i) block[i / 2] += v[i].first + v[i].second;
        }
        if constexpr (FormatTraits<F>::kBlockScaled) {
            const float* scales = scales_ + (slot / kPairs * R + slot % kPairs % R) * 8 + 2 * part;
            float sums[2], s[2] = {};
#pragma unroll
            for (int b = 0; b < 2; ++b) {
                sums[b] = float_of_sum(block[b]);
                if (slot < sets * kPairs) s[b] = scales[b];
            }
            segment = num::fma(sums[1], s[1], num::fma(sums[0], s[0], 0.0f));  // of an even part
            const float before = __shfl_up_sync(kWholeWarp, segment, 1);
            segment =
                num::fma(sums[1], s[1], num::fma(sums[0], s[0], before));  // of an odd one: the segment's
        } else {
            const WideSum half = block[0] + block[1];
            segment = float_of_sum(half + __shfl_xor_sync(kWholeWarp, half, 1));
        }
        if (slot < sets * kPairs) {
            const int s = TwoRows ? 0 : 2 * (first_set + slot / kPairs) + part / 2;
            segment = segment * units_[slot % kPairs / R * between_ + s];
        }
        if constexpr (TwoRows) {
            const float mine =
                __shfl_sync(kWholeWarp, segment, 4 * (lane_ / 2 % kPairs) + 2 * (lane_ & 1) + 1);
            total_ = total_ + mine;
        } else {
#pragma unroll
            for (int set = 0; set < kSets; ++set) {
                if (set >= sets) break;
                const int from = 4 * (set * kPairs + lane_ % kPairs) + 1;
                total_ = total_ + __shfl_sync(kWholeWarp, segment, from);
                total_ = total_ + __shfl_sync(kWholeWarp, segment, from + 2);
            }
        }
        __syncwarp();
    }

    WideSum* values_;
    float* scales_;
    int lane_;
    const float* units_;
    int between_;
    float total_ = 0.0f;
};

// ---- either

template <Format F> using ChunkValue = std::conditional_t<is_fp8(F), WideSum, float>;

/// Planes of a staged row as the products of F take it.
constexpr int planes_of(Format f) {
    return is_4bit(f) ? kCodePlanes : is_fp8(f) ? kWidePlanes : kFloatPlanes;
}

/// The sums of F over staged rows.
template <Format F, int R, int T, bool TwoRows>
struct RowSums : std::conditional_t<is_fp8(F), WideSums<F, R, T, TwoRows>, OrderedSums<F, R, T, TwoRows>> {
    __device__ RowSums(SumBuffer& buffer, int lane, const uint4* staged, int between,
                       int pitch) requires(is_fp8(F))
        : WideSums<F, R, T, TwoRows>(buffer, lane, staged, between, pitch) {}
    __device__ RowSums(SumBuffer& buffer, int lane, const uint4*, int, int) requires(!is_fp8(F))
        : OrderedSums<F, R, T, TwoRows>(buffer, lane) {}
};

}  // namespace ftmpi::cuda
