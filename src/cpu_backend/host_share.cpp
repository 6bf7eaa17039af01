#include "host_share.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace fs = std::filesystem;

namespace ftmpi {
namespace {

using Of = Bound::Of;

/// A number alone in a file; none for "max" and for files that are not there.
std::optional<double> number_in(const fs::path& file) {
    std::ifstream in(file);
    double value = 0;
    if (in >> value) return value;
    return std::nullopt;
}

/// The sum of the named lines of a file of "name value".
double sum_in(const fs::path& file, std::initializer_list<std::string_view> names) {
    std::ifstream in(file);
    double sum = 0, value = 0;
    for (std::string name, rest; in >> name >> value; std::getline(in, rest))
        if (std::find(names.begin(), names.end(), name) != names.end()) sum += value;
    return sum;
}

/// Where a controller's groups are mounted, and this process' group there.
struct Group {
    fs::path mount, path;
    bool unified = false;  ///< cgroup version 2
};

std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, at);) parts.push_back(part);
    return parts;
}

bool names(const std::string& list, const std::string& one) {
    const auto parts = split(list, ',');
    return std::find(parts.begin(), parts.end(), one) != parts.end();
}

/// The groups that bound `controller` for this process: of version 1, of version 2, or both.
std::vector<Group> groups_of(const fs::path& root, const std::string& controller) {
    std::vector<Group> groups;
    std::ifstream own(root / "proc/self/cgroup");
    for (std::string line; std::getline(own, line);) {  // 4:memory:/path, or 0::/path of version 2
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (second == line.npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool unified = controllers.empty();
        if (!unified && !names(controllers, controller)) continue;
        std::ifstream mounts(root / "proc/self/mounts");
        std::string device, at, type, options;
        for (std::string rest; mounts >> device >> at >> type >> options && std::getline(mounts, rest);)
            if (type == (unified ? "cgroup2" : "cgroup") && (unified || names(options, controller))) {
                groups.push_back({root / fs::path(at).relative_path(), line.substr(second + 1), unified});
                break;
            }
    }
    return groups;
}

/// Calls `visit` with the folder of every level of the group up to the mount. In a container the upper part
/// of a path may not exist under the mount, whose own level is the container's then.
template <class Visit> void each_level(const Group& group, const Visit& visit) {
    for (fs::path path = group.path.relative_path();; path = path.parent_path()) {
        visit(path.empty() ? group.mount : group.mount / path);
        if (path.empty()) return;
    }
}

void add_memory(std::vector<Bound>& bounds, const Group& group, const fs::path& level) {
    std::optional<double> limit, used;
    double cache = 0;
    if (group.unified) {
        limit = number_in(level / "memory.max");
        if (const auto high = number_in(level / "memory.high"))
            limit = std::min(limit.value_or(*high), *high);
        used = number_in(level / "memory.current");
        cache = sum_in(level / "memory.stat", {"inactive_file", "active_file"});
    } else {
        limit = number_in(level / "memory.limit_in_bytes");
        used = number_in(level / "memory.usage_in_bytes");
        cache = sum_in(level / "memory.stat", {"total_inactive_file", "total_active_file"});
    }
    if (!limit) return;
    const double taken = std::max(0.0, used.value_or(0) - cache);
    bounds.push_back({Of::memory_limit, level.string(), *limit});
    bounds.push_back({Of::memory_left, level.string(), std::max(0.0, *limit - taken)});
}

void add_quota(std::vector<Bound>& bounds, const Group& group, const fs::path& level) {
    double quota = -1, period = 0;
    if (group.unified) {
        std::ifstream(level / "cpu.max") >> quota >> period;  // "max 100000" where there is none
    } else {
        quota = number_in(level / "cpu.cfs_quota_us").value_or(-1);
        period = number_in(level / "cpu.cfs_period_us").value_or(0);
    }
    if (quota > 0 && period > 0) bounds.push_back({Of::processors, level.string(), quota / period});
}

/// The processors in a list like "0-3,8".
double count_of(const std::string& list) {
    double count = 0;
    for (const auto& range : split(list, ',')) {
        int first = 0, last = 0;
        char dash = 0;
        std::istringstream in(range);
        if (!(in >> first)) continue;
        count += in >> dash >> last ? last - first + 1 : 1;
    }
    return count;
}

}  // namespace

std::vector<Bound> host_bounds(const fs::path& root) {
    std::vector<Bound> bounds;
    std::ifstream status(root / "proc/self/status");
    for (std::string name, value; status >> name && std::getline(status >> std::ws, value);)
        if (name == "Cpus_allowed_list:")
            if (const double count = count_of(value); count > 0)
                bounds.push_back({Of::processors, "processors " + value, count});
    for (const auto& group : groups_of(root, "cpu"))
        each_level(group, [&](const fs::path& level) { add_quota(bounds, group, level); });
    const double page = static_cast<double>(sysconf(_SC_PAGESIZE));
    const double available = sum_in(root / "proc/meminfo", {"MemAvailable:"});
    bounds.push_back({Of::memory_limit, "host", page * static_cast<double>(sysconf(_SC_PHYS_PAGES))});
    bounds.push_back(
        {Of::memory_left, "host",
         available > 0 ? available * 1024 : page * static_cast<double>(sysconf(_SC_AVPHYS_PAGES))});
    for (const auto& group : groups_of(root, "memory"))
        each_level(group, [&](const fs::path& level) { add_memory(bounds, group, level); });
    return bounds;
}

double least(const std::vector<Bound>& bounds, Of of) { return share_of(of, bounds, {bounds}); }

double share_of(Of of, const std::vector<Bound>& mine, const std::vector<std::vector<Bound>>& ranks) {
    double share = std::numeric_limits<double>::infinity();
    for (const Bound& bound : mine) {
        if (bound.of != of) continue;
        const auto holders = std::count_if(ranks.begin(), ranks.end(), [&](const auto& rank) {
            return std::any_of(rank.begin(), rank.end(), [&](const Bound& other) {
                return other.of == of && other.name == bound.name;
            });
        });
        share = std::min(share, bound.amount / static_cast<double>(std::max<std::ptrdiff_t>(1, holders)));
    }
    return share;
}

}  // namespace ftmpi
