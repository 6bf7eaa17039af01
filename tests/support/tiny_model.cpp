#include "tiny_model.hpp"

#include <algorithm>
#include <cmath>

namespace ftmpi::testing {
namespace {

/// Uniform numbers in [low, high) from a linear congruential generator started by the seed and the tensor's
/// role.
std::vector<double> uniform(const TinySpec& spec, const std::string& role, std::int64_t count, double low,
                            double high) {
    std::uint64_t state = 0xcbf29ce484222325u ^ spec.seed * 0x9e3779b97f4a7c15u;
    for (const char c : role) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    std::vector<double> v(static_cast<std::size_t>(count));
    for (auto& x : v) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x = low + (high - low) * static_cast<double>(state >> 11) * 0x1p-53;
    }
    return v;
}

/// Weights that turn components of unit variance into components of variance gain^2.
std::vector<double> weights(const TinySpec& spec, const std::string& role, std::int64_t rows,
                            std::int64_t cols, double gain = 1) {
    const double bound = gain * std::sqrt(3.0 / static_cast<double>(cols));
    return uniform(spec, role, rows * cols, -bound, bound);
}

struct Storages {
    Storage expert = Storage::bf16, shared = Storage::bf16, head = Storage::bf16, projection = Storage::bf16;
};

Storages storages_of(const TinySpec& spec, int layer) {
    Storages s;
    switch (spec.layout) {
        case Layout::bf16_fused:
        case Layout::bf16_per_expert: break;
        case Layout::modelopt_nvfp4:
            s.expert = s.shared = s.head = Storage::nvfp4_modelopt;
            s.projection = Storage::fp8_tensor;
            break;
        case Layout::compressed_nvfp4: s.expert = s.shared = Storage::nvfp4_compressed; break;
        case Layout::fp8_tensor: s.expert = s.shared = s.projection = Storage::fp8_tensor; break;
        case Layout::fp8_row: s.expert = s.shared = s.projection = Storage::fp8_row; break;
        case Layout::fp8_block: s.expert = s.shared = s.projection = Storage::fp8_block; break;
        case Layout::mxfp4: s.expert = s.shared = s.head = Storage::mxfp4; break;
        case Layout::mixed: {
            static constexpr Storage kTurns[] = {
                Storage::nvfp4_modelopt,   Storage::fp8_row,   Storage::mxfp4,      Storage::bf16,
                Storage::nvfp4_compressed, Storage::fp8_block, Storage::fp8_tensor, Storage::mxfp4_packed};
            const auto turn = [&](int i) { return kTurns[static_cast<std::size_t>(i) % std::size(kTurns)]; };
            s.expert = turn(layer);
            s.shared = turn(layer + 4);
            s.head = Storage::nvfp4_compressed;
            break;
        }
    }
    if (spec.expert_storage) s.expert = *spec.expert_storage;
    if (spec.shared_storage) s.shared = *spec.shared_storage;
    if (spec.projection_storage) s.projection = *spec.projection_storage;
    if (spec.head_storage) s.head = *spec.head_storage;
    return s;
}

/// Storage of one mixer projection; `turn` counts them inside a layer.
Storage projection_storage(const TinySpec& spec, int layer, int turn) {
    if (spec.layout != Layout::mixed || spec.projection_storage) return storages_of(spec, layer).projection;
    static constexpr Storage kTurns[] = {Storage::fp8_row, Storage::bf16, Storage::fp8_tensor,
                                         Storage::fp8_block};
    return kTurns[static_cast<std::size_t>(layer + turn) % std::size(kTurns)];
}

const char* algorithm(Storage s) {
    switch (s) {
        case Storage::bf16: return "";
        case Storage::nvfp4_modelopt:
        case Storage::nvfp4_compressed: return "W4A16_NVFP4";
        case Storage::fp8_tensor: return "FP8";
        case Storage::fp8_row: return "FP8_PER_CHANNEL_PER_TOKEN";
        case Storage::fp8_block: return "FP8_PB_WO";
        case Storage::mxfp4:
        case Storage::mxfp4_packed: return "MXFP4";
    }
    return "";
}

class Maker {
public:
    explicit Maker(const TinySpec& spec) : spec_(spec) {}

    std::vector<StoredTensor> tensors;
    std::vector<std::pair<std::string, std::string>> modules;

    void make() {
        const auto h = spec_.hidden;
        tensor(spec_.prefix + "embed_tokens.weight", "BF16", {spec_.vocab, h},
               uniform(spec_, "embed_tokens", spec_.vocab * h, -1, 1));
        for (int i = 0; i < spec_.layers; ++i) {
            const auto s = storages_of(spec_, i);
            role_ = "layers." + std::to_string(i) + ".";
            module_ = spec_.prefix + role_;
            const bool fused = spec_.layout == Layout::bf16_fused || spec_.fp8_fused_experts;
            layer(i, spec_.is_attention(i), s.expert, s.shared, fused);
        }
        const double stored = spec_.qwen3_moe ? 1 : 0;
        vector(spec_.prefix + "norm.weight", "norm", h, stored - 0.3, stored + 0.3);
        // Gain 3: the largest of 320 logits then stands clear of the second in most positions.
        if (!spec_.tied_embeddings)
            store(store_matrix("lm_head", storages_of(spec_, 0).head, spec_.form, spec_.vocab, h,
                               weights(spec_, "lm_head", spec_.vocab, h, 3)),
                  "lm_head", storages_of(spec_, 0).head);
        if (spec_.mtp != Mtp::none) mtp();
        if (spec_.vision) vision();
    }

private:
    void tensor(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape,
                const std::vector<double>& v) {
        tensors.push_back({name, dtype, std::move(shape), encode_values(dtype, v)});
    }

    void vector(const std::string& name, const std::string& role, std::int64_t n, double low, double high) {
        tensor(name, spec_.vector_dtype, {n}, uniform(spec_, role, n, low, high));
    }

    /// Around 1 when multiplied; Qwen3.5 stores what is added to 1.
    void norm(const std::string& name, std::int64_t n, double low, double high) {
        const double stored = spec_.qwen3_moe ? 1 : 0;
        layer_vector(name, n, low + stored, high + stored);
    }

    void layer_vector(const std::string& name, std::int64_t n, double low, double high) {
        vector(module_ + name, role_ + name, n, low, high);
    }

    void store(std::vector<StoredTensor> stored, const std::string& module, Storage storage) {
        std::move(stored.begin(), stored.end(), std::back_inserter(tensors));
        if (storage != Storage::bf16 && (modules.empty() || modules.back().first != module))
            modules.emplace_back(module, algorithm(storage));
    }

    void matrix(const std::string& name, Storage storage, std::int64_t rows, std::int64_t cols,
                double gain = 1) {
        store(store_matrix(module_ + name, storage, spec_.form, rows, cols,
                           weights(spec_, role_ + name, rows, cols, gain)),
              module_ + name, storage);
    }

    /// gate_proj, up_proj, down_proj under `at`; `listed` is the module name quantized_layers has for it, or
    /// empty for each its own.
    void expert(const std::string& at, Storage storage, std::int64_t width, const std::string& listed) {
        const auto h = spec_.hidden;
        const auto gate = weights(spec_, role_ + at + "gate_proj", width, h, 1.5),
                   up = weights(spec_, role_ + at + "up_proj", width, h, 1.5),
                   down = weights(spec_, role_ + at + "down_proj", h, width);
        std::optional<double> both;
        if (spec_.gate_up_share_scale) both = std::max(largest_magnitude(gate), largest_magnitude(up));
        const auto put = [&](const char* name, std::int64_t rows, std::int64_t cols,
                             const std::vector<double>& v, std::optional<double> amax) {
            store(store_matrix(module_ + at + name, storage, spec_.form, rows, cols, v, amax),
                  module_ + (listed.empty() ? at + name : listed), storage);
        };
        put("gate_proj", width, h, gate, both);
        put("up_proj", width, h, up, both);
        put("down_proj", h, width, down, {});
    }

    void fused_experts(Storage storage) {
        const auto h = spec_.hidden, w = spec_.expert_width;
        std::vector<double> gate_up, down;
        for (int e = 0; e < spec_.experts; ++e) {
            const std::string at = role_ + "mlp.experts." + std::to_string(e) + ".";
            const auto add = [&](std::vector<double>& to, const char* name, std::int64_t rows,
                                 std::int64_t cols, double gain) {
                const auto v = weights(spec_, at + name, rows, cols, gain);
                to.insert(to.end(), v.begin(), v.end());
            };
            add(gate_up, "gate_proj", w, h, 1.5);
            add(gate_up, "up_proj", w, h, 1.5);
            add(down, "down_proj", h, w, 1);
        }
        const std::string at = module_ + "mlp.experts";
        store(store_stack(at + ".gate_up_proj", storage, spec_.form, spec_.experts, 2 * w, h, gate_up), at,
              storage);
        store(store_stack(at + ".down_proj", storage, spec_.form, spec_.experts, h, w, down), at, storage);
    }

    void layer(int index, bool attention, Storage expert_storage, Storage shared_storage, bool fused) {
        const auto h = spec_.hidden;
        const auto projection = [&](int turn) {
            return index < 0 ? Storage::bf16 : projection_storage(spec_, index, turn);
        };
        norm("input_layernorm.weight", h, -0.3, 0.3);
        if (attention) {
            const std::int64_t d = spec_.head_dim, q = spec_.heads * d, kv = spec_.kv_heads * d;
            matrix("self_attn.q_proj", projection(0), spec_.qwen3_moe ? q : 2 * q, h);
            matrix("self_attn.k_proj", projection(1), kv, h);
            matrix("self_attn.v_proj", projection(2), kv, h);
            matrix("self_attn.o_proj", projection(3), h, q, 2);
            // Weights above 1 sharpen the attention, so that positions matter.
            norm("self_attn.q_norm.weight", d, 0.0, 0.8);
            norm("self_attn.k_norm.weight", d, 0.0, 0.8);
        } else {
            const auto value = spec_.value_channels(), channels = 2 * spec_.key_channels() + value;
            matrix("linear_attn.in_proj_qkv", projection(0), channels, h);
            matrix("linear_attn.in_proj_z", projection(1), value, h);
            matrix("linear_attn.in_proj_b", Storage::bf16, spec_.value_heads, h, 1.5);
            matrix("linear_attn.in_proj_a", Storage::bf16, spec_.value_heads, h);
            tensor(module_ + "linear_attn.conv1d.weight", "BF16", {channels, 1, spec_.conv_taps},
                   weights(spec_, role_ + "linear_attn.conv1d", channels, spec_.conv_taps));
            layer_vector("linear_attn.A_log", spec_.value_heads, -1.5, 1.5);
            layer_vector("linear_attn.dt_bias", spec_.value_heads, -4.0, 0.5);
            layer_vector("linear_attn.norm.weight", spec_.value_dim, 0.7, 1.3);
            matrix("linear_attn.out_proj", projection(2), h, value);
        }
        norm("post_attention_layernorm.weight", h, -0.3, 0.3);
        matrix("mlp.gate", Storage::bf16, spec_.experts, h, 2);
        if (!spec_.qwen3_moe) matrix("mlp.shared_expert_gate", Storage::bf16, 1, h);
        if (fused) fused_experts(expert_storage);
        else
            for (int e = 0; e < spec_.experts; ++e)
                expert("mlp.experts." + std::to_string(e) + ".", expert_storage, spec_.expert_width,
                       "mlp.experts");
        if (!spec_.qwen3_moe) expert("mlp.shared_expert.", shared_storage, spec_.shared_width, "");
    }

    /// One attention layer and its joints. BF16, except in FP8 block checkpoints with per-expert tensors, as
    /// exporters write it.
    void mtp() {
        const auto h = spec_.hidden;
        role_ = module_ = "mtp.";
        matrix("fc", Storage::bf16, h, 2 * h);
        for (const char* name : {"norm.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight"})
            layer_vector(name, h, -0.3, 0.3);
        role_ = module_ = "mtp.layers.0.";
        const bool blocks = spec_.layout == Layout::fp8_block && spec_.mtp == Mtp::per_expert;
        const auto storage = blocks ? Storage::fp8_block : Storage::bf16;
        layer(-1, true, storage, storage, spec_.mtp == Mtp::fused);
    }

    void vision() {
        const auto put = [&](const std::string& name, std::vector<std::int64_t> shape) {
            std::int64_t n = 1;
            for (const auto d : shape) n *= d;
            tensor("model.visual." + name, "BF16", std::move(shape),
                   uniform(spec_, "visual." + name, n, -1, 1));
        };
        put("patch_embed.proj.weight", {16, 3, 2, 4, 4});
        put("patch_embed.proj.bias", {16});
        put("blocks.0.attn.qkv.weight", {48, 16});
        put("blocks.0.mlp.linear_fc1.weight", {32, 16});
        put("merger.norm.weight", {16});
        put("merger.linear_fc2.weight", {spec_.hidden, 16});
    }

    const TinySpec& spec_;
    std::string role_, module_;
};

Maker made(const TinySpec& spec) {
    Maker maker(spec);
    maker.make();
    return maker;
}

}  // namespace

const char* name_of(Layout layout) {
    switch (layout) {
        case Layout::bf16_fused: return "bf16_fused";
        case Layout::bf16_per_expert: return "bf16_per_expert";
        case Layout::modelopt_nvfp4: return "modelopt_nvfp4";
        case Layout::compressed_nvfp4: return "compressed_nvfp4";
        case Layout::fp8_tensor: return "fp8_tensor";
        case Layout::fp8_row: return "fp8_row";
        case Layout::fp8_block: return "fp8_block";
        case Layout::mxfp4: return "mxfp4";
        case Layout::mixed: return "mixed";
    }
    return "?";
}

TinySpec TinySpec::wide() {
    TinySpec s;
    s.hidden = 256;
    s.expert_width = s.shared_width = 512;
    s.layout = Layout::fp8_block;
    return s;
}

TinySpec TinySpec::qwen3(Layout layout) {
    TinySpec s;
    s.qwen3_moe = s.flat_config = true;
    s.layers = 3;
    s.full_interval = 1;
    s.head_dim = 32;
    s.partial_rotary = 1;
    s.rope_theta = 1000000;
    s.experts = 8;
    s.top_k = 3;
    s.expert_width = layout == Layout::mxfp4 || layout == Layout::mixed ? 64 : 48;  // groups of 32, of 16
    s.layout = layout;
    s.prefix = "model.";
    return s;
}

std::vector<StoredTensor> make_tiny_tensors(const TinySpec& spec) { return made(spec).tensors; }

std::vector<std::pair<std::string, std::string>> quantized_modules(const TinySpec& spec) {
    return made(spec).modules;
}

}  // namespace ftmpi::testing
