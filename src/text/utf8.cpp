#include "utf8.hpp"

#include <cstring>

namespace ftmpi {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length of the ASCII text at the start of `text`.
std::size_t ascii_prefix(std::string_view text) {
    std::size_t i = 0;
    for (; i + 8 <= text.size(); i += 8) {
        std::uint64_t word;
        std::memcpy(&word, text.data() + i, 8);
        if (word & 0x8080808080808080u) break;
    }
    while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
    return i;
}

}  // namespace

Utf8Sequence first_sequence(std::string_view rest) {
    using Kind = Utf8Sequence::Kind;
    const auto byte = [rest](std::size_t i) { return static_cast<unsigned char>(rest[i]); };
    const unsigned lead = byte(0);
    if (lead < 0x80) return {Kind::character, 1, nullptr};
    if (lead < 0xC0) return {Kind::invalid, 1, "continuation byte without a lead byte"};
    if (lead < 0xC2) return {Kind::invalid, 1, "overlong"};
    if (lead > 0xF4) return {Kind::invalid, 1, lead < 0xF8 ? "above U+10FFFF" : "not a UTF-8 byte"};

    const unsigned length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // Some lead bytes narrow the range of the second byte.
    unsigned low = 0x80, high = 0xBF;
    const char* outside = "lead byte without its continuation bytes";
    if (lead == 0xE0) low = 0xA0, outside = "overlong";
    if (lead == 0xED) high = 0x9F, outside = "surrogate";
    if (lead == 0xF0) low = 0x90, outside = "overlong";
    if (lead == 0xF4) high = 0x8F, outside = "above U+10FFFF";
    for (unsigned i = 1; i < length; ++i) {
        const auto reached = static_cast<std::uint8_t>(i);
        if (i == rest.size()) return {Kind::unfinished, reached, "truncated"};
        if (byte(i) < low || byte(i) > high)
            return {Kind::invalid, reached,
                    is_continuation(rest[i]) ? outside : "lead byte without its continuation bytes"};
        low = 0x80, high = 0xBF;
    }
    return {Kind::character, static_cast<std::uint8_t>(length), nullptr};
}

void append_character(std::string& text, char32_t c) {
    const auto byte = [&text](char32_t b) { text.push_back(static_cast<char>(b)); };
    if (c < 0x80) {
        byte(c);
    } else if (c < 0x800) {
        byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F));
    } else {
        byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)),
            byte(0x80 | (c & 0x3F));
    }
}

std::size_t find_invalid_utf8(std::string_view text, std::string* what) {
    for (std::size_t i = 0; i < text.size();) {
        i += ascii_prefix(text.substr(i));
        if (i == text.size()) break;
        const auto sequence = first_sequence(text.substr(i));
        if (sequence.kind != Utf8Sequence::Kind::character) {
            if (what) *what = sequence.fault;
            return i;
        }
        i += sequence.length;
    }
    return std::string_view::npos;
}

std::string readable_text(std::string_view bytes) {
    std::string text;
    text.reserve(bytes.size());
    while (!bytes.empty()) {
        const auto sequence = first_sequence(bytes);
        if (sequence.kind == Utf8Sequence::Kind::character && bytes[0] != '\0')
            text.append(bytes.substr(0, sequence.length));
        else text += kReplacement;
        bytes.remove_prefix(sequence.length);
    }
    return text;
}

std::string Utf8Stream::push(std::string_view bytes) {
    held_.append(bytes);
    std::string shown;
    std::string_view rest = held_;
    while (!rest.empty()) {
        const auto sequence = first_sequence(rest);
        if (sequence.kind == Utf8Sequence::Kind::unfinished) break;
        shown.append(sequence.kind == Utf8Sequence::Kind::character ? rest.substr(0, sequence.length)
                                                                    : kReplacement);
        rest.remove_prefix(sequence.length);
    }
    held_.erase(0, held_.size() - rest.size());
    return shown;
}

std::string Utf8Stream::finish() {
    if (held_.empty()) return {};
    held_.clear();
    return std::string(kReplacement);
}

}  // namespace ftmpi
