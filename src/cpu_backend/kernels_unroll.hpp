// Loops over constants, and how many input rows share a decoding. Included inside the anonymous namespace of
// each kernel source.
#pragma once

constexpr int kRowBlock = 64;  ///< input rows that share one decoding of some columns

/// op(0) ... op(N - 1) with constants, so that arrays indexed by them become registers (loops unroll too late
/// for that).
template <int N, class Op> [[gnu::always_inline]] inline void unroll(Op op) {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
        (op(std::integral_constant<int, kIndex>{}), ...);
    }
    (std::make_integer_sequence<int, N>{});
}
#define FTMPI_UNROLLED(i) [&](auto i) __attribute__((always_inline))
