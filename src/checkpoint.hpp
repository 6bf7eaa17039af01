// A Hugging Face model directory: safetensors shards mapped read-only, every header checked before anything
// is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor.hpp"

namespace ftmpi {

class Checkpoint {
public:
    /// Opens every shard named by model.safetensors.index.json (else the single model.safetensors), maps it
    /// and checks it: header length and JSON, known dtypes, overflow-free sizes, offsets equal to dtype x
    /// shape, full coverage of the file without holes or overlaps, no duplicate names, index and shards in
    /// agreement. Regular files only (symbolic links of the directory's own entries are followed). Throws
    /// Error(Exit::bad_input) naming file and tensor.
    static Checkpoint open(const std::filesystem::path& directory);

    Checkpoint(Checkpoint&&) noexcept;
    Checkpoint& operator=(Checkpoint&&) noexcept;
    ~Checkpoint();

    const std::filesystem::path& directory() const;
    const std::vector<std::filesystem::path>& files() const;  ///< shards in the order of first mention
    const std::map<std::string, TensorView, std::less<>>& tensors()
        const;                                            ///< all of them, vision and MTP included
    const TensorView* find(std::string_view name) const;  ///< null when absent
    const TensorView& at(std::string_view name) const;    ///< Error(bad_input) naming it when absent
    std::uint64_t tensor_bytes() const;                   ///< sum over tensors()
    const std::vector<std::string>& warnings() const;  ///< ignored files, unknown dtypes of skipped tensors
    const std::string& index_sha256() const;           ///< of the index JSON, or of the single file's header

    /// Throws Error(bad_input) when a shard was replaced or truncated since open() (size, inode or mtime
    /// changed).
    void check_unchanged() const;
    /// Throws Error(bad_input) when the file that holds these bytes was written to or cut short since open(),
    /// for bytes that are read while the model runs. A file that was replaced under its name is none of that:
    /// the old one is still mapped. One system call.
    void check_contents(const std::byte* data) const;
    /// Tells the kernel that the pages of these bytes are not needed any more (keeps a cgroup's memory
    /// small).
    void drop_pages(const std::byte* data, std::size_t bytes) const noexcept;
    void drop_pages() const noexcept;  ///< of all files

private:
    struct State;
    explicit Checkpoint(std::unique_ptr<State>);
    std::unique_ptr<State> state_;
};

/// SHA-256 over samples of the weights: two fine-tunes of one model have equal configurations and equal
/// indexes. The largest tensors and some hundred others are sampled at a few places, so that it costs
/// milliseconds at any size.
std::string weights_fingerprint(const Checkpoint& checkpoint);

/// Called in a signal handler with the name of a mapped file when bytes of it cannot be read any more. Must
/// end the process. Until one is given, a line is written and the process ends with Exit::bad_input.
using LostFile = void (*)(const char* path);
void on_lost_file(LostFile handler) noexcept;
/// The message for it, to be put behind the name.
inline constexpr const char* kLostFile = " became shorter while it was in use, or its disk cannot be read";

}  // namespace ftmpi
