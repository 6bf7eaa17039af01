// e4m3 weights times a few input rows by products of unsigned with signed bytes (vpdpbusd). A weight's units
// are sign and 18 bits: three digits of 7 bits, found by their code in tables of 128 bytes. A digit d is kept
// as 128 + d, so that a negative weight is the byte's negation; sums start at -128 times the activations,
// which takes the 128 off. An activation is three signed bytes. Sums of a segment stay below 2^25 and are put
// together in double, exactly. Included inside the anonymous namespace of a kernel source.
#pragma once

/// Behind the part that the AVX-512 kernels read: planes [3][padded columns], then -128 * the sum of each
/// plane over a block of num::kBlock columns, [blocks][3].
struct VnniRow {
    const std::int8_t* planes;
    const std::int32_t* starts;
};
inline std::int64_t padded_columns(std::int64_t cols) { return (cols + 63) / 64 * 64; }
inline std::int64_t blocks_of(std::int64_t cols) { return (cols + num::kBlock - 1) / num::kBlock; }
inline VnniRow vnni_row(const WideRow* row, std::int64_t cols) {
    const auto* planes = reinterpret_cast<const std::int8_t*>(row) + wide_bytes(cols);
    return {planes, reinterpret_cast<const std::int32_t*>(planes + 3 * padded_columns(cols))};
}

std::size_t vnni_bytes(std::int64_t cols) {
    return wide_bytes(cols) +
           static_cast<std::size_t>(3 * padded_columns(cols) + 12 * blocks_of(cols) + 63) / 64 * 64;
}

void quantize_vnni(const float* x, std::int64_t cols, WideRow* to) {
    quantize_wide(x, cols, to);
    const double* q = wide_codes(to);
    auto* planes = reinterpret_cast<std::int8_t*>(to) + wide_bytes(cols);
    auto* starts = reinterpret_cast<std::int32_t*>(planes + 3 * padded_columns(cols));
    std::memset(planes, 0, static_cast<std::size_t>(3 * padded_columns(cols) + 12 * blocks_of(cols)));
    for (std::int64_t k = 0; k < cols; ++k) {
        const auto code = static_cast<std::int32_t>(q[k]);
        const auto low = static_cast<std::int8_t>(code), middle = static_cast<std::int8_t>((code - low) >> 8);
        const auto high = static_cast<std::int8_t>((((code - low) >> 8) - middle) >> 8);
        std::int8_t* at = planes + k;
        std::int32_t* start = starts + k / num::kBlock * 3;
        at[0] = low, at[padded_columns(cols)] = middle, at[2 * padded_columns(cols)] = high;
        start[0] -= 128 * low, start[1] -= 128 * middle, start[2] -= 128 * high;
    }
}

/// 128 + a digit of the units of a code by its low 6 bits: codes below 64 have digits 0 and 1, others 1
/// and 2.
struct DigitTables {
    alignas(64) std::uint8_t low[2][64], high[2][64];
    constexpr DigitTables() : low(), high() {
        for (int code = 0; code < 128; ++code) {
            const int e = code >> 3, f = code & 7, units = e ? (8 + f) << (e - 1) : f;
            for (int i = 0; i < 2; ++i)
                (code < 64 ? low : high)[i][code & 63] =
                    static_cast<std::uint8_t>(128 + (units >> 7 * (i + code / 64) & 127));
        }
    }
};
constexpr DigitTables kDigits;

/// Makes pairs of columns [2][16 rows][2] quads [16 rows][4].
struct QuadOrder {
    alignas(64) std::uint8_t of[64];
    constexpr QuadOrder() : of() {
        for (int i = 0; i < 64; ++i) of[i] = static_cast<std::uint8_t>(i % 4 / 2 * 32 + i / 4 * 2 + i % 2);
    }
};
constexpr QuadOrder kQuadOrder;

/// 128 + each digit, signed, of four columns.
[[gnu::always_inline]] inline void digits_of(const std::uint8_t* codes, I* digit) {
    const I code = _mm512_permutexvar_epi8(iload(kQuadOrder.of), iload(codes)), none = _mm512_set1_epi8(-128);
    const __mmask64 negative = _mm512_movepi8_mask(code),
                    high = _mm512_test_epi8_mask(code, _mm512_set1_epi8(64));
    digit[0] = _mm512_mask_permutexvar_epi8(none, ~high, code, iload(kDigits.low[0]));
    digit[1] = _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(code, iload(kDigits.low[1])), high, code,
                                            iload(kDigits.high[0]));
    digit[2] = _mm512_mask_permutexvar_epi8(none, high, code, iload(kDigits.high[1]));
    unroll<3>(FTMPI_UNROLLED(i) {
        digit[i] = _mm512_mask_sub_epi8(digit[i], negative, _mm512_setzero_si512(), digit[i]);
    });
}

/// The last 1 to 3 columns of a tile as four; an odd last one is stored without a partner.
inline void pad_quad(const std::uint8_t* from, std::int64_t rest, std::uint8_t* padded) {
    std::memset(padded, 0, 64);
    std::memcpy(padded, from, static_cast<std::size_t>(rest / 2 * 32));
    for (int r = 0; rest % 2 && r < 16; ++r) padded[rest / 2 * 32 + 2 * r] = from[rest / 2 * 32 + r];
}

/// `quads` times four columns of R rows, added to sum[row][digit of the weight * 3 + plane].
template <int R>
[[gnu::always_inline]] inline void add_quads(const std::uint8_t* codes, std::int64_t quads,
                                             const std::int8_t* const* planes, std::int64_t stride,
                                             I (*sum)[9]) {
    I acc[R][9];
    const std::int8_t* q[R];
    unroll<R>(FTMPI_UNROLLED(r) {
        q[r] = planes[r];
        unroll<9>(FTMPI_UNROLLED(i) { acc[r][i] = sum[r][i]; });
    });
    for (std::int64_t k = 0; k < quads; ++k) {
        I digit[3];
        digits_of(codes + 64 * k, digit);
        unroll<R>(FTMPI_UNROLLED(r) {
            unroll<3>(FTMPI_UNROLLED(j) {
                int four;
                std::memcpy(&four, q[r] + 4 * k + j * stride, 4);
                unroll<3>(FTMPI_UNROLLED(i) {
                    acc[r][3 * i + j] = _mm512_dpbusd_epi32(acc[r][3 * i + j], digit[i], iset(four));
                });
            });
        });
    }
    unroll<R>(FTMPI_UNROLLED(r) { unroll<9>(FTMPI_UNROLLED(i) { sum[r][i] = acc[r][i]; }); });
}

/// The sums of digits and planes as one number, rounded once.
inline F rounded(const I* sum) {
    const D digit = set(128.0), plane = set(256.0);
    D all = set(0.0);
    unroll<3>(FTMPI_UNROLLED(i) {
        const I* s = sum + 2 - i;  // of the highest plane first
        const I high = iadd(shift_left<7>(s[6]), s[3]);
        const auto exact = [](I v) {
            return D{_mm512_cvtepi32_pd(_mm512_castsi512_si256(v)),
                     _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(v, 1))};
        };
        all = fma(all, plane, fma(exact(high), digit, exact(s[0])));
    });
    return narrow(all);
}

/// Columns [k0, end) of a tile times R rows, rounded; within a segment, from a block's first column.
template <int R>
[[gnu::always_inline]] inline void columns(const std::uint8_t* tile, std::int64_t cols, std::int64_t k0,
                                           std::int64_t end, const VnniRow* rows, F* value) {
    I sum[R][9];
    const std::int8_t* q[R];
    for (int r = 0; r < R; ++r) {
        q[r] = rows[r].planes + k0;
        std::int32_t start[3] = {};
        for (std::int64_t b = k0 / num::kBlock; b * num::kBlock < end; ++b)
            for (int j = 0; j < 3; ++j) start[j] += rows[r].starts[3 * b + j];
        for (int i = 0; i < 9; ++i) sum[r][i] = iset(start[i % 3]);
    }
    const std::int64_t stride = padded_columns(cols), whole = (end - k0) / 4, rest = (end - k0) % 4;
    add_quads<R>(tile + k0 * 16, whole, q, stride, sum);
    if (rest) {  // missing columns meet planes of 0
        std::uint8_t padded[64];
        pad_quad(tile + (k0 + 4 * whole) * 16, rest, padded);
        for (int r = 0; r < R; ++r) q[r] += 4 * whole;
        add_quads<R>(padded, 1, q, stride, sum);
    }
    for (int r = 0; r < R; ++r) value[r] = rounded(sum[r]);
}

/// A tile times R rows. block_scales: [cols / 128][16] or null.
template <int R>
void tile_dot_vnni(const std::uint8_t* tile, const float* block_scales, std::int64_t cols, const InputRow* in,
                   F* total) {
    VnniRow rows[R];
    for (int r = 0; r < R; ++r) {
        rows[r] = vnni_row(in[r].wide, cols);
        total[r] = zero();
    }
    for (std::int64_t s = 0; s < cols; s += num::kSegment) {
        const std::int64_t end = s + num::kSegment < cols ? s + num::kSegment : cols;
        F segment[R], value[R];
        if (!block_scales) columns<R>(tile, cols, s, end, rows, segment);
        else
            for (int r = 0; r < R; ++r) segment[r] = zero();
        for (std::int64_t k = s; block_scales && k < end; k += num::kBlock) {
            columns<R>(tile, cols, k, k + num::kBlock < end ? k + num::kBlock : end, rows, value);
            const F scale = load(block_scales + k / num::kBlock * 16);
            for (int r = 0; r < R; ++r) segment[r] = fma(value[r], scale, segment[r]);
        }
        for (int r = 0; r < R; ++r)
            total[r] = add(total[r], mul(segment[r], set(wide_units(in[r].wide, cols)[s / num::kSegment])));
    }
}

void dot_vnni(const TileView& m, std::int64_t begin, std::int64_t end, const InputRow* in, std::int64_t n,
              float* const* out) {
    if ((m.format != Format::fp8_row && m.format != Format::fp8_block) || n > kVnniRows)
        return kernels_avx512().dot(m, begin, end, in, n, out);
    for (std::int64_t t = begin; t < end; ++t) {
        const std::uint8_t* codes = m.codes + static_cast<std::size_t>(t) * m.codes_per_tile;
        const auto* blocks =
            m.format == Format::fp8_block
                ? reinterpret_cast<const float*>(m.scales + static_cast<std::size_t>(t) * m.scales_per_tile)
                : nullptr;
        F total[kVnniRows];
        if (n == 1) tile_dot_vnni<1>(codes, blocks, m.cols, in, total);
        else tile_dot_vnni<2>(codes, blocks, m.cols, in, total);
        const std::int64_t valid = m.rows - t * kRowTile < kRowTile ? m.rows - t * kRowTile : kRowTile;
        for (std::int64_t r = 0; r < n; ++r) {
            const F y = m.multipliers ? mul(load(m.multipliers + t * kRowTile), total[r]) : total[r];
            float* to = out[r] + (t - begin) * kRowTile;
            if (valid == kRowTile) store(to, y);
            else store_first(to, y, static_cast<int>(valid));
        }
    }
}
