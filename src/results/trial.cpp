#include "trial.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <string>

#include "../error.hpp"
#include "disk.hpp"

namespace ftmpi {

namespace {

/// What the child says: one of these, for `error` followed by code, text and hint, and `end`. Without the end
/// it died before.
constexpr char yes = 'y', no = 'n', error_follows = 'e', no_memory = 'm', end = '.';

void say(int to, std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(to, text.data(), text.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        text.remove_prefix(static_cast<std::size_t>(n));
    }
}

void limit(__rlimit_resource what, rlim_t soft, rlim_t hard) {
    rlimit old{};
    if (::getrlimit(what, &old) != 0) return;
    const rlimit lower{std::min(soft, old.rlim_max), std::min(hard, old.rlim_max)};
    ::setrlimit(what, &lower);
}

/// A process of its own in all that a crash or an endless loop could disturb.
void settle_child(pid_t parent, std::uint64_t seconds) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);
    // Sent to a whole group or job: the parent decides, and its end is the child's. Dying of them would look
    // like a crash.
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2})
        std::signal(signal, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
    ::prctl(PR_SET_DUMPABLE, 0);
    limit(RLIMIT_CORE, 0, 0);
    limit(RLIMIT_CPU, seconds, seconds + 1);
    // What the C library and sanitizers print at a crash is no message of ours.
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
        if (nowhere < 0 || ::dup2(nowhere, stream) < 0) ::close(stream);
}

/// Ends without exit handlers, destructors and a search for leaks. Its copies of descriptors go with it: the
/// journal's lock is on the open file that the parent shares, and stays.
[[noreturn]] void be_child(int to, pid_t parent, std::uint64_t seconds,
                           const std::function<bool()>& read) noexcept {
    settle_child(parent, seconds);
    std::string said;
    const auto failed = [&](Exit code, const std::string& what, const std::string& hint) {
        said = {error_follows, static_cast<char>(code)};
        said += what + '\0' + hint;
    };
    try {
        said = read() ? yes : no;
    } catch (const Error& error) {
        failed(error.code(), error.what(), error.hint());
    } catch (const std::bad_alloc&) { said = no_memory; } catch (const std::exception& error) {
        failed(Exit::failure, error.what(), {});
    }
    say(to, said + end);
    ::_exit(0);
}

/// What the child says until it ends; `in_time` turns false when it does not. Turns are counted, not time:
/// one in which this process was stopped is no longer than another.
std::string listen(int from, std::uint64_t seconds, bool& in_time) {
    constexpr std::uint64_t turns_a_second = 10;
    std::string said;
    std::array<char, 4096> block;
    for (std::uint64_t turn = 0; turn < seconds * turns_a_second;) {
        pollfd ready{from, POLLIN, 0};
        if (::poll(&ready, 1, 1000 / turns_a_second) <= 0) {
            ++turn;
            continue;
        }
        const ssize_t n = ::read(from, block.data(), block.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return said;
        said.append(block.data(), static_cast<std::size_t>(n));
    }
    in_time = false;
    return said;
}

}  // namespace

std::uint64_t reading_seconds(std::uint64_t file_bytes) {
    return std::min<std::uint64_t>(2 + file_bytes / 500'000, 3600);
}

bool try_reading(const std::filesystem::path& path, std::uint64_t seconds,
                 const std::function<bool()>& read) {
    const auto cannot = [&](int error) {
        throw Error(
            Exit::failure,
            path.string() + ": no process can be started to try whether it can be read: " + reason(error));
    };
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) cannot(errno);
    const Descriptor from(ends[0]);
    Descriptor to(ends[1]);
    // Until the child has handlers of its own, none of this process's may run there.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t parent = ::getpid(), child = ::fork();
    if (child == 0) be_child(to.get(), parent, seconds, read);
    const int fork_error = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (child < 0) cannot(fork_error);
    to = Descriptor();

    // The processor time is what ends a loop, however busy the machine is; this is for a child that waits.
    bool in_time = true;
    const std::string said = listen(from.get(), 30 + 10 * seconds, in_time);
    if (!in_time) ::kill(child, SIGKILL);
    int status = 0, got = 0;
    while ((got = ::waitpid(child, &status, 0)) < 0 && errno == EINTR) continue;

    if (said.size() >= 2 && said.back() == end) {
        if (said[0] == yes || said[0] == no) return said[0] == yes;
        if (said[0] == no_memory) throw std::bad_alloc();
        const std::string text = said.substr(2, said.size() - 3);
        const auto hint = text.find('\0');
        throw Error(static_cast<Exit>(said[1]), text.substr(0, hint),
                    hint == std::string::npos ? "" : text.substr(hint + 1));
    }
    const int signal = got == child && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const std::string copy = "copy it again from where it was made, or move it away";
    if (!in_time || signal == SIGXCPU)
        throw Error(Exit::bad_input,
                    path.string() + ": is damaged: reading it did not come to an end in the HDF5 library",
                    copy);
    if (signal == SIGKILL)  // by none of us: as where memory is exhausted
        throw Error(Exit::failure,
                    path.string() + ": the process that tried whether it can be read was killed");
    throw Error(Exit::bad_input,
                path.string() + ": is damaged: reading it ended the HDF5 library" +
                    (signal ? std::string(" (") + ::strsignal(signal) + ")" : ""),
                copy);
}

}  // namespace ftmpi
