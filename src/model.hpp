// The model: one step of rows through all layers, from tokens to gathered logits.
//
// Letters of shapes, here, in state.hpp, in backend.hpp and in cuda/:
//   T rows of the step     S slots                 C positions a slot holds
//   H hidden width         V vocabulary            E experts           X experts chosen for a row
//   Q query heads here     K key/value heads here  D head size         R rotated channels of a head
//   G key heads here       U value heads here      M key size          N value size
//   W = 2*G*M + U*N channels of the convolution: q | k | v             L its taps
//   F width of a routed expert here                I width of the shared expert here
// "Here" is this rank's part; Q', U', F', I' are of the whole model. Row-major: the last letter is
// contiguous.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backend.hpp"
#include "communicator.hpp"
#include "model/residual_stream.hpp"
#include "shard.hpp"
#include "state.hpp"
#include "weights.hpp"

namespace ftmpi {

class Model {
public:
    /// Allocates the workspace of plan.prefill_rows rows. All references must outlive the model.
    Model(Backend& backend, Communicator& communicator, const ModelConfig& config, const ShardPlan& plan,
          const Weights& weights, SequenceState& state);
    ~Model() { backend_.forget_replays(this); }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    /// A step of prompts: runs `rows` (at most max_rows()), which may be of several sequences, and returns
    /// the logits of the rows in `wanted` (rising, at most plan.slots of them), gathered: (wanted, V) in
    /// device memory, valid until the next call; null when none is wanted. Every rank calls this with the
    /// same arguments. When a copy_async() of the last call's logits may be under way, they are written after
    /// it.
    const float* prefill(std::span<const Row> rows, std::span<const Range> wanted);
    const float* prefill(std::span<const Row> rows, Range wanted) { return prefill(rows, {&wanted, 1}); }
    /// A step of decoding: one row a sequence and the logits of all, as prefill() returns them. With
    /// `tokens`, which are in device memory, the token of row t is tokens[rows[t].token] as
    /// Backend::resolve_tokens() says: so a step is asked for before the host knows what the step before
    /// chose.
    const float* decode(std::span<const Row> rows, const std::int32_t* tokens = nullptr);
    /// True when this rank's decode() takes `tokens`.
    bool takes_device_tokens() const { return backend_.embeds_from_device(weights_.embedding()); }

    /// Fast numerics, for the steps of prompts: the mixers. Router, experts and head stay exact.
    void set_fast_prefill(bool fast) { fast_prefill_ = fast; }

    std::int64_t max_rows() const { return max_rows_; }
    std::int64_t vocab() const { return config_.vocab; }

    /// For tests and diagnosis: called with every intermediate result that all ranks hold whole, by name
    /// ("embed", "mixer", "router", "moe", "hidden", "final_norm") and layer (-1 outside). Values are
    /// (rows, width) in device memory.
    using Observer = std::function<void(std::string_view name, int layer, const float* values,
                                        std::int64_t rows, std::int64_t width)>;
    void observe(Observer observer) { observer_ = std::move(observer); }
    const Routes& routes() const { return routes_; }  ///< of the layer that ran last

private:
    const float* forward(std::span<const Row> rows, std::span<const Range> wanted, bool decodes,
                         const std::int32_t* tokens);
    void layers(const Rows& rows, std::span<const Range> wanted);
    bool can_replay(const Rows& rows) const;
    // The two halves of a layer begin with a norm of the stream and leave what they add to it.
    void mixer(std::size_t layer, const Rows& rows);
    void experts(std::size_t layer, const Rows& rows);
    // The two mixers fill the columns of this rank's heads in mixed_.
    void attention(std::size_t layer, const Rows& rows);
    void delta_net(std::size_t layer, const Rows& rows);
    void head(const Rows& rows, std::span<const Range> wanted);
    const float* logits_of_all(std::int64_t rows);
    void gather(std::string_view name, std::span<const ShardedColumns> parts);
    void seen(std::string_view name, int layer, const float* values, std::int64_t rows, std::int64_t width);

    Backend& backend_;
    Communicator& communicator_;
    const ModelConfig& config_;
    const ShardPlan& plan_;
    const Weights& weights_;
    SequenceState& state_;
    std::size_t rank_;
    std::optional<int> sole_;  ///< the rank that holds every row that is cut: the others follow and only take
                               ///< part in the logits' gather
    std::int64_t max_rows_;
    std::vector<std::vector<Range>> mixer_columns_;  ///< [layer][rank], columns of the mixer's output

    DeviceArray<Row> rows_;                 // (T)
    ResidualStream residual_;               // (T, H)
    DeviceArray<float> q_;                  // (T, Q, 2*D) query | gate of each head, or (T, Q, D)
    DeviceArray<float> k_, v_;              // (T, K, D)
    DeviceArray<float> qkv_;                // (T, W)
    DeviceArray<float> z_;                  // (T, U, N)
    DeviceArray<float> b_, a_;              // (T, U)
    DeviceArray<float> mixed_;              // (T, Q'*D) or (T, U'*N)
    DeviceArray<float> router_;             // (T, E)
    DeviceArray<std::int32_t> expert_ids_;  // (T, X)
    DeviceArray<float> expert_weights_;     // (T, X)
    DeviceArray<float> act_;                // (T, X, F')
    DeviceArray<float> shared_gate_;        // (T)
    DeviceArray<float> shared_act_;         // (T, I')
    DeviceArray<float> logits_;             // (S, V)
    Routes routes_;
    bool fast_prefill_ = false, fast_step_ = false;
    Observer observer_;
};

}  // namespace ftmpi
