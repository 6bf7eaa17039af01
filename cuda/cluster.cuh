// Blocks of a cluster that write into one another's shared memory. For compute capability 9.0 and later:
// kernels that call this are not launched on older cards, and compiled for one they stop there.
#pragma once

#include "device_code.hpp"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define FTMPI_HAS_CLUSTERS 1
#else
#define FTMPI_HAS_CLUSTERS 0
#endif

namespace ftmpi::cuda {

/// Counts the bytes that other blocks send into this one's shared memory, phase by phase; a phase ends when
/// the bytes expected in it have come. Lies in shared memory.
struct Arrivals {
    std::uint64_t state;

    /// By one thread, before the cluster's blocks first meet.
    __device__ __forceinline__ void begin() {
#if FTMPI_HAS_CLUSTERS
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address()) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    /// By one thread, once a phase and not before the last one has ended. The bytes may be there already.
    __device__ __forceinline__ void expect(unsigned bytes) {
#if FTMPI_HAS_CLUSTERS
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes)
                     : "memory");
#endif
    }
    /// Returns when the phase of this parity has ended; phases count from 0.
    __device__ __forceinline__ void wait(unsigned parity) {
#if FTMPI_HAS_CLUSTERS
        unsigned done = 0;
        do {
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
                "selp.u32 %0, 1, 0, p; }"
                : "=r"(done)
                : "r"(address()), "r"(parity)
                : "memory");
        } while (!done);
#endif
    }
    /// Writes two floats to where `place` lies in block `rank` of the cluster, for this object's like there
    /// to count.
    __device__ __forceinline__ void send(unsigned rank, float2* place, float2 v) {
#if FTMPI_HAS_CLUSTERS
        asm volatile(
            "{ .reg .b32 to, count; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 count, %1, "
            "%2;\n"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [count]; }" ::"r"(
                static_cast<unsigned>(__cvta_generic_to_shared(place))),
            "r"(address()), "r"(rank), "f"(v.x), "f"(v.y)
            : "memory");
#endif
    }

private:
    __device__ __forceinline__ unsigned address() {
        return static_cast<unsigned>(__cvta_generic_to_shared(&state));
    }
};

/// All threads of a cluster arrive, and wait for one another; only what comes before cluster_arrive() is seen
/// by the others.
__device__ __forceinline__ void cluster_arrive_unordered() {
#if FTMPI_HAS_CLUSTERS
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_arrive() {
#if FTMPI_HAS_CLUSTERS
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if FTMPI_HAS_CLUSTERS
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// Whether the kernel may be launched on this device in clusters of `blocks`: its code and the device know
/// them, and the device has room for one, which a part of a card (MIG) need not have.
template <class... Parameters>
bool takes_clusters(void (*kernel)(Parameters...), unsigned blocks, dim3 block, std::size_t shared_bytes) {
    int device = 0, clusters = 0;
    FTMPI_CUDA(cudaGetDevice(&device));
    FTMPI_CUDA(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device));
    if (clusters == 0 || !has_pdl(reinterpret_cast<const void*>(kernel))) return false;
    cudaLaunchAttribute attributes[2]{};
    const cudaLaunchConfig_t config =
        launch_config(attributes, false, blocks, dim3(blocks), block, shared_bytes, nullptr);
    int fit = 0;
    if (cudaOccupancyMaxActiveClusters(&fit, kernel, &config) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return fit > 0;
}

}  // namespace ftmpi::cuda
