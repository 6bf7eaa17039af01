#include "exchange.hpp"

#include <sched.h>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "process/report.hpp"

namespace ftmpi::mpi {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int head_tag = 1;
constexpr int rest_tag = 2;
constexpr int end_tag = 3;

}  // namespace

void check_mpi(int code, std::string_view call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw Error(Exit::failure,
                std::string(call) + " failed: " + std::string(text, static_cast<std::size_t>(length)));
}

std::vector<std::uint64_t> segments_of(std::uint64_t bytes, std::uint64_t limit) {
    std::vector<std::uint64_t> segments;
    for (; bytes > 0; bytes -= segments.back()) segments.push_back(std::min(bytes, limit));
    return segments;
}

Exchange::Exchange(MPI_Comm comm, int rank, int size)
    : comm_(comm), rank_(rank), size_(size), hosts_(static_cast<std::size_t>(size), "?"), out_(head_bytes),
      in_(static_cast<std::size_t>(size)) {
    for (int peer = 0; peer < size; ++peer)
        if (peer != rank) in_[static_cast<std::size_t>(peer)].resize(head_bytes);
}

std::byte* Exchange::outgoing(std::uint64_t bytes) {
    if (broken_by_) throw *broken_by_;
    Header header;
    header.bytes = bytes;
    // Large blocks are rare (a prefill, a broadcast): their memory is given back by the next small one.
    const std::uint64_t need = std::max<std::uint64_t>(head_bytes, sizeof header + bytes);
    if (need > out_.size() || out_.size() > 512 * head_bytes) {
        out_.resize(need);
        out_.shrink_to_fit();
    }
    std::memcpy(out_.data(), &header, sizeof header);
    return out_.data() + sizeof header;
}

std::span<const std::byte> Exchange::incoming(int rank) const {
    const auto& block = in_[static_cast<std::size_t>(rank)];
    return {block.data() + sizeof(Header), header_of(block).bytes};
}

std::span<const std::byte> Exchange::incoming(int rank, std::uint64_t bytes, std::string_view name) {
    const auto block = incoming(rank);
    require_bytes(rank, block.size(), bytes, name);
    return block;
}

void Exchange::require_bytes(int peer, std::uint64_t got, std::uint64_t expected, std::string_view name) {
    if (got != expected)
        fail(Error(Exit::failure, "ranks are out of step: in '" + std::string(name) + "' rank " +
                                      std::to_string(peer) + " sends " + std::to_string(got) +
                                      " bytes where rank " + std::to_string(rank_) + " expects " +
                                      std::to_string(expected)));
}

bool Exchange::has_come(int rank) const {
    if (rank == rank_ || std::find(missing_.begin(), missing_.end(), rank) != missing_.end()) return false;
    const Header mine = header_of(out_), theirs = header_of(in_[static_cast<std::size_t>(rank)]);
    return theirs.call == mine.call && std::memcmp(theirs.name, mine.name, sizeof mine.name) == 0 &&
           theirs.bytes <= head_payload;
}

void Exchange::fail(const Error& error) {
    // Requests may still write into the buffers, so they stay where they are until the process ends.
    broken_by_ = error;
    throw error;
}

void Exchange::fail(const Error& error, std::vector<int> missing) {
    missing_ = std::move(missing);
    fail(error);
}

void Exchange::wait(std::string_view name, std::size_t receives) {
    // Time in which this process did not run, stopped together with all others by a scheduler, is not time
    // waited.
    constexpr double longest_turn = 1;
    double waited = 0;
    auto before = Clock::now();
    constexpr int spins = 50;  // a few microseconds: what a rank of the same host that is not late needs
    for (long turn = 0;; ++turn) {
        int done = 0;
        const int code =
            MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS) {
            try {
                check_mpi(code, "exchange '" + std::string(name) + "'");
            } catch (const Error& error) { fail(error); }
        }
        if (done) return;
        if (turn < spins) continue;
        waited += std::min(seconds_since(before), longest_turn);
        before = Clock::now();
        if (waited > timeout_) break;
        // First make room for ranks that share this core, then sleep, so long that it adds at most about a
        // twentieth.
        if (waited < 1e-3) sched_yield();
        else std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(waited / 20, 20e-6, 1e-3)));
    }
    missing_.clear();
    for (std::size_t i = 0; i < requests_.size(); ++i) {
        int done = 0;
        if (requests_[i] != MPI_REQUEST_NULL) MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
        const int peer = peers_[i];
        if (requests_[i] != MPI_REQUEST_NULL && !done &&
            std::find(missing_.begin(), missing_.end(), peer) == missing_.end())
            missing_.push_back(peer);
        // A message that a present rank did not take yet says nothing when some rank sent nothing at all.
        if (i + 1 == receives && !missing_.empty()) break;
    }
    std::sort(missing_.begin(), missing_.end());
    if (missing_.empty()) return wait(name, receives);  // all came while it was asked who did not
    fail(Error(Exit::timed_out,
               "'" + std::string(name) + "' was not finished within " + seconds_text(timeout_) +
                   ": waited for " + name_ranks(missing_, hosts_),
               "that process is stopped, hangs or is gone; if it is only slow, raise --timeout"));
}

void Exchange::compare_headers(std::string_view name) {
    const Header mine = header_of(out_);
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        Header theirs = header_of(in_[static_cast<std::size_t>(peer)]);
        theirs.name[sizeof theirs.name - 1] = '\0';
        if (theirs.call == mine.call && std::strcmp(theirs.name, mine.name) == 0) continue;
        if (theirs.name == leaving)
            fail(Error(Exit::rank_failed, name_ranks({peer}, hosts_) +
                                              " left the program while this rank was in '" +
                                              std::string(name) + "'"));
        fail(Error(Exit::failure,
                   "ranks are out of step: rank " + std::to_string(rank_) + " is in '" + mine.name +
                       "' (exchange " + std::to_string(mine.call) + "), rank " + std::to_string(peer) +
                       " in '" + theirs.name + "' (exchange " + std::to_string(theirs.call) + ")",
                   "all ranks must get the same options and files, and this must not happen even then: "
                   "please report it"));
    }
}

template <class Byte, class Call>
void Exchange::post(Call call, Byte* at, std::uint64_t bytes, int peer, int tag) {
    for (const auto part : segments_of(bytes, segment_bytes)) {
        requests_.emplace_back(MPI_REQUEST_NULL);
        peers_.push_back(peer);
        check_mpi(call(at, static_cast<int>(part), MPI_BYTE, peer, tag, comm_, &requests_.back()),
                  "a message to or from rank " + std::to_string(peer));
        at += part;
    }
}

/// Receives into `into(peer)` from each rank that has more than nothing for it and sends `mine` to all, the
/// nearest first.
template <class Into>
void Exchange::transfer(std::string_view name, std::span<const std::byte> mine, Into into, int tag) {
    requests_.clear();
    peers_.clear();
    for (int step = 1; step < size_; ++step) {
        const int peer = (rank_ + size_ - step) % size_;
        const std::span<std::byte> to = into(peer);
        post(MPI_Irecv, to.data(), to.size(), peer, tag);
    }
    const std::size_t receives = requests_.size();
    for (int step = 1; step < size_; ++step)
        post(MPI_Isend, mine.data(), mine.size(), (rank_ + step) % size_, tag);
    if (!requests_.empty()) wait(name, receives);
}

void Exchange::run_at(std::string_view name, std::span<const std::byte> mine,
                      std::span<const std::span<std::byte>> into) {
    if (size_ == 1) return;
    // The lengths go ahead: ranks that are out of step must not write into each other's memory.
    const std::uint64_t bytes = mine.size();
    std::memcpy(outgoing(sizeof bytes), &bytes, sizeof bytes);
    run(name);
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        std::uint64_t theirs = 0;
        if (incoming(peer).size() == sizeof theirs)
            std::memcpy(&theirs, incoming(peer).data(), sizeof theirs);
        require_bytes(peer, theirs, into[static_cast<std::size_t>(peer)].size(), name);
    }
    transfer(
        name, mine, [&](int peer) { return into[static_cast<std::size_t>(peer)]; }, rest_tag);
}

void Exchange::run(std::string_view name) {
    if (size_ == 1) return;
    if (broken_by_) throw *broken_by_;
    Header mine = header_of(out_);
    mine.call = calls_++;
    std::memset(mine.name, 0, sizeof mine.name);
    name.copy(mine.name, sizeof mine.name - 1);
    std::memcpy(out_.data(), &mine, sizeof mine);

    const std::span<const std::byte> out(out_);
    const auto head_of = [&](int peer) {
        auto& block = in_[static_cast<std::size_t>(peer)];
        if (block.size() > 512 * head_bytes) {
            block.resize(head_bytes);
            block.shrink_to_fit();
        }
        return std::span(block).first(head_bytes);
    };
    transfer(name, out.first(sizeof mine + std::min(mine.bytes, head_payload)), head_of, head_tag);
    compare_headers(name);
    bool more = mine.bytes > head_payload;
    for (int peer = 0; peer < size_; ++peer) more |= peer != rank_ && incoming(peer).size() > head_payload;
    if (!more) return;
    const auto rest_of = [&](int peer) {
        auto& block = in_[static_cast<std::size_t>(peer)];
        const std::uint64_t bytes = std::max(incoming(peer).size(), head_payload);
        if (block.size() < sizeof(Header) + bytes) block.resize(sizeof(Header) + bytes);
        return std::span(block).subspan(head_bytes, bytes - head_payload);
    };
    const std::uint64_t rest = std::max(mine.bytes, head_payload) - head_payload;
    transfer(name, out.subspan(head_bytes, rest), rest_of, rest_tag);
}

void Exchange::tell_end() noexcept {
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        // Empty messages leave at once, and no one asks for them again.
        MPI_Request request = MPI_REQUEST_NULL;
        if (MPI_Isend(nullptr, 0, MPI_BYTE, peer, end_tag, comm_, &request) == MPI_SUCCESS &&
            request != MPI_REQUEST_NULL)
            MPI_Request_free(&request);
    }
}

bool Exchange::hears_end(double seconds) noexcept {
    for (const auto start = Clock::now();;) {
        int here = 0;
        if (MPI_Iprobe(MPI_ANY_SOURCE, end_tag, comm_, &here, MPI_STATUS_IGNORE) == MPI_SUCCESS && here)
            return true;
        if (seconds_since(start) >= std::max(seconds, 0.02)) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

}  // namespace ftmpi::mpi
