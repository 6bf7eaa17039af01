// Text that is put into other text: a terminal's line, a message, JSON, a shell command, a job file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ftmpi {

/// `text` for a terminal, in one line: control characters as \xNN, those beyond ASCII (U+0080 to U+009F in
/// UTF-8) too. Names and values of a file go into messages, and must not move the cursor or forge another
/// message.
inline std::string printable(std::string_view text) {
    constexpr char hex[] = "0123456789abcdef";
    std::string out;
    out.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0u;
        const bool pair = byte == 0xC2 && next >= 0x80 && next < 0xA0;
        if (byte >= 0x20 && byte != 0x7F && !pair) {
            out += text[i];
            continue;
        }
        out += {'\\', 'x', hex[byte >> 4], hex[byte & 15]};
        if (pair) out += {'\\', 'x', hex[next >> 4], hex[next & 15]}, ++i;
    }
    return out;
}

/// `bytes` for a message: control characters and what is not UTF-8 as \xNN, a double quote and a backslash
/// behind a backslash. Of more than `limit` bytes the middle is left out; uncut, different bytes stay
/// different.
std::string escaped(std::string_view bytes, std::size_t limit = std::string_view::npos);
/// The same in double quotes.
inline std::string in_quotes(std::string_view bytes, std::size_t limit = 200) {
    return '"' + escaped(bytes, limit) + '"';
}

/// JSON string literal, its quotes included; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view bytes);

/// `word` as a POSIX shell reads it back: in single quotes where it needs any.
std::string shell_word(std::string_view word);

/// Whether a `key = value` line of a job file, where nothing can be escaped, gives `value` back to the last
/// byte.
bool fits_job_line(std::string_view value);
/// `text` without the blanks at both ends, as a job file's keys and values are taken.
std::string_view without_blanks(std::string_view text);

}  // namespace ftmpi
