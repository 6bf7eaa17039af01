#include "mapped_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "../checkpoint.hpp"
#include "../error.hpp"
#include "lost_file.hpp"

namespace ftmpi {
namespace {

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

MappedFile::MappedFile(std::filesystem::path path)
    : path_(std::move(path)), file_(std::make_unique<OpenFile>(path_)) {
    stamp_ = stamp_from(file_->status());
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

}  // namespace ftmpi
