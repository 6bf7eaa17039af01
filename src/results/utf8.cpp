#include "utf8.hpp"

#include <cstdint>

namespace ftmpi {

namespace {

struct Step {
    std::size_t bytes = 1;  ///< how many to go on by, at least 1
    bool valid = false;
};

/// The sequence that begins at `at`: whole and well-formed, or its maximal ill-formed part.
Step sequence_at(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
    const std::uint8_t lead = byte(at);
    if (lead < 0x80) return {1, lead != 0};
    if (lead < 0xC2 || lead > 0xF4) return {1, false};
    const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
    std::uint8_t low = 0x80, high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (std::size_t i = 1; i < length; ++i) {
        if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) return {i, false};
        low = 0x80;
        high = 0xBF;
    }
    return {length, true};
}

}  // namespace

std::string readable_text(std::string_view bytes) {
    std::string text;
    text.reserve(bytes.size());
    for (std::size_t at = 0; at < bytes.size();) {
        const Step step = sequence_at(bytes, at);
        if (step.valid) text.append(bytes, at, step.bytes);
        else text += "\xEF\xBF\xBD";
        at += step.bytes;
    }
    return text;
}

std::string in_quotes(std::string_view bytes, std::size_t limit) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text = "\"";
    std::size_t at = 0;
    while (at < bytes.size() && at < limit) {
        const Step step = sequence_at(bytes, at);
        const auto lead = static_cast<std::uint8_t>(bytes[at]);
        if (step.valid && lead >= 0x20 && lead != 0x7F) {
            if (lead == '"' || lead == '\\') text += '\\';
            text.append(bytes, at, step.bytes);
        } else {
            for (std::size_t i = 0; i < step.bytes; ++i) {
                const auto byte = static_cast<std::uint8_t>(bytes[at + i]);
                text += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
            }
        }
        at += step.bytes;
    }
    text += at < bytes.size() ? "...\"" : "\"";
    return text;
}

}  // namespace ftmpi
