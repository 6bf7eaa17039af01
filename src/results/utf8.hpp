// What a string may be written as: UTF-8 without NUL, or bytes.
#pragma once

#include <string>
#include <string_view>

namespace ftmpi {

/// `bytes` as UTF-8 without NUL: each NUL and each maximal part of an ill-formed sequence becomes U+FFFD.
/// Equal to `bytes` exactly when nothing had to be replaced.
std::string readable_text(std::string_view bytes);

/// `bytes` in double quotes for a message: readable text, control characters as \xNN, at most `limit` bytes
/// of it.
std::string in_quotes(std::string_view bytes, std::size_t limit = 60);

}  // namespace ftmpi
