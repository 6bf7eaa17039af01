// What a rank keeps of the sequences in flight: recurrent and convolution state, key/value cache, RoPE table.
// The letters of shapes are those of model.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend.hpp"
#include "config.hpp"
#include "shard.hpp"

namespace ftmpi {

/// Memory of `plan.slots` sequences of up to `plan.context` tokens, for this rank's heads only. Everything is
/// allocated here once; a slot is reused after reset().
class SequenceState {
public:
    SequenceState(Backend& backend, const ModelConfig& config, const ShardPlan& plan, int rank);

    struct Layer {
        DeviceArray<float> conv;                 // (S, L - 1, W)
        DeviceArray<float> recurrent;            // (S, U, M, N)
        DeviceArray<std::uint8_t> keys, values;  // (S, K, C, D) of the cache's type
        std::int64_t conv_per_slot = 0, recurrent_per_slot = 0;
    };

    const Layer& layer(std::size_t i) const { return layers_[i]; }
    const float* cos() const { return cos_.data(); }  ///< (C, R / 2)
    const float* sin() const { return sin_.data(); }
    std::int64_t capacity() const { return capacity_; }
    int slots() const { return static_cast<int>(lengths_.size()); }
    /// Device memory taken: kv_cache, recurrent_state, rope.
    const RankBytes& allocated() const { return allocated_; }

    /// Tokens processed in this slot so far.
    std::int64_t length(int slot) const { return lengths_[static_cast<std::size_t>(slot)]; }
    /// A fresh sequence: zero recurrent and convolution state, length 0. Old keys and values are never read
    /// again.
    void reset(int slot);
    /// Checks that the rows continue their slots without gaps and within capacity, and counts them as
    /// processed.
    void advance(std::span<const Row> rows);

private:
    Backend& backend_;
    std::vector<Layer> layers_;
    DeviceArray<float> cos_, sin_;
    std::int64_t capacity_ = 0;
    std::vector<std::int64_t> lengths_;
    RankBytes allocated_;
};

}  // namespace ftmpi
