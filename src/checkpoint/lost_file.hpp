// What happens when bytes of a mapped file are gone: the file was cut short by another program, or its disk
// fails. The kernel sends SIGBUS to whoever reads them, and without a handler that is a crash without a word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace ftmpi {

/// Lets the handler know that `size` bytes from `data` on are the file `path`. Returns the number to forget
/// them by, -1 when there is no room for more (then only the name is missing from the message).
int watch(const std::byte* data, std::uint64_t size, const std::filesystem::path& path);
void forget(int watched);

}  // namespace ftmpi
