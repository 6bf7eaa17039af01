// Regular files, opened without waiting, and small ones read whole.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "../error.hpp"

namespace ftmpi {

/// How the refusal of a file is worded: `name` stands before its path ("prompts file "), `hint` says what to
/// do where it is absent. Of files that are `downloaded` read_small_file() calls refuse_placeholder().
struct FileWords {
    Exit code = Exit::bad_input;
    std::string name = {}, hint = {};
    bool downloaded = false;
};

/// Refuses what a download that went wrong leaves in the place of a file: a Git LFS pointer, a web page.
void refuse_placeholder(const std::filesystem::path& path, std::string_view text);

/// A descriptor of a regular file for reading, closed at the end of the scope. Pipes, devices, sockets,
/// directories and links that lead nowhere are refused by name: Error(words.code).
class OpenFile {
public:
    explicit OpenFile(const std::filesystem::path& path, const FileWords& words = {});
    ~OpenFile();
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    int descriptor() const { return descriptor_; }
    const struct stat& status() const { return status_; }  ///< when it was opened

private:
    int descriptor_ = -1;
    struct stat status_ {};
};

/// Throws what a failed open or stat of `path` means: that it does not exist, or leads nowhere, or `error`.
[[noreturn]] void refuse_open(const std::filesystem::path& path, int error, const FileWords& words = {});

/// All bytes of a regular file of at most `limit` bytes. Error(words.code) when it is none, is larger, or
/// changes while it is read; Error(failure) when the disk fails.
std::string read_small_file(const std::filesystem::path& path, std::uint64_t limit,
                            const FileWords& words = {});

}  // namespace ftmpi
