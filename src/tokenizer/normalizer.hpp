// Unicode normalization form C.
#pragma once

#include <string>
#include <string_view>

namespace ftmpi {

/// `text` (valid UTF-8) in NFC. The result is `text` itself where that is already plain, else it lives in
/// `storage`. Linear in the length except for sorting the marks of one character (n log n).
std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace ftmpi
