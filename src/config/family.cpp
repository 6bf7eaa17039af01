#include "family.hpp"

#include <algorithm>

#include "../error.hpp"

namespace ftmpi {
namespace {

using Config = ModelConfig;
using Count = std::int64_t;

// Rows and columns, in the names of config.json where they have one.
Count hidden(const Config& c) { return c.hidden; }
Count one(const Config&) { return 1; }
Count query_and_gate(const Config& c) { return Count{2} * c.query_heads * c.head_dim; }
Count query(const Config& c) { return Count{c.query_heads} * c.head_dim; }
Count key_value(const Config& c) { return Count{c.kv_heads} * c.head_dim; }
Count head_dim(const Config& c) { return c.head_dim; }
Count value_channels(const Config& c) { return c.value_channels(); }
Count qkv_channels(const Config& c) { return 2 * c.key_channels() + c.value_channels(); }
Count value_heads(const Config& c) { return c.value_heads; }
Count value_dim(const Config& c) { return c.value_dim; }
Count taps(const Config& c) { return c.conv_taps; }
Count experts(const Config& c) { return c.experts; }
Count expert_width(const Config& c) { return c.expert_width; }
Count shared_width(const Config& c) { return c.shared_width; }

constexpr Stored matrix = Stored::matrix, vector = Stored::vector, cache_scale = Stored::cache_scale;

constexpr std::string_view kKeyScales[] = {"self_attn.k_scale", "self_attn.attn.k_scale"};
constexpr std::string_view kValueScales[] = {"self_attn.v_scale", "self_attn.attn.v_scale"};

using enum Role;
// clang-format off

//   role    key                    stored  rows    columns  which rows a rank holds, and how they are counted
constexpr TensorRole kInputNorm[] = {
    {input_norm, "input_layernorm.weight", vector, hidden, {}, Cut::whole, Group::replicated, Form::norm},
};
constexpr TensorRole kGatedQuery[] = {
    {q, "self_attn.q_proj", matrix, query_and_gate, hidden, Cut::query_heads, Group::attention},
};
constexpr TensorRole kPlainQuery[] = {
    {q, "self_attn.q_proj", matrix, query, hidden, Cut::query_heads, Group::attention},
};
constexpr TensorRole kAttention[] = {
    {k,      "self_attn.k_proj", matrix, key_value, hidden, Cut::kv_heads, Group::attention},
    {v,      "self_attn.v_proj", matrix, key_value, hidden, Cut::kv_heads, Group::attention},
    {out,    "self_attn.o_proj", matrix, hidden,    query,  Cut::out,      Group::attention},
    {q_norm, "self_attn.q_norm.weight", vector, head_dim, {}, Cut::with_heads, Group::attention, Form::norm},
    {k_norm, "self_attn.k_norm.weight", vector, head_dim, {}, Cut::with_heads, Group::attention, Form::norm},
    {.role = k_scale, .key = "self_attn.k_proj.k_scale", .stored = cache_scale, .rows = one,
     .spellings = kKeyScales},
    {.role = v_scale, .key = "self_attn.v_proj.v_scale", .stored = cache_scale, .rows = one,
     .spellings = kValueScales},
};
constexpr TensorRole kDeltaNet[] = {
    {in_qkv,  "linear_attn.in_proj_qkv", matrix, qkv_channels, hidden, Cut::qkv_heads,     Group::delta_net},
    {in_z,    "linear_attn.in_proj_z", matrix, value_channels, hidden, Cut::value_heads,   Group::delta_net},
    {in_b,    "linear_attn.in_proj_b", matrix, value_heads,    hidden, Cut::value_heads,   Group::delta_net},
    {in_a,    "linear_attn.in_proj_a", matrix, value_heads,    hidden, Cut::value_heads,   Group::delta_net},
    {out,     "linear_attn.out_proj",  matrix, hidden, value_channels, Cut::out,           Group::delta_net},
    {conv,    "linear_attn.conv1d.weight", vector, qkv_channels, taps, Cut::qkv_heads,     Group::delta_net},
    {neg_exp_a, "linear_attn.A_log", vector, value_heads, {}, Cut::value_heads, Group::delta_net,
     Form::neg_exp},
    {dt_bias, "linear_attn.dt_bias",   vector, value_heads, {}, Cut::value_heads,          Group::delta_net},
    {norm,    "linear_attn.norm.weight", vector, value_dim, {}, Cut::with_heads,           Group::delta_net},
};
constexpr TensorRole kExperts[] = {
    {post_norm, "post_attention_layernorm.weight", vector, hidden, {}, Cut::whole, Group::replicated,
     Form::norm},
    {router, "mlp.gate", matrix, experts, hidden, Cut::whole, Group::replicated},
    {.role = gate_up, .key = "mlp.experts.*.gate_proj", .stored = Stored::experts, .rows = expert_width,
     .columns = hidden, .cut = Cut::expert, .group = Group::experts,
     .second = "mlp.experts.*.up_proj", .fused = "mlp.experts.gate_up_proj"},
    {.role = down, .key = "mlp.experts.*.down_proj", .stored = Stored::experts, .rows = hidden,
     .columns = expert_width, .cut = Cut::down, .group = Group::experts, .fused = "mlp.experts.down_proj"},
};
constexpr TensorRole kSharedExpert[] = {
    {shared_gate, "mlp.shared_expert_gate", matrix, one, hidden, Cut::whole, Group::replicated},
    {.role = shared_gate_up, .key = "mlp.shared_expert.gate_proj", .rows = shared_width, .columns = hidden,
     .cut = Cut::shared, .group = Group::shared, .second = "mlp.shared_expert.up_proj"},
    {shared_down, "mlp.shared_expert.down_proj", matrix, hidden, shared_width, Cut::down, Group::shared},
};
// clang-format on

/// The lists one after the other.
template <std::size_t... N> constexpr auto layer_of(const TensorRole (&... lists)[N]) {
    std::array<TensorRole, (N + ...)> all{};
    std::size_t n = 0;
    const auto append = [&](const auto& list) {
        for (const TensorRole& role : list) all[n++] = role;
    };
    (append(lists), ...);
    return all;
}

constexpr auto kDeltaNetLayer = layer_of(kInputNorm, kDeltaNet, kExperts, kSharedExpert);
constexpr auto kGatedAttentionLayer = layer_of(kInputNorm, kGatedQuery, kAttention, kExperts, kSharedExpert);
constexpr auto kPlainAttentionLayer = layer_of(kInputNorm, kPlainQuery, kAttention, kExperts);

constexpr LayerRoles kQwen35Kinds[] = {{LayerKind::delta_net, kDeltaNetLayer},
                                       {LayerKind::attention, kGatedAttentionLayer}};
constexpr LayerRoles kQwen3Kinds[] = {{LayerKind::attention, kPlainAttentionLayer}};

constexpr std::string_view kPrefixes[] = {"model.language_model.", "model."};
constexpr std::string_view kPlainPrefix[] = {"model."};
constexpr SkippedPart kSkipped[] = {{"vision", "model.visual."}, {"vision", "visual."}, {"mtp", "mtp."}};

constexpr Family qwen35(std::string_view model_type, std::string_view text_type) {
    return {.model_type = model_type,
            .text_type = text_type,
            .prefixes = kPrefixes,
            .skipped = kSkipped,
            .zero_centred_norms = true,
            .output_gate = true,
            .partial_rotary = true,
            .norm_topk = true,
            .kinds = kQwen35Kinds};
}
constexpr Family kFamilies[] = {
    qwen35("qwen3_5_moe", "qwen3_5_moe_text"),
    qwen35("qwen3_5_moe_text", ""),
    {.model_type = "qwen3_moe", .prefixes = kPlainPrefix, .kinds = kQwen3Kinds},
};

}  // namespace

const Family* find_family(std::string_view model_type) {
    for (const Family& family : kFamilies)
        if (family.model_type == model_type) return &family;
    return nullptr;
}

std::string known_families() {
    std::string known;
    for (const Family& family : kFamilies)
        known += (known.empty() ? "" : ", ") + std::string(family.model_type);
    return known;
}

const Family& family_of(const ModelConfig& config) {
    if (const Family* family = find_family(config.model_type)) return *family;
    throw Error(Exit::failure, "model type " + config.model_type + " has no family");
}

std::span<const TensorRole> Family::roles(LayerKind kind) const {
    for (const LayerRoles& k : kinds)
        if (k.kind == kind) return k.roles;
    throw Error(Exit::failure, "model type " + std::string(model_type) + " has no layers of this kind");
}

bool Family::has(LayerKind kind) const {
    return std::any_of(kinds.begin(), kinds.end(), [&](const LayerRoles& k) { return k.kind == kind; });
}

bool Family::has(Role role) const {
    for (const LayerRoles& k : kinds)
        for (const TensorRole& tensor : k.roles)
            if (tensor.role == role) return true;
    return false;
}

std::string_view part_of(std::string_view tensor) {
    for (const Family& family : kFamilies)
        for (const SkippedPart& part : family.skipped)
            if (tensor.starts_with(part.prefix)) return part.name;
    return "text";
}

std::string_view without_prefix(std::string_view tensor) {
    for (const Family& family : kFamilies)
        for (const std::string_view prefix : family.prefixes)
            if (tensor.starts_with(prefix)) return tensor.substr(prefix.size());
    return tensor;
}

}  // namespace ftmpi
