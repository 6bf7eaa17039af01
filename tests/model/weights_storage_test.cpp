// Ways to store the same weights: half and single precision beside BF16, half precision scales, and experts
// that are fused and packed. Each gives the bits of the model it stores.
#define BOOST_TEST_MODULE weights_storage
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <map>

#include "error.hpp"
#include "fleet.hpp"
#include "plain_forward.hpp"
#include "refusal.hpp"
#include "tiny_model.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

using Tensors = std::vector<StoredTensor>;
using Bits = std::vector<std::vector<float>>;
using Names = std::function<std::string(const std::string&)>;

const std::string kLayer0 = "model.language_model.layers.0.";
const std::vector<std::int32_t> kPrompt{104, 101, 108, 108, 111, 32, 97, 98};
const FleetOptions kCut{.ranks = 2, .shares = {3, 1}, .embedding_on_host = false};

TinySpec layout(Layout l) {
    TinySpec s;
    s.layout = l;
    return s;
}

Bits logits(const TinySpec& spec, const Tensors& tensors, const FleetOptions& options = {}) {
    const TemporaryDirectory d;
    write_tiny_model(d.path(), spec, tensors);
    return Fleet(d.path(), options).logits(kPrompt, {99, 100, 101});
}

std::string refused_at_open(const TinySpec& spec, const Tensors& tensors) {
    const TemporaryDirectory d;
    write_tiny_model(d.path(), spec, tensors);
    const Checkpoint checkpoint = Checkpoint::open(d.path());
    return refusal(Exit::bad_input, [&] { Inventory(checkpoint, load_config(d.path())); });
}

void check_says(const std::string& message, std::initializer_list<const char*> words) {
    for (const char* w : words)
        BOOST_TEST(message.find(w) != std::string::npos, "\"" << message << "\" lacks \"" << w << '"');
}

/// The values of a tensor of numbers.
std::vector<double> values_of(const StoredTensor& t) {
    return plain_values({t.dtype, t.shape, t.bytes.data(), t.bytes.size()});
}

/// Tensors of type `from` whose names `chosen` takes, stored as `to`; their values go through `change` first.
Tensors retyped(Tensors tensors, const std::string& from, const std::string& to,
                const std::function<bool(const std::string&)>& chosen = {},
                const std::function<double(double)>& change = {}) {
    std::size_t count = 0;
    for (auto& t : tensors) {
        if (t.dtype != from || (chosen && !chosen(t.name))) continue;
        auto values = values_of(t);
        if (change)
            for (double& v : values) v = change(v);
        t.bytes = encode_values(to, values);
        t.dtype = to;
        ++count;
    }
    BOOST_TEST(count > 0u);
    return tensors;
}

/// The experts of a checkpoint that stores them apart, as one tensor of each kind. `rename` gives the suffix
/// of a kind ("weight", "weight_scale", ...); `global` the shape of the scales of which an expert has one.
Tensors fused(const Tensors& apart, const Names& rename, std::vector<std::int64_t> global = {4}) {
    Tensors out;
    std::map<std::string, std::size_t> index;
    for (const auto& t : apart) {
        const auto at = t.name.find(".experts.");
        if (at == std::string::npos) {
            out.push_back(t);
            continue;
        }
        const auto expert = at + 9, proj = t.name.find('.', expert) + 1, kind = t.name.find('.', proj) + 1;
        const std::string part = t.name.substr(proj, kind - 1 - proj);
        const bool down = part == "down_proj",
                   one = t.shape.empty() || t.shape == std::vector<std::int64_t>{1};
        const std::string name =
            t.name.substr(0, expert) + (down ? "down_proj" : "gate_up_proj") + rename(t.name.substr(kind));
        const auto [it, added] = index.emplace(name, out.size());
        if (added) {
            auto shape = global;
            if (!one) shape = {4, t.shape[0] * (down ? 1 : 2), t.shape[1]};
            out.push_back({name, t.dtype, shape, {}});
        }
        auto& all = out[it->second].bytes;
        if (one && part == "up_proj") {  // gate's and up's are equal: stored once
            BOOST_TEST(std::equal(t.bytes.begin(), t.bytes.end(), all.end() - 4));
            continue;
        }
        all.insert(all.end(), t.bytes.begin(), t.bytes.end());
    }
    return out;
}

const Names kUnderscore = [](const std::string& kind) { return kind == "weight" ? "" : "_" + kind; };
const Names kDotted = [](const std::string& kind) { return "." + kind; };
/// weight_packed, weight_scale, weight_global_scale without "weight".
const Names kPacked = [](const std::string& kind) {
    return "_" + (kind.starts_with("weight_") ? kind.substr(7) : kind);
};

}  // namespace

BOOST_AUTO_TEST_CASE(the_type_of_plain_weights_does_not_matter) {
    // Values that all three types hold.
    const auto round = [](double v) { return std::nearbyint(v * 65536) / 65536; };
    for (const Layout l : {Layout::bf16_fused, Layout::bf16_per_expert})
        for (const bool tied : {false, true}) {
            TinySpec s = layout(l);
            s.tied_embeddings = tied;
            const Tensors bf16 = retyped(make_tiny_tensors(s), "BF16", "BF16", {}, round);
            const Bits want = logits(s, bf16);
            for (const char* type : {"F16", "F32"}) {
                const Tensors other = retyped(bf16, "BF16", type);
                BOOST_TEST((logits(s, other) == want), type << " at one rank, " << name_of(l));
                BOOST_TEST((logits(s, other, kCut) == want), type << " at two ranks, " << name_of(l));
            }
            // A few of them in single precision beside BF16, as some exporters leave them.
            const Tensors beside = retyped(bf16, "BF16", "F32", [](const std::string& name) {
                return name.ends_with("mlp.gate.weight") || name.ends_with("in_proj_a.weight") ||
                       name.ends_with("in_proj_b.weight") || name.find("conv1d") != name.npos;
            });
            BOOST_TEST((logits(s, beside) == want));
            BOOST_TEST((logits(s, beside, kCut) == want));
        }
}

BOOST_AUTO_TEST_CASE(half_precision_keeps_what_bfloat16_cannot_hold) {
    // Eleven significant bits each, and subnormal values among the small ones.
    std::int64_t i = 0;
    const auto finer = [&](double v) {
        ++i;
        return v * (1.0 + static_cast<double>(i % 8) / 1024) / (i % 3 ? 1 : 64);
    };
    const TinySpec s = layout(Layout::bf16_fused);
    const Tensors half = retyped(make_tiny_tensors(s), "BF16", "F16", {}, finer);
    const Bits want = logits(s, half);
    BOOST_TEST((logits(s, retyped(half, "F16", "F32")) == want));
    BOOST_TEST((logits(s, half, kCut) == want));
    BOOST_TEST((logits(s, retyped(half, "F16", "BF16")) != want));

    const TemporaryDirectory d;
    write_tiny_model(d.path(), s, half);
    const auto plain = PlainReference(d.path()).logits({kPrompt.begin(), kPrompt.end()}, 1)[0];
    for (std::size_t k = 0; k < want[0].size(); ++k) BOOST_REQUIRE_SMALL(plain[k] - double{want[0][k]}, 1e-4);
}

BOOST_AUTO_TEST_CASE(what_is_read_and_held_of_half_and_single_precision_is_what_is_stored) {
    const TinySpec s = layout(Layout::bf16_per_expert);
    for (const char* type : {"F16", "F32"}) {
        const TemporaryDirectory d;
        write_tiny_model(d.path(), s, retyped(make_tiny_tensors(s), "BF16", type));
        Fleet fleet(d.path(), {});
        const auto& inventory = fleet.inventory();
        const auto& read = fleet.weights(0).read();
        BOOST_TEST(read.cut + read.replicated +
                       inventory.embedding().bytes({0, inventory.embedding().rows}) ==
                   inventory.text_bytes());
        BOOST_TEST(fleet.weights(0).allocated().weights() == fleet.plan().bytes[0].weights());
    }
}

BOOST_AUTO_TEST_CASE(half_precision_scales_count_as_the_numbers_they_are) {
    for (const Layout l : {Layout::fp8_block, Layout::fp8_row})
        for (const bool in_one : {false, true}) {
            TinySpec s = TinySpec::wide();
            s.layout = l;
            s.fp8_fused_experts = in_one;
            s.form.dtype = "F16";
            const Tensors half = make_tiny_tensors(s);
            const Bits want = logits(s, retyped(half, "F16", "F32"));
            BOOST_TEST((logits(s, half) == want), name_of(l));
            BOOST_TEST((logits(s, half, kCut) == want), name_of(l));
        }
}

BOOST_AUTO_TEST_CASE(experts_that_are_fused_and_packed) {
    struct Case {
        Layout layout;
        std::vector<Names> names;
    };
    for (const auto& [l, names] : {Case{Layout::modelopt_nvfp4, {kUnderscore, kDotted}},
                                   {Layout::compressed_nvfp4, {kPacked, kUnderscore, kDotted}},
                                   {Layout::mxfp4, {kUnderscore, kPacked}},
                                   {Layout::bf16_per_expert, {kDotted}}}) {
        const TinySpec s = layout(l);
        const Tensors apart = make_tiny_tensors(s);
        const Bits want = logits(s, apart);
        for (const auto& rename : names)
            for (const std::vector<std::int64_t>& global : {std::vector<std::int64_t>{4}, {4, 1, 1}}) {
                const Tensors one = fused(apart, rename, global);
                BOOST_TEST(one.size() < apart.size());
                BOOST_TEST((logits(s, one) == want), name_of(l));
                BOOST_TEST((logits(s, one, kCut) == want), name_of(l));
                const TemporaryDirectory d;
                write_tiny_model(d.path(), s, one);
                Fleet fleet(d.path(), {});
                const auto& inventory = fleet.inventory();
                const auto& read = fleet.weights(0).read();
                BOOST_TEST(read.cut + read.replicated +
                               inventory.embedding().bytes({0, inventory.embedding().rows}) ==
                           inventory.text_bytes());
            }
    }
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused_before_anything_is_loaded) {
    const std::string up = kLayer0 + "mlp.experts.gate_up_proj";
    const auto with = [](Tensors tensors, const std::string& name, const auto& edit) {
        edit(tensor_named(tensors, name));
        return tensors;
    };
    const TinySpec nv = layout(Layout::modelopt_nvfp4), ct = layout(Layout::compressed_nvfp4);
    const Tensors packed = fused(make_tiny_tensors(nv), kUnderscore);
    check_says(refused_at_open(nv, with(packed, up, [](auto& t) { std::swap(t.shape[1], t.shape[2]); })),
               {"gate_up_proj", "two 4-bit codes a byte, [4, 128, 32]"});
    check_says(refused_at_open(nv, with(packed, up + "_weight_scale",
                                        [](auto& t) { std::swap(t.shape[1], t.shape[2]); })),
               {"gate_up_proj_weight_scale", "expected [4, 128, 4]"});
    check_says(refused_at_open(nv, with(packed, up + "_weight_scale_2",
                                        [](auto& t) {
                                            t.shape = {3};
                                            t.bytes.resize(12);
                                        })),
               {"gate_up_proj_weight_scale_2", "one value or one an expert"});
    Tensors missing = packed;
    remove_tensor(missing, up + "_weight_scale_2");
    check_says(refused_at_open(nv, missing), {"missing tensor", "gate_up_proj_scale_2"});
    Tensors twice = packed;
    const StoredTensor scale = tensor_named(twice, up + "_weight_scale");
    twice.push_back({up + "_scale", scale.dtype, scale.shape, scale.bytes});
    check_says(refused_at_open(nv, twice),
               {"both gate_up_proj_weight_scale and gate_up_proj_scale are present"});
    Tensors wide = fused(make_tiny_tensors(ct), kPacked);
    tensor_named(wide, up + "_packed").dtype = "I8";
    check_says(refused_at_open(ct, wide), {"gate_up_proj_packed", "I8", "expected U8"});

    // Scales and weights of types that hold no number this program reads.
    for (const bool in_one : {false, true}) {
        TinySpec s = TinySpec::wide();
        s.fp8_fused_experts = in_one;
        s.form.dtype = "F32";
        for (const auto& [dtype, wider] : {std::pair{"I32", 1}, {"F64", 2}, {"F8_E8M0", 0}}) {
            Tensors odd = make_tiny_tensors(s);
            auto& t = tensor_named(
                odd, in_one ? up + "_scale_inv" : kLayer0 + "mlp.experts.0.up_proj.weight_scale_inv");
            t.dtype = dtype;
            t.bytes.resize(wider ? t.bytes.size() * static_cast<std::size_t>(wider) : t.bytes.size() / 4);
            check_says(refused_at_open(s, odd), {"scale_inv", dtype, "expected F32, BF16 or F16 scales"});
        }
    }
    for (const Layout l : {Layout::bf16_fused, Layout::bf16_per_expert}) {
        Tensors doubles = make_tiny_tensors(layout(l));
        auto& t =
            tensor_named(doubles, l == Layout::bf16_fused ? up : kLayer0 + "mlp.experts.0.up_proj.weight");
        t.dtype = "F64";
        t.bytes.resize(t.bytes.size() * 4);
        check_says(refused_at_open(layout(l), doubles),
                   {"up_proj", "F64", "expected BF16, F16, F32, F8_E4M3 or U8 (4-bit) weights"});
    }
}
