// e4m3 weights times input rows in 24-bit block fixed point (numerics.hpp). A segment's sum is an integer
// below 2^50 units, which a double holds, so columns are added in any order and rounded once. Included inside
// the anonymous namespace of each kernel source.
#pragma once

/// Sums are of 1/256 of the weights (e4m3_four): times this they count units.
constexpr double kWideSum = 131072.0;  // 256 * 2^9

/// Columns [k0, k0 + n) of a tile as doubles, [n][16]; n <= num::kBlock.
inline void decode_wide(const std::uint8_t* tile, std::int64_t k0, int n, double* to) {
    F w[4];
    for (int j = 0; j < n; j += 4) {
        // Behind the last four lie fewer columns; an odd last one is stored without a partner.
        std::uint8_t padded[64] = {};
        const std::uint8_t* from = tile + (k0 + j) * 16;
        if (const int rest = n - j; rest < 4) {
            std::memcpy(padded, from, static_cast<std::size_t>(rest / 2 * 32));
            for (int r = 0; rest % 2 && r < 16; ++r) padded[rest / 2 * 32 + 2 * r] = from[rest / 2 * 32 + r];
            from = padded;
        }
        e4m3_four(from, w);
        for (int i = 0; i < 4 && j + i < n; ++i) store(to + (j + i) * 16, widen(w[i]));
    }
}

/// n decoded columns of R input rows, added to sum.
template <int R>
[[gnu::always_inline]] inline void add_decoded(const double* w, int n, const double* const* q, D* sum) {
    D acc[R];
    unroll<R>(FTMPI_UNROLLED(r) { acc[r] = sum[r]; });
    for (int j = 0; j < n; ++j) {
        const D column = load(w + 16 * j);
        unroll<R>(FTMPI_UNROLLED(r) { acc[r] = fma(column, set(q[r][j]), acc[r]); });
    }
    unroll<R>(FTMPI_UNROLLED(r) { sum[r] = acc[r]; });
}

/// num::kBlock columns of a tile times R input rows, added to sum: decoded on the way.
template <int R>
[[gnu::always_inline]] inline void add_block(const std::uint8_t* tile, const double* const* q, D* sum) {
    constexpr int kSums = R == 1 ? 4 : R == 2 ? 2 : 1;  // of a row, to hide the latency of few rows
    D acc[R][kSums];
    unroll<R>(FTMPI_UNROLLED(r) {
        unroll<kSums>(FTMPI_UNROLLED(c) { acc[r][c] = c == 0 ? sum[r] : D(set(0.0)); });
    });
    for (int j = 0; j < num::kBlock; j += 4) {
        F w[4];
        e4m3_four(tile + j * 16, w);
        unroll<4>(FTMPI_UNROLLED(i) {
            const D column = widen(w[i]);
            unroll<R>(
                FTMPI_UNROLLED(r) { acc[r][i % kSums] = fma(column, set(q[r][j + i]), acc[r][i % kSums]); });
        });
    }
    unroll<R>(FTMPI_UNROLLED(r) {
        unroll<kSums - 1>(FTMPI_UNROLLED(c) { acc[r][0] = add(acc[r][0], acc[r][c + 1]); });
        sum[r] = acc[r][0];
    });
}

/// op(std::integral_constant of rows), rows in [1, kWideRows].
template <int R = kWideRows, class Op> [[gnu::always_inline]] inline void with_rows(int rows, Op op) {
    if constexpr (R == 1) op(std::integral_constant<int, 1>{});
    else if (rows == R) op(std::integral_constant<int, R>{});
    else with_rows<R - 1>(rows, op);
}

/// A tile times n <= kRowBlock input rows. block_scales: [cols / 128][16] or null.
inline void tile_dot_wide(const std::uint8_t* tile, const float* block_scales, std::int64_t cols,
                          const InputRow* in, int n, F* total) {
    alignas(64) double decoded[num::kBlock * 16];
    D sum[kRowBlock];
    F segment[kRowBlock];
    for (int r = 0; r < n; ++r) total[r] = zero();
    for (std::int64_t s = 0; s < cols; s += num::kSegment) {
        const std::int64_t end = s + num::kSegment < cols ? s + num::kSegment : cols;
        for (int r = 0; r < n; ++r) {
            sum[r] = set(0.0);
            segment[r] = zero();
        }
        for (std::int64_t k = s; k < end; k += num::kBlock) {
            const int width = static_cast<int>(end - k < num::kBlock ? end - k : num::kBlock);
            const bool direct = n <= kWideRows && width == num::kBlock;
            if (!direct) decode_wide(tile, k, width, decoded);
            for (int r0 = 0; r0 < n; r0 += kWideRows) {
                const double* q[kWideRows];
                const int rows = n - r0 < kWideRows ? n - r0 : kWideRows;
                for (int r = 0; r < rows; ++r) q[r] = wide_codes(in[r0 + r].wide) + k;
                with_rows(
                    rows, [&](auto R) __attribute__((always_inline)) {
                        if (direct) add_block<R()>(tile + k * 16, q, sum + r0);
                        else add_decoded<R()>(decoded, width, q, sum + r0);
                    });
            }
            for (int r = 0; block_scales && r < n; ++r) {
                segment[r] = fma(narrow(mul(sum[r], set(kWideSum))),
                                 load(block_scales + k / num::kBlock * 16), segment[r]);
                sum[r] = set(0.0);
            }
        }
        for (int r = 0; r < n; ++r) {
            const F unit = set(wide_units(in[r].wide, cols)[s / num::kSegment]);
            const F value = block_scales ? segment[r] : narrow(mul(sum[r], set(kWideSum)));
            total[r] = add(total[r], mul(value, unit));
        }
    }
}
