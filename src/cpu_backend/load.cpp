// Weights from the mapped file into tiles, refusing values that would become NaN or change a sign later.
#include <cstring>
#include <sstream>

#include "../cpu_backend.hpp"
#include "../error.hpp"
#include "../numerics.hpp"
#include "matrix.hpp"

namespace ftmpi {
namespace cpu {
namespace {

/// Faulty elements of one stored tensor: how many and where the first is.
class Faults {
public:
    Faults(const RowBlock& block, std::string what) : block_(block), what_(std::move(what)) {}
    void add(std::int64_t row, std::int64_t column) {
        if (count_++ == 0) {
            row_ = block_.first_row + row;
            column_ = column;
        }
    }
    void refuse_any() const {
        if (count_ == 0) return;
        std::ostringstream text;
        text << "tensor " << block_.name << ": " << count_ << " " << what_ << ", the first at row " << row_ << ", column "
             << column_;
        throw Error(Exit::bad_input, text.str(),
                    "the checkpoint is damaged or was exported wrongly; it cannot be used as it is");
    }

private:
    const RowBlock& block_;
    std::string what_;
    std::int64_t count_ = 0, row_ = 0, column_ = 0;
};

template <class T>
T read(const std::byte* p) {
    T x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

float read_scale(const std::byte* p, DType type, const RowBlock& block) {
    if (type == DType::f32) return read<float>(p);
    if (type == DType::bf16) return num::from_bf16(read<std::uint16_t>(p));
    throw Error(Exit::bad_input, "tensor " + std::string(block.name) + ": scales of type " + std::string(name_of(type)) +
                                     " are not supported here; BF16 and F32 are");
}

/// One row's columns into its lane of a tile: units of Wide bytes, 16 lanes of a unit together; a
/// short last unit likewise.
template <std::size_t Wide>
void interleave(const std::byte* from, std::size_t bytes, std::int64_t lane, std::uint8_t* tile) {
    const std::size_t units = bytes / Wide, rest = bytes % Wide;
    for (std::size_t u = 0; u < units; ++u)
        std::memcpy(tile + (u * 16 + static_cast<std::size_t>(lane)) * Wide, from + u * Wide, Wide);
    std::memcpy(tile + units * 16 * Wide + static_cast<std::size_t>(lane) * rest, from + units * Wide, rest);
}

/// The inner scales of one row of 4-bit codes, checked.
void fill_4bit_scales(const MatrixSource& s, const RowBlock& b, std::int64_t row, std::int64_t lane, std::uint8_t* to,
                      Faults& faults) {
    const auto* scales = reinterpret_cast<const std::uint8_t*>(b.scales + static_cast<std::size_t>(row) * b.scale_pitch);
    const auto* codes = reinterpret_cast<const std::uint8_t*>(b.codes + static_cast<std::size_t>(row) * b.pitch);
    const std::int64_t count = scales_per_row(s.format, s.cols), group = scale_group(s.format) / 2;
    for (std::int64_t j = 0; j < count; ++j) {
        std::uint8_t x = scales[j];
        if (s.format == Format::mxfp4) {
            if (x == 0xff) faults.add(row, j);
        } else if ((x & 0x7f) == 0x7f) {
            // Exporters write NaN over groups of zeros. Such a group adds nothing; any other is refused.
            const std::int64_t end = (j + 1) * group < s.cols / 2 ? (j + 1) * group : s.cols / 2;
            for (std::int64_t i = j * group; i < end; ++i)
                if (codes[i] & 0x77) {
                    faults.add(row, j);
                    break;
                }
            x = 0;
        } else if (x & 0x80) {
            if (x != 0x80) faults.add(row, j);
            x = 0;
        }
        to[j * 16 + lane] = x;
    }
}

void fill_block_scales(const MatrixSource& s, const RowBlock& b, std::int64_t row, std::int64_t lane, std::uint8_t* to,
                       Faults& faults) {
    const std::byte* scales = b.scales + static_cast<std::size_t>((b.first_row + row) / num::kBlock) * b.scale_pitch;
    const std::int64_t count = scales_per_row(s.format, s.cols);
    for (std::int64_t j = 0; j < count; ++j) {
        float x = read_scale(scales + static_cast<std::size_t>(j) * size_of(b.scale_type), b.scale_type, b);
        if (!(x >= 0.0f) || !num::is_finite(x)) faults.add(row, j);
        if (x == 0.0f) x = 0.0f;  // -0
        std::memcpy(to + (j * 16 + lane) * 4, &x, 4);
    }
}

void check_multiplier(float x, const RowBlock& b, std::int64_t row) {
    if (x > 0.0f && num::is_finite(x)) return;
    std::ostringstream text;
    text << "tensor " << b.name << ": 1 scale that is not finite and above 0 (" << x << "), the first at row "
         << b.first_row + row << ", column 0";
    throw Error(Exit::bad_input, text.str(), "the checkpoint is damaged or was exported wrongly; it cannot be used as it is");
}

void check_codes(const MatrixSource& s, const RowBlock& b, std::int64_t row, Faults& faults) {
    const std::byte* p = b.codes + static_cast<std::size_t>(row) * b.pitch;
    if (s.format == Format::bf16) {
        unsigned bad = 0;
        for (std::int64_t k = 0; k < s.cols; ++k) bad |= (read<std::uint16_t>(p + 2 * k) & 0x7f80u) == 0x7f80u;
        for (std::int64_t k = 0; bad && k < s.cols; ++k)
            if ((read<std::uint16_t>(p + 2 * k) & 0x7f80u) == 0x7f80u) faults.add(row, k);
    } else if (!is_4bit(s.format)) {
        const auto* codes = reinterpret_cast<const std::uint8_t*>(p);
        unsigned bad = 0;
        for (std::int64_t k = 0; k < s.cols; ++k) bad |= (codes[k] & 0x7fu) == 0x7fu;
        for (std::int64_t k = 0; bad && k < s.cols; ++k)
            if ((codes[k] & 0x7fu) == 0x7fu) faults.add(row, k);
    }
}

void check_shape(const MatrixSource& s) {
    std::int64_t rows = 0;
    for (const auto& b : s.blocks) rows += b.rows;
    if (rows != s.groups * s.rows || s.rows < 0 || s.cols < 0 || s.groups < 0)
        throw Error(Exit::failure, "a matrix of " + std::to_string(s.groups) + " x " + std::to_string(s.rows) +
                                       " rows was given " + std::to_string(rows) + " rows to load");
    if (is_4bit(s.format) && s.cols % 2)
        throw Error(Exit::bad_input, "tensor " + std::string(s.blocks.empty() ? "?" : s.blocks[0].name) +
                                         ": 4-bit codes need an even number of columns, it has " + std::to_string(s.cols));
}

}  // namespace

CpuMatrix::CpuMatrix(Backend& backend, const MatrixSource& s)
    : codes_per_tile_(code_bytes(s.format, s.cols) * kRowTile),
      scales_per_tile_(static_cast<std::size_t>(scales_per_row(s.format, s.cols)) * scale_bytes(s.format) * kRowTile) {
    format = s.format;
    groups = s.groups;
    rows = s.rows;
    cols = s.cols;
    bytes = stored_bytes(format, groups, rows, cols);
    const auto all_tiles = static_cast<std::size_t>(groups * tiles());
    scales_at_ = all_tiles * codes_per_tile_;
    multipliers_at_ = scales_at_ + all_tiles * scales_per_tile_;
    data_ = DeviceArray<std::uint8_t>(backend, static_cast<std::int64_t>(bytes), "weights");
}

TileView CpuMatrix::view(std::int64_t group) const {
    const auto tile = static_cast<std::size_t>(group * tiles());
    const std::uint8_t* p = data_.data();
    return {format,
            rows,
            cols,
            p + tile * codes_per_tile_,
            p + scales_at_ + tile * scales_per_tile_,
            has_row_scale(format) ? reinterpret_cast<const float*>(p + multipliers_at_) + tile * kRowTile : nullptr,
            codes_per_tile_,
            scales_per_tile_};
}

const CpuMatrix& cpu_matrix(const Matrix& m) {
    const auto* p = dynamic_cast<const CpuMatrix*>(&m);
    if (!p) throw Error(Exit::failure, "a matrix of another backend, or a lookup table, was given to the CPU backend");
    return *p;
}

const CpuTable::Piece& CpuTable::piece_of(std::int64_t row) const {
    for (const auto& p : pieces)
        if (row < p.first + p.rows) return p;
    throw Error(Exit::failure, "row " + std::to_string(row) + " is not in the lookup table");
}

}  // namespace cpu

std::unique_ptr<Matrix> CpuBackend::load(const MatrixSource& source) {
    using namespace cpu;
    check_shape(source);
    auto matrix = std::make_unique<CpuMatrix>(*this, source);
    std::int64_t index = 0;  // of the row among all groups' rows
    for (const RowBlock& b : source.blocks) {
        Faults codes(b, source.format == Format::bf16 ? "weights are infinite or NaN" : "weights are NaN codes");
        Faults scales(b, "scales are NaN, negative or infinite");
        for (std::int64_t r = 0; r < b.rows; ++r, ++index) {
            const std::int64_t group = index / source.rows, row = index % source.rows, lane = row % kRowTile;
            const auto tile = static_cast<std::size_t>(group * matrix->tiles() + row / kRowTile);
            const std::byte* from = b.codes + static_cast<std::size_t>(r) * b.pitch;
            std::uint8_t* to = matrix->codes() + tile * matrix->codes_per_tile();
            std::uint8_t* to_scales = matrix->scales() + tile * matrix->scales_per_tile();
            const std::size_t bytes = code_bytes(source.format, source.cols);
            check_codes(source, b, r, codes);
            switch (source.format) {
                case Format::bf16:
                    interleave<4>(from, bytes, lane, to);
                    break;
                case Format::fp8_row:
                    interleave<2>(from, bytes, lane, to);
                    break;
                case Format::fp8_block:
                    interleave<2>(from, bytes, lane, to);
                    fill_block_scales(source, b, r, lane, to_scales, scales);
                    break;
                case Format::nvfp4:
                case Format::mxfp4:
                    interleave<4>(from, bytes, lane, to);
                    fill_4bit_scales(source, b, r, lane, to_scales, scales);
                    break;
            }
            if (has_row_scale(source.format)) {
                float m = b.multiplier;
                if (source.format == Format::fp8_row && b.row_scales)
                    m = read_scale(b.row_scales + static_cast<std::size_t>(r) * size_of(b.row_scale_type), b.row_scale_type, b);
                check_multiplier(m, b, r);
                matrix->multipliers()[tile * kRowTile + static_cast<std::size_t>(lane)] = m;
            }
        }
        codes.refuse_any();
        scales.refuse_any();
    }
    return matrix;
}

std::unique_ptr<Matrix> CpuBackend::load_table(const MatrixSource& source, bool on_host) {
    using namespace cpu;
    check_shape(source);
    if (source.format != Format::bf16 || source.groups != 1)
        throw Error(Exit::failure, "a lookup table is one group of BF16 rows, not " + std::string(name_of(source.format)));
    auto table = std::make_unique<CpuTable>();
    table->rows = source.rows;
    table->cols = source.cols;
    const std::size_t width = static_cast<std::size_t>(source.cols) * 2;
    if (!on_host) {
        table->bytes = width * static_cast<std::size_t>(source.rows);
        table->copy = DeviceArray<std::uint8_t>(*this, static_cast<std::int64_t>(table->bytes), "embedding");
    }
    std::int64_t first = 0;
    for (const RowBlock& b : source.blocks) {
        CpuTable::Piece piece{first, b.rows, b.codes, b.pitch, std::string(b.name)};
        if (!on_host) {
            Faults faults(b, "weights are infinite or NaN");
            auto* to = reinterpret_cast<std::byte*>(table->copy.data()) + static_cast<std::size_t>(first) * width;
            piece.data = to;
            piece.pitch = width;
            for (std::int64_t r = 0; r < b.rows; ++r) {
                check_codes(source, b, r, faults);
                std::memcpy(to + static_cast<std::size_t>(r) * width, b.codes + static_cast<std::size_t>(r) * b.pitch, width);
            }
            faults.refuse_any();
        }
        table->pieces.push_back(std::move(piece));
        first += b.rows;
    }
    return table;
}

}  // namespace ftmpi
