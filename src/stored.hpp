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

/// A block scale or row scale as fp32. Throws Error(Exit::bad_input) for a type that is neither BF16 nor F32.
float scale_value(const std::byte* scale, DType type, const RowBlock& block);

/// For a block in which loading has met a value that is not allowed: reads it again and throws
/// Error(Exit::bad_input) with the tensor's name, how many such values it holds and where the first is. A
/// backend only has to see that there is one:
/// - BF16 and FP8 codes that are infinite or NaN,
/// - inner scales that are NaN, negative or infinite, save a NaN of 4-bit formats over a group of zeros,
/// which adds nothing,
/// - multipliers of rows that are not finite and above 0.
[[noreturn]] void refuse_faults(const MatrixSource& source, const RowBlock& block);

/// Throws Error(Exit::failure) unless `source` can be a lookup table: one group of BF16 rows.
void check_table(const MatrixSource& source);

/// Rows of BF16 codes where they are stored: in the mapped file, or in a copy of it.
class StoredRows {
public:
    /// The next `rows` rows, `pitch` bytes apart, of the stored tensor `name`. The memory must outlive this.
    void add(std::int64_t rows, const std::byte* data, std::size_t pitch, std::string_view name);
    /// `cols` codes of row `row`. Throws Error(Exit::bad_input) naming tensor and place for one that is
    /// infinite or NaN, Error(Exit::failure) for a row that is not here.
    void copy_row(std::int64_t row, std::int64_t cols, std::uint16_t* to) const;

private:
    struct Piece {
        std::int64_t first, rows;
        const std::byte* data;
        std::size_t pitch;
        std::string name;
    };
    std::vector<Piece> pieces_;
};

}  // namespace ftmpi
