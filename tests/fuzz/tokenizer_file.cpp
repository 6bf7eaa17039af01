// tokenizer.json, and after a line `---` a text. An input that does not begin with '{' holds the parts of a
// well-formed file instead, between such lines: a pattern ("n" before it: with NFC), merges (a line "left
// right" each, bytes of the text), added tokens (a line each: a digit whose bits are normalized and special,
// then the token), and the text.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <optional>
#include <set>

#include "tokenizer/definition.hpp"
#include "tokenizer/normalizer.hpp"
#include "tokenizer_checks.hpp"
#include "tokenizer_file.hpp"

using namespace ftmpi;
using namespace ftmpi::fuzz;

namespace {

constexpr std::size_t kMostText = 1 << 17;

/// A JSON string that may hold control characters; not UTF-8 stays so.
std::string json(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        char escape[8];
        std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
        if (c == '"' || c == '\\') (out += '\\') += c;
        else if (static_cast<unsigned char>(c) < 0x20) out += escape;
        else out += c;
    }
    return out + '"';
}

std::string symbols(std::string_view bytes) {
    std::string out;
    for (const unsigned char byte : bytes) out += testing::symbol_of(byte);
    return out;
}

struct Made {
    std::string file;
    MergeRanks ranks;
    bool nfc = false;
};

Made from_parts(const std::vector<std::string_view>& parts) {
    Made made;
    auto pattern = parts[0];
    if (!pattern.empty() && pattern[0] == 'n') made.nfc = true, pattern.remove_prefix(1);
    std::set<std::string> words;
    std::string vocabulary, merges, added;
    int next = 0;
    const auto add = [&](const std::string& bytes) {
        if (!words.insert(bytes).second) return;
        vocabulary += (next ? "," : "") + json(symbols(bytes)) + ":" + std::to_string(next);
        ++next;
    };
    for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
    if (parts.size() > 1)
        for (const auto line : lines_of(parts[1])) {
            const auto space = line.find(' ', 1);
            if (line.empty() || space == line.npos || space + 1 == line.size()) continue;
            const std::string left(line.substr(0, space)), right(line.substr(space + 1));
            if (!words.count(left) || !words.count(right)) continue;
            if (!made.ranks.emplace(std::pair(left, right), made.ranks.size()).second) continue;
            add(left + right);
            merges += (merges.empty() ? "[" : ",[") + json(symbols(left)) + "," + json(symbols(right)) + "]";
        }
    if (parts.size() > 2)
        for (const auto line : lines_of(parts[2])) {
            if (line.empty()) continue;
            const int bits = line[0] & 3;
            added += (added.empty() ? "" : ",") +
                     (R"({"id":)" + std::to_string(next++) + R"(,"content":)" + json(line.substr(1)) +
                      R"(,"normalized":)") +
                     (bits & 1 ? "true" : "false") + R"(,"special":)" + (bits & 2 ? "true}" : "false}");
        }
    made.file =
        std::string(R"({"normalizer":)") + (made.nfc ? R"({"type":"NFC"})" : "null") +
        R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)" +
        json(pattern) +
        R"(},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)" +
        R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" + vocabulary + R"(},"merges":[)" +
        merges + R"(]},"added_tokens":[)" + added + "]}";
    return made;
}

/// The pieces of `text` by one search after another through all of it; nothing where PCRE2 gives up.
std::optional<std::vector<std::size_t>> plain_split(std::string_view pattern, std::string_view text) {
    const auto translated = translate_pattern(pattern, "pattern");
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                      PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr),
        [](pcre2_code* p) { pcre2_code_free(p); });
    require(code != nullptr, "a pattern that was accepted compiles");
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
        pcre2_match_data_create_from_pattern(code.get(), nullptr),
        [](pcre2_match_data* p) { pcre2_match_data_free(p); });
    std::vector<std::size_t> ends;
    for (std::size_t from = 0; from < text.size();) {
        const int rc = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                   PCRE2_NO_JIT, match.get(), nullptr);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc <= 0) return std::nullopt;
        const auto* place = pcre2_get_ovector_pointer(match.get());
        if (place[1] <= place[0]) return std::nullopt;
        if (place[0] > from) ends.push_back(place[0]);
        ends.push_back(place[1]);
        from = place[1];
    }
    if (!text.empty() && (ends.empty() || ends.back() < text.size())) ends.push_back(text.size());
    return ends;
}

void check_pieces(const TokenizerDefinition& definition, const Tokenizer& tokenizer, std::string_view pattern,
                  const Made& made, std::string_view text) {
    std::string storage;
    const auto normal = made.nfc ? to_nfc(text, storage) : text;
    std::vector<std::size_t> ends;
    definition.pattern->split(normal, ends);
    require((normal.empty() && ends.empty()) || ends.back() == normal.size(),
            "the pieces are the whole text");
    for (std::size_t i = 1; i < ends.size(); ++i) require(ends[i - 1] < ends[i], "no piece is empty");
    if (normal.size() > 2048) return;
    if (const auto plain = plain_split(pattern, normal))
        require(*plain == ends, "the pieces are the matches of the pattern");

    std::vector<std::string> expected;
    for (std::size_t i = 0, begin = 0; i < ends.size(); begin = ends[i++])
        for (auto& symbol : plain_bpe(normal.substr(begin, ends[i] - begin), made.ranks))
            expected.push_back(std::move(symbol));
    const auto ids = tokenizer.encode(text, Tokenizer::Added::plain);
    require(ids.size() == expected.size(), "as many tokens as byte pair encoding by definition");
    for (std::size_t i = 0; i < ids.size(); ++i)
        require(tokenizer.bytes(ids[i]) == expected[i], "the tokens of byte pair encoding by definition");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const TemporaryDirectory folder;
    const auto input = text_of(data, size);
    const bool whole = !input.empty() && input[0] == '{';
    const auto parts = parts_of(input, whole ? 2 : 4);
    Made made;
    if (whole) made.file = std::string(parts[0]);
    else made = from_parts(parts);
    write_file(folder / "tokenizer.json", made.file);
    const auto text =
        repeated(parts.size() == (whole ? 2u : 4u) ? parts.back() : std::string_view(), kMostText);

    std::optional<Tokenizer> tokenizer;
    std::optional<TokenizerDefinition> definition;
    if (!accepted([&] { tokenizer = Tokenizer::load(folder.path()); })) return 0;
    definition = read_definition(folder / "tokenizer.json");
    if (whole) made.nfc = definition->nfc;
    for (std::int32_t id = 0; id < std::min(tokenizer->end(), 4096); ++id) {
        require(tokenizer->has(id) != tokenizer->bytes(id).empty(), "an id has a token when it has bytes");
        if (tokenizer->is_special(id)) require(tokenizer->has(id), "a special id has a token");
    }
    const bool taken = accepted([&] { check_round_trip(*tokenizer, text, made.nfc); });
    if (taken && !whole)
        accepted([&] {
            check_pieces(*definition, *tokenizer, made.nfc ? parts[0].substr(1) : parts[0], made, text);
        });
    return 0;
}
