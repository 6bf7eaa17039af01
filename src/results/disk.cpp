#include "disk.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace ftmpi {

namespace {

int flush(int fd, int (*sync)(int)) {
    while (sync(fd) != 0)
        if (errno != EINTR) return errno == EINVAL ? 0 : errno;
    return 0;
}

}  // namespace

Descriptor::~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
}

std::string reason(int error) {
    // 524 is the kernel's own ENOTSUPP: it has no text, but some cluster file systems let it out.
    if (error == 524) return "operation not supported by this file system (errno 524)";
    return std::generic_category().message(error) + " (errno " + std::to_string(error) + ")";
}

int write_all(int fd, std::string_view bytes, std::uint64_t offset) {
    while (!bytes.empty()) {
        const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return ENOSPC;
        bytes.remove_prefix(static_cast<std::size_t>(n));
        offset += static_cast<std::uint64_t>(n);
    }
    return 0;
}

int read_all(int fd, void* data, std::size_t bytes, std::uint64_t offset) {
    auto* to = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t n = ::pread(fd, to, bytes, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return -1;
        to += n;
        bytes -= static_cast<std::size_t>(n);
        offset += static_cast<std::uint64_t>(n);
    }
    return 0;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
    const auto folder = path.parent_path();
    return folder.empty() ? "." : folder;
}

int flush_data(int fd) { return flush(fd, ::fdatasync); }

int flush_path(const std::filesystem::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return file.get() < 0 ? errno : flush(file.get(), ::fsync);
}

std::uint64_t size_of_file(int fd) {
    struct stat status {};
    return ::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

}  // namespace ftmpi
