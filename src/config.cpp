#include "config.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "config/family.hpp"
#include "config/quantization.hpp"
#include "digest.hpp"
#include "error.hpp"
#include "json.hpp"

namespace ftmpi {
namespace {

// Bounds far above any model, so that no product of sizes can leave 64 bits.
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxVocabulary = 1 << 24;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxExperts = 1 << 14;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;

const Family& known_family(const JsonObject& root) {
    const auto name = root.text("model_type");
    if (const Family* family = find_family(name)) return *family;
    root.refuse("model_type", "is \"" + name + "\", which this program does not run",
                "known: " + known_families());
}

/// A value that may stand in two places and must not differ.
template <class T>
std::optional<T> agreeing(const JsonObject& a, std::string_view key_a, std::optional<T> in_a,
                          const JsonObject& b, std::string_view key_b, std::optional<T> in_b) {
    if (in_a && in_b && *in_a != *in_b) a.refuse(key_a, "and " + b.name_of(key_b) + " contradict each other");
    return in_a ? in_a : in_b;
}

std::vector<LayerKind> read_layers(const JsonObject& text, const Family& family,
                                   std::vector<std::string>& warnings) {
    const auto count = text.integer("num_hidden_layers", 1, kMaxLayers);
    std::vector<LayerKind> by_interval, layers;
    if (!family.has(LayerKind::delta_net))
        by_interval.assign(static_cast<std::size_t>(count), LayerKind::attention);
    else if (const auto interval = text.optional_integer("full_attention_interval", 1, kMaxLayers))
        for (std::int64_t i = 0; i < count; ++i)
            by_interval.push_back((i + 1) % *interval ? LayerKind::delta_net : LayerKind::attention);
    if (!text.has("layer_types")) {
        if (by_interval.empty()) text.refuse("layer_types", "is missing, and so is full_attention_interval");
        return by_interval;
    }
    for (const auto& kind : text.texts("layer_types")) {
        if (kind != "full_attention" && !(kind == "linear_attention" && family.has(LayerKind::delta_net)))
            text.refuse("layer_types", "holds \"" + kind + "\"; known: " +
                                           (family.has(LayerKind::delta_net) ? "linear_attention, " : "") +
                                           "full_attention");
        layers.push_back(kind == "full_attention" ? LayerKind::attention : LayerKind::delta_net);
    }
    if (static_cast<std::int64_t>(layers.size()) != count)
        text.refuse("layer_types", "has " + counted(layers.size(), "entry", "entries") + " for " +
                                       counted(static_cast<std::uint64_t>(count), "layer"));
    if (!by_interval.empty() && by_interval != layers)
        warnings.push_back(
            text.file() + ": full_attention_interval does not describe layer_types; layer_types is followed");
    return layers;
}

void require_plain(const JsonObject& rope) {
    for (const auto key : {"rope_type", "type"})
        if (const auto type = rope.optional_text(key); type && *type != "default")
            rope.refuse(key,
                        "is \"" + *type + "\"; only the plain rotary embedding (\"default\") is computed",
                        "leave out the scaling and stay within the model's own context");
}

/// A rotary embedding described beside text_config instead of in it must be the one that is computed.
void check_outer_rope(const JsonObject& root, const ModelConfig& config) {
    const auto check = [&](const JsonObject& object) {
        if (const auto theta = object.optional_number("rope_theta"); theta && *theta != config.rope_theta)
            object.refuse("rope_theta", "and that of text_config contradict each other");
        const std::string_view key = "partial_rotary_factor";
        if (const auto factor = object.optional_number(key);
            factor && *factor * config.head_dim != config.rotary_dim)
            object.refuse(key, "and that of text_config contradict each other");
    };
    check(root);
    for (const auto key : {"rope_parameters", "rope_scaling"})
        if (const auto rope = root.optional_object(key)) {
            require_plain(*rope);
            check(*rope);
        }
}

void read_rope(const JsonObject& text, const Family& family, ModelConfig& config) {
    const auto rope = text.optional_object("rope_parameters")
                          .value_or(JsonObject({}, text.file(), text.name_of("rope_parameters.")));
    const bool nested = text.has("rope_parameters");
    const auto scaling = text.optional_object("rope_scaling");
    const auto in_rope = [&](std::string_view key) {
        return nested ? rope.optional_number(key) : std::nullopt;
    };
    if (nested) require_plain(rope);
    if (scaling) require_plain(*scaling);

    const auto theta = agreeing(text, "rope_theta", text.optional_number("rope_theta"), rope, "rope_theta",
                                in_rope("rope_theta"));
    if (!theta)
        text.refuse("rope_parameters.rope_theta", "is missing, and so is " + text.name_of("rope_theta"));
    if (!(*theta > 1 && *theta < 1e15)) text.refuse("rope_theta", "is not between 1 and 1e15");
    config.rope_theta = *theta;

    const std::string_view key = "partial_rotary_factor";
    const auto factor = agreeing(text, key, text.optional_number(key), rope, key, in_rope(key));
    if (!factor && family.partial_rotary) text.refuse(key, "is missing, and so is " + rope.name_of(key));
    if (!family.partial_rotary) {
        if (factor && *factor != 1) text.refuse(key, "is not 1: whole heads are rotated in this family");
        if (config.head_dim % 2) text.refuse("head_dim", "is odd: its channels cannot be rotated in pairs");
        config.rotary_dim = config.head_dim;
        return;
    }
    const double dims = *factor * config.head_dim;
    if (!(*factor > 0 && *factor <= 1) || dims != std::floor(dims) || std::fmod(dims, 2) != 0)
        text.refuse(key, "times head_dim " + std::to_string(config.head_dim) +
                             " is not an even number of channels between 2 and head_dim");
    config.rotary_dim = static_cast<int>(dims);
}

/// Keys of related models that change the computation; here only one value of each is right.
void check_variants(const JsonObject& text, const Family& family) {
    const auto must_be = [&](std::string_view key, bool value) {
        if (const auto flag = text.optional_flag(key); flag && *flag != value)
            text.refuse(key, std::string("is ") + (value ? "false" : "true") +
                                 "; this program computes the model only with " + (value ? "true" : "false"));
    };
    must_be("attn_output_gate", family.output_gate);
    must_be("attention_bias", false);
    must_be("qkv_bias", false);
    must_be("use_qk_norm", true);
    must_be("norm_topk_prob", true);
    if (!family.norm_topk && !text.has("norm_topk_prob"))
        text.refuse("norm_topk_prob", "is missing", "left out, it means false, which is not computed");
    if (!family.has(Role::shared_gate) &&
        text.optional_integer("shared_expert_intermediate_size", 0, kMaxWidth).value_or(0))
        text.refuse("shared_expert_intermediate_size", "is not 0: this family has no shared expert");
    must_be("use_sliding_window", false);
    if (const auto act = text.text("hidden_act"); act != "silu")
        text.refuse("hidden_act", "is \"" + act + "\"; only silu is computed");
    if (text.optional_integer("decoder_sparse_step", 0, kMaxLayers).value_or(1) != 1)
        text.refuse("decoder_sparse_step", "is not 1: dense layers are not computed");
    if (const auto dense = text.member("mlp_only_layers")) {
        simdjson::dom::array layers;
        if (dense->get(layers) || layers.size() != 0)
            text.refuse("mlp_only_layers", "is not empty: dense layers are not computed");
    }
}

void read_geometry(const JsonObject& text, const Family& family, ModelConfig& c) {
    const auto small = [&](std::string_view key, std::int64_t high) {
        return static_cast<int>(text.integer(key, 1, high));
    };
    c.hidden = text.integer("hidden_size", 1, kMaxWidth);
    c.vocab = text.integer("vocab_size", 1, kMaxVocabulary);
    c.layers = read_layers(text, family, c.warnings);
    c.query_heads = small("num_attention_heads", kMaxHeads);
    c.kv_heads = small("num_key_value_heads", kMaxHeads);
    c.head_dim = small("head_dim", kMaxHeadDim);
    if (family.has(LayerKind::delta_net)) {
        c.key_heads = small("linear_num_key_heads", kMaxHeads);
        c.value_heads = small("linear_num_value_heads", kMaxHeads);
        c.key_dim = small("linear_key_head_dim", kMaxHeadDim);
        c.value_dim = small("linear_value_head_dim", kMaxHeadDim);
        c.conv_taps = small("linear_conv_kernel_dim", 64);
    }
    c.experts = small("num_experts", kMaxExperts);
    c.top_k = small("num_experts_per_tok", kMaxExperts);
    c.expert_width = text.integer("moe_intermediate_size", 1, kMaxWidth);
    if (family.has(Role::shared_gate))
        c.shared_width = text.integer("shared_expert_intermediate_size", 1, kMaxWidth);
    c.max_positions = text.integer("max_position_embeddings", 1, kMaxPositions);
    const double eps = text.number("rms_norm_eps");
    if (!(eps > 0 && eps < 1) || static_cast<float>(eps) == 0.0f)
        text.refuse("rms_norm_eps", "is not between 0 and 1");
    c.eps = static_cast<float>(eps);

    const auto divides = [&](std::string_view key, int whole, std::string_view by, int part) {
        if (whole % part)
            text.refuse(key, std::to_string(whole) + " is not a multiple of " + text.name_of(by) + " " +
                                 std::to_string(part));
    };
    divides("num_attention_heads", c.query_heads, "num_key_value_heads", c.kv_heads);
    if (family.has(LayerKind::delta_net))
        divides("linear_num_value_heads", c.value_heads, "linear_num_key_heads", c.key_heads);
    if (c.top_k > c.experts)
        text.refuse("num_experts_per_tok",
                    std::to_string(c.top_k) + " is more than num_experts " + std::to_string(c.experts));
}

bool read_tied(const JsonObject& root, const JsonObject& text) {
    const std::string_view key = "tie_word_embeddings";
    const auto tied = agreeing(root, key, root.optional_flag(key), text, key, text.optional_flag(key));
    if (!tied) root.refuse(key, "is missing", "the file must say whether the head is the embedding");
    return *tied;
}

/// Collects what each file names as an end token: all of them end a text.
class StopIds {
public:
    explicit StopIds(ModelConfig& config) : config_(config) {}

    /// eos_token_id of one object: an id or a list of ids.
    void add(const JsonObject& object, std::string_view place) {
        const std::string_view key = "eos_token_id";
        const auto value = object.member(key);
        if (!value) return;
        const auto add_id = [&](const simdjson::dom::element& id) {
            std::int64_t n = 0;
            if (!id.is_int64() || id.get(n) || n < 0 || n >= config_.vocab)
                object.refuse(key, "holds something that is not an id below vocab_size " +
                                       std::to_string(config_.vocab));
            if (!known_.insert(n).second) return;
            config_.stop_ids.push_back(static_cast<std::int32_t>(n));
            config_.stop_places.push_back(place);
        };
        simdjson::dom::array list;
        if (value->get(list)) return add_id(*value);
        if (list.size() == 0) object.refuse(key, "is an empty list");
        for (const simdjson::dom::element id : list) add_id(id);
    }

private:
    ModelConfig& config_;
    std::unordered_set<std::int64_t> known_;
};

/// eos_token of tokenizer_config.json: a text, or an object with its content.
std::string read_stop_token(const JsonObject& tokenizer) {
    const auto value = tokenizer.member("eos_token");
    if (value && value->is_object())
        return tokenizer.as_object("eos_token", *value).optional_text("content").value_or("");
    return tokenizer.optional_text("eos_token").value_or("");
}

/// The options of a run that samples as generation_config.json asks.
std::string read_sampling(const JsonObject& generation) {
    if (!generation.optional_flag("do_sample").value_or(false)) return {};
    const auto option = [&](const char* name, std::string_view key) {
        const auto value = generation.optional_number(key);
        char text[64];
        if (value) std::snprintf(text, sizeof text, " --%s %.6g", name, *value);
        return value ? std::string(text) : std::string();
    };
    const auto temperature = option("temperature", "temperature");
    return (temperature.empty() ? "--temperature 1" : temperature.substr(1)) + option("top-k", "top_k") +
           option("top-p", "top_p");
}

bool is_there(const std::filesystem::path& file) {
    return std::filesystem::symlink_status(file).type() != std::filesystem::file_type::not_found;
}

/// What the files beside config.json say of generating: end tokens and sampling.
void read_generation(const std::filesystem::path& directory, const JsonObject& root, const JsonObject& text,
                     ModelConfig& config) {
    StopIds stops(config);
    if (const auto path = directory / "generation_config.json"; is_there(path)) {
        const JsonFile file(path);
        stops.add(file.root(), "generation_config.json");
        config.sampling = read_sampling(file.root());
    }
    stops.add(text, "config.json");
    stops.add(root, "config.json");
    if (const auto path = directory / "tokenizer_config.json"; is_there(path))
        config.stop_token = read_stop_token(JsonFile(path).root());
    if (config.stop_ids.empty() && config.stop_token.empty())
        text.refuse("eos_token_id",
                    "is missing, in generation_config.json too, and tokenizer_config.json "
                    "names no eos_token");
}

void merge(ModelConfig& config, Quantization&& q) {
    for (auto& warning : q.warnings) config.warnings.push_back(std::move(warning));
    for (auto& [module, algorithm] : q.layers) {
        const auto [known, fresh] = config.quantized_layers.emplace(module, algorithm);
        if (!fresh && known->second != algorithm)
            throw Error(Exit::bad_input, "config.json says " + known->second +
                                             " and hf_quant_config.json says " + algorithm + " of module " +
                                             module);
    }
}

/// `text` is null where the text model's keys are at the root.
void read_quantization(const std::filesystem::path& directory, const JsonObject& root, const JsonObject* text,
                       ModelConfig& config) {
    std::optional<JsonObject> found;
    for (const auto* object : {&root, text}) {
        if (!object) continue;
        for (const auto key : {"quantization_config", "compression_config"}) {
            auto inner = object->optional_object(key);
            if (inner && found) object->refuse(key, "is a second description of the quantization");
            if (inner) found.emplace(*inner);
        }
    }
    std::string algorithm;
    if (found) {
        auto q = read_quantization_config(*found);
        algorithm = q.algorithm;
        config.quantization = q.line;
        merge(config, std::move(q));
    }
    const auto path = directory / "hf_quant_config.json";
    if (!is_there(path)) return;
    const JsonFile file(path);
    auto q = read_hf_quant_config(file.root());
    if (!algorithm.empty() && algorithm != q.algorithm)
        config.warnings.push_back("config.json says " + algorithm + ", hf_quant_config.json says " +
                                  q.algorithm + "; the tensors decide");
    if (config.quantization.empty()) config.quantization = q.line;
    merge(config, std::move(q));
}

}  // namespace

ModelConfig load_config(const std::filesystem::path& directory) {
    const JsonFile file(directory / "config.json");
    const auto root = file.root();
    ModelConfig config;
    config.sha256 = hex(sha256(file.bytes()));
    const Family& family = known_family(root);
    config.model_type = family.model_type;
    const bool flat = family.text_type.empty();
    const auto text = flat ? root : root.object("text_config");
    if (const auto inner = text.optional_text("model_type"); !flat && inner && *inner != family.text_type)
        text.refuse("model_type",
                    "is \"" + *inner + "\" instead of \"" + std::string(family.text_type) + "\"");

    check_variants(text, family);
    read_geometry(text, family, config);
    read_rope(text, family, config);
    if (!flat) check_outer_rope(root, config);
    config.tied_embeddings = read_tied(root, text);

    read_generation(directory, root, text, config);
    read_quantization(directory, root, flat ? nullptr : &text, config);
    config.quantization = printable(config.quantization);
    for (auto& warning : config.warnings) warning = printable(warning);
    return config;
}

}  // namespace ftmpi
