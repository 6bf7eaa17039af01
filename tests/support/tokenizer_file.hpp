// A small tokenizer.json in parts, each of which a test may replace.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <utility>

#include "safetensors_writer.hpp"
#include "tokenizer.hpp"

namespace ftmpi::testing {

/// The byte-level alphabet: the printable character that stands for a byte.
inline std::string symbol_of(int byte) {
    const auto printable = [](int b) { return (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD); };
    int character = byte;
    if (!printable(byte)) {
        character = 0x100;
        for (int b = 0; b < byte; ++b) character += !printable(b);
    }
    if (character < 0x80) return std::string(1, static_cast<char>(character));
    return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

inline std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + '"';
}

inline std::string added_token(int id, const std::string& text, bool special = false, bool normalized = false,
                               const std::string& flag = "") {
    std::string out = "{\"id\": " + std::to_string(id) + ", \"content\": " + quoted(text);
    for (const std::string key : {"single_word", "lstrip", "rstrip"})
        out += ", \"" + key + "\": " + (key == flag ? "true" : "false");
    return out + ", \"normalized\": " + (normalized ? "true" : "false") +
           ", \"special\": " + (special ? "true" : "false") + "}";
}

inline const std::string kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Its ids: 256 byte tokens, id = byte; merges a b, ab c, space a, x 0xCC -> 256..259; added tokens 300..303.
struct TokenizerFile {
    std::string normalizer = R"({"type": "NFC"})";
    std::string pattern = kQwenPattern;
    std::string pre_tokenizer;  ///< replaces what is made of `pattern`
    std::string post_processor = "null";
    std::string decoder =
        R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
    std::string added = added_token(300, "<a>") + "," + added_token(301, "<a><b>") + "," +
                        added_token(302, "<think>") + "," + added_token(303, "<|im_end|>", true);
    std::string model_options = R"("type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false)";
    std::string vocabulary;  ///< members of the object `vocab`
    std::string merges =
        R"(["a","b"], ["ab","c"], [")" + symbol_of(' ') + R"(","a"], ["x",")" + symbol_of(0xCC) + R"("])";
    std::string more;  ///< further members of the file, each with a comma behind it

    TokenizerFile() {
        for (int byte = 0; byte < 256; ++byte) add(symbol_of(byte), byte);
        add("ab", 256), add("abc", 257), add(symbol_of(' ') + "a", 258), add("x" + symbol_of(0xCC), 259);
    }

    void add(const std::string& token, int id) {
        vocabulary += (vocabulary.empty() ? "" : ", ") + quoted(token) + ": " + std::to_string(id);
    }

    std::string text() const {
        const auto cut =
            !pre_tokenizer.empty()
                ? pre_tokenizer
                : R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": )" +
                      quoted(pattern) +
                      R"(}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false,
                                      "trim_offsets": false, "use_regex": false}]})";
        return "{" + more + R"("version": "1.0", "truncation": null, "padding": null, "added_tokens": [)" +
               added + "], \"normalizer\": " + normalizer + ", \"pre_tokenizer\": " + cut +
               ", \"post_processor\": " + post_processor + ", \"decoder\": " + decoder + ", \"model\": {" +
               model_options + ", \"vocab\": {" + vocabulary + "}, \"merges\": [" + merges + "]}}";
    }

    Tokenizer load() const {
        const TemporaryDirectory directory;
        write_file(directory / "tokenizer.json", text());
        return Tokenizer::load(directory.path());
    }
};

}  // namespace ftmpi::testing
