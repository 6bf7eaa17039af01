// Numbers as the plan prints them. Internal to the plan.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace ftmpi::shard {

/// Three significant digits below 1000 unless told how many decimals, never an exponent.
inline std::string number(double value, int decimals = -1) {
    if (decimals < 0) decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", decimals, value);
    return text;
}

inline std::string mebibytes(std::uint64_t bytes) { return number(static_cast<double>(bytes) / (1 << 20)); }
/// "20 B", "1.5 KiB", "60 MiB", "23.94 GiB" with a space between; the unit that leaves a number from 1 on.
inline std::string size_text(std::uint64_t bytes, const char* between) {
    constexpr std::pair<const char*, int> units[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}};
    for (const auto& [unit, bits] : units) {
        if (bytes >> bits == 0) continue;
        auto text = number(static_cast<double>(bytes) / static_cast<double>(std::uint64_t{1} << bits), 2);
        text.erase(text.find_last_not_of('0') + 1);
        if (text.back() == '.') text.pop_back();
        return text + between + unit;
    }
    return std::to_string(bytes) + between + "B";
}
inline std::string milliseconds(double seconds) { return number(seconds * 1e3, 3) + " ms"; }
inline std::string percent(double share) { return number(share * 100, 2); }

}  // namespace ftmpi::shard
