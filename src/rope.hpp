// The table of rotary angles, by this program's own double arithmetic: the same bits with every C library.
#pragma once

#include <cstdint>
#include <vector>

namespace ftmpi {

/// 1 / theta^(2i / rotary_dim) in fp32, i < rotary_dim / 2, rounded as torch does: the power to fp32, then
/// its reciprocal.
std::vector<float> inverse_frequencies(double theta, int rotary_dim);

/// cos and sin of position * inverse frequency (the product in fp32), each [positions][rotary_dim / 2].
void rope_table(double theta, int rotary_dim, std::int64_t positions, std::vector<float>& cos,
                std::vector<float>& sin);

}  // namespace ftmpi
