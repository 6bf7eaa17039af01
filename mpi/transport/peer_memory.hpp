// Memory of every rank of one host, as addresses of this rank's GPU: of the GPUs themselves, or of the host
// between them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "../session.hpp"

namespace ftmpi::mpi {

class PeerMemory {
public:
    virtual ~PeerMemory() = default;
    /// `bytes` of rank `rank`, zeroed, for kernels of this rank's current GPU; the own one included.
    virtual std::byte* of_rank(int rank) const = 0;
};

struct SharedMemory {
    std::unique_ptr<PeerMemory> memory;
    std::string trouble;  ///< why there is none; the same on all ranks
};

/// Device memory whose IPC handles travel by MPI. Works between GPUs with peer access, also when a rank sees
/// only its own.
SharedMemory share_device_memory(Session& session, std::size_t bytes);
/// POSIX shared memory that every rank's GPU may read and write. Needs no peer access, only one host with
/// room in /dev/shm.
SharedMemory share_host_memory(Session& session, std::size_t bytes);

}  // namespace ftmpi::mpi
