// From named tensors to the matrices a rank holds: formats found per tensor, every text tensor used exactly
// once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend.hpp"
#include "checkpoint.hpp"
#include "config.hpp"
#include "family.hpp"
#include "shard.hpp"

namespace ftmpi {

/// One matrix of the checkpoint with its scales, in whatever format its keys say.
struct StoredMatrix {
    Format format = Format::bf16;
    std::int64_t rows = 0, cols = 0;
    const TensorView* codes = nullptr;
    std::int64_t first_code_row =
        0;  ///< rows of `codes` before this matrix (an expert inside a fused tensor)
    const TensorView* scales =
        nullptr;  ///< inner scales, block scales or row scales; null with one scale a tensor
    std::int64_t first_scale_row =
        0;                           ///< rows of `scales` before this matrix; of its plane for 128x128 blocks
    std::int64_t row_in_plane = 0;   ///< 128x128 blocks: rows of the plane before this matrix (up after gate)
    float multiplier = 1.0f;         ///< per-tensor scale; a stored divisor is already inverted
    std::uint64_t scalar_bytes = 0;  ///< of the per-tensor scale in the file

    /// Rows [range) as a backend loads them.
    RowBlock block(Range range) const;
    /// File bytes of these rows: codes and the scale rows they touch.
    std::uint64_t bytes(Range range) const;
};

/// All text tensors of a checkpoint resolved to roles. Throws Error(bad_input) naming the missing, unknown or
/// mis-shaped tensor. Vision and MTP tensors are counted and left aside.
class Inventory {
public:
    Inventory(const Checkpoint& checkpoint, const ModelConfig& config);

    struct Expert {
        StoredMatrix gate, up, down;
    };
    struct Layer {
        LayerKind kind = LayerKind::delta_net;
        const TensorView *input_norm = nullptr, *post_norm = nullptr;
        StoredMatrix q, k, v, in_qkv, in_z, in_b, in_a, out, router, shared_gate;
        const TensorView *q_norm = nullptr, *k_norm = nullptr;    // attention
        const TensorView *k_scale = nullptr, *v_scale = nullptr;  // attention, of an FP8 cache; may be absent
        const TensorView *conv = nullptr, *a_log = nullptr, *dt_bias = nullptr, *norm = nullptr;  // delta net
        std::vector<Expert> experts;
        Expert shared;
    };

    const ModelConfig& config() const { return config_; }
    const std::vector<Layer>& layers() const { return layers_; }
    const StoredMatrix& embedding() const { return embedding_; }
    const StoredMatrix& head() const { return head_; }  ///< the embedding itself when tied
    const TensorView& final_norm() const { return *final_norm_; }
    ModelSizes sizes() const;

    std::uint64_t text_bytes() const {
        return text_bytes_;
    }  ///< of all text tensors, ignored scales left out
    std::uint64_t skipped_bytes() const { return skipped_bytes_; }  ///< vision, MTP, activation scales
    const std::vector<std::string>& notes() const { return notes_; }

private:
    friend class Resolver;
    ModelConfig config_;
    std::vector<Layer> layers_;
    StoredMatrix embedding_, head_;
    const TensorView* final_norm_ = nullptr;
    std::uint64_t text_bytes_ = 0, skipped_bytes_ = 0;
    std::vector<std::string> notes_;
};

/// The vectors and matrices one rank holds of one layer.
struct LayerWeights {
    LayerKind kind = LayerKind::delta_net;
    DeviceArray<float> input_norm, post_norm;  // 1 + w
    std::unique_ptr<Matrix> q, k, v, in_qkv, in_z, in_b, in_a, out, router, shared_gate;
    DeviceArray<float> q_norm, k_norm;  // 1 + w
    float k_scale = 1, v_scale = 1;
    DeviceArray<float> conv, neg_exp_a, dt_bias, norm;
    std::unique_ptr<Matrix> gate_up, down, shared_gate_up, shared_down;
};

/// What a rank read from the checkpoint, to be added up over the ranks.
struct ReadCount {
    std::uint64_t cut = 0;  ///< rows that this rank alone holds by the plan, and rows shared with a neighbour
                            ///< (split KV groups)
    std::uint64_t replicated = 0;  ///< tensors every rank reads whole: norms, router, per-tensor scales, ...
};

class Weights {
public:
    using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

    /// Loads this rank's rows onto the backend. `progress` is called now and then with file bytes.
    Weights(const Checkpoint& checkpoint, const Inventory& inventory, const ShardPlan& plan, int rank,
            Backend& backend, const Progress& progress = {});

    const std::vector<LayerWeights>& layers() const { return layers_; }
    const Matrix& embedding() const { return *embedding_; }
    const Matrix& head() const { return *head_; }
    const float* final_norm() const { return final_norm_.data(); }
    const ReadCount& read() const { return read_; }
    std::uint64_t matrix_bytes() const { return matrix_bytes_; }  ///< device memory held by matrices
    const RankBytes& held() const { return held_; }  ///< device memory taken, in the groups of weights

private:
    friend class Loader;
    std::vector<LayerWeights> layers_;
    std::unique_ptr<Matrix> embedding_, head_;
    DeviceArray<float> final_norm_;
    ReadCount read_;
    std::uint64_t matrix_bytes_ = 0;
    RankBytes held_;
};

/// Values of a small bf16, f16 or fp32 tensor as fp32; Error(bad_input) when one is not finite.
std::vector<float> floats_of(const TensorView& tensor);

}  // namespace ftmpi
