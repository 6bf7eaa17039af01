#include "peer_memory.hpp"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "device.hpp"

namespace ftmpi::mpi {
namespace {

/// Peers write into it until they close it; so every rank closes the others' memory before it frees its own.
class DevicePeerMemory : public PeerMemory {
public:
    explicit DevicePeerMemory(int rank, int size) : rank_(rank), addresses_(static_cast<std::size_t>(size)) {}
    ~DevicePeerMemory() override {
        cudaDeviceSynchronize();
        for (std::size_t r = 0; r < addresses_.size(); ++r)
            if (static_cast<int>(r) != rank_ && addresses_[r] != nullptr)
                cudaIpcCloseMemHandle(addresses_[r]);
    }
    std::byte* of_rank(int rank) const override {
        return static_cast<std::byte*>(addresses_[static_cast<std::size_t>(rank)]);
    }

    cudaIpcMemHandle_t allocate(std::size_t bytes) {
        own_ = cuda::DeviceMemory(bytes, "a mailbox");
        addresses_[static_cast<std::size_t>(rank_)] = own_.data();
        FTMPI_CUDA(cudaMemset(own_.data(), 0, bytes));
        FTMPI_CUDA(cudaDeviceSynchronize());
        cudaIpcMemHandle_t handle{};
        FTMPI_CUDA(cudaIpcGetMemHandle(&handle, own_.data()));
        return handle;
    }
    void open(int rank, const cudaIpcMemHandle_t& handle) {
        FTMPI_CUDA(cudaIpcOpenMemHandle(&addresses_[static_cast<std::size_t>(rank)], handle,
                                        cudaIpcMemLazyEnablePeerAccess));
    }

private:
    int rank_;
    cuda::DeviceMemory own_;
    std::vector<void*> addresses_;
};

std::string system_text(const std::string& what) { return what + ": " + std::strerror(errno); }

/// One segment for all ranks, mapped by each process and known to each GPU.
class HostPeerMemory : public PeerMemory {
public:
    HostPeerMemory(std::size_t bytes, int size)
        : bytes_(bytes), total_(bytes * static_cast<std::size_t>(size)) {}
    ~HostPeerMemory() override {
        cudaDeviceSynchronize();
        if (registered_) cudaHostUnregister(host_);
        if (host_ != MAP_FAILED) munmap(host_, total_);
        unlink();
    }
    std::byte* of_rank(int rank) const override { return device_ + static_cast<std::size_t>(rank) * bytes_; }

    /// Makes the segment and returns its name.
    std::string create() {
        struct statvfs room {};
        if (statvfs("/dev/shm", &room) == 0 && std::uint64_t{room.f_bavail} * room.f_frsize < total_)
            throw_no_room(room);
        const auto name = "/ftmpi-" + std::to_string(getpid()) + "-" + std::to_string(std::random_device{}());
        const int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
        if (file < 0) throw Error(Exit::failure, system_text("shared memory cannot be made (shm_open)"));
        linked_ = name;
        // Takes the pages now: when there are none, a later access would kill the process.
        const int fault = posix_fallocate(file, 0, static_cast<off_t>(total_));
        if (fault == 0) map(file);
        close(file);
        if (fault != 0) {
            errno = fault;
            if (fault == ENOSPC && statvfs("/dev/shm", &room) == 0) throw_no_room(room);
            throw Error(Exit::failure,
                        system_text("shared memory of " + std::to_string(total_) + " bytes cannot be made"));
        }
        return name;
    }
    void open(const std::string& name) {
        const int file = shm_open(name.c_str(), O_RDWR, 0600);
        if (file < 0)
            throw Error(Exit::failure,
                        system_text("the shared memory of rank 0 cannot be opened (shm_open)"));
        try {
            map(file);
        } catch (...) {
            close(file);
            throw;
        }
        close(file);
    }
    /// Once all ranks have it open its name is not needed, and nothing is left behind however the job ends.
    void unlink() {
        if (!linked_.empty()) shm_unlink(linked_.c_str());
        linked_.clear();
    }
    void register_with_gpu() {
        FTMPI_CUDA(cudaHostRegister(host_, total_, cudaHostRegisterPortable | cudaHostRegisterMapped));
        registered_ = true;
        void* address = nullptr;
        FTMPI_CUDA(cudaHostGetDevicePointer(&address, host_, 0));
        device_ = static_cast<std::byte*>(address);
    }

private:
    [[noreturn]] void throw_no_room(const struct statvfs& room) const {
        const auto free = std::uint64_t{room.f_bavail} * room.f_frsize,
                   all = std::uint64_t{room.f_blocks} * room.f_frsize;
        throw Error(Exit::failure, "/dev/shm has " + std::to_string(free >> 20) + " of " +
                                       std::to_string(all >> 20) + " MiB free, " +
                                       std::to_string((total_ >> 20) + 1) +
                                       " are needed (containers: start with a larger --shm-size)");
    }
    void map(int file) {
        host_ = mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (host_ == MAP_FAILED)
            throw Error(Exit::failure, system_text("shared memory cannot be mapped (mmap)"));
    }

    std::size_t bytes_, total_;
    std::string linked_;
    void* host_ = MAP_FAILED;
    std::byte* device_ = nullptr;
    bool registered_ = false;
};

}  // namespace

SharedMemory share_device_memory(Session& session, std::size_t bytes) {
    // Whole pages of the driver's, so that no other allocation lies in what the handle shows.
    constexpr std::size_t page = 2u << 20;
    bytes = (bytes + page - 1) / page * page;
    auto memory = std::make_unique<DevicePeerMemory>(session.rank(), session.size());
    cudaIpcMemHandle_t mine{};
    std::string trouble = trouble_of(session, [&] { mine = memory->allocate(bytes); });
    if (trouble.empty()) {
        const auto handles =
            session.all_gather(std::string(reinterpret_cast<const char*>(&mine), sizeof mine), "handles");
        trouble = trouble_of(session, [&] {
            for (int r = 0; r < session.size(); ++r) {
                if (r == session.rank()) continue;
                cudaIpcMemHandle_t handle{};
                std::memcpy(&handle, handles[static_cast<std::size_t>(r)].data(), sizeof handle);
                memory->open(r, handle);
            }
        });
    }
    if (trouble.empty()) return {std::move(memory), {}};
    return {nullptr, trouble};
}

SharedMemory share_host_memory(Session& session, std::size_t bytes) {
    constexpr std::size_t page = 64u << 10;
    bytes = (bytes + page - 1) / page * page;
    auto memory = std::make_unique<HostPeerMemory>(bytes, session.size());
    std::string name;
    std::string trouble = trouble_of(session, [&] {
        if (session.rank() == 0) name = memory->create();
    });
    if (trouble.empty()) {
        name = session.broadcast(name, "shared memory");
        trouble = trouble_of(session, [&] {
            if (session.rank() != 0) memory->open(name);
        });
        memory->unlink();
    }
    if (trouble.empty()) trouble = trouble_of(session, [&] { memory->register_with_gpu(); });
    if (trouble.empty()) return {std::move(memory), {}};
    return {nullptr, trouble};
}

}  // namespace ftmpi::mpi
