#include "session.hpp"

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <thread>

#include "exchange.hpp"
#include "process/fault.hpp"
#include "process/launch.hpp"
#include "process/launcher.hpp"
#include "process/report.hpp"
#include "process/signals.hpp"
#include "process/watchdog.hpp"
#include "transport/host.hpp"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace ftmpi::mpi {
namespace {

std::string library_text() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    return {text, static_cast<std::size_t>(length)};
}

[[noreturn]] void refuse(const Environment& environment, const std::string& library,
                         const std::string& problem) {
    const auto launch = launch_of(environment, library);
    if (launch && launch->rank != 0) throw Session::Agreed{Exit::usage};
    throw Error(Exit::usage, problem, launch_hint(library));
}

std::string host_name() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return name;
}

void flush_output() {
    std::cout.flush();
    std::fflush(nullptr);
}

std::string text_of(std::span<const std::byte> block) {
    return {reinterpret_cast<const char*>(block.data()), block.size()};
}

constexpr double start_seconds = 10;
constexpr double finish_seconds = 5;
constexpr double abort_seconds = 2.5;
constexpr double turn_seconds = 0.3;  ///< between ranks that would speak at the same time
constexpr int launcher_seconds = 5;

}  // namespace

struct Session::State {
    MPI_Comm comm = MPI_COMM_NULL;
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
    std::string host, library;
    std::unique_ptr<Exchange> exchange;
    int exceptions = std::uncaught_exceptions();
    bool agreed = false;    ///< all ranks know that they fail
    bool finished = false;  ///< MPI_Finalize came back
};

Session::Session(double timeout) : state_(std::make_unique<State>()) {
    State& s = *state_;
    s.host = host_name();
    const auto environment = process_environment();
    const auto library = library_text();
    s.library = short_library(library);
    // Open MPI ends the process by itself, with other words, when srun starts it without PMIx.
    if (library.starts_with("Open MPI") && !is_wired(environment))
        if (const auto problem = launch_problem(environment, library, 1); !problem.empty())
            refuse(environment, library, problem);
    // Until MPI has given ranks their numbers, the launcher's are good enough to let one of them speak.
    const auto launch = launch_of(environment, library);
    const int first_rank = launch ? launch->rank : 0;
    name_for_handlers(first_rank, {});
    const auto settings = start_settings(environment, library, reads_siblings_memory());
    for (const auto& [name, value] : settings.set) setenv(name.c_str(), value.c_str(), 0);
    for (const auto& name : settings.hide) unsetenv(name.c_str());

    // Starting takes a part of a second whatever the deadline of a wait is.
    const double patience = std::max(timeout, start_seconds);
    const StopBound bound("the start of MPI");
    const Watchdog watchdog(patience + (first_rank > 0 ? abort_seconds : 0),
                            "ftmpi: error on " + s.host + ": MPI did not start within " +
                                seconds_text(patience) +
                                "; is a rank missing, or can hosts not reach each other?\n",
                            static_cast<int>(Exit::timed_out));
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    for (const auto& name : settings.hide) setenv(name.c_str(), environment.at(name).c_str(), 1);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_size(MPI_COMM_WORLD, &s.size);
    if (const auto problem = launch_problem(environment, library, s.size); !problem.empty()) {
        MPI_Finalize();
        refuse(environment, library, problem);
    }
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &s.comm), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(s.comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(s.comm, &s.rank);
    MPI_Comm here = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(s.comm, MPI_COMM_TYPE_SHARED, s.rank, MPI_INFO_NULL, &here),
              "MPI_Comm_split_type");
    MPI_Comm_rank(here, &s.local_rank);
    MPI_Comm_size(here, &s.local_size);
    MPI_Comm_free(&here);
    s.exchange = std::make_unique<Exchange>(s.comm, s.rank, s.size);
    s.exchange->set_timeout(timeout);
    s.exchange->set_hosts(all_gather(s.host, "hosts"));
    name_for_handlers(s.rank, name_ranks({s.rank}, s.exchange->hosts()));
    install_stop_signals();
}

int Session::launch_rank() {
    const auto launch = launch_of(process_environment(), library_text());
    return launch && launch->size > 1 ? launch->rank : 0;
}

Session::~Session() {
    State& s = *state_;
    if (s.finished || !s.exchange) return;
    if (std::uncaught_exceptions() > s.exceptions && !s.agreed) end_job({}, Exit::failure);
    if (std::string message; !finish(Exit::ok, message)) end_job(message, Exit::rank_failed);
}

int Session::rank() const { return state_->rank; }
int Session::size() const { return state_->size; }
int Session::local_rank() const { return state_->local_rank; }
int Session::local_size() const { return state_->local_size; }
const std::string& Session::host() const { return state_->host; }
void Session::set_timeout(double seconds) { state_->exchange->set_timeout(seconds); }
std::string Session::library() const { return state_->library; }
bool Session::stop_requested() const noexcept { return stop_signal() != 0; }

bool Session::cuda_aware() const {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
}

void Session::agree(std::string_view phase, const std::function<void()>& work, OnStop on_stop) {
    const bool stoppable = on_stop == OnStop::fail;
    State& s = *state_;
    RankReport mine;
    std::optional<StopBound> bound;  // of the wait for the others, too
    if (stoppable) bound.emplace(phase);
    try {
        fault_point(s.rank, phase);
        work();
        fault_point(s.rank, std::string(phase) + ".done");
        if (stoppable && stop_requested()) mine = {Exit::interrupted, stop_text(), {}};
    } catch (...) { mine = report_of_current_exception(); }
    std::vector<RankReport> reports(static_cast<std::size_t>(s.size));
    try {
        reports = gather_records(mine, std::string("agree ") + std::string(phase));
        bound.reset();
    } catch (const Error& error) {
        bound.reset();
        // What is known goes first: it may be why the missing one is.
        for (int rank = 0; rank < s.size; ++rank)
            reports[static_cast<std::size_t>(rank)] =
                rank == s.rank ? mine
                : s.exchange->has_come(rank)
                    ? unpacked<RankReport>(text_of(s.exchange->incoming(rank)), phase)
                    : RankReport();
        std::string message = message_of(phase, reports, s.exchange->hosts());
        std::string what = error.what();
        if (error.code() == Exit::timed_out)
            what = name_ranks(s.exchange->missing(), s.exchange->hosts()) + " did not come back within " +
                   seconds_text(s.exchange->timeout());
        message += "ftmpi: error in " + std::string(phase) + ": " + what + "\n";
        if (!error.hint().empty()) message += "ftmpi: hint: " + error.hint() + "\n";
        const Exit known = code_of(reports);
        end_job(message, known == Exit::ok ? error.code() : known);
    }
    const auto message = message_of(phase, reports, s.exchange->hosts());
    if (message.empty()) return;
    // To have all reports is not to be heard: the others may have given this rank up while it was stopped,
    // and have said so.
    s.exchange->set_timeout(std::min(s.exchange->timeout(), finish_seconds));
    try {
        all_gather({}, "all reports");
    } catch (const Error&) { end_job(message, code_of(reports)); }
    if (s.rank == 0) {
        flush_output();
        if (!s.exchange->hears_end(0)) say(message);
    }
    s.agreed = true;
    throw Agreed{code_of(reports)};
}

void Session::require_equal(std::string_view phase, std::string_view what, const std::string& text) {
    const auto difference = first_difference(what, all_gather(text, what));
    const auto check = [&] {
        if (!difference.empty())
            throw Error(Exit::usage, difference,
                        "start every rank with the same arguments, environment and files");
    };
    agree(phase, check, OnStop::ignore);
}

std::vector<std::string> Session::all_gather(const std::string& bytes, std::string_view name) {
    State& s = *state_;
    bytes.copy(reinterpret_cast<char*>(s.exchange->outgoing(bytes.size())), bytes.size());
    s.exchange->run(name);
    std::vector<std::string> all;
    for (int rank = 0; rank < s.size; ++rank)
        all.push_back(rank == s.rank ? bytes : text_of(s.exchange->incoming(rank)));
    return all;
}

std::string Session::broadcast(const std::string& bytes, std::string_view name) {
    State& s = *state_;
    const std::size_t mine = s.rank == 0 ? bytes.size() : 0;
    bytes.copy(reinterpret_cast<char*>(s.exchange->outgoing(mine)), mine);
    s.exchange->run(name);
    if (s.rank == 0) return bytes;
    return text_of(s.exchange->incoming(0));
}

std::unique_ptr<Communicator> Session::host_communicator(Backend& backend) {
    return make_host_transport(*state_->exchange, state_->rank, state_->size, backend);
}

Exchange& Session::exchange() { return *state_->exchange; }

/// True when all ranks came to their end and MPI is finalised. Else `message` is what there is to say of it,
/// if anything.
bool Session::finish(Exit code, std::string& message) {
    State& s = *state_;
    // Ends that are no fault may wait for a rank that still writes; after a fault all ranks are on their way
    // out.
    const bool orderly = !s.agreed && (code == Exit::ok || code == Exit::interrupted ||
                                       code == Exit::different || code == Exit::partly_failed);
    if (s.exchange->broken()) return false;
    if (!orderly) s.exchange->set_timeout(std::min(s.exchange->timeout(), finish_seconds));
    try {
        if (orderly) fault_point(s.rank, "end");
        s.exchange->outgoing(0);
        s.exchange->run(Exchange::leaving);
    } catch (const Error& error) {
        if (orderly)
            message =
                "ftmpi: error at the end: " +
                (error.code() == Exit::timed_out ? name_ranks(s.exchange->missing(), s.exchange->hosts()) +
                                                       " did not come to the end of the run"
                                                 : std::string(error.what())) +
                "\n";
        return false;
    }
    const Watchdog watchdog(finish_seconds, {}, static_cast<int>(code));
    MPI_Comm_free(&s.comm);
    s.finished = MPI_Finalize() == MPI_SUCCESS;
    return s.finished;
}

void Session::end_job(const std::string& message, Exit code) {
    State& s = *state_;
    flush_output();
    // The launcher ends ranks by SIGTERM; from here on that must work at once.
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    // Other ranks may have this error too: the lowest that is alive prints and ends the job, the others in
    // turn if it does not. One that was stopped until the others gave it up is the lowest to itself alone, so
    // that all look.
    const auto& missing = s.exchange->missing();
    bool lower = false;
    for (int rank = 0; rank < s.rank; ++rank)
        lower |= std::find(missing.begin(), missing.end(), rank) == missing.end();
    const bool said = s.exchange->hears_end(lower ? abort_seconds + turn_seconds * (s.rank - 1) : 0);
    if (!said && !message.empty()) {
        say(message);
        s.exchange->tell_end();
    }
    const auto& hosts = s.exchange->hosts();
    const auto is_far = [&](int rank) { return hosts[static_cast<std::size_t>(rank)] != s.host; };
    // Not every transport knows who is missing.
    const bool far = missing.empty() ? std::any_of(hosts.begin(), hosts.end(),
                                                   [&](const auto& host) { return host != s.host; })
                                     : std::any_of(missing.begin(), missing.end(), is_far);
    if (s.exchange->broken() && far) end_launcher_after(launcher_seconds);
    // However slow the launcher is to end this process: that is left to it.
    if (said) std::this_thread::sleep_for(std::chrono::seconds(launcher_seconds));
    const Watchdog watchdog(abort_seconds, {}, static_cast<int>(code));
    if (s.size == 1) MPI_Finalize();
    else MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
    _exit(static_cast<int>(code));
}

void Session::abort(const Error& error) {
    std::string message = "ftmpi: error on " + name_ranks({state_->rank}, state_->exchange->hosts()) + ": " +
                          error.what() + "\n";
    if (!error.hint().empty()) message += "ftmpi: hint: " + error.hint() + "\n";
    end_job(message, error.code());
}

void Session::leave(Exit code) {
    flush_output();
    if (std::string message; !finish(code, message))
        end_job(message, code == Exit::ok ? Exit::rank_failed : code);
    _exit(static_cast<int>(code));
}

}  // namespace ftmpi::mpi
