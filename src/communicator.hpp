// What the model needs from the other ranks: gathers of device columns and of a few host values. Floor 2.
// Nothing is ever summed across ranks, so every transport gives the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend.hpp"
#include "tensor.hpp"

namespace ftmpi {

/// A matrix [rows][width] of fp32 in device memory whose columns are spread over the ranks: on entry each
/// rank has written its own columns `of_rank[rank]` in place, afterwards every rank has all of them. Pieces
/// may be uneven or empty; together they cover [0, width) without overlap.
struct ShardedColumns {
    float* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t width = 0;
    std::span<const Range> of_rank;
};

class Communicator {
public:
    virtual ~Communicator() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    /// Name of the transport ("none", "mpi", "peer", "nccl", ...) and why it was chosen, for the screen and
    /// the result file.
    virtual std::string transport() const = 0;
    virtual std::string reason() const = 0;

    /// One exchange of all `parts`, ordered on `stream`. `name` is the collective's name in messages and
    /// timings. Throws Error(Exit::timed_out) naming it when the deadline passes.
    virtual void all_gather(std::span<const ShardedColumns> parts, std::string_view name, Stream stream) = 0;
    /// True when all_gather() only queues work on its stream, so that Backend::replay() may do it again.
    virtual bool capturable() const { return size() == 1; }
    /// Host values: all[r * mine.size() + i] = value i of rank r, on every rank. All ranks pass the same
    /// count.
    virtual void all_gather_values(std::span<const std::uint64_t> mine, std::span<std::uint64_t> all,
                                   std::string_view name) = 0;

    /// Seconds this rank has spent inside collectives, by name, since the last call of reset_waits().
    struct Wait {
        std::string name;
        double seconds = 0;
        std::int64_t calls = 0;
    };
    virtual std::vector<Wait> waits() const = 0;
    virtual void reset_waits() = 0;
};

/// One rank: nothing to gather.
class OneRank : public Communicator {
public:
    int rank() const override { return 0; }
    int size() const override { return 1; }
    std::string transport() const override { return "none"; }
    std::string reason() const override { return "one rank"; }
    void all_gather(std::span<const ShardedColumns>, std::string_view, Stream) override {}
    void all_gather_values(std::span<const std::uint64_t> mine, std::span<std::uint64_t> all,
                           std::string_view) override {
        std::copy(mine.begin(), mine.end(), all.begin());
    }
    std::vector<Wait> waits() const override { return {}; }
    void reset_waits() override {}
};

}  // namespace ftmpi
