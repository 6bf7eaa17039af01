// bf16 products on tensor cores: what the fast kernels share. Only for files compiled by nvcc.
#pragma once

#include "../device_code.hpp"

namespace ftmpi::cuda {

/// Rounds to bf16 as num::to_bf16; infinities and NaNs stay what they are.
__device__ __forceinline__ std::uint32_t fast_bf16(float x) {
    return num::is_finite(x) ? num::to_bf16(x) : num::bits_of(x) >> 16 | (x != x ? 0x40u : 0u);
}
__device__ __forceinline__ std::uint32_t fast_bf16_pair(float low, float high) {
    return fast_bf16(low) | fast_bf16(high) << 16;
}

/// Four e4m3 codes (no NaN codes) as two pairs of bf16, the lowest byte first; exact.
__device__ __forceinline__ void bf16_of_e4m3(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
    // Exponent and fraction in a bf16's places are the value times 2^-120, subnormal codes included.
    const auto widen = [](std::uint32_t t) {
        const std::uint32_t small = (t & 0x80008000u) | ((t >> 4) & 0x07f007f0u);
        std::uint32_t r = 0;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;"
            : "=r"(r)
            : "r"(small), "r"(0x7b807b80u), "r"(0x80008000u));  // x * 2^120 + -0
        return r;
    };
    low = widen(permute(codes, 0, 0x1404));
    high = widen(permute(codes, 0, 0x3424));
}

/// c += a * b, 16 x 16 times 16 x 8: lane 4g + w gives elements 2w, 2w + 1 of row g (a[0]) and g + 8 (a[1]),
/// 2w + 8, 2w + 9 of the same (a[2], a[3]), and of column g (b0, b1); it holds columns 2w, 2w + 1 of row g
/// (c[0], c[1]) and g + 8.
__device__ __forceinline__ void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                              std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Four matrices of 8 rows of 16 bytes; lane 8m + r gives the address of row r of matrix m and gets in v[m]
/// elements 2w, 2w + 1 of row g, transposed those of column g.
__device__ __forceinline__ void load_matrices(std::uint32_t (&v)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&v)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}

/// copy_async of 16 bytes, or of zeroes when they are not there (`global` is valid all the same and not
/// read).
__device__ __forceinline__ void copy_async_or_zero(unsigned shared, const void* global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(there ? 16 : 0)
                 : "memory");
}

}  // namespace ftmpi::cuda
