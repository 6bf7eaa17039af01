// Files as the journal needs them: whole writes, flushed, with the reason of a failure in words.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace ftmpi {

/// Owner of a file descriptor.
class Descriptor {
public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Descriptor();
    int get() const { return fd_; }

private:
    int fd_;
};

/// Words for an errno, those that HDF5's users meet on cluster file systems included.
std::string reason(int error);

/// Writes all of `bytes` at `offset`; returns 0 or the errno of the write that failed (ENOSPC when nothing
/// more was taken).
int write_all(int fd, std::string_view bytes, std::uint64_t offset);

/// Reads exactly `bytes` at `offset`; returns 0, an errno, or -1 at an early end of the file.
int read_all(int fd, void* data, std::size_t bytes, std::uint64_t offset);

/// The folder that holds `path`; "." for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

/// Flush an open file's data, or a file or a folder's entries by name, to the disk, however often a signal
/// interrupts; return 0 or an errno. File systems that cannot flush a folder (EINVAL) count as flushed.
int flush_data(int fd);
int flush_path(const std::filesystem::path& path);

std::uint64_t size_of_file(int fd);

}  // namespace ftmpi
