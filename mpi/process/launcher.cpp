#include "launcher.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace ftmpi::mpi {
namespace {

using Text = std::array<char, 1024>;

/// Name and start time of a process as the kernel states them, "(mpirun) 123456"; empty when it is gone.
/// Calls nothing that may not be called between fork() and the end of a process with threads.
Text identity_of(const char* stat_file) noexcept {
    Text identity{}, text{};
    const int fd = ::open(stat_file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return identity;
    const auto n = ::read(fd, text.data(), text.size() - 1);
    ::close(fd);
    if (n <= 0) return identity;
    const char* const open = std::strchr(text.data(), '(');
    const char* const close = std::strrchr(text.data(), ')');
    if (!open || !close || close[1] != ' ' || close[2] == 'Z') return identity;
    // After the name: field 3 is the state, field 22 the start time.
    const char* at = close + 2;
    for (int field = 3; field < 22 && at; ++field) {
        at = std::strchr(at, ' ');
        if (at) ++at;
    }
    if (!at) return identity;
    const auto name = static_cast<std::size_t>(close + 1 - open);
    const auto time = std::strcspn(at, " ");
    std::memcpy(identity.data(), open, name);
    std::memcpy(identity.data() + name, at, time);
    return identity;
}

bool is_open_mpi_launcher(const Text& identity) noexcept {
    for (const char* name : {"(mpirun)", "(mpiexec)", "(orterun)", "(orted)", "(prterun)", "(prted)"})
        if (std::strncmp(identity.data(), name, std::strlen(name)) == 0) return true;
    return false;
}

[[noreturn]] void watch(pid_t launcher, const char* stat_file, const Text& identity, int seconds) noexcept {
    // Without the rank's streams, whose end the launcher waits for.
    const long most = ::sysconf(_SC_OPEN_MAX);
    for (int fd = 0; fd < (most > 0 && most < 65536 ? most : 65536); ++fd) ::close(fd);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) std::signal(signal, SIG_IGN);
    for (int turn = 0; turn < 5 * seconds; ++turn) {
        const timespec pause{0, 200000000};
        ::nanosleep(&pause, nullptr);
        if (identity_of(stat_file) != identity) _exit(0);
    }
    ::kill(launcher, SIGKILL);
    _exit(0);
}

}  // namespace

void end_launcher_after(int seconds) noexcept {
    const pid_t launcher = ::getppid();
    char stat_file[64];
    std::snprintf(stat_file, sizeof stat_file, "/proc/%ld/stat", static_cast<long>(launcher));
    const Text identity = identity_of(stat_file);
    if (!is_open_mpi_launcher(identity)) return;
    const pid_t watcher = ::fork();
    if (watcher == 0) watch(launcher, stat_file, identity, seconds);
    // Out of this rank's process group, which the launcher kills: done here, as that may be before the
    // watcher has run at all.
    if (watcher > 0) ::setpgid(watcher, watcher);
}

}  // namespace ftmpi::mpi
