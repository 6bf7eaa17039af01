// Two runs compared: which difference is named, and in which words.
#define BOOST_TEST_MODULE results_compare
#include "results_checks.hpp"

BOOST_AUTO_TEST_CASE(comparisons) {
    const auto run = [](std::int64_t n) {
        StoredRun stored;
        stored.run = sample_run();
        for (std::int64_t i = 0; i < n; ++i) stored.requests.push_back(sample_request(i));
        return stored;
    };
    const auto differs = [](const StoredRun& a, const StoredRun& b, std::int64_t request, std::int64_t step,
                            const std::string& words) {
        const auto difference = compare_results(a, b);
        BOOST_REQUIRE(difference.has_value());
        BOOST_TEST_MESSAGE(difference->what);
        BOOST_TEST(difference->request == request);
        BOOST_TEST(difference->step == step);
        BOOST_TEST((difference->what.find(words) != std::string::npos), difference->what);
    };
    BOOST_TEST(!compare_results(run(3), run(3)).has_value());
    BOOST_TEST(!compare_results(run(0), run(0)).has_value());
    differs(run(3), run(2), -1, -1, "request 2 is in the first only");
    differs(run(0), run(1), -1, -1, "request 0 is in the second only");

    StoredRun b = run(3);
    b.requests[1].output_ids[2] = 99;
    b.requests[1].margins[2] = 0.125f;
    differs(run(3), b, 1, 2,
            "request 1 (id \"p1\"), step 2: token 12 in the first, 99 in the second; top-2 margin 2.5 in the "
            "first, 0.125");
    b.requests.pop_back();
    differs(run(3), b, 1, 2, "token 12");

    b = run(3);
    b.requests[2].step_sha256[32 * 3 + 31] ^= 1;
    differs(run(3), b, 2, 3, "though both chose token 23");
    differs(run(3), b, 2, 3, "; all tokens are equal");
    b.requests[2].output_ids[1] = 0;
    differs(run(3), b, 2, 1, "token 21 in the first, 0 in the second");

    // As real runs part: the logits first, the token later, where the margin was small.
    b = run(3);
    b.requests[1].step_sha256[32] ^= 1;
    b.requests[1].output_ids[3] = 7;
    b.requests[1].margins[3] = 0.25f;
    differs(
        run(3), b, 1, 1,
        "; the first token that differs is at step 3: token 13 in the first, 7 in the second; top-2 margin");
    differs(run(3), b, 1, 1, "0.25 in the second");

    b = run(3);
    b.requests[0].prompt_ids[1] = 5;
    differs(run(3), b, 0, -1, "at position 1 the first has 2, the second 5");
    b.requests[0].prompt_ids = {1, 2};
    differs(run(3), b, 0, -1, "the second the end");

    b = run(2);
    b.requests[1] = sample_request(1, 3);
    b.requests[1].finish_reason = "error";
    b.requests[1].error = "a logit is not finite";
    differs(run(2), b, 1, 3,
            "the first has 4 tokens (length), the second 3 tokens (error: \"a logit is not finite\")");

    // Prompts that were refused by their length, and a request that ended with an error in one only.
    StoredRun a = run(1);
    a.requests[0].prompt_ids.clear();
    b = a;
    BOOST_TEST(!compare_results(a, b).has_value());
    b.requests[0].prompt += "!";
    differs(a, b, 0, -1, "the prompts differ in their text");
    b = run(1);
    b.requests[0].finish_reason = "error";
    b.requests[0].error = "a logit is not finite";
    differs(run(1), b, 0, 4, "the second 4 tokens (error: ");

    // Without hashes in one, the tokens are still compared.
    b = run(2);
    for (auto& r : b.requests) r.step_sha256 = r.logits_sha256 = "";
    BOOST_TEST(!compare_results(run(2), b).has_value());
    b.requests[1].output_ids[0] = 77;
    differs(run(2), b, 1, 0, "77");

    BOOST_TEST(identity_difference("a: 1\nb: 2\n", "a: 1\nb: 2\n") == "");
    BOOST_TEST(identity_difference("a: 1\nb: 2\n", "a: 1\nb: 3\n") == "\"b: 2\" there, \"b: 3\" here");
    BOOST_TEST(identity_difference("a: 1\n", "a: 1\nb: 3\n") == "\"\" there, \"b: 3\" here");
    BOOST_TEST(identity_difference("a: 1", "a: 1\n") != "");

    const auto settings = [](const std::string& a, const std::string& b) {
        std::string all;
        for (const auto& [label, words] : setting_differences(a, b)) all += label + "| " + words + "\n";
        return all;
    };
    BOOST_TEST(settings("a: 1\nb: 2\n", "a: 1\nb: 2\n") == "");
    BOOST_TEST(settings("a: 1\nb: 2\nc: x: y\n", "c: z\na: 1\nb: 3\nd: 4") ==
               "b| b is 2 in the first, 3 in the second\nc| c is x: y in the first, z in the second\n"
               "d| d is not there in the first, 4 in the second\n");
    // Of files made before and after the order of arithmetic changed.
    BOOST_TEST(settings("numerics: exact\n", "numerics: exact\nnumerics version: 2\n") ==
               "numerics version| numerics version is not there in the first, 2 in the second\n");
    BOOST_TEST(settings("a: \n", "a: \x1b[2J\n") == "a| a is \"\" in the first, \\x1b[2J in the second\n");
}

BOOST_AUTO_TEST_CASE(prompts_refused_by_their_length_are_compared_as_they_are_in_the_files) {
    Folder folder;
    const auto write = [&](const char* name, const std::string& prompt) {
        ResultFile file(folder.path / name, sample_run(), Existing::refuse);
        file.append(sample_request(0));
        RequestRecord refused;
        refused.index = 1;
        refused.prompt = prompt;
        refused.finish_reason = "error";
        refused.error = "too long";
        file.append(refused);
        file.finish({});
        return read_results(folder.path / name, Contents::compared);
    };
    const std::string long_text(70'000, 'p');  // no attribute holds it
    const StoredRun a = write("a.h5", long_text + "a"), same = write("same.h5", long_text + "a"),
                    b = write("b.h5", long_text + "b");
    BOOST_TEST(a.requests.at(0).prompt.empty());  // its ids tell it apart
    BOOST_TEST((a.requests.at(1).prompt == long_text + "a"));
    BOOST_TEST(!compare_results(a, same).has_value());
    const auto difference = compare_results(a, b);
    BOOST_REQUIRE(difference.has_value());
    BOOST_TEST(difference->request == 1);
    BOOST_TEST(difference->what == "request 1: the prompts differ in their text");
}
