// Gated DeltaNet for one token of each slot, of any size: everything in one kernel, a block for each value
// head of each row. Sizes of real models have a kernel of their own in delta_net_decode.cu.
//
// At 32 heads of 128 x 128 it moves 4.2 MB a row (the state, read and written), 0.93 us at 4.52 TB/s; the
// state is asked for first, so that the convolution, the norms and the gates run while it is on the way.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <algorithm>

#include "delta_net.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kGateThread = kThreads - 1,
              kTicketThread = 5 * 32;  // in warps that have nothing else to do then

/// kChunks: chunks of the key dimension; a column's chunks are on different lanes of a warp.
/// The value heads of a key head all convolve its q and k, from the same convolution state: the last of them
/// to have read it moves it on. `tickets`: one for each key head of each row.
template <int kChunks>
__global__ void __launch_bounds__(kThreads)
    delta_decode_any(DeltaNet net, const Row* rows, const float* qkv, const float* z, const float* b,
                     const float* a, float* out, std::int64_t stride, unsigned* tickets, float inverse_root) {
    constexpr int kColumns = 32 / kChunks, kBlockColumns = kThreads / kChunks;
    __shared__ __align__(16) float query[kChunks * kSpread];
    __shared__ __align__(16) float key[kChunks * kSpread];
    __shared__ __align__(16) float value[kMostDeltaDim];
    __shared__ __align__(16) float result[kMostDeltaDim];
    __shared__ float beta, decay;
    __shared__ bool last;

    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int key_dim = net.key_dim, value_dim = net.value_dim, channels = channels_of(net);
    const int head = static_cast<int>(blockIdx.x), heads = net.value_heads / net.key_heads,
              key_head = head / heads;
    const std::int64_t row = blockIdx.y, slot = rows[row].slot;
    const int first_key = lane / kColumns * num::kChunk, own_keys = key_dim - first_key;
    float* state = net.state + (slot * net.value_heads + head) * key_dim * value_dim +
                   std::int64_t{first_key} * value_dim;
    float* conv_state = net.conv_state + slot * (net.taps - 1) * channels;
    qkv += row * channels;

    int column = warp * kColumns + lane % kColumns;
    StateChunk chunk;
    chunk.load(state + column, value_dim, column < value_dim ? own_keys : 0);
    const std::int64_t at = row * net.value_heads + head;
    const float gate = thread < value_dim ? z[at * value_dim + thread] : 0.0f;
    const float weight = thread < value_dim ? net.norm[thread] : 0.0f;
    if (thread == kGateThread) {
        beta = num::sigmoid(b[at]);
        decay = num::delta_decay(net.neg_exp_a[head], a[at], net.dt_bias[head]);
    }

    // [q | k | v] of the head.
    for (int c = thread; c < 2 * key_dim + value_dim; c += kThreads) {
        const bool is_value = c >= 2 * key_dim;
        const int channel = is_value       ? 2 * net.key_heads * key_dim + head * value_dim + c - 2 * key_dim
                            : c >= key_dim ? (net.key_heads + key_head) * key_dim + c - key_dim
                                           : key_head * key_dim + c;
        float w[kMostTaps], u[kMostTaps];
#pragma unroll
        for (int j = 0; j < kMostTaps; ++j) {
            if (j < net.taps) w[j] = net.conv[std::int64_t{channel} * net.taps + j];
            if (j < net.taps - 1) u[j] = conv_state[std::int64_t{j} * channels + channel];
            if (j == net.taps - 1) u[j] = qkv[channel];
        }
        const float x = convolved(w, u, net.taps);
        if (is_value) value[c - 2 * key_dim] = x;
        else if (c >= key_dim) key[padded_index(c - key_dim, kSpread)] = x;
        else query[padded_index(c, kSpread)] = x;
        if (is_value || heads == 1)
#pragma unroll
            for (int j = 0; j + 1 < kMostTaps; ++j)
                if (j < net.taps - 1) conv_state[std::int64_t{j} * channels + channel] = u[j + 1];
    }
    __syncthreads();
    unsigned* ticket = tickets + row * net.key_heads + key_head;
    unsigned before = 0;
    if (thread == kTicketThread && heads > 1) {
        __threadfence();
        before = atomicAdd(ticket, 1u);
    }
    if (warp < 2) {
        float* x = warp == 0 ? query : key;
        const float scale = num::l2_scale(warp_squares(x, key_dim, kSpread)),
                    root = warp == 0 ? inverse_root : 1.0f;
        __syncwarp();
        for (int i = lane; i < kChunks * num::kChunk; i += 32) {
            const int p = padded_index(i, kSpread);
            x[p] = i < key_dim ? num::delta_query(x[p], scale, root) : 0.0f;
        }
    }
    __syncthreads();

    const float *own_key = key + lane / kColumns * kSpread, *own_query = query + lane / kColumns * kSpread;
    for (int first = 0; first < value_dim; first += kBlockColumns, column += kBlockColumns) {
        const bool mine = column < value_dim;
        if (first > 0) chunk.load(state + column, value_dim, mine ? own_keys : 0);
        const float read = add_chunks<kChunks>(chunk.decay_and_read(own_key, decay));
        const float d = beta * ((mine ? value[column] : 0.0f) - read);
        const float o = add_chunks<kChunks>(chunk.write_and_read(own_key, own_query, d));
        chunk.store(state + column, value_dim, mine ? own_keys : 0);
        if (mine && lane < kColumns) result[column] = o;
    }
    if (thread == kTicketThread) last = heads > 1 && before + 1 == static_cast<unsigned>(heads);
    __syncthreads();

    if (warp * 32 < value_dim) {
        const float scale = num::rms_scale(warp_squares(result, value_dim, num::kChunk), value_dim, net.eps);
        if (thread < value_dim)
            out[row * stride + head * value_dim + thread] =
                num::gated_norm(result[thread], scale, weight, gate);
    }
    if (!last) return;
    __threadfence();
    if (thread == 0) *ticket = 0;
    for (int c = thread; c < 2 * key_dim; c += kThreads) {
        const int channel =
            c >= key_dim ? (net.key_heads + key_head) * key_dim + c - key_dim : key_head * key_dim + c;
        float* p = conv_state + channel;
        for (int j = 0; j + 2 < net.taps; ++j)
            p[std::int64_t{j} * channels] = p[std::int64_t{j + 1} * channels];
        p[std::int64_t{net.taps - 2} * channels] = qkv[channel];
    }
}

}  // namespace

void delta_net_decode_any(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z,
                          const float* b, const float* a, float* out, std::int64_t stride, unsigned* tickets,
                          bool, cudaStream_t stream) {
    const auto kernel = net.key_dim <= 32    ? delta_decode_any<1>
                        : net.key_dim <= 128 ? delta_decode_any<4>
                                             : delta_decode_any<8>;
    launch("delta_decode_any", kernel,
           dim3(static_cast<unsigned>(net.value_heads), static_cast<unsigned>(rows.count())), dim3(kThreads),
           0, stream, net, rows.device, qkv, z, b, a, out, stride, tickets,
           num::inverse_root_of(net.key_dim));
}

}  // namespace ftmpi::cuda
