// What every fuzz target needs: files of its own, parts of an input, and properties that end the process when
// they do not hold.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "error.hpp"
#include "safetensors_writer.hpp"

namespace ftmpi::fuzz {

using testing::TemporaryDirectory;
using testing::write_file;

/// Ends the process, which makes the fuzzer keep the input, unless `holds`.
inline void require(bool holds, const char* property, const std::string& detail = {}) {
    if (holds) return;
    std::fprintf(stderr, "property broken: %s\n", property);
    if (!detail.empty()) std::fprintf(stderr, "%s\n", detail.c_str());
    std::abort();
}

/// What an error says is one line for a terminal: a file must not move its cursor or forge a second message.
inline void require_one_line(const std::string& text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        const bool beyond_ascii = c == 0xC2 && i + 1 < text.size() && (text[i + 1] & 0xE0) == 0x80;
        require(c >= 0x20 && c != 0x7f && !beyond_ascii, "messages hold no control characters", text);
    }
}

/// Runs `f`: true when it took its input, false when it refused it with one of `codes`. Anything else that it
/// throws ends the process.
template <class F> bool accepted(F&& f, std::initializer_list<Exit> codes = {Exit::bad_input}) {
    try {
        f();
        return true;
    } catch (const Error& e) {
        bool known = false;
        for (const auto code : codes) known |= code == e.code();
        require(known, "an input is refused with the exit code for bad input", e.what());
        require(e.what()[0] != '\0', "a refusal says why");
        require_one_line(e.what());
        require_one_line(e.hint());
        return false;
    }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

/// The parts of an input between lines `---`; at most `most`, of which the last keeps the lines that follow.
inline std::vector<std::string_view> parts_of(std::string_view input, std::size_t most) {
    constexpr std::string_view line = "\n---\n";
    std::vector<std::string_view> parts;
    while (parts.size() + 1 < most) {
        const auto at = input.find(line);
        if (at == std::string_view::npos) break;
        parts.push_back(input.substr(0, at));
        input.remove_prefix(at + line.size());
    }
    parts.push_back(input);
    return parts;
}

inline std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        const auto end = text.find('\n');
        lines.push_back(text.substr(0, end));
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    return lines;
}

/// `@N` on a line of its own before a text: N copies of it, up to `limit` bytes. So a short input shows time
/// that grows faster than the text. As long texts take the time of many short ones, only an N from 99999 on
/// makes one longer than an eighth of it.
inline std::string repeated(std::string_view text, std::size_t limit) {
    if (text.empty() || text[0] != '@') return std::string(text);
    const auto end = text.find('\n');
    std::size_t times = 0;
    for (const char c : text.substr(1, end == std::string_view::npos ? end : end - 1)) {
        if (c < '0' || c > '9' || times > limit) return std::string(text);
        times = times * 10 + static_cast<std::size_t>(c - '0');
    }
    const auto unit = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    const auto most = times < 99999 ? limit / 8 : limit;
    if (unit.empty() || unit.size() > most) return std::string(unit);
    std::string out;
    for (std::size_t i = 0; i < times && out.size() + unit.size() <= most; ++i) out += unit;
    return out;
}

}  // namespace ftmpi::fuzz
