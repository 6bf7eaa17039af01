// Two runs compared: the first request, step and token that differ.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "../digest.hpp"
#include "../error.hpp"
#include "../results.hpp"

namespace ftmpi {

namespace {

std::string named(const RequestRecord& r) {
    return "request " + std::to_string(r.index) + (r.id.empty() ? "" : " (id " + in_quotes(r.id) + ")");
}

std::string margin_at(const RequestRecord& r, std::size_t step) {
    if (step >= r.margins.size()) return "not recorded";
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", static_cast<double>(r.margins[step]));
    return text;
}

std::string margins_at(const RequestRecord& a, const RequestRecord& b, std::size_t step) {
    return "; top-2 margin " + margin_at(a, step) + " in the first, " + margin_at(b, step) + " in the second";
}

std::string end_of(const RequestRecord& r) {
    return counted(r.output_ids.size(), "token") + " (" + r.finish_reason +
           (r.error.empty() ? "" : ": " + in_quotes(r.error, 200)) + ")";
}

std::string tokens_at(const RequestRecord& a, const RequestRecord& b, std::size_t step) {
    return "token " + std::to_string(a.output_ids[step]) + " in the first, " +
           std::to_string(b.output_ids[step]) + " in the second";
}

/// Where the texts part, after logits that differ at `step`: often far behind it.
std::string parting_after(const RequestRecord& a, const RequestRecord& b, std::size_t step) {
    const std::size_t steps = std::min(a.output_ids.size(), b.output_ids.size());
    for (std::size_t later = step + 1; later < steps; ++later)
        if (a.output_ids[later] != b.output_ids[later])
            return "; the first token that differs is at step " + std::to_string(later) + ": " +
                   tokens_at(a, b, later) + margins_at(a, b, later);
    return a.output_ids.size() == b.output_ids.size() ? "; all tokens are equal"
                                                      : "; the tokens that both have are equal";
}

std::string hash_at(const RequestRecord& r, std::size_t step) {
    Sha256 hash;
    std::copy_n(r.step_sha256.begin() + static_cast<std::ptrdiff_t>(32 * step), 32, hash.begin());
    return hex(hash).substr(0, 16);
}

std::optional<Difference> compare_request(const RequestRecord& a, const RequestRecord& b) {
    if (a.prompt_ids != b.prompt_ids) {
        const auto [x, y] =
            std::mismatch(a.prompt_ids.begin(), a.prompt_ids.end(), b.prompt_ids.begin(), b.prompt_ids.end());
        const auto id = [](auto at, auto end) {
            return at == end ? std::string("the end") : std::to_string(*at);
        };
        return Difference{a.index, -1,
                          named(a) + ": the prompts differ: at position " +
                              std::to_string(x - a.prompt_ids.begin()) + " the first has " +
                              id(x, a.prompt_ids.end()) + ", the second " + id(y, b.prompt_ids.end())};
    }
    // Refused by its length, a prompt has no ids.
    if (a.prompt_ids.empty() && a.prompt != b.prompt)
        return Difference{a.index, -1, named(a) + ": the prompts differ in their text"};
    const std::size_t steps = std::min(a.output_ids.size(), b.output_ids.size());
    const std::size_t hashes = std::min(a.step_sha256.size(), b.step_sha256.size()) / 32;
    for (std::size_t step = 0; step < std::max(steps, hashes); ++step) {
        const bool same_logits =
            step >= hashes || a.step_sha256.compare(32 * step, 32, b.step_sha256, 32 * step, 32) == 0;
        const bool same_token = step >= steps || a.output_ids[step] == b.output_ids[step];
        if (same_logits && same_token) continue;
        std::string what = named(a) + ", step " + std::to_string(step) + ": ";
        if (!same_token) what += tokens_at(a, b, step);
        else
            what += "the logits differ (SHA-256 " + hash_at(a, step) + "... and " + hash_at(b, step) +
                    "...)" +
                    (step < steps ? ", though both chose token " + std::to_string(a.output_ids[step]) : "");
        what += margins_at(a, b, step);
        if (same_token) what += parting_after(a, b, step);
        return Difference{a.index, static_cast<std::int64_t>(step), what};
    }
    if (a.output_ids.size() != b.output_ids.size() || a.error.empty() != b.error.empty())
        return Difference{a.index, static_cast<std::int64_t>(steps),
                          named(a) + ", step " + std::to_string(steps) + ": the first has " + end_of(a) +
                              ", the second " + end_of(b) + margins_at(a, b, steps)};
    if (!a.logits_sha256.empty() && !b.logits_sha256.empty() && a.logits_sha256 != b.logits_sha256)
        return Difference{
            a.index, static_cast<std::int64_t>(steps),
            named(a) + ": the hashes over all logits differ, though those of the steps both have do not"};
    return std::nullopt;
}

}  // namespace

std::optional<Difference> compare_results(const StoredRun& a, const StoredRun& b) {
    const auto held_by_one = [](std::int64_t index, const char* where) {
        return Difference{-1, -1, "request " + std::to_string(index) + " is in the " + where + " only"};
    };
    // A difference inside a request says more than a missing one, so it is looked for first.
    std::optional<Difference> missing;
    for (std::size_t i = 0, j = 0; i < a.requests.size() || j < b.requests.size();) {
        if (j == b.requests.size() || (i < a.requests.size() && a.requests[i].index < b.requests[j].index)) {
            if (!missing) missing = held_by_one(a.requests[i].index, "first");
            ++i;
        } else if (i == a.requests.size() || b.requests[j].index < a.requests[i].index) {
            if (!missing) missing = held_by_one(b.requests[j].index, "second");
            ++j;
        } else {
            if (auto difference = compare_request(a.requests[i++], b.requests[j++])) return difference;
        }
    }
    if (missing)
        missing->what += ": the first holds " + counted(a.requests.size(), "request") + ", the second " +
                         std::to_string(b.requests.size()) + "; those in both are equal";
    return missing;
}

std::string identity_difference(const std::string& a, const std::string& b) {
    if (a == b) return {};
    std::string_view rest_a = a, rest_b = b;
    const auto take_line = [](std::string_view& rest) {
        const auto end = rest.find('\n');
        const auto line = rest.substr(0, end);
        rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
        return line;
    };
    while (!rest_a.empty() || !rest_b.empty()) {
        const auto line_a = take_line(rest_a), line_b = take_line(rest_b);
        if (line_a != line_b) return in_quotes(line_a, 300) + " there, " + in_quotes(line_b, 300) + " here";
    }
    return "their last lines end differently";
}

std::string setting_difference(const std::string& label, const std::optional<std::string>& a,
                               const std::optional<std::string>& b) {
    const auto plain = [](const std::string& text) { return text.empty() ? "\"\"" : escaped(text, 300); };
    const auto shown = [&](const std::optional<std::string>& value) {
        return value ? plain(*value) : "not there";
    };
    return plain(label) + " is " + shown(a) + " in the first, " + shown(b) + " in the second";
}

std::vector<std::pair<std::string, std::string>> setting_differences(const std::string& a,
                                                                     const std::string& b) {
    // Labels in the order of the first, then those that only the second has; of a label that comes twice, the
    // first value.
    std::vector<std::string> labels;
    const auto values_of = [&](std::string_view rest) {
        std::map<std::string, std::string> values;
        while (!rest.empty()) {
            const auto line = rest.substr(0, rest.find('\n'));
            rest.remove_prefix(std::min(rest.size(), line.size() + 1));
            const auto colon = line.find(": ");
            std::string label(line.substr(0, colon));
            labels.push_back(label);
            values.emplace(std::move(label), colon == std::string_view::npos ? "" : line.substr(colon + 2));
        }
        return values;
    };
    const auto of_a = values_of(a), of_b = values_of(b);
    const auto value = [](const std::map<std::string, std::string>& values, const std::string& label) {
        const auto found = values.find(label);
        return found == values.end() ? std::nullopt : std::optional(found->second);
    };
    std::vector<std::pair<std::string, std::string>> all;
    std::set<std::string> seen;
    for (const auto& label : labels)
        if (seen.insert(label).second && value(of_a, label) != value(of_b, label))
            all.emplace_back(label, setting_difference(label, value(of_a, label), value(of_b, label)));
    return all;
}

}  // namespace ftmpi
