// Regular files, opened without blocking and mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "../text/small_file.hpp"

namespace ftmpi {

/// What tells one state of a file from another.
struct FileStamp {
    std::uint64_t size = 0, inode = 0;
    std::int64_t seconds = 0, nanoseconds = 0;  ///< modification time
    friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// The stamp of the file that `path` leads to now; Error(bad_input) when there is none.
FileStamp stamp_of(const std::filesystem::path& path);

/// The whole of a file as read-only memory. An empty file has no memory. The file stays open: its state can
/// be asked for even when its name leads to another one by now.
class MappedFile {
public:
    explicit MappedFile(std::filesystem::path path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&&) = delete;
    ~MappedFile();

    const std::filesystem::path& path() const { return path_; }
    const FileStamp& stamp() const { return stamp_; }
    const std::byte* data() const { return data_; }
    std::uint64_t size() const { return stamp_.size; }
    /// The stamp of this file now, wherever its name leads.
    FileStamp stamp_now() const;
    bool holds(const std::byte* data) const { return data >= data_ && data < data_ + stamp_.size; }
    std::string_view text() const {
        return {reinterpret_cast<const char*>(data_), static_cast<std::size_t>(stamp_.size)};
    }

private:
    std::filesystem::path path_;
    std::unique_ptr<OpenFile> file_;
    FileStamp stamp_;
    const std::byte* data_ = nullptr;
    int watched_ = -1;  ///< in the table of the SIGBUS handler
};

}  // namespace ftmpi
