#include "part_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "../error.hpp"

namespace ftmpi {

namespace {

/// Removes what a killed run has left under this name; refuses what no run of ours can have left.
void clear_name(const std::filesystem::path& path, bool may_replace) {
    const auto refuse = [&](const std::string& what) {
        throw Error(Exit::usage,
                    path.string() + ": the result is written under this name first, but it " + what,
                    "move it away, or choose another name for the result");
    };
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) return;
    if (S_ISLNK(found.st_mode)) refuse("is a symbolic link");
    if (S_ISDIR(found.st_mode)) refuse("is a directory");
    if (!S_ISREG(found.st_mode)) refuse("is not a regular file");
    if (!begins_as_hdf5(path)) refuse("exists and is not an HDF5 file, so no run of ftmpi has left it");
    if (!may_replace)
        throw Error(
            Exit::usage,
            path.string() +
                ": the result is written under this name first, but it exists and is not replaced unasked",
            "--overwrite replaces it where a killed run has left it; or choose another --output");
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
        throw Error(Exit::failure, path.string() + ": cannot be removed: " + reason(errno));
}

}  // namespace

bool begins_as_hdf5(const std::filesystem::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    const auto cannot = [&](const std::string& be_done, int error) {
        throw Error(Exit::bad_input, path.string() + ": cannot be " + be_done + ": " + reason(error));
    };
    struct stat status {};
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0) cannot("opened", errno);
    if (!S_ISREG(status.st_mode)) return false;
    std::array<char, 8> begin{};
    const int error = read_all(file.get(), begin.data(), begin.size(), 0);
    if (error > 0) cannot("read", error);
    return error == 0 && std::memcmp(begin.data(), "\x89HDF\r\n\x1a\n", 8) == 0;
}

PartFile::PartFile(std::filesystem::path path, bool may_replace) : path_(std::move(path)) {
    clear_name(path_, may_replace);
    file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    struct stat made {};
    if (file_.get() < 0 || ::fstat(file_.get(), &made) != 0)
        throw Error(Exit::failure, path_.string() + ": cannot be created: " + reason(errno),
                    "the result needs a folder that can be written");
    device_ = made.st_dev;
    inode_ = made.st_ino;
}

PartFile::~PartFile() {
    if (renamed_) return;
    // Emptied first: HDF5 may still hold the file open after a failed close, and its blocks are needed by
    // others.
    [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), 0);
    if (is_ours()) ::unlink(path_.c_str());
}

bool PartFile::is_ours() const {
    struct stat named {};
    return ::lstat(path_.c_str(), &named) == 0 && named.st_dev == device_ && named.st_ino == inode_;
}

void PartFile::rename_to(const std::filesystem::path& target) {
    if (!is_ours())
        throw Error(Exit::failure, path_.string() + ": was replaced by another program while it was written");
    if (::rename(path_.c_str(), target.c_str()) != 0)
        throw Error(Exit::failure,
                    target.string() + ": " + path_.string() + " cannot be renamed to it: " + reason(errno));
    renamed_ = true;
}

}  // namespace ftmpi
