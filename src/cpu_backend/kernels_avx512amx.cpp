// Compiled for AVX-512 with VNNI and VBMI: few input rows times e4m3 weights as byte products; all else is
// the AVX-512 table's. See kernels.hpp for the rule that everything here stays inside this source.
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

constexpr int kVnniRows = 2;  ///< rows that are cheaper here than as doubles

// clang-format off
#include "simd_avx512.hpp"
#include "kernels_unroll.hpp"
#include "kernels_wide_row.hpp"
#include "kernels_vnni.hpp"
#include "kernels_amx.hpp"
// clang-format on

Kernels table() {
    Kernels k = kernels_avx512();
    k.wide_bytes = vnni_bytes;
    k.quantize_wide = quantize_vnni;
    k.dot = dot_amx;
    return k;
}
#undef FTMPI_UNROLLED

}  // namespace

const Kernels& kernels_avx512amx() {
    static const Kernels kTable = table();
    return kTable;
}

}  // namespace ftmpi::cpu
