// The weight formats as kernels see them: a struct each, and the one dispatch over all of them. A new format
// is a struct and a name in the list here; its kernels are instances of those that are there.
//
// Sources: F16 and F32 as in IEEE 754; BF16 and e4m3 as in the OCP 8-bit Floating Point Specification (OFP8);
// MXFP4 as in the OCP Microscaling Formats (MX) Specification v1.0; NVFP4 as NVIDIA's checkpoints have it:
// e2m1 codes, an e4m3 scale for 16 of them, an fp32 scale for the tensor.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../src/format.hpp"
#include "../src/numerics.hpp"
#ifdef __CUDACC__
#include "device_code.hpp"
#endif

namespace ftmpi::cuda {

constexpr int kWord128 = 16;  ///< bytes of what a lane loads at once

#ifdef __CUDACC__
__device__ __forceinline__ std::uint32_t word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
#endif

// Every struct says:
//   kWords128      words of 16 bytes of a chunk of 32 codes
//   Scale          the inner scale that is read for a chunk, or void
//   kScaleChunks   chunks that share it
//   kBlockScaled   its factor multiplies the sum of 128 columns (else a chunk, or the format has none)
// Floating formats, whose products are fma chains:
//   decode(word, q, w)      elements 4 q .. 4 q + 3 of a word
//   any_bad(word)           a code in 32 bits is NaN (formats without scales: or infinite)
// 4-bit formats, whose products are integers (e2m1 codes are decoded by decode_e2m1()):
//   decode_scale(scale, s)  the factors of the chunk's groups of 16
//   chunk_value(..)         the chunk from the sums of its groups
//   repaired(x, any)        an inner scale as stored: what becomes of it, and whether it is refused
template <Format F> struct FormatTraits;

/// Chunks with a scale of their own, or without.
template <int kWords, class InnerScale = void> struct ScaledChunks {
    static constexpr int kWords128 = kWords, kScaleChunks = 1;
    static constexpr bool kBlockScaled = false;
    using Scale = InnerScale;
};

template <> struct FormatTraits<Format::bf16> : ScaledChunks<4> {
#ifdef __CUDACC__
    static __device__ __forceinline__ void decode(const uint4& word, int q, float (&w)[4]) {
        const std::uint32_t a = word_of(word, 2 * q), b = word_of(word, 2 * q + 1);
        w[0] = num::float_of(a << 16);
        w[1] = num::float_of(a & 0xffff0000u);
        w[2] = num::float_of(b << 16);
        w[3] = num::float_of(b & 0xffff0000u);
    }
    static __device__ __forceinline__ std::uint32_t any_bad(std::uint32_t codes) {
        return ((codes & 0x7f807f80u) + 0x00800080u) & 0x80008000u;  // an exponent of all ones carries
    }
#endif
};

template <> struct FormatTraits<Format::f16> : ScaledChunks<4> {
#ifdef __CUDACC__
    static __device__ __forceinline__ void decode(const uint4& word, int q, float (&w)[4]) {
        decode_f16_pair(word_of(word, 2 * q), w[0], w[1]);
        decode_f16_pair(word_of(word, 2 * q + 1), w[2], w[3]);
    }
    static __device__ __forceinline__ std::uint32_t any_bad(std::uint32_t codes) {
        return ((codes & 0x7c007c00u) + 0x04000400u) & 0x80008000u;
    }
#endif
};

template <> struct FormatTraits<Format::f32> : ScaledChunks<8> {
#ifdef __CUDACC__
    /// A word is one quad: q is 0.
    static __device__ __forceinline__ void decode(const uint4& word, int, float (&w)[4]) {
        for (int i = 0; i < 4; ++i) w[i] = num::float_of(word_of(word, i));
    }
    static __device__ __forceinline__ std::uint32_t any_bad(std::uint32_t code) {
        return ((code & 0x7f800000u) + 0x00800000u) & 0x80000000u;
    }
#endif
};

template <> struct FormatTraits<Format::fp8_row> : ScaledChunks<2> {
#ifdef __CUDACC__
    static __device__ __forceinline__ void decode(const uint4& word, int q, float (&w)[4]) {
        decode_e4m3(word_of(word, q), w);
    }
    static __device__ __forceinline__ std::uint32_t any_bad(std::uint32_t codes) {
        return ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
    }
#endif
};

template <> struct FormatTraits<Format::fp8_block> : FormatTraits<Format::fp8_row> {
    static constexpr int kScaleChunks = 4;
    static constexpr bool kBlockScaled = true;
    using Scale = std::uint32_t;  ///< the bits of a float
};

/// The scale: e4m3 codes of both groups.
template <> struct FormatTraits<Format::nvfp4> : ScaledChunks<1, std::uint16_t> {
#ifdef __CUDACC__
    static __device__ __forceinline__ void decode_scale(std::uint32_t scale, float (&s)[2]) {
        decode_e4m3_pair(scale, s[0], s[1]);
    }
    static __device__ __forceinline__ float chunk_value(float sum0, float sum1, const float (&s)[2],
                                                        float unit) {
        return num::fma(sum1, s[1], sum0 * s[0]) * unit;
    }
    static __device__ __forceinline__ float chunk_value(int sum0, int sum1, const float (&s)[2], float unit) {
        return chunk_value(static_cast<float>(sum0), static_cast<float>(sum1), s, unit);
    }
    /// NaN over a group of zeros adds nothing and becomes 0. `codes`: the group's eight bytes.
    static __device__ __forceinline__ bool repaired(std::uint8_t& x, const std::uint8_t* codes) {
        if ((x & 0x7f) == 0x7f) {
            std::uint8_t any = 0;
            for (int i = 0; i < 8; ++i) any |= codes[i] & 0x77;
            x = 0;
            return any != 0;
        }
        const bool negative = x > 0x80;
        if (x & 0x80) x = 0;
        return negative;
    }
#endif
};

/// The scale: e8m0, of the whole chunk.
template <> struct FormatTraits<Format::mxfp4> : ScaledChunks<1, std::uint8_t> {
#ifdef __CUDACC__
    static __device__ __forceinline__ void decode_scale(std::uint32_t scale, float (&s)[2]) {
        s[0] = num::from_e8m0(static_cast<std::uint8_t>(scale));
    }
    static __device__ __forceinline__ float chunk_value(float sum0, float sum1, const float (&s)[2],
                                                        float unit) {
        return ((sum0 + sum1) * s[0]) * unit;  // |sum0 + sum1| < 2^24: exact
    }
    static __device__ __forceinline__ float chunk_value(int sum0, int sum1, const float (&s)[2], float unit) {
        return (static_cast<float>(sum0 + sum1) * s[0]) * unit;
    }
    static __device__ __forceinline__ bool repaired(std::uint8_t& x, const std::uint8_t*) {
        return x == 0xff;
    }
#endif
};

/// Before a template that host and device code call with functions of their own kind.
#ifdef __CUDACC__
#define FTMPI_ANY_EXECUTION _Pragma("nv_exec_check_disable")
#else
#define FTMPI_ANY_EXECUTION
#endif

template <Format... F> struct FormatList { static constexpr int kCount = sizeof...(F); };
using Formats = FormatList<Format::bf16, Format::fp8_row, Format::fp8_block, Format::nvfp4, Format::mxfp4,
                           Format::f16, Format::f32>;
constexpr int kFormats = Formats::kCount;
/// Those that kernels at fixed sizes have instances of, and kernels of matrices of several formats.
using CommonFormats =
    FormatList<Format::bf16, Format::fp8_row, Format::fp8_block, Format::nvfp4, Format::mxfp4>;
/// Those that are exact in fp32 and less common in checkpoints of this size: gemv_any and the tiles serve
/// them.
using OtherFormats = FormatList<Format::f16, Format::f32>;

FTMPI_ANY_EXECUTION
template <class Function, Format... F> FTMPI_HD constexpr void for_each_of(FormatList<F...>, Function&& f) {
    (f.template operator()<F>(), ...);
}
/// f.operator()<F>() for every format F in the order of the list.
FTMPI_ANY_EXECUTION
template <class Function> FTMPI_HD constexpr void for_each_format(Function&& f) { for_each_of(Formats{}, f); }

// Kernels count formats by the enum's numbers (VecTask).
static_assert([] {
    int n = 0;
    bool in_order = true;
    for_each_format([&]<Format F>() { in_order = in_order && static_cast<int>(F) == n++; });
    return in_order;
}());

/// f.operator()<F>() for the F of the list that `format` is; nothing, or a value of zero, for another one.
FTMPI_ANY_EXECUTION
template <class Function, Format... Some>
FTMPI_HD constexpr auto with_format_of(FormatList<Some...>, Format format, Function&& f) {
    using Result = decltype(f.template operator()<Format::bf16>());
    if constexpr (std::is_void_v<Result>) {
        ((format == Some ? f.template operator()<Some>() : void()), ...);
    } else {
        Result result{};
        ((format == Some ? void(result = f.template operator()<Some>()) : void()), ...);
        return result;
    }
}
/// The same of all formats.
FTMPI_ANY_EXECUTION
template <class Function> FTMPI_HD constexpr auto with_format(Format format, Function&& f) {
    return with_format_of(Formats{}, format, f);
}

constexpr int words128_of(Format f) {
    return with_format(f, [=]<Format F>() { return FormatTraits<F>::kWords128; });
}
/// Bytes of inner scales of a row of `chunks` chunks.
template <Format F> constexpr std::int64_t scale_pitch(std::int64_t chunks) {
    using T = FormatTraits<F>;
    if constexpr (std::is_void_v<typename T::Scale>) return 0;
    else
        return (chunks + T::kScaleChunks - 1) / T::kScaleChunks *
               static_cast<std::int64_t>(sizeof(typename T::Scale));
}
constexpr std::int64_t scale_pitch_of(Format f, std::int64_t chunks) {
    return with_format(f, [=]<Format F>() { return scale_pitch<F>(chunks); });
}
/// Whether the dot product takes its activations as 24-bit block fixed point (numerics.hpp).
constexpr bool is_fp8(Format f) { return f == Format::fp8_row || f == Format::fp8_block; }
constexpr unsigned bit_of(Format f) { return 1u << static_cast<int>(f); }
template <Format... F> constexpr unsigned bits_of(FormatList<F...>) { return (bit_of(F) | ...); }

#ifdef __CUDACC__
/// The inner scale of a chunk as `load` brings it, 0 in formats without. `scales`: those of the row.
template <Format F, class Load>
__device__ __forceinline__ std::uint32_t scale_of_chunk(const std::uint8_t* scales, int chunk, Load load) {
    using T = FormatTraits<F>;
    if constexpr (std::is_void_v<typename T::Scale>) return 0;
    else return load(reinterpret_cast<const typename T::Scale*>(scales) + chunk / T::kScaleChunks);
}
#endif

}  // namespace ftmpi::cuda
