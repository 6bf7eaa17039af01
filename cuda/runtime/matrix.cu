// The layout's bookkeeping, and the kernel that writes it.
#include "matrix.hpp"

#include "../device_code.hpp"
#include "repack.hpp"

namespace ftmpi::cuda {
namespace {

/// True when one of the codes in 16 bytes is NaN or, in formats without scales, infinite.
template <Format F> __device__ bool bad_codes(uint4 v) {
    using T = FormatTraits<F>;
    return (T::any_bad(v.x) | T::any_bad(v.y) | T::any_bad(v.z) | T::any_bad(v.w)) != 0;
}

/// A chunk of 4-bit codes from the file's order to that of the layout: quads of elements 0, 4 | 1, 5 | 2, 6 |
/// 3, 7.
__device__ uint4 pair_groups(uint4 v) {
    return make_uint4(permute(v.x, v.z, 0x5410), permute(v.x, v.z, 0x7632), permute(v.y, v.w, 0x5410),
                      permute(v.y, v.w, 0x7632));
}

/// One block of threads a run. The run's memory is page-locked host memory.
template <Format F> __global__ void repack(const Run* runs, MatrixView m, int* first_fault) {
    const Run run = runs[blockIdx.x];
    const int threads = static_cast<int>(blockDim.x), pieces = static_cast<int>(m.code_pitch) / kWord128,
              each = FormatTraits<F>::kWords128;
    bool bad = false;
    for (int i = static_cast<int>(threadIdx.x); i < run.rows * pieces; i += threads) {
        const int row = i / pieces, piece = i % pieces, chunk = piece / each, set = chunk / 32 * 32;
        const int n = m.chunks - set < 32 ? m.chunks - set : 32;
        uint4 v = *reinterpret_cast<const uint4*>(run.codes + static_cast<std::size_t>(i) * kWord128);
        if constexpr (is_4bit(F)) v = pair_groups(v);
        else bad = bad || bad_codes<F>(v);
        const std::int64_t at = set * each + piece % each * n + (chunk - set);
        *reinterpret_cast<uint4*>(const_cast<std::uint8_t*>(m.codes) + (run.first + row) * m.code_pitch +
                                  at * kWord128) = v;
    }
    auto* scales = const_cast<std::uint8_t*>(m.scales) + run.first * m.scale_pitch;
    const int pitch = static_cast<int>(m.scale_pitch);
    if constexpr (FormatTraits<F>::kBlockScaled) {
        const int count = pitch / 4;
        const auto* plane = reinterpret_cast<const float*>(run.scales);
        for (int i = static_cast<int>(threadIdx.x); i < run.rows * count; i += threads) {
            const float x = plane[(run.plane_row + i / count) / num::kBlock * count + i % count];
            bad = bad || !(x >= 0.0f) || !num::is_finite(x);
            reinterpret_cast<float*>(scales)[i] = x == 0.0f ? 0.0f : x;
        }
    } else if constexpr (is_4bit(F)) {
        for (int i = static_cast<int>(threadIdx.x); i < (run.rows * pitch + 3) / 4; i += threads) {
            const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(run.scales)[i];
            for (int b = 4 * i; b < 4 * i + 4 && b < run.rows * pitch; ++b) {
                auto x = static_cast<std::uint8_t>(word >> (8 * (b & 3)));
                // A group's codes are 8 bytes (nvfp4); mxfp4 does not look at them.
                const bool wrong = FormatTraits<F>::repaired(
                    x, run.codes + static_cast<std::size_t>(b / pitch) * m.code_pitch + b % pitch * 8);
                bad = bad || wrong;
                scales[b] = x;
            }
        }
    }
    if (m.multipliers)
        for (int i = static_cast<int>(threadIdx.x); i < run.rows; i += threads) {
            const float x = run.multipliers[i];
            bad = bad || !(x > 0.0f) || !num::is_finite(x);
            const_cast<float*>(m.multipliers)[run.first + i] = x;
        }
    if (bad) atomicMin(first_fault, run.block);
}

}  // namespace

void launch_repack(const Run* runs, int count, const MatrixView& to, int* first_fault, cudaStream_t stream) {
    with_format(to.format, [&]<Format F>() {
        launch("repack", repack<F>, dim3(static_cast<unsigned>(count)), dim3(256), 0, stream, runs, to,
               first_fault);
    });
}

CudaMatrix::CudaMatrix(Backend& backend, const MatrixSource& s) {
    format = s.format;
    groups = s.groups;
    rows = s.rows;
    cols = s.cols;
    view_.format = s.format;
    view_.rows = static_cast<int>(s.rows);
    view_.cols = static_cast<int>(s.cols);
    view_.chunks = static_cast<int>((s.cols + num::kChunk - 1) / num::kChunk);
    view_.padded = padded_rows(s.rows);
    view_.code_pitch = std::int64_t{view_.chunks} * words128_of(s.format) * kWord128;
    view_.scale_pitch = scale_pitch_of(s.format, view_.chunks);
    if (view_.code_pitch > (1 << 24) || s.rows > (1 << 30))
        throw Error(Exit::failure, "a matrix of " + std::to_string(s.rows) + " x " + std::to_string(s.cols) +
                                       " is beyond what the kernels count");
    const std::int64_t all = s.groups * view_.padded;
    const auto scales_at = all * view_.code_pitch, multipliers_at = scales_at + all * view_.scale_pitch;
    bytes = static_cast<std::size_t>(multipliers_at + (has_row_scale(s.format) ? 4 * all : 0));
    data_ = DeviceArray<std::uint8_t>(backend, static_cast<std::int64_t>(bytes),
                                      s.blocks.empty() ? "weights" : s.blocks[0].name);
    view_.codes = data_.data();
    view_.scales = data_.data() + scales_at;
    view_.multipliers =
        has_row_scale(s.format) ? reinterpret_cast<const float*>(data_.data() + multipliers_at) : nullptr;
}

const CudaMatrix& cuda_matrix(const Matrix& m) {
    const auto* p = dynamic_cast<const CudaMatrix*>(&m);
    if (!p)
        throw Error(Exit::failure,
                    "a matrix of another backend, or a lookup table, was given to the CUDA backend");
    return *p;
}

}  // namespace ftmpi::cuda
