#include "quoting.hpp"

#include <algorithm>
#include <cstdio>

#include "utf8.hpp"

namespace ftmpi {

namespace {

std::string escaped_whole(std::string_view bytes) {
    constexpr char hex[] = "0123456789abcdef";
    std::string text;
    while (!bytes.empty()) {
        const auto sequence = first_sequence(bytes);
        const auto whole = bytes.substr(0, sequence.length);
        const auto lead = static_cast<unsigned char>(whole[0]);
        if (sequence.kind == Utf8Sequence::Kind::character && lead >= 0x20 && lead != 0x7F) {
            if (lead == '"' || lead == '\\') text += '\\';
            text += whole;
        } else {
            for (const char c : whole) {
                const auto byte = static_cast<unsigned char>(c);
                text += {'\\', 'x', hex[byte >> 4], hex[byte & 15]};
            }
        }
        bytes.remove_prefix(whole.size());
    }
    return text;
}

}  // namespace

std::string escaped(std::string_view bytes, std::size_t limit) {
    if (bytes.size() <= limit) return escaped_whole(bytes);
    std::size_t head = limit * 2 / 3, tail = bytes.size() - (limit - head);
    for (int i = 0; i < 3 && head > 0 && is_continuation(bytes[head]); ++i) --head;
    for (int i = 0; i < 3 && tail < bytes.size() && is_continuation(bytes[tail]); ++i) ++tail;
    return escaped_whole(bytes.substr(0, head)) + "..." + escaped_whole(bytes.substr(tail));
}

std::string json_string(std::string_view bytes) {
    Utf8Stream stream;
    std::string text = stream.push(bytes);
    text += stream.finish();
    std::string literal = "\"";
    for (const char c : text) {
        char escape[8];
        if (c == '"' || c == '\\') literal += {'\\', c};
        else if (c == '\n') literal += "\\n";
        else if (static_cast<unsigned char>(c) >= 0x20) literal += c;
        else {
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
            literal += escape;
        }
    }
    return literal + '"';
}

std::string shell_word(std::string_view word) {
    const bool plain = std::all_of(word.begin(), word.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
               std::string_view("-_./,:=@%+").find(c) != std::string_view::npos;
    });
    if (plain && !word.empty()) return std::string(word);
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

std::string_view without_blanks(std::string_view text) {
    const auto begin = text.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

bool fits_job_line(std::string_view value) {
    return !value.empty() && value == without_blanks(value) && value.find('\n') == value.npos &&
           value.find('\0') == value.npos && find_invalid_utf8(value) == value.npos;
}

}  // namespace ftmpi
