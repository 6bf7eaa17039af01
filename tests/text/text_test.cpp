// Text in other text, sizes and small files: what every room above uses.
#define BOOST_TEST_MODULE text
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>

#include "refusal.hpp"
#include "safetensors_writer.hpp"
#include "text/quoting.hpp"
#include "text/size.hpp"
#include "text/small_file.hpp"
#include "text/utf8.hpp"

using namespace ftmpi;
using ftmpi::testing::refusal;
using ftmpi::testing::TemporaryDirectory;
using ftmpi::testing::write_file;
using namespace std::string_literals;

BOOST_AUTO_TEST_CASE(quotes_of_a_message) {
    BOOST_TEST(in_quotes("plain \xC3\xA9") == "\"plain \xC3\xA9\"");
    BOOST_TEST(in_quotes("a\nb\x1b\x7f"s + '\0') == R"("a\x0ab\x1b\x7f\x00")");
    BOOST_TEST(in_quotes(R"(say "hi" \n)") == R"("say \"hi\" \\n")");
    BOOST_TEST(in_quotes("\xFF\xE2\x82z") == R"("\xff\xe2\x82z")");
    BOOST_TEST(in_quotes("") == R"("")");
    BOOST_TEST(in_quotes(std::string(200, 'x')) == '"' + std::string(200, 'x') + '"');
    BOOST_TEST(in_quotes("0123456789", 6) == R"("0123...89")");
    // A character is never cut in two, so none of its bytes is shown as one that is not UTF-8.
    for (std::size_t limit = 0; limit < 30; ++limit) {
        const auto text = escaped("\xE2\x82\xAC\xF0\x9F\x98\x8A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x8A", limit);
        BOOST_TEST(text.find('\\') == text.npos, text);
        BOOST_TEST(find_invalid_utf8(text) == text.npos);
    }
    BOOST_TEST(escaped("a\\x0a") != escaped("a\n"));
}

BOOST_AUTO_TEST_CASE(words_of_json_shell_and_job_files) {
    BOOST_TEST(json_string("a\"\\\n\t\x01\xC3\xA9\x7f") == "\"a\\\"\\\\\\n\\u0009\\u0001\xC3\xA9\x7f\"");
    BOOST_TEST(json_string("\xE2\x82") == "\"\xEF\xBF\xBD\"");
    BOOST_TEST(shell_word("it's") == R"('it'\''s')");
    BOOST_TEST(shell_word("") == "''");
    BOOST_TEST(shell_word("--shares=3,1:2") == "--shares=3,1:2");
    for (const auto& text : {"a b"s, "# no comment behind the ="s, "\xC3\xA9"s, "a\tb"s})
        BOOST_TEST(fits_job_line(text), text);
    for (const auto& text : {""s, " a"s, "a\t"s, "a\r"s, "a\nb"s, "a\0b"s, "\xFF"s})
        BOOST_TEST(!fits_job_line(text), text);
    BOOST_TEST(readable_text("a\0b\xE2\x82\xFFz"s) ==
               "a\xEF\xBF\xBD"
               "b\xEF\xBF\xBD\xEF\xBF\xBDz");
}

BOOST_AUTO_TEST_CASE(sizes) {
    BOOST_TEST(size_text(0) == "0 B");
    BOOST_TEST(size_text(1023) == "1023 B");
    BOOST_TEST(size_text(1536, "") == "1.5KiB");
    BOOST_TEST(size_text(std::uint64_t{24} << 30) == "24 GiB");
    BOOST_TEST(mebibytes(std::uint64_t{3} << 20) == "3.00");
    std::string why;
    BOOST_TEST(parse_size("24GiB", why).value() == std::uint64_t{24} << 30);
    BOOST_TEST(parse_size("1.5GB", why).value() == 1'500'000'000u);
    BOOST_TEST(parse_size("9007199254740993", why).value() == 9007199254740993u);
    const auto refused = [&](const char* text) { return parse_size(text, why) ? "taken: "s + text : why; };
    for (const char* text : {"", "GiB", "1.GiB", "1.2.3GiB", "-1", "+1", "16G", "1e3", "0x10", "1 GiB"})
        BOOST_TEST(refused(text) == "must be a size", text);
    BOOST_TEST(refused("1.5") == "must be a whole number of bytes");
    for (const char* text : {"9300000000000000000", "99999999999999999999999", "8388608TiB"})
        BOOST_TEST(refused(text) == "must be below 8 EiB", text);
}

BOOST_AUTO_TEST_CASE(small_files_are_regular_whole_and_small) {
    const TemporaryDirectory folder;
    const auto file = folder / "file";
    const auto said = [&](const std::filesystem::path& path, const FileWords& words = {}) {
        return refusal(words.code, [&] { read_small_file(path, 10, words); });
    };
    write_file(file, "0123456789");
    BOOST_TEST(read_small_file(file, 10) == "0123456789");
    BOOST_TEST(!read_small_file("/proc/self/stat", 4096).empty());  // its size is said to be 0
    write_file(file, "0123456789a");
    BOOST_TEST(said(file).starts_with(file.string() + " has 11 bytes, more than the 10 allowed"));
    BOOST_TEST(said("/proc/self/stat").find("more than the 10 allowed") != std::string::npos);
    BOOST_TEST(said(folder / "none", {Exit::usage, "job file ", "is it there?"}) ==
               "job file " + (folder / "none").string() + " does not exist | is it there?");
    std::filesystem::create_symlink("nowhere", folder / "link");
    BOOST_TEST(said(folder / "link").find("is a symbolic link to nowhere, which does not exist") !=
               std::string::npos);
    BOOST_TEST(said(folder.path()).find("is a directory, not a regular file") != std::string::npos);
    BOOST_TEST(said("/dev/zero").find("is a device, not a regular file") != std::string::npos);
    std::filesystem::remove(file);
    BOOST_REQUIRE_EQUAL(::mkfifo(file.c_str(), 0600), 0);
    BOOST_TEST(said(file).find("is a named pipe, not a regular file") != std::string::npos);
}
