// The command line and job files: what is accepted, and that everything else is refused in words.
#define BOOST_TEST_MODULE options
#include "options.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <fstream>

#include "error.hpp"
#include "options/values.hpp"
#include "options_checks.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

BOOST_AUTO_TEST_CASE(run_is_the_command_when_none_is_named) {
    const auto o = parse({"--model", "m", "--prompt", "a", "--prompt=b", "--max-tokens", "5"});
    BOOST_TEST((o.command == Command::run));
    BOOST_TEST(o.model == "m");
    BOOST_TEST(o.prompts == (std::vector<std::string>{"a", "b"}), boost::test_tools::per_element());
    BOOST_TEST(o.max_tokens == 5);
    BOOST_TEST(!o.hash.has_value());
    BOOST_TEST(o.argv.size() == 8u);
    BOOST_TEST((parse({"run", "--model", "m", "--prompt", "a"}).command == Command::run));
    BOOST_TEST((parse({"bench", "--model", "m"}).command == Command::bench));
    BOOST_TEST((parse({"plan", "--model", "m"}).command == Command::plan));
    BOOST_TEST((parse({"inspect", "m"}).model == "m"));
    BOOST_TEST((parse({"inspect", "--model", "m"}).model == "m"));
    BOOST_TEST(parse({"verify", "a.h5", "b.h5"}).files.size() == 2u);
    BOOST_TEST((parse({"recover", "a.h5"}).command == Command::recover));
    for (const char* help : {"help", "--help", "-h"}) BOOST_TEST((parse({help}).command == Command::help));
    BOOST_TEST((parse({"run", "--help"}).command == Command::help));
    BOOST_TEST((parse({"--version"}).command == Command::version));
}

/// What a run was measured with, saved as a job file, is the same run: the text made of it is the same again.
BOOST_AUTO_TEST_CASE(effective_options_are_a_job_file) {
    const Folder folder;
    const auto again = [&](const Options& o) {
        const auto text = job_file_text(o);
        const auto back = parse({"--job", folder.write("job", text)});
        BOOST_TEST(job_file_text(back) == text);
        BOOST_TEST((back.command == o.command));
        BOOST_TEST(back.max_tokens_asked == o.max_tokens_asked);
        BOOST_TEST(back.model == fs::absolute(o.model));
        BOOST_TEST((back.output.empty() && !back.overwrite && !back.resume && back.job != o.job));
        return back;
    };
    const auto plain = again(parse_run({}));
    BOOST_TEST(plain.prompts == std::vector<std::string>{"hello"}, boost::test_tools::per_element());
    TEST_HOLDS(job_file_text(plain), "\ntemperature = 0\n");
    TEST_HOLDS(job_file_text(plain), "\n# max-tokens = 64 by default\n");

    const auto all = again(parse_run({"--prompt",
                                      "# = two",
                                      "--chat",
                                      "--thinking",
                                      "off",
                                      "--max-tokens",
                                      "7",
                                      "--ignore-eos",
                                      "--temperature",
                                      "0.1",
                                      "--top-k",
                                      "3",
                                      "--top-p",
                                      "0.9999999",
                                      "--seed",
                                      "18446744073709551615",
                                      "--batch",
                                      "2",
                                      "--backend",
                                      "cpu",
                                      "--transport",
                                      "mpi",
                                      "--numerics",
                                      "fast",
                                      "--shares",
                                      "5:2,0.1",
                                      "--memory-limit",
                                      "24GiB,16GB",
                                      "--bandwidth",
                                      "1e+09,288.5",
                                      "--context",
                                      "99",
                                      "--kv",
                                      "fp8",
                                      "--embedding",
                                      "host",
                                      "--prefill-chunk",
                                      "7",
                                      "--threads",
                                      "3",
                                      "--output",
                                      "o.h5",
                                      "--overwrite",
                                      "--save-logits",
                                      "--hash",
                                      "off",
                                      "--json",
                                      "--timeout",
                                      "1.5"}));
    BOOST_TEST(all.prompts == (std::vector<std::string>{"hello", "# = two"}),
               boost::test_tools::per_element());
    BOOST_TEST(
        (all.chat && !all.thinking && all.ignore_eos && all.save_logits && all.json && all.hash == false));
    BOOST_TEST(all.top_p == 0.9999999);
    BOOST_TEST(all.threads == 3);
    BOOST_TEST(all.shares == (std::vector<double>{5, 2, 0.1}), boost::test_tools::per_element());

    const auto file =
        folder.write("j", "model = m\nprompts = p\nmax-tokens = 64\npolicy = even\nthreads = 2\n");
    const auto from_file = again(parse({"--job", file}));
    BOOST_TEST((from_file.policy == Policy::even && from_file.max_tokens_asked));
    BOOST_TEST(from_file.prompts_file == fs::absolute("p"));

    const auto bench =
        again(parse({"bench", "--model", "m", "--batches", "1,3", "--warmup", "0", "--threads", "1"}));
    BOOST_TEST(bench.warmup == 0);
    BOOST_TEST(bench.batches == (std::vector<std::int64_t>{1, 3}), boost::test_tools::per_element());

    // What no line can hold makes no other run of it.
    for (const char* prompt : {" a", "a\t", "a\nmodel = n", "\r"}) {
        const auto text = job_file_text(parse_run({"--prompt", prompt}));
        TEST_HOLDS(text, "\n# prompt: no line");
        BOOST_TEST(
            (text.find("hello") == std::string::npos && text.find("\nmodel = n\n") == std::string::npos),
            text);
        TEST_HOLDS(usage({"--job", folder.write("job", text)}), "no prompt");
    }
    TEST_HOLDS(job_file_text(parse({"--model", "a\nb", "--prompt", "x"})), "\n# model: no line");
}

BOOST_AUTO_TEST_CASE(words_for_a_shell) {
    const Folder folder;
    for (const std::string word : {"", "a", "--top-p=0.9", "./a b", "it's", "''", "$HOME `x` \\ \"q\"",
                                   "a\nb", "~", "*", "#x", "-n", "\xff", "!1", "a;b&c|d"}) {
        const auto out = (folder.path / "out").string();
        BOOST_REQUIRE(std::system(("printf %s " + shell_word(word) + " >" + out).c_str()) == 0);
        std::ifstream in(out, std::ios::binary);
        BOOST_TEST((std::string(std::istreambuf_iterator<char>(in), {}) == word), word);
    }
    BOOST_TEST(shell_word("--shares=3,1:2") == "--shares=3,1:2");
    BOOST_TEST(shell_word("The capital") == "'The capital'");
}

BOOST_AUTO_TEST_CASE(every_value_reaches_its_field) {
    const auto o = parse_run({"--chat",
                              "--thinking",
                              "off",
                              "--ignore-eos",
                              "--save-logits",
                              "--output",
                              "o.h5",
                              "--temperature",
                              "0.7",
                              "--top-p",
                              "0.9",
                              "--top-k",
                              "40",
                              "--seed",
                              "18446744073709551615",
                              "--batch",
                              "4",
                              "--backend",
                              "cpu",
                              "--transport",
                              "mpi",
                              "--numerics",
                              "fast",
                              "--shares",
                              "5:2,1",
                              "--gpus",
                              "GPU-a,GPU-b",
                              "--memory-limit",
                              "24GiB,16GiB",
                              "--bandwidth",
                              "1008,288.5",
                              "--context",
                              "4096",
                              "--kv",
                              "fp8",
                              "--embedding",
                              "device",
                              "--prefill-chunk",
                              "7",
                              "--threads",
                              "3",
                              "--hash",
                              "off",
                              "--overwrite",
                              "--timeout",
                              "12.5",
                              "--json"});
    BOOST_TEST(
        (o.chat && !o.thinking && o.ignore_eos && o.save_logits && o.overwrite && o.json && !o.resume));
    BOOST_TEST(o.output == "o.h5");
    BOOST_TEST(o.temperature == 0.7);
    BOOST_TEST(o.top_p == 0.9);
    BOOST_TEST(o.top_k == 40);
    BOOST_TEST(o.seed == 18446744073709551615u);
    BOOST_TEST(o.batch == 4);
    BOOST_TEST((o.backend == BackendChoice::cpu && o.transport == TransportChoice::mpi &&
                o.numerics == Numerics::fast));
    BOOST_TEST((o.policy == Policy::shares));
    BOOST_TEST(o.shares == (std::vector<double>{5, 2, 1}), boost::test_tools::per_element());
    BOOST_TEST(o.gpus == (std::vector<std::string>{"GPU-a", "GPU-b"}), boost::test_tools::per_element());
    BOOST_TEST(o.memory_limit == (std::vector<std::uint64_t>{24ull << 30, 16ull << 30}),
               boost::test_tools::per_element());
    BOOST_TEST(o.bandwidth == (std::vector<double>{1008, 288.5}), boost::test_tools::per_element());
    BOOST_TEST(o.context == 4096);
    BOOST_TEST(
        (o.kv == KvType::fp8 && o.embedding_on_host == false && o.prefill_chunk == 7 && o.threads == 3));
    BOOST_TEST((o.hash.has_value() && !*o.hash));
    BOOST_TEST(o.timeout == 12.5);
    const auto plan = parse({"plan", "--model", "m", "--hardware", "24GiB@1008,16GiB@288"});
    BOOST_REQUIRE(plan.hardware.size() == 2u);
    BOOST_TEST(plan.hardware[1].bytes == 16ull << 30);
    BOOST_TEST(plan.hardware[1].gb_per_s == 288);
    BOOST_TEST((parse_run({"--policy", "even"}).policy == Policy::even));
    BOOST_TEST(parse_run({"--shares", "1:0"}).shares[1] == 0);
}

BOOST_AUTO_TEST_CASE(bad_values_are_refused_by_name_and_value) {
    for (const char* bad :
         {"3x", "-1", "nan", "1e3", "0x10", "+3", " 3", "3 ", "0", "99999999999999999999", "2.5"}) {
        const auto text = usage_run({"--max-tokens", bad});
        TEST_HOLDS(text, "--max-tokens");
        TEST_HOLDS(text, bad);
    }
    for (const char* bad : {"nan", "inf", "-0.5", "1e999", "0x1p3", "1,5", "warm"})
        TEST_HOLDS(usage_run({"--temperature", bad}),
                   "--temperature is \"" + std::string(bad) + "\" and must be a number");
    TEST_HOLDS(usage_run({"--max-tokens", "0"}),
               "--max-tokens is \"0\" and must be between 1 and 2147483648");
    for (const char* bad : {"0", "1.1"}) TEST_HOLDS(usage_run({"--top-p", bad}), "above 0");
    for (const char* bad : {"-1", "18446744073709551616", "1.0"})
        TEST_HOLDS(usage_run({"--seed", bad}), "--seed");
    for (const char* bad : {"24", "24Gib@3", "24GiB@", "@3", "24GiB@0", "0@3", "24GiB@1008,", "24GiB@1e999"})
        TEST_HOLDS(usage({"plan", "--model", "m", "--hardware", bad}), "--hardware");
    for (const char* bad : {"0,0", "3,,1", "3,1,", "a,b", "-1,2", "nan,1"})
        TEST_HOLDS(usage_run({"--shares", bad}), "--shares");
    TEST_HOLDS(usage_run({"--kv", "fp16"}), "must be one of bf16, fp8, fp32");
    TEST_HOLDS(usage_run({"--hash", "yes"}), "on, off");
    TEST_HOLDS(usage_run({"--chat=yes"}), "on, off");
    TEST_HOLDS(usage_run({"--timeout", "0"}), "--timeout");
    TEST_HOLDS(usage_run({"--timeout", "0.001"}), "must be at least 0.1");
    TEST_HOLDS(usage_run({"--memory-limit", "0"}), "above 0");
    for (const char* bad : {"0", "1e-308", "1e308"})
        TEST_HOLDS(usage_run({"--bandwidth", bad}), "at least 0.001 and at most 1e+09");
    std::string ranks = "1GiB@1";
    for (int r = 0; r < 1024; ++r) ranks += ",1GiB@1";
    TEST_HOLDS(usage({"plan", "--model", "m", "--hardware", ranks}), "must have at most 1024 items");
    TEST_HOLDS(usage_run({"--shares", "0,0"}), "--shares is \"0,0\" and must not be 0 for all ranks");
}

BOOST_AUTO_TEST_CASE(lists_may_hold_blanks_and_name_their_bad_item) {
    const auto bench = parse({"bench", "--model", "m", "--prompt-lengths", "16, 32", "--decode-lengths",
                              " 4 ,5\t", "--batches", "1 , 2"});
    BOOST_TEST(bench.prompt_lengths == (std::vector<std::int64_t>{16, 32}), boost::test_tools::per_element());
    BOOST_TEST(bench.decode_lengths == (std::vector<std::int64_t>{4, 5}), boost::test_tools::per_element());
    BOOST_TEST(bench.batches == (std::vector<std::int64_t>{1, 2}), boost::test_tools::per_element());
    const auto run = parse_run({"--shares", "5 : 2, 1", "--gpus", "GPU-a, GPU-b", "--memory-limit",
                                "24GiB, 16GiB", "--bandwidth", "1008, 288"});
    BOOST_TEST(run.shares == (std::vector<double>{5, 2, 1}), boost::test_tools::per_element());
    BOOST_TEST(run.gpus == (std::vector<std::string>{"GPU-a", "GPU-b"}), boost::test_tools::per_element());
    BOOST_TEST(run.memory_limit.at(1) == 16ull << 30);
    BOOST_TEST(run.bandwidth.at(1) == 288);
    BOOST_TEST(run.digest_text ==
               parse_run({"--shares", "5,2,1", "--memory-limit", "24GiB,16GiB", "--bandwidth", "1008,288"})
                   .digest_text);
    BOOST_TEST(
        parse({"plan", "--model", "m", "--hardware", "24GiB@1008, 16GiB@288"}).hardware.at(1).gb_per_s ==
        288);
    const Folder folder;
    BOOST_TEST(parse({"bench", "--job", folder.write("b.ini", "model = m\nprompt-lengths = 16, 32\n")})
                   .prompt_lengths.at(1) == 32);

    TEST_HOLDS(usage({"bench", "--model", "m", "--prompt-lengths", "16,3x,32"}),
               "--prompt-lengths holds \"3x\", which must be a whole number");
    TEST_HOLDS(usage({"bench", "--model", "m", "--prompt-lengths", "3x"}),
               "--prompt-lengths is \"3x\" and must be a whole number");
    TEST_HOLDS(usage({"bench", "--model", "m", "--batches", "1,5000"}),
               "--batches holds \"5000\", which must be between 1 and 4096");
    TEST_HOLDS(usage_run({"--shares", "3, 1 x"}),
               "--shares holds \"1 x\", which must be a number of 0 or more");
    TEST_HOLDS(usage_run({"--memory-limit", "24GiB,16G"}),
               "--memory-limit holds \"16G\", which must be a size | write it as 24GiB");
    for (const char* hole : {"3,,1", "3, ,1", "3,", ",3", " "})
        TEST_HOLDS(usage_run({"--shares", hole}), "\" and must not hold an empty item");
    TEST_HOLDS(usage({"plan", "--model", "m", "--hardware", "24GiB@1008x2"}),
               "--hardware is \"24GiB@1008x2\", where \"1008x2\" must be a number of 0 or more");
    TEST_HOLDS(usage({"plan", "--model", "m", "--hardware", "24GiB@1008,16Gb@288"}),
               "--hardware holds \"16Gb@288\", where \"16Gb\" must be a size");
    TEST_HOLDS(usage({"plan", "--model", "m", "--hardware", "24GiB@1008,16GiB"}),
               "--hardware holds \"16GiB\", which must be SIZE@GB_PER_SECOND");
}

BOOST_AUTO_TEST_CASE(a_switch_leaves_the_next_word_alone) {
    BOOST_TEST(parse({"inspect", "--json", "DIR"}).model == "DIR");
    const auto recover = parse({"recover", "--overwrite", "out.h5"});
    BOOST_TEST((recover.overwrite && recover.files == std::vector<std::string>{"out.h5"}));
    for (const char* name : {"--chat", "--ignore-eos", "--overwrite", "--save-logits", "--json"}) {
        const auto o = parse({"--model", "m", name, "--prompt", "p"});  // before another option
        BOOST_TEST((o.prompts == std::vector<std::string>{"p"}));
        BOOST_TEST(o.digest_text != parse({"--model", "m", "--prompt", "p"}).digest_text);
        BOOST_TEST(o.digest_text ==
                   parse({"--model", "m", "--prompt", "p", std::string(name) + "=on"}).digest_text);
        BOOST_TEST(parse({"--model", "m", "--prompt", "p", std::string(name) + "=off"}).digest_text ==
                   parse({"--model", "m", "--prompt", "p"}).digest_text);
        TEST_HOLDS(usage({name, "bench", "--model", "m"}), "the command bench must be the first argument");
        TEST_HOLDS(usage({"--model", "m", "--prompt", "p", name, "off"}),
                   "unexpected argument \"off\" | a switch takes its value after '=': " + std::string(name) +
                       "=off");
        TEST_HOLDS(usage({"--model", "m", "--prompt", "p", std::string(name) + "="}),
                   std::string(name) + ": value missing or empty");
        BOOST_TEST(parse({"--model", "m", std::string("--prompt=") + name}).prompts.at(0) == name);
        TEST_HOLDS(usage({"--model", "m", "--prompt", name}), std::string("value missing before ") + name);
    }
    BOOST_TEST(parse_run({"--output", "o", "--resume", "--seed", "1"}).resume);
    TEST_HOLDS(usage({"recover", "--overwrite", "on", "out.h5"}),
               "unexpected argument \"on\" | a switch takes its value after '=': --overwrite=on");
    TEST_HOLDS(usage({"inspect", "--json", "on", "DIR"}),
               "unexpected argument \"on\" | a switch takes its value after '=': --json=on");
    TEST_HOLDS(usage({"inspect", "--json", "off"}),
               "unexpected argument \"off\" | a switch takes its value after '='");
    BOOST_TEST(parse({"verify", "--", "--json", "on"}).files.size() == 2u);  // behind -- nothing is an option
}

BOOST_AUTO_TEST_CASE(stray_words_get_a_hint_that_the_command_takes) {
    TEST_HOLDS(
        usage({"bench", "--model", "m", "--prompt-lengths", "16", "64"}),
        "unexpected argument \"64\" | the items of a list are joined by commas: --prompt-lengths 16,64");
    TEST_HOLDS(usage({"bench", "m", "--prompt-lengths", "16", "64"}),
               "unexpected argument \"64\" | the items of a list");
    TEST_HOLDS(usage_run({"--shares", "3", "1"}), "--shares 3,1");
    TEST_HOLDS(usage({"bench", "m"}), "the checkpoint is given as --model DIR");
    TEST_HOLDS(usage({"--model", "m", "hello"}), "a prompt is given as --prompt TEXT");
    for (const char* command : {"bench", "plan"})
        TEST_HOLDS(usage({command, "--model", "m", "hello"}),
                   "unexpected argument \"hello\" | ftmpi --help lists all options");
}

BOOST_AUTO_TEST_CASE(plan_takes_the_job_file_of_a_run) {
    const Folder folder;
    const auto job = folder.write("run.ini",
                                  "command = run\nmodel = m\nprompt = a\nprompt = b\nmax-tokens = 9\nchat = "
                                  "on\nthinking = off\ntop-p = 0.9\n"
                                  "temperature = 1\noutput = o.h5\noverwrite = on\nthreads = 2\ngpus = "
                                  "GPU-a,GPU-b\nhash = off\ntransport = mpi\n"
                                  "memory-limit = 1GiB\nbandwidth = 5\nbatch = 3\nkv = fp8\n");
    const auto o = parse({"plan", "--job", job, "--hardware", "24GiB@1008"});
    BOOST_TEST((o.command == Command::plan && o.model == "m" && o.batch == 3 && o.kv == KvType::fp8));
    BOOST_TEST((o.hardware.size() == 1 && o.memory_limit.empty() &&
                o.bandwidth.empty()));  // --hardware replaces both
    BOOST_TEST((o.prompts.empty() && o.output.empty() && o.gpus.empty() && o.threads == 0 && !o.chat &&
                !o.hash && !o.max_tokens_asked));
    BOOST_TEST(parse({"plan", "--job", job}).memory_limit.size() == 1u);
    BOOST_TEST((parse({"--job", job}).command == Command::run));
    // What is wrong in it is found all the same; the command line and other commands take nothing that is not
    // theirs.
    TEST_HOLDS(usage({"plan", "--job", folder.write("bad.ini", "model = m\nmax-tokens = 0\n")}),
               "bad.ini:2: max-tokens is \"0\" and must be");
    TEST_HOLDS(usage({"plan", "--job", folder.write("bad.ini", "model = m\nthinking = perhaps\n")}),
               "bad.ini:2: thinking is \"perhaps\"");
    TEST_HOLDS(usage({"plan", "--job", job, "--max-tokens", "9"}), "--max-tokens does not belong to `plan`");
    TEST_HOLDS(usage({"plan", "--job", folder.write("bad.ini", "model = m\nprompt-lengths = 5\n")}),
               "prompt-lengths does not belong to `plan`");
    TEST_HOLDS(usage({"bench", "--job", job}), "run.ini:3: prompt does not belong to `bench`");
    TEST_HOLDS(usage({"inspect", "--job", job}), "run.ini:3: prompt does not belong to `inspect`");
}

BOOST_AUTO_TEST_CASE(unknown_repeated_and_misplaced_options_are_refused) {
    TEST_HOLDS(usage_run({"--modle", "x"}), "did you mean --model?");
    TEST_HOLDS(usage_run({"--max-new-tokens", "3"}), "did you mean --max-tokens?");
    TEST_HOLDS(usage_run({"--max", "3"}), "unknown option --max");  // no guessing from a prefix
    TEST_HOLDS(usage_run({"--wholly-unlike", "3"}), "unknown option --wholly-unlike | ");
    TEST_HOLDS(usage_run({"--batch", "1", "--batch", "2"}), "--batch is given twice (\"1\" and \"2\")");
    TEST_HOLDS(usage_run({"--chat", "--chat"}), "--chat is given twice");
    TEST_HOLDS(usage_run({"--hardware", "24GiB@1"}),
               "--hardware does not belong to `run` | it belongs to: plan");
    TEST_HOLDS(usage({"plan", "--model", "m", "--prompt", "x"}), "--prompt does not belong to `plan`");
    TEST_HOLDS(usage({"plan", "--model", "m", "--gpus", "GPU-a"}),
               "--gpus does not belong to `plan` | it belongs to: run, bench");
    TEST_HOLDS(usage({"bench", "--model", "m", "--resume"}), "--resume");
    TEST_HOLDS(usage({"verify", "a", "b", "--model", "m"}), "--model");
    for (const char* name : {"--model", "--prompt", "--output", "--job", "--shares"}) {
        TEST_HOLDS(usage({name, ""}), name);
        TEST_HOLDS(usage({std::string(name) + "="}), name);
        TEST_HOLDS(usage({name}), name);
    }
    TEST_HOLDS(usage({"--model", "m", "--prompt", ""}), "--prompt 1: empty prompt");
    TEST_HOLDS(usage({"--model", "m", "--prompt", "a", "--prompt", "", "--prompt", "b"}),
               "--prompt 2: empty prompt");
    TEST_HOLDS(usage_run({"--output", "--overwrite"}), "--output: value missing before --overwrite");
    TEST_HOLDS(usage_run({"--output", "--batch=3"}), "--output: value missing");
    BOOST_TEST(parse({"--model", "m", "--prompt=--overwrite"}).prompts[0] == "--overwrite");
    BOOST_TEST(parse({"--model", "m", "--prompt", "-5 + 3 ="}).prompts[0] == "-5 + 3 =");
    BOOST_TEST(parse({"--model", "m", "--prompt", "--unlike any option"}).prompts[0] ==
               "--unlike any option");
    BOOST_TEST(!parse_run({"--chat=off"}).chat);
    TEST_HOLDS(usage_run({"-x"}), "unexpected argument \"-x\"");
    TEST_HOLDS(usage({"bneh", "--model", "m"}), "did you mean the command bench?");
    TEST_HOLDS(usage({"--model", "m", "plan"}), "must be the first argument");
    TEST_HOLDS(usage({}), "--model is missing");
    TEST_HOLDS(usage({"--model", "m"}), "no prompt");
    TEST_HOLDS(usage({"verify", "a.h5"}), "two result files");
    TEST_HOLDS(usage({"recover"}), "one result file");
    TEST_HOLDS(usage({"inspect", "a", "b"}), "one checkpoint");
}

BOOST_AUTO_TEST_CASE(options_that_contradict_are_refused) {
    TEST_HOLDS(usage_run({"--shares", "3,1", "--policy", "even"}), "exclude each other");
    TEST_HOLDS(usage_run({"--resume", "--overwrite", "--output", "o"}), "exclude each other");
    TEST_HOLDS(usage_run({"--resume"}), "--resume needs --output");
    // Undoing one on the command line leaves the other as the job file has it.
    const Folder folder;
    const auto job = folder.write("job.ini", "model = m\nprompt = a\noutput = o\nresume = on\n");
    BOOST_TEST(parse({"--job", job, "--overwrite=off"}).resume);
    BOOST_TEST(!parse({"--job", job, "--overwrite"}).resume);
    BOOST_TEST(parse({"--job", job, "--prompt", "off"}).prompts.size() == 1u);
    const auto chat = folder.write("chat.ini", "model = m\nprompt = a\nchat = on\nthinking = off\n");
    BOOST_TEST(!parse({"--job", chat, "--chat=off"}).chat);
    const auto cards = folder.write("cards.ini", "command = plan\nmodel = m\nhardware = 24GiB@1008\n");
    BOOST_TEST(
        parse({"plan", "--job", cards, "--memory-limit", "1GiB", "--bandwidth", "100"}).hardware.empty());
    TEST_HOLDS(usage_run({"--thinking", "off"}), "--thinking needs --chat");
    TEST_HOLDS(usage_run({"--top-p", "0.9"}), "--top-p needs --temperature");
    TEST_HOLDS(usage_run({"--top-k", "40", "--seed", "1"}), "--top-k needs --temperature");
    TEST_HOLDS(usage({"plan", "--model", "m", "--hardware", "1GiB@2", "--transport", "mpi"}),
               "--transport does not belong to `plan`");
    TEST_HOLDS(usage({"plan", "--model", "m", "--hardware", "1GiB@2", "--memory-limit", "1GiB"}),
               "exclude each other");
}

BOOST_AUTO_TEST_CASE(sizes) {
    BOOST_TEST(values::bytes("24GiB") == 24ull << 30);
    BOOST_TEST(values::bytes("512MiB") == 512ull << 20);
    BOOST_TEST(values::bytes("16GB") == 16000000000ull);
    BOOST_TEST(values::bytes("1000") == 1000u);
    BOOST_TEST(values::bytes("1.5KiB") == 1536u);
    BOOST_TEST(values::bytes("9007199254740993") == 9007199254740993ull);
    for (const char* bad : {"", "GiB", "24G", "24gib", "24 GiB", "-1", "1.5", "1..5GiB", ".5GiB", "5.GiB",
                            "1e3", "99999999999TiB", "1GiBx"}) {
        BOOST_CHECK_THROW(values::bytes(bad), values::Refused);
        if (*bad) TEST_HOLDS(usage_run({"--memory-limit", bad}), "\"" + std::string(bad) + "\"");
    }
}

BOOST_AUTO_TEST_CASE(job_files) {
    const Folder folder;
    const auto job =
        folder.write("a.ini",
                     "# a comment\r\n\r\nmodel = data/m  \r\nprompt = Is # or \\n special? \"No.\"\n"
                     "prompt=a = b\nmax-tokens = 9\n  chat = on\nshares = 3:1\n");
    auto o = parse({"--job", job});
    BOOST_TEST(o.model == "data/m");
    BOOST_TEST(o.prompts == (std::vector<std::string>{"Is # or \\n special? \"No.\"", "a = b"}),
               boost::test_tools::per_element());
    BOOST_TEST(o.max_tokens == 9);
    BOOST_TEST((o.chat && o.policy == Policy::shares));

    o = parse({"--job", job, "--prompt", "mine", "--max-tokens", "3", "--chat=off", "--policy", "even"});
    BOOST_TEST(o.prompts == std::vector<std::string>{"mine"}, boost::test_tools::per_element());
    BOOST_TEST((o.max_tokens == 3 && !o.chat && o.policy == Policy::even && o.shares.empty()));

    o = parse({"--job", folder.write("b.ini", "command = plan\nmodel=m\nhardware = 1GiB@2\n")});
    BOOST_TEST((o.command == Command::plan));
    TEST_HOLDS(usage({"run", "--job", folder.write("b.ini", "command = plan\nmodel=m\nhardware = 1GiB@2\n")}),
               "b.ini:3: hardware does not belong");

    const std::pair<const char*, const char*> bad[] = {
        {"model = m\nmax_tokens = 3\n", "bad.ini:2: unknown key \"max_tokens\" | did you mean max-tokens?"},
        {"model = m\n\nbatch = 3x\n", "bad.ini:3: batch is \"3x\" and must be a whole number"},
        {"model = m\nmodel = n\n", "bad.ini:2: model was already set in line 1"},
        {"job = other.ini\n", "bad.ini:1: a job file cannot name another job file"},
        {"model m\n", "bad.ini:1: \"model m\" is not a `key = value` line"},
        {"[run]\n", "bad.ini:1: sections"},
        {"model =  \n", "bad.ini:1: model: empty value"},
        {"= 3\n", "bad.ini:1: no key"},
        {"help = on\n", "bad.ini:1: unknown key \"help\""},
        {"chat = \n", "empty value"},
        {"chat = yes\n", "bad.ini:1: chat is \"yes\" and must be one of on, off"},
        {"command = paln\n", "bad.ini:1: unknown command \"paln\" | did you mean plan?"},
        {"command = help\n", "bad.ini:1: unknown command \"help\""},
        {"prompt = \xff\n", "bad.ini:1: invalid UTF-8"},
    };
    for (const auto& [text, message] : bad)
        TEST_HOLDS(usage({"--job", folder.write("bad.ini", text)}), message);
    // A byte order mark says that the file is UTF-8, and is no part of the first key; of the others none is.
    BOOST_TEST(parse({"--job", folder.write("mark.ini", "\xEF\xBB\xBFmodel = m\nprompt = p\n")}).model ==
               "m");
    TEST_HOLDS(usage({"--job", folder.write("mark.ini", "model = m\n\xEF\xBB\xBFprompt = p\n")}),
               "mark.ini:2: unknown key");
    TEST_HOLDS(usage({"--job", folder.write("wide.ini", std::string("\xFF\xFEm\0=\0m\0", 8))}),
               "looks like UTF-16");
    TEST_HOLDS(usage({"--job", folder.write("nul.ini", std::string("model = m\0m\n", 12))}), "NUL");
    TEST_HOLDS(usage({"--job", folder.path.string()}), "not a regular file");
    TEST_HOLDS(usage({"--job", "/dev/zero"}), "not a regular file");
    TEST_HOLDS(usage({"--job", (folder.path / "none.ini").string()}), "does not exist");
    TEST_HOLDS(usage({"--job", folder.write("large.ini", std::string((1 << 20) + 1, '#'))}),
               "more than the 1048576 allowed");
}

BOOST_AUTO_TEST_CASE(the_job_files_of_the_project_are_accepted) {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(fs::path(FTMPI_SOURCE_DIR) / "jobs")) {
        if (entry.path().extension() != ".ini") continue;
        const auto o = parse({"--job", entry.path().string()});
        BOOST_TEST(fs::exists(FTMPI_SOURCE_DIR / o.model));
        if (!o.prompts_file.empty()) {
            auto from_here = o;
            from_here.prompts_file = FTMPI_SOURCE_DIR / o.prompts_file;
            const auto prompts = read_prompts(from_here);
            BOOST_REQUIRE(prompts.size() == 5u);
            BOOST_TEST(prompts[4].text == "Q: What is 17 times 24?\nA:");
        }
        ++count;
    }
    BOOST_TEST(count >= 3u);
}

BOOST_AUTO_TEST_CASE(digest_text_holds_what_must_be_equal) {
    const auto a = parse_run({"--threads", "2", "--gpus", "GPU-a", "--shares", "3:1"}).digest_text;
    const auto b = parse_run({"--threads", "4", "--gpus", "GPU-b", "--shares", "3,1"}).digest_text;
    BOOST_TEST(a == b);
    TEST_HOLDS(a, "command=run\n");
    TEST_HOLDS(a, "prompt=hello\n");
    TEST_HOLDS(a, "max-tokens=64\n");
    TEST_HOLDS(a, "shares=3,1\n");
    for (const std::vector<std::string>& other :
         std::vector<std::vector<std::string>>{{"--max-tokens", "65"},
                                               {"--seed", "1"},
                                               {"--kv", "fp8"},
                                               {"--context", "100"},
                                               {"--hash", "off"},
                                               {"--prompt", "x"},
                                               {"--chat"},
                                               {"--temperature", "0.1"},
                                               {"--timeout", "1"},
                                               {"--memory-limit", "1GiB"},
                                               {"--prompts", "f"}})
        BOOST_TEST(parse_run(other).digest_text != parse_run({}).digest_text);
    // A line break inside a value must not look like another option.
    TEST_HOLDS(parse({"--model", "m", "--prompt", "a\nseed=3"}).digest_text, "prompt=a\\x0aseed=3\n");
}

BOOST_AUTO_TEST_CASE(help_lists_every_option_within_100_columns) {
    const auto help = help_text();
    std::size_t widest = 0;
    for (std::size_t begin = 0; begin < help.size();) {
        const auto end = help.find('\n', begin);
        widest = std::max(widest, end - begin);
        begin = end + 1;
    }
    BOOST_TEST(widest <= 100u);
    TEST_HOLDS(help, "what the process may use");
    for (const char* part : {"--model DIR", "[default 64]", "--hardware", "(run, bench, plan)", "[plan]",
                             "recover", "--kv bf16|fp8|fp32", "[default bf16]"})
        TEST_HOLDS(help, part);
}

BOOST_AUTO_TEST_CASE(many_arguments_are_told_apart_as_few_are) {
    // Wherever in a long line an option, its value, a switch or the end of the options comes.
    for (int before = 250; before <= 260; ++before) {
        std::vector<std::string> line;
        for (int i = 0; i < before; ++i) line.push_back("--prompt=" + std::to_string(i));
        line.insert(line.end(), {"--chat", "--prompt", "--", "--thinking", "off", "--prompt", "--dashes",
                                 "--model", "m"});
        const auto options = parse(line);
        BOOST_TEST(options.prompts.size() == static_cast<std::size_t>(before) + 2);
        BOOST_TEST(options.prompts.at(static_cast<std::size_t>(before)) == "--");
        BOOST_TEST(options.prompts.back() == "--dashes");
        BOOST_TEST(options.model == "m");
        BOOST_TEST((options.chat && !options.thinking));
        auto bad = line;
        bad.back() = "--json";
        TEST_HOLDS(usage(bad), "--model: value missing before --json");
        bad.pop_back();
        TEST_HOLDS(usage(bad), "--model: value missing or empty");
        bad = line;
        bad.insert(bad.end(), {"--", "--model"});
        TEST_HOLDS(usage(bad), "unexpected argument \"--model\"");
        bad = line;
        bad.insert(bad.begin() + before, "--promt");
        TEST_HOLDS(usage(bad), "unknown option --promt | did you mean --prompt?");
        bad = line;
        bad.insert(bad.begin() + before, "stray");
        TEST_HOLDS(usage(bad), "unexpected argument \"stray\"");
    }
    BOOST_TEST((parse({"verify", "--", "--a", "--"}).files == std::vector<std::string>{"--a", "--"}));
}

BOOST_AUTO_TEST_CASE(many_arguments_are_read_quickly) {
    std::vector<std::string> prompts{"--model", "m"}, files{"verify"};
    for (int i = 0; i < 30000; ++i) {
        prompts.insert(prompts.end(), {"--prompt", "number " + std::to_string(i)});
        files.push_back("f" + std::to_string(i));
    }
    const auto start = std::chrono::steady_clock::now();
    const auto options = parse(prompts);
    TEST_HOLDS(usage(files), "30000 given");
    files.insert(files.begin() + 1, "--");
    TEST_HOLDS(usage(files), "30000 given");
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    BOOST_TEST(options.prompts.size() == 30000u);
    BOOST_TEST(options.prompts.back() == "number 29999");
    BOOST_TEST(seconds < 5);  // far above what is needed; a quadratic reader takes a minute
    BOOST_TEST_MESSAGE("30,000 prompts and twice 30,000 files told apart in " << seconds << " s");
}
