#include "choice.hpp"

#include <algorithm>

#ifdef FTMPI_HAVE_CUDA
#include "device.hpp"
#endif

namespace ftmpi::mpi {
namespace {

std::string describe_shared(const std::vector<RankInfo>& ranks) {
    for (std::size_t a = 0; a < ranks.size(); ++a)
        for (std::size_t b = a + 1; b < ranks.size(); ++b)
            if (!ranks[a].uuid.empty() && ranks[a].uuid == ranks[b].uuid && ranks[a].host == ranks[b].host)
                return "ranks " + std::to_string(a) + " and " + std::to_string(b) + " share the GPU " +
                       ranks[a].uuid;
    return {};
}

}  // namespace

std::string_view name_of(Transport transport) {
    switch (transport) {
        case Transport::automatic: return "auto";
        case Transport::peer: return "peer";
        case Transport::pinned: return "pinned";
        case Transport::nccl: return "nccl";
        case Transport::mpi: return "mpi";
    }
    return "?";
}

std::vector<TransportCandidate> candidates(Transport wanted, const std::vector<RankInfo>& ranks) {
    const auto on_gpu =
        std::count_if(ranks.begin(), ranks.end(), [](const RankInfo& r) { return r.backend == "cuda"; });
    const bool all_on_gpus = on_gpu == static_cast<std::ptrdiff_t>(ranks.size());
    const bool one_host =
        std::all_of(ranks.begin(), ranks.end(), [](const RankInfo& r) { return r.one_host; });
    const std::string shared = describe_shared(ranks);
    const std::string asked = "--transport " + std::string(name_of(wanted));
    const auto refuse = [&](const std::string& why) {
        throw Error(Exit::usage, asked + ": " + why, "use --transport mpi or auto");
    };

    switch (wanted) {
        case Transport::automatic: break;
        case Transport::mpi: return {{Transport::mpi, "asked for"}};
        case Transport::peer:
        case Transport::pinned:
            if (!all_on_gpus) refuse("it needs the CUDA backend on every rank");
            if (!one_host) refuse("the ranks are on several hosts");
            return {{wanted, "asked for"}};
        case Transport::nccl:
            if (!all_on_gpus) refuse("it needs the CUDA backend on every rank");
            if (!shared.empty()) refuse(shared + ", which NCCL does not do");
            return {{wanted, "asked for"}};
    }
    if (on_gpu == 0) return {{Transport::mpi, "the CPU backend's memory is host memory"}};
    if (!all_on_gpus) return {{Transport::mpi, "some ranks run on the CPU"}};
    // A kernel that waits would keep the GPU from the rank it waits for.
    if (!shared.empty()) return {{Transport::mpi, shared}};
    if (one_host)
        return {{Transport::peer, "one host, its GPUs write into each other's memory"},
                {Transport::pinned, "one host"},
                {Transport::mpi, "it always works"}};
    return {{Transport::nccl, "several hosts, a GPU each rank"}, {Transport::mpi, "it always works"}};
}

namespace {

#ifdef FTMPI_HAVE_CUDA
Attempt attempt(Session& session, Backend& backend, const TransportCandidate& candidate, bool cuda_aware) {
    switch (candidate.transport) {
        case Transport::peer:
            return make_peer_transport(session, backend, MailboxMemory::device, candidate.reason);
        case Transport::pinned:
            return make_peer_transport(session, backend, MailboxMemory::host, candidate.reason);
        case Transport::nccl: return make_nccl_transport(session, backend, candidate.reason);
        default: break;
    }
    std::string why = "the MPI library takes no GPU pointers";
    if (cuda_aware) {
        Attempt made = make_device_mpi(session, backend, true, candidate.reason + "; with GPU pointers");
        if (made.transport) return made;
        why = "GPU pointers failed: " + made.trouble;
    }
    return make_device_mpi(session, backend, false, candidate.reason + "; through host memory, " + why);
}
#endif

}  // namespace

std::unique_ptr<Communicator> make_communicator(Session& session, Backend& backend, Transport wanted) {
    RankInfo mine{session.host(), "", "", session.local_size() == session.size(), session.cuda_aware()};
    session.agree("transport", [&] {
        const DeviceInfo info = backend.info();
        mine.backend = info.backend;
        mine.uuid = info.uuid;
    });
    const auto ranks = session.gather_records(mine, "devices of ranks");
    std::vector<TransportCandidate> to_try;
    session.agree("transport", [&] { to_try = candidates(wanted, ranks); });

    std::string failures;
#ifdef FTMPI_HAVE_CUDA
    const bool on_gpus =
        std::all_of(ranks.begin(), ranks.end(), [](const RankInfo& r) { return r.backend == "cuda"; });
    if (session.size() == 1 || !on_gpus) return session.host_communicator(backend);
    const bool cuda_aware =
        std::all_of(ranks.begin(), ranks.end(), [](const RankInfo& r) { return r.cuda_aware; });
    for (TransportCandidate& candidate : to_try) {
        if (!failures.empty()) candidate.reason += "; " + failures;
        Attempt made = attempt(session, backend, candidate, cuda_aware);
        if (made.transport) return std::move(made.transport);
        failures += (failures.empty() ? "" : "; ") + std::string(name_of(candidate.transport)) +
                    " failed: " + made.trouble;
    }
#endif
    // Without kernels, or with more ranks than they know, the backend's own copies still work.
    if (to_try.back().transport != Transport::mpi)
        session.agree("transport",
                      [&] { throw Error(Exit::failure, failures, "--transport auto takes what works"); });
    return session.host_communicator(backend);
}

}  // namespace ftmpi::mpi
