// 16 lanes as one AVX-512 register. Included once, inside the anonymous namespace of kernels_avx512.cpp.
#pragma once

using F = __m512;   ///< 16 floats; a lane is a matrix row, a channel, a state column or a position
using I = __m512i;  ///< 16 int32

inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a); }
inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline F load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void store_first(float* p, F a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a); }
inline F set(float x) { return _mm512_set1_ps(x); }
inline F zero() { return _mm512_setzero_ps(); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F if_greater(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), no, yes);
}

struct D {  ///< 16 doubles
    __m512d a, b;
};
inline D load(const double* p) { return {_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}; }
inline void store(double* p, D x) {
    _mm512_storeu_pd(p, x.a);
    _mm512_storeu_pd(p + 8, x.b);
}
inline D set(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
inline D add(D x, D y) { return {_mm512_add_pd(x.a, y.a), _mm512_add_pd(x.b, y.b)}; }
inline D mul(D x, D y) { return {_mm512_mul_pd(x.a, y.a), _mm512_mul_pd(x.b, y.b)}; }
inline D fma(D x, D y, D z) { return {_mm512_fmadd_pd(x.a, y.a, z.a), _mm512_fmadd_pd(x.b, y.b, z.b)}; }
inline D widen(F x) {
    return {_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
}
inline F narrow(D x) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.a)), _mm512_cvtpd_ps(x.b), 1);
}

inline I iset(int x) { return _mm512_set1_epi32(x); }
inline I iload(const void* p) { return _mm512_loadu_si512(p); }
inline I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
inline I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I iand(I a, I b) { return _mm512_and_si512(a, b); }
inline I ior(I a, I b) { return _mm512_or_si512(a, b); }
template <int N> inline I shift_left(I a) { return _mm512_slli_epi32(a, N); }
template <int N> inline I shift_right(I a) { return _mm512_srli_epi32(a, N); }
template <int N> inline I shift_right_signed(I a) { return _mm512_srai_epi32(a, N); }
inline F if_greater(I a, I b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmpgt_epi32_mask(a, b), no, yes);
}
inline F as_float(I a) { return _mm512_castsi512_ps(a); }
inline I as_int(F a) { return _mm512_castps_si512(a); }
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline I truncate(F a) { return _mm512_cvttps_epi32(a); }
inline I widen_bytes(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline I widen_words(const std::uint8_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
/// The 32-bit words at base + offsets (bytes).
inline I gather(const void* base, I offsets) { return _mm512_i32gather_epi32(offsets, base, 1); }

/// 16 half precision numbers.
inline F load_f16(const std::uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

/// Four columns of e4m3 codes, stored as column pairs [2][16 rows][2], as 1/256 of their values: a code's
/// bits shifted into a half float, which is exact for subnormals as well.
inline void e4m3_four(const std::uint8_t* p, F* w) {
    const __m512i v = iload(p), keep = _mm512_set1_epi16(static_cast<short>(0xbf80));
    const __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 1), keep);
    const __m512i odd = _mm512_and_si512(_mm512_srai_epi16(v, 1), keep);
    w[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(even));
    w[1] = _mm512_cvtph_ps(_mm512_castsi512_si256(odd));
    w[2] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(even, 1));
    w[3] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(odd, 1));
}

/// 16 non-negative e4m3 codes as 1/256 of their values.
inline F e4m3_scales(const std::uint8_t* p) {
    const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(_mm256_slli_epi16(b, 7));
}

/// 16 columns of a tile of e2m1 codes, each code as twice its value + 12 (0..24).
struct Codes {
    __m512i even[2], odd[2];
};
inline void unpack(const std::uint8_t* p, Codes& c) {
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i low = _mm512_set1_epi8(15);
    for (int o = 0; o < 2; ++o) {
        const __m512i v = iload(p + 64 * o);
        c.even[o] = _mm512_shuffle_epi8(table, _mm512_and_si512(v, low));
        c.odd[o] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
    }
}

/// Sum of (code value + 12) * q over the 16 columns; q as QuantChunk stores it. No 16-bit sum passes 24 * 128
/// * 8.
inline I group_sum(const Codes& c, const std::int8_t* q) {
    const auto four = [q](int at) {
        int x;
        std::memcpy(&x, q + at, 4);
        return _mm512_set1_epi32(x);
    };
    __m512i low = _mm512_maddubs_epi16(c.even[0], four(0)), high = _mm512_maddubs_epi16(c.even[0], four(8));
    low = _mm512_add_epi16(low, _mm512_maddubs_epi16(c.odd[0], four(4)));
    high = _mm512_add_epi16(high, _mm512_maddubs_epi16(c.odd[0], four(12)));
    low = _mm512_add_epi16(low, _mm512_maddubs_epi16(c.even[1], four(16)));
    high = _mm512_add_epi16(high, _mm512_maddubs_epi16(c.even[1], four(24)));
    low = _mm512_add_epi16(low, _mm512_maddubs_epi16(c.odd[1], four(20)));
    high = _mm512_add_epi16(high, _mm512_maddubs_epi16(c.odd[1], four(28)));
    return iadd(_mm512_madd_epi16(low, _mm512_set1_epi16(1)),
                _mm512_madd_epi16(high, _mm512_set1_epi16(num::kPlane)));
}
