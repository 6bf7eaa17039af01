#include "normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "../error.hpp"
#include "../text/utf8.hpp"

namespace ftmpi {

namespace {

/// Characters below this one are their own NFC, and none of them joins what stands before it.
constexpr char32_t kFirstMark = 0x300;

/// Marks, and letters that are composed or can be, of Unicode 10.0 to 18.0. The package tokenizers normalizes
/// by Unicode 9.0, in which they were no characters: they join nothing and keep their place.
/// So does U+11A7, which utf8proc up to 2.8 loses behind a Hangul syllable.
constexpr std::pair<char32_t, char32_t> kInert[] = {
    {0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},   {0x1715, 0x1715},
    {0x1ABF, 0x1AF0},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C9, 0x105C9}, {0x105D2, 0x105D2},
    {0x105DA, 0x105DA}, {0x105E4, 0x105E4}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
    {0x10ECB, 0x10ECF}, {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11382, 0x11385}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E},
    {0x11390, 0x11391}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C8}, {0x113CE, 0x113D0},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x1611E, 0x1611E},
    {0x16121, 0x16129}, {0x1612F, 0x1612F}, {0x16D63, 0x16D63}, {0x16D67, 0x16D6A}, {0x16FF0, 0x16FF1},
    {0x1D127, 0x1D128}, {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C}, {0x1D25F, 0x1D25F}, {0x1D280, 0x1D281},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5}};

bool is_inert(char32_t c) {
    const auto* after = std::upper_bound(std::begin(kInert), std::end(kInert), c,
                                         [](char32_t x, const auto& range) { return x < range.first; });
    return after != std::begin(kInert) && c <= std::prev(after)->second;
}

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
        if (is_inert(c)) {
            before = p;
            continue;
        }
        storage.append(plain, before);
        for (const char* q = before; q != here;) append_decomposed(next_character(q), characters);
        for (;;) {
            append_decomposed(c, characters);
            if (p == end) break;
            const char* q = p;
            c = next_character(q);
            if (c < kFirstMark || is_inert(c)) break;
            p = q;
        }
        append_composed(characters, storage);
        plain = before = p;
    }
    storage.append(plain, end);
    return storage;
}

}  // namespace ftmpi
