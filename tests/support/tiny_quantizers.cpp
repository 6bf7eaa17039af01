#include "tiny_quantizers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ftmpi::testing {
namespace {

/// Nearest even at `fraction` bits; exact for the normal range of every format here.
double round_fraction(double x, int fraction) {
    const int drop = 52 - fraction;
    const auto u = std::bit_cast<std::uint64_t>(x);
    const std::uint64_t half = std::uint64_t{1} << (drop - 1);
    return std::bit_cast<double>((u + (half - 1) + (u >> drop & 1)) & ~((half << 1) - 1));
}

/// Largest magnitude of rows [r0, r1) x columns [c0, c1).
double block_max(const double* v, std::int64_t cols, std::int64_t r0, std::int64_t r1, std::int64_t c0,
                 std::int64_t c1) {
    double m = 0;
    for (auto r = r0; r < r1; ++r)
        for (auto c = c0; c < c1; ++c) m = std::max(m, std::fabs(v[r * cols + c]));
    return m;
}

struct EightBit {
    std::vector<std::uint8_t> codes;
    std::vector<double> scales;  ///< rounded to their stored type
    std::int64_t down = 1, across = 1;
};

/// e4m3 codes with one scale per tile of `tile_rows` x `tile_cols`.
EightBit eight_bit(const double* v, std::int64_t rows, std::int64_t cols, std::int64_t tile_rows,
                   std::int64_t tile_cols, const std::string& scale_dtype) {
    EightBit q;
    q.codes.resize(static_cast<std::size_t>(rows * cols));
    q.down = (rows + tile_rows - 1) / tile_rows;
    q.across = (cols + tile_cols - 1) / tile_cols;
    for (std::int64_t i = 0; i < q.down; ++i)
        for (std::int64_t j = 0; j < q.across; ++j) {
            const auto r1 = std::min(rows, (i + 1) * tile_rows), c1 = std::min(cols, (j + 1) * tile_cols);
            const double m = block_max(v, cols, i * tile_rows, r1, j * tile_cols, c1);
            const double s = m > 0 ? round_to(scale_dtype, m / 448.0) : 1.0;
            q.scales.push_back(s);
            for (auto r = i * tile_rows; r < r1; ++r)
                for (auto c = j * tile_cols; c < c1; ++c)
                    q.codes[static_cast<std::size_t>(r * cols + c)] = encode_e4m3(v[r * cols + c] / s);
        }
    return q;
}

EightBit eight_bit(Storage storage, const ScaleForm& form, const double* v, std::int64_t rows,
                   std::int64_t cols) {
    if (storage == Storage::fp8_tensor) return eight_bit(v, rows, cols, rows, cols, "F32");
    if (storage == Storage::fp8_row) return eight_bit(v, rows, cols, 1, cols, form.dtype);
    return eight_bit(v, rows, cols, 128, 128, form.dtype);
}

struct FourBit {
    std::vector<std::uint8_t> codes, scales;
};

/// Element 2b of a row in the low nibble of byte b. `scale(amax)` gives a group's stored byte and its value.
template <class ScaleOf>
FourBit four_bit(const double* v, std::int64_t rows, std::int64_t cols, std::int64_t group, ScaleOf scale) {
    FourBit q;
    q.codes.resize(static_cast<std::size_t>(rows * cols / 2));
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c0 = 0; c0 < cols; c0 += group) {
            const auto [byte, value] = scale(block_max(v, cols, r, r + 1, c0, c0 + group));
            q.scales.push_back(byte);
            for (auto c = c0; c < c0 + group; ++c)
                q.codes[static_cast<std::size_t>((r * cols + c) / 2)] |=
                    static_cast<std::uint8_t>(encode_e2m1(v[r * cols + c] / value) << (c % 2 ? 4 : 0));
        }
    return q;
}

double e4m3_value(std::uint8_t code) {
    const int e = code >> 3, f = code & 7;
    return e ? std::ldexp(8 + f, e - 10) : f / 512.0;
}

std::vector<StoredTensor> store_nvfp4(const std::string& module, bool compressed, const ScaleForm& form,
                                      std::int64_t rows, std::int64_t cols, const std::vector<double>& v,
                                      double amax) {
    double global = amax > 0 ? amax / (6.0 * 448.0) : 1.0;
    if (form.power_of_two_global) global = std::exp2(std::ceil(std::log2(global)));
    global = static_cast<float>(global);
    // A reader of the divisor sees its own rounding, so the groups are quantized against what is stored.
    const float divisor = static_cast<float>(1.0 / global);
    if (compressed) global = 1.0 / divisor;
    const auto q = four_bit(v.data(), rows, cols, 16, [&](double m) {
        // A group without any value is stored with scale 1; one that would underflow takes the smallest
        // scale.
        const std::uint8_t code = m > 0 ? std::max<std::uint8_t>(1, encode_e4m3(m / 6.0 / global)) : 0x38;
        return std::pair{code, e4m3_value(code) * global};
    });
    const std::vector<std::int64_t> codes{rows, cols / 2}, scales{rows, cols / 16};
    if (compressed)
        return {{module + ".weight_packed", "U8", codes, q.codes},
                {module + ".weight_scale", "F8_E4M3", scales, q.scales},
                {module + ".weight_global_scale", "F32", {1}, bytes_of<float>({divisor})},
                {module + ".input_global_scale", "F32", {1}, bytes_of<float>({672.0f})}};
    return {{module + ".weight", "U8", codes, q.codes},
            {module + ".weight_scale", "F8_E4M3", scales, q.scales},
            {module + ".weight_scale_2", "F32", {}, bytes_of<float>({static_cast<float>(global)})},
            {module + ".input_scale", "F32", {}, bytes_of<float>({0.0015f})}};
}

std::vector<StoredTensor> store_mxfp4(const std::string& module, bool packed, const ScaleForm& form,
                                      std::int64_t rows, std::int64_t cols, const std::vector<double>& v) {
    const auto q = four_bit(v.data(), rows, cols, 32, [](double m) {
        const int e = m > 0 ? std::ilogb(m) - 2 : 0;  // 2 is the exponent of the largest e2m1 value
        return std::pair{static_cast<std::uint8_t>(e + 127), std::ldexp(1.0, e)};
    });
    return {{module + (packed ? ".weight_packed" : ".weight"), "U8", {rows, cols / 2}, q.codes},
            {module + ".weight_scale", form.e8m0_dtype, {rows, cols / 32}, q.scales}};
}

}  // namespace

std::uint16_t encode_bf16(double x) {
    return static_cast<std::uint16_t>(
        std::bit_cast<std::uint32_t>(static_cast<float>(round_fraction(x, 7))) >> 16);
}

std::uint8_t encode_e4m3(double x) {
    const auto sign = static_cast<std::uint8_t>(std::signbit(x) ? 0x80 : 0);
    x = std::fabs(x);
    if (x < 0x1p-6)
        return sign | static_cast<std::uint8_t>(std::nearbyint(x * 512.0));  // 8 is the code of 2^-6
    x = round_fraction(x, 3);
    if (!(x < 448.0)) return sign | 0x7e;
    const auto u = std::bit_cast<std::uint64_t>(x);
    return sign | static_cast<std::uint8_t>((u >> 49) - ((1023 - 7) << 3));
}

std::uint16_t encode_f16(double x) {
    const int sign = std::signbit(x) ? 0x8000 : 0;
    if (std::fabs(x) >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
    const int exponent = x == 0 ? -14 : std::max(std::ilogb(x), -14);  // that of the subnormals at the least
    const auto units = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(x), 10 - exponent)));
    return static_cast<std::uint16_t>(sign | (((exponent + 15) << 10) + units - 1024));
}

std::uint8_t encode_e2m1(double x) {
    const auto sign = static_cast<std::uint8_t>(std::signbit(x) ? 8 : 0);
    x = std::fabs(x);
    // Midpoints between neighbours; at a midpoint the even code wins.
    static constexpr double kMiddle[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0};
    std::uint8_t code = 0;
    while (code < 7 && (x > kMiddle[code] || (x == kMiddle[code] && code % 2))) ++code;
    return sign | code;
}

double round_to(const std::string& dtype, double x) {
    if (dtype == "F16") return round_fraction(x, 10);  // of the normal range, as scales are
    return dtype == "BF16" ? round_fraction(x, 7) : static_cast<float>(x);
}

std::vector<std::uint8_t> encode_values(const std::string& dtype, const std::vector<double>& values) {
    if (dtype == "BF16" || dtype == "F16") {
        std::vector<std::uint16_t> v(values.size());
        std::transform(values.begin(), values.end(), v.begin(), dtype == "F16" ? encode_f16 : encode_bf16);
        return bytes_of(v);
    }
    if (dtype != "F32") throw std::invalid_argument("encode_values: " + dtype);
    return bytes_of(std::vector<float>(values.begin(), values.end()));
}

double largest_magnitude(const std::vector<double>& values) {
    return block_max(values.data(), static_cast<std::int64_t>(values.size()), 0, 1, 0,
                     static_cast<std::int64_t>(values.size()));
}

std::vector<StoredTensor> store_matrix(const std::string& module, Storage storage, const ScaleForm& form,
                                       std::int64_t rows, std::int64_t cols, const std::vector<double>& v,
                                       std::optional<double> amax) {
    const std::string weight = module + ".weight";
    switch (storage) {
        case Storage::bf16: return {{weight, "BF16", {rows, cols}, encode_values("BF16", v)}};
        case Storage::nvfp4_modelopt:
        case Storage::nvfp4_compressed:
            return store_nvfp4(module, storage == Storage::nvfp4_compressed, form, rows, cols, v,
                               amax ? *amax : largest_magnitude(v));
        case Storage::mxfp4:
        case Storage::mxfp4_packed:
            return store_mxfp4(module, storage == Storage::mxfp4_packed, form, rows, cols, v);
        case Storage::fp8_tensor:
        case Storage::fp8_row:
        case Storage::fp8_block: break;
    }
    const auto q = eight_bit(storage, form, v.data(), rows, cols);
    std::vector<StoredTensor> out{{weight, "F8_E4M3", {rows, cols}, q.codes}};
    if (storage == Storage::fp8_tensor) {
        out.push_back({module + ".weight_scale", "F32", {}, encode_values("F32", q.scales)});
        out.push_back({module + ".input_scale", "F32", {}, bytes_of<float>({0.02f})});
    } else if (storage == Storage::fp8_row) {
        out.push_back({module + ".weight_scale", form.dtype, {rows, 1}, encode_values(form.dtype, q.scales)});
    } else {
        std::vector<std::int64_t> shape{q.down, q.across};
        if (form.block_rank4) shape = {q.down, 1, q.across, 1};
        out.push_back(
            {module + "." + form.block_suffix, form.dtype, shape, encode_values(form.dtype, q.scales)});
    }
    return out;
}

std::vector<StoredTensor> store_stack(const std::string& name, Storage storage, const ScaleForm& form,
                                      std::int64_t count, std::int64_t rows, std::int64_t cols,
                                      const std::vector<double>& v) {
    if (storage == Storage::bf16) return {{name, "BF16", {count, rows, cols}, encode_values("BF16", v)}};
    if (storage != Storage::fp8_tensor && storage != Storage::fp8_row && storage != Storage::fp8_block)
        throw std::invalid_argument("store_stack: " + name);
    EightBit all;
    for (std::int64_t e = 0; e < count; ++e) {
        auto q = eight_bit(storage, form, v.data() + e * rows * cols, rows, cols);
        all.codes.insert(all.codes.end(), q.codes.begin(), q.codes.end());
        all.scales.insert(all.scales.end(), q.scales.begin(), q.scales.end());
        all.down = q.down;
        all.across = q.across;
    }
    const bool whole = storage == Storage::fp8_tensor;
    const std::string dtype = whole ? "F32" : form.dtype;
    const std::vector<std::int64_t> shape =
        whole ? std::vector{count} : std::vector{count, all.down, all.across};
    const bool inverse = storage == Storage::fp8_block && form.block_suffix == "weight_scale_inv";
    return {{name, "F8_E4M3", {count, rows, cols}, all.codes},
            {name + (inverse ? "_scale_inv" : "_scale"), dtype, shape, encode_values(dtype, all.scales)}};
}

}  // namespace ftmpi::testing
