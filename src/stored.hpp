// What stored tensors may hold, and rows looked up where they are stored: the same for every backend.
// Floor 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format.hpp"

namespace ftmpi {

/// Throws Error(Exit::failure) for row counts that do not add up, Error(Exit::bad_input) for odd numbers of
/// 4-bit columns.
void check_shape(const MatrixSource& source);

/// True for the types that value_at() reads.
constexpr bool is_float(DType t) { return t == DType::bf16 || t == DType::f16 || t == DType::f32; }

/// The BF16, F16 or F32 number at `p`, which need not be aligned, as fp32 (exact).
float value_at(const std::byte* p, DType type);

/// A block scale or row scale as fp32. Throws Error(Exit::bad_input) for a type that is not is_float().
float scale_value(const std::byte* scale, DType type, const RowBlock& block);

/// For a block in which loading has met a value that is not allowed: reads it again and throws
/// Error(Exit::bad_input) with the tensor's name, how many such values it holds and where the first is. A
/// backend only has to see that there is one:
/// - BF16, F16, F32 and FP8 codes that are infinite or NaN,
/// - inner scales that are NaN, negative or infinite, save a NaN of 4-bit formats over a group of zeros,
/// which adds nothing,
/// - multipliers of rows that are not finite and above 0.
[[noreturn]] void refuse_faults(const MatrixSource& source, const RowBlock& block);

/// Throws Error(Exit::failure) unless `source` can be a lookup table: one group of rows without scales.
void check_table(const MatrixSource& source);

/// Rows of BF16, F16 or F32 numbers where they are stored: in the mapped file, or in a copy of it.
class StoredRows {
public:
    /// The next `rows` rows, `pitch` bytes apart, of the stored tensor `name`. The memory must outlive this.
    void add(Format format, std::int64_t rows, const std::byte* data, std::size_t pitch,
             std::string_view name);
    /// The first `cols` values of row `row` as fp32. Throws Error(Exit::bad_input) naming tensor and place
    /// for one that is infinite or NaN, Error(Exit::failure) for a row that is not here.
    void copy_row(std::int64_t row, std::int64_t cols, float* to) const;

private:
    struct Piece {
        DType type;
        std::int64_t first, rows;
        const std::byte* data;
        std::size_t pitch;
        std::string name;
    };
    std::vector<Piece> pieces_;
};

}  // namespace ftmpi
