// Ids and text: the reference ids, added tokens, normalization, bytes that are not text, chat prompts, long
// runs.
#define BOOST_TEST_MODULE tokenizer
#include "tokenizer.hpp"

#include <simdjson.h>
#include <utf8proc.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "error.hpp"
#include "refusal.hpp"
#include "text/utf8.hpp"
#include "tokenizer_file.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;
using Ids = std::vector<std::int32_t>;
using namespace std::string_literals;

namespace boost::test_tools::tt_detail {
template <> struct print_log_value<Ids> {
    void operator()(std::ostream& out, const Ids& ids) {
        for (const auto id : ids) out << id << ' ';
    }
};
}  // namespace boost::test_tools::tt_detail

namespace {

const std::filesystem::path kTiny = FTMPI_DATA "/tiny-nvfp4";
const std::string kFEFF = "\xEF\xBB\xBF", kReplacement = "\xEF\xBF\xBD";

std::string from_hex(std::string_view hex) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
    return bytes;
}

template <class List> Ids ids_in(const List& list) {
    Ids ids;
    for (const std::int64_t id : list) ids.push_back(static_cast<std::int32_t>(id));
    return ids;
}

/// Every byte alone.
Ids bytes_of_text(const std::string& text) {
    Ids ids;
    for (const unsigned char byte : text) ids.push_back(byte);
    return ids;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(references)

BOOST_AUTO_TEST_CASE(golden_ids_and_texts) {
    const auto tokenizer = Tokenizer::load(kTiny);
    simdjson::dom::parser parser;
    const simdjson::dom::element document = parser.load(FTMPI_DATA "/references/tokenizer-goldens.json");
    std::size_t count = 0;
    for (const auto item : simdjson::dom::array(document["items"])) {
        const auto text = from_hex(std::string_view(item["utf8_hex"]));
        const auto ids = ids_in(simdjson::dom::array(item["ids"]));
        BOOST_TEST_CONTEXT("text " << text) {
            BOOST_TEST(tokenizer.encode(text) == ids);
            BOOST_TEST(tokenizer.decode(ids) == std::string_view(item["decoded"]));
        }
        ++count;
    }
    BOOST_TEST(count == 200u);
}

BOOST_AUTO_TEST_CASE(prompt_ids) {
    const auto tokenizer = Tokenizer::load(kTiny);
    simdjson::dom::parser parser;
    const simdjson::dom::element document = parser.load(FTMPI_DATA "/references/prompts.json");
    std::size_t chats = 0;
    for (const auto prompt : simdjson::dom::array(document["prompts"])) {
        const auto ids = ids_in(simdjson::dom::array(prompt["ids"]));
        BOOST_TEST(tokenizer.encode(std::string_view(prompt["text"])) == ids);
        if (std::string_view(prompt["name"]) == "chat") {
            for (const bool thinking : {false, true}) {
                BOOST_TEST(encode_chat(tokenizer, known_chat_template(kTiny), "What is the capital of Japan?",
                                       thinking) == ids);
            }
            ++chats;
        }
    }
    BOOST_TEST(chats == 1u);
}

// The ids of the real vocabulary: run by tokenizer_real_test.sh with FTMPI_TOKENIZER naming the directory
// and, where it can compute them, FTMPI_TOKENIZER_LINES naming a file of lines "HEX ID ID ..." made by
// another implementation.
BOOST_AUTO_TEST_CASE(real_vocabulary, *boost::unit_test::disabled()) {
    const char* const directory = std::getenv("FTMPI_TOKENIZER");
    BOOST_REQUIRE_MESSAGE(directory, "FTMPI_TOKENIZER is not set");
    const auto start = std::chrono::steady_clock::now();
    const auto tokenizer = Tokenizer::load(directory);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    BOOST_TEST_MESSAGE("loaded " << tokenizer.end() << " tokens in " << seconds.count() << " s");
    BOOST_TEST(tokenizer.end() == 248077);

    const std::pair<std::string, Ids> probes[] = {
        {"สวัสดีครับ ผมชื่ออเล็กซ์", {34469, 168607, 153295, 173922, 153380, 22216, 151752, 172769}},
        {"你好，世界！今天是2026年8月13日 🎉",
         {109266, 3709, 96748, 6115, 113128, 17, 15, 17, 21, 95859, 23, 96212, 16, 18, 95971, 10838, 236,
          231}},
        {"transformers", {4549, 382}},
        {"สวัสดี", {34469, 168607}},
        {"人工智能", {109015}},
        {"<|im_start|>", {248045}},
    };
    for (const auto& [text, ids] : probes) {
        BOOST_TEST(tokenizer.encode(text) == ids);
        BOOST_TEST(tokenizer.decode(ids) == text);
    }
    BOOST_TEST(tokenizer.encode("<|im_start|>", Tokenizer::Added::plain) == (Ids{27, 91, 316, 4747, 91, 29}));
    BOOST_TEST(*tokenizer.id_of("</think>") == 248069);
    BOOST_TEST(!tokenizer.is_special(248069));
    BOOST_TEST(tokenizer.is_special(248046));

    if (const char* const file = std::getenv("FTMPI_TOKENIZER_LINES")) {
        std::ifstream lines(file);
        std::size_t count = 0;
        for (std::string line; std::getline(lines, line); ++count) {
            std::istringstream words(line);
            std::string hex;
            words >> hex;
            Ids ids;
            for (std::int32_t id; words >> id;) ids.push_back(id);
            BOOST_TEST_CONTEXT("text in hex " << hex) { BOOST_TEST(tokenizer.encode(from_hex(hex)) == ids); }
        }
        BOOST_TEST(count > 0u);
        BOOST_TEST_MESSAGE(count << " texts of another implementation compared");
    }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(ids)

BOOST_AUTO_TEST_CASE(merges_in_their_order) {
    const auto tokenizer = TokenizerFile().load();
    BOOST_TEST(tokenizer.encode("") == Ids{});
    BOOST_TEST(tokenizer.encode("abcab") == (Ids{257, 256}));
    // "a b" comes before "space a" in the list, so it is joined first although it stands further right.
    BOOST_TEST(tokenizer.encode(" ab") == (Ids{32, 256}));
    BOOST_TEST(tokenizer.encode(" a") == (Ids{258}));
    BOOST_TEST(tokenizer.end() == 304);
    BOOST_TEST(tokenizer.decode(Ids{257, 258, 10}) == "abc a\n");
    BOOST_TEST(*tokenizer.id_of(" a") == 258);
    BOOST_TEST(!tokenizer.id_of("nowhere"));
}

BOOST_AUTO_TEST_CASE(ids_without_a_token) {
    const auto tokenizer = TokenizerFile().load();
    for (const std::int32_t id : {-1, 260, 299, 304, 310, 319, 320, 1 << 30}) {
        BOOST_TEST(!tokenizer.has(id));
        BOOST_TEST(tokenizer.bytes(id).empty());
    }
    BOOST_TEST(tokenizer.has(0));
    BOOST_TEST(tokenizer.has(303));
    BOOST_TEST(tokenizer.decode(Ids{97, 299, 319, -1, 98}) == "ab");
}

BOOST_AUTO_TEST_CASE(merges_as_strings_give_the_same_ids) {
    TokenizerFile file;
    file.merges = R"("a b", "ab c", ")" + symbol_of(' ') + R"( a", "x )" + symbol_of(0xCC) + "\"";
    const auto strings = file.load(), arrays = TokenizerFile().load();
    for (const auto* text : {"abcab", " ab", " a", "x\xCC\x81y", "xyz ab\nabc"})
        BOOST_TEST(strings.encode(text) == arrays.encode(text));
}

BOOST_AUTO_TEST_CASE(tokens_with_a_space_need_merges_as_arrays) {
    TokenizerFile file;
    file.add("a b", 260),
        file.add("a bc", 261);  // raw spaces are no byte-level symbols, so these stand for themselves
    file.merges += R"(, ["a b", "c"])";
    const auto tokenizer = file.load();
    BOOST_TEST(tokenizer.bytes(261) == "a bc");
    file.merges += R"(, "a b c")";
    BOOST_TEST(contains(refusal(Exit::bad_input, [&] { file.load(); }), "model.merges[5]"));
}

BOOST_AUTO_TEST_CASE(added_tokens_leftmost_longest) {
    const auto tokenizer = TokenizerFile().load();
    BOOST_TEST(tokenizer.encode("<a>") == (Ids{300}));
    BOOST_TEST(tokenizer.encode("<a><b>") == (Ids{301}));
    BOOST_TEST(tokenizer.encode("<a><b") == (Ids{300, '<', 'b'}));
    BOOST_TEST(tokenizer.encode("<think>\n</think>") ==
               (Ids{302, 10, '<', '/', 't', 'h', 'i', 'n', 'k', '>'}));
    BOOST_TEST(tokenizer.encode("a<|im_end|>ab") == (Ids{97, 303, 256}));
    BOOST_TEST(tokenizer.encode("<a>", Tokenizer::Added::plain) == bytes_of_text("<a>"));
    BOOST_TEST(*tokenizer.id_of("<a>") == 300);
    BOOST_TEST(tokenizer.is_special(303));
    BOOST_TEST(!tokenizer.is_special(302));

    TokenizerFile overlapping;
    overlapping.added =
        added_token(300, "QX") + "," + added_token(301, "QY") + "," + added_token(302, "QYQX");
    BOOST_TEST(overlapping.load().encode("QXQYQX") == (Ids{300, 302}));
    overlapping.added = added_token(88, "X") + "," + added_token(89, "Y") + "," + added_token(302, "YX");
    BOOST_TEST(overlapping.load().encode("XYX") == (Ids{88, 302}));
}

BOOST_AUTO_TEST_CASE(added_tokens_before_and_after_normalization) {
    const std::string decomposed = "<e\xCC\x81>", composed = "<\xC3\xA9>";
    TokenizerFile file;
    file.added = added_token(300, decomposed);
    BOOST_TEST(file.load().encode(decomposed) == (Ids{300}));
    BOOST_TEST(file.load().encode(composed) == bytes_of_text(composed));
    file.added = added_token(300, decomposed, false, true);
    BOOST_TEST(file.load().encode(decomposed) == (Ids{300}));
    BOOST_TEST(file.load().encode(composed) == (Ids{300}));
    BOOST_TEST(file.load().encode(composed, Tokenizer::Added::plain) == bytes_of_text(composed));
}

BOOST_AUTO_TEST_CASE(normalization_form_c) {
    const auto tokenizer = TokenizerFile().load();
    const std::pair<std::string, std::string> cases[] = {
        {"e\xCC\x81", "\xC3\xA9"},         // e, acute
        {"\xE1\xBE\xBD", "\xE1\xBE\xBD"},  // U+1FBD has only a compatibility decomposition
        {"\xEF\xAC\x81", "\xEF\xAC\x81"},  // so has the ligature fi
        {"y\xC2\xB2", "y\xC2\xB2"},        // and superscript two
        {"\xE2\x84\xAB", "\xC3\x85"},      // the angstrom sign is a letter
        {"\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"},         // Hangul jamo
        {"q\xCC\x87\xCC\xA3", "q\xCC\xA3\xCC\x87"},                       // two marks in order
        {"1\xCC\x81\xC3\xA9 e\xCC\x81z", "1\xCC\x81\xC3\xA9 \xC3\xA9z"},  // text around them
        {"\xEA\xB0\x80\xE1\x86\xA7", "\xEA\xB0\x80\xE1\x86\xA7"}          // U+11A7 is no final consonant
    };
    for (const auto& [text, normal] : cases) BOOST_TEST(tokenizer.decode(tokenizer.encode(text)) == normal);
    BOOST_TEST(tokenizer.encode("e\xCC\x81") == (Ids{195, 169}));

    TokenizerFile plain;
    plain.normalizer = "null";
    BOOST_TEST(plain.load().encode("e\xCC\x81") == (Ids{101, 204, 129}));
    plain.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})";
    BOOST_TEST(plain.load().encode("e\xCC\x81") == (Ids{195, 169}));
}

BOOST_AUTO_TEST_CASE(characters_newer_than_unicode_9_are_not_normalized) {
    // As in the package tokenizers, whatever version the library knows. Each text would change by the newest.
    const auto tokenizer = TokenizerFile().load();
    for (const std::string text :
         {"a\u1DF6\u0316", "a\u08D3\u0316e", "\u1DF6\u0316\u1DF6\u0316", "q\u0301\U00010F46\u0316",
          "\U00011935\U00011930", "\U00011938", "\U000105D2\u0307", "\U000105C9", "\U00016D67\U00016D67"})
        BOOST_TEST(tokenizer.decode(tokenizer.encode(text)) == text);
    // A mark behind one of them joins nothing, and the text goes on as before.
    BOOST_TEST(tokenizer.decode(tokenizer.encode("e\u1DF6\u0301e\u0301q\u0307\u0323")) ==
               "e\u1DF6\u0301\u00E9q\u0323\u0307");
    BOOST_TEST(tokenizer.decode(tokenizer.encode("q\u0307\u0323\u1DF6\u0307\u0323")) ==
               "q\u0323\u0307\u1DF6\u0323\u0307");
}

BOOST_AUTO_TEST_CASE(accents_composed_or_not_are_one_text) {
    const auto tokenizer = Tokenizer::load(kTiny);
    const auto composed = tokenizer.encode("Hello world! Café déjà vu — 123 😊");
    BOOST_TEST(tokenizer.encode("Hello world! Cafe\xCC\x81 de\xCC\x81ja\xCC\x80 vu — 123 😊") == composed);
    BOOST_TEST(tokenizer.decode(composed) == "Hello world! Café déjà vu — 123 😊");
}

BOOST_AUTO_TEST_CASE(the_file_decides_the_pattern) {
    const std::string text = "x\xCC\x81y";  // no composed form
    TokenizerFile file;
    BOOST_TEST(file.load().encode(text) == (Ids{259, 129, 121}));
    file.pattern = R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    BOOST_TEST(file.load().encode(text) == (Ids{120, 204, 129, 121}));
}

BOOST_AUTO_TEST_CASE(white_space_alone_is_text) {
    const auto tokenizer = TokenizerFile().load();
    for (const auto& text :
         {" "s, "\t\n"s, "\xC2\xA0"s, "\xE2\x80\x8B"s, kFEFF, kFEFF + "z", "z\0y"s, "\r\n"s, "z\\ny"s}) {
        BOOST_TEST(tokenizer.encode(text) == bytes_of_text(text));
    }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(bytes_that_are_not_text)

BOOST_AUTO_TEST_CASE(are_refused_with_their_place) {
    const auto tokenizer = TokenizerFile().load();
    const std::pair<std::string, std::string> cases[] = {
        {"\xFF", "not a UTF-8 byte"},
        {"\xC3\x28", "lead byte without its continuation bytes"},
        {"\xE2\x82", "truncated"},
        {"\xED\xA0\x80", "surrogate"},
        {"\xF5\x80\x80\x80", "above U+10FFFF"},
        {"\xF4\x90\x80\x80", "above U+10FFFF"},
        {"\xC0\xAF", "overlong"},
        {"\xE0\x80\x80", "overlong"},
        {"\xF0\x8F\xBF\xBF", "overlong"},
        {"\x80", "continuation byte without a lead byte"}};
    for (const auto& [bytes, fault] : cases) {
        for (const auto& before : {""s, "plain text "s, "\xE2\x82\xAC"s}) {
            std::string what;
            BOOST_TEST(find_invalid_utf8(before + bytes, &what) == before.size());
            BOOST_TEST(what == fault);
            const auto text = before + bytes;
            const auto message = refusal(Exit::bad_input, [&] { tokenizer.encode(text); });
            BOOST_TEST(
                contains(message, "invalid UTF-8 (" + fault + ") at byte " + std::to_string(before.size())));
        }
    }
    for (const auto& text : {""s, "a\0b"s, kFEFF + "a", "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"s}) {
        BOOST_TEST(find_invalid_utf8(text) == std::string_view::npos);
    }
}

BOOST_AUTO_TEST_CASE(in_the_output_become_replacement_characters) {
    const auto tokenizer = TokenizerFile().load();
    const Ids face{0xF0, 0x9F, 0x98, 0x8A};
    BOOST_TEST(tokenizer.decode(face) == "😊");
    for (std::size_t count = 1; count < 4; ++count) {
        BOOST_TEST(tokenizer.decode(std::span(face).first(count)) == kReplacement);
        Utf8Stream stream;
        for (std::size_t i = 0; i < count; ++i) BOOST_TEST(stream.push(tokenizer.bytes(face[i])) == "");
        BOOST_TEST(stream.finish() == kReplacement);
        BOOST_TEST(stream.finish() == "");
    }
    // One replacement for each longest start of a character, one for each byte that starts none.
    BOOST_TEST(tokenizer.decode(Ids{0xE2, 0x82, 'y'}) == kReplacement + "y");
    BOOST_TEST(tokenizer.decode(Ids{0xED, 0xA0, 0x80}) == kReplacement + kReplacement + kReplacement);
    BOOST_TEST(tokenizer.decode(Ids{0xF0, 0x9F, 0xF0, 0x9F, 0x98, 0x8A}) == kReplacement + "😊");
}

BOOST_AUTO_TEST_CASE(a_stream_is_valid_at_every_moment) {
    std::mt19937 random(1);
    const std::string parts[] = {
        "a", "é", "€", "😊", "\xF0\x9F", "\xE2\x82", "\xFF", "\x80", "\xED\xA0\x80", "\xC0", "\xF4\x90"};
    for (int round = 0; round < 2000; ++round) {
        std::string bytes;
        for (int i = 0; i < 12; ++i) bytes += parts[random() % std::size(parts)];
        Utf8Stream whole, pieces;
        auto text = whole.push(bytes);
        text += whole.finish();
        std::string shown;
        for (std::size_t i = 0; i < bytes.size();) {
            const auto length = 1 + random() % 3;
            shown += pieces.push(std::string_view(bytes).substr(i, length));
            BOOST_REQUIRE(find_invalid_utf8(shown) == std::string_view::npos);
            i += length;
        }
        BOOST_REQUIRE_EQUAL(shown + pieces.finish(), text);
    }
}

BOOST_AUTO_TEST_SUITE_END()

// A quadratic step would take minutes here, and recursion the whole stack.
BOOST_AUTO_TEST_CASE(one_megabyte_of_one_class) {
    const auto tokenizer = Tokenizer::load(kTiny);
    const auto encode = [&](const std::string& unit, const std::string& tail) {
        std::string text;
        while (text.size() < 1'000'000) text += unit;
        text += tail;
        const auto start = std::chrono::steady_clock::now();
        const auto ids = tokenizer.encode(text);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        BOOST_TEST(seconds.count() < 20);
        return std::pair(text, tokenizer.decode(ids));
    };
    const std::pair<std::string, std::string> normal[] = {
        {"a", ""},  {"A", ""},    {"the ", ""},     {"7", ""},         {" ", ""},     {" ", "a"},
        {"\n", ""}, {"\r\n", ""}, {" \n", ""},      {"\t", ""},        {"-=_$(", ""}, {"😊", ""},
        {"é", ""},  {"人", ""},   {"\xCC\x81", ""}, {"\xC2\xA0", "x"}, {"<|im_", ""}, {"'", ""}};
    for (const auto& [unit, tail] : normal) {
        BOOST_TEST_CONTEXT("unit '" << unit << "'") {
            const auto [text, decoded] = encode(unit, tail);
            BOOST_TEST((text == decoded));
        }
    }
    const auto hangul = encode("\xE1\x84\x80\xE1\x85\xA1", "").second;
    BOOST_TEST(hangul.size() == 500'001u);
    // Marks are sorted by class, which a sort by neighbours would do in quadratic time.
    const auto marks = encode("\xCC\x81\xCC\xA3", "").second;
    BOOST_TEST(marks.substr(0, 6) == "\xCC\xA3\xCC\xA3\xCC\xA3");
    BOOST_TEST(marks.substr(500'000 - 2, 4) == "\xCC\xA3\xCC\x81");
}

BOOST_AUTO_TEST_CASE(forty_three_thousand_letters) {
    const auto ids = TokenizerFile().load().encode(std::string(43'000, 'A'));
    BOOST_TEST((ids == Ids(43'000, 'A')));
}

// A prompt that cannot fit is refused by its length, so no text may have fewer tokens than that says.
BOOST_AUTO_TEST_CASE(no_text_has_fewer_tokens_than_its_length_says) {
    const auto tokenizer = Tokenizer::load(kTiny);
    std::size_t longest = 0;
    std::string joined;
    for (std::int32_t id = 0; id < tokenizer.end(); ++id)
        longest = std::max(longest, tokenizer.bytes(id).size());
    for (std::int32_t id = 0; id < tokenizer.end(); ++id)
        if (tokenizer.bytes(id).size() == longest)
            for (int i = 0; i < 100; ++i) joined += tokenizer.bytes(id);
    BOOST_TEST(tokenizer.least_tokens(0) == 0);
    BOOST_TEST(tokenizer.least_tokens(1) == 1);
    BOOST_TEST(tokenizer.least_tokens(4 * longest) == 1);
    BOOST_TEST(tokenizer.least_tokens(4 * longest + 1) == 2);
    for (const std::string& text : {joined, std::string(5000, ' '), std::string(5000, 'a'), std::string("x")})
        BOOST_TEST(tokenizer.least_tokens(text.size()) <=
                   static_cast<std::int64_t>(tokenizer.encode(text).size()));
    BOOST_TEST(TokenizerFile().load().least_tokens(1000) <= 1000);
}

// Form C makes no text shorter than a quarter: over all characters, and whatever characters a result was made
// of.
BOOST_AUTO_TEST_CASE(normalization_shortens_to_a_quarter_at_most) {
    const auto bytes_of = [](std::int32_t c) { return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4; };
    constexpr std::int32_t end = 0x110000;
    const auto decomposed = [](std::int32_t c) {
        utf8proc_int32_t parts[8];
        int boundary = 0;
        const auto n = utf8proc_decompose_char(
            c, parts, 8, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
        return std::vector<std::int32_t>(parts, parts + std::clamp<utf8proc_ssize_t>(n, 0, 8));
    };
    // The longest character that means the same as one that is not decomposed further.
    std::vector<int> longest(end, 0);
    for (std::int32_t c = 0; c < end; ++c)
        if (const auto parts = decomposed(c); parts.size() == 1)
            longest[parts[0]] = std::max(longest[parts[0]], bytes_of(c));
    int worst = 0;
    for (std::int32_t c = 0; c < end; ++c) {
        if (c >= 0xD800 && c < 0xE000) continue;
        int sum = 0;
        for (const auto part : decomposed(c)) sum += longest[part];
        if (decomposed(c).size() > 1)
            BOOST_REQUIRE(bytes_of(c) <= sum);  // so the parts' sum bounds every spelling
        std::string one, composed;
        append_character(one, static_cast<char32_t>(c));
        auto* const nfc = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(one.c_str()));
        composed = nfc ? reinterpret_cast<const char*>(nfc) : "";
        std::free(nfc);
        if (composed != one) continue;  // no result of form C
        BOOST_REQUIRE_MESSAGE(sum <= 4 * bytes_of(c), "U+" << std::hex << c << " may be spelled with "
                                                           << std::dec << sum << " bytes");
        worst = std::max(worst, 2 * sum / bytes_of(c));
    }
    BOOST_TEST(worst == 7);  // U+0390 of U+1FBE, U+0308 and U+0301: two bytes of seven
}
