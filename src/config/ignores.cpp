// Patterns of modules that an exporter left unquantized, against the names of a checkpoint.
#include <algorithm>
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

/// `*` stands for any run of characters, dots included.
bool glob_matches(std::string_view pattern, std::string_view name) {
    std::size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
    while (n < name.size()) {
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
    return p == pattern.size();
}

class Names {
public:
    explicit Names(const std::vector<std::string>& names) {
        sorted_.reserve(names.size());
        for (const auto& name : names) sorted_.push_back(normalised(name));
        std::sort(sorted_.begin(), sorted_.end());
    }

    bool matched(const std::string& entry) const {
        if (starts_with(entry, "re:")) return matches_regex(entry.substr(3));
        const auto pattern = normalised(entry);
        return pattern.find('*') == pattern.npos ? names_module(pattern) : matches_glob(pattern);
    }

private:
    /// The name itself, a module above it, or (as exporters also write it) the last parts of a module's name.
    bool names_module(const std::string& pattern) const {
        const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), pattern);
        if (at != sorted_.end() && *at == pattern) return true;
        const auto below = std::lower_bound(at, sorted_.end(), pattern + ".");
        if (below != sorted_.end() && starts_with(*below, pattern + ".")) return true;
        const auto part = "." + pattern;
        return std::any_of(sorted_.begin(), sorted_.end(), [&](std::string_view name) {
            const auto found = name.find(part);
            const auto end = found + part.size();
            return found != name.npos && (end == name.size() || name[end] == '.');
        });
    }

    bool matches_glob(const std::string& pattern) const {
        const auto literal = pattern.substr(0, pattern.find('*'));
        const auto module = pattern + ".*";
        for (auto it = std::lower_bound(sorted_.begin(), sorted_.end(), literal);
             it != sorted_.end() && starts_with(*it, literal); ++it)
            if (glob_matches(pattern, *it) || glob_matches(module, *it)) return true;
        return false;
    }

    /// From the start of the name, as the exporters' own matching does. An expression that is none matches nothing; of one
    /// that this program does not judge nothing is said.
    bool matches_regex(const std::string& text) const {
        const Expression expression(text);
        if (expression.kind() != Expression::Kind::plain) return expression.kind() == Expression::Kind::beyond;
        const auto matches = [&](std::string_view name) {  // the tensor, or the module it belongs to
            return expression.matches_start(name) || expression.matches_start(name.substr(0, name.rfind('.')));
        };
        return std::any_of(sorted_.begin(), sorted_.end(), [&](const std::string& name) {
            return matches(name) || (starts_with(name, "model.") && matches("model.language_model." + name.substr(6)));
        });
    }

    std::vector<std::string> sorted_;
};

}  // namespace

std::vector<std::string> unmatched_ignores(const ModelConfig& config, const std::vector<std::string>& names) {
    std::vector<std::string> unmatched;
    if (config.ignore_patterns.empty()) return unmatched;
    const Names sorted(names);
    for (const auto& entry : config.ignore_patterns)
        if (!sorted.matched(entry)) unmatched.push_back(printable(entry));
    return unmatched;
}

}  // namespace ftmpi
