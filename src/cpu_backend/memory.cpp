// Construction, memory and facts of the CPU backend.
#include <cpuid.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "../cpu_backend.hpp"
#include "../error.hpp"
#include "host_share.hpp"
#include "kernels.hpp"
#include "threads.hpp"

namespace ftmpi {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kLarge =
    std::size_t{1} << 20;  ///< from here on memory is mapped, so that untouched pages cost nothing

constexpr Simd kAll[] = {Simd::plain, Simd::avx2, Simd::avx512, Simd::avx512vnni, Simd::avx512amx};

std::string_view name_of(Simd simd) {
    constexpr std::string_view kNames[] = {"plain", "avx2", "avx512", "avx512vnni", "avx512amx"};
    return kNames[static_cast<int>(simd)];
}

const cpu::Kernels& kernels_of(Simd simd) {
    if (!supported(simd))
        throw Error(Exit::usage,
                    "this processor does not run the " + std::string(name_of(simd)) + " kernels");
    switch (simd) {
        case Simd::plain: return cpu::kernels_plain();
        case Simd::avx2: return cpu::kernels_avx2();
        case Simd::avx512: return cpu::kernels_avx512();
        case Simd::avx512vnni: return cpu::kernels_avx512vnni();
        case Simd::avx512amx: break;
    }
    return cpu::kernels_avx512amx();
}

[[noreturn]] void out_of_memory(std::size_t bytes, std::string_view what) {
    throw Error(Exit::does_not_fit, "out of host memory: " + std::to_string(bytes) + " bytes for " +
                                        std::string(what.empty() ? "a buffer" : what));
}

/// By the processor's own word, because clang 14 does not know the name. That the system keeps the wide
/// registers is in "avx2".
bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/// Tiles of signed bytes, by the processor's own word and the system's leave, which is asked for once and
/// holds for all threads.
bool has_amx() {
    static const bool has = [] {
        constexpr long kAskFor = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of Linux 5.16
        constexpr unsigned kTilesAndInt8 = 3u << 24;
        unsigned a = 0, b = 0, c = 0, d = 0;
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTilesAndInt8) == kTilesAndInt8 &&
               syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
    }();
    return has;
}

}  // namespace

namespace cpu {
Scratch::~Scratch() { std::free(data_); }

void* Scratch::bytes(std::size_t n) {
    if (n > size_) {
        std::free(data_);
        size_ = 0;
        const std::size_t whole = (n + n / 4 + kAlignment - 1) / kAlignment * kAlignment;
        data_ = std::aligned_alloc(kAlignment, whole);
        if (!data_) out_of_memory(whole, "working memory");
        size_ = whole;
    }
    return data_;
}
}  // namespace cpu

bool supported(Simd simd) {
    if (simd == Simd::plain) return true;
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())) return false;
    if (simd == Simd::avx2) return true;
    if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")))
        return false;
    if (simd == Simd::avx512) return true;
    if (!(__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi"))) return false;
    return simd == Simd::avx512vnni || has_amx();
}

Simd default_simd() {
    if (const char* asked = std::getenv("FTMPI_SIMD")) {
        for (Simd simd : kAll)
            if (name_of(simd) == asked) {
                kernels_of(simd);
                return simd;
            }
        throw Error(Exit::usage, "FTMPI_SIMD is \"" + std::string(asked) + "\"",
                    "use plain, avx2, avx512, avx512vnni or avx512amx, or leave it unset");
    }
    for (Simd simd : {Simd::avx512amx, Simd::avx512vnni, Simd::avx512, Simd::avx2})
        if (supported(simd)) return simd;
    return Simd::plain;
}

std::unique_ptr<Backend> make_cpu_backend(int threads, std::optional<Simd> simd) {
    return std::make_unique<CpuBackend>(threads, simd ? *simd : default_simd());
}

CpuBackend::CpuBackend(int threads, Simd simd) : threads_(threads), simd_(simd), kernels_(kernels_of(simd)) {
    if (threads < 1)
        throw Error(Exit::usage, "the CPU backend needs at least 1 thread, not " + std::to_string(threads));
    pool_ = std::make_unique<Threads>(threads);
    check_denormals();
}

CpuBackend::~CpuBackend() {
    for (const auto& [p, bytes] : sizes_)
        if (bytes >= kLarge) munmap(p, bytes);
}

void CpuBackend::check_denormals() {
    std::atomic<bool> flushing = false;
    pool_->run([&](int) {
        if (_mm_getcsr() & 0x8040u) flushing = true;  // flush to zero, denormals are zero
    });
    if (flushing)
        throw Error(Exit::failure, "a thread flushes denormal numbers to zero, which would change results",
                    "a library built with -ffast-math was probably loaded; remove it (LD_PRELOAD?)");
}

DeviceInfo CpuBackend::info() const {
    DeviceInfo d;
    d.backend = "cpu";
    d.name = "unknown processor";
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);)
        if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
            d.name = line.substr(line.find(": ") + 2);
            break;
        }
    constexpr const char* kNames[] = {"plain", "AVX2", "AVX-512", "AVX-512 VNNI", "AVX-512 AMX"};
    d.capability = kNames[static_cast<int>(simd_)];
    const auto bounds = host_bounds();
    d.total_bytes = static_cast<std::size_t>(least(bounds, Bound::Of::memory_limit));
    d.free_bytes = static_cast<std::size_t>(least(bounds, Bound::Of::memory_left));
    return d;
}

void* CpuBackend::allocate(std::size_t bytes, std::string_view what) {
    if (bytes == 0) return nullptr;
    void* p = nullptr;
    if (bytes < kLarge) {
        const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
        p = std::aligned_alloc(kAlignment, whole);
        if (!p) out_of_memory(bytes, what);
        std::memset(p, 0, whole);
    } else {
        p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) out_of_memory(bytes, what);
    }
    const std::lock_guard lock(mutex_);
    sizes_[p] = bytes;
    allocated_ += bytes;
    return p;
}

void CpuBackend::release(void* p) noexcept {
    if (!p) return;
    const std::lock_guard lock(mutex_);
    const auto at = sizes_.find(p);
    if (at == sizes_.end()) return;
    const std::size_t bytes = at->second;
    sizes_.erase(at);
    allocated_ -= bytes;
    if (bytes >= kLarge) munmap(p, bytes);
    else std::free(p);
}

std::size_t CpuBackend::allocated_bytes() const {
    const std::lock_guard lock(mutex_);
    return allocated_;
}

void CpuBackend::copy_in(void* device, const void* host, std::size_t bytes) {
    if (bytes) std::memcpy(device, host, bytes);
}
void CpuBackend::copy_out(void* host, const void* device, std::size_t bytes) {
    if (bytes) std::memcpy(host, device, bytes);
}
void CpuBackend::fill_zero(void* device, std::size_t bytes) {
    if (bytes) std::memset(device, 0, bytes);
}

}  // namespace ftmpi
