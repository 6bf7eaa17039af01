// A finished file ends, behind what HDF5 looks at, with the SHA-256 of all bytes before: HDF5 does not
// protect data and does not survive every damaged file, so damage is found before the library sees it. A file
// without the seal is truncated or was written by another tool, and is not given to the library either.
#pragma once

#include <filesystem>
#include <string>

namespace ftmpi {

/// True for a regular file that ends as every result does; its bytes are not looked at.
bool is_sealed(const std::filesystem::path& path);

/// What tells a file from every other: the SHA-256 in its seal, which a damaged file keeps, else that of all
/// its bytes. Throws Error(bad_input) when it cannot be read.
std::string fingerprint(const std::filesystem::path& path);

/// Appends the seal. Throws Error(failure).
void seal_file(const std::filesystem::path& path);

/// Throws Error(bad_input) when the file has no seal or one that does not match.
void check_seal(const std::filesystem::path& path);

}  // namespace ftmpi
