// The transport that always works: rows and host values through host memory and MPI.
#pragma once

#include <memory>

#include "../../src/backend.hpp"
#include "../../src/communicator.hpp"
#include "../exchange.hpp"

namespace ftmpi::mpi {

/// "mpi", or "none" for one rank. Exchange and backend must outlive it.
std::unique_ptr<Communicator> make_host_transport(Exchange& exchange, int rank, int size, Backend& backend);

}  // namespace ftmpi::mpi
