// The launchers of the CUDA backend, one for each step of the model. Each mirrors the arguments of the Backend method of the
// same name, all pointers in device memory, and only queues kernels on `stream`: no synchronisation, no allocation, no
// host memory that must outlive the call, so that a step can be captured as a graph. What a kernel needs to know about
// the rows of a step beyond their number (slots, positions) it reads from Rows::device; a launch over one row a slot depends
// on rows.count() alone.
//
// Scratch is device memory that a launcher may use until the next launcher on the same stream. How much it needs is
// said by the function beside it, which is monotone in every argument: the backend reserves with the largest.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "../src/backend.hpp"

namespace ftmpi::cuda {

struct Scratch {
    void* data = nullptr;  ///< 256-byte aligned
    std::size_t bytes = 0;
};

// ---- mixers ---------------------------------------------------------------------------------------------------------
std::size_t delta_net_scratch(std::int64_t rows, int key_heads, int value_heads, int key_dim, int value_dim);
void delta_net(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z, const float* b, const float* a,
               float* out, std::int64_t stride, Scratch scratch, cudaStream_t stream);

/// `capacity` is that of a slot of the cache.
std::size_t attention_scratch(std::int64_t rows, int query_heads, int head_dim, std::int64_t capacity);
void attention(const Attention& attention, const Rows& rows, const float* qg, const float* k, const float* v, float* out,
               std::int64_t stride, Scratch scratch, cudaStream_t stream);

}  // namespace ftmpi::cuda
