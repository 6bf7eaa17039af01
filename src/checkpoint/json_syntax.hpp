// Where a text stops being JSON. simdjson says only that it does; a user needs the place.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ftmpi {

struct SyntaxFault {
    std::size_t offset = 0;  ///< of the first byte that no JSON text could have there
    bool trailing = false;   ///< the bytes before it are a complete JSON value
};

/// The first fault of grammar, or nothing. Iterative, so the depth of nesting costs no stack. Does not check
/// UTF-8, the range of numbers or duplicate keys.
std::optional<SyntaxFault> find_syntax_fault(std::string_view text);

/// `text` in double quotes for a message: control bytes as \xNN, at most 200 bytes.
std::string in_quotes(std::string_view text);

}  // namespace ftmpi
