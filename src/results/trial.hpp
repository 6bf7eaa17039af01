// A reading that may end the process that does it: done by a child first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace ftmpi {

/// Runs `read` in a child process and returns what it returns or throws the Error that it throws. Throws
/// Error(bad_input) when `path` makes the HDF5 library crash or take more than `seconds` of processor time.
/// The library does so for some files with wrong contents, and anybody can compute a seal for these; so a
/// process reads only what a child of it has read in the same way. `read` may use nothing that belongs to
/// this process alone: MPI, GPUs, locks of other threads. What does the child no harm, such as a read
/// somewhat beyond a buffer, does none to the parent, whose memory is laid out alike. A file that another
/// program writes to between the two readings is not protected from.
bool try_reading(const std::filesystem::path& path, std::uint64_t seconds, const std::function<bool()>& read);

/// Processor time that is more than enough for all but the logits of a file of this size, also with a
/// sanitizer.
std::uint64_t reading_seconds(std::uint64_t file_bytes);

}  // namespace ftmpi
