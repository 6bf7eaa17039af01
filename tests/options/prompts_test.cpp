// Prompts: arguments and files, what is accepted, and that everything else is refused in words.
#define BOOST_TEST_MODULE prompts
#include "options.hpp"

#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <chrono>

#include "error.hpp"
#include "options_checks.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

std::vector<PromptText> prompts_of(const Folder& folder, const std::string& bytes, bool chat = false) {
    Options o;
    o.prompts_file = folder.write("prompts", bytes);
    o.chat = chat;
    return read_prompts(o);
}

std::string bad_prompts(const Folder& folder, const std::string& bytes, bool chat = false) {
    return refusal(Exit::bad_input, [&] { prompts_of(folder, bytes, chat); });
}

}  // namespace

BOOST_AUTO_TEST_CASE(prompt_arguments_are_literal) {
    Options o;
    o.prompts = {"a\\nb", "a\nb", "  ", "\xC2\xA0", "\xEF\xBB\xBF"};
    const auto prompts = read_prompts(o);
    BOOST_REQUIRE(prompts.size() == 5u);
    BOOST_TEST(prompts[0].text.size() == 4u);
    BOOST_TEST(prompts[1].text.size() == 3u);
    BOOST_TEST(prompts[4].text == "\xEF\xBB\xBF");  // on the command line a byte order mark is text
    o.prompts = {"fine", ""};
    TEST_HOLDS(refusal(Exit::bad_input, [&] { read_prompts(o); }), "--prompt 2: empty prompt");
    o.prompts = {"ab\xED\xA0\x80"};
    TEST_HOLDS(refusal(Exit::bad_input, [&] { read_prompts(o); }),
               "--prompt 1: invalid UTF-8 (surrogate) at byte 2");
}

BOOST_AUTO_TEST_CASE(text_prompt_files) {
    const Folder folder;
    auto prompts = prompts_of(folder, "one\r\n two \nthree\\n\n\t\nlast");
    BOOST_REQUIRE(prompts.size() == 5u);
    BOOST_TEST(prompts[0].text == "one");
    BOOST_TEST(prompts[1].text == " two ");
    BOOST_TEST(prompts[2].text == "three\\n");
    BOOST_TEST(prompts[3].text == "\t");
    BOOST_TEST(prompts[4].text == "last");
    BOOST_TEST(prompts_of(folder, "a\nb\n\n\r\n\n").size() == 2u);
    BOOST_TEST(prompts_of(folder,
                          "\xEF\xBB\xBF"
                          "a\n")[0]
                   .text == "a");
    BOOST_TEST(prompts_of(folder, std::string("a\0b\n", 4))[0].text == std::string("a\0b", 3));
    TEST_HOLDS(bad_prompts(folder, "a\n\nb\n"), "prompts: line 2: empty prompt");
    for (const char* empty : {"", "\n", "\r\n\n\n", "\xEF\xBB\xBF"})
        TEST_HOLDS(bad_prompts(folder, empty), "no prompts");
    const std::pair<const char*, const char*> bad[] = {{"\xFF", "at byte 3"},
                                                       {"\xC3\x28", "lead byte without"},
                                                       {"\xE2\x82", "truncated"},
                                                       {"\xED\xA0\x80", "(surrogate)"},
                                                       {"\xF5\x80\x80\x80", "above U+10FFFF"},
                                                       {"\xC0\xAF", "overlong"},
                                                       {"\x80", "continuation byte"},
                                                       {"\xE0\x80\x80", "overlong"},
                                                       {"\xF4\x90\x80\x80", "above U+10FFFF"}};
    for (const auto& [bytes, message] : bad) {
        const auto text = bad_prompts(folder, std::string("ok\n") + bytes);
        TEST_HOLDS(text, "prompts: line 2: invalid UTF-8");
        TEST_HOLDS(text, "at byte 3 of the file");
        TEST_HOLDS(text, message);
    }
    TEST_HOLDS(bad_prompts(folder, std::string("\xFF\xFE"
                                               "a\0",
                                               4)),
               "UTF-16");
}

BOOST_AUTO_TEST_CASE(json_lines) {
    const Folder folder;
    auto prompts = prompts_of(
        folder,
        "{\"prompt\": \"a\\nb \\ud83d\\udc4d \\\\ud83d\", \"id\": \"first\", \"max_tokens\": 5}\r\n"
        "{\"ids\": [0, 2147483647], \"id\": 7}\n{\"prompt\":\"\\u0000\"}\n\n");
    BOOST_REQUIRE(prompts.size() == 3u);
    BOOST_TEST(prompts[0].text == "a\nb \xF0\x9F\x91\x8D \\ud83d");
    BOOST_TEST(prompts[0].id == "first");
    BOOST_TEST((prompts[0].max_tokens == 5));
    BOOST_TEST(prompts[1].ids == (std::vector<std::int32_t>{0, 2147483647}),
               boost::test_tools::per_element());
    BOOST_TEST(prompts[1].id == "7");
    BOOST_TEST(prompts[2].text == std::string(1, '\0'));

    const std::pair<const char*, const char*> bad[] = {
        {R"({"prompt": "\ud83d"})", "lone surrogate \\ud83d at byte 12 of the line"},
        {R"({"prompt": "\udc4d\ud83d"})", "lone surrogate \\udc4d"},
        {R"({"prompt": "\ud83d\n"})", "lone surrogate"},
        {R"({"prompt": "a", "max_token": 3})", "unknown key \"max_token\" | did you mean max_tokens?"},
        {R"({"prompt": "a", "prompt": "b"})", "key \"prompt\" twice"},
        {R"({"prompt": ""})", "empty prompt"},
        {R"({"ids": []})", "empty prompt"},
        {R"({"id": "x"})", "neither prompt nor ids"},
        {R"({"prompt": "a", "ids": [1]})", "both prompt and ids"},
        {R"({"ids": [1, -1]})", "ids[1] must be a whole number from 0 to 2147483647"},
        {R"({"ids": [2147483648]})", "ids[0]"},
        {R"({"ids": [1.0]})", "ids[0]"},
        {R"({"ids": [1e3]})", "ids[0]"},
        {R"({"ids": ["1"]})", "ids[0]"},
        {R"({"ids": [18446744073709551615]})", "ids[0]"},
        {R"({"ids": 3})", "ids must be an array"},
        {R"({"prompt": 3})", "prompt must be a string"},
        {R"({"prompt": "a", "max_tokens": 0})", "max_tokens must be a whole number from 1"},
        {R"({"prompt": "a", "id": ""})", "id is empty"},
        {R"({"prompt": "a"} {"prompt": "b"})", "not one JSON object"},
        {R"({"prompt": "a")", "not one JSON object"},
        {R"({ starts like JSON)", "JSONL"},
    };
    for (const auto& [line, message] : bad) {
        const auto text = bad_prompts(folder, std::string("{\"prompt\": \"fine\"}\n") + line + "\n");
        TEST_HOLDS(text, "prompts: line 2: ");
        TEST_HOLDS(text, message);
    }
    TEST_HOLDS(bad_prompts(folder, "{\"prompt\":\"a\"}\n[1]\n"), "line 2: not a JSON object");
    TEST_HOLDS(bad_prompts(folder, "{\"prompt\":\"a\"}\n\n{\"prompt\":\"b\"}\n"), "line 2: empty prompt");
    TEST_HOLDS(bad_prompts(folder, "{\"prompt\":\"a\",\"id\":\"x\"}\n{\"prompt\":\"b\",\"id\":\"x\"}\n"),
               "line 2: id \"x\" was used before");
    TEST_HOLDS(bad_prompts(folder, "{\"ids\":[1]}\n", true), "chat");
    TEST_HOLDS(bad_prompts(folder, "{\"ids\":" + std::string(100000, '[')), "not one JSON object");
}

BOOST_AUTO_TEST_CASE(json_that_is_not_one_object_a_line_is_no_text) {
    const Folder folder;
    Options o;
    for (const char* name : {"p.json", "p.jsonl", "p.ndjson", "p.JSON"}) {
        o.prompts_file = folder.write(name, "\xEF\xBB\xBF \n[{\"prompt\": \"a\"},\n{\"prompt\": \"b\"}]\n");
        const auto text = refusal(Exit::bad_input, [&] { read_prompts(o); });
        TEST_HOLDS(text, std::string(name) + ": holds a JSON array | one JSON object a line is read");
        o.prompts_file = folder.write(name, "\"a\"\n\"b\"\n");
        TEST_HOLDS(refusal(Exit::bad_input, [&] { read_prompts(o); }),
                   std::string(name) + ": has the name of a JSON file");
        o.prompts_file = folder.write(name, "{\"prompt\": \"a\"}\n");
        BOOST_TEST(read_prompts(o).size() == 1u);
    }
    // Under any other name a bracket is text.
    for (const char* name : {"p", "p.txt", "p.json.txt", ".json"}) {
        o.prompts_file = folder.write(name, "[1, 2, 3]\n");
        BOOST_TEST(read_prompts(o).at(0).text == "[1, 2, 3]");
    }
}

BOOST_AUTO_TEST_CASE(odd_files_are_refused_without_waiting) {
    const Folder folder;
    Options o;
    o.prompts_file = folder.path / "fifo";
    BOOST_REQUIRE(mkfifo(o.prompts_file.c_str(), 0600) == 0);
    TEST_HOLDS(refusal(Exit::bad_input, [&] { read_prompts(o); }), "not a regular file");
    for (const auto& path : {fs::path("/dev/zero"), folder.path}) {
        o.prompts_file = path;
        TEST_HOLDS(refusal(Exit::bad_input, [&] { read_prompts(o); }), "not a regular file");
    }
    o.prompts_file = folder.path / "none";
    TEST_HOLDS(refusal(Exit::bad_input, [&] { read_prompts(o); }), "does not exist");
    o.prompts_file = folder.write("huge", "");
    fs::resize_file(o.prompts_file, (std::uintmax_t(1) << 30) + 1);  // sparse
    TEST_HOLDS(refusal(Exit::bad_input, [&] { read_prompts(o); }), "more than the 1073741824 allowed");
}

BOOST_AUTO_TEST_CASE(large_prompt_files_are_read_quickly) {
    const Folder folder;
    std::string text, json;
    for (int i = 0; i < 10000; ++i) {
        text += "prompt number " + std::to_string(i) + "\n";
        json += "{\"id\": " + std::to_string(i) + ", \"prompt\": \"number " + std::to_string(i) + "\"}\n";
    }
    const std::string megabyte(1 << 20, 'x');
    text += megabyte + "\n";
    json += "{\"prompt\": \"" + megabyte + "\"}\n";
    const auto start = std::chrono::steady_clock::now();
    BOOST_TEST(prompts_of(folder, text).size() == 10001u);
    const auto prompts = prompts_of(folder, json);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    BOOST_TEST(prompts.size() == 10001u);
    BOOST_TEST(prompts.back().text.size() == megabyte.size());
    BOOST_TEST(seconds < 5);  // far above what is needed; a quadratic reader takes minutes
    BOOST_TEST_MESSAGE("two files of 10,001 prompts read in " << seconds << " s");
}
