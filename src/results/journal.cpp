#include "journal.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include "../digest.hpp"
#include "../error.hpp"
#include "schema.hpp"

namespace ftmpi {

namespace {

constexpr std::string_view magic = "ftmpi journal 1\n";

using Check = std::array<char, 8>;

Check check_of(std::int64_t number, std::string_view bytes) {
    Digest digest;
    digest.update(&number, sizeof number);
    digest.update(bytes.data(), bytes.size());
    const Sha256 value = digest.value();
    Check check;
    std::memcpy(check.data(), value.data(), check.size());
    return check;
}

std::string head_of(std::int64_t number, std::string_view payload) {
    const std::uint64_t length = payload.size();
    std::string head(reinterpret_cast<const char*>(&length), sizeof length);
    const Check of_length = check_of(number, head), of_payload = check_of(number, payload);
    head.append(of_length.data(), of_length.size());
    head.append(of_payload.data(), of_payload.size());
    return head;
}

std::string counted(std::int64_t n, const std::string& noun) {
    return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

/// One pass over a journal's bytes.
class Scan {
public:
    Scan(int fd, const std::filesystem::path& path) : fd_(fd), path_(path), size_(size_of_file(fd)) {}

    JournalEnd run(const OnRun& on_run, const OnRequest& on_request) {
        if (!first_line()) return std::move(end_);
        std::string payload;
        while (end_.whole_bytes < size_) {
            if (!next(payload)) return std::move(end_);
            hand_over(payload, on_run, on_request);
            ++end_.records;
            end_.whole_bytes += record_head_bytes + payload.size();
        }
        if (end_.records == 0) stop(JournalEnd::Kind::torn, "the record of the run is missing");
        return std::move(end_);
    }

private:
    void read(void* to, std::size_t bytes, std::uint64_t at) const {
        if (const int error = read_all(fd_, to, bytes, at); error > 0)
            throw Error(Exit::failure, path_.string() + ": cannot be read at byte " + std::to_string(at) +
                                           ": " + reason(error));
        else if (error < 0) throw Error(Exit::failure, path_.string() + ": became shorter while it was read");
    }

    bool stop(JournalEnd::Kind kind, const std::string& what) {
        end_.kind = kind;
        end_.left_out_bytes = size_ - end_.whole_bytes;
        end_.note = path_.string() + ": after " + counted(end_.requests, "finished request") + ", at byte " +
                    std::to_string(end_.whole_bytes) + ", " + what + "; the " +
                    counted(static_cast<std::int64_t>(end_.left_out_bytes), "byte") +
                    " from there on were left out";
        return false;
    }

    /// After a loss of power a file may have its new size but not yet the bytes.
    bool only_zeros_follow() const {
        std::string block(std::size_t{1} << 16, '\0');
        for (std::uint64_t at = end_.whole_bytes; at < size_; at += block.size()) {
            read(block.data(), std::min<std::uint64_t>(block.size(), size_ - at), at);
            if (block.find_first_not_of('\0') != std::string::npos) return false;
        }
        return true;
    }

    bool first_line() {
        std::string begin(std::min<std::uint64_t>(size_, magic.size()), '\0');
        read(begin.data(), begin.size(), 0);
        if (begin != magic.substr(0, begin.size())) {
            if (only_zeros_follow()) return stop(JournalEnd::Kind::torn, "there are only zeros");
            throw Error(
                Exit::bad_input,
                path_.string() + ": is not a journal of this version of ftmpi: it begins with other bytes");
        }
        if (size_ == 0) return false;
        if (size_ < magic.size()) return stop(JournalEnd::Kind::torn, "the first line is incomplete");
        end_.whole_bytes = magic.size();
        return true;
    }

    /// The record at whole_bytes, or false at one that is not whole.
    bool next(std::string& payload) {
        const std::uint64_t left = size_ - end_.whole_bytes;
        std::array<char, record_head_bytes> head;
        if (left < record_head_bytes) return stop(JournalEnd::Kind::torn, "the last record is incomplete");
        read(head.data(), record_head_bytes, end_.whole_bytes);
        std::uint64_t length = 0;
        std::memcpy(&length, head.data(), sizeof length);
        const Check of_length = check_of(end_.records, {head.data(), 8});
        if (std::memcmp(of_length.data(), head.data() + 8, 8) != 0) {
            if (only_zeros_follow()) return stop(JournalEnd::Kind::torn, "only zeros follow");
            return stop(JournalEnd::Kind::damaged,
                        "bytes follow that are no record, or a record's length was changed");
        }
        if (length > left - record_head_bytes)
            return stop(JournalEnd::Kind::torn, "the last record is incomplete");
        payload.resize(length);
        read(payload.data(), payload.size(), end_.whole_bytes + record_head_bytes);
        const Check of_payload = check_of(end_.records, payload);
        if (std::memcmp(of_payload.data(), head.data() + 16, 8) == 0) return true;
        // A disk that lost power may hold the length but not yet the bytes of the last record.
        const bool last = length == left - record_head_bytes;
        return stop(last ? JournalEnd::Kind::torn : JournalEnd::Kind::damaged,
                    std::string("the checksum of ") + (last ? "the last" : "a") + " record does not match");
    }

    /// Makes the checks of appending again: a checksum says only that some program wrote these bytes.
    void hand_over(const std::string& payload, const OnRun& on_run, const OnRequest& on_request) {
        std::optional<JournalRun> run;
        std::optional<RequestRecord> request;
        try {
            if (kind_of(payload) == RecordKind::run) {
                check_names(run.emplace(decode_run(payload)).run);
                if (!is_session(run->session))
                    throw Error(Exit::bad_input,
                                "session " + std::to_string(run->session) + " is no count of resumed runs");
            } else {
                check_shapes(request.emplace(decode_request(payload)));
            }
        } catch (const Error& error) {
            throw Error(Exit::bad_input, path_.string() + ": at byte " + std::to_string(end_.whole_bytes) +
                                             ": " + error.what());
        }
        if (run) return on_run(std::move(*run));
        on_request(std::move(*request));
        ++end_.requests;
    }

    int fd_;
    const std::filesystem::path& path_;
    std::uint64_t size_;
    JournalEnd end_;
};

}  // namespace

JournalEnd scan_journal(int fd, const std::filesystem::path& path, const OnRun& on_run,
                        const OnRequest& on_request) {
    return Scan(fd, path).run(on_run, on_request);
}

Journal::Journal(std::filesystem::path path, Open open, bool patient) : path_(std::move(path)) {
    // The file may be renamed or removed by its owner between our open and our lock; then the lock is on a
    // file without a name, and the next try meets the new state.
    for (int attempt = 0; attempt < 16; ++attempt) {
        const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (open == Open::existing_or_new ? O_CREAT : 0);
        file_ = Descriptor(::open(path_.c_str(), flags, 0666));
        if (file_.get() < 0) {
            const int error = errno;
            throw Error(
                Exit::failure,
                path_.string() +
                    (open == Open::existing_or_new ? ": cannot be created: "
                                                   : ": cannot be opened for writing: ") +
                    reason(error),
                open == Open::existing_or_new
                    ? "the result needs a folder that can be written"
                    : "recover needs the journal and its folder writable: it removes the one when the "
                      "result is made in the other");
        }
        lock(patient);
        struct stat held {
        }, named{};
        if (::fstat(file_.get(), &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
            held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
            if (!S_ISREG(held.st_mode))
                throw Error(Exit::failure, path_.string() + ": is not a regular file");
            was_empty_ = held.st_size == 0;
            return;
        }
    }
    throw Error(Exit::failure, path_.string() + ": is replaced again and again by other processes");
}

void Journal::lock(bool patient) {
    lock_warning_.clear();
    // HDF5's readers use flock. It is only tried here, and let go at once: where it is made of the lock below
    // (NFS), the two would exclude each other.
    if (::flock(file_.get(), LOCK_SH | LOCK_NB) == 0) ::flock(file_.get(), LOCK_UN);
    else
        lock_warning_ = folder_of(path_).string() +
                        ": flock does not work on this file system: " + reason(errno) +
                        "; the result is written without it, but to read it there with h5dump or h5py set "
                        "HDF5_USE_FILE_LOCKING=FALSE";
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    int error = ::fcntl(file_.get(), F_OFD_SETLK, &whole) == 0 ? 0 : errno;
    const auto is_held = [&] { return error == EAGAIN || error == EACCES; };
    if (is_held() && patient)
        std::fprintf(stderr, "note: %s: another process is writing this output; waiting up to 5 s for it\n",
                     printable(path_.string()).c_str());
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(patient ? 5 : 0);
         is_held() && std::chrono::steady_clock::now() < end;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        error = ::fcntl(file_.get(), F_OFD_SETLK, &whole) == 0 ? 0 : errno;
    }
    if (error == 0) return;
    if (is_held())
        throw Error(Exit::failure, path_.string() + ": another process is writing this output",
                    "wait for it, or choose another name for the result");
    if (lock_warning_.empty())
        lock_warning_ = folder_of(path_).string() + ": this file system cannot lock files: " + reason(error) +
                        "; the result is written all the same; to read it there with h5dump or h5py set "
                        "HDF5_USE_FILE_LOCKING=FALSE";
    lock_warning_ += "; two runs with the same --output would not notice each other";
}

void Journal::fail(const std::string& doing, int error) const {
    throw Error(Exit::failure, path_.string() + ": " + doing + ": " + reason(error),
                records_ > 1 ? "the records before it are safe; make room, then make the result with `ftmpi "
                               "recover`; a run also "
                               "goes on with --resume"
                             : "choose an --output on a disk with room");
}

JournalEnd Journal::scan(const OnRun& on_run, const OnRequest& on_request) {
    const JournalEnd end = scan_journal(file_.get(), path_, on_run, on_request);
    end_ = end.whole_bytes;
    records_ = end.records;
    return end;
}

void Journal::start(const JournalRun& run) {
    if (const int error = flush_path(folder_of(path_))) fail("its folder cannot be flushed", error);
    end_ = 0;
    records_ = 0;
    if (::ftruncate(file_.get(), 0) != 0) fail("cannot be emptied", errno);
    if (const int error = write_all(file_.get(), magic, 0)) {
        [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), 0);
        fail("cannot be written", error);
    }
    end_ = magic.size();
    append(encode(run));
}

void Journal::append_unflushed(std::string_view record) {
    const std::string head = head_of(records_, record);
    // A torn tail of an earlier run goes first: the rest of one longer than this record would look like
    // damage behind it.
    int error = 0;
    if (size_of_file(file_.get()) > end_ && ::ftruncate(file_.get(), static_cast<off_t>(end_)) != 0)
        error = errno;
    if (!error) error = write_all(file_.get(), head, end_);
    if (!error) error = write_all(file_.get(), record, end_ + head.size());
    if (error) {
        [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), static_cast<off_t>(end_));
        fail("a record of " + std::to_string(record.size()) + " bytes cannot be written", error);
    }
    end_ += head.size() + record.size();
    ++records_;
}

void Journal::append(std::string_view record) {
    const std::uint64_t end = end_;
    append_unflushed(record);
    const int error = flush_data(file_.get());
    if (error == 0) return;
    [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), static_cast<off_t>(end));
    end_ = end;
    --records_;
    fail("a record of " + std::to_string(record.size()) + " bytes cannot be flushed to the disk", error);
}

void Journal::flush() {
    if (const int error = flush_data(file_.get())) fail("cannot be flushed to the disk", error);
}

void Journal::remove() noexcept { ::unlink(path_.c_str()); }

}  // namespace ftmpi
