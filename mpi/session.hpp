// The job: MPI from start to end, agreement of all ranks after each phase, deadlines, one message on failure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "../src/communicator.hpp"
#include "../src/error.hpp"
#include "../src/packing.hpp"

namespace ftmpi::mpi {

class Exchange;

/// What a signal that asks to stop does to a phase.
enum class OnStop { fail, ignore };

class Session {
public:
    /// Initialises MPI and installs the handlers that ask to stop. Refuses odd launches: one of several
    /// single-process jobs that a launcher believes to be one job (Error(usage) naming the launcher's
    /// variables on the launcher's rank 0, Agreed on the others, so that one message is printed). `timeout`
    /// is the deadline in seconds of every wait.
    explicit Session(double timeout);
    /// Finalises when all went well or all ranks agreed to fail; otherwise ends the job. A process that
    /// failed leaves by leave().
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// The number that a launcher gave this process among those it started; 0 without one. Asks the
    /// environment only: a process may start MPI once a launch.
    static int launch_rank();

    int rank() const;
    int size() const;
    int local_rank() const;  ///< among the ranks of this host
    int local_size() const;
    const std::string& host() const;
    void set_timeout(double seconds);

    /// Runs `work` on this rank, then learns how it went on all. When any rank failed, rank 0 prints one
    /// message for the lowest failing rank (phase, rank, host, what, hint; and how many others failed) and
    /// every rank throws Agreed with the same code. A rank that does not come back before the deadline ends
    /// the job with Exit::timed_out. Unless ignored, a signal that asks to stop counts as a failure with
    /// Exit::interrupted once `work` is done, and ends this process with that code when `work` does not come
    /// back within five seconds. Nothing inside `work` may communicate.
    void agree(std::string_view phase, const std::function<void()>& work, OnStop on_stop = OnStop::fail);

    /// Thrown by agree() on every rank, after the message was printed.
    struct Agreed {
        Exit code;
    };

    /// Fails like agree(phase) with Exit::usage when `text` (lines) is not the same on all ranks; the message
    /// shows the first line that differs and on which ranks.
    void require_equal(std::string_view phase, std::string_view what, const std::string& text);

    /// Bytes of rank 0 on every rank / of every rank on every rank. Any length (sizes travel as 64 bits, data
    /// in pieces).
    std::string broadcast(const std::string& bytes, std::string_view name);
    std::vector<std::string> all_gather(const std::string& bytes, std::string_view name);

    /// `mine` of every rank, in the order of ranks / `of_root` of rank 0, on every rank: records with
    /// fields_of(), or what Packer takes. `name` names the exchange in messages.
    template <class T> std::vector<T> gather_records(const T& mine, std::string_view name) {
        std::vector<T> records;
        for (const auto& bytes : all_gather(packed(mine), name)) records.push_back(unpacked<T>(bytes, name));
        return records;
    }
    template <class T> T broadcast_record(const T& of_root, std::string_view name) {
        return unpacked<T>(broadcast(packed(of_root), name), name);
    }

    /// The host transport, or none for one rank. Valid as long as the session.
    std::unique_ptr<Communicator> host_communicator(Backend& backend);

    /// What the transports send with. Valid as long as the session.
    Exchange& exchange();

    /// True once SIGTERM, SIGINT or SIGUSR1 came to this rank. The decode loop asks once a step and tells the
    /// others.
    bool stop_requested() const noexcept;

    /// Inside the decode loop: prints what, on which rank, and ends the whole job with this code within
    /// seconds. Of ranks that have errors at the same time only the lowest that is alive prints.
    [[noreturn]] void abort(const Error& error);
    /// Ends this process with `code`: finalises MPI if all ranks come to the same end in time, else aborts.
    /// Never hangs.
    [[noreturn]] void leave(Exit code);

    std::string library() const;  ///< "Open MPI v4.1.4"
    bool cuda_aware() const;      ///< what the library says at run time

private:
    bool finish(Exit code, std::string& message);
    [[noreturn]] void end_job(const std::string& message, Exit code);

    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace ftmpi::mpi
