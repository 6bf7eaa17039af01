// Weights in host memory: a matrix in tiles (layout in kernels.hpp) and a lookup table of rows.
#pragma once

#include <cstdint>

#include "../backend.hpp"
#include "../stored.hpp"
#include "kernels.hpp"

namespace ftmpi::cpu {

class CpuMatrix : public Matrix {
public:
    CpuMatrix(Backend& backend, const MatrixSource& source);  ///< allocates; load() fills
    TileView view(std::int64_t group) const;
    std::int64_t tiles() const { return padded_rows(rows) / kRowTile; }
    std::uint8_t* codes() { return data_.data(); }
    std::uint8_t* scales() { return data_.data() + scales_at_; }
    float* multipliers() { return reinterpret_cast<float*>(data_.data() + multipliers_at_); }
    std::size_t codes_per_tile() const { return codes_per_tile_; }
    std::size_t scales_per_tile() const { return scales_per_tile_; }

private:
    DeviceArray<std::uint8_t> data_;
    std::size_t codes_per_tile_, scales_per_tile_, scales_at_, multipliers_at_;
};

/// Rows of numbers, in the mapped file or copied.
class CpuTable : public Matrix {
public:
    StoredRows stored;
    DeviceArray<std::uint8_t> copy;
};

const CpuMatrix& cpu_matrix(const Matrix& m);

/// MACs of one input row.
inline double work_of(const Matrix& m) { return static_cast<double>(m.rows) * static_cast<double>(m.cols); }

}  // namespace ftmpi::cpu
