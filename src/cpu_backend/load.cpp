// Weights from the mapped file into tiles, refusing values that would become NaN or change a sign later.
#include <algorithm>
#include <cstring>

#include "../cpu_backend.hpp"
#include "../error.hpp"
#include "../numerics.hpp"
#include "matrix.hpp"

namespace ftmpi {
namespace cpu {
namespace {

/// One row's columns into its lane of a tile: units of Wide bytes, 16 lanes of a unit together; a
/// short last unit likewise.
template <std::size_t Wide>
void interleave(const std::byte* from, std::size_t bytes, std::int64_t lane, std::uint8_t* tile) {
    const std::size_t units = bytes / Wide, rest = bytes % Wide;
    for (std::size_t u = 0; u < units; ++u)
        std::memcpy(tile + (u * 16 + static_cast<std::size_t>(lane)) * Wide, from + u * Wide, Wide);
    std::memcpy(tile + units * 16 * Wide + static_cast<std::size_t>(lane) * rest, from + units * Wide, rest);
}

/// Each of these says whether the row holds something that is not allowed (stored.hpp).

/// The inner scales of one row of 4-bit codes.
bool fill_4bit_scales(const MatrixSource& s, const RowBlock& b, std::int64_t row, std::int64_t lane,
                      std::uint8_t* to) {
    const auto* scales =
        reinterpret_cast<const std::uint8_t*>(b.scales + static_cast<std::size_t>(row) * b.scale_pitch);
    const auto* codes =
        reinterpret_cast<const std::uint8_t*>(b.codes + static_cast<std::size_t>(row) * b.pitch);
    const std::int64_t count = scales_per_row(s.format, s.cols), group = scale_group(s.format) / 2;
    bool faulty = false;
    for (std::int64_t j = 0; j < count; ++j) {
        std::uint8_t x = scales[j];
        if (s.format == Format::mxfp4) {
            faulty |= x == 0xff;
        } else if ((x & 0x7f) == 0x7f) {
            // Exporters write NaN over groups of zeros. Such a group adds nothing; any other is refused.
            const std::int64_t end = std::min((j + 1) * group, s.cols / 2);
            faulty |= std::any_of(codes + j * group, codes + end,
                                  [](std::uint8_t pair) { return (pair & 0x77) != 0; });
            x = 0;
        } else if (x & 0x80) {
            faulty |= x != 0x80;
            x = 0;
        }
        to[j * 16 + lane] = x;
    }
    return faulty;
}

bool fill_block_scales(const MatrixSource& s, const RowBlock& b, std::int64_t row, std::int64_t lane,
                       std::uint8_t* to) {
    const std::byte* scales =
        b.scales + static_cast<std::size_t>((b.first_row + row) / num::kBlock) * b.scale_pitch;
    const std::int64_t count = scales_per_row(s.format, s.cols);
    bool faulty = false;
    for (std::int64_t j = 0; j < count; ++j) {
        float x = scale_value(scales + static_cast<std::size_t>(j) * size_of(b.scale_type), b.scale_type, b);
        faulty |= !(x >= 0.0f) || !num::is_finite(x);
        if (x == 0.0f) x = 0.0f;  // -0
        std::memcpy(to + (j * 16 + lane) * 4, &x, 4);
    }
    return faulty;
}

bool fill_multiplier(const MatrixSource& s, const RowBlock& b, std::int64_t row, float* to) {
    *to = s.format == Format::fp8_row && b.row_scales
              ? scale_value(b.row_scales + static_cast<std::size_t>(row) * size_of(b.row_scale_type),
                            b.row_scale_type, b)
              : b.multiplier;
    return !(*to > 0.0f && num::is_finite(*to));
}

bool has_faulty_codes(const MatrixSource& s, const std::byte* codes) {
    unsigned faulty = 0;
    const auto any = [&](auto code, auto exponent) {  // an exponent of all ones
        for (std::int64_t k = 0; k < s.cols; ++k) {
            std::memcpy(&code, codes + static_cast<std::size_t>(k) * sizeof code,
                        sizeof code);  // not aligned
            faulty |= (code & exponent) == exponent;
        }
    };
    if (s.format == Format::bf16) any(std::uint16_t{}, 0x7f80u);
    else if (s.format == Format::f16) any(std::uint16_t{}, 0x7c00u);
    else if (s.format == Format::f32) any(std::uint32_t{}, 0x7f800000u);
    else if (!is_4bit(s.format)) {
        for (std::int64_t k = 0; k < s.cols; ++k)
            faulty |= (static_cast<std::uint8_t>(codes[k]) & 0x7fu) == 0x7fu;
    }
    return faulty != 0;
}

}  // namespace

CpuMatrix::CpuMatrix(Backend& backend, const MatrixSource& s)
    : codes_per_tile_(code_bytes(s.format, s.cols) * kRowTile),
      scales_per_tile_(static_cast<std::size_t>(scales_per_row(s.format, s.cols)) * scale_bytes(s.format) *
                       kRowTile) {
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
            has_row_scale(format) ? reinterpret_cast<const float*>(p + multipliers_at_) + tile * kRowTile
                                  : nullptr,
            codes_per_tile_,
            scales_per_tile_};
}

const CpuMatrix& cpu_matrix(const Matrix& m) {
    const auto* p = dynamic_cast<const CpuMatrix*>(&m);
    if (!p)
        throw Error(Exit::failure,
                    "a matrix of another backend, or a lookup table, was given to the CPU backend");
    return *p;
}

}  // namespace cpu

std::unique_ptr<Matrix> CpuBackend::load(const MatrixSource& source) {
    using namespace cpu;
    check_shape(source);
    auto matrix = std::make_unique<CpuMatrix>(*this, source);
    std::int64_t index = 0;  // of the row among all groups' rows
    for (const RowBlock& b : source.blocks) {
        bool faulty = false;
        for (std::int64_t r = 0; r < b.rows; ++r, ++index) {
            const std::int64_t group = index / source.rows, row = index % source.rows, lane = row % kRowTile;
            const auto tile = static_cast<std::size_t>(group * matrix->tiles() + row / kRowTile);
            const std::byte* from = b.codes + static_cast<std::size_t>(r) * b.pitch;
            std::uint8_t* to = matrix->codes() + tile * matrix->codes_per_tile();
            std::uint8_t* to_scales = matrix->scales() + tile * matrix->scales_per_tile();
            const std::size_t bytes = code_bytes(source.format, source.cols);
            faulty |= has_faulty_codes(source, from);
            switch (source.format) {
                case Format::bf16:
                case Format::f32: interleave<4>(from, bytes, lane, to); break;
                case Format::f16:
                case Format::fp8_row: interleave<2>(from, bytes, lane, to); break;
                case Format::fp8_block:
                    interleave<2>(from, bytes, lane, to);
                    faulty |= fill_block_scales(source, b, r, lane, to_scales);
                    break;
                case Format::nvfp4:
                case Format::mxfp4:
                    interleave<4>(from, bytes, lane, to);
                    faulty |= fill_4bit_scales(source, b, r, lane, to_scales);
                    break;
            }
            if (has_row_scale(source.format))
                faulty |= fill_multiplier(
                    source, b, r, matrix->multipliers() + tile * kRowTile + static_cast<std::size_t>(lane));
        }
        if (faulty) refuse_faults(source, b);
    }
    return matrix;
}

std::unique_ptr<Matrix> CpuBackend::load_table(const MatrixSource& source, bool on_host) {
    using namespace cpu;
    check_table(source);
    auto table = std::make_unique<CpuTable>();
    table->rows = source.rows;
    table->cols = source.cols;
    if (on_host) {
        for (const RowBlock& b : source.blocks)
            table->stored.add(source.format, b.rows, b.codes, b.pitch, b.name);
        return table;
    }
    const std::size_t width = code_bytes(source.format, source.cols);
    table->bytes = width * static_cast<std::size_t>(source.rows);
    table->copy = DeviceArray<std::uint8_t>(*this, static_cast<std::int64_t>(table->bytes), "embedding");
    auto* to = reinterpret_cast<std::byte*>(table->copy.data());
    for (const RowBlock& b : source.blocks) {
        table->stored.add(source.format, b.rows, to, width, b.name);
        bool faulty = false;
        for (std::int64_t r = 0; r < b.rows; ++r, to += width) {
            const std::byte* from = b.codes + static_cast<std::size_t>(r) * b.pitch;
            faulty |= has_faulty_codes(source, from);
            std::memcpy(to, from, width);
        }
        if (faulty) refuse_faults(source, b);
    }
    return table;
}

}  // namespace ftmpi
