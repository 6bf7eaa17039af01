#include "launcher.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string_view>

namespace ftmpi::mpi {
namespace {

bool is_open_mpi_launcher(pid_t process) noexcept {
    char path[64], name[64];
    std::snprintf(path, sizeof path, "/proc/%ld/comm", static_cast<long>(process));
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const auto n = ::read(file, name, sizeof name);
    ::close(file);
    constexpr std::string_view launchers[] = {"mpirun\n", "mpiexec\n", "orterun\n",
                                              "orted\n",  "prterun\n", "prted\n"};
    return n > 0 && std::count(std::begin(launchers), std::end(launchers),
                               std::string_view(name, static_cast<std::size_t>(n)));
}

/// `launcher` is a descriptor of the process: it stays that process whoever gets its number.
[[noreturn]] void watch(int launcher, int seconds) noexcept {
    // Without the rank's streams, whose end the launcher waits for.
    const long most = ::sysconf(_SC_OPEN_MAX);
    for (int fd = 0; fd < (most > 0 && most < 65536 ? most : 65536); ++fd)
        if (fd != launcher) ::close(fd);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) std::signal(signal, SIG_IGN);
    pollfd ended{launcher, POLLIN, 0};
    if (::poll(&ended, 1, 1000 * seconds) == 0)
        ::syscall(SYS_pidfd_send_signal, launcher, SIGKILL, nullptr, 0);
    _exit(0);
}

}  // namespace

void end_launcher_after(int seconds) noexcept {
    const pid_t parent = ::getppid();
    const int launcher = static_cast<int>(::syscall(SYS_pidfd_open, parent, 0));
    if (launcher < 0 || !is_open_mpi_launcher(parent) || ::getppid() != parent) return;
    const pid_t watcher = ::fork();
    if (watcher == 0) watch(launcher, seconds);
    // Out of this rank's process group, which the launcher kills: done here, as that may be before the
    // watcher has run at all.
    if (watcher > 0) ::setpgid(watcher, watcher);
}

}  // namespace ftmpi::mpi
