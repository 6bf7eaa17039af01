// The text files around a generated checkpoint, and the writing of all of them.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "tiny_model.hpp"

namespace ftmpi::testing {
namespace {

/// The printable stand-in that byte-level BPE has for a byte, as UTF-8: printable bytes stand for themselves,
/// the others follow from U+0100 on in rising order.
std::string byte_symbol(int byte) {
    const auto printable = [](int b) {
        return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
    };
    int point = byte;
    if (!printable(byte)) {
        point = 256;
        for (int b = 0; b < byte; ++b) point += !printable(b);
    }
    if (point < 128) return std::string(1, static_cast<char>(point));
    return {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 63))};
}

std::string name_list(const std::vector<std::string>& names) {
    std::string s;
    for (const auto& n : names) s += (s.empty() ? "" : ", ") + json_string(n);
    return "[" + s + "]";
}

/// config.json of Qwen3 MoE but for the brackets, with the keys of Qwen3-30B-A3B.
std::string qwen3_keys(const TinySpec& s) {
    std::ostringstream o;
    o << "\"architectures\": [\"Qwen3MoeForCausalLM\"],\n\"model_type\": \"qwen3_moe\",\n"
      << "\"attention_bias\": false,\n\"bos_token_id\": null,\n\"decoder_sparse_step\": 1,\n"
      << "\"eos_token_id\": 303,\n\"head_dim\": " << s.head_dim << ",\n\"hidden_act\": \"silu\",\n"
      << "\"hidden_size\": " << s.hidden << ",\n\"intermediate_size\": " << 3 * s.hidden << ",\n"
      << "\"max_position_embeddings\": " << s.max_positions << ",\n\"mlp_only_layers\": [],\n"
      << "\"moe_intermediate_size\": " << s.expert_width << ",\n\"norm_topk_prob\": true,\n"
      << "\"num_attention_heads\": " << s.heads << ",\n\"num_experts\": " << s.experts << ",\n"
      << "\"num_experts_per_tok\": " << s.top_k << ",\n\"num_hidden_layers\": " << s.layers << ",\n"
      << "\"num_key_value_heads\": " << s.kv_heads << ",\n\"rms_norm_eps\": 1e-06,\n"
      << "\"rope_scaling\": null,\n\"rope_theta\": " << static_cast<std::int64_t>(s.rope_theta) << ".0,\n"
      << "\"sliding_window\": null,\n\"use_sliding_window\": false,\n"
      << "\"tie_word_embeddings\": " << (s.tied_embeddings ? "true" : "false") << ",\n"
      << "\"torch_dtype\": \"bfloat16\",\n\"vocab_size\": " << s.vocab;
    return o.str();
}

std::string text_keys(const TinySpec& s, const std::string& model_type) {
    std::vector<std::string> kinds;
    for (int i = 0; i < s.layers; ++i)
        kinds.push_back(s.is_attention(i) ? "full_attention" : "linear_attention");
    const int pairs = static_cast<int>(s.head_dim * s.partial_rotary) / 2;
    std::ostringstream o;
    o << "\"model_type\": \"" << model_type << "\",\n"
      << "\"dtype\": \"bfloat16\",\n\"attention_bias\": false,\n\"attn_output_gate\": true,\n"
      << "\"bos_token_id\": null,\n\"eos_token_id\": 303,\n"
      << "\"full_attention_interval\": " << s.full_interval << ",\n"
      << "\"head_dim\": " << s.head_dim << ",\n\"hidden_act\": \"silu\",\n"
      << "\"hidden_size\": " << s.hidden << ",\n"
      << "\"layer_types\": " << name_list(kinds) << ",\n"
      << "\"linear_conv_kernel_dim\": " << s.conv_taps << ",\n"
      << "\"linear_key_head_dim\": " << s.key_dim << ",\n"
      << "\"linear_num_key_heads\": " << s.key_heads << ",\n"
      << "\"linear_num_value_heads\": " << s.value_heads << ",\n"
      << "\"linear_value_head_dim\": " << s.value_dim << ",\n"
      << "\"mamba_ssm_dtype\": \"float32\",\n"
      << "\"max_position_embeddings\": " << s.max_positions << ",\n"
      << "\"moe_intermediate_size\": " << s.expert_width << ",\n"
      << "\"mtp_num_hidden_layers\": " << (s.mtp == Mtp::none ? 0 : 1) << ",\n"
      << "\"num_attention_heads\": " << s.heads << ",\n"
      << "\"num_experts\": " << s.experts << ",\n"
      << "\"num_experts_per_tok\": " << s.top_k << ",\n"
      << "\"num_hidden_layers\": " << s.layers << ",\n"
      << "\"num_key_value_heads\": " << s.kv_heads << ",\n"
      << "\"partial_rotary_factor\": " << s.partial_rotary << ",\n"
      << "\"rms_norm_eps\": 1e-06,\n"
      << "\"rope_parameters\": {\"mrope_interleaved\": true, \"mrope_section\": [" << (pairs + 2) / 3 << ", "
      << (pairs + 1) / 3 << ", " << pairs / 3 << "], \"partial_rotary_factor\": " << s.partial_rotary
      << ", \"rope_theta\": " << static_cast<std::int64_t>(s.rope_theta) << ", \"rope_type\": \"default\"},\n"
      << "\"shared_expert_intermediate_size\": " << s.shared_width << ",\n"
      << "\"tie_word_embeddings\": " << (s.tied_embeddings ? "true" : "false") << ",\n"
      << "\"vocab_size\": " << s.vocab;
    return o.str();
}

/// Modules that a config lists as left alone.
std::vector<std::string> unquantized(const TinySpec& s) {
    std::vector<std::string> names{"lm_head", s.prefix + "embed_tokens"};
    for (int i = 0; i < s.layers; ++i) {
        const std::string p = s.prefix + "layers." + std::to_string(i) + ".";
        names.push_back(p + "mlp.gate");
        if (!s.qwen3_moe) names.push_back(p + "mlp.shared_expert_gate");
        if (!s.is_attention(i))
            for (const char* m : {"conv1d", "in_proj_a", "in_proj_b"})
                names.push_back(p + "linear_attn." + m);
    }
    if (s.mtp != Mtp::none) names.push_back("mtp.fc");
    return names;
}

/// The quantization_config object, empty for BF16.
std::string quantization(const TinySpec& s) {
    const auto modules = quantized_modules(s);
    if (modules.empty()) return "";
    switch (s.layout) {
        case Layout::fp8_block:
            return R"({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
"modules_to_not_convert": )" +
                   name_list(unquantized(s)) + "}";
        case Layout::compressed_nvfp4:
            return R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"format":
"nvfp4-pack-quantized", "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy":
"tensor_group", "symmetric": true, "dynamic": false}}}, "quantization_status": "compressed", "ignore": )" +
                   name_list(unquantized(s)) + "}";
        case Layout::fp8_row:
            return R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"targets":
["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true, "dynamic": false}}},
"quantization_status": "compressed", "ignore": )" +
                   name_list(unquantized(s)) + "}";
        default: break;
    }
    const bool one = s.layout == Layout::fp8_tensor;
    std::string layers;
    for (const auto& [module, algorithm] : modules)
        if (module.rfind("mtp.", 0) != 0)
            layers += (layers.empty() ? "" : ",\n") + json_string(module) +
                      ": {\"quant_algo\": " + json_string(algorithm) +
                      (algorithm == "W4A16_NVFP4" ? ", \"group_size\": 16}" : "}");
    return std::string("{\"quant_method\": \"modelopt\", \"quant_algo\": ") +
           (one ? "\"FP8\"" : "\"MIXED_PRECISION\"") +
           ", \"producer\": {\"name\": \"modelopt\", \"version\": \"0.37.0\"},\n\"ignore\": " +
           (s.mtp == Mtp::none ? name_list(unquantized(s)) : std::string("[\"mtp.layers.0*\", \"mtp*\"]")) +
           (one ? std::string("}") : ",\n\"quantized_layers\": {" + layers + "}}");
}

std::string read_text(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) throw std::runtime_error("cannot read " + file.string());
    return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::string tiny_config_json(const TinySpec& s) {
    std::string o = "{\n";
    if (s.qwen3_moe) {
        o += qwen3_keys(s);
    } else if (s.flat_config) {
        o += "\"architectures\": [\"Qwen3_5MoeForCausalLM\"],\n" + text_keys(s, "qwen3_5_moe_text");
    } else {
        o +=
            "\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"],\n\"model_type\": \"qwen3_5_moe\",\n"
            "\"dtype\": \"bfloat16\",\n\"tie_word_embeddings\": " +
            std::string(s.tied_embeddings ? "true" : "false") + ",\n\"text_config\": {\n" +
            text_keys(s, "qwen3_5_moe_text") + "\n}";
        if (s.vision)
            o += ",\n\"vision_config\": {\"model_type\": \"qwen3_5_moe_vision\", \"depth\": 1, "
                 "\"hidden_size\": 16}";
    }
    if (const auto q = quantization(s); !q.empty()) o += ",\n\"quantization_config\": " + q;
    return o + "\n}\n";
}

std::string tiny_generation_config_json() {
    return "{\"do_sample\": true, \"eos_token_id\": [303], \"temperature\": 1.0, \"top_k\": 20, \"top_p\": "
           "0.95}\n";
}

std::string tiny_tokenizer_json(bool merges_as_strings) {
    std::string vocab, merges, added;
    for (int b = 0; b < 256; ++b) vocab += json_string(byte_symbol(b)) + ": " + std::to_string(b) + ", ";
    const std::pair<std::string, std::string> pairs[] = {
        {"a", "b"}, {"ab", "c"}, {byte_symbol(' '), "a"}, {"x", byte_symbol(0xcc)}};
    int id = 256;
    for (const auto& [left, right] : pairs) {
        const char* comma = id == 256 ? "" : ", ";
        vocab += comma + json_string(left + right) + ": " + std::to_string(id++);
        merges += comma + (merges_as_strings ? json_string(left + " " + right) : name_list({left, right}));
    }
    id = 300;
    for (const char* text : {"<a>", "<a><b>", "<think>", "<|im_end|>"}) {
        added += std::string(id == 300 ? "" : ",\n") + "{\"id\": " + std::to_string(id) +
                 ", \"content\": " + json_string(text) +
                 ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                 "\"special\": " +
                 (id == 303 ? "true}" : "false}");
        ++id;
    }
    return "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n\"added_tokens\": [" + added +
           R"(],
"normalizer": {"type": "NFC"},
"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
{"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
"behavior": "Isolated", "invert": false},
{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
"post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
"decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
"model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
"fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
"vocab": {)" +
           vocab + "},\n\"merges\": [" + merges + "]}}\n";
}

void write_tiny_weights(const std::filesystem::path& directory, const std::vector<StoredTensor>& tensors,
                        int shards) {
    if (shards <= 1) return write_safetensors(directory / "model.safetensors", tensors);
    std::size_t total = 0, done = 0;
    for (const auto& t : tensors) total += t.bytes.size();
    std::vector<std::vector<StoredTensor>> cut(static_cast<std::size_t>(shards));
    for (const auto& t : tensors) {
        cut[std::min(cut.size() - 1, done * cut.size() / std::max<std::size_t>(1, total))].push_back(t);
        done += t.bytes.size();
    }
    write_sharded(directory, cut);
}

void write_tiny_model(const std::filesystem::path& directory, const TinySpec& spec) {
    write_tiny_model(directory, spec, make_tiny_tensors(spec));
}

void write_tiny_model(const std::filesystem::path& directory, const TinySpec& spec,
                      const std::vector<StoredTensor>& tensors) {
    std::filesystem::create_directories(directory);
    write_file(directory / "config.json", tiny_config_json(spec));
    write_file(directory / "generation_config.json", tiny_generation_config_json());
    write_file(directory / "tokenizer.json", tiny_tokenizer_json(spec.merges_as_strings));
    write_file(directory / "chat_template.jinja",
               "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + (message.content | "
               "trim) + "
               "'<|im_end|>\\n' }}"
               "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}");
    write_tiny_weights(directory, tensors, spec.shards);
}

StoredTensor& tensor_named(std::vector<StoredTensor>& tensors, const std::string& name) {
    for (auto& t : tensors)
        if (t.name == name) return t;
    throw std::invalid_argument("no tensor to edit: " + name);
}

void remove_tensor(std::vector<StoredTensor>& tensors, const std::string& name) {
    tensors.erase(tensors.begin() + (&tensor_named(tensors, name) - tensors.data()));
}

void replace_in_file(const std::filesystem::path& file, const std::string& from, const std::string& to) {
    std::string text = read_text(file);
    const auto at = text.find(from);
    if (at == std::string::npos || text.find(from, at + 1) != std::string::npos)
        throw std::invalid_argument(file.string() + " does not hold exactly one \"" + from + "\"");
    write_file(file, text.replace(at, from.size(), to));
}

}  // namespace ftmpi::testing
