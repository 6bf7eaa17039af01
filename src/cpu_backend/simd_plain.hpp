// 16 lanes as an array, each lane computed by the functions of numerics.hpp: the form the others are held
// equal to. Included once, inside the anonymous namespace of kernels_plain.cpp.
#pragma once

struct F {  ///< 16 floats; a lane is a matrix row, a channel, a state column or a position
    float v[16];
};
struct I {  ///< 16 int32
    std::int32_t v[16];
};

template <class R, class Op> inline R lanes(Op op) {
    R r;
    for (int i = 0; i < 16; ++i) r.v[i] = op(i);
    return r;
}

inline F load(const float* p) {
    return lanes<F>([=](int i) { return p[i]; });
}
inline void store(float* p, const F& a) { std::memcpy(p, a.v, sizeof a.v); }
inline F load_first(const float* p, int n) {
    return lanes<F>([=](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_first(float* p, const F& a, int n) { std::memcpy(p, a.v, static_cast<std::size_t>(n) * 4); }
inline F set(float x) {
    return lanes<F>([=](int) { return x; });
}
inline F zero() { return set(0.0f); }
inline F add(const F& a, const F& b) {
    return lanes<F>([&](int i) { return a.v[i] + b.v[i]; });
}
inline F sub(const F& a, const F& b) {
    return lanes<F>([&](int i) { return a.v[i] - b.v[i]; });
}
inline F mul(const F& a, const F& b) {
    return lanes<F>([&](int i) { return a.v[i] * b.v[i]; });
}
inline F div(const F& a, const F& b) {
    return lanes<F>([&](int i) { return a.v[i] / b.v[i]; });
}
inline F fma(const F& a, const F& b, const F& c) {
    return lanes<F>([&](int i) { return num::fma(a.v[i], b.v[i], c.v[i]); });
}

struct D {  ///< 16 doubles
    double v[16];
};
inline D load(const double* p) {
    return lanes<D>([=](int i) { return p[i]; });
}
inline void store(double* p, const D& a) { std::memcpy(p, a.v, sizeof a.v); }
inline D set(double x) {
    return lanes<D>([=](int) { return x; });
}
inline D add(const D& a, const D& b) {
    return lanes<D>([&](int i) { return a.v[i] + b.v[i]; });
}
inline D mul(const D& a, const D& b) {
    return lanes<D>([&](int i) { return a.v[i] * b.v[i]; });
}
/// Only where the product and the sum are exact: then it rounds nothing.
inline D fma(const D& a, const D& b, const D& c) {
    return lanes<D>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline D widen(const F& a) {
    return lanes<D>([&](int i) { return static_cast<double>(a.v[i]); });
}
inline F narrow(const D& a) {
    return lanes<F>([&](int i) { return static_cast<float>(a.v[i]); });
}

inline I iset(int x) {
    return lanes<I>([=](int) { return x; });
}
inline I iload(const void* p) {
    I r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline I iadd(const I& a, const I& b) {
    return lanes<I>([&](int i) { return a.v[i] + b.v[i]; });
}
inline I isub(const I& a, const I& b) {
    return lanes<I>([&](int i) { return a.v[i] - b.v[i]; });
}
inline I iand(const I& a, const I& b) {
    return lanes<I>([&](int i) { return a.v[i] & b.v[i]; });
}
template <int N> inline I shift_left(const I& a) {
    return lanes<I>(
        [&](int i) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) << N); });
}
template <int N> inline I shift_right(const I& a) {
    return lanes<I>(
        [&](int i) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) >> N); });
}
inline F as_float(const I& a) {
    return lanes<F>([&](int i) { return num::float_of(static_cast<std::uint32_t>(a.v[i])); });
}
inline F to_float(const I& a) {
    return lanes<F>([&](int i) { return static_cast<float>(a.v[i]); });
}
inline I widen_bytes(const std::uint8_t* p) {
    return lanes<I>([=](int i) { return std::int32_t{p[i]}; });
}
inline I widen_words(const std::uint8_t* p) {
    return lanes<I>([=](int i) { return p[2 * i] | p[2 * i + 1] << 8; });
}
/// The 32-bit words at base + offsets (bytes).
inline I gather(const void* base, const I& offsets) {
    return lanes<I>([&](int i) {
        std::int32_t x;
        std::memcpy(&x, static_cast<const char*>(base) + offsets.v[i], 4);
        return x;
    });
}

inline F exp(const F& a) {
    return lanes<F>([&](int i) { return num::exp(a.v[i]); });
}
/// The values of e4m3 codes in the lanes' low bytes, other bits 0.
inline F from_e4m3(const I& b) {
    return lanes<F>([&](int i) { return num::from_e4m3(static_cast<std::uint8_t>(b.v[i])); });
}

/// 16 half precision numbers.
inline F load_f16(const std::uint8_t* p) {
    return lanes<F>(
        [=](int i) { return num::from_f16(static_cast<std::uint16_t>(p[2 * i] | p[2 * i + 1] << 8)); });
}

/// Four columns of e4m3 codes, stored as column pairs [2][16 rows][2], as 1/256 of their values (exact).
inline void e4m3_four(const std::uint8_t* p, F* w) {
    for (int k = 0; k < 4; ++k)
        w[k] = lanes<F>([=](int i) { return num::from_e4m3(p[32 * (k / 2) + 2 * i + k % 2]) * 0.00390625f; });
}

/// 16 non-negative e4m3 codes as 1/256 of their values.
inline F e4m3_scales(const std::uint8_t* p) {
    return lanes<F>([=](int i) { return num::from_e4m3(p[i]) * 0.00390625f; });
}

/// 16 columns of a tile of e2m1 codes, two octets of [16 rows][4 bytes].
struct Codes {
    std::uint8_t v[128];
};
inline void unpack(const std::uint8_t* p, Codes& c) { std::memcpy(c.v, p, sizeof c.v); }

/// Sum of (code value + 12) * q over the 16 columns; q as QuantChunk stores it.
inline I group_sum(const Codes& c, const std::int8_t* q) {
    return lanes<I>([&](int row) {
        std::int32_t sum = 0;
        for (int k = 0; k < 16; ++k) {
            const int octet = k / 8, at = octet * 16 + (k & 1) * 4 + k % 8 / 2;
            const unsigned code = c.v[octet * 64 + row * 4 + k % 8 / 2] >> (4 * (k & 1)) & 15u;
            sum += (num::twice_e2m1(code) + 12) * (q[at + 8] * num::kPlane + q[at]);
        }
        return sum;
    });
}
