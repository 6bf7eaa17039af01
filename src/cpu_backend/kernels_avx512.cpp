// Compiled for AVX512. See kernels.hpp for the rule that everything here stays inside this source.
#if defined(__GNUC__) && \
    !defined(__clang__)  // the undefined vectors of GCC 12's own header look uninitialized to it
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define FTMPI_HD static inline
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "../numerics.hpp"
#include "kernels.hpp"

namespace ftmpi::cpu {
namespace {

constexpr int kChains = 8;    ///< independent fma chains that fill the units within the registers
constexpr int kWideRows = 8;  ///< rows whose sums of doubles do

// In the order of their needs.
// clang-format off
#include "simd_avx512.hpp"
#include "simd_math.hpp"
#include "kernels_unroll.hpp"
#include "kernels_wide_row.hpp"
#include "kernels_wide.hpp"
#include "kernels_dot.hpp"
#include "kernels_steps.hpp"
#include "kernels_mixers.hpp"
#include "kernels_table.hpp"
// clang-format on

}  // namespace

const Kernels& kernels_avx512() { return kTable; }

}  // namespace ftmpi::cpu
