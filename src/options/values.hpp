// Strict readers of option values. Each takes the whole text or throws Refused; nothing is rounded, clamped
// or guessed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftmpi::values {

/// Why a value is refused, without the option's name: the caller knows where the value came from. `why` is
/// what stands behind the value in a sentence: "must be ...", or "cannot be opened" of a file.
struct Refused {
    std::string why;
    std::string hint = {};
    std::string item = {};  ///< of a list: the item refused, and its part where not all of it is wrong
    std::string part = {};
};
/// "NAME is 'VALUE' and must be ..."; of a longer list "NAME holds 'ITEM', which must be ...".
std::string sentence(const std::string& name, std::string_view value, const Refused& refused);

std::int64_t integer(std::string_view text, std::int64_t least, std::int64_t most);
std::uint64_t unsigned_integer(std::string_view text);
/// A finite decimal number; no sign, no hexadecimal, no "inf" or "nan".
double number(std::string_view text);
/// Bytes of "24GiB", "1.5GB", "1000".
std::uint64_t bytes(std::string_view text);
/// The parts between separators (any character of `separators`) without the blanks around them, none of them
/// empty.
std::vector<std::string> parts(std::string_view text, std::string_view separators);
/// Shortest text that reads back as the same number.
std::string text_of(double value);

/// The name in `known` that was likely meant, or empty.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace ftmpi::values
