// The files beside a checkpoint that say how text is read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace ftmpi {

/// The whole of a regular file of at most `limit` bytes. A pipe or a device is refused before it is opened:
/// reading one would wait, or never end. Throws Error(bad_input) naming the file, with `hint` where it is
/// absent.
std::string read_text_file(const std::filesystem::path& file, std::size_t limit, const std::string& hint);

}  // namespace ftmpi
