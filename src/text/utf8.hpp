// UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ftmpi {

/// What stands at the start of a byte string.
struct Utf8Sequence {
    enum class Kind : std::uint8_t { character, invalid, unfinished };
    Kind kind;
    std::uint8_t length;  ///< of the character; else of the longest start of one, at least 1 (one U+FFFD
                          ///< replaces that many)
    const char* fault;    ///< why it is invalid or unfinished, in a word or two; nullptr for a character
};

/// `rest` is not empty.
Utf8Sequence first_sequence(std::string_view rest);

/// The character at `p`, which is moved past it. Only for text already found valid.
inline char32_t next_character(const char*& p) {
    const auto byte = [&p](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
    const char32_t lead = byte(0);
    char32_t c = lead;
    if (lead < 0x80) {
        p += 1;
    } else if (lead < 0xE0) {
        c = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
        p += 2;
    } else if (lead < 0xF0) {
        c = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
        p += 3;
    } else {
        c = (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
        p += 4;
    }
    return c;
}

inline bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// `c` is a Unicode scalar value.
void append_character(std::string& text, char32_t c);

/// First invalid byte of `text`, or npos when all of it is UTF-8; `what` (if given) gets "truncated",
/// "surrogate", ...
std::size_t find_invalid_utf8(std::string_view text, std::string* what = nullptr);

/// `bytes` as UTF-8 without NUL: each NUL and each longest start of a character that is none becomes U+FFFD.
/// Equal to `bytes` exactly when nothing had to be replaced.
std::string readable_text(std::string_view bytes);

/// Turns token bytes into text that is valid UTF-8 at every moment: an unfinished character is held back
/// until the bytes that complete it arrive, a byte that cannot be part of a character becomes U+FFFD.
class Utf8Stream {
public:
    /// Bytes to show now.
    std::string push(std::string_view bytes);
    /// What is left at the end: U+FFFD for an unfinished character, else nothing.
    std::string finish();

private:
    std::string held_;
};

}  // namespace ftmpi
