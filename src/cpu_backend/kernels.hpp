// The loops of the CPU backend as a table of functions, one table per instruction set. Plain data only: the
// sources that fill the tables are compiled for instructions the machine may lack, so nothing they share with
// other sources may be compiled there (tests/cpu_backend/kernel_symbols.sh).
//
// Layout of a matrix (one group): tiles of 16 rows, the rows of a tile interleaved so that a vector lane is a
// row.
//   bf16        column pairs [cols / 2][16 rows][2]; an odd last column [16 rows]
//   f16, f32    columns [cols][16 rows]
//   e4m3        the same with bytes
//   e2m1        octets of columns [cols / 8][16 rows][4 bytes]; the last one is short when cols is no
//   multiple of 8 scales      [scale index][16 rows] multipliers [rows]
#pragma once

#include <cstddef>
#include <cstdint>

#include "../format.hpp"

namespace ftmpi::cpu {

/// 32 activations in block fixed point, split for multiplication by bytes: q = 256 * high + low
/// (num::plane_high).
struct QuantChunk {
    std::int8_t
        q[64];  ///< per octet of columns: low of the even columns [4], of the odd [4], then high likewise
    std::int32_t twelve_times[2];  ///< 12 * sum of q of each group of 16
    float unit;                    ///< num::block_unit of the block
    float unit256;                 ///< 256 times that
};

/// A row in 24-bit block fixed point, in the form of the kernels that read it.
struct WideRow;

/// A row of a step's input: the floats, its chunks when a 4-bit matrix reads it, and its wide codes when an
/// FP8 matrix does.
struct InputRow {
    const float* x;
    const QuantChunk* q;
    const WideRow* wide;
};

/// One group of a matrix.
struct TileView {
    Format format;
    std::int64_t rows, cols;
    const std::uint8_t* codes;
    const std::uint8_t* scales;                   ///< e4m3 or e8m0 bytes, or floats
    const float* multipliers;                     ///< null when the format has none
    std::size_t codes_per_tile, scales_per_tile;  ///< bytes
};

/// The causal convolution and SiLU of `count` channels for the rows of one sequence.
struct ConvTask {
    int count, taps;
    const float* weights;  ///< of the first channel, [count][taps]
    float* state;          ///< of the first channel, [taps - 1] apart by state_stride; advanced by the rows
    std::int64_t state_stride;
    const float* const* inputs;  ///< one pointer a row, to channel 0 of the step's input
    std::int64_t first_channel;
    std::int64_t rows;
    float* out;  ///< [rows][out_stride]
    std::int64_t out_stride;
};

/// The delta rule of one value head for the rows of one sequence, then its gated norm.
struct DeltaTask {
    int key_dim, value_dim;
    std::int64_t rows;
    const float* q;  ///< [rows][stride], normalised
    const float* k;
    const float* v;
    std::int64_t stride;
    const float* beta;   ///< [rows]
    const float* decay;  ///< [rows]
    float* state;        ///< [key_dim][value_dim]
    const float* norm;   ///< [value_dim]
    float eps;
    const float* const* z;  ///< one pointer a row
    float* const* out;      ///< one pointer a row
};

/// One query of attention: normalised and rotated, its position, its gate and the place of its result.
/// gate is null where the model has none.
struct Query {
    const float* q;
    const float* gate;
    float* out;
    std::int64_t position;
};

/// Queries of one sequence that read the same key/value head, in rising position.
struct AttendTask {
    int head_dim;
    KvType kv;
    float scale, k_scale, v_scale;
    const void* keys;  ///< [positions][head_dim]
    const void* values;
    const Query* queries;
    int count;       ///< at most kQueryBlock
    float* scratch;  ///< attend_scratch(head_dim) floats
};
inline constexpr int kQueryBlock = 64;
constexpr std::size_t attend_scratch(int head_dim) {
    // a decoded key tile or value chunk, then per query the scores of a piece, its out and the running out
    const std::size_t width = static_cast<std::size_t>(head_dim + 15) / 16 * 16;
    return width * 32 + kQueryBlock * (256 + 2 * width);
}

struct Kernels {
    /// QuantChunks of x[cols].
    void (*quantize)(const float* x, std::int64_t cols, QuantChunk* out);
    /// Bytes of a WideRow of `cols` columns, a multiple of 64; the row of x[cols].
    std::size_t (*wide_bytes)(std::int64_t cols);
    void (*quantize_wide)(const float* x, std::int64_t cols, WideRow* out);
    /// Rows of tiles [begin, end) times each input: out[i][r - 16 * begin].
    void (*dot)(const TileView& m, std::int64_t begin, std::int64_t end, const InputRow* in, std::int64_t n,
                float* const* out);
    void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t width, float* y);
    void (*expert_act)(const float* gate, const float* up, std::int64_t n, float* act);
    void (*expert_add)(float weight, const float* y, std::int64_t n, float* acc);
    void (*add)(const float* h, const float* y, float* sum, std::int64_t n);
    void (*convolve)(const ConvTask& task);
    /// L2 normalisation in place; for q also times inverse_root (1 leaves the bits as they are, so k passes
    /// 1).
    void (*l2_normalise)(float* x, int dim, float inverse_root);
    void (*gates)(const float* b, const float* a, const float* neg_exp_a, const float* dt_bias, int heads,
                  float* beta, float* decay);
    void (*delta_rule)(const DeltaTask& task);
    /// RMSNorm with weight, then RoPE on the first rotary_dim elements.
    void (*norm_rope)(const float* x, const float* weight, float eps, int dim, int rotary_dim,
                      const float* cos, const float* sin, float* y);
    void (*store_kv)(const float* x, int dim, KvType type, float scale, void* to);
    void (*attend)(const AttendTask& task);
    void (*route)(const float* logits, int experts, int top_k, std::int32_t* ids, float* weights);
    void (*argmax)(const float* logits, std::int64_t ids, const std::uint8_t* masked, std::int32_t* token,
                   std::int32_t* finite);
};

const Kernels& kernels_plain();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512vnni();  ///< the same with byte products for FP8
const Kernels& kernels_avx512amx();   ///< the same with AMX tiles for FP8

}  // namespace ftmpi::cpu
