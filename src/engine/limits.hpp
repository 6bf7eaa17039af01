// Limits that a shell, a batch system or a container sets on this process.
#pragma once

namespace ftmpi {

/// Lifts the soft limit of the stack where it is small, and gives threads stacks that do not depend on it.
/// Before any thread starts.
void widen_stacks();

/// Throws Error(failure) when the stack stays too small for this program, or the address space for MPI to
/// start: both would end in a crash without a word.
void check_limits();

}  // namespace ftmpi
