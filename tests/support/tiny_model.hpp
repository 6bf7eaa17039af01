// Small checkpoints of the Qwen3.5 MoE and Qwen3 MoE families, generated in every on-disk layout from one
// fixed set of weights.
//
// The weights depend on the seed, the geometry and a tensor's role only, never on the layout: two layouts of
// one spec hold the same model, each as well as its format can. A test breaks a checkpoint by editing
// make_tiny_tensors() or a written text file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "safetensors_writer.hpp"
#include "tiny_quantizers.hpp"

namespace ftmpi::testing {

enum class Layout {
    bf16_fused,  ///< 3-D expert tensors
    bf16_per_expert,
    modelopt_nvfp4,    ///< MIXED_PRECISION: experts, shared expert and head NVFP4; mixer projections FP8 per
                       ///< tensor
    compressed_nvfp4,  ///< experts and shared expert NVFP4 under compressed-tensors names, the rest BF16
    fp8_tensor,        ///< mixer projections, experts and shared expert; head BF16 (also in the next two)
    fp8_row,
    fp8_block,
    mxfp4,  ///< experts, shared expert and head; mixer projections BF16
    mixed,  ///< another storage from layer to layer and from projection to projection
};

const char* name_of(Layout layout);
inline constexpr Layout kAllLayouts[] = {
    Layout::bf16_fused,       Layout::bf16_per_expert, Layout::modelopt_nvfp4,
    Layout::compressed_nvfp4, Layout::fp8_tensor,      Layout::fp8_row,
    Layout::fp8_block,        Layout::mxfp4,           Layout::mixed};

enum class Mtp { none, fused, per_expert };

struct TinySpec {
    std::int64_t hidden = 64, vocab = 320;
    int layers = 4, full_interval = 4;  ///< layer i is full attention when (i + 1) % full_interval == 0
    int heads = 4, kv_heads = 2, head_dim = 16;
    double partial_rotary = 0.25, rope_theta = 10000000;
    int key_heads = 4, value_heads = 8, key_dim = 16, value_dim = 16, conv_taps = 4;
    int experts = 4, top_k = 2;
    std::int64_t expert_width = 64, shared_width = 64, max_positions = 4096;

    bool qwen3_moe = false;  ///< the second family; to be had from qwen3(), as the geometry goes with it

    Layout layout = Layout::bf16_fused;
    ScaleForm form;
    /// Override the storage the layout gives to these roles.
    std::optional<Storage> projection_storage, expert_storage, shared_storage, head_storage;
    bool fp8_fused_experts = false;  ///< FP8 experts as 3-D tensors with 3-D scales
    bool gate_up_share_scale =
        true;  ///< gate and up of one expert have one global scale, as ModelOpt writes them
    std::string prefix = "model.language_model.";  ///< or "model."
    bool flat_config = false;  ///< text keys at the top of config.json, model_type qwen3_5_moe_text
    bool tied_embeddings = false;
    int shards = 1;  ///< 1: model.safetensors without an index
    Mtp mtp = Mtp::none;
    bool vision = false;
    std::string vector_dtype =
        "BF16";  ///< A_log, dt_bias and all norms; "F32" stores values that BF16 cannot hold
    bool merges_as_strings = false;  ///< tokenizer.json: "a b" instead of ["a", "b"]
    std::uint64_t seed = 1;

    /// Hidden 256 and experts of 512 in 128x128 FP8 blocks: several blocks in both directions.
    static TinySpec wide();
    /// Qwen3 MoE: attention in every layer, without a gate, whole heads rotated; no shared expert; norm
    /// weights as they multiply. Per-expert tensors, as published.
    static TinySpec qwen3(Layout layout = Layout::bf16_per_expert);

    std::int64_t key_channels() const { return std::int64_t{key_heads} * key_dim; }
    std::int64_t value_channels() const { return std::int64_t{value_heads} * value_dim; }
    bool is_attention(int layer) const { return (layer + 1) % full_interval == 0; }
};

/// Every tensor of the checkpoint, in file order: a matrix's scales follow it.
std::vector<StoredTensor> make_tiny_tensors(const TinySpec& spec);

/// Quantized modules with the names ModelOpt gives their algorithms ("FP8", "W4A16_NVFP4", ...); experts are
/// one entry a layer.
std::vector<std::pair<std::string, std::string>> quantized_modules(const TinySpec& spec);

std::string tiny_config_json(const TinySpec& spec);
std::string tiny_generation_config_json();
/// 256 byte symbols (id = byte), the merges ab abc " a" x+0xCC (256..259) and four added tokens: 300 <a>, 301
/// <a><b>, 302 <think>, 303 <|im_end|> (the only special one, and the stop id). Ids 260..299 and from 304 on
/// have no token.
std::string tiny_tokenizer_json(bool merges_as_strings = false);

/// The whole model directory (created when absent); the second form takes edited tensors.
void write_tiny_model(const std::filesystem::path& directory, const TinySpec& spec);
void write_tiny_model(const std::filesystem::path& directory, const TinySpec& spec,
                      const std::vector<StoredTensor>& tensors);

/// Weights only: model.safetensors, or shards of about equal bytes with their index. A shard may end between
/// a weight and its scale.
void write_tiny_weights(const std::filesystem::path& directory, const std::vector<StoredTensor>& tensors,
                        int shards);

// Ways to break a checkpoint. Each throws when there is nothing to break, so that a test cannot miss
// silently.
StoredTensor& tensor_named(std::vector<StoredTensor>& tensors, const std::string& name);
void remove_tensor(std::vector<StoredTensor>& tensors, const std::string& name);
/// Replaces the only occurrence of `from` in a text file.
void replace_in_file(const std::filesystem::path& file, const std::string& from, const std::string& to);

}  // namespace ftmpi::testing
