// config.json and its companions: what is read, and what is refused rather than guessed.
#define BOOST_TEST_MODULE config
#include "config.hpp"

#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include "error.hpp"
#include "safetensors_writer.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;
namespace fs = std::filesystem;

namespace {

const std::string text_keys =
    R"("attention_bias":false,"attn_output_gate":true,"eos_token_id":263,"full_attention_interval":4,"head_dim":16,
"hidden_act":"silu","hidden_size":64,"layer_types":["linear_attention","linear_attention","linear_attention","full_attention"],
"linear_conv_kernel_dim":4,"linear_key_head_dim":16,"linear_num_key_heads":4,"linear_num_value_heads":8,"linear_value_head_dim":16,
"max_position_embeddings":4096,"moe_intermediate_size":64,"num_attention_heads":4,"num_experts":4,"num_experts_per_tok":2,
"num_hidden_layers":4,"num_key_value_heads":2,"partial_rotary_factor":0.25,"rms_norm_eps":1e-06,
"rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],"partial_rotary_factor":0.25,"rope_theta":10000000,"rope_type":"default"},
"shared_expert_intermediate_size":64,"tie_word_embeddings":false,"vocab_size":320)";

const std::string outer =
    R"({"model_type":"qwen3_5_moe","tie_word_embeddings":false,"text_config":{"model_type":"qwen3_5_moe_text",)" +
    text_keys + "}}";

/// The keys of Qwen3-30B-A3B.
const std::string qwen3_moe =
    R"({"architectures":["Qwen3MoeForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,
"decoder_sparse_step":1,"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,
"intermediate_size":6144,"max_position_embeddings":40960,"max_window_layers":48,"mlp_only_layers":[],"model_type":"qwen3_moe",
"moe_intermediate_size":768,"norm_topk_prob":true,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,
"num_hidden_layers":48,"num_key_value_heads":4,"output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,
"rope_theta":1000000.0,"router_aux_loss_coef":0.001,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
"use_cache":true,"use_sliding_window":false,"vocab_size":151936})";

/// `text` with the one occurrence of `from` replaced; a test that edits nothing would prove nothing.
std::string edited(std::string text, const std::string& from, const std::string& to) {
    const auto at = text.find(from);
    BOOST_REQUIRE_MESSAGE(at != std::string::npos, "the sample has no " << from);
    return text.replace(at, from.size(), to);
}

std::string with_quantization(const std::string& object) {
    return outer.substr(0, outer.size() - 1) + ",\"quantization_config\":" + object + "}";
}

struct Folder {
    TemporaryDirectory directory;

    ModelConfig load(const std::string& config) const {
        write_file(directory / "config.json", config);
        return load_config(directory.path());
    }

    void expect_refused(const std::string& config, const std::vector<std::string>& words) const {
        std::string message;
        try {
            load(config);
        } catch (const Error& e) {
            BOOST_TEST((e.code() == Exit::bad_input), e.what());
            message = std::string(e.what()) + " | " + e.hint();
        }
        BOOST_TEST(!message.empty(), "was accepted; expected a message with \"" << words.front() << '"');
        for (const auto& word : words)
            BOOST_TEST(message.find(word) != std::string::npos,
                       "\"" << message << "\" does not say \"" << word << '"');
    }
};

bool warns(const ModelConfig& config, const std::string& word) {
    for (const auto& w : config.warnings)
        if (w.find(word) != std::string::npos) return true;
    return false;
}

using Ids = std::vector<std::int32_t>;

}  // namespace

BOOST_FIXTURE_TEST_CASE(every_key_is_read, Folder) {
    for (const bool flat : {false, true}) {
        const auto c = load(flat ? R"({"model_type":"qwen3_5_moe_text",)" + text_keys + "}" : outer);
        BOOST_TEST(c.model_type == (flat ? "qwen3_5_moe_text" : "qwen3_5_moe"));
        BOOST_TEST(c.hidden == 64);
        BOOST_TEST(c.vocab == 320);
        BOOST_TEST((c.layers == std::vector<LayerKind>{LayerKind::delta_net, LayerKind::delta_net,
                                                       LayerKind::delta_net, LayerKind::attention}));
        BOOST_TEST(c.query_heads == 4);
        BOOST_TEST(c.kv_heads == 2);
        BOOST_TEST(c.head_dim == 16);
        BOOST_TEST(c.rotary_dim == 4);
        BOOST_TEST(c.rope_theta == 1e7);
        BOOST_TEST(c.key_heads == 4);
        BOOST_TEST(c.value_heads == 8);
        BOOST_TEST(c.key_dim == 16);
        BOOST_TEST(c.value_dim == 16);
        BOOST_TEST(c.conv_taps == 4);
        BOOST_TEST(c.groups() == 2);
        BOOST_TEST(c.key_channels() == 64);
        BOOST_TEST(c.value_channels() == 128);
        BOOST_TEST(c.experts == 4);
        BOOST_TEST(c.top_k == 2);
        BOOST_TEST(c.expert_width == 64);
        BOOST_TEST(c.shared_width == 64);
        BOOST_TEST(c.eps == 1e-6f);
        BOOST_TEST(!c.tied_embeddings);
        BOOST_TEST(c.max_positions == 4096);
        BOOST_TEST(c.stop_ids == Ids{263}, boost::test_tools::per_element());
        BOOST_TEST(c.quantization.empty());
        BOOST_TEST(c.sha256.size() == 64u);
        BOOST_TEST(c.warnings.empty());
    }
    BOOST_TEST(load(outer).sha256 != load(outer + " ").sha256);
}

BOOST_FIXTURE_TEST_CASE(nothing_about_the_architecture_is_assumed, Folder) {
    BOOST_CHECK_THROW(load_config(directory.path()), Error);
    expect_refused(edited(outer, "\"qwen3_5_moe\"", "\"llama\""),
                   {"config.json: model_type is \"llama\"", "known: qwen3_5_moe, qwen3_5_moe_text"});
    expect_refused(edited(outer, "\"model_type\":\"qwen3_5_moe\",", ""), {"model_type is missing"});
    expect_refused(edited(outer, "text_config", "other_config"), {"text_config is missing"});
    expect_refused(edited(outer, "qwen3_5_moe_text", "qwen3_next"), {"text_config.model_type", "qwen3_next"});
    for (const std::string key :
         {"\"head_dim\":16,", "\"hidden_act\":\"silu\",", "\"hidden_size\":64,",
          "\"linear_conv_kernel_dim\":4,", "\"linear_key_head_dim\":16,", "\"linear_num_key_heads\":4,",
          "\"linear_num_value_heads\":8,", "\"linear_value_head_dim\":16,",
          "\"max_position_embeddings\":4096,", "\"moe_intermediate_size\":64,", "\"num_attention_heads\":4,",
          "\"num_experts\":4,", "\"num_experts_per_tok\":2,", "\"num_hidden_layers\":4,",
          "\"num_key_value_heads\":2,", "\"rms_norm_eps\":1e-06,", "\"shared_expert_intermediate_size\":64,",
          "\"eos_token_id\":263,"}) {
        const auto name = key.substr(1, key.find('"', 1) - 1);
        BOOST_TEST_CONTEXT(name) {
            expect_refused(edited(outer, key, ""), {"config.json: text_config." + name + " is missing"});
        }
    }
    expect_refused(edited(outer, "\"head_dim\":16", "\"head_dim\":null"),
                   {"text_config.head_dim is missing"});
    // What says of a model only that it is no variant may be absent; so may what the computation does not
    // use.
    for (const std::string key : {"\"attn_output_gate\":true,", "\"attention_bias\":false,"})
        BOOST_TEST(load(edited(outer, key, "")).warnings.empty(), key);
    for (const char* key :
         {"\"norm_topk_prob\":true,", "\"use_sliding_window\":false,", "\"mamba_ssm_dtype\":\"float32\","}) {
        BOOST_TEST(outer.find(key) == std::string::npos);
        BOOST_TEST(
            load(edited(outer, "\"head_dim\":16,", key + std::string("\"head_dim\":16,"))).warnings.empty(),
            key);
    }
}

BOOST_FIXTURE_TEST_CASE(qwen3_moe_has_attention_and_routed_experts_only, Folder) {
    const auto c = load(qwen3_moe);
    BOOST_TEST(c.model_type == "qwen3_moe");
    BOOST_TEST(c.hidden == 2048);
    BOOST_TEST(c.vocab == 151936);
    BOOST_TEST((c.layers == std::vector<LayerKind>(48, LayerKind::attention)));
    BOOST_TEST(c.query_heads == 32);
    BOOST_TEST(c.kv_heads == 4);
    BOOST_TEST(c.head_dim == 128);
    BOOST_TEST(c.rotary_dim == 128);
    BOOST_TEST(c.rope_theta == 1e6);
    BOOST_TEST(c.experts == 128);
    BOOST_TEST(c.top_k == 8);
    BOOST_TEST(c.expert_width == 768);
    BOOST_TEST(c.max_positions == 40960);
    BOOST_TEST(c.stop_ids == Ids{151645}, boost::test_tools::per_element());
    BOOST_TEST((c.key_heads == 0 && c.value_heads == 0 && c.key_dim == 0 && c.value_dim == 0));
    BOOST_TEST((c.conv_taps == 0 && c.groups() == 0 && c.shared_width == 0));
    BOOST_TEST(c.warnings.empty());
}

BOOST_FIXTURE_TEST_CASE(qwen3_moe_needs_its_own_keys, Folder) {
    for (const std::string key :
         {"\"head_dim\":128,", "\"hidden_act\":\"silu\",", "\"hidden_size\":2048,",
          "\"max_position_embeddings\":40960,", "\"moe_intermediate_size\":768,", "\"norm_topk_prob\":true,",
          "\"num_attention_heads\":32,", "\"num_experts\":128,", "\"num_experts_per_tok\":8,",
          "\"num_hidden_layers\":48,", "\"num_key_value_heads\":4,", "\"rms_norm_eps\":1e-06,",
          "\"tie_word_embeddings\":false,", "\"eos_token_id\":151645,"})
        expect_refused(edited(qwen3_moe, key, ""),
                       {"config.json: " + key.substr(1, key.find('"', 1) - 1) + " is missing"});
    expect_refused(edited(qwen3_moe, "\"rope_theta\":1000000.0,", ""), {"rope_theta is missing"});
    for (const std::string key :
         {"\"attention_bias\":false,", "\"decoder_sparse_step\":1,", "\"mlp_only_layers\":[],",
          "\"rope_scaling\":null,", "\"intermediate_size\":6144,", "\"use_sliding_window\":false,"})
        BOOST_TEST(load(edited(qwen3_moe, key, "")).warnings.empty(), key);

    const std::string theta = "\"rope_theta\":1000000.0";
    const std::string nested = "\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"default\"}";
    BOOST_TEST(load(edited(qwen3_moe, theta, nested)).rope_theta == 1e6);
    BOOST_TEST(load(edited(qwen3_moe, theta, theta + ",\"partial_rotary_factor\":1.0")).rotary_dim == 128);
    // As Qwen3-Coder says it.
    const std::string coder =
        "\"shared_expert_intermediate_size\":0,\"qkv_bias\":false,\"use_qk_norm\":true,";
    BOOST_TEST(load(edited(qwen3_moe, "\"attention_bias\":false,", coder)).shared_width == 0);
    const auto listed = edited(edited(qwen3_moe, "\"num_hidden_layers\":48", "\"num_hidden_layers\":2"),
                               theta, theta + ",\"layer_types\":[\"full_attention\",\"full_attention\"]");
    BOOST_TEST(load(listed).layers.size() == 2u);
    const auto companion = edited(
        qwen3_moe, theta,
        theta +
            R"(,"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head"]})");
    BOOST_TEST(load(companion).quantization == "modelopt NVFP4");

    const struct {
        std::string from, to, words;
    } table[] = {
        {"\"norm_topk_prob\":true", "\"norm_topk_prob\":false", "norm_topk_prob is false"},
        {"\"mlp_only_layers\":[]", "\"mlp_only_layers\":[3]", "mlp_only_layers is not empty"},
        {"\"decoder_sparse_step\":1", "\"decoder_sparse_step\":2", "decoder_sparse_step is not 1"},
        {"\"attention_bias\":false", "\"attention_bias\":true", "attention_bias is true"},
        {"\"attention_bias\":false", "\"attn_output_gate\":true", "attn_output_gate is true"},
        {"\"attention_bias\":false", "\"qkv_bias\":true", "qkv_bias is true"},
        {"\"attention_bias\":false", "\"use_qk_norm\":false", "use_qk_norm is false"},
        {"\"use_sliding_window\":false", "\"use_sliding_window\":true", "use_sliding_window is true"},
        {"\"intermediate_size\":6144", "\"shared_expert_intermediate_size\":768",
         "shared_expert_intermediate_size is not 0"},
        {"\"rope_scaling\":null", "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}",
         "rope_scaling.rope_type is \"yarn\""},
        {"\"rope_scaling\":null", "\"partial_rotary_factor\":0.5", "partial_rotary_factor is not 1"},
        {"\"head_dim\":128", "\"head_dim\":127", "head_dim is odd"},
        {"\"num_key_value_heads\":4", "\"num_key_value_heads\":5",
         "is not a multiple of num_key_value_heads"},
        {"\"attention_bias\":false", "\"layer_types\":[\"linear_attention\"]",
         "layer_types holds \"linear_attention\"; known: full_attention"},
    };
    for (const auto& row : table) BOOST_TEST_CONTEXT(row.to) {
            expect_refused(edited(qwen3_moe, row.from, row.to), {"config.json", row.words});
        }
}

BOOST_FIXTURE_TEST_CASE(values_are_checked, Folder) {
    const struct {
        std::string from, to, words;
    } table[] = {
        {"\"hidden_size\":64", "\"hidden_size\":64.0", "text_config.hidden_size is not an integer"},
        {"\"hidden_size\":64", "\"hidden_size\":6.4e1", "text_config.hidden_size is not an integer"},
        {"\"hidden_size\":64", "\"hidden_size\":\"64\"", "is not an integer"},
        {"\"hidden_size\":64", "\"hidden_size\":0", "is 0, not between 1 and"},
        {"\"hidden_size\":64", "\"hidden_size\":-64", "is -64"},
        {"\"hidden_size\":64", "\"hidden_size\":18446744073709551615", "is far too large"},
        {"\"vocab_size\":320", "\"vocab_size\":9007199254740993", "is 9007199254740993"},
        {"\"num_experts\":4", "\"num_experts\":1", "num_experts_per_tok 2 is more than num_experts 1"},
        {"\"num_key_value_heads\":2", "\"num_key_value_heads\":3",
         "num_attention_heads 4 is not a multiple of text_config.num_key_value_heads 3"},
        {"\"linear_num_key_heads\":4", "\"linear_num_key_heads\":3",
         "linear_num_value_heads 8 is not a multiple"},
        {"\"linear_num_value_heads\":8", "\"linear_num_value_heads\":2",
         "linear_num_value_heads 2 is not a multiple"},
        {"\"hidden_act\":\"silu\"", "\"hidden_act\":\"gelu\"", "hidden_act is \"gelu\""},
        {"\"attn_output_gate\":true", "\"attn_output_gate\":false", "attn_output_gate is false"},
        {"\"attention_bias\":false", "\"attention_bias\":true", "attention_bias is true"},
        {"\"attention_bias\":false", "\"attention_bias\":0", "is neither true nor false"},
        {"\"attention_bias\":false", "\"norm_topk_prob\":false", "norm_topk_prob is false"},
        {"\"attention_bias\":false", "\"mlp_only_layers\":[1]", "mlp_only_layers is not empty"},
        {"\"attention_bias\":false", "\"decoder_sparse_step\":2", "decoder_sparse_step is not 1"},
        {"\"rms_norm_eps\":1e-06", "\"rms_norm_eps\":0", "rms_norm_eps is not between"},
        {"\"rms_norm_eps\":1e-06", "\"rms_norm_eps\":1e-60", "rms_norm_eps is not between"},
        {"\"num_hidden_layers\":4", "\"num_hidden_layers\":5", "layer_types has 4 entries for 5 layers"},
        {"[\"linear_attention\"", "[\"sliding_attention\"", "layer_types holds \"sliding_attention\""},
        {"[\"linear_attention\"", "[3", "layer_types holds something that is not a string"},
        {"\"eos_token_id\":263", "\"eos_token_id\":320", "not an id below vocab_size 320"},
        {"\"eos_token_id\":263", "\"eos_token_id\":-1", "not an id below vocab_size 320"},
        {"\"eos_token_id\":263", "\"eos_token_id\":[]", "is an empty list"},
        {"\"hidden_size\":64", "\"hidden_size\":64,\"hidden_size\":128", "has the key \"hidden_size\" twice"},
        {"\"hidden_size\":64", "\"hidden_size\":64,", "is not valid JSON"},
        {"{\"model_type\"", "\xef\xbb\xbf{\"model_type\"", "byte order mark"},
    };
    for (const auto& row : table) BOOST_TEST_CONTEXT(row.to) {
            expect_refused(edited(outer, row.from, row.to), {"config.json", row.words});
        }
    expect_refused("[]", {"does not hold a JSON object"});
    expect_refused("", {"is not valid JSON"});
    expect_refused(std::string(100'000, '['), {"is not valid JSON"});
    fs::remove(directory / "config.json");
    BOOST_REQUIRE_EQUAL(::mkfifo((directory / "config.json").c_str(), 0600), 0);
    BOOST_CHECK_THROW(load_config(directory.path()), Error);
    fs::remove(directory / "config.json");

    auto one = edited(outer, "\"num_experts\":4", "\"num_experts\":1");
    one = edited(one, "\"num_experts_per_tok\":2", "\"num_experts_per_tok\":1");
    BOOST_TEST(load(one).experts == 1);
}

BOOST_FIXTURE_TEST_CASE(layers_follow_the_list_or_the_interval, Folder) {
    const std::string list =
        "\"layer_types\":[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"full_attention\"]"
        ",";
    const auto by_interval = edited(outer, list, "");
    BOOST_TEST((load(by_interval).layers == load(outer).layers));
    expect_refused(edited(by_interval, "\"full_attention_interval\":4,", ""),
                   {"layer_types is missing, and so is full_attention_interval"});
    const auto other = load(edited(outer, "\"full_attention_interval\":4", "\"full_attention_interval\":2"));
    BOOST_TEST((other.layers == load(outer).layers));
    BOOST_TEST(warns(other, "full_attention_interval"));
}

BOOST_FIXTURE_TEST_CASE(rotary_embedding_has_no_default, Folder) {
    const std::string nested_theta = "\"rope_theta\":10000000,";
    const auto without = edited(outer, nested_theta, "");
    BOOST_TEST(
        load(edited(without, "\"head_dim\":16", "\"head_dim\":16,\"rope_theta\":10000000.0")).rope_theta ==
        1e7);
    expect_refused(without, {"rope_theta is missing"});
    expect_refused(edited(outer, "\"head_dim\":16", "\"head_dim\":16,\"rope_theta\":10000"),
                   {"rope_theta", "contradict each other"});
    expect_refused(edited(outer, "10000000", "-1"), {"rope_theta is not between"});
    for (const std::string type : {"yarn", "linear", "dynamic"}) {
        expect_refused(
            edited(outer, "\"rope_type\":\"default\"", "\"rope_type\":\"" + type + "\",\"factor\":4.0"),
            {"rope_parameters.rope_type is \"" + type});
        expect_refused(
            edited(outer, "\"head_dim\":16", "\"head_dim\":16,\"rope_scaling\":{\"type\":\"" + type + "\"}"),
            {"rope_scaling.type is \"" + type});
    }
    // Beside text_config the same holds.
    const auto at_top = [&](const std::string& member) {
        return edited(outer, "{\"model_type\"", "{" + member + ",\"model_type\"");
    };
    for (const std::string key : {"rope_scaling", "rope_parameters"}) {
        const auto with = [&](const std::string& members) {
            return at_top("\"" + key + "\":{" + members + "}");
        };
        for (const std::string type : {"type", "rope_type"})
            expect_refused(with("\"" + type + "\":\"yarn\",\"factor\":4.0"),
                           {key + "." + type + " is \"yarn"});
        expect_refused(with("\"rope_theta\":10000"), {key + ".rope_theta", "contradict each other"});
        expect_refused(with("\"partial_rotary_factor\":0.5"),
                       {key + ".partial_rotary_factor", "contradict each other"});
        BOOST_TEST(load(with("\"rope_type\":\"default\",\"rope_theta\":1e7,\"partial_rotary_factor\":0.25"))
                       .rotary_dim == 4);
    }
    expect_refused(at_top("\"rope_theta\":10000"), {"rope_theta", "contradict each other"});
    BOOST_TEST(load(at_top("\"rope_scaling\":null,\"rope_theta\":10000000")).rope_theta == 1e7);
    const std::string factor = "\"partial_rotary_factor\":0.25,";
    const auto only_nested = edited(outer, factor, "");
    BOOST_TEST(load(only_nested).rotary_dim == 4);
    const auto none = edited(only_nested, factor, "");
    expect_refused(none, {"partial_rotary_factor is missing"});
    BOOST_TEST(
        load(edited(none, "\"head_dim\":16", "\"head_dim\":16,\"partial_rotary_factor\":0.5")).rotary_dim ==
        8);
    expect_refused(edited(outer, factor, "\"partial_rotary_factor\":0.5,"),
                   {"partial_rotary_factor", "contradict"});
    for (const std::string bad : {"0.3", "0", "1.5", "-0.25", "0.0625"})
        expect_refused(edited(none, "\"head_dim\":16", "\"head_dim\":16,\"partial_rotary_factor\":" + bad),
                       {"is not an even number of channels"});
}

BOOST_FIXTURE_TEST_CASE(tied_embeddings_are_said_in_one_place_or_two, Folder) {
    const std::string root_key = "\"tie_word_embeddings\":false,\"text_config\"",
                      text_key = "\"tie_word_embeddings\":false,\"vocab_size\"";
    const auto only_text = edited(outer, root_key, "\"text_config\"");
    const auto neither = edited(only_text, text_key, "\"vocab_size\"");
    BOOST_TEST(!load(only_text).tied_embeddings);
    BOOST_TEST(
        load(edited(only_text, text_key, "\"tie_word_embeddings\":true,\"vocab_size\"")).tied_embeddings);
    BOOST_TEST(load(edited(neither, "\"text_config\"", "\"tie_word_embeddings\":true,\"text_config\""))
                   .tied_embeddings);
    expect_refused(edited(outer, text_key, "\"tie_word_embeddings\":true,\"vocab_size\""),
                   {"tie_word_embeddings", "contradict each other"});
    expect_refused(neither, {"tie_word_embeddings is missing"});
}

BOOST_FIXTURE_TEST_CASE(every_file_may_name_stop_ids, Folder) {
    const auto generation = directory / "generation_config.json",
               tokenizer = directory / "tokenizer_config.json";
    const auto stops = [&](const std::string& config, const Ids& ids, const std::string& places) {
        const auto c = load(config);
        BOOST_TEST(c.stop_ids == ids, boost::test_tools::per_element());
        std::string initials;  // of the files
        for (const auto place : c.stop_places) initials += place[0];
        BOOST_TEST(initials == places);
    };
    write_file(generation, R"({"eos_token_id":[261,263,261],"temperature":1.0})");
    stops(outer, {261, 263}, "gg");
    write_file(generation, R"({"eos_token_id":262})");
    stops(outer, {262, 263}, "gc");
    write_file(generation, "{}");
    stops(outer, {263}, "c");
    const auto nowhere = edited(outer, "\"eos_token_id\":263,", "");
    const auto at_root = edited(nowhere, "{\"model_type\"", "{\"eos_token_id\":[260,263],\"model_type\"");
    stops(at_root, {260, 263}, "cc");
    for (const std::string bad : {R"({"eos_token_id":999})", R"({"eos_token_id":"263"})",
                                  R"({"eos_token_id":[263.0]})", R"({"eos_token_id":)"}) {
        write_file(generation, bad);
        expect_refused(outer, {"generation_config.json"});
    }
    fs::remove(generation);

    // The tokenizer knows the id of this one.
    for (const std::string eos : {R"("<|im_end|>")", R"({"content":"<|im_end|>","special":true})"}) {
        write_file(tokenizer, "{\"eos_token\":" + eos + "}");
        BOOST_TEST(load(nowhere).stop_token == "<|im_end|>");
        BOOST_TEST(load(outer).stop_token == "<|im_end|>");
        stops(outer, {263}, "c");
    }
    for (const std::string none : {"{}", R"({"eos_token":null})"}) {
        write_file(tokenizer, none);
        BOOST_TEST(load(outer).stop_token.empty());
        expect_refused(nowhere, {"eos_token_id is missing", "tokenizer_config.json names no eos_token"});
    }
    write_file(tokenizer, R"({"eos_token":3})");
    expect_refused(outer, {"tokenizer_config.json", "eos_token is not a string"});
}

BOOST_FIXTURE_TEST_CASE(sampling_that_the_model_asks_for, Folder) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95})",
         "--temperature 0.6 --top-k 20 --top-p 0.95"},
        {R"({"do_sample":true})", "--temperature 1"},
        {R"({"do_sample":false,"temperature":0.6})", ""},
        {R"({"temperature":0.6})", ""}};
    for (const auto& [text, options] : cases) {
        write_file(directory / "generation_config.json", text);
        BOOST_TEST(load(outer).sampling == options);
    }
}

BOOST_FIXTURE_TEST_CASE(quantization_names_are_known_or_refused, Folder) {
    const struct {
        std::string object, line;
    } accepted[] = {
        {R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128]})",
         "fp8 128x128"},
        {R"({"quant_method":"fp8"})", "fp8"},
        {R"({"quant_method":"modelopt","quant_algo":"FP8"})", "modelopt FP8"},
        {R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":16,"producer":{"name":"modelopt","version":"0.37.0"}})",
         "modelopt NVFP4 (modelopt 0.37.0)"},
        {R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","quantized_layers":{"model.layers.0.mlp.experts":{"quant_algo":"W4A16_NVFP4","group_size":16},
             "model.layers.3.self_attn.q_proj":{"quant_algo":"FP8"}}})",
         "modelopt MIXED_PRECISION"},
        {R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","kv_cache_scheme":null,"config_groups":{"group_0":{"targets":["Linear"],
             "weights":{"num_bits":4,"type":"float","group_size":16,"strategy":"tensor_group"},"input_activations":null}},"ignore":["lm_head"]})",
         "compressed-tensors nvfp4-pack-quantized"},
        {R"({"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]})", "mxfp4"},
    };
    for (const auto& row : accepted) {
        BOOST_TEST_CONTEXT(row.object) {
            const auto config = load(with_quantization(row.object));
            BOOST_TEST(config.quantization == row.line);
            BOOST_TEST(config.warnings.empty());
        }
    }
    const auto mixed = load(with_quantization(accepted[4].object));
    BOOST_TEST(mixed.quantized_layers.at("model.layers.0.mlp.experts") == "W4A16_NVFP4");
    BOOST_TEST(mixed.quantized_layers.at("model.layers.3.self_attn.q_proj") == "FP8");

    const struct {
        std::string object, words;
    } refused[] = {
        {R"({"quant_method":"awq"})", "quantization_config.quant_method is \"awq\""},
        {R"({"quant_method":"modelopt","quant_algo":"FP8_NVFP4_SUPER"})",
         "quant_algo is \"FP8_NVFP4_SUPER\""},
        {R"({"quant_method":"modelopt"})", "quant_algo is missing"},
        {R"({"quant_algo":"NVFP4"})", "quant_method is missing"},
        {R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","quantized_layers":{"m.q_proj":{"quant_algo":"INT4_AWQ"}}})",
         "quantized_layers.m.q_proj.quant_algo is \"INT4_AWQ\""},
        {R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","quantized_layers":{"m.q_proj":{"quant_algo":"MIXED_PRECISION"}}})",
         "quantized_layers.m.q_proj.quant_algo"},
        {R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","quantized_layers":{"m.q_proj":{}}})",
         "m.q_proj.quant_algo is missing"},
        {R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":32})", "group_size is 32"},
        {R"({"quant_method":"fp8","weight_block_size":[64,128]})", "weight_block_size is not [128, 128]"},
        {R"({"quant_method":"fp8","fmt":"e5m2"})", "fmt is \"e5m2\""},
        {R"({"quant_method":"compressed-tensors","format":"pack-quantized"})",
         "format is \"pack-quantized\""},
        {R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"g":{"weights":{"num_bits":4,"type":"int"}}}})",
         "config_groups.g.weights.type is \"int\""},
        {R"({"quant_method":"modelopt","quant_algo":"NVFP4","scale_layout":"swizzled_128x4"})",
         "layout not sliceable"},
        {R"({"quant_method":"modelopt","quant_algo":"NVFP4","swizzle_scales":true})", "layout not sliceable"},
        {R"({"quant_method":"modelopt","quant_algo":"NVFP4","export":{"interleaved":1}})",
         "layout not sliceable"},
        {R"([])", "quantization_config is not an object"},
    };
    for (const auto& row : refused) BOOST_TEST_CONTEXT(row.object) {
            expect_refused(with_quantization(row.object), {"config.json", row.words});
        }
    BOOST_TEST(
        load(
            with_quantization(
                R"({"quant_method":"modelopt","quant_algo":"NVFP4","swizzle_scales":false,"scale_layout":"row_major"})"))
            .warnings.empty());
}

BOOST_FIXTURE_TEST_CASE(hf_quant_config_is_read_beside_config, Folder) {
    const auto companion = [&](const std::string& quantization) {
        write_file(
            directory / "hf_quant_config.json",
            R"({"producer":{"name":"modelopt","version":"0.44.0"},"quantization":)" + quantization + "}");
    };
    companion(R"({"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8","exclude_modules":["lm_head"]})");
    auto config = load(outer);
    BOOST_TEST(config.quantization == "modelopt NVFP4 (modelopt 0.44.0)");
    BOOST_TEST(warns(config, "kv_cache_quant_algo \"FP8\""));

    const std::string mixed =
        R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","ignore":["lm_head","mtp*"],"quantized_layers":{"m.a":{"quant_algo":"FP8"}}})";
    companion(
        R"({"quant_algo":"MIXED_PRECISION","kv_cache_quant_algo":null,"quantized_layers":{"m.a":{"quant_algo":"FP8"},"m.b":{"quant_algo":"NVFP4"}}})");
    config = load(with_quantization(mixed));
    BOOST_TEST(config.quantized_layers.size() == 2u);
    BOOST_TEST(config.warnings.empty());
    companion(R"({"quant_algo":"MIXED_PRECISION","quantized_layers":{"m.a":{"quant_algo":"NVFP4"}}})");
    expect_refused(with_quantization(mixed),
                   {"config.json says FP8", "hf_quant_config.json says NVFP4", "m.a"});
    companion(R"({"quant_algo":"NVFP4"})");
    BOOST_TEST(warns(load(with_quantization(mixed)), "the tensors decide"));
    companion(R"({"quant_algo":"FP3"})");
    expect_refused(outer, {"hf_quant_config.json: quantization.quant_algo is \"FP3\""});
    write_file(directory / "hf_quant_config.json", "{}");
    expect_refused(outer, {"hf_quant_config.json: quantization is missing"});
}
