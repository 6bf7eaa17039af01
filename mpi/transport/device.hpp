// What all transports of GPU memory have in common: windows that fit their buffers, times and faults that
// their kernels report, and host values through MPI. A transport adds one function: to move one window.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../../cuda/mailbox.hpp"
#include "../../cuda/runtime/handles.hpp"
#include "../../src/backend.hpp"
#include "../../src/communicator.hpp"
#include "../session.hpp"

namespace ftmpi::mpi {

/// A transport, or why there is none. The same on all ranks.
struct Attempt {
    std::unique_ptr<Communicator> transport;
    std::string trouble;
};

/// The lowest rank's trouble, as "rank 1 (node7): ...", or nothing when all ranks pass an empty text.
std::string first_trouble(Session& session, const std::string& mine);

/// Runs `work` on every rank and returns what the lowest throws, as first_trouble() does. For set-up steps
/// whose failure means that another transport is tried; `work` does not communicate.
template <class F> std::string trouble_of(Session& session, F work) {
    std::string mine;
    try {
        work();
    } catch (const Error& error) { mine = error.what(); }
    return first_trouble(session, mine);
}

class DeviceTransport : public Communicator {
public:
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    std::string reason() const override { return reason_; }

    /// Launches and returns; what happens on the GPU is learned by the next call of this or of
    /// all_gather_values(), which throws. So an exchange that was not finished is an error at the latest when
    /// the ranks compare their step.
    void all_gather(std::span<const ShardedColumns> parts, std::string_view name, Stream stream) override;
    void all_gather_values(std::span<const std::uint64_t> mine, std::span<std::uint64_t> all,
                           std::string_view name) override;

    /// Seconds that the exchanges took on the GPU, by its own clock, in graphs too; and those of host values.
    /// Waits for the GPU.
    std::vector<Wait> waits() const override;
    void reset_waits() override;

    /// Gathers known columns in all forms and compares. Communicates; the result is the same on all ranks:
    /// empty, or what is wrong.
    std::string try_out(Session& session);

protected:
    DeviceTransport(Session& session, Backend& backend, std::string reason);

    /// Most floats of one rank that move() takes in an exchange whose largest piece has `largest`.
    virtual std::uint32_t window(std::uint64_t largest) const = 0;
    virtual void move(const cuda::GatherLayout& layout, const cuda::Tag& tag, std::string_view name,
                      cudaStream_t stream) = 0;
    /// Throws when an exchange has failed on the GPU.
    virtual void check();

    cuda::Control* control() const { return static_cast<cuda::Control*>(control_.data()); }
    cuda::Report* report() const { return static_cast<cuda::Report*>(report_.data()); }
    Exchange& exchange() const { return exchange_; }
    Backend& backend() const { return backend_; }
    const std::string& name_of(std::uint32_t id) const { return names_[id]; }
    double timeout() const;
    [[noreturn]] void fail_timed_out(std::uint32_t name, std::vector<int> ranks);

private:
    void gather_some(std::span<const ShardedColumns> parts, std::string_view name, std::uint32_t id,
                     cudaStream_t stream);
    std::uint32_t id_of(std::string_view name);

    Exchange& exchange_;
    Backend& backend_;
    std::unique_ptr<Communicator> host_values_;
    int rank_, size_;
    std::string reason_;
    cuda::DeviceMemory control_;
    cuda::PinnedMemory report_;
    std::vector<std::string> names_;
    std::size_t last_name_ = 0;
    cudaStream_t stream_;  ///< of the last exchange
};

/// Where the mailboxes lie: in the GPUs (peer access) or in host memory that all GPUs see (no peer access
/// needed).
enum class MailboxMemory { device, host };

/// All ranks must be on one host. Maps, tests every mapping with a pattern, and makes first exchanges; any
/// failure is the attempt's trouble. Graphs that hold its exchanges must be destroyed before it.
Attempt make_peer_transport(Session& session, Backend& backend, MailboxMemory kind, std::string reason);

/// Joins a communicator whose id travels by MPI, within the session's deadline, and makes first exchanges, so
/// that its memory is taken when this returns. Refused (the attempt's trouble): two ranks on one GPU, unlike
/// NCCL versions, a library older than the header that this was built with. A start that does not end is the
/// end of the job: Agreed, with Exit::timed_out. Graphs that hold its exchanges must be destroyed before it:
/// NCCL would wait for them without end.
Attempt make_nccl_transport(Session& session, Backend& backend, std::string reason);

/// `cuda_aware`: hand GPU pointers to MPI. Makes first exchanges; any failure is the attempt's trouble.
Attempt make_device_mpi(Session& session, Backend& backend, bool cuda_aware, std::string reason);

}  // namespace ftmpi::mpi
