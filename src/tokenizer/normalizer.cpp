#include "normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "../error.hpp"
#include "../text/utf8.hpp"

namespace ftmpi {

namespace {

/// Characters below this one are their own NFC, and none of them joins what stands before it.
constexpr char32_t kFirstMark = 0x300;

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

/// Sorts each run of marks by combining class. utf8proc's own sort is quadratic in the length of a run.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
    for (auto it = characters.begin(); it != characters.end();) {
        if (combining_class(*it) == 0) {
            ++it;
            continue;
        }
        const auto end = std::find_if(it, characters.end(), [](auto c) { return combining_class(c) == 0; });
        std::stable_sort(it, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
        it = end;
    }
}

void append_composed(std::vector<utf8proc_int32_t>& characters, std::string& out) {
    order_marks(characters);
    const auto length =
        utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (length < 0) throw Error(Exit::failure, std::string("utf8proc: ") + utf8proc_errmsg(length));
    for (utf8proc_ssize_t i = 0; i < length; ++i) append_character(out, static_cast<char32_t>(characters[i]));
    characters.clear();
}

void append_decomposed(char32_t c, std::vector<utf8proc_int32_t>& characters) {
    utf8proc_int32_t parts[8];  // the longest canonical decomposition has four characters
    int boundary = 0;
    const auto count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c), parts, 8,
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
    if (count < 0 || count > 8) throw Error(Exit::failure, "utf8proc cannot decompose a character");
    characters.insert(characters.end(), parts, parts + count);
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
    const char* const end = text.data() + text.size();
    // Lead bytes below 0xCC begin characters below U+0300.
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; }))
        return text;

    storage.clear();
    storage.reserve(text.size() + text.size() / 8);
    std::vector<utf8proc_int32_t> characters;
    const char* p = text.data();
    const char* plain = p;   // start of characters to copy as they are
    const char* before = p;  // the last of them: a mark that follows may join it
    while (p != end) {
        const char* const here = p;
        char32_t c = next_character(p);
        if (c < kFirstMark) {
            before = here;
            continue;
        }
        storage.append(plain, before);
        for (const char* q = before; q != here;) append_decomposed(next_character(q), characters);
        for (;;) {
            append_decomposed(c, characters);
            if (p == end) break;
            const char* q = p;
            c = next_character(q);
            if (c < kFirstMark) break;
            p = q;
        }
        append_composed(characters, storage);
        plain = before = p;
    }
    storage.append(plain, end);
    return storage;
}

}  // namespace ftmpi
