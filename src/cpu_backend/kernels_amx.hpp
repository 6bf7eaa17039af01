// e4m3 weights times up to 16 input rows at a time by products of signed bytes in AMX tiles: the digits of 7
// bits and planes of kernels_vnni.hpp, signed, nine sums a result. Included inside the anonymous namespace of
// a kernel source.
#pragma once

constexpr int kAmxRows = 16;                      ///< input rows of a tile
constexpr int kStep = 64;                         ///< columns of a tile
constexpr int kSteps = num::kSegment / kStep;     ///< of a segment
constexpr std::int64_t kAmxBlock = 4 * kAmxRows;  ///< input rows that share a decoded segment

struct alignas(64) Digits {
    std::int8_t of[3][kSteps][kStep / 4][16][4];  ///< [digit][step][quad][row][column]
};
struct alignas(64) Planes {
    std::int8_t of[3][kAmxBlock][num::kSegment];
};
struct alignas(64) Sums {
    std::int32_t of[9][kAmxRows][16];  ///< [digit * 3 + plane][input row][row]
};

/// Sums in tiles 0 to 5 and planes in tile 6 have `rows` input rows, digits in tile 7 have 16 quads.
inline void configure_tiles(int rows) {
    alignas(64) std::uint8_t config[64] = {1};  // palette 1; bytes a row from byte 16, rows from byte 48
    for (int i = 0; i < 8; ++i) {
        config[16 + 2 * i] = kStep;
        config[48 + i] = static_cast<std::uint8_t>(i < 7 ? rows : kStep / 4);
    }
    _tile_loadconfig(config);
}

/// Columns [k0, end) of a tile, within a segment.
inline void decode_digits(const std::uint8_t* tile, std::int64_t k0, std::int64_t end, Digits& to) {
    const std::int64_t quads = (end - k0 + kStep - 1) / kStep * (kStep / 4);
    const I bias = _mm512_set1_epi8(-128);
    for (std::int64_t k = 0; k < quads; ++k) {
        const std::int64_t left = end - k0 - 4 * k;
        const std::uint8_t* from = tile + (k0 + 4 * k) * 16;
        std::uint8_t padded[64];
        if (left < 4) {  // what is missing meets planes of 0
            pad_quad(from, left < 0 ? 0 : left, padded);
            from = padded;
        }
        I digit[3];
        digits_of(from, digit);
        for (int i = 0; i < 3; ++i)
            _mm512_store_si512(to.of[i][k / (kStep / 4)][k % (kStep / 4)], _mm512_xor_si512(digit[i], bias));
    }
}

/// The nine sums over steps [begin, end) of a piece of input rows.
inline void multiply(const Digits& w, const std::int8_t (*q)[kAmxBlock][num::kSegment], int begin, int end,
                     Sums& to) {
    asm volatile("" ::: "memory");  // GCC 12 does not know that loads of tiles read memory
#define FTMPI_W(i) _tile_loadd(7, w.of[i][s], kStep)
#define FTMPI_Q(j) _tile_loadd(6, &q[j][0][s * kStep], num::kSegment)
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int s = begin; s < end; ++s) {
        FTMPI_Q(0);
        FTMPI_W(0);
        _tile_dpbssd(0, 6, 7);
        FTMPI_W(1);
        _tile_dpbssd(1, 6, 7);
        FTMPI_W(2);
        _tile_dpbssd(2, 6, 7);
        FTMPI_Q(1);
        _tile_dpbssd(5, 6, 7);
        FTMPI_W(1);
        _tile_dpbssd(4, 6, 7);
        FTMPI_W(0);
        _tile_dpbssd(3, 6, 7);
    }
    _tile_stored(0, to.of[0], 64);
    _tile_stored(1, to.of[3], 64);
    _tile_stored(2, to.of[6], 64);
    _tile_stored(3, to.of[1], 64);
    _tile_stored(4, to.of[4], 64);
    _tile_stored(5, to.of[7], 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    for (int s = begin; s < end; ++s) {
        FTMPI_Q(2);
        FTMPI_W(0);
        _tile_dpbssd(0, 6, 7);
        FTMPI_W(1);
        _tile_dpbssd(1, 6, 7);
        FTMPI_W(2);
        _tile_dpbssd(2, 6, 7);
    }
    _tile_stored(0, to.of[2], 64);
    _tile_stored(1, to.of[5], 64);
    _tile_stored(2, to.of[8], 64);
#undef FTMPI_W
#undef FTMPI_Q
}

inline F rounded_row(const Sums& sums, int r) {
    I sum[9];
    unroll<9>(FTMPI_UNROLLED(i) { sum[i] = iload(sums.of[i][r]); });
    return rounded(sum);
}

/// A segment of a tile times n <= 16 input rows: its values, before their units.
inline void segment_amx(const Digits& w, const std::int8_t (*q)[kAmxBlock][num::kSegment], int columns,
                        const float* block_scales, int n, F* segment) {
    Sums sums;
    if (!block_scales) {
        multiply(w, q, 0, (columns + kStep - 1) / kStep, sums);
        for (int r = 0; r < n; ++r) segment[r] = rounded_row(sums, r);
        return;
    }
    for (int r = 0; r < n; ++r) segment[r] = zero();
    for (int k = 0; k < columns; k += num::kBlock, block_scales += 16) {
        const int end = k + num::kBlock < columns ? k + num::kBlock : columns;
        multiply(w, q, k / kStep, (end + kStep - 1) / kStep, sums);
        const F scale = load(block_scales);
        for (int r = 0; r < n; ++r) segment[r] = fma(rounded_row(sums, r), scale, segment[r]);
    }
}

/// At most kAmxBlock input rows. Results are summed up in `out`, a segment at a time.
inline void dot_block_amx(const TileView& m, std::int64_t begin, std::int64_t end, const InputRow* in, int n,
                          float* const* out) {
    Digits digits;
    Planes planes;
    const int pieces = (n + kAmxRows - 1) / kAmxRows, piece = (n + pieces - 1) / pieces;
    configure_tiles(piece);
    for (std::int64_t s = 0; s < m.cols; s += num::kSegment) {
        const int columns = static_cast<int>(m.cols - s < num::kSegment ? m.cols - s : num::kSegment);
        const auto padded = static_cast<std::size_t>(padded_columns(columns));
        for (int r = 0; r < n; ++r)
            for (int j = 0; j < 3; ++j)
                std::memcpy(planes.of[j][r],
                            vnni_row(in[r].wide, m.cols).planes + j * padded_columns(m.cols) + s, padded);
        const bool first = s == 0, last = s + num::kSegment >= m.cols;
        for (std::int64_t t = begin; t < end; ++t) {
            const std::uint8_t* codes = m.codes + static_cast<std::size_t>(t) * m.codes_per_tile;
            const auto* scales = m.format == Format::fp8_block
                                     ? reinterpret_cast<const float*>(m.scales + static_cast<std::size_t>(t) *
                                                                                     m.scales_per_tile) +
                                           s / num::kBlock * 16
                                     : nullptr;
            decode_digits(codes, s, s + columns, digits);
            const std::int64_t left = m.rows - t * kRowTile;
            const int valid = static_cast<int>(left < kRowTile ? left : kRowTile);
            const F multiplier = m.multipliers ? load(m.multipliers + t * kRowTile) : set(1.0f);
            for (int r0 = 0; r0 < n; r0 += piece) {
                const int rows = n - r0 < piece ? n - r0 : piece;
                F segment[kAmxRows];
                segment_amx(
                    digits,
                    reinterpret_cast<const std::int8_t(*)[kAmxBlock][num::kSegment]>(planes.of[0][r0]),
                    columns, scales, rows, segment);
                for (int r = 0; r < rows; ++r) {
                    float* to = out[r0 + r] + (t - begin) * kRowTile;
                    const F unit = set(wide_units(in[r0 + r].wide, m.cols)[s / num::kSegment]);
                    F y = add(first ? zero() : load_first(to, valid), mul(segment[r], unit));
                    if (last && m.multipliers) y = mul(multiplier, y);
                    store_first(to, y, valid);
                }
            }
        }
    }
}

void dot_amx(const TileView& m, std::int64_t begin, std::int64_t end, const InputRow* in, std::int64_t n,
             float* const* out) {
    if ((m.format != Format::fp8_row && m.format != Format::fp8_block) || n <= kVnniRows || m.cols == 0)
        return dot_vnni(m, begin, end, in, n, out);
    for (std::int64_t r = 0; r < n; r += kAmxBlock)
        dot_block_amx(m, begin, end, in + r, static_cast<int>(n - r < kAmxBlock ? n - r : kAmxBlock),
                      out + r);
    _tile_release();
}
