#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <new>
#include <system_error>

namespace ftmpi::mpi {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        lines.push_back(text.substr(0, text.find('\n')));
        text.remove_prefix(std::min(text.size(), lines.back().size() + 1));
    }
    return lines;
}

std::string list(const std::vector<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
    return text;
}

}  // namespace

Error error_of_current_exception() {
    try {
        throw;
    } catch (const Error& error) { return error; } catch (const std::bad_alloc&) {
        return {Exit::does_not_fit, "out of host memory",
                "close other programs, or use more ranks on more machines"};
    } catch (const std::system_error& error) {
        // std::thread's constructor says no more than this.
        if (error.code() == std::errc::resource_unavailable_try_again)
            return {Exit::failure, "a thread cannot be started: " + error.code().message(),
                    "the number of processes (ulimit -u) or the address space (ulimit -v) is limited; "
                    "--threads takes fewer"};
        return {Exit::failure, error.what()};
    } catch (const std::exception& error) { return {Exit::failure, error.what()}; } catch (...) {
        return {Exit::failure, "an exception of an unknown type"};
    }
}

RankReport report_of_current_exception() {
    const Error error = error_of_current_exception();
    return {error.code(), error.what(), error.hint()};
}

std::string seconds_text(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%g s", seconds);
    return text;
}

std::string name_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
    std::string names;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        const auto& host = hosts[static_cast<std::size_t>(ranks[i])];
        if (i == 0 || host != hosts[static_cast<std::size_t>(ranks[i - 1])])
            names += (names.empty() ? "" : ", ") + host;
    }
    return list(ranks) + " (" + names + ")";
}

Exit code_of(const std::vector<RankReport>& reports) {
    for (const auto& report : reports)
        if (report.code != Exit::ok) return report.code;
    return Exit::ok;
}

std::string message_of(std::string_view phase, const std::vector<RankReport>& reports,
                       const std::vector<std::string>& hosts) {
    std::vector<int> failed;
    bool same = true;
    for (std::size_t r = 0; r < reports.size(); ++r) {
        if (reports[r].code == Exit::ok) continue;
        failed.push_back(static_cast<int>(r));
        same &= reports[r].what == reports[static_cast<std::size_t>(failed[0])].what;
    }
    if (failed.empty()) return {};
    const auto& first = reports[static_cast<std::size_t>(failed[0])];
    const bool everywhere = same && failed.size() == reports.size();
    std::string text = "ftmpi: error in " + std::string(phase);
    if (!everywhere) text += " on " + name_ranks({failed[0]}, hosts);
    else if (reports.size() > 1) text += " on all " + std::to_string(reports.size()) + " ranks";
    text += ": " + first.what + "\n";
    if (!first.hint.empty()) text += "ftmpi: hint: " + first.hint + "\n";
    if (!everywhere && failed.size() > 1)
        text += "ftmpi: " + std::to_string(failed.size() - 1) +
                (failed.size() == 2 ? " other rank" : " other ranks") + " failed too\n";
    return text;
}

std::string first_difference(std::string_view what, const std::vector<std::string>& texts) {
    if (std::all_of(texts.begin(), texts.end(), [&](const auto& t) { return t == texts[0]; })) return {};
    std::vector<std::vector<std::string_view>> lines;
    std::size_t most = 0;
    for (const auto& text : texts) most = std::max(most, lines.emplace_back(lines_of(text)).size());
    for (std::size_t number = 0; number < most; ++number) {
        std::vector<std::pair<std::string, std::vector<int>>> groups;  // in the order of ranks
        for (std::size_t r = 0; r < lines.size(); ++r) {
            const std::string line =
                number < lines[r].size() ? "'" + std::string(lines[r][number]) + "'" : "missing";
            auto group = std::find_if(groups.begin(), groups.end(),
                                      [&](const auto& known) { return known.first == line; });
            if (group == groups.end()) group = groups.insert(group, {line, {}});
            group->second.push_back(static_cast<int>(r));
        }
        if (groups.size() == 1) continue;
        std::string text = std::string(what) + " differ between ranks: line " + std::to_string(number + 1);
        for (const auto& [line, ranks] : groups)
            text += (line == groups[0].first ? " is " : ", ") + line + " on " + list(ranks);
        return text;
    }
    return std::string(what) + " differ between ranks in the end of the last line";
}

}  // namespace ftmpi::mpi
