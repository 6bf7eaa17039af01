#include <algorithm>
#include <array>

#include "../error.hpp"
#include "pattern.hpp"

namespace ftmpi {

namespace {

constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                            "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                            "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

/// Texts that one character folds to, e.g. ss for U+00DF: Oniguruma matches that character for them, PCRE2
/// does not.
constexpr std::string_view kFolded[] = {"ss", "ff", "fi", "fl", "st"};

class Translator {
public:
    Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

    std::string run() {
        while (at_ < pattern_.size()) {
            const char c = pattern_[at_];
            if (c == '\\') {
                escape(false);
            } else if (c == '[') {
                character_class();
            } else if (c == '(') {
                open_group();
            } else if (c == ')') {
                if (groups_.size() > 1) groups_.pop_back();
                copy(1);
            } else if (c == '{') {
                interval();
            } else if (c == '^' || c == '$') {
                refuse(std::string("the anchor ") + c);
            } else if (c == '.' && groups_.back()) {
                refuse("a dot where case is ignored");
            } else {
                literal();
            }
        }
        return out_;
    }

private:
    [[noreturn]] void refuse(const std::string& what) const {
        throw Error(Exit::bad_input, where_ + ": " + what + " at byte " + std::to_string(at_) +
                                         " of the pattern is not implemented");
    }

    char peek(std::size_t ahead) const {
        return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
    }

    void copy(std::size_t bytes) {
        out_ += pattern_.substr(at_, bytes);
        at_ += bytes;
    }

    void replace(std::size_t bytes, std::string_view text) {
        out_ += text;
        at_ += bytes;
    }

    void literal() {
        if (groups_.back()) {
            if (static_cast<unsigned char>(pattern_[at_]) >= 0x80)
                refuse("a letter beyond ASCII where case is ignored");
            std::string pair{pattern_[at_], peek(1)};
            std::transform(pair.begin(), pair.end(), pair.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
            if (std::find(std::begin(kFolded), std::end(kFolded), pair) != std::end(kFolded)) {
                refuse("'" + pair + "' where case is ignored");
            }
        }
        copy(1);
    }

    void escape(bool in_class) {
        const char c = peek(1);
        // \s is the property White_Space there; PCRE2's \s has U+180E as well.
        switch (c) {
            case 's': return replace(2, "\\p{White_Space}");
            case 'S': return replace(2, "\\P{White_Space}");
            case 'd': return replace(2, "\\p{Nd}");
            case 'D': return replace(2, "\\P{Nd}");
            case 'v': return replace(2, "\\x0b");
            case 'r':
            case 'n':
            case 't':
            case 'f': return copy(2);
            case 'p':
            case 'P': return property(in_class);
            default: break;
        }
        const bool punctuation = c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') &&
                                 !(c >= 'a' && c <= 'z');
        if (!punctuation && c != ' ') refuse(c == '\0' ? "a backslash at the end" : std::string("\\") + c);
        copy(2);
    }

    void property(bool in_class) {
        if (groups_.back() && !in_class) refuse("a property where case is ignored");
        const auto close = pattern_.find('}', at_);
        if (peek(2) != '{' || close == std::string_view::npos) refuse("a property without braces");
        const auto name = pattern_.substr(at_ + 3, close - at_ - 3);
        if (std::find(std::begin(kCategories), std::end(kCategories), name) == std::end(kCategories)) {
            refuse("the property '" + std::string(name) + "'");
        }
        copy(close + 1 - at_);
    }

    void character_class() {
        if (groups_.back()) refuse("a character class where case is ignored");
        copy(peek(1) == '^' ? 2 : 1);
        if (peek(0) == ']') refuse("an empty character class");
        while (peek(0) != ']') {
            if (at_ >= pattern_.size()) refuse("an unfinished character class");
            if (peek(0) == '[') refuse("a class inside a character class");
            if (peek(0) == '&' && peek(1) == '&') refuse("an intersection of character classes");
            if (peek(0) == '\\') {
                escape(true);
            } else {
                copy(1);
            }
        }
        copy(1);
    }

    void open_group() {
        constexpr std::string_view openings[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
        const auto rest = pattern_.substr(at_);
        if (rest.substr(0, 4) == "(?i:") {
            groups_.push_back(true);
            return copy(4);
        }
        for (const auto opening : openings) {
            if (rest.substr(0, opening.size()) == opening) {
                groups_.push_back(groups_.back());
                return copy(opening.size());
            }
        }
        if (peek(1) == '?' || peek(1) == '*') refuse("the group '" + std::string(rest.substr(0, 4)) + "'");
        groups_.push_back(groups_.back());
        copy(1);
    }

    void interval() {
        auto end = at_ + 1;
        const auto digits = [&] {
            const auto begin = end;
            while (end < pattern_.size() && pattern_[end] >= '0' && pattern_[end] <= '9') ++end;
            return end - begin;
        };
        const bool counted = digits() > 0;
        if (end < pattern_.size() && pattern_[end] == ',') {
            ++end;
            digits();
        }
        if (!counted || end >= pattern_.size() || pattern_[end] != '}') refuse("a brace that is not a count");
        ++end;
        // After a count, Oniguruma reads + as another repeat and {n}? as an optional one.
        if (end < pattern_.size() && (pattern_[end] == '+' || pattern_[end] == '?'))
            refuse("a suffix after a count");
        copy(end - at_);
    }

    std::string_view pattern_;
    const std::string& where_;
    std::size_t at_ = 0;
    std::string out_;
    std::vector<bool> groups_{false};  ///< for each open group: is case ignored in it
};

}  // namespace

std::string translate_pattern(std::string_view pattern, const std::string& where) {
    return Translator(pattern, where).run();
}

}  // namespace ftmpi
