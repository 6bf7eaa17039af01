// Weight formats: how many bytes a row of each takes and how its scales lie.
// To add a format: one case in each function here, one kernel in each backend, its detection in `weights`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tensor.hpp"

namespace ftmpi {

/// New formats go to the end: kernels count by these numbers.
enum class Format {
    bf16,       ///< bfloat16, no scale
    fp8_row,    ///< e4m3 codes, one fp32 scale a row (a per-tensor scale is the same one for each row)
    fp8_block,  ///< e4m3 codes, one fp32 scale per 128 columns of a row (expanded from 128x128 blocks)
    nvfp4,  ///< e2m1 codes, e4m3 scale per 16 columns, one fp32 multiplier a row (the tensor's global scale)
    mxfp4,  ///< e2m1 codes, e8m0 scale per 32 columns
    f16,    ///< IEEE half precision, no scale
    f32,    ///< IEEE single precision, no scale
};

constexpr std::string_view name_of(Format f) {
    switch (f) {
        case Format::bf16: return "BF16";
        case Format::fp8_row: return "FP8";
        case Format::fp8_block: return "FP8-128x128";
        case Format::nvfp4: return "NVFP4";
        case Format::mxfp4: return "MXFP4";
        case Format::f16: return "F16";
        case Format::f32: return "F32";
    }
    return "?";
}

/// True when the dot product takes its activations as block fixed point (numerics.hpp, order of 4-bit
/// formats).
constexpr bool is_4bit(Format f) { return f == Format::nvfp4 || f == Format::mxfp4; }

/// True when the codes are the values: no scale of any kind.
constexpr bool is_plain(Format f) { return f == Format::bf16 || f == Format::f16 || f == Format::f32; }

/// Bytes of the codes of one row of `cols` elements. `cols` is even for 4-bit formats.
constexpr std::size_t code_bytes(Format f, std::int64_t cols) {
    switch (f) {
        case Format::f32: return static_cast<std::size_t>(cols) * 4;
        case Format::bf16:
        case Format::f16: return static_cast<std::size_t>(cols) * 2;
        case Format::fp8_row:
        case Format::fp8_block: return static_cast<std::size_t>(cols);
        case Format::nvfp4:
        case Format::mxfp4: return static_cast<std::size_t>(cols) / 2;
    }
    return 0;
}

/// Columns that share one scale inside a row; 0 when a row has no inner scales.
constexpr std::int64_t scale_group(Format f) {
    switch (f) {
        case Format::fp8_block: return 128;
        case Format::nvfp4: return 16;
        case Format::mxfp4: return 32;
        default: return 0;
    }
}

/// Inner scales of one row (the last group may be short).
constexpr std::int64_t scales_per_row(Format f, std::int64_t cols) {
    const auto g = scale_group(f);
    return g ? (cols + g - 1) / g : 0;
}

/// Bytes of one inner scale as a backend stores it.
constexpr std::size_t scale_bytes(Format f) { return f == Format::fp8_block ? 4 : is_4bit(f) ? 1 : 0; }

/// True when each row carries an fp32 multiplier applied once to the finished dot product.
constexpr bool has_row_scale(Format f) { return f == Format::fp8_row || f == Format::nvfp4; }

/// How the key/value cache stores its elements.
enum class KvType { fp32, bf16, fp8 };

constexpr std::size_t size_of(KvType t) { return t == KvType::fp32 ? 4 : t == KvType::bf16 ? 2 : 1; }
constexpr std::string_view name_of(KvType t) {
    return t == KvType::fp32 ? "fp32" : t == KvType::bf16 ? "bf16" : "fp8";
}

/// Rows are stored in tiles of this many; the rows of a group are padded up to it.
inline constexpr std::int64_t kRowTile = 16;

constexpr std::int64_t padded_rows(std::int64_t rows) { return (rows + kRowTile - 1) / kRowTile * kRowTile; }

/// Bytes a backend holds for `groups` matrices of rows x cols: codes, inner scales, row multipliers.
/// The plan counts with this and both backends allocate it.
constexpr std::size_t stored_bytes(Format f, std::int64_t groups, std::int64_t rows, std::int64_t cols) {
    const auto per_row = code_bytes(f, cols) +
                         static_cast<std::size_t>(scales_per_row(f, cols)) * scale_bytes(f) +
                         (has_row_scale(f) ? 4u : 0u);
    return static_cast<std::size_t>(groups * padded_rows(rows)) * per_row;
}

/// Consecutive rows of one stored tensor, as they lie in the mapped file.
struct RowBlock {
    std::int64_t rows = 0;
    const std::byte* codes = nullptr;  ///< first row's codes
    std::size_t pitch = 0;             ///< bytes from one row's codes to the next
    const std::byte* scales =
        nullptr;  ///< nvfp4, mxfp4: first row's inner scales. fp8_block: the tensor's block scale plane
    std::size_t scale_pitch = 0;  ///< bytes from one row (fp8_block: one block row) of scales to the next
    DType scale_type = DType::f8_e4m3;  ///< fp8_block: bf16, f16 or f32
    std::int64_t first_row =
        0;                    ///< fp8_block: index in the stored tensor of the first row, to find its block
    float multiplier = 1.0f;  ///< fp8_row, nvfp4: per-tensor scale
    const std::byte* row_scales =
        nullptr;  ///< fp8_row with a scale a row: first row's scale (overrides multiplier)
    DType row_scale_type = DType::f32;  ///< bf16, f16 or f32
    std::string_view name;              ///< the stored tensor's name, for messages
    std::int64_t stored_row =
        0;  ///< the row of the stored tensor that comes first, for messages (fused experts: counted through)
};

/// The rows of one matrix that a rank holds: `groups` (experts, else 1) times `rows`, gathered from
/// blocks in order; each group's blocks add up to exactly `rows`.
struct MatrixSource {
    Format format = Format::bf16;
    std::int64_t groups = 1;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::vector<RowBlock> blocks;
};

}  // namespace ftmpi
