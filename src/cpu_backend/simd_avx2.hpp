// 16 lanes as two AVX2 registers. Included once, inside the anonymous namespace of kernels_avx2.cpp.
#pragma once

struct F {  ///< 16 floats; a lane is a matrix row, a channel, a state column or a position
    __m256 a, b;
};
struct I {  ///< 16 int32
    __m256i a, b;
};

inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline F load_first(const float* p, int n) {
    alignas(32) float x[16] = {};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return load(x);
}
inline void store_first(float* p, F v, int n) {
    alignas(32) float x[16];
    store(x, v);
    for (int i = 0; i < n; ++i) p[i] = x[i];
}
inline F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F if_greater(F x, F y, F yes, F no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
            _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))};
}

struct D {  ///< 16 doubles
    __m256d v[4];
};
inline D load(const double* p) {
    return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8), _mm256_loadu_pd(p + 12)};
}
inline void store(double* p, D x) {
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, x.v[i]);
}
inline D set(double x) {
    const __m256d v = _mm256_set1_pd(x);
    return {v, v, v, v};
}
inline D add(D x, D y) {
    return {_mm256_add_pd(x.v[0], y.v[0]), _mm256_add_pd(x.v[1], y.v[1]), _mm256_add_pd(x.v[2], y.v[2]),
            _mm256_add_pd(x.v[3], y.v[3])};
}
inline D mul(D x, D y) {
    return {_mm256_mul_pd(x.v[0], y.v[0]), _mm256_mul_pd(x.v[1], y.v[1]), _mm256_mul_pd(x.v[2], y.v[2]),
            _mm256_mul_pd(x.v[3], y.v[3])};
}
inline D fma(D x, D y, D z) {
    return {_mm256_fmadd_pd(x.v[0], y.v[0], z.v[0]), _mm256_fmadd_pd(x.v[1], y.v[1], z.v[1]),
            _mm256_fmadd_pd(x.v[2], y.v[2], z.v[2]), _mm256_fmadd_pd(x.v[3], y.v[3], z.v[3])};
}
inline D widen(F x) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(x.a)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1)),
            _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1))};
}
inline F narrow(D x) {
    return {_mm256_set_m128(_mm256_cvtpd_ps(x.v[1]), _mm256_cvtpd_ps(x.v[0])),
            _mm256_set_m128(_mm256_cvtpd_ps(x.v[3]), _mm256_cvtpd_ps(x.v[2]))};
}

inline I iset(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I iload(const void* p) {
    const auto* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I isub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline I iand(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline I ior(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int N> inline I shift_left(I x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
template <int N> inline I shift_right(I x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
template <int N> inline I shift_right_signed(I x) {
    return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
}
inline F if_greater(I x, I y, F yes, F no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(x.a, y.a))),
            _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(_mm256_cmpgt_epi32(x.b, y.b)))};
}
inline F as_float(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline I as_int(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I truncate(F x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }
inline I widen_bytes(const std::uint8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}
inline I widen_words(const std::uint8_t* p) {
    const auto* v = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(v)), _mm256_cvtepu16_epi32(_mm_loadu_si128(v + 1))};
}
/// The 32-bit words at base + offsets (bytes).
inline I gather(const void* base, I offsets) {
    const auto* p = static_cast<const int*>(base);
    return {_mm256_i32gather_epi32(p, offsets.a, 1), _mm256_i32gather_epi32(p, offsets.b, 1)};
}

inline F halves(__m256i v) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1))};
}

/// 16 half precision numbers.
inline F load_f16(const std::uint8_t* p) {
    return halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

/// Four columns of e4m3 codes, stored as column pairs [2][16 rows][2], as 1/256 of their values: a code's
/// bits shifted into a half float, which is exact for subnormals as well.
inline void e4m3_four(const std::uint8_t* p, F* w) {
    const __m256i keep = _mm256_set1_epi16(static_cast<short>(0xbf80));
    for (int h = 0; h < 2; ++h) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * h));
        w[2 * h] = halves(_mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 1), keep));
        w[2 * h + 1] = halves(_mm256_and_si256(_mm256_srai_epi16(v, 1), keep));
    }
}

/// 16 non-negative e4m3 codes as 1/256 of their values.
inline F e4m3_scales(const std::uint8_t* p) {
    const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return halves(_mm256_slli_epi16(b, 7));
}

/// 16 columns of a tile of e2m1 codes, each code as twice its value + 12 (0..24).
struct Codes {
    I even[2], odd[2];
};
inline void unpack(const std::uint8_t* p, Codes& c) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i low = _mm256_set1_epi8(15);
    const auto even = [&](__m256i v) { return _mm256_shuffle_epi8(table, _mm256_and_si256(v, low)); };
    const auto odd = [&](__m256i v) { return even(_mm256_srli_epi16(v, 4)); };
    for (int o = 0; o < 2; ++o) {
        const I v = iload(p + 64 * o);
        c.even[o] = {even(v.a), even(v.b)};
        c.odd[o] = {odd(v.a), odd(v.b)};
    }
}

/// Sum of (code value + 12) * q over the 16 columns; q as QuantChunk stores it. No 16-bit sum passes 24 * 128
/// * 8.
inline I group_sum(const Codes& c, const std::int8_t* q) {
    const auto four = [q](int at) {
        int x;
        std::memcpy(&x, q + at, 4);
        return _mm256_set1_epi32(x);
    };
    const auto half = [&](__m256i e0, __m256i o0, __m256i e1, __m256i o1) {
        __m256i low = _mm256_maddubs_epi16(e0, four(0)), high = _mm256_maddubs_epi16(e0, four(8));
        low = _mm256_add_epi16(low, _mm256_maddubs_epi16(o0, four(4)));
        high = _mm256_add_epi16(high, _mm256_maddubs_epi16(o0, four(12)));
        low = _mm256_add_epi16(low, _mm256_maddubs_epi16(e1, four(16)));
        high = _mm256_add_epi16(high, _mm256_maddubs_epi16(e1, four(24)));
        low = _mm256_add_epi16(low, _mm256_maddubs_epi16(o1, four(20)));
        high = _mm256_add_epi16(high, _mm256_maddubs_epi16(o1, four(28)));
        return _mm256_add_epi32(_mm256_madd_epi16(low, _mm256_set1_epi16(1)),
                                _mm256_madd_epi16(high, _mm256_set1_epi16(num::kPlane)));
    };
    return {half(c.even[0].a, c.odd[0].a, c.even[1].a, c.odd[1].a),
            half(c.even[0].b, c.odd[0].b, c.even[1].b, c.odd[1].b)};
}
