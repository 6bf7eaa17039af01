// What config.json and generation_config.json say of the model. No built-in defaults for architecture fields.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ftmpi {

enum class LayerKind { delta_net, attention };

/// Geometry and constants of a model, in the names of config.json where they have one.
struct ModelConfig {
    std::string model_type;         ///< of the outer config: "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_moe"
    std::int64_t hidden = 0;        ///< hidden_size
    std::int64_t vocab = 0;         ///< vocab_size: rows of the embedding and of the head, padding included
    std::vector<LayerKind> layers;  ///< layer_types
    int query_heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
    double rope_theta = 0;
    int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0,
        conv_taps = 0;  ///< linear_* (Gated DeltaNet); 0 in families without it
    int experts = 0, top_k = 0;
    std::int64_t expert_width = 0,
                 shared_width = 0;  ///< moe_intermediate_size, shared_expert_intermediate_size (0: none)
    float eps = 0;                  ///< rms_norm_eps
    bool tied_embeddings = false;
    std::int64_t max_positions = 0;             ///< max_position_embeddings
    std::vector<std::int32_t> stop_ids;         ///< every eos id of generation_config.json and config.json
    std::vector<std::string_view> stop_places;  ///< of each of them, the file that names it first
    std::string stop_token;  ///< eos_token of tokenizer_config.json, empty where it names none
    std::string sampling;    ///< options that sample as generation_config.json asks, empty where it does not
    std::string
        quantization;    ///< one line for the screen: method, algorithm, producer; empty when unquantized
    std::string sha256;  ///< of config.json's bytes
    std::vector<std::string>
        warnings;  ///< keys that are not followed: the KV cache scheme, files that contradict each other

    // The formats of the weights are found per tensor; this says what the exporter meant.
    std::map<std::string, std::string>
        quantized_layers;  ///< ModelOpt: module -> algorithm ("FP8", "W4A16_NVFP4", ...)

    int groups() const { return key_heads ? value_heads / key_heads : 0; }  ///< value heads per key head
    std::int64_t key_channels() const { return std::int64_t{key_heads} * key_dim; }
    std::int64_t value_channels() const { return std::int64_t{value_heads} * value_dim; }
};

/// Reads and checks config.json (and generation_config.json, tokenizer_config.json's eos_token,
/// quantization_config, hf_quant_config.json where present). Throws Error(Exit::bad_input) naming the file
/// and the key.
ModelConfig load_config(const std::filesystem::path& directory);

}  // namespace ftmpi
