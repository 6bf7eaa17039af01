// Attention: the launcher, and the keys and values of a step on their way into the cache.
#include <algorithm>

#include "attention.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kWarps = 8;

/// A warp for each key and each value vector of each row.
template <KvType kType>
__global__ void __launch_bounds__(kWarps * 32)
    write_cache(Attention t, const Row* rows, std::int64_t count, const float* k, const float* v) {
    __shared__ __align__(16) float vectors[kWarps][kMostHeadChunks * kSpread];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
              dim = t.head_dim;
    const std::int64_t i = std::int64_t{blockIdx.x} * kWarps + warp, vector = i / 2;  // [row][kv head]
    if (vector >= count * t.kv_heads) return;
    const Row row = rows[vector / t.kv_heads];
    const int kv = static_cast<int>(vector % t.kv_heads);
    const std::int64_t to =
        cache_offset<kType>(t, row.slot, kv) + std::int64_t{row.position} * dim * kElementBytes<kType>;
    if (i % 2 == 0) {
        float* y = vectors[warp];
        norm_rope(t, k + vector * dim, t.k_norm, row.position, y, kSpread);
        for (int d = lane; d < dim; d += 32)
            store_element<kType>(static_cast<char*>(t.keys) + to, d, y[padded_index(d, kSpread)], t.k_scale);
    } else {
        for (int d = lane; d < dim; d += 32)
            store_element<kType>(static_cast<char*>(t.values) + to, d, v[vector * dim + d], t.v_scale);
    }
}

void check_head_dim(int dim) {
    if (dim < 8 || dim % 8 || dim > kMostHeadDim)
        refuse("attention heads of " + std::to_string(dim) + " elements",
               "multiples of 8 up to " + std::to_string(kMostHeadDim));
}

void check_step(const Attention& t, const Rows& rows) {
    const auto refuse = [](const std::string& what) { throw Error(Exit::failure, what); };
    check_head_dim(t.head_dim);
    if (t.rotary_dim < 0 || t.rotary_dim % 2 || t.rotary_dim > t.head_dim)
        refuse("a rotary embedding of " + std::to_string(t.rotary_dim) + " of " + std::to_string(t.head_dim) +
               " elements");
    if (t.first_query_head < t.first_kv_head * t.group ||
        t.first_query_head + t.query_heads > (t.first_kv_head + t.kv_heads) * t.group)
        refuse("a query head's key/value head is not held here");
    for (const Row& row : rows.host)
        if (row.position >= t.capacity)
            refuse("position " + std::to_string(row.position) + " is beyond the cache of " +
                   std::to_string(t.capacity));
}

}  // namespace

void check_attention_limits(const StepLimits& l) {
    if (l.query_heads == 0) return;
    check_head_dim(l.head_dim);
    check_decode_heads(l.kv_heads);
}

void attention(const Attention& t, const Rows& rows, const float* qg, const float* k, const float* v,
               float* out, std::int64_t stride, Scratch scratch, cudaStream_t stream, bool fast, bool early) {
    if (rows.count() == 0 || t.query_heads == 0) return;
    check_step(t, rows);
    const Kernel kernel = choose({.op = Operator::attention,
                                  .rows = rows.count(),
                                  .fast = fast,
                                  .one_a_slot = one_row_a_slot(rows),
                                  .attention = &t})
                              .kernel;
    if (kernel == Kernel::decode)
        return attention_decode(t, rows, qg, k, v, out, stride, scratch, early, stream);
    with_kv_type(t.kv, [&](auto type) {
        const std::int64_t vectors = rows.count() * t.kv_heads * 2;
        launch("write_cache", write_cache<type()>,
               dim3(static_cast<unsigned>((vectors + kWarps - 1) / kWarps)), dim3(kWarps * 32), 0, stream, t,
               rows.device, rows.count(), k, v);
    });
    (kernel == Kernel::prefill_bf16 ? attention_prefill_bf16 : attention_prefill)(t, rows, qg, out, stride,
                                                                                  stream);
}

}  // namespace ftmpi::cuda
