#include "mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "../checkpoint.hpp"
#include "../error.hpp"
#include "lost_file.hpp"

namespace ftmpi {
namespace {

[[noreturn]] void refuse_open(const std::filesystem::path& path, int error) {
    struct stat link {};
    if (error == ENOENT && ::lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {
        std::error_code ignored;
        throw Error(Exit::bad_input,
                    path.string() + " is a symbolic link to " +
                        std::filesystem::read_symlink(path, ignored).string() + ", which does not exist",
                    "an incomplete download, or a cache that was moved without its blobs?");
    }
    if (error == ENOENT) throw Error(Exit::bad_input, path.string() + " does not exist");
    throw Error(Exit::bad_input, path.string() + " cannot be opened: " + std::strerror(error));
}

const char* kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a named pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

FileStamp stamp_from(const struct stat& s) {
    return {static_cast<std::uint64_t>(s.st_size), static_cast<std::uint64_t>(s.st_ino),
            static_cast<std::int64_t>(s.st_mtim.tv_sec), static_cast<std::int64_t>(s.st_mtim.tv_nsec)};
}

}  // namespace

FileStamp stamp_of(const std::filesystem::path& path) {
    struct stat s {};
    if (::stat(path.c_str(), &s) != 0) refuse_open(path, errno);
    return stamp_from(s);
}

OpenFile::OpenFile(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a pipe without a writer would wait for one, before fstat could tell what it is.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (descriptor_ < 0) refuse_open(path, errno);
    struct stat s {};
    const int failed = ::fstat(descriptor_, &s) != 0 ? errno : 0;
    if (failed || !S_ISREG(s.st_mode)) {
        ::close(descriptor_);
        if (failed) refuse_open(path, failed);
        throw Error(Exit::bad_input, path.string() + " is " + kind_of(s.st_mode) + ", not a regular file");
    }
    stamp_ = stamp_from(s);
}

OpenFile::~OpenFile() { ::close(descriptor_); }

MappedFile::MappedFile(std::filesystem::path path)
    : path_(std::move(path)), file_(std::make_unique<OpenFile>(path_)) {
    stamp_ = file_->stamp();
    if (stamp_.size == 0) return;
    void* memory =
        ::mmap(nullptr, static_cast<std::size_t>(stamp_.size), PROT_READ, MAP_SHARED, file_->descriptor(), 0);
    if (memory == MAP_FAILED)
        throw Error(errno == ENOMEM ? Exit::does_not_fit : Exit::failure,
                    path_.string() + " cannot be mapped (" + std::to_string(stamp_.size) +
                        " bytes): " + std::strerror(errno),
                    "is the address space limited (ulimit -v)?");
    data_ = static_cast<const std::byte*>(memory);
    watched_ = watch(data_, stamp_.size, path_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::move(other.file_)), stamp_(other.stamp_),
      data_(std::exchange(other.data_, nullptr)), watched_(std::exchange(other.watched_, -1)) {}

MappedFile::~MappedFile() {
    if (!data_) return;
    forget(watched_);
    ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(stamp_.size));
}

FileStamp MappedFile::stamp_now() const {
    struct stat s {};
    if (::fstat(file_->descriptor(), &s) != 0) refuse_open(path_, errno);
    return stamp_from(s);
}

std::string read_small_file(const std::filesystem::path& path, std::size_t limit) {
    const OpenFile file(path);
    const auto size = file.stamp().size;
    if (size > limit)
        throw Error(Exit::bad_input, path.string() + " has " + std::to_string(size) +
                                         " bytes, more than the " + std::to_string(limit) +
                                         " allowed for it");
    std::string text(static_cast<std::size_t>(size), '\0');
    std::size_t done = 0;
    while (done < text.size()) {
        const auto got = ::read(file.descriptor(), text.data() + done, text.size() - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw Error(Exit::failure, path.string() + " cannot be read: " + std::strerror(errno));
        if (got == 0) throw Error(Exit::bad_input, path.string() + " became shorter while it was read");
        done += static_cast<std::size_t>(got);
    }
    return text;
}

}  // namespace ftmpi
