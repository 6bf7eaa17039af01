// Which way columns go between the ranks: chosen from facts, then tried, with the reasons told.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../../src/backend.hpp"
#include "../../src/communicator.hpp"
#include "../session.hpp"

namespace ftmpi::mpi {

/// peer: mailboxes in the GPUs; pinned: mailboxes in shared host memory; nccl; mpi: host memory and MPI, or
/// GPU pointers where the library takes them.
enum class Transport { automatic, peer, pinned, nccl, mpi };

std::string_view name_of(Transport transport);

/// What a rank runs on.
struct RankInfo {
    std::string host;
    std::string backend;      ///< DeviceInfo::backend
    std::string uuid;         ///< of its GPU
    bool one_host = true;     ///< all ranks can share memory, as MPI sees it
    bool cuda_aware = false;  ///< Session::cuda_aware()
};

constexpr auto fields_of(std::type_identity<RankInfo>) {
    using R = RankInfo;
    return std::tuple(&R::host, &R::backend, &R::uuid, &R::one_host, &R::cuda_aware);
}

struct TransportCandidate {
    Transport transport;
    std::string reason;
};

/// What to try, in this order. A transport that was asked for is the only one. Throws
/// Error(Exit::usage) when what was asked for cannot work for these ranks.
std::vector<TransportCandidate> candidates(Transport wanted, const std::vector<RankInfo>& ranks);

/// The communicator of the session's ranks over `backend`, which must outlive it, as the session must. Call
/// it on all ranks, outside of agree(). For one rank it is "none", for CPU backends host MPI. When nothing
/// that was asked for works, all ranks agree to fail with the reasons. Prints nothing; transport() and
/// reason() tell.
std::unique_ptr<Communicator> make_communicator(Session& session, Backend& backend, Transport wanted);

}  // namespace ftmpi::mpi
