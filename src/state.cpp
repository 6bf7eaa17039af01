#include "state.hpp"

#include "error.hpp"
#include "rope.hpp"

namespace ftmpi {

SequenceState::SequenceState(Backend& backend, const ModelConfig& config, const ShardPlan& plan, int rank)
    : backend_(backend), capacity_(plan.context), lengths_(static_cast<std::size_t>(plan.slots), 0) {
    const auto r = static_cast<std::size_t>(rank);
    bool attends = false;
    for (std::size_t i = 0; i < config.layers.size(); ++i) {
        Layer l;
        const Range mixer = plan.layers[i].mixer[r];
        if (config.layers[i] == LayerKind::attention) {
            const std::int64_t heads = kv_heads_of(config, mixer).size();
            const std::int64_t bytes = plan.slots * heads * capacity_ * config.head_dim *
                                       static_cast<std::int64_t>(size_of(plan.kv));
            const AllocationCounter span(backend, allocated_.kv_cache);
            l.keys = DeviceArray<std::uint8_t>(backend, bytes, "key cache");
            l.values = DeviceArray<std::uint8_t>(backend, bytes, "value cache");
            attends = attends || heads > 0;
        } else {
            const Range values = value_head_range(config, mixer);
            std::int64_t channels = 0;
            for (const Range& q : qkv_rows(config, mixer)) channels += q.size();
            l.conv_per_slot = (config.conv_taps - 1) * channels;
            l.recurrent_per_slot = values.size() * config.key_dim * config.value_dim;
            const AllocationCounter span(backend, allocated_.recurrent_state);
            l.conv = DeviceArray<float>(backend, plan.slots * l.conv_per_slot, "convolution state");
            l.recurrent = DeviceArray<float>(backend, plan.slots * l.recurrent_per_slot, "recurrent state");
        }
        layers_.push_back(std::move(l));
    }
    if (attends) {
        std::vector<float> cos, sin;
        rope_table(config.rope_theta, config.rotary_dim, capacity_, cos, sin);
        const AllocationCounter span(backend, allocated_.rope);
        cos_ = DeviceArray<float>(backend, static_cast<std::int64_t>(cos.size()), "rotary table");
        sin_ = DeviceArray<float>(backend, static_cast<std::int64_t>(sin.size()), "rotary table");
        backend.copy_in(cos_.data(), cos.data(), cos_.bytes());
        backend.copy_in(sin_.data(), sin.data(), sin_.bytes());
    }
}

void SequenceState::reset(int slot) {
    for (Layer& l : layers_) {
        if (l.conv_per_slot)
            backend_.fill_zero(l.conv.data() + slot * l.conv_per_slot,
                               static_cast<std::size_t>(l.conv_per_slot) * 4);
        if (l.recurrent_per_slot)
            backend_.fill_zero(l.recurrent.data() + slot * l.recurrent_per_slot,
                               static_cast<std::size_t>(l.recurrent_per_slot) * 4);
    }
    lengths_[static_cast<std::size_t>(slot)] = 0;
}

void SequenceState::advance(std::span<const Row> rows) {
    for (const Row& row : rows) {
        auto& length = lengths_.at(static_cast<std::size_t>(row.slot));
        if (row.position != length || length >= capacity_)
            throw Error(Exit::failure, "slot " + std::to_string(row.slot) + " holds " +
                                           std::to_string(length) + " of " + std::to_string(capacity_) +
                                           " tokens and was given position " + std::to_string(row.position));
        ++length;
    }
}

}  // namespace ftmpi
