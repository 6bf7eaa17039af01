// Two runs compared: the first request, step and token that differ.
#include <algorithm>
#include <cstdio>

#include "../digest.hpp"
#include "../error.hpp"
#include "../results.hpp"
#include "utf8.hpp"

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

std::string hash_at(const RequestRecord& r, std::size_t step) {
    Sha256 hash;
    std::copy_n(r.step_sha256.begin() + static_cast<std::ptrdiff_t>(32 * step), 32, hash.begin());
    return hex(hash).substr(0, 16);
}

std::optional<Difference> compare_request(const RequestRecord& a, const RequestRecord& b) {
    if (a.prompt_ids != b.prompt_ids) {
        const auto [x, y] = std::mismatch(a.prompt_ids.begin(), a.prompt_ids.end(), b.prompt_ids.begin(), b.prompt_ids.end());
        const auto id = [](auto at, auto end) { return at == end ? std::string("the end") : std::to_string(*at); };
        return Difference{a.index, -1,
                          named(a) + ": the prompts differ: at position " + std::to_string(x - a.prompt_ids.begin()) +
                              " the first has " + id(x, a.prompt_ids.end()) + ", the second " + id(y, b.prompt_ids.end())};
    }
    const std::size_t steps = std::min(a.output_ids.size(), b.output_ids.size());
    const std::size_t hashes = std::min(a.step_sha256.size(), b.step_sha256.size()) / 32;
    for (std::size_t step = 0; step < std::max(steps, hashes); ++step) {
        const bool same_logits = step >= hashes || a.step_sha256.compare(32 * step, 32, b.step_sha256, 32 * step, 32) == 0;
        const bool same_token = step >= steps || a.output_ids[step] == b.output_ids[step];
        if (same_logits && same_token) continue;
        std::string what = named(a) + ", step " + std::to_string(step) + ": ";
        if (!same_token)
            what += "token " + std::to_string(a.output_ids[step]) + " in the first, " + std::to_string(b.output_ids[step]) +
                    " in the second";
        else
            what += "the logits differ (SHA-256 " + hash_at(a, step) + "... and " + hash_at(b, step) + "...)" +
                    (step < steps ? ", though both chose token " + std::to_string(a.output_ids[step]) : "");
        return Difference{a.index, static_cast<std::int64_t>(step), what + margins_at(a, b, step)};
    }
    if (a.output_ids.size() != b.output_ids.size())
        return Difference{a.index, static_cast<std::int64_t>(steps),
                          named(a) + ", step " + std::to_string(steps) + ": the first has " + end_of(a) + ", the second " +
                              end_of(b) + margins_at(a, b, steps)};
    if (!a.logits_sha256.empty() && !b.logits_sha256.empty() && a.logits_sha256 != b.logits_sha256)
        return Difference{a.index, static_cast<std::int64_t>(steps),
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

}  // namespace ftmpi
