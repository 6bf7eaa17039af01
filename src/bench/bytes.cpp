#include "bytes.hpp"

#include <cmath>

namespace ftmpi {

std::vector<std::pair<std::string_view, double>> StepBytes::groups() const {
    return {{"delta_net", delta_net},   {"attention", attention},
            {"experts", experts},       {"shared_expert", shared_expert},
            {"replicated", replicated}, {"head", head},
            {"embedding", embedding},   {"recurrent_state", recurrent_state},
            {"kv_cache", kv_cache}};
}

StepBytes step_bytes(const ModelConfig& config, const ShardPlan& plan, int rank, int batch, double position) {
    const RankBytes& held = plan.bytes[static_cast<std::size_t>(rank)];
    StepBytes read;
    read.delta_net = static_cast<double>(held.delta_net);
    read.attention = static_cast<double>(held.attention);
    read.shared_expert = static_cast<double>(held.shared);
    read.replicated = static_cast<double>(held.replicated);
    read.head = static_cast<double>(held.head);
    const double untouched = config.experts ? std::pow(1 - double(config.top_k) / config.experts, batch) : 1;
    read.experts = static_cast<double>(held.experts) * (1 - untouched);
    read.embedding = 2.0 * static_cast<double>(config.hidden) * batch;
    const double slots = plan.slots, positions = static_cast<double>(plan.context) * slots;
    read.recurrent_state = 2 * static_cast<double>(held.recurrent_state) / slots * batch;
    if (positions > 0) read.kv_cache = static_cast<double>(held.kv_cache) / positions * position * batch;
    return read;
}

}  // namespace ftmpi
