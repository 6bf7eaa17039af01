#include "small_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ftmpi {
namespace {

const char* kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a named pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

}  // namespace

void refuse_placeholder(const std::filesystem::path& path, std::string_view text) {
    const auto refuse = [&](const char* what, const char* hint) {
        throw Error(Exit::bad_input, path.string() + ": " + what + ", not the file itself", hint);
    };
    text = text.substr(0, 1024);
    if (text.starts_with("version https://git-lfs"))
        refuse("looks like a Git LFS pointer", "fetch it with `git lfs pull`, or download the file again");
    std::string begin(text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()), 14));
    for (char& c : begin) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (begin == "<!doctype html" || begin.starts_with("<html"))
        refuse("is a web page", "download the file again");
}

void refuse_open(const std::filesystem::path& path, int error, const FileWords& words) {
    const auto name = words.name + path.string();
    struct stat link {};
    if (error == ENOENT && ::lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {
        std::error_code ignored;
        throw Error(words.code,
                    name + " is a symbolic link to " + std::filesystem::read_symlink(path, ignored).string() +
                        ", which does not exist",
                    "an incomplete download, or a cache that was moved without its blobs?");
    }
    if (error == ENOENT) throw Error(words.code, name + " does not exist", words.hint);
    throw Error(words.code, name + " cannot be opened: " + std::strerror(error));
}

OpenFile::OpenFile(const std::filesystem::path& path, const FileWords& words) {
    // O_NONBLOCK: opening a pipe without a writer would wait for one, before fstat could tell what it is.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (descriptor_ < 0) refuse_open(path, errno, words);
    const int failed = ::fstat(descriptor_, &status_) != 0 ? errno : 0;
    if (!failed && S_ISREG(status_.st_mode)) return;
    ::close(descriptor_);
    if (failed) refuse_open(path, failed, words);
    throw Error(words.code,
                words.name + path.string() + " is " + kind_of(status_.st_mode) + ", not a regular file");
}

OpenFile::~OpenFile() { ::close(descriptor_); }

std::string read_small_file(const std::filesystem::path& path, std::uint64_t limit, const FileWords& words) {
    const OpenFile file(path, words);
    const auto name = words.name + path.string();
    const auto size = static_cast<std::uint64_t>(file.status().st_size);
    const auto too_large = [&](std::uint64_t bytes) {
        throw Error(words.code, name + " has " + std::to_string(bytes) + " bytes, more than the " +
                                    std::to_string(limit) + " allowed for it");
    };
    if (size > limit) too_large(size);
    // Read to the end rather than to the size: files of /proc say a size that is not theirs.
    std::string text(static_cast<std::size_t>(size) + 1, '\0');
    std::size_t have = 0;
    for (;;) {
        const auto got = ::read(file.descriptor(), text.data() + have, text.size() - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw Error(Exit::failure, name + " cannot be read: " + std::strerror(errno));
        if (got == 0) break;
        have += static_cast<std::size_t>(got);
        if (have > limit) too_large(have);
        if (have == text.size()) text.resize(text.size() + 65536);
    }
    if (size > 0 && have != size) throw Error(words.code, name + " changed its size while it was read");
    text.resize(have);
    if (words.downloaded) refuse_placeholder(path, text);
    return text;
}

}  // namespace ftmpi
