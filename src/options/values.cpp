#include "values.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <simdjson.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

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

std::string_view without_blanks(std::string_view text) {
    const auto begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
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
    static constexpr std::pair<std::string_view, double> units[] = {
        {"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
        {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
    const auto split = std::min(text.find_first_not_of("0123456789."), text.size());
    const auto figures = text.substr(0, split), unit = text.substr(split);
    const auto found =
        std::find_if(std::begin(units), std::end(units), [&](const auto& u) { return u.first == unit; });
    if (found == std::end(units) || !starts_with_digit(figures) || figures.back() == '.')
        throw Refused{"must be a size", "write it as 24GiB, 512MiB, 16GB or a number of bytes"};
    if (found->second == 1.0) {
        if (figures.find('.') != std::string_view::npos) throw Refused{"must be a whole number of bytes"};
        return static_cast<std::uint64_t>(integer(figures, 0, std::numeric_limits<std::int64_t>::max()));
    }
    const double value = number(figures) * found->second;
    if (!(value < 9.2e18)) throw Refused{"must be below 8 EiB"};
    return static_cast<std::uint64_t>(value);
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

std::size_t find_invalid_utf8(std::string_view text, std::string& what) {
    if (simdjson::validate_utf8(text.data(), text.size())) return std::string_view::npos;
    // The fast check says that a fault exists; this walk finds it, so it need not be fast.
    for (std::size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i]);
        const std::size_t length = lead < 0x80   ? 1
                                   : lead < 0xC0 ? 0
                                   : lead < 0xE0 ? 2
                                   : lead < 0xF0 ? 3
                                   : lead < 0xF8 ? 4
                                                 : 0;
        const auto second = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0u;
        const bool continued = (second & 0xC0u) == 0x80u;
        if (length == 0) what = lead < 0xC0 ? "unexpected continuation byte" : "byte that never occurs";
        else if (lead == 0xC0 || lead == 0xC1 || (lead == 0xE0 && continued && second < 0xA0) ||
                 (lead == 0xF0 && continued && second < 0x90))
            what = "overlong form";
        else if (lead == 0xED && continued && second >= 0xA0) what = "surrogate";
        else if (lead > 0xF4 || (lead == 0xF4 && continued && second >= 0x90)) what = "beyond U+10FFFF";
        else {
            std::size_t have = 1;
            while (have < length && i + have < text.size() &&
                   (static_cast<unsigned char>(text[i + have]) & 0xC0u) == 0x80u)
                ++have;
            if (have == length) {
                i += length;
                continue;
            }
            what = "truncated character";
        }
        return i;
    }
    what = "fault without a position";
    return text.size();
}

std::string read_file(const std::filesystem::path& path, std::uint64_t limit) {
    // O_NONBLOCK: opening a FIFO must not wait for a writer before fstat can refuse it.
    struct Descriptor {
        int value;
        explicit Descriptor(int opened) : value(opened) {}
        Descriptor(const Descriptor&) = delete;
        Descriptor& operator=(const Descriptor&) = delete;
        ~Descriptor() {
            if (value >= 0) ::close(value);
        }
    } const file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    if (file.value < 0) throw Refused{std::string("cannot be opened: ") + std::strerror(errno)};
    struct stat facts {};
    if (::fstat(file.value, &facts) != 0)
        throw Refused{std::string("cannot be read: ") + std::strerror(errno)};
    if (!S_ISREG(facts.st_mode)) throw Refused{"is not a regular file"};
    const auto too_large = Refused{"is larger than " + std::to_string(limit) + " bytes"};
    if (static_cast<std::uint64_t>(facts.st_size) > limit) throw too_large;

    // Read to the end rather than to st_size: files of /proc and files that grow say a size that is not
    // theirs.
    std::string content(static_cast<std::size_t>(facts.st_size) + 1, '\0');
    std::size_t have = 0;
    for (;;) {
        const auto got = ::read(file.value, content.data() + have, content.size() - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw Refused{std::string("cannot be read: ") + std::strerror(errno)};
        if (got == 0) break;
        have += static_cast<std::size_t>(got);
        if (have > limit) throw too_large;
        if (have == content.size()) content.resize(content.size() + 65536);
    }
    content.resize(have);
    return content;
}

std::string in_quotes(std::string_view text) {
    std::string out = "'";
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (text.size() > 120 && i == 60) {
            out += "...";
            i = text.size() - 41;
        } else if (c < 0x20 || c == 0x7F || c == '\\') {
            static constexpr char digits[] = "0123456789ABCDEF";
            if (c == '\n') out += "\\n";
            else if (c == '\t') out += "\\t";
            else if (c == '\\') out += "\\";
            else (out += "\\x") += {digits[c >> 4], digits[c & 15]};
        } else {
            out += text[i];
        }
    }
    return out + "'";
}

std::string shell_word(const std::string& word) {
    const bool plain = std::all_of(word.begin(), word.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
               std::string_view("-_./,:=@%+").find(c) != std::string_view::npos;
    });
    if (plain && !word.empty()) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
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
