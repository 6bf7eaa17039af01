#include "family.hpp"

#include "error.hpp"

namespace ftmpi {
namespace {

constexpr std::string_view kQwenPrefixes[] = {"model.language_model.", "model."};
constexpr std::string_view kQwenSkipped[] = {"model.visual.", "visual.", "mtp."};

constexpr LayerNames kQwenLayer = {
    .input_norm = "input_layernorm.weight",
    .post_norm = "post_attention_layernorm.weight",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .q_norm = "self_attn.q_norm.weight",
    .k_norm = "self_attn.k_norm.weight",
    .in_qkv = "linear_attn.in_proj_qkv",
    .in_z = "linear_attn.in_proj_z",
    .in_b = "linear_attn.in_proj_b",
    .in_a = "linear_attn.in_proj_a",
    .conv = "linear_attn.conv1d.weight",
    .a_log = "linear_attn.A_log",
    .dt_bias = "linear_attn.dt_bias",
    .norm = "linear_attn.norm.weight",
    .delta_out = "linear_attn.out_proj",
    .router = "mlp.gate",
    .shared_gate = "mlp.shared_expert_gate",
    .shared = "mlp.shared_expert.",
    .experts = "mlp.experts.",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .fused_gate_up = "gate_up_proj",
    .fused_down = "down_proj",
};

constexpr Family kFamilies[] = {
    {"qwen3_5_moe", kQwenPrefixes, kQwenSkipped, "embed_tokens", "norm.weight", "layers.", "lm_head",
     kQwenLayer},
    {"qwen3_5_moe_text", kQwenPrefixes, kQwenSkipped, "embed_tokens", "norm.weight", "layers.", "lm_head",
     kQwenLayer},
};

}  // namespace

const Family& family_of(const ModelConfig& config) {
    std::string known;
    for (const Family& f : kFamilies) {
        if (f.model_type == config.model_type) return f;
        known += (known.empty() ? "" : ", ") + std::string(f.model_type);
    }
    throw Error(Exit::bad_input,
                "config.json: model_type \"" + config.model_type + "\" is not one this program runs",
                "known: " + known);
}

}  // namespace ftmpi
