// Model families as data: one row a tensor role, a layer kind is a list of rows, a family a list of kinds
// with its names and switches. Inventory, sizes, cut, cost, byte groups, loader and step limits loop over the
// rows; config.cpp reads the keys that a family's rows and switches need. A family whose layers compute what
// others compute is rows in family.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "../config.hpp"

namespace ftmpi {

// clang-format off
/// What a tensor of a layer is to the arithmetic.
enum class Role {
    input_norm,
    q, k, v, q_norm, k_norm, k_scale, v_scale,                  // attention
    in_qkv, in_z, in_b, in_a, conv, neg_exp_a, dt_bias, norm,   // delta net
    out,
    post_norm, router, gate_up, down,                           // experts
    shared_gate, shared_gate_up, shared_down,                   // shared expert
    count
};
// clang-format on
inline constexpr std::size_t kRoles = static_cast<std::size_t>(Role::count);

/// One T a role.
template <class T> class ByRole {
public:
    T& operator[](Role role) { return values_[static_cast<std::size_t>(role)]; }
    const T& operator[](Role role) const { return values_[static_cast<std::size_t>(role)]; }

private:
    std::array<T, kRoles> values_{};
};

/// Which rows of a tensor a rank holds. Heads are those of the layer's mixer.
enum class Cut {
    whole,        ///< all of them, every rank
    with_heads,   ///< all of them, where the rank has heads
    query_heads,  ///< of its query heads
    kv_heads,     ///< of the key/value heads that its query heads read
    qkv_heads,    ///< of its key-head groups: three ranges, q | k | v
    value_heads,  ///< of the value heads of its key-head groups
    out,          ///< hidden rows of the output projection
    expert,
    shared,  ///< intermediate rows of the routed experts, of the shared expert
    down     ///< hidden rows of the down projections
};

/// The group of bytes a tensor counts to.
enum class Group { attention, delta_net, experts, shared, replicated };

enum class Stored {
    matrix,      ///< [rows][cols] in any weight format
    experts,     ///< such a matrix an expert
    vector,      ///< [rows] as BF16, F16 or F32, or [rows][1][cols]
    cache_scale  ///< one value for an FP8 cache, which may be absent
};

/// What is held of a stored vector's value w.
enum class Form { w, norm, neg_exp };  ///< w; w or 1 + w as the family says; -exp(w)

/// One tensor of a layer.
struct TensorRole {
    using Count = std::int64_t (*)(const ModelConfig&);

    Role role = Role::count;
    /// Under the layer's prefix, '*' is the number of the expert. Matrices are named without ".weight": the
    /// format decides which of .weight, .weight_packed, .weight_scale, ... exist.
    std::string_view key;
    Stored stored = Stored::matrix;
    Count rows = nullptr, columns = nullptr;  ///< of one stored tensor, of one expert
    Cut cut = Cut::whole;
    Group group = Group::replicated;
    Form form = Form::w;
    std::string_view second = {};  ///< a tensor like it whose rows are held after its own: up after gate
    std::string_view fused = {};   ///< 3-D, in place of all experts' `key` and `second`
    std::span<const std::string_view> spellings = {};  ///< of a cache scale, beside `key`

    bool is_matrix() const { return stored == Stored::matrix || stored == Stored::experts; }
    std::int64_t groups(const ModelConfig& c) const { return stored == Stored::experts ? c.experts : 1; }
    std::int64_t parts() const { return second.empty() ? 1 : 2; }
    std::int64_t cols(const ModelConfig& c) const { return columns ? columns(c) : 1; }
};

/// The tensors of one kind of layer, in the order in which they are looked up and loaded.
struct LayerRoles {
    LayerKind kind;
    std::span<const TensorRole> roles;
};

/// Tensors that are known and left aside.
struct SkippedPart {
    std::string_view name, prefix;
};

struct Family {
    std::string_view model_type;
    std::string_view text_type = {};  ///< of text_config; empty: the text model's keys are at the top
    std::span<const std::string_view> prefixes;  ///< of the text model; exactly one form in a checkpoint
    std::span<const SkippedPart> skipped = {};
    std::string_view embedding = "embed_tokens", final_norm = "norm.weight";  ///< under the prefix
    std::string_view layers = "layers.";  ///< under the prefix, before the index
    std::string_view head = "lm_head";    ///< at the root
    bool zero_centred_norms = false;      ///< RMSNorm multiplies by 1 + w
    bool output_gate = false;             ///< of attention: q_proj holds query and gate of each head
    bool partial_rotary = false;  ///< partial_rotary_factor is asked for; else whole heads are rotated
    bool norm_topk = false;       ///< norm_topk_prob may be absent: the family has no other way
    std::span<const LayerRoles> kinds;

    std::span<const TensorRole> roles(LayerKind kind) const;
    bool has(LayerKind kind) const;
    bool has(Role role) const;  ///< in layers of any kind
};

/// The family of a model type; null when it is not known.
const Family* find_family(std::string_view model_type);
/// The model types that are known, as "a, b".
std::string known_families();
/// The family of a configuration that load_config() accepted.
const Family& family_of(const ModelConfig& config);

/// The part of a model that a tensor belongs to in any family: "text", or the name of a skipped part.
std::string_view part_of(std::string_view tensor);
/// The name of a text tensor without the prefix of any family.
std::string_view without_prefix(std::string_view tensor);

}  // namespace ftmpi
