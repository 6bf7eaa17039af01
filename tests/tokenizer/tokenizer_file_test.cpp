// tokenizer.json: what is implemented is read exactly, all else is refused by name. Patterns and merges
// alone.
#define BOOST_TEST_MODULE tokenizer_file
#include <sys/stat.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>

#include "error.hpp"
#include "refusal.hpp"
#include "tokenizer.hpp"
#include "tokenizer/merges.hpp"
#include "tokenizer/pattern.hpp"
#include "tokenizer_file.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;
using Ids = std::vector<std::int32_t>;
using namespace std::string_literals;

namespace {

/// The message of loading `file` has every one of `parts`.
void check_refused(const TokenizerFile& file, std::initializer_list<std::string> parts) {
    const auto message = refusal(Exit::bad_input, [&] { file.load(); });
    BOOST_TEST(message.find("tokenizer.json") != std::string::npos, message);
    for (const auto& part : parts)
        BOOST_TEST(message.find(part) != std::string::npos, "'" << part << "' is not in: " << message);
}

std::vector<std::string> pieces_of(const std::string& pattern, const std::string& text) {
    std::vector<std::size_t> ends;
    Pattern(pattern, "pattern").split(text, ends);
    std::vector<std::string> pieces;
    std::size_t begin = 0;
    for (const auto end : ends) {
        pieces.push_back(text.substr(begin, end - begin));
        begin = end;
    }
    BOOST_TEST(begin == text.size());
    return pieces;
}

using Pieces = std::vector<std::string>;

const std::string kByteLevel =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": )";

}  // namespace

BOOST_AUTO_TEST_SUITE(refused)

BOOST_AUTO_TEST_CASE(files) {
    const TemporaryDirectory directory;
    const auto load = [&] { return refusal(Exit::bad_input, [&] { Tokenizer::load(directory.path()); }); };
    BOOST_TEST(load().find("tokenizer.json") != std::string::npos);
    for (const std::string text : {"", "{", "[]", "{\"model\": {}}", "\xFF", "{\"version\": \"\\ud800\"}"}) {
        write_file(directory / "tokenizer.json", text);
        BOOST_TEST(load().find("tokenizer.json") != std::string::npos);
    }
    // A pipe or a device is refused without waiting for it.
    const auto file = directory / "tokenizer.json", chat = directory / "chat_template.jinja";
    std::filesystem::remove(file);
    BOOST_REQUIRE_EQUAL(::mkfifo(file.c_str(), 0600), 0);
    BOOST_TEST(load().find("not a regular file") != std::string::npos);
    std::filesystem::remove(file);
    std::filesystem::create_symlink("/dev/zero", chat);
    BOOST_TEST(refusal(Exit::bad_input, [&] {
                   known_chat_template(directory.path());
               }).find("not a regular file") != std::string::npos);
    std::filesystem::remove(chat);
    BOOST_TEST(refusal(Exit::bad_input, [&] {
                   known_chat_template(directory.path());
               }).find("does not exist") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(options_of_the_model) {
    const std::pair<std::string, std::string> cases[] = {
        {R"("type": "Unigram")", "Unigram"},
        {R"("dropout": null)", "model.type"},
        {R"("type": "BPE", "dropout": 0.1)", "model.dropout"},
        {R"("type": "BPE", "continuing_subword_prefix": "##")", "model.continuing_subword_prefix"},
        {R"("type": "BPE", "end_of_word_suffix": "</w>")", "model.end_of_word_suffix"},
        {R"("type": "BPE", "byte_fallback": true)", "model.byte_fallback true"},
        {R"("type": "BPE", "ignore_merges": true)", "model.ignore_merges true"},
        {R"("type": "BPE", "ignore_merges": 1)", "model.ignore_merges is neither"},
        {R"("type": "BPE", "cache_capacity": 10)", "'cache_capacity'"},
        {R"("type": "BPE", "type": "BPE")", "twice"}};
    for (const auto& [options, name] : cases) {
        TokenizerFile file;
        file.model_options = options;
        check_refused(file, {"model", name});
    }
    // Harmless values of the same options, and an unknown token that no byte ever needs.
    TokenizerFile file;
    file.model_options =
        R"("type": "BPE", "dropout": 0.0, "unk_token": "a", "continuing_subword_prefix": "", "fuse_unk": true)";
    BOOST_TEST(file.load().encode("abc") == (Ids{257}));
}

BOOST_AUTO_TEST_CASE(a_byte_without_a_token) {
    // Those that no UTF-8 text holds may lack one.
    const auto without = [](const std::vector<int>& bytes) {
        TokenizerFile file;
        for (const int byte : bytes) {
            const auto member = quoted(symbol_of(byte)) + ": " + std::to_string(byte);
            const auto at = file.vocabulary.find(member);
            file.vocabulary.replace(
                at, member.size(),
                quoted("no such byte " + std::to_string(byte)) + ": " + std::to_string(byte));
        }
        return file;
    };
    BOOST_TEST((without({0xC0, 0xC1, 0xF5, 0xFF}).load().encode("abc") == (Ids{257})));
    for (const int byte : {0, 0x7A, 0x80, 0xC2, 0xF4}) {
        auto file = without({byte});
        check_refused(file, {"model.vocab has no token for byte " + std::to_string(byte)});
        file.model_options.replace(file.model_options.find(R"("unk_token": null)"), 17,
                                   R"("unk_token": "a")");
        check_refused(file, {"model.vocab has no token for byte " + std::to_string(byte)});
    }
}

BOOST_AUTO_TEST_CASE(a_saved_length_is_not_followed) {
    const std::string text = "abcabcabcabc";
    const auto want = TokenizerFile().load().encode(text);
    BOOST_TEST(TokenizerFile().load().notes().empty());
    for (const std::string key : {"truncation", "padding"}) {
        auto saved = TokenizerFile().text();
        const auto member = "\"" + key + "\": ";
        saved.replace(saved.find(member) + member.size(), 4,
                      R"({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0})");
        const TemporaryDirectory directory;
        write_file(directory / "tokenizer.json", saved);
        const auto tokenizer = Tokenizer::load(directory.path());
        BOOST_TEST((tokenizer.encode(text) == want));
        BOOST_REQUIRE(tokenizer.notes().size() == 1u);
        BOOST_TEST(tokenizer.notes()[0].find("tokenizer.json: '" + key + "' is not followed") !=
                   std::string::npos);
    }
}

BOOST_AUTO_TEST_CASE(vocabularies) {
    const std::pair<std::string, int> bad[] = {
        {"zz", 97}, {"ab", 270}, {"zz", -1}, {"zz", 1 << 24}, {"", 270}};
    for (const auto& [token, id] : bad) {
        TokenizerFile file;
        file.add(token, id);
        check_refused(file, {"model.vocab", token});
    }
    TokenizerFile file;
    file.vocabulary += R"(, "zz": "seven")";
    check_refused(file, {"model.vocab['zz']", "not an integer"});
}

BOOST_AUTO_TEST_CASE(merges) {
    for (const std::string merge : {R"("z q")", R"("ab")", R"("a  b")", R"(" b")", R"("a ")", R"(["a"])",
                                    R"(["a","b","c"])", R"(["a",7])", "7", R"(["a","b"])", R"(["a","z"])"}) {
        TokenizerFile file;
        file.merges += ", " + merge;
        check_refused(file, {"model.merges[4]"});
    }
}

BOOST_AUTO_TEST_CASE(added_tokens) {
    for (const std::string flag : {"single_word", "lstrip", "rstrip"}) {
        TokenizerFile file;
        file.added += "," + added_token(304, "<mask>", true, false, flag);
        check_refused(file, {"added_tokens[4]", "<mask>", flag + " true"});
    }
    const std::string bad[] = {added_token(303, "<new>"),
                               added_token(97, "<new>"),
                               added_token(304, "<a>"),
                               added_token(304, "ab"),
                               added_token(304, ""),
                               added_token(-1, "<new>"),
                               "7",
                               R"({"id": 304})"};
    for (const auto& token : bad) {
        TokenizerFile file;
        file.added += "," + token;
        check_refused(file, {"added_tokens[4]"});
    }
    TokenizerFile both;  // a token of the model may be an added one too
    both.added += "," + added_token(257, "abc");
    BOOST_TEST(both.load().encode("xabc") == (Ids{120, 257}));
}

BOOST_AUTO_TEST_CASE(steps) {
    TokenizerFile file;
    for (const std::string type : {"NFKC", "NFD", "Lowercase", "Replace"}) {
        file.normalizer = R"({"type": ")" + type + "\"}";
        check_refused(file, {"normalizer", type});
        file.normalizer =
            R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": ")" + type + "\"}]}";
        check_refused(file, {"normalizer", type});
    }
    file = {};
    for (const auto& value : std::initializer_list<std::string>{
             R"({"type": "Metaspace"})", R"({"type": "Sequence", "pretokenizers": []})",
             kByteLevel + "false}",
             R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true})"}) {
        file.pre_tokenizer = value;
        check_refused(file, {"pre_tokenizer"});
    }
    const auto split = [](const std::string& pattern, const std::string& behavior, const std::string& invert,
                          const std::string& regex) {
        return R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": )" + pattern +
               R"(, "behavior": ")" + behavior + R"(", "invert": )" + invert + "}, " + kByteLevel + regex +
               "}]}";
    };
    const std::string regex = R"({"Regex": "a+"})";
    file.pre_tokenizer = split(regex, "Isolated", "false", "false");
    BOOST_TEST(file.load().encode("ab") == (Ids{97, 98}));
    for (const auto& value :
         {split(regex, "Removed", "false", "false"), split(regex, "Isolated", "true", "false"),
          split(regex, "Isolated", "false", "true"),
          split(R"({"String": "a"})", "Isolated", "false", "false")}) {
        file.pre_tokenizer = value;
        check_refused(file, {"pre_tokenizer"});
    }
    file = {};
    file.post_processor = R"({"type": "TemplateProcessing"})";
    check_refused(file, {"post_processor", "TemplateProcessing"});
    file = {};
    for (const std::string value : {"null", R"({"type": "WordPiece"})"}) {
        file.decoder = value;
        check_refused(file, {"decoder"});
    }
    file = {};
    file.more = R"("sampler": 1, )";
    check_refused(file, {"'sampler'"});
}

BOOST_AUTO_TEST_CASE(patterns) {
    const std::string bad[] = {
        R"((a)",      R"(a))",     R"(\w+)",     R"(\bx)",   R"(^a)",      R"(a$)",         R"([[:alpha:]]+)",
        R"([a&&b])",  R"(\h)",     R"(a{,3})",   R"(a{2}+)", R"((?i:ss))", R"((?i:[a-z]))", R"((?x: a))",
        R"(\p{Han})", R"(\p{^L})", R"((?<n>a))", R"([])",    R"([a)",      R"(\x41)",       R"(a*)",
        R"(*a)",      R"(a\)",     R"((?i:é))",  R"(\p{L)",  R"([b-a])",   R"((*UCP)a)",    R"(\Aa)"};
    for (const auto& pattern : bad) {
        BOOST_TEST_CONTEXT("pattern " << pattern) {
            BOOST_TEST(refusal(Exit::bad_input, [&] { Pattern(pattern, "pattern"); }).find("pattern: ") ==
                       0u);
        }
    }
    TokenizerFile file;
    file.pattern = R"(\p{L}+|(\p{N})";
    check_refused(file, {"pre_tokenizer.pretokenizers[0].pattern.Regex", "invalid"});
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(pattern)

BOOST_AUTO_TEST_CASE(cuts_runs_whole) {
    BOOST_TEST(pieces_of(kQwenPattern, "-> (x):\n12345") ==
                   (Pieces{"->", " (", "x", "):\n", "1", "2", "3", "4", "5"}),
               boost::test_tools::per_element());
    BOOST_TEST(pieces_of(kQwenPattern, "foo(bar)\n\n  z") == (Pieces{"foo", "(bar", ")\n\n", " ", " z"}),
               boost::test_tools::per_element());
    BOOST_TEST(pieces_of(kQwenPattern, "IT'S it'\xC5\xBF") == (Pieces{"IT", "'S", " it", "'\xC5\xBF"}),
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(keeps_what_lies_between_matches) {
    BOOST_TEST(pieces_of("b+", "abbacb") == (Pieces{"a", "bb", "ac", "b"}), boost::test_tools::per_element());
    BOOST_TEST(pieces_of("b", std::string(5000, 'a')) == (Pieces{std::string(5000, 'a')}),
               boost::test_tools::per_element());
    BOOST_TEST(
        pieces_of("(?<=a)b", std::string(256, 'a') + "bb") == (Pieces{std::string(256, 'a'), "b", "b"}),
        boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(space_is_the_property_white_space) {
    for (const char* space : {" ", "\t", "\x0B", "\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\x83",
                              "\xE2\x80\xA8", "\xE3\x80\x80"}) {
        BOOST_TEST(pieces_of(R"(\s+|[^\s]+)", "a"s + space + "b") == (Pieces{"a", space, "b"}),
                   boost::test_tools::per_element());
    }
    for (const char* other : {"\xE2\x80\x8B", "\xE1\xA0\x8E", "\xEF\xBB\xBF", "\x1C"}) {
        BOOST_TEST(pieces_of(R"(\s+|\S+)", "a"s + other + "b").size() == 1u);
    }
}

BOOST_AUTO_TEST_CASE(does_not_depend_on_where_a_window_ends) {
    for (const std::size_t around : {std::size_t{256}, std::size_t{1024}, std::size_t{4096}}) {
        for (auto n = around - 9; n < around + 9; ++n) {
            const auto run = [n](char c) { return std::string(n, c); };
            BOOST_TEST(
                (pieces_of(kQwenPattern, run('a') + " " + run('b')) == Pieces{run('a'), " " + run('b')}));
            BOOST_TEST((pieces_of(kQwenPattern, run(' ') + "x") == Pieces{run(' ').substr(1), " x"}));
            BOOST_TEST((pieces_of(kQwenPattern, run(' ') + "\n\nx") == Pieces{run(' ') + "\n\n", "x"}));
            BOOST_TEST((pieces_of(kQwenPattern, run('!') + "\n" + run('1')).size() == n + 1));
            BOOST_TEST((pieces_of(kQwenPattern, run('a') + "'re é") == Pieces{run('a'), "'re", " é"}));
        }
    }
}

BOOST_AUTO_TEST_CASE(worse_than_linear_is_refused) {
    // Each space looks at all that follow it; and two repeats of one character try every way to share a run.
    for (const auto& [pattern, text] : {std::pair(R"(\s+x|\s)", std::string(1'000'000, ' ')),
                                        std::pair("(?:a+)+b|a", std::string(1'000'000, 'a')),
                                        std::pair("(?:a|aa)+b|a", std::string(200, 'a'))}) {
        BOOST_TEST(refusal(Exit::bad_input, [&, p = pattern, t = text] {
                       pieces_of(p, t);
                   }).find("more than linear time") != std::string::npos);
    }
}

BOOST_AUTO_TEST_CASE(byte_level_alone_has_its_own) {
    TokenizerFile file;
    file.pre_tokenizer = kByteLevel + "true}";
    file.merges += R"(, "1 2")";
    file.add("12", 260);
    BOOST_TEST(file.load().encode("12 ab") == (Ids{260, 32, 256}));  // digits are one piece there
    file.pre_tokenizer.clear();
    BOOST_TEST(file.load().encode("12 ab") == (Ids{49, 50, 32, 256}));
}

BOOST_AUTO_TEST_SUITE_END()

// Against the definition: look through all pairs, join the first in the list, the leftmost of several.
BOOST_AUTO_TEST_CASE(merges_equal_their_definition) {
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        Merges merges;
        std::vector<std::string> tokens(256);
        struct Rule {
            std::int32_t left, right, joined;
        };
        std::vector<Rule> rules;
        std::vector<std::int32_t> usable;
        const int letters = 1 + static_cast<int>(random() % 4);
        for (int i = 0; i < letters; ++i)
            merges.set_byte(static_cast<unsigned char>('a' + i), 'a' + i), usable.push_back('a' + i);
        for (int i = 0; i < 256; ++i) tokens[i] = std::string(1, static_cast<char>(i));
        for (int i = 0; i < 40; ++i) {
            const auto left = usable[random() % usable.size()], right = usable[random() % usable.size()];
            const auto text = tokens[left] + tokens[right];
            auto joined =
                static_cast<std::int32_t>(std::find(tokens.begin(), tokens.end(), text) - tokens.begin());
            if (!merges.add(left, right, joined)) continue;
            if (joined == static_cast<std::int32_t>(tokens.size()))
                tokens.push_back(text), usable.push_back(joined);
            rules.push_back({left, right, joined});
        }
        std::string piece;
        for (auto n = 1 + random() % (round % 2 ? 40 : 300); n > 0; --n)
            piece += static_cast<char>('a' + random() % letters);

        Ids expected;
        for (const unsigned char byte : piece) expected.push_back(byte);
        for (bool joined = true; joined;) {
            joined = false;
            for (const auto& rule : rules) {
                const Ids pair{rule.left, rule.right};
                const auto at = std::search(expected.begin(), expected.end(), pair.begin(), pair.end());
                if (at == expected.end()) continue;
                *at = rule.joined;
                expected.erase(at + 1);
                joined = true;
                break;
            }
        }
        Merges::Scratch scratch;
        Ids ids;
        merges.encode(piece, scratch, ids);
        BOOST_REQUIRE((ids == expected));
    }
}
