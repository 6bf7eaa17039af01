// Inputs that someone made to hurt: found by the fuzz targets (tests/fuzz) or by reading the code they run.
// Each is refused, or read, in time that grows no faster than its size, and what is said of it stays one
// line.
#define BOOST_TEST_MODULE hostile_input
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "config.hpp"
#include "digest.hpp"
#include "error.hpp"
#include "options.hpp"
#include "refusal.hpp"
#include "results.hpp"
#include "results/wire.hpp"
#include "results_samples.hpp"
#include "safetensors_writer.hpp"
#include "tokenizer_file.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

std::string many(std::size_t times, const std::string& text) {
    std::string out;
    out.reserve(times * text.size());
    for (std::size_t i = 0; i < times; ++i) out += text;
    return out;
}

/// The refusal, which must be safe to print.
std::string safe_refusal(Exit code, const std::function<void()>& call) {
    const auto text = refusal(code, call);
    BOOST_TEST(text == printable(text));
    return text;
}

bool says(const std::string& message, const std::string& part) {
    if (message.find(part) != std::string::npos) return true;
    BOOST_TEST_MESSAGE("\"" << message << "\" does not say \"" << part << "\"");
    return false;
}

/// Far above what a linear reader needs; one that is not takes minutes, or all of the stack.
void in_seconds(double most, const std::function<void()>& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    BOOST_TEST(seconds < most);
    BOOST_TEST_MESSAGE(seconds << " s");
}

Options parse(std::vector<std::string> arguments) {
    std::vector<const char*> argv = {"ftmpi"};
    for (const auto& argument : arguments) argv.push_back(argument.c_str());
    return parse_options(static_cast<int>(argv.size()), argv.data());
}

/// A flat config of one attention layer; `more` are further members.
std::string small_config(const std::string& more) {
    return R"({"model_type":"qwen3_5_moe_text","hidden_size":64,"vocab_size":1000000,"num_hidden_layers":1,
        "layer_types":["full_attention"],"num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"linear_num_key_heads":1,
        "linear_num_value_heads":1,"linear_key_head_dim":32,"linear_value_head_dim":32,"linear_conv_kernel_dim":4,"num_experts":4,
        "num_experts_per_tok":2,"moe_intermediate_size":32,"shared_expert_intermediate_size":32,"max_position_embeddings":128,
        "rms_norm_eps":1e-6,"rope_theta":10000,"partial_rotary_factor":0.5,"hidden_act":"silu","tie_word_embeddings":false)" +
           more + "}";
}

ModelConfig load(const std::string& config) {
    const TemporaryDirectory folder;
    write_file(folder / "config.json", config);
    return load_config(folder.path());
}

/// A journal of these records with the right checksums, as any program can write it.
std::string journal_of(const std::vector<std::string>& records) {
    std::string file = "ftmpi journal 1\n";
    std::uint64_t number = 0;
    const auto word = [](std::uint64_t n) { return std::string(reinterpret_cast<const char*>(&n), 8); };
    const auto check = [&](const std::string& bytes) {
        const auto digest = sha256(word(number) + bytes);
        return std::string(digest.begin(), digest.begin() + 8);
    };
    for (const auto& record : records) {
        file += word(record.size()) + check(word(record.size())) + check(record) + record;
        ++number;
    }
    return file;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(messages)

BOOST_AUTO_TEST_CASE(control_characters_are_written_out) {
    BOOST_TEST(printable("plain \xC3\xA9 text") == "plain \xC3\xA9 text");
    BOOST_TEST(printable("a\nb\x1b[2Jc\x7f") == "a\\x0ab\\x1b[2Jc\\x7f");
    BOOST_TEST(printable("\xC2\x9B"
                         "31m \xC2\xA9 \xC2") == "\\xc2\\x9b31m \xC2\xA9 \xC2");
    BOOST_TEST(printable(std::string(1, '\0')) == "\\x00");
    const Error error(Exit::failure, "one\nftmpi: error: two", "three\r");
    BOOST_TEST(error.what() == std::string("one\\x0aftmpi: error: two"));
    BOOST_TEST(error.hint() == "three\\x0d");
}

// A value of a file must not move the cursor of who reads the message, nor look like a message of its own.
BOOST_AUTO_TEST_CASE(values_of_files_cannot_forge_messages) {
    const std::string escape = R"(\u001b[2J\nftmpi: all well\u009b1m)";
    BOOST_TEST(says(safe_refusal(Exit::bad_input, [&] { load(R"({"model_type":")" + escape + "\"}"); }),
                    "\\x1b[2J\\x0aftmpi"));
    TokenizerFile tokenizer;
    tokenizer.normalizer = R"({"type": ")" + escape + "\"}";
    BOOST_TEST(says(safe_refusal(Exit::bad_input, [&] { tokenizer.load(); }), "\\x1b[2J\\x0aftmpi"));
    BOOST_TEST(says(safe_refusal(Exit::usage, [] { parse({"--\x1b[2J"}); }), "\\x1b[2J"));

    const TemporaryDirectory folder;
    write_raw_safetensors(folder / "model.safetensors",
                          "{\"a\xC2\x9B\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    BOOST_TEST(
        says(safe_refusal(Exit::bad_input, [&] { Checkpoint::open(folder.path()); }), "control character"));
    write_raw_safetensors(folder / "model.safetensors",
                          R"({"visual.a":{"dtype":"\u001b\u009b","shape":[0],"data_offsets":[0,0]}})");
    const auto checkpoint = Checkpoint::open(folder.path());
    BOOST_REQUIRE(checkpoint.warnings().size() == 1u);
    BOOST_TEST(checkpoint.warnings()[0] == printable(checkpoint.warnings()[0]));

    const auto config = load(
        small_config(R"(,"eos_token_id":1,"quantization_config":{"quant_method":"modelopt","quant_algo":"FP8",
        "kv_cache_quant_algo":")" +
                     escape + R"(","producer":{"name":")" + escape + R"("},"ignore":["a\u001b"]})"));
    BOOST_REQUIRE(config.warnings.size() == 1u);
    BOOST_TEST(config.warnings[0] == printable(config.warnings[0]));
    BOOST_TEST(config.quantization == printable(config.quantization));
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(configurations)

BOOST_AUTO_TEST_CASE(long_lists_are_read_in_linear_time) {
    constexpr int count = 200'000;
    std::string ids, ignore, layers;
    for (int i = 0; i < count; ++i) {
        const auto n = std::to_string(i), comma = std::string(i ? "," : "");
        ids += comma + n;
        ignore += comma + "\"m" + n + "\"";
        layers += comma + "\"m" + n + R"(":{"quant_algo":"FP8"})";
    }
    in_seconds(20, [&] {
        const auto config = load(small_config(",\"eos_token_id\":[" + ids +
                                              R"(],"quantization_config":{"quant_method":"modelopt",
            "quant_algo":"MIXED_PRECISION","ignore":[)" +
                                              ignore + "],\"quantized_layers\":{" + layers + "}}"));
        BOOST_TEST(config.stop_ids.size() == static_cast<std::size_t>(count));
        BOOST_TEST(config.quantized_layers.size() == static_cast<std::size_t>(count));
    });
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(tokenizers)

BOOST_AUTO_TEST_CASE(no_pattern_takes_more_than_linear_time) {
    const std::string text = std::string(300'000, 'a');
    for (const std::string pattern :
         {"a*[bc]", "(?:a|aa)*c", "(a+)+c", "a{1,50}a{1,50}a{1,50}c", "(?=.*x)a", "(?:(?=.*x)a?b?){0,100}c",
          "(?:.*?x|a*y)", "(?!a*x)b", "(?!a*x)a", "(?<=b)a|a*a*a*c", "(?=a{400})b"}) {
        TokenizerFile file;
        file.pattern = pattern;
        const auto tokenizer = file.load();
        in_seconds(20, [&] {
            try {
                std::string all;
                for (const auto id : tokenizer.encode(text)) all += tokenizer.bytes(id);
                BOOST_TEST((all == text), pattern);
            } catch (const Error& e) { BOOST_TEST(says(e.what(), "more than linear time")); }
        });
    }
}

// What the search does where a place must be tried alone gives the same pieces.
BOOST_AUTO_TEST_CASE(pieces_longer_than_a_window) {
    TokenizerFile file;
    file.pattern = "a+b|c[ac]*d|a";
    const auto tokenizer = file.load();
    const std::string run(3'000, 'a');
    // The run ends with b: one piece, so its last two letters are joined. Before c there is no b: every a is
    // a piece.
    const auto joined = tokenizer.encode(run + "b");
    BOOST_TEST((joined.size() == run.size() && joined.back() == 256));
    BOOST_TEST(tokenizer.encode(std::string(50, 'a') + "c").size() == 51u);
    const auto nested = tokenizer.encode("c" + run + "dab");
    BOOST_TEST((nested.size() == run.size() + 3 && nested.back() == 256));
}

BOOST_AUTO_TEST_CASE(added_tokens_have_a_longest_length) {
    TokenizerFile file;
    file.added = added_token(300, std::string(1024, 'a'));
    in_seconds(20, [&] {
        const auto tokenizer = file.load();
        BOOST_TEST(tokenizer.encode(many(200, std::string(1023, 'a') + "b")).size() > 0u);
        BOOST_TEST((tokenizer.encode(std::string(2048, 'a')) == std::vector<std::int32_t>{300, 300}));
    });
    file.added = added_token(300, std::string(1025, 'a'));
    BOOST_TEST(says(safe_refusal(Exit::bad_input, [&] { file.load(); }),
                    "content of 1025 bytes is not implemented, at most 1024 are"));
}

// Children of a node are found by halving, signed or not.
BOOST_AUTO_TEST_CASE(added_tokens_of_all_bytes) {
    TokenizerFile file;
    file.added.clear();
    std::vector<std::string> texts;
    for (int c = 0x21; c < 0x250; ++c) {
        if (c == '"' || c == '\\' || (c >= 0x7F && c < 0xA1)) continue;
        std::string text = "<";
        if (c >= 0x80) text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
        if (c < 0x80) text += static_cast<char>(c);
        file.added += (texts.empty() ? "" : ",") + added_token(300 + static_cast<int>(texts.size()), text);
        texts.push_back(text);
    }
    const auto tokenizer = file.load();
    for (std::size_t i = 0; i < texts.size(); ++i)
        BOOST_TEST((tokenizer.encode("x" + texts[i] + "y") ==
                    std::vector<std::int32_t>{'x', 300 + static_cast<std::int32_t>(i), 'y'}),
                   texts[i]);
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(options)

BOOST_AUTO_TEST_CASE(names_and_values_of_a_megabyte) {
    const TemporaryDirectory folder;
    const std::string megabyte(1'000'000, 'm');
    in_seconds(10, [&] {
        write_file(folder / "job", megabyte + " = x\n");
        BOOST_TEST(says(safe_refusal(Exit::usage,
                                     [&] {
                                         parse({"--job", (folder / "job").string()});
                                     }),
                        "unknown key"));
        write_file(folder / "job", "backend = " + megabyte + "\nmodel = m\nprompt = p\n");
        BOOST_TEST(says(safe_refusal(Exit::usage,
                                     [&] {
                                         parse({"--job", (folder / "job").string()});
                                     }),
                        "must be one of"));
        write_file(folder / "prompts", "{\"" + megabyte + "\": 1}\n");
        BOOST_TEST(
            says(safe_refusal(
                     Exit::bad_input,
                     [&] {
                         read_prompts(parse({"--model", "m", "--prompts", (folder / "prompts").string()}));
                     }),
                 "unknown key"));
    });
}

BOOST_AUTO_TEST_CASE(ten_thousand_prompts_twice) {
    const TemporaryDirectory folder;
    std::vector<std::string> arguments = {"--model", "m", "--job", (folder / "job").string()};
    for (int i = 0; i < 10'000; ++i) arguments.push_back("--prompt=p");
    write_file(folder / "job", many(40'000, "prompt = from the file\n"));
    in_seconds(20, [&] { BOOST_TEST(parse(arguments).prompts.size() == 10'000u); });
    arguments.push_back("--model=n");
    BOOST_TEST(says(safe_refusal(Exit::usage, [&] { parse(arguments); }), "--model is given twice"));
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE(journals)

// The checks that an append makes hold for what is read as well: these sizes are divided by and copied from.
BOOST_AUTO_TEST_CASE(records_whose_parts_do_not_fit_are_refused) {
    const TemporaryDirectory folder;
    const auto h5 = folder / "out.h5", journal = folder / "out.h5.journal";
    JournalRun run;
    run.run = sample_run();
    const auto refused = [&](const std::vector<std::string>& records, const std::string& why) {
        write_file(journal, journal_of(records));
        BOOST_TEST(says(safe_refusal(Exit::bad_input, [&] { read_journal(journal); }), why));
        BOOST_TEST(says(safe_refusal(Exit::bad_input, [&] { recover_results(h5); }), why));
        BOOST_TEST(says(safe_refusal(Exit::bad_input,
                                     [&] { ResultFile(h5, sample_run(), ResultFile::Existing::resume); }),
                        why));
        BOOST_TEST((!std::filesystem::exists(h5) && std::filesystem::exists(journal)));
    };
    const auto with = [](const std::function<void(RequestRecord&)>& change) {
        auto request = sample_request(0);
        change(request);
        return encode(request, 0);
    };
    refused({encode(run), with([](auto& r) {
                 r.vocabulary = 0, r.logits = {1, 2};
             })},
            "whole rows of the vocabulary");
    refused({encode(run), with([](auto& r) { r.vocabulary = -1, r.logits = {1}; })},
            "whole rows of the vocabulary");
    refused({encode(run), with([](auto& r) { r.step_sha256.pop_back(); })}, "32 bytes a step");
    refused({encode(run), with([](auto& r) { r.logits_sha256.clear(); })}, "without logits_sha256");
    refused({encode(run), with([](auto& r) { r.gather_seconds.pop_back(); })}, "whole rows of gather names");
    refused({encode(run), with([](auto& r) { r.gather_names.clear(); })}, "whole rows of gather names");
    refused({encode(run), with([](auto& r) { r.index = -1; })}, "its index is negative");

    const auto with_run = [&](const std::function<void(RunRecord&)>& change) {
        auto changed = run;
        change(changed.run);
        return encode(changed);
    };
    const auto request = encode(sample_request(0), 0);
    refused({with_run([](auto& r) { r.ranks[1].pop_back(); }), request}, "do not have the same keys");
    refused({with_run([](auto& r) { r.attributes.push_back(r.attributes[0]); }), request}, "given twice");
    refused({with_run([](auto& r) { r.plan_ranges[0].first = "a/../b"; }), request},
            "cannot be used as a name");
    auto flag = encode(run);
    flag[1 + 8 + 8] = 2;  // keeps_file, behind kind, session and an empty id
    refused({flag, request}, "does not have the layout of this version");
    const auto number = [](std::int64_t value) {
        return std::string(reinterpret_cast<const char*>(&value), sizeof value);
    };
    // Behind the identity: what is replaced, then the number asked for; neither may be nothing at the end.
    for (const auto& tail : {number(0), number(0) + number(0), number(0) + number(-1),
                             number(0) + number(3) + number(0), number(1) + "x" + "y"})
        refused({encode(run) + tail, request}, "does not have the layout of this version");

    write_file(journal, journal_of({encode(run) + number(0) + number(3), request}));
    BOOST_TEST(read_journal(journal).run.requests_asked == 3);
    BOOST_TEST(recover_results(h5) == 1);
    std::filesystem::remove(h5);
    write_file(journal, journal_of({encode(run), request}));
    BOOST_TEST(read_journal(journal).run.requests_asked == 0);
    BOOST_TEST(recover_results(h5) == 1);
}

BOOST_AUTO_TEST_SUITE_END()
