// Numbers as the plan prints them. Internal to the plan.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace ftmpi::shard {

/// Three significant digits below 1000 unless told how many decimals, never an exponent.
inline std::string number(double value, int decimals = -1) {
    if (decimals < 0) decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", decimals, value);
    return text;
}

inline std::string mebibytes(std::uint64_t bytes) { return number(static_cast<double>(bytes) / (1 << 20)); }
inline std::string milliseconds(double seconds) { return number(seconds * 1e3, 3) + " ms"; }
inline std::string percent(double share) { return number(share * 100, 2); }

}  // namespace ftmpi::shard
