// PATH.journal: a magic line, then records [length u64][check of length 8 bytes][check of payload 8
// bytes][payload]. The checks are SHA-256 cut to 8 bytes, over the record's number as well, so no record can
// be lost from the middle unseen. The first record holds the run, so that a result can be made from the
// journal alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "disk.hpp"
#include "wire.hpp"

namespace ftmpi {

/// What a record takes beside its payload.
constexpr std::size_t record_head_bytes = 24;

/// Where the whole records of a journal end, and what follows them.
struct JournalEnd {
    enum class Kind {
        clean,    ///< nothing follows
        torn,     ///< the last record is incomplete, as a kill, a full disk or a loss of power leaves it
        damaged,  ///< bytes inside were changed: records that follow may have been whole
    };
    Kind kind = Kind::clean;
    std::uint64_t whole_bytes = 0;  ///< 0: not even the magic line
    std::uint64_t left_out_bytes = 0;
    std::int64_t records = 0, requests = 0;
    std::string note;  ///< one sentence unless clean
};

using OnRun = std::function<void(JournalRun&&)>;
using OnRequest = std::function<void(RequestRecord&&)>;

/// Reads records one by one until the end or the first that is not whole. Throws Error(bad_input) when the
/// file is not a journal of this version, Error(failure) when it cannot be read.
JournalEnd scan_journal(int fd, const std::filesystem::path& path, const OnRun& on_run,
                        const OnRequest& on_request);

/// A journal opened for writing, locked against other runs for as long as this object lives.
class Journal {
public:
    enum class Open { existing_only, existing_or_new };
    /// Throws Error(failure) when the folder cannot be written or another process holds the journal. A
    /// `patient` one waits five seconds for a process that may be on its way out, and says so on the standard
    /// error.
    Journal(std::filesystem::path path, Open open, bool patient = false);

    const std::filesystem::path& path() const { return path_; }
    /// True when the file held nothing when it was opened.
    bool was_empty() const { return was_empty_; }
    /// What the user should know about locks on this file system; empty when they work.
    const std::string& lock_warning() const { return lock_warning_; }

    /// Reads all whole records; a following append goes after them, over what is not whole.
    JournalEnd scan(const OnRun& on_run, const OnRequest& on_request);
    /// Empties the file and writes `run` as its first record. The folder is flushed before: what the file
    /// held may have been kept only because the name of the result made of it was not on the disk.
    void start(const JournalRun& run);
    /// Appends an encoded record and flushes it. On failure the file is cut back and Error(failure) thrown.
    void append(std::string_view record);
    /// Like append, without the flush; for many records at once, followed by flush().
    void append_unflushed(std::string_view record);
    void flush();
    void remove() noexcept;

private:
    [[noreturn]] void fail(const std::string& doing, int error) const;
    void lock(bool patient);

    std::filesystem::path path_;
    Descriptor file_;
    bool was_empty_ = false;
    std::string lock_warning_;
    std::uint64_t end_ = 0;
    std::int64_t records_ = 0;
};

}  // namespace ftmpi
