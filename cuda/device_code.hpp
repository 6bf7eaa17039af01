// What kernels share: launching, wide loads, byte permutes, exact decoding of codes. Only for files compiled
// by nvcc. Every form for a newer architecture has an equal one for older ones.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../src/numerics.hpp"
#include "runtime/device.hpp"
#include "runtime/handles.hpp"

namespace ftmpi::cuda {

/// Dynamic shared memory is asked for in whole pieces of 16 bytes: ptxas joins scalar loads that may turn out
/// not to be wanted, as in the remainder of an unrolled loop, into one aligned load of up to 16 bytes, and
/// that must not go beyond what the block has.
constexpr std::size_t whole_words128(std::size_t shared_bytes) { return (shared_bytes + 15) / 16 * 16; }

/// launch() or launch_pdl(), in clusters of `cluster` neighbours in x where that is more than one.
inline cudaLaunchConfig_t launch_config(cudaLaunchAttribute (&attributes)[2], bool early, unsigned cluster,
                                        dim3 grid, dim3 block, std::size_t shared_bytes,
                                        cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = whole_words128(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    if (early) {
        cudaLaunchAttribute& a = attributes[config.numAttrs++];
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute& a = attributes[config.numAttrs++];
        a.id = cudaLaunchAttributeClusterDimension;
        a.val.clusterDim.x = cluster;
        a.val.clusterDim.y = a.val.clusterDim.z = 1;
    }
    return config;
}
template <class... Parameters, class... Arguments>
void launch_clusters(bool early, const char* what, void (*kernel)(Parameters...), unsigned cluster, dim3 grid,
                     dim3 block, std::size_t shared_bytes, cudaStream_t stream, Arguments... arguments) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    cudaLaunchAttribute attributes[2]{};
    const cudaLaunchConfig_t config =
        launch_config(attributes, early && has_pdl(reinterpret_cast<const void*>(kernel)), cluster, grid,
                      block, shared_bytes, stream);
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "cudaLaunchKernelEx",
          __FILE__, what);
}
template <class... Parameters, class... Arguments>
void launch_pdl_if(bool early, const char* what, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   std::size_t shared_bytes, cudaStream_t stream, Arguments... arguments) {
    launch_clusters(early, what, kernel, 1, grid, block, shared_bytes, stream, arguments...);
}

/// Queues a kernel; `what` names it in an error. A grid without blocks is no launch.
template <class... Parameters, class... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, Arguments... arguments) {
    launch_pdl_if(false, what, kernel, grid, block, shared_bytes, stream, arguments...);
}

/// The same for a kernel that calls wait_for_prerequisites(): where the card can, its blocks start as soon as
/// the blocks of the kernel before have called trigger_dependents() or are done and leave room, so that a
/// kernel's start and its first weights hide behind the end of the one before.
template <class... Parameters, class... Arguments>
void launch_pdl(const char* what, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                std::size_t shared_bytes, cudaStream_t stream, Arguments... arguments) {
    launch_pdl_if(true, what, kernel, grid, block, shared_bytes, stream, arguments...);
}

// In kernels of launch_pdl(). Before wait_for_prerequisites() a kernel may only read what no kernel of the
// same step has written: weights, Row::slot and Row::position, the states and the cache of earlier tokens;
// and, with __ldcg(), the experts' ids, which every kernel that writes them publishes before the next one can
// start. It must write nothing. Every block that does anything calls it, also when it needs nothing of the
// kernel before: the kernels behind rely on it.
__device__ __forceinline__ void trigger_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// trigger_dependents() of a warp, whose writes the next kernel finds in the second-level cache when it
/// starts.
__device__ __forceinline__ void publish_to_dependents() {
    __threadfence();
    __syncwarp();
    trigger_dependents();
}
__device__ __forceinline__ void wait_for_prerequisites() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets a kernel take more than 48 KiB of shared memory.
template <class... Parameters> void allow_shared(void (*kernel)(Parameters...), std::size_t bytes) {
    FTMPI_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(whole_words128(bytes))));
}

/// The same where it is launched again and again with no more than the first time.
template <auto kKernel> void allow_shared_once(std::size_t bytes) {
    static const bool allowed = (allow_shared(kKernel, bytes), true);
    static_cast<void>(allowed);
}

/// The dynamic shared memory of the block, 16-byte aligned.
__device__ inline unsigned char* shared_bytes() {
    extern __shared__ __align__(16) unsigned char ftmpi_shared_bytes[];
    return ftmpi_shared_bytes;
}

constexpr unsigned kWholeWarp = 0xffffffffu;

/// 16 bytes that are read once: they pass by the first-level cache.
__device__ __forceinline__ uint4 load_once(const void* p) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}

// Four elements of a chain, the first first.
__device__ __forceinline__ float add_squares(float4 v, float sum) {
    return num::fma(v.w, v.w, num::fma(v.z, v.z, num::fma(v.y, v.y, num::fma(v.x, v.x, sum))));
}
__device__ __forceinline__ float add_elements(float4 v, float sum) {
    return (((sum + v.x) + v.y) + v.z) + v.w;
}
__device__ __forceinline__ float4 rms_apply(float4 x, float scale, float4 weight) {
    return {num::rms_apply(x.x, scale, weight.x), num::rms_apply(x.y, scale, weight.y),
            num::rms_apply(x.z, scale, weight.z), num::rms_apply(x.w, scale, weight.w)};
}

/// Byte permute, default mode: nibble i of the selector picks byte 0..7 of {b, a}; its high bit replicates
/// that byte's sign.
__device__ __forceinline__ std::uint32_t permute(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
    std::uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}

/// c + sum of the products of four signed bytes.
__device__ __forceinline__ int dot4(std::uint32_t a, std::uint32_t b, int c) {
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}

/// The values of the two half precision numbers in `halves`, the lower one first; exact.
__device__ __forceinline__ void decode_f16_pair(std::uint32_t halves, float& first, float& second) {
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }"
        : "=f"(first), "=f"(second)
        : "r"(halves));
}

/// Two numbers rounded to half precision, the first in the lower half.
__device__ __forceinline__ std::uint32_t f16_pair(float first, float second) {
    std::uint32_t halves;
    asm("{ .reg .b16 lo, hi; cvt.rn.f16.f32 lo, %1; cvt.rn.f16.f32 hi, %2; mov.b32 %0, {lo, hi}; }"
        : "=r"(halves)
        : "f"(first), "f"(second));
    return halves;
}

/// The values of the two e4m3 codes (no NaN codes) in the lower half of `codes`, the lowest byte first.
__device__ __forceinline__ void decode_e4m3_pair(std::uint32_t codes, float& first, float& second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(codes)));
    decode_f16_pair(halves, first, second);
#else
    // The code's exponent and fraction in a float's places are its value times 2^-120, subnormal codes
    // included.
    const float up = num::pow2(120);
    first = num::float_of(((codes << 24) & 0x80000000u) | ((codes << 20) & 0x07f00000u)) * up;
    second = num::float_of(((codes << 16) & 0x80000000u) | ((codes << 12) & 0x07f00000u)) * up;
#endif
}

__device__ __forceinline__ void decode_e4m3(std::uint32_t codes, float (&w)[4]) {
    decode_e4m3_pair(codes, w[0], w[1]);
    decode_e4m3_pair(codes >> 16, w[2], w[3]);
}

/// Eight e2m1 codes as bytes of 12 + twice their value, the lower four and the upper four: each table serves
/// one sign, the other sign's bytes come out as 0.
__device__ __forceinline__ void decode_e2m1(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
    const std::uint32_t flipped = codes ^ 0x88888888u;
    low = permute(0x0f0e0d0cu, 0x18141210u, codes) | permute(0x090a0b0cu, 0x00040608u, flipped);
    high = permute(0x0f0e0d0cu, 0x18141210u, codes >> 16) | permute(0x090a0b0cu, 0x00040608u, flipped >> 16);
}

/// The same as signed bytes of twice their value.
__device__ __forceinline__ void decode_e2m1_signed(std::uint32_t codes, std::uint32_t& low,
                                                   std::uint32_t& high) {
    decode_e2m1(codes, low, high);
    low = ((low | 0x80808080u) - 0x0c0c0c0cu) ^ 0x80808080u;  // 12 less in each byte, without borrowing
    high = ((high | 0x80808080u) - 0x0c0c0c0cu) ^ 0x80808080u;
}

/// The product of 16 x 16 and 16 x 8 signed bytes on a warp: lane 4g + w gives elements 4w .. 4w + 3 of rows
/// g (a0) and g + 8 (a1) and of column g (b), and gets columns 2w, 2w + 1 of row g (c[0], c[1]) and of row g
/// + 8.
__device__ __forceinline__ void multiply_bytes(int (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                               std::uint32_t b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

/// Copies 16 bytes from device to shared memory behind the thread's back, to be waited for by its groups in
/// order.
__device__ __forceinline__ void copy_async_to(unsigned shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
    copy_async_to(static_cast<unsigned>(__cvta_generic_to_shared(shared)), global);
}
/// The same of 4 bytes.
__device__ __forceinline__ void copy_word_async(unsigned shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void close_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Returns when all but the last N groups of this thread have arrived.
template <int N> __device__ __forceinline__ void wait_copy_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace ftmpi::cuda
