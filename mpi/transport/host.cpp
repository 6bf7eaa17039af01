#include "host.hpp"

#include <chrono>
#include <cstring>

#include "columns.hpp"

namespace ftmpi::mpi {
namespace {

using Clock = std::chrono::steady_clock;

class HostTransport : public Communicator {
public:
    HostTransport(Exchange& exchange, int rank, int size, Backend& backend)
        : exchange_(exchange), rank_(rank), size_(size), backend_(backend),
          in_host_memory_(backend.info().backend == "cpu") {}

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    std::string transport() const override { return "mpi"; }
    std::string reason() const override {
        return in_host_memory_ ? "the CPU backend's memory is host memory"
                               : "host memory and MPI always work";
    }

    void all_gather(std::span<const ShardedColumns> parts, std::string_view name, Stream) override {
        const auto start = Clock::now();
        check_columns(parts, size_, name);
        backend_.synchronize();
        if (!in_host_memory_) copy_out(parts);
        std::byte* out = exchange_.outgoing(bytes_of(parts, rank_));
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const Range own = parts[i].of_rank[static_cast<std::size_t>(rank_)];
            for (std::int64_t row = 0; row < parts[i].rows && !own.empty(); ++row)
                out = put(out, host_row(parts, i, row) + own.begin, own.size());
        }
        exchange_.run(name);
        for (int peer = 0; peer < size_; ++peer) {
            if (peer == rank_) continue;
            const std::byte* in = exchange_.incoming(peer, bytes_of(parts, peer), name).data();
            for (std::size_t i = 0; i < parts.size(); ++i) {
                const Range theirs = parts[i].of_rank[static_cast<std::size_t>(peer)];
                for (std::int64_t row = 0; row < parts[i].rows && !theirs.empty(); ++row)
                    in = get(in, host_row(parts, i, row) + theirs.begin, theirs.size());
            }
        }
        if (!in_host_memory_) copy_in(parts);
        count(name, start);
    }

    void all_gather_values(std::span<const std::uint64_t> mine, std::span<std::uint64_t> all,
                           std::string_view name) override {
        const auto start = Clock::now();
        if (all.size() != mine.size() * static_cast<std::size_t>(size_))
            throw Error(Exit::failure, "'" + std::string(name) + "': " + std::to_string(all.size()) +
                                           " values of room for " + std::to_string(mine.size()) +
                                           " values of each of " + std::to_string(size_) + " ranks");
        const std::uint64_t bytes = mine.size_bytes();
        std::byte* out = exchange_.outgoing(bytes);
        if (bytes > 0) std::memcpy(out, mine.data(), bytes);
        exchange_.run(name);
        for (int peer = 0; peer < size_; ++peer) {
            std::uint64_t* to = all.data() + mine.size() * static_cast<std::size_t>(peer);
            if (peer == rank_) {
                std::copy(mine.begin(), mine.end(), to);
                continue;
            }
            const auto block = exchange_.incoming(peer, bytes, name);
            if (bytes > 0) std::memcpy(to, block.data(), bytes);
        }
        count(name, start);
    }

    std::vector<Wait> waits() const override { return waits_; }
    void reset_waits() override { waits_.clear(); }

private:
    static std::byte* put(std::byte* out, const float* from, std::int64_t n) {
        const auto bytes = static_cast<std::size_t>(n) * sizeof(float);
        std::memcpy(out, from, bytes);
        return out + bytes;
    }
    static const std::byte* get(const std::byte* in, float* to, std::int64_t n) {
        const auto bytes = static_cast<std::size_t>(n) * sizeof(float);
        std::memcpy(to, in, bytes);
        return in + bytes;
    }

    static std::uint64_t bytes_of(std::span<const ShardedColumns> parts, int rank) {
        return floats_of(parts, rank) * sizeof(float);
    }

    /// Row of a part in host memory: the matrix itself, or its copy in mirror_.
    float* host_row(std::span<const ShardedColumns> parts, std::size_t part, std::int64_t row) {
        float* base = in_host_memory_ ? parts[part].data : mirror_.data() + mirror_at_[part];
        return base + row * parts[part].width;
    }

    /// This rank's columns into mirror_. Of several rows the whole matrix is copied: one transfer beats one a
    /// row.
    void copy_out(std::span<const ShardedColumns> parts) {
        mirror_at_.clear();
        std::size_t floats = 0;
        for (const auto& part : parts) {
            mirror_at_.push_back(floats);
            floats += static_cast<std::size_t>(part.rows * part.width);
        }
        if (mirror_.size() < floats) mirror_.resize(floats);
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const auto& part = parts[i];
            const Range own = part.of_rank[static_cast<std::size_t>(rank_)];
            float* host = mirror_.data() + mirror_at_[i];
            if (own.empty() || part.rows == 0) continue;
            if (part.rows == 1)
                backend_.copy_out(host + own.begin, part.data + own.begin,
                                  static_cast<std::size_t>(own.size()) * sizeof(float));
            else
                backend_.copy_out(host, part.data,
                                  static_cast<std::size_t>(part.rows * part.width) * sizeof(float));
        }
    }

    void copy_in(std::span<const ShardedColumns> parts) {
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const auto bytes = static_cast<std::size_t>(parts[i].rows * parts[i].width) * sizeof(float);
            if (bytes > 0) backend_.copy_in(parts[i].data, mirror_.data() + mirror_at_[i], bytes);
        }
    }

    void count(std::string_view name, Clock::time_point start) {
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        // A step runs its collectives in the same order each time, so the next one is mostly the one after
        // the last.
        for (std::size_t i = 0; i < waits_.size(); ++i) {
            last_ = last_ + 1 < waits_.size() ? last_ + 1 : 0;
            if (waits_[last_].name != name) continue;
            waits_[last_].seconds += seconds;
            ++waits_[last_].calls;
            return;
        }
        waits_.push_back({std::string(name), seconds, 1});
        last_ = waits_.size() - 1;
    }

    Exchange& exchange_;
    int rank_, size_;
    Backend& backend_;
    bool in_host_memory_;
    std::vector<float> mirror_;
    std::vector<std::size_t> mirror_at_;
    std::vector<Wait> waits_;
    std::size_t last_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_host_transport(Exchange& exchange, int rank, int size, Backend& backend) {
    if (size == 1) return std::make_unique<OneRank>();
    return std::make_unique<HostTransport>(exchange, rank, size, backend);
}

}  // namespace ftmpi::mpi
