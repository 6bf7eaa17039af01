// The regular expressions of ignore lists (`re:...`), matched in time linear in the text: they come from a
// file, and a matcher that backtracks can be made to take exponential time or all of the stack.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ftmpi {

class Expression {
public:
    enum class Kind {
        plain,      ///< can be matched
        malformed,  ///< no regular expression
        beyond,  ///< look-around, back references, or too large when its counts are written out: not judged
    };
    /// Literals, `.`, classes, \d \w \s \D \W \S, groups, `|`, `* + ?`, counts, `^ $`; bytes, not characters.
    explicit Expression(std::string_view text);

    Kind kind() const { return kind_; }
    std::size_t size() const { return steps_.size(); }
    /// Whether a match may depend on where the text ends (`$`).
    bool looks_at_end() const;
    /// Whether a beginning of `text` matches, as Python's re.match says. Only for a plain one.
    bool matches_start(std::string_view text) const;
    /// The same, within `patience`, which it lowers by what it takes; false when that comes to 0.
    bool matches_start(std::string_view text, std::uint64_t& patience) const;

private:
    struct Step {
        enum class Op : std::uint8_t { bytes, split, begin, end, done } op;
        std::uint32_t next = 0;   ///< the step that follows
        std::uint32_t other = 0;  ///< of a split: its second way; of bytes: which set
    };
    friend class ExpressionReader;

    Kind kind_ = Kind::malformed;
    std::vector<Step> steps_;
    std::vector<std::bitset<256>> sets_;
};

}  // namespace ftmpi
