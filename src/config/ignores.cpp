// Patterns of modules that an exporter left unquantized, against the names of a checkpoint.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "../config.hpp"
#include "../error.hpp"
#include "expression.hpp"

namespace ftmpi {
namespace {

bool starts_with(std::string_view s, std::string_view prefix) { return s.substr(0, prefix.size()) == prefix; }

/// One spelling for the prefixes that exporters and checkpoints use for the same module.
std::string normalised(std::string_view name) {
    for (const std::string_view prefix : {"model.language_model.", "language_model.model."})
        if (starts_with(name, prefix)) return "model." + std::string(name.substr(prefix.size()));
    return std::string(name);
}

/// The steps that are left for the whole list.
class Patience {
public:
    explicit Patience(std::uint64_t steps) : left_(steps) {}
    bool spend(std::uint64_t steps) {
        left_ -= std::min(left_, steps);
        return left_ > 0;
    }
    bool gone() const { return left_ == 0; }
    std::uint64_t& left() { return left_; }

private:
    std::uint64_t left_;
};

/// `*` stands for any run of characters, dots included.
bool glob_matches(std::string_view pattern, std::string_view name, Patience& patience) {
    std::size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
    while (n < name.size() && patience.spend(1)) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            resume = n;
        } else if (p < pattern.size() && pattern[p] == name[n]) {
            ++p, ++n;
        } else if (star != std::string_view::npos) {
            p = star + 1;
            n = ++resume;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*') ++p;
    return n == name.size() && p == pattern.size();
}

/// Whether `part` stands in `name` before a dot or at its end.
bool holds_before_dot(std::string_view name, std::string_view part, Patience& patience) {
    for (std::size_t from = 0; from + part.size() <= name.size();) {
        // In contrast to find(), memmem's time is linear in both.
        const auto* at = memmem(name.data() + from, name.size() - from, part.data(), part.size());
        if (!patience.spend((at ? part.size() : name.size() - from) / 4 + 1) || !at) return false;
        const auto begin = static_cast<std::size_t>(static_cast<const char*>(at) - name.data());
        if (!patience.spend((begin - from) / 4)) return false;
        const auto end = begin + part.size();
        if (end == name.size() || name[end] == '.') return true;
        from = begin + 1;
    }
    return false;
}

class Names {
public:
    Names(const std::vector<std::string>& names, std::uint64_t patience) : patience_(patience) {
        sorted_.reserve(names.size());
        for (const auto& name : names) sorted_.push_back(normalised(name));
        std::sort(sorted_.begin(), sorted_.end());
    }

    /// Whether the entry names something; nothing when patience ended before that was known.
    std::optional<bool> matched(const std::string& entry) {
        const bool expression = starts_with(entry, "re:");
        const auto pattern = normalised(entry);
        if (!expression && names_module(pattern)) return true;
        if (patience_.gone()) return std::nullopt;
        bool found = false;
        if (expression) found = matches_regex(entry.substr(3));
        else if (pattern.find('*') == pattern.npos) found = names_parts(pattern);
        else found = matches_glob(pattern);
        if (!found && patience_.gone()) return std::nullopt;
        return found;
    }

private:
    /// The name itself, or a module above it.
    bool names_module(const std::string& pattern) const {
        const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), pattern);
        if (at != sorted_.end() && *at == pattern) return true;
        const auto below = std::lower_bound(at, sorted_.end(), pattern + ".");
        return below != sorted_.end() && starts_with(*below, pattern + ".");
    }

    /// The last parts of a module's name, as exporters also write it.
    bool names_parts(const std::string& pattern) {
        const auto parts = "." + pattern;
        return any([&](const std::string& name) { return holds_before_dot(name, parts, patience_); });
    }

    bool matches_glob(const std::string& pattern) {
        const auto literal = pattern.substr(0, pattern.find('*'));
        const auto module = pattern + ".*";
        for (auto it = std::lower_bound(sorted_.begin(), sorted_.end(), literal);
             it != sorted_.end() && starts_with(*it, literal) && patience_.spend(1); ++it)
            if (glob_matches(pattern, *it, patience_) || glob_matches(module, *it, patience_)) return true;
        return false;
    }

    /// From the start of the name, as the exporters' own matching does. An expression that is none matches
    /// nothing; of one that this program does not judge nothing is said.
    bool matches_regex(const std::string& text) {
        const Expression expression(text);
        patience_.spend(text.size() + expression.size());
        if (expression.kind() != Expression::Kind::plain)
            return expression.kind() == Expression::Kind::beyond;
        // The module that a tensor belongs to is a beginning of its name, so only an end can tell them apart.
        const bool looks_at_end = expression.looks_at_end();
        const auto matches = [&](std::string_view name) {
            return expression.matches_start(name, patience_.left()) ||
                   (looks_at_end &&
                    expression.matches_start(name.substr(0, name.rfind('.')), patience_.left()));
        };
        return any([&](const std::string& name) {
            return matches(name) ||
                   (starts_with(name, "model.") && matches("model.language_model." + name.substr(6)));
        });
    }

    template <class F> bool any(F&& f) {
        for (const auto& name : sorted_)
            if (patience_.spend(1) && f(name)) return true;
        return false;
    }

    std::vector<std::string> sorted_;
    Patience patience_;
};

}  // namespace

IgnoreCheck check_ignores(const ModelConfig& config, const std::vector<std::string>& names,
                          std::uint64_t patience) {
    IgnoreCheck check;
    if (config.ignore_patterns.empty()) return check;
    Names sorted(names, patience);
    for (const auto& entry : config.ignore_patterns) {
        const auto matched = sorted.matched(entry);
        if (!matched) ++check.not_compared;
        else if (!*matched) check.unmatched.push_back(printable(entry));
    }
    return check;
}

}  // namespace ftmpi
