#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <new>
#include <system_error>

namespace ftmpi::mpi {
namespace {

/// Line `number` (from 0), and whether there is such a line.
bool line_of(std::string_view text, std::size_t number, std::string_view& line) {
    for (std::size_t i = 0;; ++i) {
        if (text.empty()) return false;
        const auto end = text.find('\n');
        line = text.substr(0, end);
        if (i == number) return true;
        if (end == std::string_view::npos) return false;
        text.remove_prefix(end + 1);
    }
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

Report report_of_current_exception() {
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

Exit code_of(const std::vector<Report>& reports) {
    for (const auto& report : reports)
        if (report.code != Exit::ok) return report.code;
    return Exit::ok;
}

std::string message_of(std::string_view phase, const std::vector<Report>& reports,
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
    for (std::size_t number = 0;; ++number) {
        std::map<std::string, std::vector<int>> ranks_of;
        bool any = false;
        for (std::size_t r = 0; r < texts.size(); ++r) {
            std::string_view line;
            const bool there = line_of(texts[r], number, line);
            any |= there;
            ranks_of[there ? "'" + std::string(line) + "'" : "missing"].push_back(static_cast<int>(r));
        }
        if (!any) return std::string(what) + " differ between ranks in the end of the last line";
        if (ranks_of.size() == 1) continue;
        // In the order of ranks, not of texts.
        std::vector<std::pair<std::vector<int>, std::string>> groups;
        for (auto& [line, ranks] : ranks_of) groups.emplace_back(ranks, line);
        std::sort(groups.begin(), groups.end());
        std::string text =
            std::string(what) + " differ between ranks: line " + std::to_string(number + 1) + " is ";
        for (std::size_t i = 0; i < groups.size(); ++i)
            text += (i ? ", " : "") + groups[i].second + " on " + list(groups[i].first);
        return text;
    }
}

}  // namespace ftmpi::mpi
