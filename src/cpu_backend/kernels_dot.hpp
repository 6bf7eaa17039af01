// Rows of a matrix times rows of a step's input. Included inside the anonymous namespace of each kernel
// source. A lane is a matrix row, so a chunk is an fma chain of vectors; independent chunks and input rows
// hide its latency.
#pragma once

constexpr int kRowsAtOnce =
    kChains;  ///< input rows whose chains run together; kChains is the instruction set's
constexpr int kQuad = 4 * num::kChunk;  ///< columns that are decoded together

/// The ways a tile's columns are stored: kBytes of a code, kTogether columns of a row side by side. four():
/// the rows' values in columns k .. k + 3, k a multiple of 4.
struct Bf16Tile {
    static constexpr int kBytes = 2, kTogether = 2;
    static void four(const std::uint8_t* tile, std::int64_t k, F* w) {
        const std::uint8_t* p = tile + k * 32;
        const I high = iset(static_cast<int>(0xffff0000u)), v0 = iload(p), v1 = iload(p + 64);
        w[0] = as_float(shift_left<16>(v0));
        w[1] = as_float(iand(v0, high));
        w[2] = as_float(shift_left<16>(v1));
        w[3] = as_float(iand(v1, high));
    }
};
struct F16Tile {
    static constexpr int kBytes = 2, kTogether = 1;
    static void four(const std::uint8_t* tile, std::int64_t k, F* w) {
        for (int i = 0; i < 4; ++i) w[i] = load_f16(tile + (k + i) * 32);
    }
};
/// F32 weights, or decoded columns: [cols][16] floats.
struct FloatTile {
    static constexpr int kBytes = 4, kTogether = 1;
    static void four(const std::uint8_t* tile, std::int64_t k, F* w) {
        const float* p = reinterpret_cast<const float*>(tile) + k * 16;
        for (int i = 0; i < 4; ++i) w[i] = load(p + 16 * i);
    }
};

/// Columns [k0, k0 + n) of a tile as floats, n <= kQuad. Writes whole fours.
template <class Tile> void decode(const std::uint8_t* tile, std::int64_t k0, int n, float* to) {
    F w[4];
    int j = 0;
    for (; j + 4 <= n; j += 4) {
        Tile::four(tile, k0 + j, w);
        for (int i = 0; i < 4; ++i) store(to + (j + i) * 16, w[i]);
    }
    if (j == n) return;
    // The last one to three columns, as a four padded with zeros; an odd last column is stored without a
    // partner.
    std::uint8_t four[64 * Tile::kBytes] = {};
    const std::uint8_t* from = tile + (k0 + j) * 16 * Tile::kBytes;
    const int whole = (n - j) / Tile::kTogether * Tile::kTogether * 16 * Tile::kBytes;
    std::memcpy(four, from, static_cast<std::size_t>(whole));
    if ((n - j) % Tile::kTogether)
        for (int r = 0; r < 16; ++r)
            std::memcpy(four + whole + 2 * r * Tile::kBytes, from + whole + r * Tile::kBytes, Tile::kBytes);
    Tile::four(four, 0, w);
    for (int i = 0; i < 4; ++i) store(to + (j + i) * 16, w[i]);
}

/// C whole chunks of R input rows. row points at the first chunk's column in each row.
template <class Tile, int R, int C>
[[gnu::always_inline]] inline void whole_chunks(const std::uint8_t* tile, std::int64_t k,
                                                const float* const (&row)[R], F (&acc)[R][C]) {
    unroll<R>(FTMPI_UNROLLED(r) { unroll<C>(FTMPI_UNROLLED(c) { acc[r][c] = zero(); }); });
    for (int j = 0; j < num::kChunk; j += 4)
        unroll<C>(FTMPI_UNROLLED(c) {
            F w[4];
            Tile::four(tile, k + c * num::kChunk + j, w);
            unroll<4>(FTMPI_UNROLLED(i) {
                unroll<R>(FTMPI_UNROLLED(r) {
                    acc[r][c] = fma(w[i], set(row[r][c * num::kChunk + j + i]), acc[r][c]);
                });
            });
        });
}

/// N whole chunks of R input rows added to block; row moves on.
template <class Tile, int N, int R>
[[gnu::always_inline]] inline void add_chunks(const std::uint8_t* tile, std::int64_t k,
                                              const float* (&row)[R], F (&block)[R]) {
    F acc[R][N];
    whole_chunks<Tile, R, N>(tile, k, row, acc);
    unroll<N>(FTMPI_UNROLLED(c) { unroll<R>(FTMPI_UNROLLED(r) { block[r] = add(block[r], acc[r][c]); }); });
    unroll<R>(FTMPI_UNROLLED(r) { row[r] += N * num::kChunk; });
}

/// n <= kQuad columns from column k of the tile, into segment[R]. Columns that are no whole chunk only with
/// FloatTile.
template <class Tile, int R>
void quad(const std::uint8_t* tile, std::int64_t k, int n, const float* const* x, F* segment) {
    constexpr int C = R == 1 ? 4 : kRowsAtOnce / R >= 4 ? 4 : kRowsAtOnce / R >= 2 ? 2 : 1;
    const float* row[R];
    F block[R];
    unroll<R>(FTMPI_UNROLLED(r) {
        row[r] = x[r];
        block[r] = segment[r];
    });
    int c = 0;
    for (; c + C * num::kChunk <= n; c += C * num::kChunk) add_chunks<Tile, C>(tile, k + c, row, block);
    if constexpr (C > 1)
        for (; c + num::kChunk <= n; c += num::kChunk) add_chunks<Tile, 1>(tile, k + c, row, block);
    if (c < n) {
        const float* w = reinterpret_cast<const float*>(tile) + (k + c) * 16;
        unroll<R>(FTMPI_UNROLLED(r) {
            F acc = zero();
            for (int j = 0; j < n - c; ++j) acc = fma(load(w + 16 * j), set(row[r][j]), acc);
            block[r] = add(block[r], acc);
        });
    }
    unroll<R>(FTMPI_UNROLLED(r) { segment[r] = block[r]; });
}

template <class Tile>
void quad_of(int rows, const std::uint8_t* tile, std::int64_t k, int n, const float* const* x, F* segment) {
    switch (rows) {
        case 1: return quad<Tile, 1>(tile, k, n, x, segment);
        case 2: return quad<Tile, 2>(tile, k, n, x, segment);
        case 3: return quad<Tile, 3>(tile, k, n, x, segment);
        case 4: return quad<Tile, 4>(tile, k, n, x, segment);
        default: break;
    }
    if constexpr (kRowsAtOnce == 8) switch (rows) {
            case 5: return quad<Tile, 5>(tile, k, n, x, segment);
            case 6: return quad<Tile, 6>(tile, k, n, x, segment);
            case 7: return quad<Tile, 7>(tile, k, n, x, segment);
            case 8: return quad<Tile, 8>(tile, k, n, x, segment);
            default: break;
        }
}

/// A tile of BF16, F16 or F32 weights times n <= kRowBlock input rows.
template <class Tile>
void tile_dot(const std::uint8_t* tile, std::int64_t cols, const float* const* in, int n, F* total) {
    constexpr bool kDecoded = Tile::kBytes == 4;
    alignas(64) float decoded[kDecoded ? 16 : kQuad * 16];
    F segment[kRowBlock];
    const float* x[kRowsAtOnce];
    for (int r = 0; r < n; ++r) total[r] = zero();
    for (std::int64_t s = 0; s < cols; s += num::kSegment) {
        const std::int64_t end = s + num::kSegment < cols ? s + num::kSegment : cols;
        for (int r = 0; r < n; ++r) segment[r] = zero();
        for (std::int64_t k = s; k < end; k += kQuad) {
            const int width = static_cast<int>(end - k < kQuad ? end - k : kQuad);
            const bool direct = kDecoded || (n <= kRowsAtOnce && width == kQuad);
            if (!direct) decode<Tile>(tile, k, width, decoded);
            for (int r0 = 0; r0 < n; r0 += kRowsAtOnce) {
                const int rows = n - r0 < kRowsAtOnce ? n - r0 : kRowsAtOnce;
                for (int r = 0; r < rows; ++r) x[r] = in[r0 + r] + k;
                if (direct) quad_of<Tile>(rows, tile, k, width, x, segment + r0);
                else
                    quad_of<FloatTile>(rows, reinterpret_cast<const std::uint8_t*>(decoded), 0, width, x,
                                       segment + r0);
            }
        }
        for (int r = 0; r < n; ++r) total[r] = add(total[r], segment[r]);
    }
}

inline F e8m0_scales(const std::uint8_t* p) {
    alignas(64) float x[16];
    for (int i = 0; i < 16; ++i) x[i] = num::from_e8m0(p[i]);
    return load(x);
}

/// A tile of 4-bit weights times n <= kRowBlock input rows: exact integer sums of groups, each chunk decoded
/// once.
template <bool kNvfp4>
void tile_dot_4bit(const std::uint8_t* tile, const std::uint8_t* scales, std::int64_t cols,
                   const InputRow* in, int n, F* total) {
    F segment[kRowBlock];
    for (int r = 0; r < n; ++r) total[r] = zero();
    for (std::int64_t s = 0; s < cols; s += num::kSegment) {
        const std::int64_t end = s + num::kSegment < cols ? s + num::kSegment : cols;
        for (int r = 0; r < n; ++r) segment[r] = zero();
        for (std::int64_t k = s; k < end; k += num::kChunk) {
            const std::uint8_t* p = tile + k * 8;
            alignas(64) std::uint8_t padded[256];
            if (const int width = static_cast<int>(end - k < num::kChunk ? end - k : num::kChunk);
                width < num::kChunk) {
                // Missing columns become codes of 0; the last octet's rows are shorter than 4 bytes when cols
                // % 8 is not 0.
                std::memset(padded, 0, sizeof padded);
                const int whole = width / 8 * 64, rest = width % 8 / 2;
                std::memcpy(padded, p, static_cast<std::size_t>(whole));
                for (int r = 0; r < 16 && rest; ++r)
                    std::memcpy(padded + whole + 4 * r, p + whole + rest * r, static_cast<std::size_t>(rest));
                p = padded;
            }
            Codes c0, c1;
            unpack(p, c0);
            unpack(p + 128, c1);
            F s0, s1 = zero();
            if constexpr (kNvfp4) {
                s0 = e4m3_scales(scales + k);
                if (end - k > 16) s1 = e4m3_scales(scales + k + 16);
            } else {
                s0 = e8m0_scales(scales + k / 2);
            }
            for (int r = 0; r < n; ++r) {
                const QuantChunk& x = in[r].q[k / num::kChunk];
                const I sum0 = isub(group_sum(c0, x.q), iset(x.twelve_times[0]));
                const I sum1 = isub(group_sum(c1, x.q + 32), iset(x.twelve_times[1]));
                F v;
                if constexpr (kNvfp4)  // scales are 1/256 of themselves, the unit is 256 times itself: the
                                       // same bits
                    v = mul(fma(to_float(sum1), s1, mul(to_float(sum0), s0)), set(x.unit256));
                else v = mul(mul(to_float(iadd(sum0, sum1)), s0), set(x.unit));
                segment[r] = add(segment[r], v);
            }
        }
        for (int r = 0; r < n; ++r) total[r] = add(total[r], segment[r]);
    }
}

void dot(const TileView& m, std::int64_t begin, std::int64_t end, const InputRow* in, std::int64_t n,
         float* const* out) {
    for (std::int64_t r0 = 0; r0 < n; r0 += kRowBlock) {
        const int rows = static_cast<int>(n - r0 < kRowBlock ? n - r0 : kRowBlock);
        const float* x[kRowBlock];
        for (int r = 0; r < rows; ++r) x[r] = in[r0 + r].x;
        const bool e4m3 = m.format == Format::fp8_row || m.format == Format::fp8_block;
        for (std::int64_t t = begin; t < end; ++t) {
            const std::uint8_t* codes = m.codes + static_cast<std::size_t>(t) * m.codes_per_tile;
            const std::uint8_t* scales = m.scales + static_cast<std::size_t>(t) * m.scales_per_tile;
            const auto* blocks =
                m.format == Format::fp8_block ? reinterpret_cast<const float*>(scales) : nullptr;
            F total[kRowBlock];
            if (e4m3) tile_dot_wide(codes, blocks, m.cols, in + r0, rows, total);
            else if (m.format == Format::bf16) tile_dot<Bf16Tile>(codes, m.cols, x, rows, total);
            else if (m.format == Format::f16) tile_dot<F16Tile>(codes, m.cols, x, rows, total);
            else if (m.format == Format::f32) tile_dot<FloatTile>(codes, m.cols, x, rows, total);
            else if (m.format == Format::nvfp4)
                tile_dot_4bit<true>(codes, scales, m.cols, in + r0, rows, total);
            else tile_dot_4bit<false>(codes, scales, m.cols, in + r0, rows, total);
            const std::int64_t valid = m.rows - t * kRowTile < kRowTile ? m.rows - t * kRowTile : kRowTile;
            for (int r = 0; r < rows; ++r) {
                const F y = m.multipliers ? mul(load(m.multipliers + t * kRowTile), total[r]) : total[r];
                float* to = out[r0 + r] + (t - begin) * kRowTile;
                if (valid == kRowTile) store(to, y);
                else store_first(to, y, static_cast<int>(valid));
            }
        }
    }
}

void quantize(const float* x, std::int64_t cols, QuantChunk* out) {
    for (std::int64_t k0 = 0; k0 < cols; k0 += num::kChunk, ++out) {
        const int n = static_cast<int>(cols - k0 < num::kChunk ? cols - k0 : num::kChunk);
        float v[num::kChunk] = {};
        std::memcpy(v, x + k0, static_cast<std::size_t>(n) * 4);
        std::uint32_t amax = 0;
        for (int i = 0; i < num::kChunk; ++i) {
            const std::uint32_t a = num::bits_of(v[i]) & 0x7fffffffu;
            amax = a > amax ? a : amax;
        }
        const int e = num::block_exponent(amax);
        std::int32_t q[num::kChunk] = {};
        if (e != num::kNotFinite) {
            const float inverse = num::pow2(-e);
            for (int i = 0; i < num::kChunk; ++i) q[i] = num::block_code(v[i], inverse);
        }
        for (int o = 0; o < 4; ++o)
            for (int i = 0; i < 4; ++i) {
                std::int8_t* to = out->q + 16 * o + i;
                const std::int32_t even = q[8 * o + 2 * i], odd = q[8 * o + 2 * i + 1];
                to[0] = static_cast<std::int8_t>(num::plane_low(even));
                to[4] = static_cast<std::int8_t>(num::plane_low(odd));
                to[8] = static_cast<std::int8_t>(num::plane_high(even));
                to[12] = static_cast<std::int8_t>(num::plane_high(odd));
            }
        for (int g = 0; g < 2; ++g) {
            std::int32_t sum = 0;
            for (int i = 0; i < 16; ++i) sum += q[16 * g + i];
            out->twelve_times[g] = 12 * sum;
        }
        out->unit = num::block_unit(e);
        out->unit256 = out->unit * 256.0f;
    }
}
