#include "quantization.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace ftmpi {
namespace {

constexpr std::array<std::string_view, 4> kMethods = {"fp8", "modelopt", "compressed-tensors", "mxfp4"};
constexpr std::array<std::string_view, 7> kAlgorithms = {
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP4", "MIXED_PRECISION"};
constexpr std::array<std::string_view, 5> kCompressedFormats = {
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "float-quantized", "naive-quantized", "mixed-precision"};

void require_known(const JsonObject& object, std::string_view key, const std::string& value,
                   std::span<const std::string_view> known) {
    if (std::find(known.begin(), known.end(), value) != known.end()) return;
    std::string list;
    for (const auto name : known) list += (list.empty() ? "" : ", ") + std::string(name);
    object.refuse(key, "is \"" + value + "\", which this program does not know", "known: " + list);
}

bool is_4bit(std::string_view algorithm) { return algorithm.find("FP4") != algorithm.npos; }

/// The group size an algorithm has by definition, where the file repeats it.
void check_group_size(const JsonObject& object, std::string_view algorithm) {
    const auto size = object.optional_integer("group_size", 0, 1 << 20);
    if (!size || !is_4bit(algorithm)) return;
    const std::int64_t expected = algorithm == "MXFP4" ? 32 : 16;
    if (*size != expected)
        object.refuse("group_size", "is " + std::to_string(*size) + "; " + std::string(algorithm) +
                                        " has groups of " + std::to_string(expected));
}

/// Scales are read row by row; a layout made for one kernel's tiles cannot be cut between ranks.
void check_layout(const JsonObject& object) {
    object.each([&](std::string_view key, simdjson::dom::element value) {
        const auto speaks_of_it = [](std::string_view s) {
            return s.find("swizzl") != s.npos || s.find("interleav") != s.npos;
        };
        bool flag = false, declared = false;
        std::int64_t n = 0;
        std::string_view text;
        if (!value.get(flag)) declared = flag && speaks_of_it(key);
        else if (!value.get(n)) declared = n != 0 && speaks_of_it(key);
        else if (!value.get(text))
            declared = (speaks_of_it(key) && text != "none" && text != "false") ||
                       (key.find("layout") != key.npos && speaks_of_it(text));
        if (declared)
            object.refuse(key, "declares swizzled or interleaved scales: layout not sliceable",
                          "export the checkpoint with plain row-major scales");
        if (value.is_object()) check_layout(object.as_object(key, value));
    });
}

void add_quantized_layers(const JsonObject& object, Quantization& out) {
    const auto layers = object.optional_object("quantized_layers");
    if (!layers) return;
    layers->each_object([&](std::string_view module, const JsonObject& entry) {
        const auto algorithm = entry.text("quant_algo");
        require_known(entry, "quant_algo", algorithm,
                      std::span(kAlgorithms).first(kAlgorithms.size() - 1));  // not MIXED_PRECISION
        check_group_size(entry, algorithm);
        out.layers.emplace(module, algorithm);
    });
}

/// config_groups of ModelOpt and compressed-tensors.
void check_groups(const JsonObject& object) {
    const auto groups = object.optional_object("config_groups");
    if (!groups) return;
    groups->each_object([](std::string_view, const JsonObject& group) {
        const auto weights = group.optional_object("weights");
        if (!weights) return;
        const auto type = weights->text("type");
        if (type != "float")
            weights->refuse("type", "is \"" + type + "\"; only float formats (FP8, NVFP4, MXFP4) are known");
        const auto bits = weights->integer("num_bits", 1, 64);
        if (bits != 4 && bits != 8)
            weights->refuse("num_bits", "is " + std::to_string(bits) + "; weights have 4 or 8");
        const auto size = weights->optional_integer("group_size", 0, 1 << 20);
        if (size && bits == 4 && *size != 16 && *size != 32)
            weights->refuse("group_size", "is " + std::to_string(*size) + "; 4-bit groups have 16 or 32");
        if (size && bits == 8 && *size != 0)
            weights->refuse("group_size", "is " + std::to_string(*size) +
                                              "; FP8 has scales per tensor, row or 128x128 block");
    });
}

/// The cache type is chosen by --kv; what the exporter had in mind is worth a word.
void note_cache_scheme(const JsonObject& object, Quantization& out) {
    const auto algorithm = object.optional_text("kv_cache_quant_algo");
    if (algorithm && *algorithm != "none" && *algorithm != "NONE")
        out.warnings.push_back(object.file() + ": kv_cache_quant_algo \"" + *algorithm +
                               "\" is not followed; --kv chooses the cache type, and scales are used where "
                               "the checkpoint has them");
    if (object.optional_object("kv_cache_scheme"))
        out.warnings.push_back(object.file() +
                               ": kv_cache_scheme is not followed; --kv chooses the cache type");
}

std::string producer_of(const JsonObject& object) {
    const auto producer = object.optional_object("producer");
    if (!producer) return {};
    const auto version = producer->optional_text("version");
    return " (" + producer->optional_text("name").value_or("?") + (version ? " " + *version : "") + ")";
}

void check_fp8(const JsonObject& object) {
    if (const auto fmt = object.optional_text("fmt"); fmt && *fmt != "e4m3")
        object.refuse("fmt", "is \"" + *fmt + "\"; only e4m3 is known");
    if (!object.has("weight_block_size")) return;
    std::vector<std::int64_t> sides;
    for (const simdjson::dom::element side : object.array("weight_block_size")) {
        std::int64_t n = 0;
        if (!side.is_int64() || side.get(n))
            object.refuse("weight_block_size", "holds something that is not an integer");
        sides.push_back(n);
    }
    if (sides != std::vector<std::int64_t>{128, 128})
        object.refuse("weight_block_size", "is not [128, 128], the only block this program knows");
}

}  // namespace

Quantization read_quantization_config(const JsonObject& object) {
    Quantization out;
    const auto method = object.text("quant_method");
    require_known(object, "quant_method", method, kMethods);
    check_layout(object);
    out.line = method;
    if (method == "modelopt") {
        out.algorithm = object.text("quant_algo");
        require_known(object, "quant_algo", out.algorithm, kAlgorithms);
        check_group_size(object, out.algorithm);
    } else if (method == "compressed-tensors") {
        out.algorithm = object.text("format");
        require_known(object, "format", out.algorithm, kCompressedFormats);
    } else if (method == "fp8") {
        check_fp8(object);
    }
    if (!out.algorithm.empty()) out.line += " " + out.algorithm;
    if (object.has("weight_block_size")) out.line += " 128x128";
    out.line += producer_of(object);
    check_groups(object);
    add_quantized_layers(object, out);
    note_cache_scheme(object, out);
    return out;
}

Quantization read_hf_quant_config(const JsonObject& root) {
    Quantization out;
    const auto object = root.object("quantization");
    check_layout(object);
    out.algorithm = object.text("quant_algo");
    require_known(object, "quant_algo", out.algorithm, kAlgorithms);
    check_group_size(object, out.algorithm);
    out.line = "modelopt " + out.algorithm + producer_of(root);
    add_quantized_layers(object, out);
    note_cache_scheme(object, out);
    return out;
}

}  // namespace ftmpi
