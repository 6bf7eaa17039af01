#include "stored.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "error.hpp"
#include "numerics.hpp"

namespace ftmpi {
namespace {

/// Forbidden values of one stored tensor: how many and where the first is.
class Faults {
public:
    Faults(const RowBlock& block, const char* what, const char* fault)
        : block_(block), what_(what), fault_(fault) {}
    void add(std::int64_t row, std::int64_t column) {
        if (count_++ > 0) return;
        row_ = block_.stored_row + row;
        column_ = column;
    }
    void refuse_any() const {
        if (count_ == 0) return;
        std::ostringstream text;
        text << "tensor " << block_.name << ": " << counted(static_cast<std::uint64_t>(count_), what_)
             << (count_ == 1 ? " is " : " are ") << fault_ << ", the first at row " << row_ << ", column "
             << column_;
        throw Error(Exit::bad_input, text.str(),
                    "the checkpoint is damaged or was exported wrongly; it cannot be used as it is");
    }

private:
    const RowBlock& block_;
    const char *what_, *fault_;
    std::int64_t count_ = 0, row_ = 0, column_ = 0;
};

std::uint16_t read_u16(const std::byte* p) {
    std::uint16_t x;
    std::memcpy(&x, p, 2);
    return x;
}

DType type_of(Format plain) {
    return plain == Format::bf16 ? DType::bf16 : plain == Format::f16 ? DType::f16 : DType::f32;
}

void find_codes(const MatrixSource& s, const RowBlock& b, std::int64_t row, Faults& faults) {
    const std::byte* p = b.codes + static_cast<std::size_t>(row) * b.pitch;
    const DType type = type_of(s.format);
    for (std::int64_t k = 0; k < s.cols; ++k)
        if (is_plain(s.format)
                ? !num::is_finite(value_at(p + static_cast<std::size_t>(k) * size_of(type), type))
                : (static_cast<std::uint8_t>(p[k]) & 0x7fu) == 0x7fu)
            faults.add(row, k);
}

void find_scales(const MatrixSource& s, const RowBlock& b, std::int64_t row, Faults& faults) {
    const std::int64_t count = scales_per_row(s.format, s.cols), group = scale_group(s.format) / 2;
    if (s.format == Format::fp8_block) {
        const std::byte* plane =
            b.scales + static_cast<std::size_t>((b.first_row + row) / num::kBlock) * b.scale_pitch;
        for (std::int64_t j = 0; j < count; ++j) {
            const float x =
                scale_value(plane + static_cast<std::size_t>(j) * size_of(b.scale_type), b.scale_type, b);
            if (!(x >= 0.0f) || !num::is_finite(x)) faults.add(row, j);
        }
        return;
    }
    const std::byte* scales = b.scales + static_cast<std::size_t>(row) * b.scale_pitch;
    const std::byte* codes = b.codes + static_cast<std::size_t>(row) * b.pitch;
    for (std::int64_t j = 0; j < count; ++j) {
        const auto x = static_cast<std::uint8_t>(scales[j]);
        if (s.format == Format::mxfp4) {
            if (x == 0xff) faults.add(row, j);
        } else if ((x & 0x7f) == 0x7f) {  // NaN over a group of zeros adds nothing and is let pass
            for (std::int64_t i = j * group; i < (j + 1) * group && i < s.cols / 2; ++i)
                if (static_cast<std::uint8_t>(codes[i]) & 0x77) {
                    faults.add(row, j);
                    break;
                }
        } else if ((x & 0x80) && x != 0x80) {
            faults.add(row, j);
        }
    }
}

}  // namespace

float value_at(const std::byte* p, DType type) {
    if (type == DType::bf16) return num::from_bf16(read_u16(p));
    if (type == DType::f16) return num::from_f16(read_u16(p));
    float x;
    std::memcpy(&x, p, 4);
    return x;
}

float scale_value(const std::byte* p, DType type, const RowBlock& block) {
    if (!is_float(type))
        throw Error(Exit::bad_input, "tensor " + std::string(block.name) + ": scales of type " +
                                         std::string(name_of(type)) +
                                         " are not supported here; BF16, F16 and F32 are");
    return value_at(p, type);
}

void refuse_faults(const MatrixSource& source, const RowBlock& block) {
    Faults codes(block, "weight", is_plain(source.format) ? "infinite or NaN" : "coded as NaN");
    Faults scales(block, "scale", "NaN, negative or infinite");
    for (std::int64_t r = 0; r < block.rows; ++r) {
        if (!is_4bit(source.format)) find_codes(source, block, r, codes);
        if (scale_group(source.format)) find_scales(source, block, r, scales);
        if (!has_row_scale(source.format)) continue;
        float m = block.multiplier;
        if (source.format == Format::fp8_row && block.row_scales)
            m = scale_value(block.row_scales + static_cast<std::size_t>(r) * size_of(block.row_scale_type),
                            block.row_scale_type, block);
        if (m > 0.0f && num::is_finite(m)) continue;
        std::ostringstream text;
        text << "tensor " << block.name << ": 1 scale that is not finite and above 0 (" << m
             << "), the first at row " << block.stored_row + r << ", column 0";
        throw Error(Exit::bad_input, text.str(),
                    "the checkpoint is damaged or was exported wrongly; it cannot be used as it is");
    }
    codes.refuse_any();
    scales.refuse_any();
    throw Error(Exit::failure, "tensor " + std::string(block.name) +
                                   ": loading met a forbidden value that the file does not hold now");
}

void check_shape(const MatrixSource& s) {
    std::int64_t rows = 0;
    for (const auto& b : s.blocks) rows += b.rows;
    if (rows != s.groups * s.rows || s.rows < 0 || s.cols < 0 || s.groups < 0)
        throw Error(Exit::failure, "a matrix of " + std::to_string(s.groups) + " x " +
                                       std::to_string(s.rows) + " rows was given " + std::to_string(rows) +
                                       " rows to load");
    if (is_4bit(s.format) && s.cols % 2)
        throw Error(Exit::bad_input, "tensor " + std::string(s.blocks.empty() ? "?" : s.blocks[0].name) +
                                         ": 4-bit codes need an even number of columns, it has " +
                                         std::to_string(s.cols));
}

void check_table(const MatrixSource& source) {
    check_shape(source);
    if (!is_plain(source.format) || source.groups != 1)
        throw Error(Exit::failure, "a lookup table is one group of rows without scales, not " +
                                       std::string(name_of(source.format)));
}

void StoredRows::add(Format format, std::int64_t rows, const std::byte* data, std::size_t pitch,
                     std::string_view name) {
    const std::int64_t first = pieces_.empty() ? 0 : pieces_.back().first + pieces_.back().rows;
    pieces_.push_back({type_of(format), first, rows, data, pitch, std::string(name)});
}

void StoredRows::copy_row(std::int64_t row, std::int64_t cols, float* to) const {
    const auto piece =
        std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return row < p.first + p.rows; });
    if (piece == pieces_.end() || row < 0)
        throw Error(Exit::failure, "row " + std::to_string(row) + " is not in the lookup table");
    const std::byte* from = piece->data + static_cast<std::size_t>(row - piece->first) * piece->pitch;
    for (std::int64_t i = 0; i < cols; ++i, from += size_of(piece->type)) {
        to[i] = value_at(from, piece->type);
        if (!num::is_finite(to[i]))
            throw Error(Exit::bad_input, "tensor " + piece->name + ": the weight at row " +
                                             std::to_string(row) + ", column " + std::to_string(i) +
                                             " is infinite or NaN");
    }
}

}  // namespace ftmpi
