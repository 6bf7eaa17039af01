// "nccl": NCCL moves one contiguous buffer, kernels pack and unpack it. For ranks on several hosts.
#include "device.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "../exchange.hpp"
#include "../process/report.hpp"
#include "../process/watchdog.hpp"

namespace ftmpi::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// For all ranks' floats of one window; larger exchanges go in several.
constexpr std::size_t buffer_bytes = 16u << 20;
// Up to here one all-gather of equal, padded pieces beats one broadcast a rank.
constexpr std::size_t padded_bytes = 1u << 20;
constexpr double finish_seconds = 10;
// Two ranks need half a second; a start that a network stops must not cost the whole --timeout.
constexpr double start_seconds = 60;
constexpr double roll_call_seconds = 2;

void check(ncclResult_t result, const char* call, ncclComm_t communicator = nullptr) {
    if (result == ncclSuccess) return;
    std::string detail = ncclGetLastError(communicator);
    throw Error(Exit::failure, std::string(call) + " failed: " + ncclGetErrorString(result) +
                                   (detail.empty() ? "" : " (" + detail + ")"));
}

std::string version_text(int code) {
    return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
           std::to_string(code % 100);
}

/// NCCL's own transport between GPUs of a host needs room there, and its message does not say so.
std::string shared_memory_note() {
    struct statvfs room {};
    constexpr std::uint64_t enough = 64u << 20;
    if (statvfs("/dev/shm", &room) != 0) return {};
    const auto free = std::uint64_t{room.f_bavail} * room.f_frsize;
    return free < enough
               ? "; /dev/shm has only " + std::to_string(free >> 20) + " MiB free (containers: --shm-size)"
               : "";
}

/// Looks whether the exchange that has begun on the GPU also ends. NCCL's kernels wait without end for a rank
/// that does not come, and the host may be waiting for them: so a thread ends the communicator at the
/// deadline, which ends the kernels.
class Monitor {
public:
    Monitor(ncclComm_t communicator, int device, const volatile cuda::Report* report, double timeout)
        : communicator_(communicator), report_(report), timeout_(timeout), thread_([this, device] {
              cudaSetDevice(device);
              watch();
          }) {}
    ~Monitor() {
        {
            const std::lock_guard lock(mutex_);
            done_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    /// The communicator is gone; seen() keeps the process alive so that the host can say so itself.
    bool fired() const { return fired_; }
    std::uint32_t name() const { return name_; }
    void seen() {
        {
            const std::lock_guard lock(mutex_);
            seen_ = true;
        }
        changed_.notify_all();
    }

private:
    void watch() {
        std::unique_lock lock(mutex_);
        auto since = Clock::now();
        std::uint32_t last = report_->ended;
        while (!changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return done_; })) {
            const std::uint32_t begun = report_->begun, ended = report_->ended;
            if (begun == ended || begun != last) {
                since = Clock::now();
                last = begun;
                continue;
            }
            if (std::chrono::duration<double>(Clock::now() - since).count() < timeout_) continue;
            name_ = report_->begun_name;
            fired_ = true;
            lock.unlock();
            {
                const Watchdog watchdog(
                    finish_seconds,
                    "ftmpi: error: NCCL waits for a rank that does not come, and cannot be stopped\n",
                    static_cast<int>(Exit::timed_out));
                ncclCommAbort(communicator_);
            }
            const Watchdog watchdog(
                finish_seconds,
                "ftmpi: error: NCCL waited for a rank that did not come, and the GPU does not come back\n",
                static_cast<int>(Exit::timed_out));
            lock.lock();
            changed_.wait(lock, [this] { return done_ || seen_.load(); });
            return;
        }
    }

    ncclComm_t communicator_;
    const volatile cuda::Report* report_;
    double timeout_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
    std::atomic<bool> fired_ = false, seen_ = false;
    std::atomic<std::uint32_t> name_ = 0;
    std::thread thread_;
};

class NcclTransport : public DeviceTransport {
public:
    NcclTransport(Session& session, Backend& backend, std::string reason, ncclComm_t communicator, int device)
        : DeviceTransport(session, backend, std::move(reason)), communicator_(communicator),
          exceptions_(std::uncaught_exceptions()), buffer_(buffer_bytes, "buffer for NCCL"),
          monitor_(std::make_unique<Monitor>(communicator, device, report(), timeout())) {}

    ~NcclTransport() override {
        const bool aborted = monitor_->fired();
        monitor_.reset();
        if (aborted) return;
        const Watchdog watchdog(finish_seconds,
                                "ftmpi: error at the end: NCCL does not let go of the GPU; is a graph with "
                                "its exchanges still alive?\n",
                                static_cast<int>(Exit::failure));
        if (std::uncaught_exceptions() > exceptions_ || exchange().broken()) ncclCommAbort(communicator_);
        else ncclCommDestroy(communicator_);
    }

    std::string transport() const override { return "nccl"; }
    bool capturable() const override { return true; }

protected:
    /// The ranks that do not answer over MPI, as NCCL does not say whom it waits for. Those that do have come
    /// to their deadlines as well.
    std::vector<int> absent() {
        const double patience = timeout();
        try {
            exchange().set_timeout(std::min(patience, roll_call_seconds));
            exchange().outgoing(0);
            exchange().run("roll call");
        } catch (const Error&) {}
        exchange().set_timeout(patience);
        return exchange().missing();
    }

    std::uint32_t window(std::uint64_t) const override {
        return static_cast<std::uint32_t>(buffer_bytes / sizeof(float) / static_cast<std::size_t>(size()));
    }

    void check() override {
        if (monitor_->fired()) {
            monitor_->seen();
            fail_timed_out(monitor_->name(), absent());
        }
        ncclResult_t state = ncclSuccess;
        mpi::check(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
        mpi::check(state, "an exchange of NCCL", communicator_);
        DeviceTransport::check();
    }

    void move(const cuda::GatherLayout& layout, const cuda::Tag& tag, std::string_view,
              cudaStream_t stream) override {
        const auto* end = layout.count + size();
        const std::uint32_t most = *std::max_element(layout.count, end),
                            least = *std::min_element(layout.count, end);
        const bool padded =
            most == least ||
            std::size_t{most} * static_cast<std::size_t>(size()) * sizeof(float) <= padded_bytes;
        cuda::SegmentOffsets offsets{};
        for (int r = 1; r < size(); ++r)
            offsets.at[r] = offsets.at[r - 1] + (padded ? most : layout.count[r - 1]);
        float* const all = static_cast<float*>(buffer_.data());
        float* const own = all + offsets.at[rank()];
        cuda::pack(layout, tag, own, control(), report(), stream);
        if (padded) {
            mpi::check(ncclAllGather(own, all, most, ncclFloat, communicator_, stream), "ncclAllGather",
                       communicator_);
        } else {
            mpi::check(ncclGroupStart(), "ncclGroupStart");
            for (int r = 0; r < size(); ++r) {
                if (layout.count[r] == 0) continue;
                float* const from = all + offsets.at[r];
                mpi::check(ncclBroadcast(from, from, layout.count[r], ncclFloat, r, communicator_, stream),
                           "ncclBroadcast", communicator_);
            }
            mpi::check(ncclGroupEnd(), "ncclGroupEnd", communicator_);
        }
        cuda::unpack(layout, tag, all, offsets, control(), report(), stream);
    }

private:
    ncclComm_t communicator_;
    int exceptions_;
    cuda::DeviceMemory buffer_;
    std::unique_ptr<Monitor> monitor_;
};

std::string compare_versions(Session& session) {
    int version = 0;
    const std::string trouble =
        trouble_of(session, [&] { check(ncclGetVersion(&version), "ncclGetVersion"); });
    if (!trouble.empty()) return trouble;
    const auto all = session.gather_records(version, "NCCL versions");
    for (std::size_t r = 0; r < all.size(); ++r) {
        if (all[r] != all[0])
            return "rank 0 has NCCL " + version_text(all[0]) + ", rank " + std::to_string(r) + " has " +
                   version_text(all[r]);
        if (all[r] / 100 < NCCL_VERSION_CODE / 100)
            return "NCCL " + version_text(all[r]) + " is older than " + version_text(NCCL_VERSION_CODE) +
                   ", which this program was built with";
    }
    return {};
}

/// The communicator is made in a thread so that there is a deadline. NCCL's own nonblocking communicators
/// have one too, but they start a thread for every later exchange, which costs more than the exchange.
ncclComm_t join(const ncclUniqueId& id, int rank, int size, int device, double timeout) {
    std::promise<ncclComm_t> promise;
    auto future = promise.get_future();
    std::thread thread([promise = std::move(promise), id, rank, size, device]() mutable {
        try {
            FTMPI_CUDA(cudaSetDevice(device));
            ncclComm_t communicator = nullptr;
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.blocking = 1;
            check(ncclCommInitRankConfig(&communicator, size, id, rank, &config), "ncclCommInitRankConfig");
            promise.set_value(communicator);
        } catch (...) { promise.set_exception(std::current_exception()); }
    });
    if (future.wait_for(std::chrono::duration<double>(timeout)) != std::future_status::ready) {
        thread.detach();
        throw Error(Exit::timed_out,
                    "NCCL did not start within " + seconds_text(timeout) + shared_memory_note(),
                    "NCCL_DEBUG=INFO shows what it waits for; --transport mpi does without it");
    }
    thread.join();
    try {
        return future.get();
    } catch (const Error& error) { throw Error(Exit::failure, error.what() + shared_memory_note()); }
}

}  // namespace

Attempt make_nccl_transport(Session& session, Backend& backend, std::string reason) {
    if (session.size() > cuda::max_ranks)
        return {nullptr, "there are more than " + std::to_string(cuda::max_ranks) + " ranks"};
    // What NCCL is told by its environment stays; only multicast, which some hosts share badly, is off unless
    // asked for.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    std::string trouble = compare_versions(session);
    if (!trouble.empty()) return {nullptr, trouble};
    ncclUniqueId id{};
    trouble = trouble_of(session, [&] {
        if (session.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    if (!trouble.empty()) return {nullptr, trouble};
    const auto bytes = session.broadcast(std::string(id.internal, sizeof id.internal), "NCCL id");
    std::memcpy(id.internal, bytes.data(), sizeof id.internal);

    int device = 0;
    FTMPI_CUDA(cudaGetDevice(&device));
    ncclComm_t communicator = nullptr;
    std::optional<Error> mine;
    try {
        communicator = join(id, session.rank(), session.size(), device,
                            std::min(start_seconds, session.exchange().timeout()));
    } catch (const Error& error) { mine = error; }
    const bool late = mine && mine->code() == Exit::timed_out;
    // A rank that waited in vain knows less than the one that failed.
    trouble = first_trouble(session, mine && !late ? mine->what() : "");
    if (!first_trouble(session, late ? mine->what() : "").empty())
        // The threads that still wait keep the GPU busy with NCCL: no other transport is tried.
        session.agree("transport", [&] {
            if (mine && (!late || trouble.empty())) throw *mine;
        });
    std::unique_ptr<NcclTransport> transport;
    if (trouble.empty())
        trouble = trouble_of(session, [&] {
            transport =
                std::make_unique<NcclTransport>(session, backend, std::move(reason), communicator, device);
        });
    if (!transport && communicator != nullptr) ncclCommAbort(communicator);
    if (trouble.empty()) trouble = transport->try_out(session);
    if (!trouble.empty()) return {nullptr, trouble};
    return {std::move(transport), {}};
}

}  // namespace ftmpi::mpi
