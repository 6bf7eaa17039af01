// Tensors to matrices: formats by keys, every text tensor once, each rank its own rows.
#define BOOST_TEST_MODULE weights
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>

#include "error.hpp"
#include "fleet.hpp"
#include "real_inventory.hpp"
#include "refusal.hpp"
#include "safetensors_writer.hpp"
#include "tiny_model.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

const std::string kLayer0 = "model.language_model.layers.0.";
const std::vector<std::int32_t> kPrompt{104, 101, 108, 108, 111, 32, 97, 98};

using Edit = std::function<void(std::vector<StoredTensor>&)>;
using Bits = std::vector<std::vector<float>>;

void write(const TemporaryDirectory& d, const TinySpec& spec, const Edit& edit = {}) {
    auto tensors = make_tiny_tensors(spec);
    if (edit) edit(tensors);
    write_tiny_model(d.path(), spec, tensors);
}

Bits logits(const TinySpec& spec, const Edit& edit = {}, const FleetOptions& options = {}) {
    TemporaryDirectory d;
    write(d, spec, edit);
    return Fleet(d.path(), options).logits(kPrompt, {99, 100, 101});
}

/// The message of the refusal (and nothing was loaded onto a backend when `before_loading`).
std::string refusal(const TinySpec& spec, const Edit& edit, bool before_loading = true,
                    const std::function<void(const std::filesystem::path&)>& edit_files = {}) {
    TemporaryDirectory d;
    write(d, spec, edit);
    if (edit_files) edit_files(d.path());
    try {
        if (before_loading) {
            const Checkpoint checkpoint = Checkpoint::open(d.path());
            const Inventory inventory(checkpoint, load_config(d.path()));
        } else {
            Fleet fleet(d.path(), {});
        }
    } catch (const Error& e) {
        BOOST_TEST((e.code() == Exit::bad_input));
        return e.what();
    }
    return "";
}

void check_refused(const TinySpec& spec, const Edit& edit, std::initializer_list<const char*> words,
                   bool before_loading = true) {
    const std::string message = refusal(spec, edit, before_loading);
    BOOST_TEST(!message.empty(), "nothing was refused");
    for (const char* w : words)
        BOOST_TEST(message.find(w) != std::string::npos,
                   "\"" << message << "\" does not say \"" << w << "\"");
}

void rename(std::vector<StoredTensor>& tensors, const std::string& from, const std::string& to) {
    tensor_named(tensors, from).name = to;
}

TinySpec layout(Layout l) {
    TinySpec s;
    s.layout = l;
    return s;
}

void put_float(StoredTensor& t, float v) { std::memcpy(t.bytes.data(), &v, 4); }

}  // namespace

BOOST_AUTO_TEST_CASE(every_layout_loads_and_gives_one_answer_for_any_cut) {
    for (Layout l : kAllLayouts) {
        const Bits one = logits(layout(l));
        for (const auto& row : one)
            for (float v : row) BOOST_REQUIRE(std::isfinite(v));
        BOOST_TEST((one[0] != one[1]));
        BOOST_TEST((logits(layout(l), {}, {.ranks = 2, .shares = {3, 1}}) == one), name_of(l));
        BOOST_TEST((logits(layout(l), {}, {.ranks = 3, .shares = {5, 2, 1}}) == one), name_of(l));
    }
    BOOST_TEST((logits(TinySpec::wide()) == logits(TinySpec::wide(), {}, {.ranks = 2, .shares = {3, 5}})));
}

BOOST_AUTO_TEST_CASE(the_second_family_in_every_layout) {
    for (Layout l : kAllLayouts) {
        TinySpec s = TinySpec::qwen3(l);
        s.expert_width = 96;  // MXFP4 has groups of 32 columns
        const Bits one = logits(s);
        BOOST_TEST((one[0] != one[1]));
        BOOST_TEST((logits(s, {}, {.ranks = 2, .shares = {3, 1}}) == one), name_of(l));
        BOOST_TEST((logits(s, {}, {.ranks = 4, .shares = {5, 0, 2, 1}}) == one), name_of(l));
    }
    TinySpec tied = TinySpec::qwen3();
    tied.tied_embeddings = true;
    BOOST_TEST((logits(tied) == logits(tied, {}, {.ranks = 2, .shares = {1, 3}})));
}

BOOST_AUTO_TEST_CASE(tensors_of_the_other_family_are_refused) {
    const TinySpec s = TinySpec::qwen3();
    check_refused(s, [](auto& t) { remove_tensor(t, "model.layers.1.self_attn.q_norm.weight"); },
                  {"missing tensor model.layers.1.self_attn.q_norm.weight"});
    check_refused(s, [](auto& t) { remove_tensor(t, "model.layers.0.mlp.experts.2.up_proj.weight"); },
                  {"missing tensor model.layers.0.mlp.experts.2.up_proj.weight"});
    check_refused(s,
                  [](auto& t) {
                      rename(t, "model.layers.0.mlp.gate.weight",
                             "model.layers.0.mlp.shared_expert_gate.weight");
                  },
                  {"missing tensor model.layers.0.mlp.gate.weight",
                   "unknown tensor model.layers.0.mlp.shared_expert_gate.weight"});
    // A query projection with a gate in it, as the first family has.
    check_refused(s,
                  [](auto& t) {
                      auto& q = tensor_named(t, "model.layers.0.self_attn.q_proj.weight");
                      q.shape[0] *= 2;
                      q.bytes.resize(2 * q.bytes.size());
                  },
                  {"model.layers.0.self_attn.q_proj.weight", "expected shape"});
    // This family has no vision and no MTP to be left aside.
    check_refused(
        s, [](auto& t) { rename(t, "model.layers.1.mlp.gate.weight", "mtp.layers.0.mlp.gate.weight"); },
        {"unknown tensor mtp.layers.0.mlp.gate.weight"});
}

BOOST_AUTO_TEST_CASE(the_same_model_in_two_forms_gives_the_same_bits) {
    const Bits fused = logits(layout(Layout::bf16_fused));
    BOOST_TEST((logits(layout(Layout::bf16_per_expert)) == fused));
    TinySpec s = layout(Layout::bf16_fused);
    s.prefix = "model.";
    BOOST_TEST((logits(s) == fused));
    s.prefix = "model.language_model.";
    s.shards = 3;
    s.vision = true;
    s.mtp = Mtp::fused;
    BOOST_TEST((logits(s) == fused));
    s.mtp = Mtp::per_expert;
    BOOST_TEST((logits(s) == fused));
    s.flat_config = true;
    BOOST_TEST((logits(s) == fused));

    // A divisor of 2^n and a multiplier of 2^-n are the same number; the key decides which is meant.
    TinySpec fp4 = layout(Layout::compressed_nvfp4);
    const Bits packed = logits(fp4);
    Bits unpacked = logits(fp4, [](auto& tensors) {
        for (auto& t : tensors) {
            auto ends = [&](const std::string& suffix) {
                return t.name.size() > suffix.size() && t.name.ends_with(suffix);
            };
            auto cut = [&](const std::string& suffix, const std::string& with) {
                t.name = t.name.substr(0, t.name.size() - suffix.size()) + with;
            };
            if (ends(".weight_packed")) cut(".weight_packed", ".weight");
            if (ends(".weight_global_scale")) {
                float v;
                std::memcpy(&v, t.bytes.data(), 4);
                put_float(t, 1.0f / v);
                t.shape = {};
                cut(".weight_global_scale", ".weight_scale_2");
            }
        }
    });
    BOOST_TEST((packed == unpacked));
}

BOOST_AUTO_TEST_CASE(missing_renamed_and_extra_tensors_are_named) {
    const TinySpec nv = layout(Layout::modelopt_nvfp4), bf = layout(Layout::bf16_per_expert),
                   f8 = layout(Layout::fp8_block);
    check_refused(
        bf,
        [](auto& t) {
            rename(t, kLayer0 + "linear_attn.in_proj_qkv.weight",
                   kLayer0 + "linear_attn.in_proj_qkvz.weight");
        },
        {"missing tensor", "layers.0.linear_attn.in_proj_qkv.weight", "unknown tensor", "in_proj_qkvz"});
    check_refused(bf, [](auto& t) { remove_tensor(t, kLayer0 + "linear_attn.dt_bias"); },
                  {"missing", "dt_bias"});
    check_refused(bf, [](auto& t) { remove_tensor(t, kLayer0 + "mlp.experts.3.gate_proj.weight"); },
                  {"missing", "experts.3.gate_proj"});
    check_refused(bf,
                  [](auto& t) {
                      auto extra = tensor_named(t, kLayer0 + "mlp.experts.3.up_proj.weight");
                      extra.name = kLayer0 + "mlp.experts.4.up_proj.weight";
                      t.push_back(extra);
                  },
                  {"unknown", "experts.4.up_proj"});
    check_refused(bf,
                  [](auto& t) {
                      rename(t, "model.language_model.layers.2.linear_attn.A_log",
                             "model.layers.2.linear_attn.A_log");
                  },
                  {"model.language_model.", "model.layers.2", "prefixes"});
    check_refused(nv, [](auto& t) { remove_tensor(t, kLayer0 + "mlp.experts.1.up_proj.weight_scale_2"); },
                  {"missing", "experts.1.up_proj.weight_scale_2"});
    check_refused(f8, [](auto& t) { remove_tensor(t, kLayer0 + "linear_attn.in_proj_z.weight_scale_inv"); },
                  {"missing", "in_proj_z.weight_scale"});
    check_refused(f8,
                  [](auto& t) {
                      auto copy = tensor_named(t, kLayer0 + "linear_attn.in_proj_z.weight_scale_inv");
                      copy.name = kLayer0 + "linear_attn.in_proj_z.weight_scale";
                      t.push_back(copy);
                  },
                  {"both weight_scale_inv and weight_scale"});
    check_refused(bf, [](auto& t) { remove_tensor(t, "lm_head.weight"); },
                  {"tie_word_embeddings is false", "lm_head.weight"});
}

BOOST_AUTO_TEST_CASE(both_names_of_a_block_scale_mean_the_same) {
    TinySpec s = TinySpec::wide();
    const Bits want = logits(s);
    BOOST_TEST((logits(s, [](auto& tensors) {
                    for (auto& t : tensors)
                        if (t.name.ends_with("weight_scale_inv")) t.name.resize(t.name.size() - 4);
                }) == want));
}

BOOST_AUTO_TEST_CASE(shapes_and_types_are_checked) {
    const TinySpec nv = layout(Layout::modelopt_nvfp4), bf = layout(Layout::bf16_per_expert);
    check_refused(bf,
                  [](auto& t) {
                      auto& m = tensor_named(t, kLayer0 + "linear_attn.in_proj_z.weight");
                      std::swap(m.shape[0], m.shape[1]);
                  },
                  {"in_proj_z", "expected shape"});
    check_refused(nv,
                  [](auto& t) { tensor_named(t, kLayer0 + "mlp.experts.0.gate_proj.weight").dtype = "I8"; },
                  {"experts.0.gate_proj.weight", "expected BF16, F16, F32, F8_E4M3 or U8"});
    check_refused(nv,
                  [](auto& t) {
                      auto& m = tensor_named(t, kLayer0 + "mlp.experts.0.gate_proj.weight_scale");
                      m.shape[1] += 1;
                      m.bytes.resize(m.bytes.size() + static_cast<std::size_t>(m.shape[0]));
                  },
                  {"experts.0.gate_proj.weight_scale", "one scale per 16 columns"});
    check_refused(bf,
                  [](auto& t) {
                      auto& m = tensor_named(t, kLayer0 + "mlp.experts.0.gate_proj.weight");
                      m.dtype = "F16";
                  },
                  {"experts.0.gate_proj.weight and its up_proj have different weight formats"});
}

BOOST_AUTO_TEST_CASE(scales_that_are_no_scales_are_refused) {
    const TinySpec nv = layout(Layout::modelopt_nvfp4), ct = layout(Layout::compressed_nvfp4);
    for (float bad : {0.0f, -1.0f, std::nanf(""), INFINITY}) {
        check_refused(nv,
                      [&](auto& t) {
                          put_float(tensor_named(t, kLayer0 + "mlp.experts.0.up_proj.weight_scale_2"), bad);
                      },
                      {"experts.0.up_proj.weight_scale_2"});
        check_refused(ct,
                      [&](auto& t) {
                          put_float(tensor_named(t, kLayer0 + "mlp.experts.0.up_proj.weight_global_scale"),
                                    bad);
                      },
                      {"experts.0.up_proj.weight_global_scale"});
    }
    check_refused(ct,
                  [](auto& t) {
                      put_float(tensor_named(t, kLayer0 + "mlp.experts.0.up_proj.weight_global_scale"),
                                1e-45f);
                  },
                  {"reciprocal"});

    // One NaN block scale: refused when its codes are not all zero, harmless (and equal to any scale) when
    // they are.
    const std::string codes = kLayer0 + "mlp.experts.1.up_proj.weight", scales = codes + "_scale";
    auto set = [&](std::uint8_t scale, bool zero) {
        return [=](std::vector<StoredTensor>& t) {
            std::memset(tensor_named(t, codes).bytes.data(), zero ? 0 : 0x11, 8);
            tensor_named(t, scales).bytes[0] = scale;
        };
    };
    check_refused(nv, set(0x7f, false), {"experts.1.up_proj"}, false);
    check_refused(nv, set(0xb8, false), {"experts.1.up_proj"}, false);
    BOOST_TEST((logits(nv, set(0x7f, true)) == logits(nv, set(0x7e, true))));
    check_refused(
        nv, [](auto& t) { tensor_named(t, kLayer0 + "linear_attn.in_proj_z.weight").bytes[5] = 0x7f; },
        {"in_proj_z"}, false);
    check_refused(
        layout(Layout::bf16_fused),
        [](auto& t) {
            auto& m = tensor_named(t, kLayer0 + "linear_attn.in_proj_z.weight").bytes;
            m[0] = 0xc0;  // 0x7fc0: a NaN
            m[1] = 0x7f;
        },
        {"in_proj_z"}, false);
}

BOOST_AUTO_TEST_CASE(activation_scales_do_not_matter) {
    const TinySpec nv = layout(Layout::modelopt_nvfp4);
    const Bits want = logits(nv);
    BOOST_TEST((logits(nv, [](auto& t) {
                    put_float(tensor_named(t, kLayer0 + "mlp.experts.2.up_proj.input_scale"), INFINITY);
                }) == want));
    BOOST_TEST((logits(nv, [](auto& t) {
                    remove_tensor(t, kLayer0 + "mlp.experts.2.up_proj.input_scale");
                }) == want));
}

BOOST_AUTO_TEST_CASE(gate_and_up_keep_their_own_scales) {
    TinySpec s = layout(Layout::modelopt_nvfp4);
    s.gate_up_share_scale = false;
    const Bits want = logits(s);
    BOOST_TEST((logits(s, {}, {.ranks = 2, .shares = {1, 3}}) == want));
    // Doubling a global scale and halving every block scale of that matrix is the same matrix, unless the
    // other one takes part in it.
    for (const std::string half : {"gate_proj", "up_proj"}) {
        const auto rescaled = [&](std::vector<StoredTensor>& t) {
            for (int expert = 0; expert < 4; ++expert) {
                const std::string module = kLayer0 + "mlp.experts." + std::to_string(expert) + "." + half;
                auto& global = tensor_named(t, module + ".weight_scale_2");
                float value = 0;
                std::memcpy(&value, global.bytes.data(), 4);
                put_float(global, 2 * value);
                for (auto& code : tensor_named(t, module + ".weight_scale").bytes) {
                    BOOST_TEST_REQUIRE((code & 0x78) > 0x08);  // e4m3: half of it is normal, too
                    code = static_cast<std::uint8_t>(code - 8);
                }
            }
        };
        BOOST_TEST((logits(s, rescaled) == want), half);
        BOOST_TEST((logits(s, rescaled, {.ranks = 2, .shares = {1, 3}}) == want), half << " on two ranks");
    }
    BOOST_TEST((logits(s, [](auto& t) {
                    put_float(tensor_named(t, kLayer0 + "mlp.experts.0.up_proj.weight_scale_2"), 0.25f);
                }) != want));
}

BOOST_AUTO_TEST_CASE(tied_embeddings) {
    TinySpec s = layout(Layout::bf16_fused);
    s.tied_embeddings = true;
    const Bits want = logits(s);
    BOOST_TEST((logits(s, {}, {.ranks = 2, .shares = {2, 1}}) == want));
    auto with_head = [&](bool equal) {
        return [=](std::vector<StoredTensor>& t) {
            auto head = tensor_named(t, "model.language_model.embed_tokens.weight");
            head.name = "lm_head.weight";
            if (!equal) head.bytes[0] = head.bytes[2];
            t.push_back(head);
        };
    };
    BOOST_TEST((logits(s, with_head(true)) == want));
    BOOST_TEST((logits(s, with_head(false)) == want));  // the embedding is used, with a note
}

BOOST_AUTO_TEST_CASE(vectors_in_fp32_or_bf16) {
    TinySpec s = layout(Layout::bf16_fused);
    s.vector_dtype = "F32";
    const Bits one = logits(s);
    BOOST_TEST((logits(s, {}, {.ranks = 2, .shares = {1, 1}}) == one));
    BOOST_TEST((one != logits(layout(Layout::bf16_fused))));  // F32 holds values BF16 cannot
}

BOOST_AUTO_TEST_CASE(routed_and_shared_experts_may_differ_in_format) {
    for (auto [routed, shared] :
         {std::pair{Layout::modelopt_nvfp4, false}, {Layout::bf16_per_expert, true}}) {
        TinySpec s = layout(routed);
        s.shared_storage = shared ? Storage::nvfp4_modelopt : Storage::bf16;
        const Bits one = logits(s);
        BOOST_TEST((logits(s, {}, {.ranks = 2, .shares = {1, 2}}) == one));
    }
}

BOOST_AUTO_TEST_CASE(what_the_ranks_read_adds_up_to_the_checkpoint) {
    for (const auto& model :
         {std::filesystem::path(FTMPI_DATA) / "tiny-nvfp4", std::filesystem::path(FTMPI_DATA) / "tiny-fp8",
          std::filesystem::path(FTMPI_DATA) / "tiny-qwen3-moe-nvfp4",
          std::filesystem::path(FTMPI_DATA) / "tiny-qwen3-moe-fp8"})
        for (const auto& shares : std::vector<std::vector<double>>{{1}, {1, 1}, {3, 1}, {1, 0}, {2, 1, 1}}) {
            Fleet fleet(model, {.ranks = static_cast<int>(shares.size()), .shares = shares});
            const Inventory& inventory = fleet.inventory();
            // Rows held twice because a key/value group is split between ranks, scale rows of a block row cut
            // in two, and an output projection given whole to every rank: the plan's replication.
            std::uint64_t twice = 0, cut = 0;
            auto add = [&](const StoredMatrix& m, const std::vector<Range>& ranges) {
                std::uint64_t held = 0;
                for (const Range& r : ranges) held += m.bytes(r);
                twice += held - m.bytes({0, m.rows});
            };
            for (std::size_t i = 0; i < inventory.layers().size(); ++i) {
                const auto& l = inventory.layers()[i];
                for (const TensorRole& role : family_of(fleet.config()).roles(l.kind)) {
                    if (role.cut == Cut::whole) continue;
                    std::vector<Range> held;
                    for (std::size_t r = 0; r < shares.size(); ++r)
                        for (const Range& rows : rows_held(role, fleet.config(), fleet.plan().layers[i], r))
                            held.push_back(rows);
                    std::int64_t next = 0;  // together the ranks hold every row
                    std::sort(held.begin(), held.end(), [](Range a, Range b) { return a.begin < b.begin; });
                    for (const Range& rows : held) {
                        BOOST_TEST_REQUIRE(rows.begin <= next);
                        next = std::max(next, rows.end);
                    }
                    BOOST_TEST_REQUIRE(next == role.rows(fleet.config()));
                    for (const StoredMatrix& m : l[role.role].matrices) add(m, held);
                }
            }
            std::uint64_t replicated = 0;
            for (std::size_t r = 0; r < shares.size(); ++r) {
                cut += fleet.weights(static_cast<int>(r)).read().cut;
                replicated = std::max(replicated, fleet.weights(static_cast<int>(r)).read().replicated);
            }
            const std::uint64_t table =
                inventory.embedding().bytes({0, inventory.embedding().rows});  // looked up row by row
            BOOST_TEST(cut - twice + replicated + table == inventory.text_bytes(),
                       model << " at " << shares.size() << " ranks");
        }
}

BOOST_AUTO_TEST_CASE(the_published_checkpoints_are_accepted_name_by_name) {
    // Text tensors: all but vision and MTP; the NVFP4 one also has 30,971 activation scales of 4 bytes that
    // are not used.
    for (const auto& [kind, text, unused] :
         {std::tuple{RealCheckpoint::nvfp4, std::uint64_t{20825156824}, std::uint64_t{4 * 30971}},
          {RealCheckpoint::bf16, std::uint64_t{69321221376}, std::uint64_t{0}},
          {RealCheckpoint::fp8, std::uint64_t{35707978496}, std::uint64_t{0}}}) {
        TemporaryDirectory d;
        write_sparse_checkpoint(d.path(), real_inventory(kind), 3);
        write_file(d / "config.json", real_config_json(kind));
        write_file(d / "generation_config.json", real_generation_config_json());
        if (const auto hf = real_hf_quant_config_json(kind); !hf.empty())
            write_file(d / "hf_quant_config.json", hf);
        const Checkpoint checkpoint = Checkpoint::open(d.path());
        const ModelConfig config = load_config(d.path());
        const Inventory inventory(checkpoint, config);
        BOOST_TEST(inventory.text_bytes() == text - unused);
        BOOST_TEST(inventory.text_bytes() + inventory.skipped_bytes() == checkpoint.tensor_bytes());
        BOOST_TEST(inventory.layers().size() == 40u);
        const ModelSizes sizes = inventory.sizes();
        BOOST_TEST((sizes.layers[3].kind == LayerKind::attention));
        BOOST_TEST((sizes.head.format == (kind == RealCheckpoint::nvfp4 ? Format::nvfp4 : Format::bf16)));
        BOOST_TEST((sizes.layers[0][Role::in_qkv].format == (kind == RealCheckpoint::nvfp4 ? Format::fp8_row
                                                             : kind == RealCheckpoint::fp8 ? Format::fp8_block
                                                                                           : Format::bf16)));
    }
}

BOOST_AUTO_TEST_CASE(a_config_that_asks_for_millions_of_tensors_is_refused_at_once) {
    const TemporaryDirectory d;
    std::ifstream file(FTMPI_DATA "/tiny-nvfp4/config.json");
    std::string config(std::istreambuf_iterator<char>(file), {});
    const auto set = [&](const std::string& pattern, const std::string& text) {
        BOOST_TEST_REQUIRE(std::regex_search(config, std::regex(pattern)), pattern);
        config = std::regex_replace(config, std::regex(pattern), text);
    };
    std::string kinds;
    for (int i = 0; i < 4096; ++i)
        kinds += std::string(i ? "," : "") + (i % 4 == 3 ? "\"full_attention\"" : "\"linear_attention\"");
    set(R"("layer_types": \[[^\]]*\])", "\"layer_types\": [" + kinds + "]");
    set(R"("num_hidden_layers": \d+)", "\"num_hidden_layers\": 4096");
    set(R"("num_experts": \d+)", "\"num_experts\": 16384");
    set(R"("tie_word_embeddings": false)", "\"tie_word_embeddings\": true");
    std::ofstream(d.path() / "config.json") << config;
    write_safetensors(d.path() / "model.safetensors", {});
    const auto before = std::chrono::steady_clock::now();
    const Checkpoint checkpoint = Checkpoint::open(d.path());
    const auto message = refusal(Exit::bad_input, [&] { Inventory(checkpoint, load_config(d.path())); });
    BOOST_TEST(message.find("missing tensor") != std::string::npos, message);
    // All of them would take minutes and tens of gigabytes.
    BOOST_TEST((std::chrono::steady_clock::now() - before < std::chrono::seconds(20)));
}
