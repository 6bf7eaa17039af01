// A finished file ends, behind what HDF5 looks at, in the SHA-256 of all bytes before: HDF5 does not protect
// data, so every accident is found before the library sees the file. A program that writes to the file, or
// copies it object by object, drops this footer.
#pragma once

#include <filesystem>
#include <string>

namespace ftmpi {

/// True for a regular file that ends in a checksum; the bytes before it are not looked at.
bool has_checksum(const std::filesystem::path& path);

/// What tells a file from every other: its checksum, which a damaged file keeps, else the SHA-256 of all its
/// bytes. Throws Error(bad_input) when it cannot be read.
std::string fingerprint(const std::filesystem::path& path);

/// Throws Error(failure).
void append_checksum(const std::filesystem::path& path);

/// False for a file that does not end in a checksum; Error(bad_input) when its bytes do not match it.
bool verify_checksum(const std::filesystem::path& path);

}  // namespace ftmpi
