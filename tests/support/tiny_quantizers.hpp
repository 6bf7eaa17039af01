// Quantizers for the generated checkpoints, in double and independent of src/numerics.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "safetensors_writer.hpp"

namespace ftmpi::testing {

/// How a matrix is stored, with the key names of the exporter that stores it so.
enum class Storage {
    bf16,
    nvfp4_modelopt,    ///< weight U8, weight_scale F8_E4M3, weight_scale_2 F32 [] (multiply), input_scale F32
                       ///< []
    nvfp4_compressed,  ///< weight_packed U8, weight_scale F8_E4M3, weight_global_scale F32 [1] (divide),
                       ///< input_global_scale [1]
    fp8_tensor,        ///< weight F8_E4M3, weight_scale F32 [], input_scale F32 []
    fp8_row,           ///< weight F8_E4M3, weight_scale [rows, 1]
    fp8_block,         ///< weight F8_E4M3, scales of 128x128 blocks under a suffix of the exporter's choice
    mxfp4,             ///< weight U8, weight_scale U8 (E8M0) [rows, cols / 32]
    mxfp4_packed,      ///< weight_packed U8, weight_scale U8
};

/// Details in which exporters of one storage differ.
struct ScaleForm {
    std::string block_suffix = "weight_scale_inv";  ///< fp8_block; or "weight_scale"
    bool block_rank4 = false;                       ///< fp8_block: scales [o, 1, i, 1] instead of [o, i]
    std::string dtype = "BF16";                     ///< of row and block scales; or "F16", "F32"
    std::string e8m0_dtype = "U8";                  ///< of MXFP4 scales; or "F8_E8M0"
    /// NVFP4: global scales are powers of two, so that a stored reciprocal is exact.
    bool power_of_two_global = false;
};

std::uint16_t encode_bf16(double x);                  ///< nearest even
std::uint16_t encode_f16(double x);                   ///< nearest even; infinite beyond the largest
std::uint8_t encode_e4m3(double x);                   ///< nearest even, saturates at 448
std::uint8_t encode_e2m1(double x);                   ///< nearest even, saturates at 6
double round_to(const std::string& dtype, double x);  ///< the nearest value of "BF16", "F16" or "F32"

/// Values as "BF16", "F16" or "F32" bytes.
std::vector<std::uint8_t> encode_values(const std::string& dtype, const std::vector<double>& values);

double largest_magnitude(const std::vector<double>& values);

/// The tensors that hold `values` (rows x cols) under MODULE.weight and its scales. `amax` sets the range of
/// a global scale that several matrices share; default: the matrix's own.
std::vector<StoredTensor> store_matrix(const std::string& module, Storage storage, const ScaleForm& form,
                                       std::int64_t rows, std::int64_t cols,
                                       const std::vector<double>& values, std::optional<double> amax = {});

/// A stack of `count` matrices (fused experts): one tensor NAME [count, rows, cols], FP8 scales under
/// NAME_scale_inv or NAME_scale. BF16 and FP8 only.
std::vector<StoredTensor> store_stack(const std::string& name, Storage storage, const ScaleForm& form,
                                      std::int64_t count, std::int64_t rows, std::int64_t cols,
                                      const std::vector<double>& values);

}  // namespace ftmpi::testing
