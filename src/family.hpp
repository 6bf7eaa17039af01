// Model families: which tensors a checkpoint of each must have, by role. To add a family: one row in
// family.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "config.hpp"

namespace ftmpi {

/// Names of the tensors of one layer, relative to the layer's prefix. Matrices are named without ".weight":
/// the format decides which of .weight, .weight_packed, .weight_scale, ... exist.
struct LayerNames {
    std::string_view input_norm, post_norm;
    std::string_view q, k, v, o, q_norm, k_norm;                                       ///< attention
    std::string_view in_qkv, in_z, in_b, in_a, conv, a_log, dt_bias, norm, delta_out;  ///< delta net
    std::string_view router, shared_gate, shared, experts;  ///< `shared` and `experts` are prefixes
    std::string_view gate, up, down;                        ///< inside an expert
    std::string_view fused_gate_up, fused_down;             ///< 3-D, under `experts`, without ".weight"
};

struct Family {
    std::string_view model_type;
    std::span<const std::string_view>
        prefixes;  ///< where the text model may live; exactly one form in a checkpoint
    std::span<const std::string_view> skipped;  ///< prefixes of tensors that are known and left aside
    std::string_view embedding, final_norm;     ///< under the prefix
    std::string_view layers;                    ///< under the prefix: "layers." + index + "."
    std::string_view head;                      ///< at the root
    LayerNames layer;
};

/// The family of a model type; Error(bad_input) listing the known ones otherwise.
const Family& family_of(const ModelConfig& config);

}  // namespace ftmpi
