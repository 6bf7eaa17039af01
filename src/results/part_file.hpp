// OUT.part: the file that becomes the result by a rename. Only what this object has created is written,
// renamed or removed: HDF5 itself follows links and empties whatever has the name.
#pragma once

#include <sys/types.h>

#include <filesystem>

#include "disk.hpp"

namespace ftmpi {

/// True for a regular file whose first bytes are HDF5's signature. Does not wait for a writer of a FIFO.
/// Throws Error(bad_input) when it cannot be read.
bool begins_as_hdf5(const std::filesystem::path& path);

class PartFile {
public:
    /// Creates an empty file that was not there. With `may_replace`, a regular HDF5 file of that name, as a
    /// killed run leaves it, is removed first; anything else of that name is Error(usage). Error(failure)
    /// when nothing can be created.
    PartFile(std::filesystem::path path, bool may_replace);
    /// Removes the file, unless it was renamed.
    ~PartFile();
    PartFile(const PartFile&) = delete;
    PartFile& operator=(const PartFile&) = delete;

    const std::filesystem::path& path() const { return path_; }
    /// Throws Error(failure) when the name is not, or no more, that of the file created here, or the rename
    /// fails.
    void rename_to(const std::filesystem::path& target);

private:
    bool is_ours() const;

    std::filesystem::path path_;
    Descriptor file_;
    dev_t device_ = 0;
    ino_t inode_ = 0;
    bool renamed_ = false;
};

}  // namespace ftmpi
