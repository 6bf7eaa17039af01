#include "real_inventory.hpp"

#include <algorithm>
#include <fstream>

#include "safetensors_writer.hpp"

namespace ftmpi::testing {
namespace {

constexpr std::int64_t hidden = 2048, layers = 40, experts = 256, width = 512, vocabulary = 248320;

bool is_attention(std::int64_t layer) { return layer % 4 == 3; }

class Inventory {
public:
    explicit Inventory(RealCheckpoint kind) : kind_(kind) {
        plain("model.language_model.embed_tokens.weight", {vocabulary, hidden});
        plain("model.language_model.norm.weight", {hidden});
        if (kind == RealCheckpoint::nvfp4) nvfp4("lm_head", vocabulary, hidden);
        else plain("lm_head.weight", {vocabulary, hidden});
        for (std::int64_t l = 0; l < layers; ++l) {
            const auto p = "model.language_model.layers." + std::to_string(l) + ".";
            norms(p);
            experts_of(p + "mlp.", kind);
            if (is_attention(l)) attention(p + "self_attn.", kind);
            else delta_net(p + "linear_attn.");
        }
        mtp();
        vision();
    }

    std::vector<InventoryEntry> take() { return std::move(entries_); }

private:
    using Shape = std::vector<std::int64_t>;

    void add(std::string name, DType dtype, Shape shape) {
        entries_.push_back({std::move(name), dtype, std::move(shape)});
    }
    void plain(std::string name, Shape shape) { add(std::move(name), DType::bf16, std::move(shape)); }

    void nvfp4(const std::string& p, std::int64_t rows, std::int64_t cols) {
        add(p + ".weight", DType::u8, {rows, cols / 2});
        add(p + ".weight_scale", DType::f8_e4m3, {rows, cols / 16});
        add(p + ".weight_scale_2", DType::f32, {});
        add(p + ".input_scale", DType::f32, {});
    }

    /// An attention or delta-net projection.
    void projection(const std::string& p, std::int64_t rows, std::int64_t cols, RealCheckpoint kind) {
        if (kind == RealCheckpoint::bf16) return plain(p + ".weight", {rows, cols});
        add(p + ".weight", DType::f8_e4m3, {rows, cols});
        if (kind == RealCheckpoint::fp8)
            return plain(p + ".weight_scale_inv", {(rows + 127) / 128, (cols + 127) / 128});
        add(p + ".weight_scale", DType::f32, {});
        add(p + ".input_scale", DType::f32, {});
    }

    void norms(const std::string& p) {
        plain(p + "input_layernorm.weight", {hidden});
        plain(p + "post_attention_layernorm.weight", {hidden});
    }

    void mlp(const std::string& p, RealCheckpoint kind) {
        const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
            if (kind == RealCheckpoint::nvfp4) nvfp4(p + name, rows, cols);
            else projection(p + name, rows, cols, kind);
        };
        matrix("gate_proj", width, hidden);
        matrix("up_proj", width, hidden);
        matrix("down_proj", hidden, width);
    }

    void experts_of(const std::string& p, RealCheckpoint kind) {
        plain(p + "gate.weight", {experts, hidden});
        plain(p + "shared_expert_gate.weight", {1, hidden});
        mlp(p + "shared_expert.", kind);
        if (kind == RealCheckpoint::bf16) {
            plain(p + "experts.gate_up_proj", {experts, 2 * width, hidden});
            plain(p + "experts.down_proj", {experts, hidden, width});
            return;
        }
        for (std::int64_t e = 0; e < experts; ++e) mlp(p + "experts." + std::to_string(e) + ".", kind);
    }

    void attention(const std::string& p, RealCheckpoint kind) {
        projection(p + "q_proj", 8192, hidden, kind);
        projection(p + "k_proj", 512, hidden, kind);
        projection(p + "v_proj", 512, hidden, kind);
        projection(p + "o_proj", hidden, 4096, kind);
        plain(p + "q_norm.weight", {256});
        plain(p + "k_norm.weight", {256});
    }

    void delta_net(const std::string& p) {
        projection(p + "in_proj_qkv", 8192, hidden, kind_);
        projection(p + "in_proj_z", 4096, hidden, kind_);
        projection(p + "out_proj", hidden, 4096, kind_);
        plain(p + "in_proj_a.weight", {32, hidden});
        plain(p + "in_proj_b.weight", {32, hidden});
        plain(p + "A_log", {32});
        plain(p + "dt_bias", {32});
        plain(p + "conv1d.weight", {8192, 1, 4});
        plain(p + "norm.weight", {128});
    }

    void mtp() {
        // ModelOpt leaves the MTP layer as it was.
        const auto kind = kind_ == RealCheckpoint::nvfp4 ? RealCheckpoint::bf16 : kind_;
        plain("mtp.fc.weight", {hidden, 2 * hidden});
        for (const char* n : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
            plain(std::string("mtp.") + n + ".weight", {hidden});
        norms("mtp.layers.0.");
        attention("mtp.layers.0.self_attn.", kind);
        experts_of("mtp.layers.0.mlp.", kind);
    }

    void linear(const std::string& p, std::int64_t rows, std::int64_t cols) {
        plain(p + ".weight", {rows, cols});
        plain(p + ".bias", {rows});
    }

    void vision() {
        constexpr std::int64_t h = 1152, w = 4304;
        for (int b = 0; b < 27; ++b) {
            const auto p = "model.visual.blocks." + std::to_string(b) + ".";
            for (const char* n : {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"})
                plain(p + n, {h});
            linear(p + "attn.qkv", 3 * h, h);
            linear(p + "attn.proj", h, h);
            linear(p + "mlp.linear_fc1", w, h);
            linear(p + "mlp.linear_fc2", h, w);
        }
        plain("model.visual.merger.norm.weight", {h});
        plain("model.visual.merger.norm.bias", {h});
        linear("model.visual.merger.linear_fc1", 4 * h, 4 * h);
        linear("model.visual.merger.linear_fc2", hidden, 4 * h);
        plain("model.visual.patch_embed.proj.weight", {h, 3, 2, 16, 16});
        plain("model.visual.patch_embed.proj.bias", {h});
        plain("model.visual.pos_embed.weight", {2304, h});
    }

    RealCheckpoint kind_;
    std::vector<InventoryEntry> entries_;
};

/// The module names that ModelOpt lists as quantized, with their algorithm, as JSON members.
std::string quantized_layers() {
    std::string out;
    const auto fp8 = [&](const std::string& module) {
        out += json_string(module) + R"(:{"quant_algo":"FP8"},)";
    };
    const auto nvfp4 = [&](const std::string& module) {
        out += json_string(module) + R"(:{"quant_algo":"W4A16_NVFP4","group_size":16},)";
    };
    for (std::int64_t l = 0; l < layers; ++l) {
        const auto p = "model.language_model.layers." + std::to_string(l) + ".";
        if (is_attention(l)) {
            for (const char* n : {"q_proj", "k_proj", "v_proj", "o_proj"}) fp8(p + "self_attn." + n);
        } else {
            for (const char* n : {"in_proj_qkv", "in_proj_z", "out_proj"}) fp8(p + "linear_attn." + n);
        }
        nvfp4(p + "mlp.experts");
        for (const char* n : {"gate_proj", "up_proj", "down_proj"}) nvfp4(p + "mlp.shared_expert." + n);
    }
    nvfp4("lm_head");
    out.pop_back();
    return out;
}

std::string quantization_json(RealCheckpoint kind) {
    if (kind == RealCheckpoint::bf16) return {};
    if (kind == RealCheckpoint::nvfp4)
        return R"(,"quantization_config":{"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",
"producer":{"name":"modelopt","version":"0.37.0"},"ignore":["mtp.layers.0*","mtp*"],"config_groups":{
"group_0":{"input_activations":{"dynamic":false,"num_bits":8,"type":"float"},"weights":{"dynamic":false,"num_bits":8,"type":"float"},
"targets":["model.language_model.layers.0.linear_attn.in_proj_qkv"]},
"group_1":{"input_activations":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},
"weights":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},"targets":["lm_head"]}},
"quantized_layers":{)" +
               quantized_layers() + "}}";
    std::string kept = R"("lm_head","model.language_model.embed_tokens","model.visual","mtp.fc")";
    for (std::int64_t l = 0; l < layers; ++l) {
        const auto p = "model.language_model.layers." + std::to_string(l) + ".";
        kept += "," + json_string(p + "mlp.gate") + "," + json_string(p + "mlp.shared_expert_gate") + "," +
                json_string(p + "input_layernorm");
        if (!is_attention(l))
            for (const char* n : {"conv1d", "in_proj_a", "in_proj_b"})
                kept += "," + json_string(p + "linear_attn." + n);
    }
    return R"(,"quantization_config":{"quant_method":"fp8","activation_scheme":"dynamic","fmt":"e4m3","weight_block_size":[128,128],
"modules_to_not_convert":[)" +
           kept + "]}";
}

}  // namespace

std::uint64_t InventoryEntry::bytes() const {
    std::uint64_t n = size_of(dtype);
    for (const auto d : shape) n *= static_cast<std::uint64_t>(d);
    return n;
}

std::vector<InventoryEntry> real_inventory(RealCheckpoint kind) { return Inventory(kind).take(); }

std::string real_config_json(RealCheckpoint kind) {
    std::string types;
    for (std::int64_t l = 0; l < layers; ++l)
        types += is_attention(l) ? ",\"full_attention\"" : ",\"linear_attention\"";
    return R"({"architectures":["Qwen3_5MoeForConditionalGeneration"],"model_type":"qwen3_5_moe","dtype":"bfloat16",
"tie_word_embeddings":false,"image_token_id":248056,"video_token_id":248057,"vision_start_token_id":248053,"vision_end_token_id":248054,
"text_config":{"model_type":"qwen3_5_moe_text","dtype":"bfloat16","attention_bias":false,"attention_dropout":0.0,
"attn_output_gate":true,"bos_token_id":248044,"eos_token_id":248044,"pad_token_id":null,"full_attention_interval":4,"head_dim":256,
"hidden_act":"silu","hidden_size":2048,"layer_types":[)" +
           types.substr(1) + R"(],
"linear_conv_kernel_dim":4,"linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,
"linear_value_head_dim":128,"mamba_ssm_dtype":"float32","max_position_embeddings":262144,"moe_intermediate_size":512,
"mtp_num_hidden_layers":1,"mtp_use_dedicated_embeddings":false,"num_attention_heads":16,"num_experts":256,"num_experts_per_tok":8,
"num_hidden_layers":40,"num_key_value_heads":2,"output_router_logits":false,"partial_rotary_factor":0.25,"rms_norm_eps":1e-06,
"rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],"partial_rotary_factor":0.25,"rope_theta":10000000,
"rope_type":"default"},"shared_expert_intermediate_size":512,"tie_word_embeddings":false,"use_cache":true,"vocab_size":248320},
"vision_config":{"model_type":"qwen3_5_moe_vision","depth":27,"hidden_size":1152,"intermediate_size":4304,"num_heads":16,
"hidden_act":"gelu_pytorch_tanh","in_channels":3,"patch_size":16,"temporal_patch_size":2,"spatial_merge_size":2,
"num_position_embeddings":2304,"out_hidden_size":2048,"deepstack_visual_indexes":[]})" +
           quantization_json(kind) + "}";
}

std::string real_hf_quant_config_json(RealCheckpoint kind) {
    if (kind != RealCheckpoint::nvfp4) return {};
    return R"({"producer":{"name":"modelopt","version":"0.44.0"},"quantization":{"quant_algo":"MIXED_PRECISION",
"kv_cache_quant_algo":"FP8","quantized_layers":{)" +
           quantized_layers() + "}}}";
}

std::string real_generation_config_json() {
    return R"({"bos_token_id":248044,"pad_token_id":248044,"eos_token_id":[248046,248044],"do_sample":true,"temperature":1.0,
"top_k":20,"top_p":0.95})";
}

void write_sparse_checkpoint(const std::filesystem::path& directory,
                             const std::vector<InventoryEntry>& inventory, int shards) {
    std::uint64_t total = 0;
    for (const auto& e : inventory) total += e.bytes();
    std::vector<std::pair<std::string, std::string>> weight_map;
    weight_map.reserve(inventory.size());
    std::size_t next = 0;
    std::uint64_t written = 0;
    for (int s = 1; s <= shards; ++s) {
        const auto number = [](int n) {
            return std::string(5 - std::to_string(n).size(), '0') + std::to_string(n);
        };
        const auto file = "model-" + number(s) + "-of-" + number(shards) + ".safetensors";
        const auto limit = total / static_cast<std::uint64_t>(shards) * static_cast<std::uint64_t>(s);
        std::vector<const InventoryEntry*> entries;
        std::uint64_t bytes = 0;
        for (; next < inventory.size() && (s == shards || written + bytes < limit); ++next) {
            entries.push_back(&inventory[next]);
            bytes += inventory[next].bytes();
        }
        written += bytes;
        const auto is_scale = [](const InventoryEntry* e) {
            return e->dtype == DType::f32 && e->bytes() == 4;
        };
        const auto scales = std::stable_partition(entries.begin(), entries.end(),
                                                  [&](const auto* e) { return !is_scale(e); });
        std::string header = "{";
        std::uint64_t begin = 0;
        for (const auto* e : entries) {
            if (header.size() > 1) header += ",";
            header += header_entry(e->name, name_of(e->dtype), e->shape, begin, begin + e->bytes());
            begin += e->bytes();
            weight_map.emplace_back(e->name, file);
        }
        write_raw_safetensors(directory / file, header + "}");
        std::filesystem::resize_file(directory / file, std::filesystem::file_size(directory / file) + begin);
        const std::vector<float> ones(static_cast<std::size_t>(entries.end() - scales), 1.0f);
        std::fstream out(directory / file, std::ios::binary | std::ios::in | std::ios::out);
        out.seekp(-static_cast<std::streamoff>(4 * ones.size()), std::ios::end);
        out.write(reinterpret_cast<const char*>(ones.data()), static_cast<std::streamsize>(4 * ones.size()));
    }
    // The published indexes list names in order, not by shard.
    std::sort(weight_map.begin(), weight_map.end());
    write_index(directory, weight_map);
}

}  // namespace ftmpi::testing
