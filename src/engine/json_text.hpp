// A JSON string of any bytes, for what is printed under --json.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "../tokenizer.hpp"

namespace ftmpi {

/// JSON string literal of valid UTF-8; bytes that are not become U+FFFD.
inline std::string json_string(std::string_view bytes) {
    Utf8Stream stream;
    std::string text = stream.push(bytes);
    text += stream.finish();
    std::string s = "\"";
    for (const unsigned char c : text) {
        char escape[8];
        switch (c) {
            case '"': s += "\\\""; break;
            case '\\': s += "\\\\"; break;
            case '\n': s += "\\n"; break;
            default:
                if (c < 0x20) {
                    std::snprintf(escape, sizeof escape, "\\u%04x", c);
                    s += escape;
                } else {
                    s += static_cast<char>(c);
                }
        }
    }
    return s + "\"";
}

}  // namespace ftmpi
