#include "plain_weights.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace ftmpi::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::uint32_t little_endian(const unsigned char* p, int bytes) {
    std::uint32_t u = 0;
    for (int i = bytes; i-- > 0;) u = u << 8 | p[i];
    return u;
}

/// A binary floating-point number of 1 + exponent + fraction bits, from its fields.
double from_fields(std::uint64_t bits, int exponent_bits, int fraction_bits) {
    const auto fraction = static_cast<double>(bits & ((1ull << fraction_bits) - 1));
    const auto exponent = static_cast<int>(bits >> fraction_bits & ((1ull << exponent_bits) - 1));
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction != 0 ? kNaN : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
    return sign * std::ldexp(1.0 + std::ldexp(fraction, -fraction_bits), exponent - bias);
}

/// 4-bit codes, element 2b in the low nibble of byte b, with one scale per `group` columns.
PlainMatrix four_bit(const PlainTensor& codes, const PlainTensor& scales, bool e8m0, double global) {
    const int group = e8m0 ? 32 : 16;
    PlainMatrix m(codes.shape.at(0), codes.shape.at(1) * 2);
    const std::int64_t groups = scales.shape.at(1);
    if (groups != (m.cols + group - 1) / group) throw std::runtime_error("unexpected number of scale groups");
    for (std::int64_t r = 0; r < m.rows; ++r)
        for (std::int64_t c = 0; c < m.cols; ++c) {
            const unsigned byte = codes.data[r * m.cols / 2 + c / 2];
            const unsigned scale = scales.data[r * groups + c / group];
            m[r][c] = plain_e2m1(c % 2 ? byte >> 4 : byte & 15) *
                      (e8m0 ? plain_e8m0(scale) : plain_e4m3(scale)) * global;
        }
    return m;
}

/// FP8 codes of rows x cols with one scale, one a row or one a 128x128 block.
PlainMatrix eight_bit(const unsigned char* codes, std::int64_t rows, std::int64_t cols, const double* scales,
                      std::int64_t n) {
    PlainMatrix m(rows, cols);
    const std::int64_t across = (cols + 127) / 128, down = (rows + 127) / 128;
    if (n != 1 && n != down * across && n != rows)
        throw std::runtime_error("unexpected number of FP8 scales");
    double value[256];
    for (unsigned i = 0; i < 256; ++i) value[i] = plain_e4m3(i);
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) {
            const std::int64_t at = n == 1 ? 0 : n == down * across ? r / 128 * across + c / 128 : r;
            m[r][c] = value[codes[r * cols + c]] * scales[at];
        }
    return m;
}

}  // namespace

double plain_e4m3(unsigned code) {
    const unsigned exponent = code >> 3 & 15, fraction = code & 7;
    const double sign = code & 128 ? -1.0 : 1.0;
    if (exponent == 15 && fraction == 7) return kNaN;
    if (exponent == 0) return sign * fraction / 512.0;
    return sign * std::ldexp(8.0 + fraction, static_cast<int>(exponent) - 10);
}

double plain_e2m1(unsigned code) {
    static constexpr double kValues[] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
    return kValues[code];
}

double plain_e8m0(unsigned code) {
    return code == 255 ? kNaN : std::ldexp(1.0, static_cast<int>(code) - 127);
}

std::vector<double> plain_values(const PlainTensor& t) {
    std::vector<double> v(static_cast<std::size_t>(t.elements()));
    const auto* p = t.data;
    for (auto& x : v) {
        if (t.dtype == "BF16") x = from_fields(little_endian(p, 2), 8, 7), p += 2;
        else if (t.dtype == "F16") x = from_fields(little_endian(p, 2), 5, 10), p += 2;
        else if (t.dtype == "F32") x = from_fields(little_endian(p, 4), 8, 23), p += 4;
        else if (t.dtype == "I32") x = static_cast<std::int32_t>(little_endian(p, 4)), p += 4;
        else throw std::runtime_error("not a plain number type: " + t.dtype);
    }
    return v;
}

PlainMatrix plain_matrix(const PlainSafetensors& files, const std::string& module) {
    if (const auto* packed = files.find(module + ".weight_packed")) {
        const auto* global = files.find(module + ".weight_global_scale");
        return four_bit(*packed, files.at(module + ".weight_scale"), !global,
                        global ? 1.0 / plain_values(*global).at(0) : 1.0);
    }
    const auto& weight = files.at(module + ".weight");
    if (weight.dtype == "U8") {
        const auto* global = files.find(module + ".weight_scale_2");
        return four_bit(weight, files.at(module + ".weight_scale"), !global,
                        global ? plain_values(*global).at(0) : 1.0);
    }
    if (weight.dtype == "F8_E4M3") {
        const auto* inverse = files.find(module + ".weight_scale_inv");
        const auto scales = plain_values(inverse ? *inverse : files.at(module + ".weight_scale"));
        return eight_bit(weight.data, weight.shape.at(0), weight.shape.at(1), scales.data(),
                         static_cast<std::int64_t>(scales.size()));
    }
    PlainMatrix m;
    m.v = plain_values(weight);
    m.rows = weight.shape.at(0);
    m.cols = static_cast<std::int64_t>(m.v.size()) / m.rows;
    return m;
}

std::vector<PlainMatrix> plain_stack(const PlainSafetensors& files, const std::string& name) {
    const auto& t = files.at(name);
    const std::int64_t count = t.shape.at(0), rows = t.shape.at(1), cols = t.shape.at(2);
    std::vector<PlainMatrix> stack;
    if (t.dtype == "F8_E4M3") {
        const auto* inverse = files.find(name + "_scale_inv");
        const auto scales = plain_values(inverse ? *inverse : files.at(name + "_scale"));
        const auto each = static_cast<std::int64_t>(scales.size()) / count;
        for (std::int64_t e = 0; e < count; ++e)
            stack.push_back(eight_bit(t.data + e * rows * cols, rows, cols, scales.data() + e * each, each));
        return stack;
    }
    const auto values = plain_values(t);
    for (std::int64_t e = 0; e < count; ++e) {
        auto& m = stack.emplace_back(rows, cols);
        std::copy_n(values.begin() + e * rows * cols, rows * cols, m.v.begin());
    }
    return stack;
}

}  // namespace ftmpi::testing
