// The arithmetic of the promise: the same bits on every CPU and GPU, for every cut.
//
// Everything here uses only operations that IEEE 754 rounds correctly (+ - * / sqrt fma, conversions) and
// exact integer arithmetic, in one written order. Compile hosts with -ffp-contract=off and without
// -ffast-math, CUDA with -fmad=false -prec-div=true -prec-sqrt=true -ftz=false; denormals are kept. An fma
// happens only where fma() is written. Fast forms (SIMD, dp4a, tensor cores) are held equal to these by
// tests, bit for bit. Tensor cores are used where their sums are exact: no tensor-core product rounds.
//
// THE ORDER OF A DOT PRODUCT. K is taken in chunks of 32 contiguous elements, chunk values are added in
// rising order into segments of 16 chunks (512 elements), segment values are added in rising order; every sum
// starts from +0. Sums of squares, the delta rule's reads and attention over positions use the same order.
// 4-bit weights make integers of the groups within a chunk; FP8 weights make one integer of a whole segment
// (of a block of 128 columns, where it has a scale), rounded once. BF16, F16 and F32 weights are fma chains:
// their 8 to 24 bits at any exponent would need nine and more integer products and a rounding every chunk,
// which costs more than the chain.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// A source compiled for one instruction set defines FTMPI_HD as `static inline` first, so that the linker
// cannot give its copy of a function to the rest of the program.
#if defined(__CUDACC__)
#define FTMPI_HD __host__ __device__ __forceinline__
#elif !defined(FTMPI_HD)
#define FTMPI_HD inline
#endif

namespace ftmpi::num {

/// Counts up when any result changes its bits: files say by which they were made. 1 added FP8 products as
/// fma chains.
inline constexpr int kVersion = 2;

inline constexpr int kChunk = 32;            ///< elements of a chunk
inline constexpr int kSegment = 512;         ///< elements of a segment
inline constexpr int kBlock = 128;           ///< columns under one scale of FP8 128x128
inline constexpr int kAttentionPiece = 256;  ///< absolute positions merged as one piece by attention
inline constexpr int kMaxCode =
    32639;  ///< largest magnitude of a block fixed point activation: 127 * 256 + 127
inline constexpr int kMaxWideCode = 8355711;  ///< 127 * 65536 + 127 * 256 + 127: three signed bytes
inline constexpr int kPlane = 256;            ///< a code is kPlane * high + low, both signed bytes
inline constexpr int kNotFinite = 127;        ///< exponent of a block that holds an infinity or a NaN

// ---- bits -------------------------------------------------------------------------------------------------

FTMPI_HD std::uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
    return __float_as_uint(x);
#else
    std::uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
#endif
}

FTMPI_HD float float_of(std::uint32_t u) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(u);
#else
    float x;
    std::memcpy(&x, &u, 4);
    return x;
#endif
}

/// a * b + c with one rounding.
FTMPI_HD float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

FTMPI_HD float sqrt(float x) {
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(x);
#else
    return __builtin_sqrtf(x);
#endif
}

FTMPI_HD bool is_finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }

/// 2^e for -126 <= e <= 127.
FTMPI_HD float pow2(int e) { return float_of(static_cast<std::uint32_t>(e + 127) << 23); }

/// Nearest integer, ties to even, as an integer-valued float. |x| < 2^22.
FTMPI_HD float round_even(float x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction bits left
    return (x + magic) - magic;
}

// ---- storage formats: decoding is exact, encoding rounds to nearest even and saturates
// ------------------------

FTMPI_HD float from_bf16(std::uint16_t b) { return float_of(static_cast<std::uint32_t>(b) << 16); }

/// bfloat16 of x; beyond the largest finite value it saturates, NaN stays NaN.
FTMPI_HD std::uint16_t to_bf16(float x) {
    const std::uint32_t u = bits_of(x), a = u & 0x7fffffffu, s = (u >> 16) & 0x8000u;
    if (a > 0x7f800000u) return static_cast<std::uint16_t>(s | 0x7fc0u);
    const std::uint32_t r = (a + 0x7fffu + ((a >> 16) & 1u)) >> 16;
    return static_cast<std::uint16_t>(s | (r > 0x7f7fu ? 0x7f7fu : r));
}

/// IEEE half precision.
FTMPI_HD float from_f16(std::uint16_t b) {
    const std::uint32_t s = static_cast<std::uint32_t>(b & 0x8000u) << 16, m = b & 0x7fffu;
    if (m >= 0x7c00u) return float_of(s | (m << 13) | 0x7f800000u);
    if (m >= 0x400u) return float_of(s | ((m << 13) + (112u << 23)));
    return float_of(s | bits_of(static_cast<float>(m) * 5.9604644775390625e-8f));  // subnormal: m * 2^-24
}

/// e4m3 (fn: no infinities, 0x7f and 0xff are NaN).
FTMPI_HD float from_e4m3(std::uint8_t b) {
    const std::uint32_t s = static_cast<std::uint32_t>(b & 0x80u) << 24, m = b & 0x7fu;
    if (m == 0x7fu) return float_of(s | 0x7fc00000u);
    if (m >= 8u) return float_of(s | ((m << 20) + (120u << 23)));
    return float_of(s | bits_of(static_cast<float>(m) * 0.001953125f));  // subnormal: m * 2^-9
}

FTMPI_HD std::uint8_t to_e4m3(float x) {
    const std::uint32_t u = bits_of(x), a = u & 0x7fffffffu, s = (u >> 24) & 0x80u;
    if (a > 0x7f800000u) return static_cast<std::uint8_t>(s | 0x7fu);
    if (a >= 0x43e00000u) return static_cast<std::uint8_t>(s | 0x7eu);  // 448 and beyond
    if (a < 0x3c800000u) {                                              // below 2^-6: multiples of 2^-9
        const float q = round_even(float_of(a) * 512.0f);               // 0..8; 8 is the code of 2^-6
        return static_cast<std::uint8_t>(s | static_cast<std::uint32_t>(q));
    }
    const std::uint32_t r = (a + 0x7ffffu + ((a >> 20) & 1u)) >> 20;  // keep 3 fraction bits
    const std::uint32_t code = r - (120u << 3);
    return static_cast<std::uint8_t>(s | (code > 0x7eu ? 0x7eu : code));
}

/// e8m0: 2^(b - 127); 0xff is NaN.
FTMPI_HD float from_e8m0(std::uint8_t b) {
    if (b == 0xffu) return float_of(0x7fc00000u);
    return b == 0 ? float_of(0x00400000u) : float_of(static_cast<std::uint32_t>(b) << 23);
}

/// Twice the value of an e2m1 code (0..15): 0 1 2 3 4 6 8 12 and their negatives. Element 2b is the low
/// nibble of byte b.
FTMPI_HD int twice_e2m1(unsigned code) {
    const unsigned m = code & 7u;
    const int v = m < 4u ? static_cast<int>(m) : static_cast<int>((2u + (m & 1u)) << (m >> 1) >> 1);
    return code & 8u ? -v : v;
}

// ---- elementary functions ----
// Largest error against double, in units in the last place, held by tests/cpu_backend/numerics_test.cpp:
// exp 1.01, log 0.94, log1p 2.4, rsqrt 1.5, sigmoid 2.3, silu 2.3, softplus 2.7. Below -88.73 sigmoid and
// silu are 0 (less than 3e-37 is lost), and the decay of the delta rule carries the relative error of its
// argument.

/// e^x; 0 below -104, +inf above 88.73, NaN for NaN.
FTMPI_HD float exp(float x) {
    if (!(x == x)) return x;
    if (x > 88.73f) return float_of(0x7f800000u);
    if (x < -104.0f) return 0.0f;
    const float n = round_even(x * 1.44269502f);
    float r = fma(n, -0.693145752f, x);  // ln 2 in two parts, the first with trailing zeros: n * hi is exact
    r = fma(n, -1.42860677e-6f, r);
    float p = fma(r, 0.001381446490995586f, 0.008368780836462975f);
    p = fma(p, r, 0.04166839271783829f);
    p = fma(p, r, 0.1666651964187622f);
    p = fma(p, r, 0.4999999403953552f);
    p = fma(p * r, r, r) + 1.0f;
    const int k = static_cast<int>(n), half = k >> 1;  // two steps, so that the result may be subnormal
    return (p * pow2(half)) * pow2(k - half);
}

/// Natural logarithm of a positive finite x; -inf for 0, NaN below, x for +inf and NaN.
FTMPI_HD float log(float x) {
    std::uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) == 0) return float_of(0xff800000u);
    if (u & 0x80000000u) return float_of(0x7fc00000u);
    if (u >= 0x7f800000u) return x;
    int e = 0;
    if (u < 0x00800000u) {  // subnormal
        u = bits_of(x * 8388608.0f);
        e = -23;
    }
    const std::uint32_t k = (u - 0x3f2aaaabu) & 0xff800000u;  // mantissa in [2/3, 4/3)
    e += static_cast<int>(k) >> 23;
    const float f = float_of(u - k) - 1.0f, n = static_cast<float>(e);
    float p = fma(f, -0.13311603665351868f, 0.1400623768568039f);
    p = fma(p, f, -0.12078182399272919f);
    p = fma(p, f, 0.14000822603702545f);
    p = fma(p, f, -0.16689501702785492f);
    p = fma(p, f, 0.20010770857334137f);
    p = fma(p, f, -0.24999506771564484f);
    p = fma(p, f, 0.3333320915699005f);
    p = fma(p, f, -0.5f);
    const float ff = f * f;
    float y = fma(n, 1.42860677e-6f, fma(p, ff, f));
    return fma(n, 0.693145752f, y);
}

/// log(1 + u) for u >= 0, accurate for small u as well.
FTMPI_HD float log1p(float u) {
    const float w = 1.0f + u, d = w - 1.0f;
    if (d == 0.0f) return u;
    if (!is_finite(w)) return w;
    return log(w) * (u / d);
}

FTMPI_HD float rsqrt(float x) { return 1.0f / sqrt(x); }
FTMPI_HD float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
FTMPI_HD float silu(float x) { return x / (1.0f + exp(-x)); }
FTMPI_HD float softplus(float x) { return x > 20.0f ? x : log1p(exp(x)); }

// ---- sums in the one order
// ---------------------------------------------------------------------------------

/// The order itself: chunk(k0, n) gives the value of elements [k0, k0 + n), n <= 32.
template <class Chunk> FTMPI_HD float ordered_sum(std::int64_t count, Chunk chunk) {
    float total = 0.0f;
    for (std::int64_t s = 0; s < count; s += kSegment) {
        const std::int64_t end = s + kSegment < count ? s + kSegment : count;
        float segment = 0.0f;
        for (std::int64_t k = s; k < end; k += kChunk)
            segment = segment + chunk(k, static_cast<int>(end - k < kChunk ? end - k : kChunk));
        total = total + segment;
    }
    return total;
}

/// A chunk of a(k) * b(k): an fma chain from +0 in rising k.
template <class A, class B> FTMPI_HD float fma_chunk(std::int64_t k0, int n, A a, B b) {
    float c = 0.0f;
    for (int i = 0; i < n; ++i) c = fma(a(k0 + i), b(k0 + i), c);
    return c;
}

/// Two rows of floats; weights stored as BF16, F16 or F32 count as the floats they are.
FTMPI_HD float dot(const float* a, const float* b, std::int64_t count) {
    return ordered_sum(count, [=](std::int64_t k0, int n) {
        return fma_chunk(
            k0, n, [=](std::int64_t k) { return a[k]; }, [=](std::int64_t k) { return b[k]; });
    });
}

/// A plain sum: a chunk is additions from +0 in rising k.
FTMPI_HD float sum(const float* x, std::int64_t count) {
    return ordered_sum(count, [=](std::int64_t k0, int n) {
        float c = 0.0f;
        for (int i = 0; i < n; ++i) c = c + x[k0 + i];
        return c;
    });
}

FTMPI_HD float sum_of_squares(const float* x, std::int64_t count) { return dot(x, x, count); }

// ---- block fixed point activations for the 4-bit formats
// ------------------------------------------------------

/// Exponent e of a block of 32 activations: x is taken as q * 2^e with |q| <= 32639. `amax_bits` is the
/// largest of the values' bits without sign (an integer maximum). An all-zero block has e = 0; e stays within
/// [-100, 114]. A block with an infinity or a NaN is marked: its codes are 0 and its chunk is NaN, so that no
/// such value is lost in the integers.
FTMPI_HD int block_exponent(std::uint32_t amax_bits) {
    if (amax_bits == 0) return 0;
    if (amax_bits >= 0x7f800000u) return kNotFinite;
    // The largest value takes 15 bits, or 14 when its mantissa is so near 2 that it would pass 32639 units.
    const int e = static_cast<int>((amax_bits + 0x101ffu) >> 23) - 127 - 14;
    return e < -100 ? -100 : e;
}

/// Half the unit of a block (codes are twice the weights): 2^(e - 1), NaN for a block that is not finite.
FTMPI_HD float block_unit(int e) { return e == kNotFinite ? float_of(0x7fc00000u) : pow2(e - 1); }

/// q of one activation under exponent e (not kNotFinite); `inverse` is pow2(-e).
FTMPI_HD int block_code(float x, float inverse) {
    const int q = static_cast<int>(round_even(x * inverse));
    return q > kMaxCode ? kMaxCode : q < -kMaxCode ? -kMaxCode : q;
}

/// The two signed bytes of a code, for multiplication by bytes.
FTMPI_HD int plane_high(int q) { return (q + kPlane / 2) >> 8; }
FTMPI_HD int plane_low(int q) { return q - kPlane * plane_high(q); }

/// Quantizes `count` activations: q has count rounded up to 32 entries (the rest 0), exponents one entry
/// per 32.
FTMPI_HD void quantize_blocks(const float* x, std::int64_t count, std::int16_t* q, std::int8_t* exponents) {
    for (std::int64_t k0 = 0; k0 < count; k0 += kChunk) {
        std::uint32_t amax = 0;
        for (std::int64_t k = k0; k < k0 + kChunk && k < count; ++k) {
            const std::uint32_t a = bits_of(x[k]) & 0x7fffffffu;
            amax = a > amax ? a : amax;
        }
        const int e = block_exponent(amax);
        exponents[k0 / kChunk] = static_cast<std::int8_t>(e);
        const float inverse = e == kNotFinite ? 0.0f : pow2(-e);
        for (std::int64_t k = k0; k < k0 + kChunk; ++k)
            q[k] = k < count && e != kNotFinite ? static_cast<std::int16_t>(block_code(x[k], inverse))
                                                : std::int16_t{0};
    }
}

/// The value of one chunk of an NVFP4 row from its two exact group sums (of twice the weight times q), their
/// scales and the activation exponent. A chunk with one group passes 0 for the second.
FTMPI_HD float nvfp4_chunk(int sum0, float scale0, int sum1, float scale1, int e) {
    return fma(static_cast<float>(sum1), scale1, static_cast<float>(sum0) * scale0) * block_unit(e);
}

FTMPI_HD float mxfp4_chunk(int sum, float scale, int e) {
    return (static_cast<float>(sum) * scale) * block_unit(e);
}

/// Exact sum over [k0, k0 + n) of twice_e2m1(code) * q; n <= 32, so |sum| < 2^24.
FTMPI_HD int group_sum(const std::uint8_t* codes, const std::int16_t* q, std::int64_t k0, int n) {
    int sum = 0;
    for (std::int64_t k = k0; k < k0 + n; ++k)
        sum += twice_e2m1((codes[k / 2] >> (4 * (k & 1))) & 15u) * q[k];
    return sum;
}

/// NVFP4 row: codes two to a byte, an e4m3 scale per 16 columns, the multiplier once at the end. count is a
/// multiple of 16.
FTMPI_HD float dot_nvfp4(const std::uint8_t* codes, const std::uint8_t* scales, float multiplier,
                         const std::int16_t* q, const std::int8_t* exponents, std::int64_t count) {
    return multiplier * ordered_sum(count, [=](std::int64_t k0, int n) {
               const int sum1 = n > 16 ? group_sum(codes, q, k0 + 16, n - 16) : 0;
               const float scale1 = n > 16 ? from_e4m3(scales[k0 / 16 + 1]) : 0.0f;
               return nvfp4_chunk(group_sum(codes, q, k0, n < 16 ? n : 16), from_e4m3(scales[k0 / 16]), sum1,
                                  scale1, exponents[k0 / kChunk]);
           });
}

/// MXFP4 row: an e8m0 scale per 32 columns. count is even.
FTMPI_HD float dot_mxfp4(const std::uint8_t* codes, const std::uint8_t* scales, const std::int16_t* q,
                         const std::int8_t* exponents, std::int64_t count) {
    return ordered_sum(count, [=](std::int64_t k0, int n) {
        return mxfp4_chunk(group_sum(codes, q, k0, n), from_e8m0(scales[k0 / kChunk]),
                           exponents[k0 / kChunk]);
    });
}

// ---- 24-bit block fixed point activations for e4m3 weights
// ------------------------------------------------------
//
// An e4m3 code is an integer of units of 2^-9; an activation is an integer of units of 2^e with one e for a
// segment of 512 columns. So the sum of a segment's products is an integer below 2^50: exact in any order, in
// int64, in double, or by bytes in int32. It is rounded once.

/// Exponent e of a segment of activations: x is taken as q * 2^e with |q| <= kMaxWideCode. `amax_bits` is the
/// largest of the values' bits without sign. An all-zero segment has e = 0; e stays within [-100, 106]. A
/// segment with an infinity or a NaN is marked: its codes are 0 and its value is NaN.
FTMPI_HD int wide_exponent(std::uint32_t amax_bits) {
    if (amax_bits == 0) return 0;
    if (amax_bits >= 0x7f800000u) return kNotFinite;
    // The largest value takes 23 bits, or 22 when its mantissa is so near 2 that it would round to more than
    // kMaxWideCode units.
    const int e = static_cast<int>((amax_bits + 0x10101u) >> 23) - 127 - 22;
    return e < -100 ? -100 : e;
}

/// The value of 1 in a segment's sums: 2^(e - 9), NaN for a segment that is not finite.
FTMPI_HD float wide_unit(int e) { return e == kNotFinite ? float_of(0x7fc00000u) : pow2(e - 9); }

/// q of one activation under exponent e (not kNotFinite): the nearest integer, ties to even; `inverse` is
/// pow2(-e).
FTMPI_HD int wide_code(float x, float inverse) {
#if defined(__CUDA_ARCH__)
    return __float2int_rn(x * inverse);
#else
    const double magic = 6755399441055744.0;  // 1.5 * 2^52: the sum has no fraction bits left
    return static_cast<int>((static_cast<double>(x * inverse) + magic) - magic);
#endif
}

/// An e4m3 code (not NaN) in units of 2^-9: |value| <= 229376.
FTMPI_HD int units_of_e4m3(std::uint8_t b) {
    const int e = b >> 3 & 15, f = b & 7, m = e ? (8 + f) << (e - 1) : f;
    return b & 0x80u ? -m : m;
}

/// Codes `count` activations: q has `count` entries, exponents one per 512.
FTMPI_HD void quantize_segments(const float* x, std::int64_t count, std::int32_t* q, std::int8_t* exponents) {
    for (std::int64_t k0 = 0; k0 < count; k0 += kSegment) {
        const std::int64_t end = k0 + kSegment < count ? k0 + kSegment : count;
        std::uint32_t amax = 0;
        for (std::int64_t k = k0; k < end; ++k) {
            const std::uint32_t a = bits_of(x[k]) & 0x7fffffffu;
            amax = a > amax ? a : amax;
        }
        const int e = wide_exponent(amax);
        exponents[k0 / kSegment] = static_cast<std::int8_t>(e);
        const float inverse = e == kNotFinite ? 0.0f : pow2(-e);
        for (std::int64_t k = k0; k < end; ++k) q[k] = e == kNotFinite ? 0 : wide_code(x[k], inverse);
    }
}

/// Exact sum over [k0, end) of a segment, in its units.
FTMPI_HD std::int64_t wide_sum(const std::uint8_t* w, const std::int32_t* q, std::int64_t k0,
                               std::int64_t end) {
    std::int64_t sum = 0;
    for (std::int64_t k = k0; k < end; ++k) sum += std::int64_t{units_of_e4m3(w[k])} * q[k];
    return sum;
}

/// e4m3 weights with one multiplier for the row, applied once at the end: a segment's exact sum, rounded to
/// float, times its unit; segments are added from +0 in rising order.
FTMPI_HD float dot_fp8_row(const std::uint8_t* w, float multiplier, const std::int32_t* q,
                           const std::int8_t* exponents, std::int64_t count) {
    float total = 0.0f;
    for (std::int64_t s = 0; s < count; s += kSegment) {
        const std::int64_t end = s + kSegment < count ? s + kSegment : count;
        total = total + static_cast<float>(wide_sum(w, q, s, end)) * wide_unit(exponents[s / kSegment]);
    }
    return multiplier * total;
}

/// e4m3 weights with a scale per 128 columns: a block's exact sum, rounded to float, enters the segment as
/// segment = fma(block sum, scale, segment), from +0 in rising order; the segment meets its unit once.
FTMPI_HD float dot_fp8_block(const std::uint8_t* w, const float* scales, const std::int32_t* q,
                             const std::int8_t* exponents, std::int64_t count) {
    float total = 0.0f;
    for (std::int64_t s = 0; s < count; s += kSegment) {
        const std::int64_t end = s + kSegment < count ? s + kSegment : count;
        float segment = 0.0f;
        for (std::int64_t b = s; b < end; b += kBlock)
            segment = fma(static_cast<float>(wide_sum(w, q, b, b + kBlock < end ? b + kBlock : end)),
                          scales[b / kBlock], segment);
        total = total + segment * wide_unit(exponents[s / kSegment]);
    }
    return total;
}

// ---- the model's other steps, element by element
// ---------------------------------------------------------------

/// 1 / sqrt(mean + eps) of a vector with the given sum of squares.
FTMPI_HD float rms_scale(float squares, std::int64_t width, float eps) {
    return rsqrt(squares / static_cast<float>(width) + eps);
}

/// RMSNorm of one element; weight is 1 + w for the zero-centred norms, w for the gated norm of the delta net.
FTMPI_HD float rms_apply(float x, float scale, float weight) { return (x * scale) * weight; }

/// 1 / sqrt(sum of squares + 1e-6): the delta net's normalisation of q and k.
FTMPI_HD float l2_scale(float squares) { return rsqrt(squares + 1e-6f); }

/// A normalised q element of the delta net; inverse_root is 1/sqrt(key_dim).
FTMPI_HD float delta_query(float x, float scale, float inverse_root) { return (x * scale) * inverse_root; }

/// 1/sqrt(dim), rounded once from double (sqrt and division are exact to the last bit everywhere).
FTMPI_HD float inverse_root_of(int dim) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
}

/// Causal convolution of one channel: u(0) is the oldest input, u(taps - 1) the current token's.
template <class U> FTMPI_HD float causal_conv(const float* w, int taps, U u) {
    float c = w[0] * u(0);
    for (int j = 1; j < taps; ++j) c = fma(w[j], u(j), c);
    return c;
}

/// Decay of the delta rule: exp(-exp(A_log) * softplus(a + dt_bias)), in (0, 1].
FTMPI_HD float delta_decay(float neg_exp_a, float a, float dt_bias) {
    return exp(neg_exp_a * softplus(a + dt_bias));
}

/// One token of the delta rule for one column j of a head's state, in the order decay, read, write, read.
/// state points at S[0][j] and its rows are `stride` apart; k and q are normalised (q also scaled by
/// 1/sqrt(key_dim)). Returns the output of column j.
FTMPI_HD float delta_rule_column(float* state, std::int64_t stride, int key_dim, const float* k,
                                 const float* q, float v, float beta, float decay) {
    const float m = ordered_sum(key_dim, [=](std::int64_t k0, int n) {
        float c = 0.0f;
        for (int i = 0; i < n; ++i) {
            const float s = state[(k0 + i) * stride] * decay;
            state[(k0 + i) * stride] = s;
            c = fma(s, k[k0 + i], c);
        }
        return c;
    });
    const float d = beta * (v - m);
    return ordered_sum(key_dim, [=](std::int64_t k0, int n) {
        float c = 0.0f;
        for (int i = 0; i < n; ++i) {
            const float s = fma(k[k0 + i], d, state[(k0 + i) * stride]);
            state[(k0 + i) * stride] = s;
            c = fma(s, q[k0 + i], c);
        }
        return c;
    });
}

/// Output of the gated RMSNorm for one element: norm weight first, then silu of the gate z.
FTMPI_HD float gated_norm(float o, float scale, float weight, float z) {
    return rms_apply(o, scale, weight) * silu(z);
}

/// NeoX halves: the rotated pair (x_i, x_{i+half}).
FTMPI_HD float rope_first(float a, float b, float cos, float sin) { return fma(a, cos, -(b * sin)); }
FTMPI_HD float rope_second(float a, float b, float cos, float sin) { return fma(b, cos, a * sin); }

/// Running merge of attention pieces. A piece of up to 256 positions has max m, weights p_i = exp(s_i - m),
/// sum l of the p_i (in the one order, chunk = additions from +0) and, per column, out = sum of p_i * v_i (in
/// the one order over positions). The first piece is taken as it is; later ones merge in rising order.
struct Merge {
    float max;        ///< the larger maximum
    float old_scale;  ///< factor of what was there
    float new_scale;  ///< factor of the piece
};
FTMPI_HD Merge merge_of(float old_max, float piece_max) {
    const float m = piece_max > old_max ? piece_max : old_max;
    return {m, exp(old_max - m), exp(piece_max - m)};
}
FTMPI_HD float merge_value(float old_value, float piece_value, const Merge& g) {
    return fma(piece_value, g.new_scale, old_value * g.old_scale);
}

/// Max of a piece's scores: the first one, replaced by later ones that are larger.
FTMPI_HD float piece_max(const float* scores, int count) {
    float m = scores[0];
    for (int i = 1; i < count; ++i) m = scores[i] > m ? scores[i] : m;
    return m;
}

/// Column of a piece's out: values points at the column in the piece's first position, positions are `stride`
/// apart.
FTMPI_HD float piece_column(const float* p, const float* values, std::int64_t stride, int count) {
    return ordered_sum(count, [=](std::int64_t k0, int n) {
        return fma_chunk(
            k0, n, [=](std::int64_t k) { return p[k]; }, [=](std::int64_t k) { return values[k * stride]; });
    });
}

/// Output of the attention for one column: the merged out over the merged l, times the gate where there is
/// one.
FTMPI_HD float attention_out(float out, float l) { return out / l; }
FTMPI_HD float attention_out(float out, float l, float gate) { return (out / l) * sigmoid(gate); }

/// The experts of a row: the top_k largest logits, ties to the lower id. ids come out rising; a weight is
/// exp(l - max) over the sum of these, added from +0 in rising id. A logit that is not finite makes every
/// weight NaN, so that it shows.
FTMPI_HD void route(const float* logits, int experts, int top_k, std::int32_t* ids, float* weights) {
    bool finite = true;
    for (int e = 0; e < experts; ++e) finite = finite && is_finite(logits[e]);
    for (int n = 0; n < top_k; ++n) {  // ids[0, n) is the sorted choice so far
        int best = -1;
        for (int e = 0, taken = 0; e < experts; ++e) {
            if (taken < n && ids[taken] == e) {
                ++taken;
                continue;
            }
            if (best < 0 || logits[e] > logits[best]) best = e;
        }
        int at = n;
        for (; at > 0 && ids[at - 1] > best; --at) ids[at] = ids[at - 1];
        ids[at] = best;
    }
    float m = logits[ids[0]], total = 0.0f;
    for (int i = 1; i < top_k; ++i) m = logits[ids[i]] > m ? logits[ids[i]] : m;
    for (int i = 0; i < top_k; ++i) {
        weights[i] = exp(logits[ids[i]] - m);
        total = total + weights[i];
    }
    for (int i = 0; i < top_k; ++i) weights[i] = finite ? weights[i] / total : float_of(0x7fc00000u);
}

/// An expert's hidden value, and its share of the output (accumulated from +0 in rising id, the shared expert
/// last with weight sigmoid(its gate)).
FTMPI_HD float expert_act(float gate, float up) { return silu(gate) * up; }
FTMPI_HD float expert_add(float weight, float y, float acc) { return fma(weight, y, acc); }

/// Cache element: what is stored for x, and what is read back.
FTMPI_HD std::uint8_t kv_to_fp8(float x, float scale) { return to_e4m3(x / scale); }
FTMPI_HD float kv_from_fp8(std::uint8_t code, float scale) { return from_e4m3(code) * scale; }

}  // namespace ftmpi::num
