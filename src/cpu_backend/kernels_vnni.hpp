// e4m3 weights times a few input rows by products of unsigned with signed bytes (vpdpbusd). A weight's units
// are sign and 18 bits: three digits of 7 bits, found by their code in tables of 128 bytes. A digit d is kept
// as 128 + d, so that a negative weight is the byte's negation; sums start at -128 times the activations,
// which takes the 128 off. An activation is three signed bytes. Sums of a segment stay below 2^25 and are put
// together in double, exactly. Included inside the anonymous namespace of a kernel source.
#pragma once

/// Behind the part that the AVX-512 kernels read: planes of four columns [cols / 4][3][4 bytes], then
/// -128 * the sum of each plane over a block of num::kBlock columns, [blocks][3].
struct VnniRow {
    const std::int8_t* planes;
    const std::int32_t* starts;
};
inline std::int64_t quads_of(std::int64_t cols) { return (cols + 3) / 4; }
inline std::int64_t blocks_of(std::int64_t cols) { return (cols + num::kBlock - 1) / num::kBlock; }
inline VnniRow vnni_row(const WideRow* row, std::int64_t cols) {
    const auto* planes = reinterpret_cast<const std::int8_t*>(row) + wide_bytes(cols);
    return {planes, reinterpret_cast<const std::int32_t*>(planes + 12 * quads_of(cols))};
}

std::size_t vnni_bytes(std::int64_t cols) {
    return wide_bytes(cols) +
           static_cast<std::size_t>(12 * (quads_of(cols) + blocks_of(cols)) + 63) / 64 * 64;
}

void quantize_vnni(const float* x, std::int64_t cols, WideRow* to) {
    quantize_wide(x, cols, to);
    const double* q = wide_codes(to);
    auto* planes = reinterpret_cast<std::int8_t*>(to) + wide_bytes(cols);
    auto* starts = reinterpret_cast<std::int32_t*>(planes + 12 * quads_of(cols));
    std::memset(planes, 0, static_cast<std::size_t>(12 * (quads_of(cols) + blocks_of(cols))));
    for (std::int64_t k = 0; k < cols; ++k) {
        const auto code = static_cast<std::int32_t>(q[k]);
        const auto low = static_cast<std::int8_t>(code), middle = static_cast<std::int8_t>((code - low) >> 8);
        const auto high = static_cast<std::int8_t>((((code - low) >> 8) - middle) >> 8);
        std::int8_t* at = planes + k / 4 * 12 + k % 4;
        std::int32_t* start = starts + k / num::kBlock * 3;
        at[0] = low, at[4] = middle, at[8] = high;
        start[0] -= 128 * low, start[1] -= 128 * middle, start[2] -= 128 * high;
    }
}

/// 128 + digit i of the units of a code without its sign.
struct DigitTables {
    alignas(64) std::uint8_t of[3][128];
    constexpr DigitTables() : of() {
        for (int code = 0; code < 128; ++code) {
            const int e = code >> 3, f = code & 7, units = e ? (8 + f) << (e - 1) : f;
            for (int i = 0; i < 3; ++i) of[i][code] = static_cast<std::uint8_t>(128 + (units >> 7 * i & 127));
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

/// `quads` times four columns of R rows, added to sum[row][digit of the weight * 3 + plane].
template <int R>
[[gnu::always_inline]] inline void add_quads(const std::uint8_t* codes, std::int64_t quads,
                                             const std::int8_t* const* planes, I (*sum)[9]) {
    const I order = iload(kQuadOrder.of);
    I table[3][2], acc[R][9];
    const std::int8_t* q[R];
    unroll<3>(
        FTMPI_UNROLLED(i) { table[i][0] = iload(kDigits.of[i]), table[i][1] = iload(kDigits.of[i] + 64); });
    unroll<R>(FTMPI_UNROLLED(r) {
        q[r] = planes[r];
        unroll<9>(FTMPI_UNROLLED(i) { acc[r][i] = sum[r][i]; });
    });
    for (std::int64_t k = 0; k < quads; ++k) {
        const I code = _mm512_permutexvar_epi8(order, iload(codes + 64 * k));
        const __mmask64 negative = _mm512_movepi8_mask(code);
        I digit[3];
        unroll<3>(FTMPI_UNROLLED(i) {
            const I d = _mm512_permutex2var_epi8(table[i][0], code, table[i][1]);
            digit[i] = _mm512_mask_sub_epi8(d, negative, _mm512_setzero_si512(), d);
        });
        unroll<R>(FTMPI_UNROLLED(r) {
            unroll<3>(FTMPI_UNROLLED(j) {
                int four;
                std::memcpy(&four, q[r] + 12 * k + 4 * j, 4);
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
[[gnu::always_inline]] inline void columns(const std::uint8_t* tile, std::int64_t k0, std::int64_t end,
                                           const VnniRow* rows, F* value) {
    I sum[R][9];
    const std::int8_t* q[R];
    for (int r = 0; r < R; ++r) {
        q[r] = rows[r].planes + k0 / 4 * 12;
        std::int32_t start[3] = {};
        for (std::int64_t b = k0 / num::kBlock; b * num::kBlock < end; ++b)
            for (int j = 0; j < 3; ++j) start[j] += rows[r].starts[3 * b + j];
        for (int i = 0; i < 9; ++i) sum[r][i] = iset(start[i % 3]);
    }
    const std::int64_t whole = (end - k0) / 4, rest = (end - k0) % 4;
    add_quads<R>(tile + k0 * 16, whole, q, sum);
    if (rest) {  // missing columns meet planes of 0; an odd last one is stored without a partner
        std::uint8_t padded[64] = {};
        const std::uint8_t* from = tile + (k0 + 4 * whole) * 16;
        std::memcpy(padded, from, static_cast<std::size_t>(rest / 2 * 32));
        for (int r = 0; rest % 2 && r < 16; ++r) padded[rest / 2 * 32 + 2 * r] = from[rest / 2 * 32 + r];
        for (int r = 0; r < R; ++r) q[r] += 12 * whole;
        add_quads<R>(padded, 1, q, sum);
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
        if (!block_scales) columns<R>(tile, s, end, rows, segment);
        else
            for (int r = 0; r < R; ++r) segment[r] = zero();
        for (std::int64_t k = s; block_scales && k < end; k += num::kBlock) {
            columns<R>(tile, k, k + num::kBlock < end ? k + num::kBlock : end, rows, value);
            const F scale = load(block_scales + k / num::kBlock * 16);
            for (int r = 0; r < R; ++r) segment[r] = fma(value[r], scale, segment[r]);
        }
        for (int r = 0; r < R; ++r)
            total[r] = add(total[r], mul(segment[r], set(wide_units(in[r].wide, cols)[s / num::kSegment])));
    }
}

void dot_vnni(const TileView& m, std::int64_t begin, std::int64_t end, const InputRow* in, std::int64_t n,
              float* const* out) {
    if ((m.format != Format::fp8_row && m.format != Format::fp8_block) || n > kWideRows)
        return kernels_avx512().dot(m, begin, end, in, n, out);
    for (std::int64_t t = begin; t < end; ++t) {
        const std::uint8_t* codes = m.codes + static_cast<std::size_t>(t) * m.codes_per_tile;
        const auto* blocks =
            m.format == Format::fp8_block
                ? reinterpret_cast<const float*>(m.scales + static_cast<std::size_t>(t) * m.scales_per_tile)
                : nullptr;
        F total[kWideRows];
        std::int64_t r0 = 0;
        for (; r0 + 2 <= n; r0 += 2) tile_dot_vnni<2>(codes, blocks, m.cols, in + r0, total + r0);
        if (r0 < n) tile_dot_vnni<1>(codes, blocks, m.cols, in + r0, total + r0);
        const std::int64_t valid = m.rows - t * kRowTile < kRowTile ? m.rows - t * kRowTile : kRowTile;
        for (std::int64_t r = 0; r < n; ++r) {
            const F y = m.multipliers ? mul(load(m.multipliers + t * kRowTile), total[r]) : total[r];
            float* to = out[r] + (t - begin) * kRowTile;
            if (valid == kRowTile) store(to, y);
            else store_first(to, y, static_cast<int>(valid));
        }
    }
}
