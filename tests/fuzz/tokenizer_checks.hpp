// What must hold of every tokenizer and text, by slow code that shares nothing with the program's.
#pragma once

#include <utf8proc.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz.hpp"
#include "text/utf8.hpp"
#include "tokenizer.hpp"

namespace ftmpi::fuzz {

/// NFC by utf8proc's own driver; `text` is valid UTF-8.
inline std::string nfc(std::string_view text) {
    utf8proc_uint8_t* out = nullptr;
    const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     static_cast<utf8proc_ssize_t>(text.size()), &out,
                                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    require(length >= 0, "utf8proc normalizes every text");
    std::string normal(reinterpret_cast<const char*>(out), static_cast<std::size_t>(length));
    std::free(out);
    return normal;
}

inline std::string bytes_of(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
    std::string all;
    for (const auto id : ids) {
        require(tokenizer.has(id) && id < tokenizer.end(), "every id of a text has a token",
                std::to_string(id));
        all += tokenizer.bytes(id);
    }
    return all;
}

/// decode() at once equals the bytes shown one by one, and is the text itself where that is UTF-8.
inline void check_decode(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                         const std::string& bytes) {
    const auto text = tokenizer.decode(ids);
    require(find_invalid_utf8(text) == std::string_view::npos, "a decoded text is UTF-8");
    if (find_invalid_utf8(bytes) == std::string_view::npos)
        require(text == bytes, "decoding gives the tokens' own text");
    Utf8Stream stream;
    std::string shown;
    for (const char byte : bytes) shown += stream.push({&byte, 1});
    require(shown + stream.finish() == text, "shown byte by byte, the text is the same");
}

/// A text comes back from its ids. `has_nfc`: the tokenizer normalizes.
inline void check_round_trip(const Tokenizer& tokenizer, std::string_view text, bool has_nfc) {
    // utf8proc sorts the marks of a character in quadratic time.
    const bool small = text.size() <= 4096;
    const auto plain = tokenizer.encode(text, Tokenizer::Added::plain);
    const auto plain_bytes = bytes_of(tokenizer, plain);
    if (!has_nfc) require(plain_bytes == text, "the ids of a text hold its bytes");
    if (has_nfc && small) require(plain_bytes == nfc(text), "the ids of a text hold its normal form");
    check_decode(tokenizer, plain, plain_bytes);

    const auto parsed = tokenizer.encode(text, Tokenizer::Added::parse);
    const auto parsed_bytes = bytes_of(tokenizer, parsed);
    if (!has_nfc) require(parsed_bytes == text, "with added tokens too, the ids hold the text's bytes");
    if (has_nfc && small)
        require(nfc(parsed_bytes) == nfc(text), "with added tokens too, the ids hold the text's normal form");
    check_decode(tokenizer, parsed, parsed_bytes);
}

using MergeRanks = std::map<std::pair<std::string, std::string>, std::size_t>;

/// Byte pair encoding as it is defined: again and again the pair that comes first in the list, there the
/// leftmost.
inline std::vector<std::string> plain_bpe(std::string_view piece, const MergeRanks& ranks) {
    std::vector<std::string> symbols;
    for (const char byte : piece) symbols.emplace_back(1, byte);
    for (;;) {
        std::size_t best = ranks.size(), at = 0;
        for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
            const auto found = ranks.find({symbols[i], symbols[i + 1]});
            if (found != ranks.end() && found->second < best) best = found->second, at = i;
        }
        if (best == ranks.size()) return symbols;
        symbols[at] += symbols[at + 1];
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
}

}  // namespace ftmpi::fuzz
