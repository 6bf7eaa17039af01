// "peer" and "pinned": the ranks of one host write straight into each other's mailboxes. No library and no
// host in between, so exchanges can be captured in a graph.
#pragma once

#include <string>

#include "device.hpp"

namespace ftmpi::mpi {

/// Where the mailboxes lie: in the GPUs (peer access) or in host memory that all GPUs see (no peer access
/// needed).
enum class MailboxMemory { device, host };

/// All ranks must be on one host. Maps, tests every mapping with a pattern, and makes first exchanges; any
/// failure is the attempt's trouble. Graphs that hold its exchanges must be destroyed before it.
Attempt make_peer_transport(Session& session, Backend& backend, MailboxMemory kind, std::string reason);

}  // namespace ftmpi::mpi
