#include "signals.hpp"

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <ctime>

#include "../../src/error.hpp"
#include "watchdog.hpp"

namespace ftmpi::mpi {
namespace {

constexpr unsigned grace_seconds = 5;
constexpr double later_ranks_seconds = 2.5, turn_seconds = 1.5;

std::atomic<int> asked{0};
std::atomic<bool> bounded{false};  ///< a StopBound lives
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

/// What handlers write: filled before the handler that reads it can run.
char own_name[320] = "";
char phase_name[64] = "";
char alarm_message[512] = "";
int own_rank = 0;
int alarm_code = 1;

void keep(char* to, std::size_t room, std::string_view text) {
    const auto n = std::min(room - 1, text.size());
    std::memcpy(to, text.data(), n);
    to[n] = '\0';
}

void write_text(const char* text) noexcept {
    // A full pipe that nobody reads, which may be why the process must end, would hold it for ever.
    constexpr int patience_ms = 500;
    static bool full = false;
    full = full || !write_error(text, std::strlen(text), patience_ms);
}

void write_name() noexcept {
    if (own_name[0]) write_text(" on ");
    write_text(own_name);
    write_text(": ");
}

/// strsignal() may not be called in a handler.
const char* name_of(int signal) noexcept {
    return signal == SIGTERM ? "Terminated" : signal == SIGINT ? "Interrupt" : "User defined signal 1";
}

void let_rank_0_speak() noexcept {
    if (own_rank == 0) return;
    // The launcher's word ends the pause and this process with it, and is not taken for the end of the pause.
    std::signal(SIGTERM, SIG_DFL);
    const double seconds = later_ranks_seconds + turn_seconds * (own_rank - 1);
    timespec pause{static_cast<time_t>(seconds), static_cast<long>((seconds - std::floor(seconds)) * 1e9)};
    while (::nanosleep(&pause, &pause) != 0) continue;
}

void install(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {};
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    action.sa_flags = flags;
    sigaction(signal, &action, nullptr);
}

extern "C" void remember_signal(int signal) {
    int none = 0;
    asked.compare_exchange_strong(none, signal);
    if (bounded) ::alarm(grace_seconds);
}

extern "C" void end_at_stop(int) {
    if (!bounded) return;
    let_rank_0_speak();
    write_text("ftmpi: error in ");
    write_text(phase_name);
    write_name();
    write_text("stopped by signal ");
    write_text(name_of(asked));
    write_text("\n");
    _exit(static_cast<int>(Exit::interrupted));
}

extern "C" void end_at_alarm(int) {
    write_text(alarm_message);
    _exit(alarm_code);
}

}  // namespace

void install_stop_signals() {
    // Restarted calls: a stop must not turn into a failed read or write of a file.
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1})
        install(signal, remember_signal,
                signal == SIGINT ? static_cast<int>(SA_RESTART | SA_RESETHAND) : SA_RESTART);
}

int stop_signal() noexcept { return asked.load(std::memory_order_relaxed); }

std::string stop_text() { return std::string("stopped by signal ") + name_of(asked); }

StopBound::StopBound(std::string_view phase) : inner_(bounded) {
    if (inner_) return;
    keep(phase_name, sizeof phase_name, phase);
    install(SIGALRM, end_at_stop, SA_RESTART);
    bounded = true;
    if (asked) ::alarm(grace_seconds);  // came before
}

StopBound::~StopBound() {
    if (inner_) return;
    bounded = false;
    ::alarm(0);
}

void name_for_handlers(int rank, const std::string& name) {
    own_rank = rank;
    keep(own_name, sizeof own_name, name);
}

void leave_in_handler(const char* what, const char* more, int code) noexcept {
    let_rank_0_speak();
    write_text("ftmpi: error");
    write_name();
    write_text(what);
    write_text(more);
    write_text("\n");
    _exit(code);
}

void end_after(double seconds, const std::string& message, int code) {
    keep(alarm_message, sizeof alarm_message, message);
    alarm_code = code;
    install(SIGALRM, end_at_alarm, SA_RESTART);
    ::alarm(static_cast<unsigned>(std::ceil(seconds)));
}

void end_never() { ::alarm(0); }

}  // namespace ftmpi::mpi
