// What this process may use of its host: processors by its affinity mask and cgroup quotas, memory by cgroup
// limits (versions 1 and 2, at every level above it), shared with the other ranks that the same bound holds
// for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace ftmpi {

/// So much there is for all processes that `name` bounds.
struct Bound {
    enum class Of { processors, memory_left, memory_limit } of = Of::processors;
    std::string name;   ///< "host", an affinity mask, or a cgroup's path
    double amount = 0;  ///< processors, or bytes
};

constexpr auto fields_of(std::type_identity<Bound>) {
    return std::tuple(&Bound::of, &Bound::name, &Bound::amount);
}

/// The bounds of this process, read under `root`/proc and `root`/sys. What cannot be read bounds nothing;
/// page cache in a cgroup counts as left.
std::vector<Bound> host_bounds(const std::filesystem::path& root = "/");

/// The least amount of one kind.
double least(const std::vector<Bound>& bounds, Bound::Of of);

/// The least of what `mine` leave to each rank, when the ranks of a host share every bound evenly that they
/// have in common. `ranks`: the bounds of all ranks of this host, this one included.
double share_of(Bound::Of of, const std::vector<Bound>& mine, const std::vector<std::vector<Bound>>& ranks);

}  // namespace ftmpi
