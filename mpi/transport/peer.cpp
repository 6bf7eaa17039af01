// "peer" and "pinned": the ranks of one host write straight into each other's mailboxes. No library and no
// host in between, so exchanges can be captured in a graph.
#include "device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "../exchange.hpp"
#include "peer_memory.hpp"

namespace ftmpi::mpi {
namespace {

// A decode step's exchanges are well below this many floats a rank. Twice the bytes travel for them, but one
// wait less.
constexpr std::uint32_t most_words = 32 * 1024;
// The staging of one rank, for both parities and all writers; larger exchanges go in several windows.
// Containers often have only 64 MiB of shared memory for all ranks.
constexpr std::size_t staging_on_device = 16u << 20, staging_on_host = 8u << 20;
// Broken peer access can be slow to show; it must not cost the whole --timeout.
constexpr double trial_seconds = 10;

std::uint32_t bulk_floats(MailboxMemory kind, int size) {
    const std::size_t bytes = kind == MailboxMemory::device ? staging_on_device : staging_on_host;
    return static_cast<std::uint32_t>(bytes / (2 * static_cast<std::size_t>(size - 1)) / sizeof(float)) / 64 *
           64;
}

class PeerTransport : public DeviceTransport {
public:
    PeerTransport(Session& session, Backend& backend, MailboxMemory kind, std::string reason,
                  std::unique_ptr<PeerMemory> memory, int blocks)
        : DeviceTransport(session, backend, std::move(reason)), kind_(kind), memory_(std::move(memory)) {
        for (int r = 0; r < size(); ++r) mailboxes_.of_rank[r] = memory_->of_rank(r);
        mailboxes_.words = most_words;
        mailboxes_.bulk = bulk_floats(kind, size());
        mailboxes_.blocks = blocks;
        mailboxes_.control = control();
        mailboxes_.report = report();
        set_timeout(std::min(trial_seconds, timeout()));
    }

    std::string transport() const override { return kind_ == MailboxMemory::device ? "peer" : "pinned"; }
    bool capturable() const override { return true; }

    void set_timeout(double seconds) {
        mailboxes_.timeout_ns = static_cast<std::uint64_t>(std::max(seconds, 1e-3) * 1e9);
    }

    /// Every rank writes into every mailbox, and the owner looks. The mailboxes are empty again afterwards.
    std::string test_mapping(Session& session) {
        const auto stream = static_cast<cudaStream_t>(backend().stream());
        const std::string trouble = trouble_of(session, [&] {
            cuda::write_pattern(mailboxes_, rank(), size(), stream);
            FTMPI_CUDA(cudaStreamSynchronize(stream));
        });
        if (!trouble.empty()) return trouble;
        return trouble_of(session, [&] {
            if (const auto wrong = cuda::count_wrong(mailboxes_, rank(), size(), stream); wrong > 0)
                throw Error(
                    Exit::failure,
                    std::to_string(wrong) + " words that other ranks wrote into its mailbox did not arrive");
            FTMPI_CUDA(cudaMemsetAsync(mailboxes_.of_rank[rank()], 0,
                                       cuda::mailbox_bytes(size(), mailboxes_.words, mailboxes_.bulk),
                                       stream));
            FTMPI_CUDA(cudaStreamSynchronize(stream));
        });
    }

protected:
    std::uint32_t window(std::uint64_t largest) const override {
        return largest <= mailboxes_.words ? mailboxes_.words : mailboxes_.bulk;
    }

    void move(const cuda::GatherLayout& layout, const cuda::Tag& tag, std::string_view,
              cudaStream_t stream) override {
        // Which form it is must not depend on what this rank sends: all ranks see the same counts.
        const bool small = *std::max_element(layout.count, layout.count + layout.ranks) <= mailboxes_.words;
        small ? cuda::exchange_words(mailboxes_, layout, tag, stream)
              : cuda::exchange_bulk(mailboxes_, layout, tag, stream);
    }

private:
    MailboxMemory kind_;
    std::unique_ptr<PeerMemory> memory_;
    cuda::Mailboxes mailboxes_{};
};

}  // namespace

Attempt make_peer_transport(Session& session, Backend& backend, MailboxMemory kind, std::string reason) {
    if (session.local_size() != session.size()) return {nullptr, "the ranks are on several hosts"};
    if (session.size() > cuda::max_ranks)
        return {nullptr, "there are more than " + std::to_string(cuda::max_ranks) + " ranks"};
    // Blocks of one number wait for each other, so all ranks use as many as the smallest GPU runs at once.
    int device = 0, processors = 0;
    std::string trouble = trouble_of(session, [&] {
        FTMPI_CUDA(cudaGetDevice(&device));
        FTMPI_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    });
    if (!trouble.empty()) return {nullptr, trouble};
    int blocks = cuda::max_blocks;
    for (const int theirs : session.gather_records(processors, "processors"))
        blocks = std::min(blocks, theirs);

    const std::size_t bytes =
        cuda::mailbox_bytes(session.size(), most_words, bulk_floats(kind, session.size()));
    SharedMemory shared = kind == MailboxMemory::device ? share_device_memory(session, bytes)
                                                        : share_host_memory(session, bytes);
    if (!shared.memory) return {nullptr, shared.trouble};
    std::unique_ptr<PeerTransport> transport;
    trouble = trouble_of(session, [&] {
        transport = std::make_unique<PeerTransport>(session, backend, kind, std::move(reason),
                                                    std::move(shared.memory), blocks);
    });
    if (trouble.empty()) trouble = transport->test_mapping(session);
    if (trouble.empty()) trouble = transport->try_out(session);
    if (!trouble.empty()) return {nullptr, trouble};
    transport->set_timeout(session.exchange().timeout());
    return {std::move(transport), {}};
}

}  // namespace ftmpi::mpi
