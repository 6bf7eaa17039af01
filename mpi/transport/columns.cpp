#include "columns.hpp"

#include <string>

#include "../../src/error.hpp"

namespace ftmpi::mpi {

void check_columns(std::span<const ShardedColumns> parts, int size, std::string_view name) {
    for (const auto& part : parts) {
        std::int64_t covered = 0;
        bool inside = part.of_rank.size() == static_cast<std::size_t>(size) && part.rows >= 0;
        for (const Range range : part.of_rank) {
            if (range.empty()) continue;
            covered += range.size();
            inside &= range.begin >= 0 && range.end <= part.width;
        }
        if (!inside || covered != part.width)
            throw Error(Exit::failure, "'" + std::string(name) + "': the pieces of " +
                                           std::to_string(part.of_rank.size()) + " ranks cover " +
                                           std::to_string(covered) + " of " + std::to_string(part.width) +
                                           " columns");
    }
}

std::uint64_t floats_of(std::span<const ShardedColumns> parts, int rank) {
    std::uint64_t floats = 0;
    for (const auto& part : parts) {
        const Range range = part.of_rank[static_cast<std::size_t>(rank)];
        if (!range.empty())
            floats += static_cast<std::uint64_t>(part.rows) * static_cast<std::uint64_t>(range.size());
    }
    return floats;
}

}  // namespace ftmpi::mpi
