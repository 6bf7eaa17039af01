// Compiled for every x86-64. See kernels.hpp for the rule that everything here stays inside this source.
#define FTMPI_HD static inline

#include <cstdint>
#include <cstring>
#include <utility>

#include "../numerics.hpp"
#include "kernels.hpp"

namespace ftmpi::cpu {
namespace {

constexpr int kChains = 4;    ///< independent fma chains that fill the units within the registers
constexpr int kWideRows = 4;  ///< rows whose sums of doubles do

// In the order of their needs.
// clang-format off
#include "simd_plain.hpp"
#include "kernels_unroll.hpp"
#include "kernels_wide_row.hpp"
#include "kernels_wide.hpp"
#include "kernels_dot.hpp"
#include "kernels_steps.hpp"
#include "kernels_mixers.hpp"
#include "kernels_table.hpp"
// clang-format on

}  // namespace

const Kernels& kernels_plain() { return kTable; }

}  // namespace ftmpi::cpu
