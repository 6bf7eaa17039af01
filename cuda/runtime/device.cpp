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
        if (!call("nvmlInit_v2")) close();
    }
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;
    ~Nvml() {
        call("nvmlShutdown");
        close();
    }

    /// By bus id: NVML counts GPUs in another order than CUDA and shows those that CUDA hides.
    void* device(const std::string& pci) const {
        void* found = nullptr;
        return call("nvmlDeviceGetHandleByPciBusId_v2", pci.c_str(), &found) ? found : nullptr;
    }
    std::string text(const char* name, void* device) const {
        char value[96] = {};
        return device && call(name, device, &value[0], unsigned{sizeof value - 1}) ? value : "";
    }
    std::string driver() const {
        char value[96] = {};
        return call("nvmlSystemGetDriverVersion", &value[0], unsigned{sizeof value - 1}) ? value : "";
    }
    unsigned number(const char* name, void* device) const {
        unsigned value = 0;
        return device && call(name, device, &value) ? value : 0;
    }
    enum Clock : int { sm = 1, memory = 2 };
    unsigned clock(const char* name, void* device, Clock clock) const {
        unsigned value = 0;
        return device && call(name, device, int{clock}, &value) ? value : 0;
    }

private:
    /// False: the library, or the function in it, is missing, or it failed. Arguments are of its own types.
    template <class... Arguments> bool call(const char* name, Arguments... arguments) const {
        const auto f = library_ ? reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name)) : nullptr;
        return f && f(arguments...) == 0;
    }
    void close() {
        if (library_ != nullptr) dlclose(library_);
        library_ = nullptr;
    }
    void* library_;
};

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
        int direct = 0, atomics = 0;
        FTMPI_CUDA(cudaDeviceCanAccessPeer(&direct, device, peer));
        if (direct != 0 && cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device,
                                                     peer) != cudaSuccess)
            cudaGetLastError();
        text += (text.empty() ? "" : " ") + gpu_uuid(peer) +
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
    for (int device = 0; device < count; ++device) gpus.visible.push_back(gpu_uuid(device));
    return gpus;
}

std::string gpu_uuid(int device) {
    cudaDeviceProp properties{};
    FTMPI_CUDA(cudaGetDeviceProperties(&properties, device));
    std::array<unsigned char, 16> bytes{};
    std::memcpy(bytes.data(), properties.uuid.bytes, bytes.size());
    return uuid_text(bytes);
}

GpuFacts gpu_facts(int device) {
    cudaDeviceProp properties{};
    FTMPI_CUDA(cudaGetDeviceProperties(&properties, device));
    GpuFacts facts;
    facts.uuid = gpu_uuid(device);
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
