// A second decoder of every weight layout, to double, by value tables written out from the formats'
// definitions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plain_safetensors.hpp"

namespace ftmpi::testing {

/// Row-major.
struct PlainMatrix {
    std::int64_t rows = 0, cols = 0;
    std::vector<double> v;

    PlainMatrix() = default;
    PlainMatrix(std::int64_t r, std::int64_t c) : rows(r), cols(c), v(static_cast<std::size_t>(r * c)) {}
    double* operator[](std::int64_t r) { return v.data() + r * cols; }
    const double* operator[](std::int64_t r) const { return v.data() + r * cols; }
};

double plain_e4m3(unsigned code);  ///< 0..255; 0x7f and 0xff are NaN
double plain_e2m1(unsigned code);  ///< 0..15
double plain_e8m0(unsigned code);  ///< 0..255; 0xff is NaN

/// Every element of a tensor that is not quantized (BF16, F16, F32, F64, I32, I64).
std::vector<double> plain_values(const PlainTensor& tensor);

/// The matrix of MODULE (a name without ".weight"), decoded by what keys exist beside it:
/// weight_packed + weight_global_scale (divide) | weight + weight_scale_2 (multiply) | 4-bit codes with U8 or
/// F8_E8M0 scales | F8_E4M3 with weight_scale_inv or weight_scale of one, `rows` or 128x128-block elements |
/// plain numbers.
PlainMatrix plain_matrix(const PlainSafetensors& files, const std::string& module);

/// The matrices of a fused expert tensor NAME [count, rows, cols], BF16 or FP8 with NAME_scale_inv or
/// NAME_scale of one element a matrix, one a row, or one a 128x128 block.
std::vector<PlainMatrix> plain_stack(const PlainSafetensors& files, const std::string& name);

}  // namespace ftmpi::testing
