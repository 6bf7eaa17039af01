// From the mapped file through page-locked buffers to the device, with several reader threads.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "../../src/error.hpp"
#include "../../src/numerics.hpp"
#include "matrix.hpp"
#include "repack.hpp"

namespace ftmpi::cuda {
namespace {

constexpr std::size_t kBuffer = std::size_t{16} << 20, kSmallestBuffer = std::size_t{1} << 20;
constexpr std::size_t kRun = std::size_t{256} << 10;  ///< about so many bytes are one thread's piece of work
constexpr std::size_t kMostRuns = 1024;               ///< in a buffer
constexpr int kBuffers = 3;

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

/// Threads that share the tasks of one run() after the other; the caller is one of them.
class Team {
public:
    explicit Team(int threads) : meet_(threads) {
        try {
            for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
        } catch (...) {  // out of threads: those that run must end before their Team does
            for (int i = static_cast<int>(threads_.size()) + 1; i < threads; ++i) meet_.arrive_and_drop();
            stop();
            throw;
        }
    }
    ~Team() { stop(); }
    /// Calls task(0) .. task(count - 1), each once, and returns when all are done; the first exception is
    /// thrown again.
    void run(std::size_t count, const std::function<void(std::size_t)>& task) {
        task_ = &task;
        count_ = count;
        next_ = 0;
        failure_ = nullptr;
        meet_.arrive_and_wait();
        work();
        meet_.arrive_and_wait();
        if (failure_) std::rethrow_exception(failure_);
    }

private:
    void stop() {
        task_ = nullptr;
        meet_.arrive_and_wait();
        threads_.clear();
    }
    void work() {
        for (std::size_t i; (i = next_.fetch_add(1)) < count_;) {
            try {
                (*task_)(i);
            } catch (...) {
                const std::lock_guard lock(mutex_);
                if (!failure_) failure_ = std::current_exception();
            }
        }
    }
    void serve() {
        for (;;) {
            meet_.arrive_and_wait();
            if (!task_) return;
            work();
            meet_.arrive_and_wait();
        }
    }

    std::barrier<> meet_;  ///< before the tasks of a run and behind them
    std::vector<std::jthread> threads_;
    const std::function<void(std::size_t)>* task_ = nullptr;
    std::size_t count_ = 0;
    std::atomic<std::size_t> next_{0};
    std::mutex mutex_;
    std::exception_ptr failure_;
};

/// Page-locked memory of at most kBuffer bytes; less where the system's limit is lower.
PinnedMemory largest_buffer() {
    for (std::size_t bytes = kBuffer;; bytes /= 2) {
        try {
            return PinnedMemory(bytes, "a loading buffer in page-locked host memory");
        } catch (const Error&) {
            if (bytes <= kSmallestBuffer) throw;
        }
    }
}

/// Some rows of a block, and the bytes they take in a buffer.
struct Part {
    int block;
    std::int64_t row, rows;  ///< inside the block
    std::int64_t first;      ///< row of the matrix with padding
    std::size_t code_bytes, scale_bytes, multiplier_bytes;
    std::size_t bytes() const { return code_bytes + scale_bytes + multiplier_bytes; }
};

/// Plane rows that rows [row, row + rows) of a block of 128x128 scales touch.
std::int64_t plane_rows(const RowBlock& b, std::int64_t row, std::int64_t rows) {
    return (b.first_row + row + rows - 1) / num::kBlock - (b.first_row + row) / num::kBlock + 1;
}

std::vector<Part> parts_of(const MatrixSource& s, const MatrixView& v) {
    std::vector<Part> parts;
    const auto row_bytes =
        static_cast<std::size_t>(v.code_pitch + (is_4bit(s.format) ? v.scale_pitch : 0)) + 4;
    const auto most = std::max<std::int64_t>(1, static_cast<std::int64_t>(kRun / row_bytes));
    std::int64_t index = 0;
    for (std::size_t i = 0; i < s.blocks.size(); ++i) {
        const RowBlock& b = s.blocks[i];
        for (std::int64_t row = 0; row < b.rows;) {
            const std::int64_t in_group = index % s.rows;
            const std::int64_t rows = std::min({b.rows - row, most, s.rows - in_group});
            const auto scale_rows = s.format == Format::fp8_block ? plane_rows(b, row, rows) : rows;
            parts.push_back({static_cast<int>(i), row, rows, index / s.rows * v.padded + in_group,
                             static_cast<std::size_t>(rows * v.code_pitch),
                             aligned(static_cast<std::size_t>(scale_rows * v.scale_pitch)),
                             v.multipliers ? aligned(static_cast<std::size_t>(rows) * 4) : 0});
            row += rows;
            index += rows;
        }
    }
    return parts;
}

/// Rows of `bytes` each, `pitch` apart, to rows `to_pitch` apart with zeroes behind.
void copy_rows(std::uint8_t* to, std::size_t to_pitch, const std::byte* from, std::size_t pitch,
               std::size_t bytes, std::int64_t rows) {
    if (pitch == bytes && to_pitch == bytes) {
        std::memcpy(to, from, bytes * static_cast<std::size_t>(rows));
        return;
    }
    for (std::int64_t r = 0; r < rows; ++r, to += to_pitch, from += pitch) {
        std::memcpy(to, from, bytes);
        std::memset(to + bytes, 0, to_pitch - bytes);
    }
}

/// Copies one part to `at` and says where everything lies.
Run fill(const MatrixSource& s, const MatrixView& v, const Part& part, std::uint8_t* at) {
    const RowBlock& b = s.blocks[static_cast<std::size_t>(part.block)];
    const auto first = static_cast<std::size_t>(part.row);
    Run run{.codes = at,
            .scales = at + part.code_bytes,
            .multipliers = reinterpret_cast<const float*>(at + part.code_bytes + part.scale_bytes),
            .first = part.first,
            .rows = static_cast<int>(part.rows),
            .plane_row = 0,
            .block = part.block};
    copy_rows(at, static_cast<std::size_t>(v.code_pitch), b.codes + first * b.pitch, b.pitch,
              code_bytes(s.format, s.cols), part.rows);
    std::uint8_t* scales = at + part.code_bytes;
    if (is_4bit(s.format)) {
        copy_rows(scales, static_cast<std::size_t>(v.scale_pitch), b.scales + first * b.scale_pitch,
                  b.scale_pitch, static_cast<std::size_t>(scales_per_row(s.format, s.cols)), part.rows);
    } else if (s.format == Format::fp8_block) {
        const std::int64_t plane = (b.first_row + part.row) / num::kBlock,
                           count = scales_per_row(s.format, s.cols);
        run.plane_row = static_cast<int>((b.first_row + part.row) % num::kBlock);
        for (std::int64_t p = 0; p < plane_rows(b, part.row, part.rows); ++p)
            for (std::int64_t j = 0; j < count; ++j) {
                const std::byte* from = b.scales + static_cast<std::size_t>(plane + p) * b.scale_pitch +
                                        static_cast<std::size_t>(j) * size_of(b.scale_type);
                const float x = scale_value(from, b.scale_type, b);
                std::memcpy(scales + p * v.scale_pitch + 4 * j, &x, 4);
            }
    }
    if (v.multipliers) {
        auto* m = reinterpret_cast<float*>(at + part.code_bytes + part.scale_bytes);
        for (std::int64_t r = 0; r < part.rows; ++r)
            m[r] = s.format == Format::fp8_row && b.row_scales
                       ? scale_value(
                             b.row_scales + (first + static_cast<std::size_t>(r)) * size_of(b.row_scale_type),
                             b.row_scale_type, b)
                       : b.multiplier;
    }
    return run;
}

}  // namespace

struct Loader::Parts {
    struct Buffer {
        PinnedMemory memory = largest_buffer();
        PinnedMemory runs{kMostRuns * sizeof(Run), "a loading table in page-locked host memory"};
        EventHandle free;
    };
    explicit Parts(int threads) : team(threads) {}
    Buffer buffers[kBuffers];
    DeviceMemory fault{sizeof(int), "a loading flag"};
    PinnedMemory fault_here{sizeof(int), "a loading flag"};
    Team team;
    int next = 0;
};

Loader::Loader(cudaStream_t stream) : stream_(stream) {}
Loader::~Loader() = default;
void Loader::release() { parts_.reset(); }

void Loader::load(const MatrixSource& source, const MatrixView& to) {
    if (source.rows == 0 || source.cols == 0 || source.groups == 0) return;
    if (!parts_)
        parts_ =
            std::make_unique<Parts>(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8));
    const std::vector<Part> parts = parts_of(source, to);
    auto* fault = static_cast<int*>(parts_->fault.data());
    FTMPI_CUDA(cudaMemsetAsync(fault, 0x7f, sizeof(int), stream_));
    for (std::size_t begin = 0; begin < parts.size();) {
        Parts::Buffer& buffer = parts_->buffers[parts_->next++ % kBuffers];
        std::vector<std::size_t> at;
        std::size_t used = 0;
        while (begin + at.size() < parts.size() && at.size() < kMostRuns) {
            const std::size_t bytes = parts[begin + at.size()].bytes();
            if (used + bytes > buffer.memory.bytes()) break;
            at.push_back(used);
            used += bytes;
        }
        if (at.empty())
            throw Error(Exit::does_not_fit, "a row of " + std::to_string(parts[begin].bytes()) +
                                                " bytes does not fit the loading buffer of " +
                                                std::to_string(buffer.memory.bytes()));
        buffer.free.wait();  // of kernels that read it before
        auto* bytes = static_cast<std::uint8_t*>(buffer.memory.data());
        auto* runs = static_cast<Run*>(buffer.runs.data());
        parts_->team.run(at.size(),
                         [&](std::size_t i) { runs[i] = fill(source, to, parts[begin + i], bytes + at[i]); });
        launch_repack(runs, static_cast<int>(at.size()), to, fault, stream_);
        buffer.free.record(stream_);
        begin += at.size();
    }
    auto* here = static_cast<int*>(parts_->fault_here.data());
    FTMPI_CUDA(cudaMemcpyAsync(here, fault, sizeof(int), cudaMemcpyDeviceToHost, stream_));
    FTMPI_CUDA(cudaStreamSynchronize(stream_));
    const auto block = static_cast<std::size_t>(*here);
    if (block >= source.blocks.size()) return;
    refuse_faults(source, source.blocks[block]);
}

}  // namespace ftmpi::cuda
