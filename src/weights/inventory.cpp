#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "../error.hpp"
#include "../numerics.hpp"
#include "../weights.hpp"
#include "resolver.hpp"

namespace ftmpi {

std::vector<float> floats_of(const TensorView& t) {
    std::vector<float> values(static_cast<std::size_t>(t.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (t.dtype == DType::f32) {
            std::memcpy(&values[i], t.data + 4 * i, 4);
        } else if (t.dtype == DType::bf16) {
            std::uint16_t b;
            std::memcpy(&b, t.data + 2 * i, 2);
            values[i] = num::from_bf16(b);
        } else if (t.dtype == DType::f16) {
            std::uint16_t b;
            std::memcpy(&b, t.data + 2 * i, 2);
            const int e = (b >> 10) & 31, f = b & 1023;
            const float m = e ? std::ldexp(static_cast<float>(1024 + f), (e == 31 ? 200 : e) - 25)
                              : std::ldexp(static_cast<float>(f), -24);
            values[i] = b & 0x8000 ? -m : m;
        } else {
            refuse(t, "expected BF16, F16 or F32");
        }
        if (!num::is_finite(values[i])) refuse(t, "element " + std::to_string(i) + " is not finite");
    }
    return values;
}

RowBlock StoredMatrix::block(Range r) const {
    RowBlock b;
    b.rows = r.size();
    b.name = codes->name;
    b.stored_row = first_code_row + r.begin;
    b.pitch = code_bytes(format, cols);
    b.codes = codes->data + static_cast<std::size_t>(first_code_row + r.begin) * b.pitch;
    b.multiplier = multiplier;
    if (!scales) return b;
    if (format == Format::fp8_block) {
        b.scale_type = scales->dtype;
        b.scale_pitch = static_cast<std::size_t>(scales_per_row(format, cols)) * size_of(scales->dtype);
        b.scales = scales->data + static_cast<std::size_t>(first_scale_row) * b.scale_pitch;
        b.first_row = row_in_plane + r.begin;
    } else if (format == Format::fp8_row) {
        b.row_scale_type = scales->dtype;
        b.row_scales =
            scales->data + static_cast<std::size_t>(first_scale_row + r.begin) * size_of(scales->dtype);
    } else {
        b.scale_pitch = static_cast<std::size_t>(scales_per_row(format, cols));
        b.scales = scales->data + static_cast<std::size_t>(first_scale_row + r.begin) * b.scale_pitch;
    }
    return b;
}

std::uint64_t StoredMatrix::bytes(Range r) const {
    if (r.empty()) return 0;
    std::uint64_t n = static_cast<std::uint64_t>(r.size()) * code_bytes(format, cols);
    if (!scales) return n;
    const std::uint64_t element = size_of(scales->dtype);
    if (format == Format::fp8_block) {
        const auto first = (row_in_plane + r.begin) / 128, last = (row_in_plane + r.end - 1) / 128;
        n += static_cast<std::uint64_t>((last - first + 1) * scales_per_row(format, cols)) * element;
    } else if (format == Format::fp8_row) {
        n += static_cast<std::uint64_t>(r.size()) * element;
    } else {
        n += static_cast<std::uint64_t>(r.size() * scales_per_row(format, cols));
    }
    return n;
}

namespace {

bool starts_with(std::string_view s, std::string_view p) { return s.substr(0, p.size()) == p; }
bool ends_with(std::string_view s, std::string_view p) {
    return s.size() >= p.size() && s.substr(s.size() - p.size()) == p;
}

bool is_skipped(const Family& family, std::string_view name) {
    return std::any_of(family.skipped.begin(), family.skipped.end(),
                       [&](auto p) { return starts_with(name, p); });
}

/// Scales of quantized activations and attention probabilities: weights are used with fp32 activations, so
/// they are not needed.
bool is_activation_scale(std::string_view name) {
    for (auto suffix : {".input_scale", ".input_global_scale", ".q_scale", ".prob_scale", ".output_scale"})
        if (ends_with(name, suffix)) return true;
    return false;
}

/// The one prefix the text tensors of this checkpoint live under.
std::string text_prefix(const Checkpoint& checkpoint, const Family& family) {
    std::string found, example;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
        if (is_skipped(family, name)) continue;
        for (auto prefix : family.prefixes) {
            if (!starts_with(name, prefix)) continue;
            if (found.empty()) {
                found = prefix;
                example = name;
            } else if (found != prefix) {
                throw Error(Exit::bad_input,
                            "tensors " + example + " and " + name + " lie under two different prefixes",
                            "a checkpoint must use one of them throughout");
            }
            break;  // longest prefix first in the family's list
        }
    }
    return found.empty() ? std::string(family.prefixes[0]) : found;
}

MatrixSize size_of_matrix(const StoredMatrix& m, std::int64_t groups = 1) {
    return {m.format, groups, m.rows, m.cols};
}

}  // namespace

Inventory::Inventory(const Checkpoint& checkpoint, const ModelConfig& config) : config_(config) {
    const Family& family = family_of(config);
    const LayerNames& names = family.layer;
    const std::string prefix = text_prefix(checkpoint, family);
    Resolver r(checkpoint);

    embedding_ = r.matrix(prefix + std::string(family.embedding), config.vocab, config.hidden);
    if (embedding_.codes && embedding_.format != Format::bf16)
        refuse(*embedding_.codes, "the embedding must be BF16");
    final_norm_ = r.vector(prefix + std::string(family.final_norm), {config.hidden});

    const std::string head(family.head);
    const bool head_stored = checkpoint.find(head + ".weight") || checkpoint.find(head + ".weight_packed");
    if (config.tied_embeddings) {
        head_ = embedding_;
        if (head_stored) {
            const StoredMatrix own = r.matrix(head, config.vocab, config.hidden);
            const bool equal = own.format == Format::bf16 && embedding_.codes &&
                               own.codes->bytes == embedding_.codes->bytes &&
                               std::memcmp(own.codes->data, embedding_.codes->data, own.codes->bytes) == 0;
            if (!equal)
                notes_.push_back(
                    head +
                    " differs from the embedding although config.json ties them: the embedding is used");
        }
    } else if (!head_stored) {
        throw Error(Exit::bad_input,
                    "config.json says tie_word_embeddings is false but " + head + ".weight is absent");
    } else {
        head_ = r.matrix(head, config.vocab, config.hidden);
    }

    const std::int64_t key = config.key_channels(), value = config.value_channels(),
                       channels = 2 * key + value;
    std::size_t cache_scales = 0;
    layers_.resize(config.layers.size());
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        Layer& layer = layers_[i];
        const std::string p = prefix + std::string(family.layers) + std::to_string(i) + ".";
        auto name = [&](std::string_view n) { return p + std::string(n); };
        layer.kind = config.layers[i];
        layer.input_norm = r.vector(name(names.input_norm), {config.hidden});
        layer.post_norm = r.vector(name(names.post_norm), {config.hidden});
        if (layer.kind == LayerKind::attention) {
            const std::int64_t d = config.head_dim;
            layer.q = r.matrix(name(names.q), 2 * d * config.query_heads, config.hidden);
            layer.k = r.matrix(name(names.k), d * config.kv_heads, config.hidden);
            layer.v = r.matrix(name(names.v), d * config.kv_heads, config.hidden);
            layer.out = r.matrix(name(names.o), config.hidden, d * config.query_heads);
            layer.q_norm = r.vector(name(names.q_norm), {d});
            layer.k_norm = r.vector(name(names.k_norm), {d});
            const auto cache_scale = [&](std::initializer_list<const char*> spellings) {
                const TensorView* found = nullptr;
                for (const char* spelling : spellings) {
                    const TensorView* t = r.take(name(spelling));
                    if (!t) continue;
                    if (found) refuse(*t, "a second scale beside " + found->name);
                    if (t->elements() != 1) refuse(*t, "expected one value");
                    found = t;
                }
                cache_scales += found != nullptr;
                return found;
            };
            layer.k_scale =
                cache_scale({"self_attn.k_proj.k_scale", "self_attn.k_scale", "self_attn.attn.k_scale"});
            layer.v_scale =
                cache_scale({"self_attn.v_proj.v_scale", "self_attn.v_scale", "self_attn.attn.v_scale"});
        } else {
            layer.in_qkv = r.matrix(name(names.in_qkv), channels, config.hidden);
            layer.in_z = r.matrix(name(names.in_z), value, config.hidden);
            layer.in_b = r.matrix(name(names.in_b), config.value_heads, config.hidden);
            layer.in_a = r.matrix(name(names.in_a), config.value_heads, config.hidden);
            layer.out = r.matrix(name(names.delta_out), config.hidden, value);
            layer.conv = r.vector(name(names.conv), {channels, 1, config.conv_taps});
            layer.a_log = r.vector(name(names.a_log), {config.value_heads});
            layer.dt_bias = r.vector(name(names.dt_bias), {config.value_heads});
            layer.norm = r.vector(name(names.norm), {config.value_dim});
        }
        layer.router = r.matrix(name(names.router), config.experts, config.hidden);
        layer.shared_gate = r.matrix(name(names.shared_gate), 1, config.hidden);
        const std::string shared = name(names.shared), experts = name(names.experts);
        auto expert_at = [&](const std::string& at, std::int64_t width) {
            return Expert{r.matrix(at + std::string(names.gate), width, config.hidden),
                          r.matrix(at + std::string(names.up), width, config.hidden),
                          r.matrix(at + std::string(names.down), config.hidden, width)};
        };
        layer.shared = expert_at(shared, config.shared_width);
        const std::string fused_up = experts + std::string(names.fused_gate_up),
                          fused_down = experts + std::string(names.fused_down);
        const bool fused = checkpoint.find(fused_up) || checkpoint.find(fused_down);
        const std::int64_t w = config.expert_width;
        for (std::int64_t e = 0; e < config.experts; ++e)
            layer.experts.push_back(
                fused ? Expert{r.fused(fused_up, config.experts, 2 * w, config.hidden, e, 0, w),
                               r.fused(fused_up, config.experts, 2 * w, config.hidden, e, w, w),
                               r.fused(fused_down, config.experts, config.hidden, w, e, 0, config.hidden)}
                      : expert_at(experts + std::to_string(e) + ".", w));
        r.give_up();
    }

    std::vector<std::string> unknown;
    std::size_t odd_scales = 0;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
        if (r.used(name)) {
            text_bytes_ += tensor.bytes;
        } else if (is_skipped(family, name)) {
            skipped_bytes_ += tensor.bytes;
        } else if (is_activation_scale(name) && (starts_with(name, prefix) || starts_with(name, head))) {
            skipped_bytes_ += tensor.bytes;
            if (tensor.dtype == DType::f32 && tensor.elements() == 1) {
                float v;
                std::memcpy(&v, tensor.data, 4);
                odd_scales += !num::is_finite(v);
            }
        } else {
            unknown.push_back(name);
        }
    }
    if (odd_scales)
        notes_.push_back(counted(static_cast<std::uint64_t>(odd_scales), "activation scale") +
                         (odd_scales == 1 ? " is" : " are") + " not finite and not used");
    if (cache_scales)
        notes_.push_back(counted(static_cast<std::uint64_t>(cache_scales), "scale") + " of an FP8 cache " +
                         (cache_scales == 1 ? "is" : "are") +
                         " stored; --kv fp8 uses what is there, other caches need none");
    r.finish(unknown);

    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const auto& first = layers_[i].experts[0];
        for (std::size_t e = 0; e < layers_[i].experts.size(); ++e) {
            const auto& x = layers_[i].experts[e];
            if (x.gate.format != first.gate.format || x.up.format != first.gate.format ||
                x.down.format != first.down.format)
                throw Error(Exit::bad_input, "layer " + std::to_string(i) + ": expert " + std::to_string(e) +
                                                 " has another weight format than expert 0 (" +
                                                 x.gate.codes->name + ")");
        }
        if (layers_[i].shared.gate.format != layers_[i].shared.up.format)
            throw Error(Exit::bad_input, layers_[i].shared.gate.codes->name +
                                             " and its up_proj have different weight formats");
    }
}

ModelSizes Inventory::sizes() const {
    ModelSizes s{.config = config_,
                 .layers = {},
                 .embedding = size_of_matrix(embedding_),
                 .head = size_of_matrix(head_)};
    for (const Layer& l : layers_) {
        LayerSizes z;
        z.kind = l.kind;
        if (l.kind == LayerKind::attention) {
            z.q = size_of_matrix(l.q);
            z.k = size_of_matrix(l.k);
            z.v = size_of_matrix(l.v);
        } else {
            z.in_qkv = size_of_matrix(l.in_qkv);
            z.in_z = size_of_matrix(l.in_z);
            z.in_b = size_of_matrix(l.in_b);
            z.in_a = size_of_matrix(l.in_a);
        }
        z.out = size_of_matrix(l.out);
        z.router = size_of_matrix(l.router);
        z.shared_gate = size_of_matrix(l.shared_gate);
        z.gate_up = size_of_matrix(l.experts[0].gate, config_.experts);
        z.gate_up.rows *= 2;
        z.down = size_of_matrix(l.experts[0].down, config_.experts);
        z.shared_gate_up = size_of_matrix(l.shared.gate);
        z.shared_gate_up.rows *= 2;
        z.shared_down = size_of_matrix(l.shared.down);
        s.layers.push_back(z);
    }
    return s;
}

}  // namespace ftmpi
