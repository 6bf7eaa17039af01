// What every transport asks of the columns it is given.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "../../src/communicator.hpp"

namespace ftmpi::mpi {

/// Throws Error(Exit::failure) naming the collective unless the pieces of `size` ranks tile each part,
/// because columns that nobody sends would stay stale without a word.
void check_columns(std::span<const ShardedColumns> parts, int size, std::string_view name);

/// Floats that `rank` sends: its piece of every row of every part.
std::uint64_t floats_of(std::span<const ShardedColumns> parts, int rank);

}  // namespace ftmpi::mpi
