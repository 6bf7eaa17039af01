// What a process may use of its host, read from made-up files: affinity, quotas and memory limits of both
// versions of cgroups, nested and in containers, alone and shared by ranks.
#define BOOST_TEST_MODULE host_share
#include "cpu_backend/host_share.hpp"
#include "packing.hpp"

#include <boost/test/unit_test.hpp>

#include "safetensors_writer.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

using Of = Bound::Of;
constexpr double kGiB = 1 << 30;

/// A root directory with the files that describe one process.
struct Host {
    TemporaryDirectory root;
    Host(const std::string& cgroup, const std::string& mounts, const std::string& processors = "0-7") {
        write("proc/self/cgroup", cgroup);
        write("proc/self/mounts", mounts);
        write("proc/self/status", "Name:\tftmpi\nGroups:\t \nCpus_allowed:\tff\nCpus_allowed_list:\t" +
                                      processors + "\nMems_allowed_list:\t0\n");
        write("proc/meminfo",
              "MemTotal:       67108864 kB\nMemFree:         1000000 kB\n"
              "MemAvailable:   33554432 kB\nBuffers:               0 kB\n");
    }
    void write(const std::string& name, const std::string& text) const {
        const auto file = root.path() / name;
        std::filesystem::create_directories(file.parent_path());
        write_file(file, text);
    }
    std::vector<Bound> bounds() const { return host_bounds(root.path()); }
    double least(Of of) const { return ftmpi::least(bounds(), of); }
};

const std::string kMounts1 =
    "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 "
    "0\n"
    "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
const std::string kMounts2 = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";

std::string text(double bytes) { return std::to_string(static_cast<long long>(bytes)) + "\n"; }

}  // namespace

BOOST_AUTO_TEST_CASE(processors_are_those_of_the_mask) {
    const std::vector<std::pair<std::string, double>> masks{
        {"0", 1}, {"0-7", 8}, {"2,5", 2}, {"0-3,8-11,15", 9}};
    for (const auto& [list, count] : masks) BOOST_TEST(Host("", "", list).least(Of::processors) == count);
}

BOOST_AUTO_TEST_CASE(quotas_bound_processors_at_every_level) {
    Host two("0::/user/job/step\n", kMounts2);
    BOOST_TEST(two.least(Of::processors) == 8);
    two.write("sys/fs/cgroup/user/job/step/cpu.max", "max 100000\n");
    BOOST_TEST(two.least(Of::processors) == 8);
    two.write("sys/fs/cgroup/user/job/cpu.max", "250000 100000\n");
    BOOST_TEST(two.least(Of::processors) == 2.5);
    two.write("sys/fs/cgroup/user/job/step/cpu.max", "400000 100000\n");
    BOOST_TEST(two.least(Of::processors) == 2.5);

    Host one("3:cpuset:/x\n2:cpu,cpuacct:/job\n", kMounts1);
    one.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    one.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    BOOST_TEST(one.least(Of::processors) == 8);
    one.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
    BOOST_TEST(one.least(Of::processors) == 0.5);
}

BOOST_AUTO_TEST_CASE(memory_is_the_least_that_any_level_leaves) {
    Host two("0::/slurm/job/step\n", kMounts2);
    BOOST_TEST(two.least(Of::memory_left) == 32 * kGiB);
    const std::string job = "sys/fs/cgroup/slurm/job/", step = job + "step/";
    two.write(step + "memory.max", "max\n");
    two.write(step + "memory.current", text(kGiB));
    two.write(job + "memory.max", text(8 * kGiB));
    two.write(job + "memory.current", text(5 * kGiB));
    BOOST_TEST(two.least(Of::memory_left) == 3 * kGiB);
    BOOST_TEST(two.least(Of::memory_limit) <= 8 * kGiB);
    // Page cache goes when memory is asked for.
    two.write(job + "memory.stat",
              "anon 1\nfile 99\ninactive_file " + text(kGiB) + "active_file " + text(kGiB));
    BOOST_TEST(two.least(Of::memory_left) == 5 * kGiB);
    two.write(job + "memory.high", text(7 * kGiB));
    BOOST_TEST(two.least(Of::memory_left) == 4 * kGiB);
    two.write(step + "memory.max", text(kGiB / 2));
    BOOST_TEST(two.least(Of::memory_left) == 0);

    Host one("4:memory:/slurm/job\n0::/\n", kMounts1);
    const std::string at = "sys/fs/cgroup/memory/";
    one.write(at + "slurm/job/memory.limit_in_bytes", "9223372036854771712\n");
    one.write(at + "slurm/job/memory.usage_in_bytes", text(kGiB));
    BOOST_TEST(one.least(Of::memory_left) == 32 * kGiB);
    one.write(at + "slurm/memory.limit_in_bytes", text(4 * kGiB));
    one.write(at + "slurm/memory.usage_in_bytes", text(3 * kGiB));
    one.write(at + "slurm/memory.stat",
              "cache 7\ntotal_inactive_file " + text(kGiB) + "total_active_file 0\n");
    BOOST_TEST(one.least(Of::memory_left) == 2 * kGiB);
}

BOOST_AUTO_TEST_CASE(a_container_sees_its_own_limit_at_the_mount) {
    Host host("5:memory:/docker/0123\n", kMounts1);  // the path is the host's, the mount is the container's
    host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", text(2 * kGiB));
    host.write("sys/fs/cgroup/memory/memory.usage_in_bytes", text(kGiB));
    BOOST_TEST(host.least(Of::memory_left) == kGiB);
}

BOOST_AUTO_TEST_CASE(ranks_share_the_bounds_that_they_have_in_common) {
    const auto rank = [](const std::string& mask, double processors, const std::string& group, double left) {
        return std::vector<Bound>{{Of::processors, mask, processors},
                                  {Of::memory_left, "host", 32 * kGiB},
                                  {Of::memory_left, "/job", 12 * kGiB},
                                  {Of::memory_left, group, left}};
    };
    const auto a = rank("0-3", 4, "/job/a", 10 * kGiB), b = rank("4-7", 4, "/job/b", 2 * kGiB);
    // Two masks of their own, one job of 12 GiB: 6 for the one, what its own group leaves for the other.
    BOOST_TEST(share_of(Of::processors, a, {a, b}) == 4);
    BOOST_TEST(share_of(Of::memory_left, a, {a, b}) == 6 * kGiB);
    BOOST_TEST(share_of(Of::memory_left, b, {a, b}) == 2 * kGiB);
    BOOST_TEST(share_of(Of::processors, a, {a, a}) == 2);
    BOOST_TEST(share_of(Of::memory_left, a, {a, a, a, a}) == 2.5 * kGiB);
    // And what is told of them is what they are.
    const auto again = unpacked<std::vector<Bound>>(packed(b), "bounds");
    BOOST_TEST(again.size() == b.size());
    BOOST_TEST(share_of(Of::memory_left, again, {a, again}) == 2 * kGiB);
    BOOST_TEST(again[2].name == "/job");
}

BOOST_AUTO_TEST_CASE(this_process_has_a_part_of_this_host) {
    const auto bounds = host_bounds();
    BOOST_TEST(least(bounds, Of::processors) > 0);
    BOOST_TEST(least(bounds, Of::memory_left) > 0);
    BOOST_TEST(least(bounds, Of::memory_left) <= least(bounds, Of::memory_limit));
}
