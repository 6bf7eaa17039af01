#include "json_syntax.hpp"

#include <cctype>

namespace ftmpi {
namespace {

class Scanner {
public:
    explicit Scanner(std::string_view text) : text_(text) {}

    std::optional<SyntaxFault> run() {
        enum class Expect { value, value_or_close, key, key_or_close, separator } expect = Expect::value;
        std::string open;  // brackets not closed yet
        while (true) {
            skip_space();
            const char c = peek();
            const bool closes_empty = (expect == Expect::value_or_close && c == ']') ||
                                      (expect == Expect::key_or_close && c == '}');
            if (closes_empty ||
                (expect == Expect::separator && !open.empty() && c == (open.back() == '{' ? '}' : ']'))) {
                ++at_;
                open.pop_back();
                expect = Expect::separator;
            } else if (expect == Expect::separator) {
                if (open.empty())
                    return at_ == text_.size() ? std::nullopt : std::optional(SyntaxFault{at_, true});
                if (c != ',' || at_ == text_.size()) return SyntaxFault{at_};
                ++at_;
                expect = open.back() == '{' ? Expect::key : Expect::value;
            } else if (expect == Expect::key || expect == Expect::key_or_close) {
                if (c != '"' || !string()) return SyntaxFault{at_};
                skip_space();
                if (peek() != ':') return SyntaxFault{at_};
                ++at_;
                expect = Expect::value;
            } else if (c == '{' || c == '[') {
                ++at_;
                open += c;
                expect = c == '{' ? Expect::key_or_close : Expect::value_or_close;
            } else if (!(c == '"' ? string() : scalar())) {
                return SyntaxFault{at_};
            } else {
                expect = Expect::separator;
            }
        }
    }

private:
    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
    bool digit() const { return std::isdigit(static_cast<unsigned char>(peek())) != 0; }

    void skip_space() {
        while (at_ < text_.size() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r'))
            ++at_;
    }

    // Both leave at_ on the offending byte when they return false.
    bool string() {
        for (++at_; at_ < text_.size(); ++at_) {
            if (peek() == '"') return ++at_, true;
            if (static_cast<unsigned char>(peek()) < 0x20) return false;
            if (peek() != '\\') continue;
            ++at_;
            if (peek() == 'u') {
                for (int i = 0; i < 4; ++i)
                    if (++at_, !std::isxdigit(static_cast<unsigned char>(peek()))) return false;
            } else if (peek() == '\0' ||
                       std::string_view("\"\\/bfnrt").find(peek()) == std::string_view::npos) {
                return false;
            }
        }
        return false;
    }

    bool digits() {
        if (!digit()) return false;
        while (digit()) ++at_;
        return true;
    }

    bool scalar() {
        for (const std::string_view word : {"true", "false", "null"})
            if (text_.substr(at_, word.size()) == word) return at_ += word.size(), true;
        if (peek() == '-') ++at_;
        if (peek() == '0') ++at_;
        else if (!digits()) return false;
        if (peek() == '.' && (++at_, !digits())) return false;
        if (peek() == 'e' || peek() == 'E') {
            ++at_;
            if (peek() == '+' || peek() == '-') ++at_;
            if (!digits()) return false;
        }
        return true;
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

}  // namespace

std::optional<SyntaxFault> find_syntax_fault(std::string_view text) { return Scanner(text).run(); }

std::string in_quotes(std::string_view text) {
    constexpr std::size_t limit = 200;
    constexpr char hex[] = "0123456789abcdef";
    std::string out = "\"";
    for (const char c : text.substr(0, limit)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte != 0x7f) out += c;
        else out += {'\\', 'x', hex[byte >> 4], hex[byte & 15]};
    }
    return out + (text.size() > limit ? "...\"" : "\"");
}

}  // namespace ftmpi
