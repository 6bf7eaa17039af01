// How a phase went on one rank, and the one message that is made of all ranks' reports. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../../src/error.hpp"

namespace ftmpi::mpi {

struct RankReport {
    Exit code = Exit::ok;
    std::string what;
    std::string hint;
};

constexpr auto fields_of(std::type_identity<RankReport>) {
    return std::tuple(&RankReport::code, &RankReport::what, &RankReport::hint);
}

/// The exception in flight as an Error: itself, out of memory, a thread that cannot be started, any other.
Error error_of_current_exception();
/// The same as a report.
RankReport report_of_current_exception();

/// The message for the screen, of the lowest failing rank; empty when none failed. One report and one host
/// name a rank.
std::string message_of(std::string_view phase, const std::vector<RankReport>& reports,
                       const std::vector<std::string>& hosts);
/// Code of the lowest failing rank.
Exit code_of(const std::vector<RankReport>& reports);

/// "rank 1 (node7)" or "ranks 1, 3 (node7, node8)".
std::string name_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts);

/// "0.5 s".
std::string seconds_text(double seconds);

/// What differs first between the ranks' texts, with line number and ranks; empty when all are equal.
std::string first_difference(std::string_view what, const std::vector<std::string>& texts);

}  // namespace ftmpi::mpi
