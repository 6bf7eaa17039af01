// Weights in device memory.
//
// Codes: a row is `chunks` chunks of 32 codes (the last one padded with zero codes) and a chunk is 1, 2, 4 or
// 8 pieces of 16 bytes (4-bit, e4m3, bf16 and f16, f32). Chunks are taken in sets of 32, the last set may be
// smaller: inside a set of n chunks, piece p of chunk c lies at (p * n + c) * 16, so that the lanes of a
// warp, one a chunk, read 16 bytes each without gaps. 4-bit codes inside a chunk: word w holds elements 4w ..
// 4w + 3 and above them 16 + 4w .. 16 + 4w + 3. Inner scales: nvfp4 2 bytes a chunk, mxfp4 1, fp8_block a
// float per 4 chunks; rows one after the other. Multipliers: a float a row. The rows of a group are padded to
// a multiple of 16 with zeroes, so kernels may read whole tiles.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../../src/backend.hpp"
#include "../../src/stored.hpp"
#include "../formats.hpp"
#include "handles.hpp"

namespace ftmpi::cuda {

/// A matrix as kernels see it. Row r of group g is row g * padded + r.
struct MatrixView {
    const std::uint8_t* codes = nullptr;
    const std::uint8_t* scales = nullptr;
    const float* multipliers = nullptr;            ///< null when the format has none
    std::int64_t code_pitch = 0, scale_pitch = 0;  ///< bytes from row to row
    std::int64_t padded = 0;                       ///< rows from group to group
    int rows = 0, cols = 0, chunks = 0;
    Format format = Format::bf16;
};

class CudaMatrix : public Matrix {
public:
    CudaMatrix(Backend& backend,
               const MatrixSource& source);  ///< allocates zeroed memory; the loader fills it
    const MatrixView& view() const { return view_; }

private:
    DeviceArray<std::uint8_t> data_;
    MatrixView view_;
};

/// The matrix as this backend's. Error(Exit::failure) for another backend's.
const CudaMatrix& cuda_matrix(const Matrix& m);

/// Rows without scales (bf16, f16, f32), on the device or in the mapped file.
class CudaTable : public Matrix {
public:
    std::unique_ptr<CudaMatrix> device;  ///< null when the table stays in the mapped file
    StoredRows stored;                   ///< of the mapped file
};

/// Copies matrices to the device: reader threads fill page-locked buffers, a kernel reads them, checks the
/// values and writes the layout above. Buffers and threads exist from the first load to release().
class Loader {
public:
    explicit Loader(cudaStream_t stream);
    ~Loader();
    /// Fills `to`, which was made from `source`; returns when nothing reads the source any more.
    void load(const MatrixSource& source, const MatrixView& to);
    /// Gives buffers and threads back. A later load takes them again.
    void release();

private:
    struct Parts;
    cudaStream_t stream_;
    std::unique_ptr<Parts> parts_;
};

}  // namespace ftmpi::cuda
