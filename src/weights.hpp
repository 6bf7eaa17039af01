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
#include "config/family.hpp"
#include "shard.hpp"

namespace ftmpi {

class Resolver;

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

    /// One tensor of a layer, by its role.
    struct Tensor {
        std::vector<StoredMatrix> matrices;  ///< expert by expert, and in each `key` before `second`
        const TensorView* vector = nullptr;  ///< or the cache scale; null when absent
    };
    struct Layer {
        LayerKind kind = LayerKind::delta_net;
        ByRole<Tensor> tensors;
        const Tensor& operator[](Role role) const { return tensors[role]; }
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
    void root(Resolver& resolver, const Checkpoint& checkpoint, const std::string& prefix);
    void layer(Resolver& resolver, const std::string& prefix, Layer& to);
    void account(const Resolver& resolver, const Checkpoint& checkpoint, const std::string& prefix);
    void require_one_format(std::size_t layer) const;

    ModelConfig config_;
    const Family& family_;
    std::vector<Layer> layers_;
    StoredMatrix embedding_, head_;
    const TensorView* final_norm_ = nullptr;
    std::uint64_t text_bytes_ = 0, skipped_bytes_ = 0;
    std::size_t cache_scales_ = 0;
    std::vector<std::string> notes_;
};

/// The vectors and matrices one rank holds of one layer, by role; null where there is none.
struct LayerWeights {
    LayerKind kind = LayerKind::delta_net;
    ByRole<std::unique_ptr<Matrix>> matrices;
    ByRole<DeviceArray<float>> vectors;
    float k_scale = 1, v_scale = 1;  ///< of an FP8 cache

    const Matrix* matrix(Role role) const { return matrices[role].get(); }
    const float* vector(Role role) const { return vectors[role].data(); }
    /// The projection of this role's matrix into `to`, without gaps between rows; of none where it is absent.
    Projection onto(Role role, const DeviceArray<float>& to) const {
        return {matrix(role), to.data(), matrix(role) ? matrix(role)->rows : 0};
    }
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
    /// Device memory taken, in the groups of weights.
    const RankBytes& allocated() const { return allocated_; }

private:
    friend class Loader;
    std::vector<LayerWeights> layers_;
    std::unique_ptr<Matrix> embedding_, head_;
    DeviceArray<float> final_norm_;
    ReadCount read_;
    RankBytes allocated_;
};

/// Values of a small bf16, f16 or fp32 tensor as fp32; Error(bad_input) when one is not finite.
std::vector<float> floats_of(const TensorView& tensor);

}  // namespace ftmpi
