#include "definition.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

#include "../digest.hpp"
#include "../error.hpp"
#include "../json.hpp"
#include "../text/utf8.hpp"
#include "normalizer.hpp"

namespace ftmpi {

namespace {

using simdjson::dom::element;

/// The pattern that a ByteLevel pre-tokenizer with use_regex stands for (that of GPT-2).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Every key of `fields` is one of `known`.
void check_keys(const JsonObject& fields, std::initializer_list<std::string_view> known) {
    fields.each([&](std::string_view key, element) {
        if (std::find(known.begin(), known.end(), key) == known.end())
            fields.refuse("the key '" + std::string(key) + "'", "is not implemented");
    });
}

[[noreturn]] void refuse_type(const JsonObject& fields) {
    fields.refuse("type", "'" + fields.text("type") + "' is not implemented");
}

void require_type(const JsonObject& fields, std::string_view type) {
    if (fields.text("type") != type) refuse_type(fields);
}

/// A flag that this program implements with one value only.
void require_flag(const JsonObject& fields, std::string_view key, bool otherwise, bool implemented,
                  const std::string& of = {}) {
    if (fields.optional_flag(key).value_or(otherwise) != implemented)
        fields.refuse(key, (implemented ? "false" : "true") + of + " is not implemented");
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
    explicit Reader(const std::filesystem::path& file) : file_(file, kLargestFile) {}

    TokenizerDefinition read() {
        definition_.sha256 = hex(sha256(file_.bytes()));
        const JsonObject root = file_.root();
        check_keys(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                          "post_processor", "decoder", "model"});
        for (const auto* key : {"truncation", "padding"})
            if (root.has(key))
                definition_.notes.push_back(
                    printable(root.file()) + ": '" + key +
                    "' is not followed: a prompt is taken whole, and as long as it is");
        if (const auto normalizer = root.optional_object("normalizer")) read_normalizer(*normalizer);
        read_pre_tokenizer(root.object("pre_tokenizer"));
        // A ByteLevel post-processor moves offsets only; any other adds ids.
        if (const auto post = root.optional_object("post_processor")) require_type(*post, "ByteLevel");
        require_type(root.object("decoder"), "ByteLevel");
        read_model(root.object("model"));
        if (root.has("added_tokens"))
            for (const JsonObject& token : root.objects("added_tokens")) add_token(token);
        return std::move(definition_);
    }

private:
    void read_normalizer(const JsonObject& fields) {
        if (fields.text("type") == "NFC") {
            check_keys(fields, {"type"});
            definition_.nfc = true;
            return;
        }
        require_type(fields, "Sequence");
        check_keys(fields, {"type", "normalizers"});
        for (const JsonObject& step : fields.objects("normalizers")) {
            require_type(step, "NFC");
            read_normalizer(step);
        }
    }

    void read_pre_tokenizer(const JsonObject& fields) {
        if (fields.text("type") == "ByteLevel") return read_byte_level(fields, true);
        require_type(fields, "Sequence");
        check_keys(fields, {"type", "pretokenizers"});
        const auto list = fields.objects("pretokenizers");
        if (list.size() != 2)
            fields.refuse("pretokenizers",
                          "is a sequence other than Split, ByteLevel: it is not implemented");
        require_type(list[0], "Split");
        read_split(list[0]);
        require_type(list[1], "ByteLevel");
        read_byte_level(list[1], false);
    }

    void read_split(const JsonObject& fields) {
        check_keys(fields, {"type", "pattern", "behavior", "invert"});
        if (const auto behavior = fields.text("behavior"); behavior != "Isolated")
            fields.refuse("behavior", "'" + behavior + "' is not implemented");
        require_flag(fields, "invert", false, false);
        const JsonObject pattern = fields.object("pattern");
        check_keys(pattern, {"Regex"});
        definition_.pattern.emplace(pattern.text("Regex"), fields.file() + ": " + pattern.name_of("Regex"));
    }

    void read_byte_level(const JsonObject& fields, bool splits) {
        check_keys(fields, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
        require_flag(fields, "add_prefix_space", true, false);
        require_flag(fields, "use_regex", true, splits);
        if (splits)
            definition_.pattern.emplace(kByteLevelPattern,
                                        fields.file() + ": " + fields.name_of("use_regex"));
    }

    void read_model(const JsonObject& model) {
        check_keys(model, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                           "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
        require_type(model, "BPE");
        if (model.optional_number("dropout").value_or(0) != 0) model.refuse("dropout", "is not implemented");
        for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (!model.optional_text(key).value_or("").empty()) model.refuse(key, "is not implemented");
        require_flag(model, "byte_fallback", false, false);
        require_flag(model, "ignore_merges", false, false);
        read_vocabulary(model, model.object("vocab"));
        // Each byte that a text in UTF-8 can hold has a token: so an unknown token, and fusing several of
        // them, mean nothing.
        for (int byte = 0; byte < 0xF5; ++byte)
            if (byte != 0xC0 && byte != 0xC1 &&
                definition_.merges.byte_id(static_cast<unsigned char>(byte)) < 0)
                model.refuse("vocab", "has no token for byte " + std::to_string(byte));
        read_merges(model);
    }

    void read_vocabulary(const JsonObject& model, const JsonObject& tokens) {
        auto& vocabulary = definition_.vocabulary;
        vocabulary.reserve(tokens.size(), tokens.size() * 8);
        std::string bytes;
        tokens.each([&](std::string_view token, element value) {
            const auto refuse = [&](const std::string& what) {
                model.refuse("vocab['" + std::string(token) + "']", what);
            };
            if (token.empty()) refuse("is empty, which is not implemented");
            std::int64_t number = 0;
            if (value.get(number)) refuse("has an id that is not an integer");
            if (number < 0 || number >= Vocabulary::kMaxIds)
                refuse("has the id " + std::to_string(number) + ", which is outside 0.." +
                       std::to_string(Vocabulary::kMaxIds - 1));
            const auto id = static_cast<std::int32_t>(number);
            alphabet_.to_bytes(token, bytes);
            if (!vocabulary.set(id, bytes))
                refuse("has the id " + std::to_string(id) + ", which is taken by another token");
            if (!vocabulary.index(id))
                refuse("stands for the same bytes as the token with id " +
                       std::to_string(vocabulary.find(bytes)));
            if (bytes.size() == 1) definition_.merges.set_byte(static_cast<unsigned char>(bytes[0]), id);
        });
    }

    void read_merges(const JsonObject& model) {
        const auto merges = model.array("merges");
        definition_.merges.reserve(merges.size());
        const auto& vocabulary = definition_.vocabulary;
        std::string left, right, joined;
        std::size_t index = 0;
        for (const element merge : merges) {
            const auto refuse = [&](const std::string& what) {
                model.refuse("merges[" + std::to_string(index) + "]", what);
            };
            // The two sides as the file writes them.
            std::string_view first, second;
            if (std::string_view text; !merge.get(text)) {
                const auto space = text.find(' ');
                if (space == text.npos || text.find(' ', space + 1) != text.npos)
                    refuse("'" + std::string(text) + "' is not two tokens with one space between them");
                first = text.substr(0, space);
                second = text.substr(space + 1);
            } else {
                simdjson::dom::array pair;
                if (merge.get(pair) || pair.size() != 2 || pair.at(0).get(first) || pair.at(1).get(second))
                    refuse("is neither a string nor an array of two");
            }
            if (first.empty() || second.empty()) refuse("has an empty token");
            alphabet_.to_bytes(first, left);
            alphabet_.to_bytes(second, right);
            joined.assign(left).append(right);
            const auto id_of = [&](const std::string& bytes, std::string_view name) {
                const auto id = vocabulary.find(bytes);
                if (id == Vocabulary::kNone) refuse("'" + std::string(name) + "' is not in the vocabulary");
                return id;
            };
            if (!definition_.merges.add(id_of(left, first), id_of(right, second),
                                        id_of(joined, "the two joined")))
                refuse("has two tokens that have a merge before");
            ++index;
        }
    }

    void add_token(const JsonObject& fields) {
        check_keys(fields, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
        const auto id = static_cast<std::int32_t>(fields.integer("id", 0, Vocabulary::kMaxIds - 1));
        const auto text = fields.text("content");
        if (text.empty()) fields.refuse("content", "is empty, which is not implemented");
        if (text.size() > kLongestAdded)
            fields.refuse("content", "of " + std::to_string(text.size()) +
                                         " bytes is not implemented, at most " +
                                         std::to_string(kLongestAdded) + " are");
        for (const auto* key : {"single_word", "lstrip", "rstrip"})
            require_flag(fields, key, false, false, " of '" + text + "'");

        auto& vocabulary = definition_.vocabulary;
        const auto refuse = [&](const std::string& what) {
            fields.refuse("content", "'" + text + "' " + what);
        };
        if (!definition_.added_ids.emplace(text, id).second) refuse("stands there twice");
        const bool printable =
            std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
        const auto known = vocabulary.find(text);
        if (printable && known != Vocabulary::kNone && known != id)
            refuse("has the id " + std::to_string(id) + " here and " + std::to_string(known) +
                   " in the vocabulary");
        if (vocabulary.has(id) ? vocabulary.bytes(id) != text || !used_by_added_.insert(id).second
                               : !vocabulary.set(id, text))
            refuse("has the id " + std::to_string(id) + ", which is taken by another token");
        used_by_added_.insert(id);

        if (fields.optional_flag("special").value_or(false)) definition_.special_ids.insert(id);
        if (!fields.optional_flag("normalized").value_or(true)) {
            definition_.raw.add(text, id);
            return;
        }
        std::string storage;
        const auto normal = definition_.nfc ? to_nfc(text, storage) : std::string_view(text);
        if (!normalized_texts_.insert(std::string(normal)).second)
            refuse("is one with another added token when normalized");
        definition_.normalized.add(normal, id);
    }

    JsonFile file_;
    ByteAlphabet alphabet_;
    std::unordered_set<std::int32_t> used_by_added_;
    std::unordered_set<std::string> normalized_texts_;
    TokenizerDefinition definition_;
};

}  // namespace

TokenizerDefinition read_definition(const std::filesystem::path& file) { return Reader(file).read(); }

}  // namespace ftmpi
