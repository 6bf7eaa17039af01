#include "device.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "handles.hpp"

namespace ftmpi::cuda {
namespace {

/// The few calls of the driver's management library that are used. Their numbers and signatures are fixed by
/// its ABI.
class Nvml {
public:
    Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
        using Init = int (*)();
        if (const auto init = symbol<Init>("nvmlInit_v2"); init == nullptr || init() != 0) close();
    }
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;
    ~Nvml() {
        using Shutdown = int (*)();
        if (const auto shutdown = symbol<Shutdown>("nvmlShutdown")) shutdown();
        close();
    }

    /// By bus id: NVML counts GPUs in another order than CUDA and shows those that CUDA hides.
    void* device(const std::string& pci) const {
        using Find = int (*)(const char*, void**);
        void* found = nullptr;
        const auto find = symbol<Find>("nvmlDeviceGetHandleByPciBusId_v2");
        return find != nullptr && find(pci.c_str(), &found) == 0 ? found : nullptr;
    }
    std::string text(const char* name, void* device) const {
        using Read = int (*)(void*, char*, unsigned);
        char value[96] = {};
        const auto read = symbol<Read>(name);
        return read != nullptr && device != nullptr && read(device, value, sizeof value - 1) == 0 ? value
                                                                                                  : "";
    }
    std::string driver() const {
        using Read = int (*)(char*, unsigned);
        char value[96] = {};
        const auto read = symbol<Read>("nvmlSystemGetDriverVersion");
        return read != nullptr && read(value, sizeof value - 1) == 0 ? value : "";
    }
    unsigned number(const char* name, void* device) const {
        using Read = int (*)(void*, unsigned*);
        unsigned value = 0;
        const auto read = symbol<Read>(name);
        return read != nullptr && device != nullptr && read(device, &value) == 0 ? value : 0;
    }
    enum Clock : int { sm = 1, memory = 2 };
    unsigned clock(const char* name, void* device, Clock clock) const {
        using Read = int (*)(void*, int, unsigned*);
        unsigned value = 0;
        const auto read = symbol<Read>(name);
        return read != nullptr && device != nullptr && read(device, clock, &value) == 0 ? value : 0;
    }

private:
    template <class F> F symbol(const char* name) const {
        return library_ == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library_, name));
    }
    void close() {
        if (library_ != nullptr) dlclose(library_);
        library_ = nullptr;
    }
    void* library_;
};

std::string uuid_of(const cudaDeviceProp& properties) {
    std::array<unsigned char, 16> bytes{};
    std::memcpy(bytes.data(), properties.uuid.bytes, bytes.size());
    return uuid_text(bytes);
}

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) cudaGetLastError();
    return value;
}

std::string peers_of(int device) {
    int count = 0;
    FTMPI_CUDA(cudaGetDeviceCount(&count));
    std::string text;
    for (int peer = 0; peer < count; ++peer) {
        if (peer == device) continue;
        cudaDeviceProp properties{};
        FTMPI_CUDA(cudaGetDeviceProperties(&properties, peer));
        int direct = 0, atomics = 0;
        FTMPI_CUDA(cudaDeviceCanAccessPeer(&direct, device, peer));
        if (direct != 0 && cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device,
                                                     peer) != cudaSuccess)
            cudaGetLastError();
        text += (text.empty() ? "" : " ") + uuid_of(properties) +
                (direct == 0    ? "=none"
                 : atomics == 0 ? "=direct"
                                : "=atomics");
    }
    return text;
}

}  // namespace

RankGpus visible_gpus(const std::string& host, int local_rank) {
    RankGpus gpus;
    gpus.host = host;
    gpus.local_rank = local_rank;
    if (const char* value = std::getenv("CUDA_VISIBLE_DEVICES")) gpus.visible_devices = value;
    int count = 0;
    if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess) {
        cudaGetLastError();
        gpus.trouble = cudaGetErrorString(e);
        return gpus;
    }
    for (int device = 0; device < count; ++device) {
        cudaDeviceProp properties{};
        FTMPI_CUDA(cudaGetDeviceProperties(&properties, device));
        gpus.visible.push_back(uuid_of(properties));
    }
    return gpus;
}

GpuFacts gpu_facts(int device) {
    cudaDeviceProp properties{};
    FTMPI_CUDA(cudaGetDeviceProperties(&properties, device));
    GpuFacts facts;
    facts.uuid = uuid_of(properties);
    facts.name = properties.name;
    char pci[32] = {};
    FTMPI_CUDA(cudaDeviceGetPCIBusId(pci, sizeof pci, device));
    facts.pci = pci;
    // Kilohertz of a clock whose both edges carry data, and bits.
    facts.gb_per_s = 2e3 * attribute(cudaDevAttrMemoryClockRate, device) *
                     attribute(cudaDevAttrGlobalMemoryBusWidth, device) / 8 / 1e9;
    facts.peers = peers_of(device);

    const Nvml nvml;
    void* const handle = nvml.device(facts.pci);
    facts.driver = nvml.driver();
    facts.serial = nvml.text("nvmlDeviceGetSerial", handle);
    facts.sm_mhz = nvml.clock("nvmlDeviceGetClockInfo", handle, Nvml::sm);
    facts.max_sm_mhz = nvml.clock("nvmlDeviceGetMaxClockInfo", handle, Nvml::sm);
    facts.memory_mhz = nvml.clock("nvmlDeviceGetClockInfo", handle, Nvml::memory);
    facts.power_limit_watts = nvml.number("nvmlDeviceGetEnforcedPowerLimit", handle) / 1000.0;
    facts.pcie_generation = static_cast<int>(nvml.number("nvmlDeviceGetCurrPcieLinkGeneration", handle));
    facts.pcie_lanes = static_cast<int>(nvml.number("nvmlDeviceGetCurrPcieLinkWidth", handle));
    return facts;
}

bool has_pdl(const void* kernel) {
    static std::mutex mutex;
    static std::map<const void*, bool> known;
    const std::lock_guard lock(mutex);
    const auto [entry, is_new] = known.try_emplace(kernel, false);
    if (is_new) {
        cudaFuncAttributes facts{};
        FTMPI_CUDA(cudaFuncGetAttributes(&facts, kernel));
        entry->second = facts.ptxVersion >= 90 && facts.binaryVersion >= 90;
    }
    return entry->second;
}

}  // namespace ftmpi::cuda
