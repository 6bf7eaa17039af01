// Numbers and sizes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ftmpi {

/// Three significant digits below 1000 unless told how many decimals, never an exponent.
std::string number_text(double value, int decimals = -1);
inline std::string milliseconds(double seconds) { return number_text(seconds * 1e3, 3) + " ms"; }
inline std::string percent(double share) { return number_text(share * 100, 2); }
std::string mebibytes(std::uint64_t bytes);
/// "20 B", "1.5 KiB", "60 MiB", "23.94 GiB" with `between` for the space; the unit that leaves a number from
/// 1 on.
std::string size_text(std::uint64_t bytes, std::string_view between = " ");
/// Bytes of "24GiB", "1.5GB", "1000", below 8 EiB; else nothing, and `why` says what the text must be.
std::optional<std::uint64_t> parse_size(std::string_view text, std::string& why);

}  // namespace ftmpi
