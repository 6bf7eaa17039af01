// config.json; after a line `---` generation_config.json, after another hf_quant_config.json.
#include "config.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "fuzz.hpp"

using namespace ftmpi;
using namespace ftmpi::fuzz;

namespace {

/// What the rest of the program relies on without asking again.
void check(const ModelConfig& c) {
    const auto within = [](std::int64_t n, std::int64_t most) { return n >= 1 && n <= most; };
    require(within(c.hidden, 1 << 20) && within(c.vocab, 1 << 24) && within(c.max_positions, 1 << 30),
            "sizes are bounded");
    require(within(c.expert_width, 1 << 20), "expert sizes are bounded");
    require(!c.layers.empty() && c.layers.size() <= 4096, "there are layers");
    for (const int n : {c.query_heads, c.kv_heads, c.head_dim}) require(within(n, 4096), "heads are bounded");
    require(c.query_heads % c.kv_heads == 0, "heads share evenly");
    require(within(c.experts, 1 << 14) && within(c.top_k, c.experts), "experts are bounded");
    if (c.model_type == "qwen3_moe") {
        require(std::count(c.layers.begin(), c.layers.end(), LayerKind::delta_net) == 0, "all layers attend");
        require(c.shared_width == 0 && c.key_heads == 0 && c.value_heads == 0 && c.key_dim == 0 &&
                    c.value_dim == 0 && c.conv_taps == 0,
                "nothing is left of the other family");
        require(c.rotary_dim == c.head_dim, "whole heads are rotated");
    } else {
        require(within(c.shared_width, 1 << 20), "expert sizes are bounded");
        for (const int n : {c.key_heads, c.value_heads, c.key_dim, c.value_dim})
            require(within(n, 4096), "heads are bounded");
        require(c.value_heads % c.key_heads == 0 && within(c.conv_taps, 64), "heads share evenly");
    }
    require(c.rotary_dim >= 2 && c.rotary_dim <= c.head_dim && c.rotary_dim % 2 == 0,
            "rotary channels are pairs");
    require(c.rope_theta > 1 && std::isfinite(c.rope_theta) && c.eps > 0 && c.eps < 1,
            "constants are finite");
    require(!c.stop_ids.empty(), "there is a stop id");
    for (const auto id : c.stop_ids) require(id >= 0 && id < c.vocab, "stop ids are in the vocabulary");
    require(std::set(c.stop_ids.begin(), c.stop_ids.end()).size() == c.stop_ids.size(),
            "stop ids are unique");
    require(c.sha256.size() == 64, "the hash is whole");
    require_one_line(c.quantization);
    for (const auto& warning : c.warnings) require_one_line(warning);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const TemporaryDirectory folder;
    const auto parts = parts_of(text_of(data, size), 3);
    static const char* const files[] = {"config.json", "generation_config.json", "hf_quant_config.json"};
    for (std::size_t i = 0; i < 3; ++i) {
        if (i < parts.size()) write_file(folder / files[i], parts[i]);
        else std::filesystem::remove(folder / files[i]);
    }
    accepted([&] { check(load_config(folder.path())); });
    return 0;
}
