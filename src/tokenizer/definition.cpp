#include "definition.hpp"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <new>
#include <vector>

#include "../digest.hpp"
#include "../error.hpp"
#include "../text/small_file.hpp"
#include "../text/utf8.hpp"
#include "normalizer.hpp"

namespace ftmpi {

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

/// The pattern that a ByteLevel pre-tokenizer with use_regex stands for (that of GPT-2).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
    throw Error(Exit::bad_input, where + ": " + what);
}

object object_at(element value, const std::string& where) {
    object result;
    if (value.get(result)) refuse(where, "is not an object");
    return result;
}

/// Every key of `fields` is one of `known`, and none stands there twice.
void check_keys(object fields, std::initializer_list<std::string_view> known, const std::string& where) {
    std::vector<std::string_view> seen;
    for (const auto field : fields) {
        if (std::find(known.begin(), known.end(), field.key) == known.end()) {
            refuse(where, "the key '" + std::string(field.key) + "' is not implemented");
        }
        if (std::find(seen.begin(), seen.end(), field.key) != seen.end()) {
            refuse(where, "the key '" + std::string(field.key) + "' stands there twice");
        }
        seen.push_back(field.key);
    }
}

/// The value of `key`, or nothing where it is missing or null.
std::optional<element> find(object fields, std::string_view key) {
    element value;
    if (fields[key].get(value) || value.is_null()) return std::nullopt;
    return value;
}

element require(object fields, std::string_view key, const std::string& where) {
    const auto value = find(fields, key);
    if (!value) refuse(where, "'" + std::string(key) + "' is missing");
    return *value;
}

std::string_view text_at(object fields, std::string_view key, const std::string& where) {
    std::string_view text;
    if (require(fields, key, where).get(text)) refuse(where, "'" + std::string(key) + "' is not a string");
    return text;
}

bool flag_at(object fields, std::string_view key, bool otherwise, const std::string& where) {
    const auto value = find(fields, key);
    bool flag = otherwise;
    if (value && value->get(flag)) refuse(where, "'" + std::string(key) + "' is neither true nor false");
    return flag;
}

/// A flag that this program implements with one value only.
void require_flag(object fields, std::string_view key, bool otherwise, bool implemented,
                  const std::string& where) {
    if (flag_at(fields, key, otherwise, where) != implemented) {
        refuse(where,
               "'" + std::string(key) + "' " + (implemented ? "false" : "true") + " is not implemented");
    }
}

std::int32_t id_at(element value, const std::string& where) {
    std::int64_t id = 0;
    if (value.get(id)) refuse(where, "the id is not an integer");
    if (id < 0 || id >= Vocabulary::kMaxIds) {
        refuse(where,
               "the id " + std::to_string(id) + " is outside 0.." + std::to_string(Vocabulary::kMaxIds - 1));
    }
    return static_cast<std::int32_t>(id);
}

/// Byte-level vocabularies write each byte as one printable character: itself where it is printable in
/// Latin-1, else the next free one from U+0100 on.
class ByteAlphabet {
public:
    ByteAlphabet() {
        bytes_.fill(-1);
        char32_t next = 0x100;
        for (int byte = 0; byte < 256; ++byte) {
            const bool printable =
                (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
            bytes_[printable ? static_cast<char32_t>(byte) : next++] = static_cast<std::int16_t>(byte);
        }
    }

    /// Replaces `bytes` by what `symbols` stand for. Text with any other character stands for itself.
    void to_bytes(std::string_view symbols, std::string& bytes) const {
        bytes.clear();
        for (const char* p = symbols.data(); p != symbols.data() + symbols.size();) {
            const char32_t c = next_character(p);
            if (c >= bytes_.size() || bytes_[c] < 0) {
                bytes.assign(symbols);
                return;
            }
            bytes.push_back(static_cast<char>(bytes_[c]));
        }
    }

private:
    std::array<std::int16_t, 0x144> bytes_;
};

constexpr std::size_t kLargestFile = std::size_t{1} << 30;
/// From each place of a text the search for added tokens may go as far as the longest of them.
constexpr std::size_t kLongestAdded = 1024;

class Reader {
public:
    explicit Reader(const std::filesystem::path& file) : file_(file.string()) {}

    TokenizerDefinition read() {
        simdjson::dom::parser parser;
        element document;
        const auto text = read_small_file(
            file_, kLargestFile,
            {.hint = "the folder of a checkpoint holds its tokenizer.json", .downloaded = true});
        if (const auto error = parser.parse(text).get(document)) {
            if (error == simdjson::MEMALLOC) throw std::bad_alloc();
            refuse(file_, simdjson::error_message(error));
        }
        definition_.sha256 = hex(sha256(text));
        const auto root = object_at(document, file_);
        check_keys(root,
                   {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                    "post_processor", "decoder", "model"},
                   file_);
        for (const auto* key : {"truncation", "padding"}) {
            if (find(root, key))
                definition_.notes.push_back(
                    printable(file_) + ": '" + key +
                    "' is not followed: a prompt is taken whole, and as long as it is");
        }
        if (const auto normalizer = find(root, "normalizer"))
            read_normalizer(*normalizer, file_ + ": normalizer");
        read_pre_tokenizer(require(root, "pre_tokenizer", file_), file_ + ": pre_tokenizer");
        // A ByteLevel post-processor moves offsets only; any other adds ids.
        if (const auto post = find(root, "post_processor"))
            require_type(*post, "ByteLevel", file_ + ": post_processor");
        require_type(require(root, "decoder", file_), "ByteLevel", file_ + ": decoder");
        read_model(object_at(require(root, "model", file_), file_ + ": model"), file_ + ": model");
        if (const auto added = find(root, "added_tokens"))
            read_added_tokens(*added, file_ + ": added_tokens");
        return std::move(definition_);
    }

private:
    static object require_type(element value, std::string_view type, const std::string& where) {
        const auto fields = object_at(value, where);
        const auto found = text_at(fields, "type", where);
        if (found != type) refuse(where, "the type '" + std::string(found) + "' is not implemented");
        return fields;
    }

    void read_normalizer(element value, const std::string& where) {
        const auto fields = object_at(value, where);
        const auto type = text_at(fields, "type", where);
        if (type == "NFC") {
            check_keys(fields, {"type"}, where);
            definition_.nfc = true;
            return;
        }
        if (type != "Sequence") refuse(where, "the type '" + std::string(type) + "' is not implemented");
        check_keys(fields, {"type", "normalizers"}, where);
        array steps;
        if (require(fields, "normalizers", where).get(steps)) refuse(where, "'normalizers' is not an array");
        for (const auto step : steps) {
            check_keys(require_type(step, "NFC", where), {"type"}, where);
            definition_.nfc = true;
        }
    }

    void read_pre_tokenizer(element value, const std::string& where) {
        const auto fields = object_at(value, where);
        const auto type = text_at(fields, "type", where);
        if (type == "ByteLevel") return read_byte_level(fields, true, where);
        if (type != "Sequence") refuse(where, "the type '" + std::string(type) + "' is not implemented");
        check_keys(fields, {"type", "pretokenizers"}, where);
        array steps;
        if (require(fields, "pretokenizers", where).get(steps))
            refuse(where, "'pretokenizers' is not an array");
        std::vector<element> list(steps.begin(), steps.end());
        if (list.size() != 2) refuse(where, "a sequence other than Split, ByteLevel is not implemented");
        read_split(require_type(list[0], "Split", where), where + ".Split");
        read_byte_level(require_type(list[1], "ByteLevel", where), false, where + ".ByteLevel");
    }

    void read_split(object fields, const std::string& where) {
        check_keys(fields, {"type", "pattern", "behavior", "invert"}, where);
        const auto behavior = text_at(fields, "behavior", where);
        if (behavior != "Isolated")
            refuse(where, "the behavior '" + std::string(behavior) + "' is not implemented");
        require_flag(fields, "invert", false, false, where);
        const auto pattern = object_at(require(fields, "pattern", where), where + ".pattern");
        check_keys(pattern, {"Regex"}, where + ".pattern");
        definition_.pattern.emplace(text_at(pattern, "Regex", where + ".pattern"), where + ".pattern");
    }

    void read_byte_level(object fields, bool splits, const std::string& where) {
        check_keys(fields, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
        require_flag(fields, "add_prefix_space", true, false, where);
        require_flag(fields, "use_regex", true, splits, where);
        if (splits) definition_.pattern.emplace(kByteLevelPattern, where);
    }

    void read_model(object fields, const std::string& where) {
        check_keys(fields,
                   {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                    "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
                   where);
        const auto type = text_at(fields, "type", where);
        if (type != "BPE") refuse(where, "the type '" + std::string(type) + "' is not implemented");
        double dropout = 0;
        if (const auto value = find(fields, "dropout")) {
            if (value->get(dropout) || dropout != 0) refuse(where, "'dropout' is not implemented");
        }
        for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
            if (find(fields, key) && !text_at(fields, key, where).empty())
                refuse(where, "'" + std::string(key) + "' is not implemented");
        }
        require_flag(fields, "byte_fallback", false, false, where);
        require_flag(fields, "ignore_merges", false, false, where);
        read_vocabulary(object_at(require(fields, "vocab", where), where + ".vocab"), where + ".vocab");
        // Each byte that a text in UTF-8 can hold has a token: so an unknown token, and fusing several of
        // them, mean nothing.
        for (int byte = 0; byte < 0xF5; ++byte)
            if (byte != 0xC0 && byte != 0xC1 &&
                definition_.merges.byte_id(static_cast<unsigned char>(byte)) < 0)
                refuse(where + ".vocab", "has no token for byte " + std::to_string(byte));
        read_merges(require(fields, "merges", where), where + ".merges");
    }

    void read_vocabulary(object tokens, const std::string& where) {
        auto& vocabulary = definition_.vocabulary;
        vocabulary.reserve(tokens.size(), tokens.size() * 8);
        std::string bytes;
        for (const auto field : tokens) {
            const auto named = [&] { return where + "['" + std::string(field.key) + "']"; };
            if (field.key.empty()) refuse(named(), "an empty token is not implemented");
            std::int64_t number = 0;
            if (field.value.get(number) || number < 0 || number >= Vocabulary::kMaxIds)
                id_at(field.value, named());
            const auto id = static_cast<std::int32_t>(number);
            alphabet_.to_bytes(field.key, bytes);
            if (!vocabulary.set(id, bytes))
                refuse(named(), "the id " + std::to_string(id) + " is taken by another token");
            if (!vocabulary.index(id)) {
                refuse(named(), "the token with id " + std::to_string(vocabulary.find(bytes)) +
                                    " stands for the same bytes");
            }
            if (bytes.size() == 1) definition_.merges.set_byte(static_cast<unsigned char>(bytes[0]), id);
        }
    }

    /// The two sides of a merge as the file writes them.
    static std::pair<std::string_view, std::string_view> sides_of(element merge, const std::string& where,
                                                                  std::size_t index) {
        const auto named = [&] { return where + "[" + std::to_string(index) + "]"; };
        std::string_view left, right;
        if (std::string_view text; !merge.get(text)) {
            const auto space = text.find(' ');
            if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
                refuse(named(), "'" + std::string(text) + "' is not two tokens with one space between them");
            }
            left = text.substr(0, space);
            right = text.substr(space + 1);
        } else {
            array pair;
            if (merge.get(pair) || pair.size() != 2 || pair.at(0).get(left) || pair.at(1).get(right)) {
                refuse(named(), "is neither a string nor an array of two");
            }
        }
        if (left.empty() || right.empty()) refuse(named(), "one of the two tokens is empty");
        return {left, right};
    }

    void read_merges(element value, const std::string& where) {
        array merges;
        if (value.get(merges)) refuse(where, "is not an array");
        definition_.merges.reserve(merges.size());
        const auto& vocabulary = definition_.vocabulary;
        std::string left, right, joined;
        std::size_t index = 0;
        for (const auto merge : merges) {
            const auto sides = sides_of(merge, where, index);
            alphabet_.to_bytes(sides.first, left);
            alphabet_.to_bytes(sides.second, right);
            joined.assign(left).append(right);
            std::array<std::int32_t, 3> ids;
            const std::string* const texts[] = {&left, &right, &joined};
            for (std::size_t i = 0; i < 3; ++i) {
                ids[i] = vocabulary.find(*texts[i]);
                if (ids[i] == Vocabulary::kNone) {
                    const auto text = i == 0 ? sides.first : i == 1 ? sides.second : "the two joined";
                    refuse(where + "[" + std::to_string(index) + "]",
                           "'" + std::string(text) + "' is not in the vocabulary");
                }
            }
            if (!definition_.merges.add(ids[0], ids[1], ids[2])) {
                refuse(where + "[" + std::to_string(index) + "]", "these two tokens have a merge before");
            }
            ++index;
        }
    }

    void read_added_tokens(element value, const std::string& where) {
        array tokens;
        if (value.get(tokens)) refuse(where, "is not an array");
        std::size_t index = 0;
        for (const auto token : tokens) {
            const auto named = where + "[" + std::to_string(index++) + "]";
            add_token(object_at(token, named), named);
        }
    }

    void add_token(object fields, const std::string& where) {
        check_keys(fields, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"},
                   where);
        const auto id = id_at(require(fields, "id", where), where);
        const auto text = std::string(text_at(fields, "content", where));
        if (text.empty()) refuse(where, "an empty token is not implemented");
        if (text.size() > kLongestAdded)
            refuse(where, "a token of " + std::to_string(text.size()) +
                              " bytes is not implemented, at most " + std::to_string(kLongestAdded) + " are");
        for (const auto* key : {"single_word", "lstrip", "rstrip"})
            require_flag(fields, key, false, false, where + " '" + text + "'");

        auto& vocabulary = definition_.vocabulary;
        const auto named = where + ": '" + text + "'";
        if (!definition_.added_ids.emplace(text, id).second) refuse(named, "stands there twice");
        const bool printable =
            std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
        const auto known = vocabulary.find(text);
        if (printable && known != Vocabulary::kNone && known != id) {
            refuse(named, "has the id " + std::to_string(id) + " here and " + std::to_string(known) +
                              " in the vocabulary");
        }
        if (vocabulary.has(id) ? vocabulary.bytes(id) != text || !used_by_added_.insert(id).second
                               : !vocabulary.set(id, text)) {
            refuse(named, "the id " + std::to_string(id) + " is taken by another token");
        }
        used_by_added_.insert(id);

        if (flag_at(fields, "special", false, where)) definition_.special_ids.insert(id);
        if (!flag_at(fields, "normalized", true, where)) {
            definition_.raw.add(text, id);
            return;
        }
        std::string storage;
        const auto normal = definition_.nfc ? to_nfc(text, storage) : std::string_view(text);
        if (!normalized_texts_.insert(std::string(normal)).second)
            refuse(named, "two added tokens are one when normalized");
        definition_.normalized.add(normal, id);
    }

    std::string file_;
    ByteAlphabet alphabet_;
    std::unordered_set<std::int32_t> used_by_added_;
    std::unordered_set<std::string> normalized_texts_;
    TokenizerDefinition definition_;
};

}  // namespace

TokenizerDefinition read_definition(const std::filesystem::path& file) { return Reader(file).read(); }

}  // namespace ftmpi
