#include "values.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "../text/quoting.hpp"
#include "../text/size.hpp"

namespace ftmpi::values {
namespace {

bool starts_with_digit(std::string_view text) {
    return !text.empty() && text.front() >= '0' && text.front() <= '9';
}

std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        auto diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const auto change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row.back();
}

bool holds_all_words(std::string_view text, std::string_view words) {
    const auto all = parts(words, "-");
    return std::all_of(all.begin(), all.end(),
                       [&](const std::string& w) { return text.find(w) != std::string_view::npos; });
}

}  // namespace

std::string sentence(const std::string& name, std::string_view value, const Refused& refused) {
    const bool in_list = !refused.item.empty() && refused.item != value;
    auto out = name + (in_list ? " holds " + in_quotes(refused.item) : " is " + in_quotes(value));
    if (!refused.part.empty() && refused.part != (in_list ? std::string_view(refused.item) : value))
        return out + ", where " + in_quotes(refused.part) + " " + refused.why;
    return out + (in_list ? ", which " : " and ") + refused.why;
}

std::int64_t integer(std::string_view text, std::int64_t least, std::int64_t most) {
    std::int64_t value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = end == text.data() + text.size();
    if ((fault == std::errc() && whole && (value < least || value > most)) ||
        (fault == std::errc::result_out_of_range && whole))
        throw Refused{"must be between " + std::to_string(least) + " and " + std::to_string(most)};
    if (fault != std::errc() || !whole) throw Refused{"must be a whole number"};
    return value;
}

std::uint64_t unsigned_integer(std::string_view text) {
    std::uint64_t value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault == std::errc::result_out_of_range) throw Refused{"must be below 2^64"};
    if (fault != std::errc() || end != text.data() + text.size())
        throw Refused{"must be a whole number of 0 or more"};
    return value;
}

double number(std::string_view text) {
    double value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (!starts_with_digit(text) || fault == std::errc::invalid_argument || end != text.data() + text.size())
        throw Refused{"must be a number of 0 or more"};
    if (fault == std::errc::result_out_of_range || !std::isfinite(value))
        throw Refused{"must be a number that a double can hold"};
    return value;
}

std::uint64_t bytes(std::string_view text) {
    std::string why;
    if (const auto size = parse_size(text, why)) return *size;
    throw Refused{why, "write it as 24GiB, 512MiB, 16GB or a number of bytes"};
}

std::vector<std::string> parts(std::string_view text, std::string_view separators) {
    std::vector<std::string> out;
    for (std::size_t begin = 0;;) {
        const auto end = std::min(text.find_first_of(separators, begin), text.size());
        const auto part = without_blanks(text.substr(begin, end - begin));
        if (part.empty())
            throw Refused{"must not hold an empty item",
                          "on a command line a list with blanks is put in quotes"};
        out.emplace_back(part);
        if (end == text.size()) return out;
        begin = end + 1;
    }
}

std::string text_of(double value) {
    char buffer[64];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    return std::string(buffer, end);
}

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
    constexpr std::size_t longest = 64;  // no name is as long, and the comparison takes time times its length
    std::string best;
    if (name.size() > longest) return best;
    auto least = std::max<std::size_t>(2, name.size() / 3) + 1;
    for (const auto& candidate : known) {
        const auto d = distance(name, candidate);
        if (d < least && d < candidate.size()) least = d, best = candidate;
    }
    if (!best.empty()) return best;
    for (const auto& candidate : known)
        if (candidate.size() > best.size() && candidate.size() > 3 && holds_all_words(name, candidate))
            best = candidate;
    return best;
}

}  // namespace ftmpi::values
