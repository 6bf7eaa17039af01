// ftmpi: runs a quantized mixture-of-experts model over ranks that need not be alike, with the same bits for
// every cut.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "../mpi/process/report.hpp"
#include "../mpi/process/signals.hpp"
#include "../mpi/session.hpp"
#include "bench.hpp"
#include "checkpoint.hpp"
#include "config.hpp"
#include "engine/limits.hpp"
#include "engine/open.hpp"
#include "engine/record.hpp"
#include "inspect.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "recover.hpp"
#include "run.hpp"
#include "verify.hpp"
#include "weights.hpp"

namespace {

using namespace ftmpi;

/// Standard streams that were closed when the process began: else files and sockets get their numbers, and
/// messages go into them. What is written to such a standard output fails, as it did.
void fill_standard_streams() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            const int got =
                ::open("/dev/null",
                       fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);  // the lowest free number, which is fd
            if (got != fd && got >= 0) ::close(got);
        }
}

/// Commands that one process does alone, without MPI: a process may start it once a launch, and a script may
/// have a run behind them.
bool is_local(Command c) { return c != Command::run && c != Command::bench; }

/// The same from a command line that could not be parsed.
bool names_local_command(int argc, char** argv) {
    const std::string_view first = argc > 1 ? argv[1] : "";
    return !first.empty() && first[0] != '-' && first != "run" && first != "bench";
}

int local_command(const Options& options) {
    switch (options.command) {
        case Command::help: std::fputs(help_text().c_str(), stdout); return 0;
        case Command::version: std::printf("%s\n", version_line().c_str()); return 0;
        case Command::verify: return verify_command(options);
        case Command::recover: return recover_command(options);
        case Command::inspect: return inspect_command(options);
        case Command::plan: {
            const Checkpoint checkpoint = open_checkpoint(options.model);
            const Inventory inventory(checkpoint, load_config(options.model));
            return plan_command(options, inventory.sizes());
        }
        default: return static_cast<int>(Exit::failure);
    }
}

int report(const Error& e) {
    std::fprintf(stderr, "ftmpi: error: %s\n", e.what());
    if (!e.hint().empty()) std::fprintf(stderr, "ftmpi: hint: %s\n", e.hint().c_str());
    return static_cast<int>(e.code());
}

/// What was printed must have arrived: a full disk behind stdout is a failure too.
Exit with_stdout(Exit code) {
    const mpi::StopBound bound("printing");
    const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout);
    if (!lost) return code;
    std::fprintf(stderr, "ftmpi: error: what goes to the standard output could not be written\n");
    return code == Exit::ok ? Exit::failure : code;
}

int job(const Options* options, const std::exception_ptr& wrong) {
    mpi::install_stop_signals();  // before MPI starts, which may take seconds
    mpi::Session session(options ? options->timeout : 60);
    try {
        session.agree("options", [&] {
            if (wrong) std::rethrow_exception(wrong);
        });
        session.require_equal("options", "options", options->digest_text);
        session.leave(with_stdout(options->command == Command::bench ? bench_command(*options, session)
                                                                     : run_command(*options, session)));
    } catch (const mpi::Session::Agreed& failed) { session.leave(failed.code); } catch (...) {
        session.abort(mpi::error_of_current_exception());
    }
}

}  // namespace

int main(int argc, char** argv) {
    fill_standard_streams();
    // A file that grows beyond its limit and a reader that went away are errors of a write, not the end of
    // the process: the results must be saved all the same.
    std::signal(SIGXFSZ, SIG_IGN);
    std::signal(SIGPIPE, SIG_IGN);
    try {
        widen_stacks();
        check_limits();
        Options options;
        std::exception_ptr wrong;
        Exit code = Exit::ok;
        try {
            options = parse_options(argc, argv);
        } catch (const Error& e) {
            wrong = std::current_exception();
            code = e.code();
        }
        const bool local = wrong ? names_local_command(argc, argv) : is_local(options.command);
        if (!local) return job(wrong ? nullptr : &options, wrong);
        // Of several processes the first does the work and reports a wrong command line.
        if (mpi::Session::launch_rank() != 0) return static_cast<int>(code);
        if (wrong) std::rethrow_exception(wrong);
        return static_cast<int>(with_stdout(static_cast<Exit>(local_command(options))));
    } catch (const mpi::Session::Agreed& refused) {  // a launch that rank 0 of the launcher has spoken about
        return static_cast<int>(refused.code);
    } catch (...) { return report(mpi::error_of_current_exception()); }
}
