#include <algorithm>
#include <cstring>

#include "../error.hpp"
#include "../numerics.hpp"
#include "../stored.hpp"
#include "../weights.hpp"
#include "resolver.hpp"

namespace ftmpi {

std::vector<float> floats_of(const TensorView& t) {
    std::vector<float> values(static_cast<std::size_t>(t.elements()));
    if (!is_float(t.dtype)) refuse(t, "expected BF16, F16 or F32");
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = value_at(t.data + i * size_of(t.dtype), t.dtype);
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

bool is_skipped(const Family& family, std::string_view name) {
    return std::any_of(family.skipped.begin(), family.skipped.end(),
                       [&](const SkippedPart& part) { return name.starts_with(part.prefix); });
}

/// Scales of quantized activations and attention probabilities: weights are used with fp32 activations, so
/// they are not needed.
bool is_activation_scale(std::string_view name) {
    for (auto suffix : {"input_scale", "input_global_scale", ".q_scale", ".prob_scale", ".output_scale"})
        if (name.ends_with(suffix)) return true;
    return false;
}

/// The one prefix the text tensors of this checkpoint live under.
std::string text_prefix(const Checkpoint& checkpoint, const Family& family) {
    std::string found, example;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
        if (is_skipped(family, name)) continue;
        for (auto prefix : family.prefixes) {
            if (!name.starts_with(prefix)) continue;
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

/// `key` of one expert.
std::string numbered(std::string_view key, std::int64_t expert) {
    std::string name(key);
    if (const auto star = name.find('*'); star != name.npos) name.replace(star, 1, std::to_string(expert));
    return name;
}

/// The scale of an FP8 cache under whichever of its names there is; null without one.
const TensorView* cache_scale(Resolver& resolver, const std::string& prefix, const TensorRole& role) {
    const TensorView* found = resolver.take(prefix + std::string(role.key));
    for (const auto spelling : role.spellings) {
        const TensorView* t = resolver.take(prefix + std::string(spelling));
        if (!t) continue;
        if (found) refuse(*t, "a second scale beside " + found->name);
        found = t;
    }
    if (found && found->elements() != 1) refuse(*found, "expected one value");
    return found;
}

}  // namespace

Inventory::Inventory(const Checkpoint& checkpoint, const ModelConfig& config)
    : config_(config), family_(family_of(config)) {
    const std::string prefix = text_prefix(checkpoint, family_);
    Resolver resolver(checkpoint);
    root(resolver, checkpoint, prefix);
    layers_.resize(config.layers.size());
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        layers_[i].kind = config.layers[i];
        layer(resolver, prefix + std::string(family_.layers) + std::to_string(i) + ".", layers_[i]);
        resolver.give_up();
    }
    account(resolver, checkpoint, prefix);
    for (std::size_t i = 0; i < layers_.size(); ++i) require_one_format(i);
}

/// Embedding, final norm and head.
void Inventory::root(Resolver& resolver, const Checkpoint& checkpoint, const std::string& prefix) {
    embedding_ = resolver.matrix(prefix + std::string(family_.embedding), config_.vocab, config_.hidden);
    if (embedding_.codes && !is_plain(embedding_.format))
        refuse(*embedding_.codes, "the embedding must be BF16, F16 or F32");
    final_norm_ = resolver.vector(prefix + std::string(family_.final_norm), {config_.hidden});

    const std::string head(family_.head);
    const bool stored = checkpoint.find(head + ".weight") || checkpoint.find(head + ".weight_packed");
    if (!config_.tied_embeddings && !stored)
        throw Error(Exit::bad_input,
                    "config.json says tie_word_embeddings is false but " + head + ".weight is absent");
    if (stored) head_ = resolver.matrix(head, config_.vocab, config_.hidden);
    if (!config_.tied_embeddings) return;
    const bool equal = head_.format == embedding_.format && head_.codes && embedding_.codes &&
                       head_.codes->bytes == embedding_.codes->bytes &&
                       std::memcmp(head_.codes->data, embedding_.codes->data, head_.codes->bytes) == 0;
    if (stored && !equal)
        notes_.push_back(head +
                         " differs from the embedding although config.json ties them: the embedding is used");
    head_ = embedding_;
}

void Inventory::layer(Resolver& resolver, const std::string& prefix, Layer& to) {
    const auto roles = family_.roles(to.kind);
    const auto name = [&](std::string_view key) { return prefix + std::string(key); };
    // All of a layer's experts are fused, or none.
    const bool fused = std::any_of(roles.begin(), roles.end(), [&](const TensorRole& role) {
        return !role.fused.empty() && resolver.has_fused(name(role.fused));
    });
    for (const TensorRole& role : roles) {
        Tensor& tensor = to.tensors[role.role];
        if (role.stored == Stored::cache_scale) {
            tensor.vector = cache_scale(resolver, prefix, role);
            cache_scales_ += tensor.vector != nullptr;
            continue;
        }
        const std::int64_t rows = role.rows(config_), cols = role.cols(config_),
                           groups = role.groups(config_), parts = role.parts();
        if (role.stored == Stored::vector) {
            using Shape = std::vector<std::int64_t>;
            tensor.vector =
                resolver.vector(name(role.key), role.columns ? Shape{rows, 1, cols} : Shape{rows});
            continue;
        }
        for (std::int64_t group = 0; group < groups; ++group)
            for (std::int64_t part = 0; part < parts; ++part)
                tensor.matrices.push_back(
                    fused && !role.fused.empty()
                        ? resolver.fused(name(role.fused), groups, parts * rows, cols, group, part * rows,
                                         rows)
                        : resolver.matrix(name(numbered(part ? role.second : role.key, group)), rows, cols));
    }
}

/// Adds up the tensors that are used and that are left aside, and refuses what is missing or unknown.
void Inventory::account(const Resolver& resolver, const Checkpoint& checkpoint, const std::string& prefix) {
    std::vector<std::string> unknown;
    std::size_t odd_scales = 0;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
        if (resolver.used(name)) {
            text_bytes_ += tensor.bytes;
        } else if (is_skipped(family_, name)) {
            skipped_bytes_ += tensor.bytes;
        } else if (is_activation_scale(name) &&
                   (name.starts_with(prefix) || name.starts_with(family_.head))) {
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
    if (cache_scales_)
        notes_.push_back(counted(static_cast<std::uint64_t>(cache_scales_), "scale") + " of an FP8 cache " +
                         (cache_scales_ == 1 ? "is" : "are") +
                         " stored; --kv fp8 uses what is there, other caches need none");
    resolver.finish(unknown);
}

/// All parts of one matrix that a rank holds have one format.
void Inventory::require_one_format(std::size_t layer) const {
    for (const TensorRole& role : family_.roles(layers_[layer].kind)) {
        const auto& matrices = layers_[layer][role.role].matrices;
        const auto parts = static_cast<std::size_t>(role.parts());
        for (std::size_t i = 0; i < matrices.size(); ++i) {
            if (matrices[i].format == matrices[0].format) continue;
            const StoredMatrix& first = matrices[i / parts * parts];  // of the same expert
            if (matrices[i].format != first.format)
                throw Error(Exit::bad_input,
                            first.codes->name + " and its up_proj have different weight formats");
            throw Error(Exit::bad_input,
                        "layer " + std::to_string(layer) + ": expert " + std::to_string(i / parts) +
                            " has another weight format than expert 0 (" + first.codes->name + ")");
        }
    }
}

ModelSizes Inventory::sizes() const {
    const auto size = [](const StoredMatrix& m) { return MatrixSize{m.format, 1, m.rows, m.cols}; };
    ModelSizes s{.config = config_, .layers = {}, .embedding = size(embedding_), .head = size(head_)};
    for (const Layer& layer : layers_) {
        LayerSizes& sizes = s.layers.emplace_back();
        sizes.kind = layer.kind;
        for (const TensorRole& role : family_.roles(layer.kind))
            if (role.is_matrix())
                sizes[role.role] = size_of(role, config_, layer[role.role].matrices[0].format);
    }
    return s;
}

}  // namespace ftmpi
