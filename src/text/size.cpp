#include "size.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <utility>

namespace ftmpi {

std::string number_text(double value, int decimals) {
    if (decimals < 0) decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", decimals, value);
    return text;
}

std::string mebibytes(std::uint64_t bytes) { return number_text(static_cast<double>(bytes) / (1 << 20)); }

std::string size_text(std::uint64_t bytes, std::string_view between) {
    constexpr std::pair<std::string_view, int> units[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}};
    std::string text = std::to_string(bytes);
    std::string_view shown = "B";
    for (const auto& [unit, bits] : units) {
        if (bytes >> bits == 0) continue;
        text = number_text(static_cast<double>(bytes) / static_cast<double>(std::uint64_t{1} << bits), 2);
        text.erase(text.find_last_not_of('0') + 1);
        if (text.back() == '.') text.pop_back();
        shown = unit;
        break;
    }
    return text.append(between).append(shown);
}

std::optional<std::uint64_t> parse_size(std::string_view text, std::string& why) {
    static constexpr std::pair<std::string_view, double> units[] = {
        {"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
        {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
    constexpr std::string_view digits = "0123456789";
    const auto split = std::min(text.find_first_not_of("0123456789."), text.size());
    const auto figures = text.substr(0, split), unit = text.substr(split);
    const auto found =
        std::find_if(std::begin(units), std::end(units), [&](const auto& u) { return u.first == unit; });
    double value = 0;
    const auto [end, fault] = std::from_chars(figures.data(), figures.data() + figures.size(), value);
    if (found == std::end(units) || figures.empty() || digits.find(figures.front()) == digits.npos ||
        figures.back() == '.' || end != figures.data() + figures.size()) {
        why = "must be a size";
        return std::nullopt;
    }
    if (found->second == 1.0 && figures.find('.') != figures.npos) {
        why = "must be a whole number of bytes";
        return std::nullopt;
    }
    value *= found->second;
    if (fault != std::errc() || !(value < 9.2e18)) {
        why = "must be below 8 EiB";
        return std::nullopt;
    }
    if (found->second != 1.0) return static_cast<std::uint64_t>(value);
    std::uint64_t whole = 0;  // a double has not all whole numbers
    std::from_chars(figures.data(), figures.data() + figures.size(), whole);
    return whole;
}

}  // namespace ftmpi
