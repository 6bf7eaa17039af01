// Gated DeltaNet for one token of each slot with heads of 128 x 128 and four taps, the sizes of real models,
// known when the kernel is compiled. A kernel for any size had 55 KB of code of which a launch ran 22 KB
// once: bringing that code in cost more than its instructions (H200: 9 us a launch, of which the state's
// bytes are 0.93).
//
// A block has a value head, a thread one chunk of two columns. The states of the convolution and of the head
// are asked for before the kernel before has ended; everything between these loads and the state's products
// hides behind their way. In a step on an H200 it takes 4.4 us from the end of the kernel before to its own.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include "delta_net.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kDim = kDeltaDim, kTaps = kDeltaTaps, kChunks = kDim / num::kChunk;
constexpr int kThreads = 2 * kDim;  ///< one for each q and k channel
constexpr int kBetaThread = kThreads - 33, kDecayThread = kThreads - 1, kTicketThread = kDim;

/// num::sum_of_squares of 128 elements that lie as padded_index() says with pitch kSpread, for lane % 8 < 4
/// of x and else of y. Lane 0
/// .. 3 then hold the chunks of x, 4 .. 7 those of y.
__device__ __forceinline__ float chunk_squares(const float* x, const float* y) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float4* from = reinterpret_cast<const float4*>((lane & 4 ? y : x) + lane % 4 * kSpread);
    float c = 0.0f;
#pragma unroll
    for (int i = 0; i < num::kChunk / 4; ++i) c = add_squares(from[i], c);
    return c;
}
__device__ __forceinline__ float sum_of_lanes(float c, int first) {
    float segment = 0.0f;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) segment = segment + __shfl_sync(kWholeWarp, c, first + j);
    return 0.0f + segment;
}

/// The inputs of one channel's convolution, oldest first; the current token's is u[kTaps - 1].
struct Window {
    float4 weights;
    float u[kTaps];

    __device__ __forceinline__ void load(const DeltaNet& net, const float* state, int channel, int channels) {
        weights = __ldg(reinterpret_cast<const float4*>(net.conv) + channel);
#pragma unroll
        for (int j = 0; j + 1 < kTaps; ++j) u[j] = state[j * channels + channel];
    }
    __device__ __forceinline__ float value() const {
        float c = weights.x * u[0];
        c = num::fma(weights.y, u[1], c);
        c = num::fma(weights.z, u[2], c);
        return num::silu(num::fma(weights.w, u[3], c));
    }
    __device__ __forceinline__ void move_on(float* state, int channels) const {
#pragma unroll
        for (int j = 0; j + 1 < kTaps; ++j) state[j * channels] = u[j + 1];
    }
};

/// Grid: the value heads of a key head, key heads, rows. The value heads of a key head all convolve its q and
/// k, from the same windows: the last of them to have read these moves them on. `tickets`: one for each key
/// head of each row.
__global__ void __launch_bounds__(kThreads, 1)
    delta_decode(const __grid_constant__ DeltaNet net, const Row* rows, const float* qkv, const float* z,
                 const float* b, const float* a, float* out, std::int64_t stride, unsigned* tickets,
                 float inverse_root) {
    __shared__ __align__(16) float raw[2][kChunks * kSpread];  // q, k before their norm
    __shared__ __align__(16) float query[kChunks * kSpread];
    __shared__ __align__(16) float key[kChunks * kSpread];
    __shared__ __align__(16) float value[kDim];
    __shared__ __align__(16) float result[kChunks * kSpread];
    __shared__ float beta, decay;
    __shared__ bool last;

    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32,
              channels = channels_of(net);
    const int heads = static_cast<int>(gridDim.x), key_head = static_cast<int>(blockIdx.y),
              row = static_cast<int>(blockIdx.z);
    const int head = key_head * heads + static_cast<int>(blockIdx.x), at = row * net.value_heads + head;
    trigger_dependents();
    const int slot = rows[row].slot;
    const bool is_value = thread < kDim;

    // Thread c has channel c of [q | k] of the key head; the first half also has the value channels.
    const int own = (thread < kDim ? key_head : net.key_heads + key_head - 1) * kDim + thread;
    const int own_value = 2 * net.key_heads * kDim + head * kDim + thread;
    float* conv_state = net.conv_state + std::int64_t{slot} * (kTaps - 1) * channels;
    Window window, value_window;
    window.load(net, conv_state, own, channels);
    if (is_value) value_window.load(net, conv_state, own_value, channels);
    float gate = 0.0f, weight = 0.0f, x0 = 0.0f, x1 = 0.0f, x2 = 0.0f;
    if (is_value) weight = net.norm[thread];
    if (thread == kDecayThread) x1 = net.neg_exp_a[head], x2 = net.dt_bias[head];

    const int chunk = lane / 8, column = warp * 16 + lane % 8 * 2;
    float* state = net.state +
                   ((std::int64_t{slot} * net.value_heads + head) * kDim + chunk * num::kChunk) * kDim +
                   column;
    StateChunk first, second;
#pragma unroll
    for (int i = 0; i < num::kChunk; ++i) {
        const float2 v = *reinterpret_cast<const float2*>(state + i * kDim);
        first.s[i] = v.x, second.s[i] = v.y;
    }

    wait_for_prerequisites();
    qkv += std::int64_t{row} * channels;
    window.u[kTaps - 1] = qkv[own];
    if (is_value) value_window.u[kTaps - 1] = qkv[own_value], gate = z[std::int64_t{at} * kDim + thread];
    if (thread == kBetaThread) x0 = b[at];
    if (thread == kDecayThread) x0 = a[at];
    if (thread == kBetaThread) beta = num::sigmoid(x0);
    if (thread == kDecayThread) decay = num::delta_decay(x1, x0, x2);
    const float x = window.value();
    raw[thread / kDim][padded_index(thread % kDim, kSpread)] = x;
    if (is_value) {
        value[thread] = value_window.value();
        value_window.move_on(conv_state + own_value, channels);
        gate = num::silu(gate);  // the second factor of num::gated_norm
    }
    if (heads == 1) window.move_on(conv_state + own, channels);
    __syncthreads();
    unsigned* ticket = tickets + row * net.key_heads + key_head;
    unsigned before = 0;
    if (thread == kTicketThread && heads > 1) {
        __threadfence();
        before = atomicAdd(ticket, 1u);
    }
    {
        const float scale =
            num::l2_scale(sum_of_lanes(chunk_squares(raw[0], raw[1]), is_value ? 0 : kChunks));
        (is_value ? query : key)[padded_index(thread % kDim, kSpread)] =
            num::delta_query(x, scale, is_value ? inverse_root : 1.0f);
    }
    __syncthreads();

    const float *own_key = key + chunk * kSpread, *own_query = query + chunk * kSpread;
    const float2 v = *reinterpret_cast<const float2*>(value + column);
    const float decayed = decay, written = beta;
    const float read0 = first.decay_and_read(own_key, decayed),
                read1 = second.decay_and_read(own_key, decayed);
    const float d0 = written * (v.x - add_chunks<kChunks>(read0)),
                d1 = written * (v.y - add_chunks<kChunks>(read1));
    const float out0 = first.write_and_read(own_key, own_query, d0),
                out1 = second.write_and_read(own_key, own_query, d1);
#pragma unroll
    for (int i = 0; i < num::kChunk; ++i)
        *reinterpret_cast<float2*>(state + i * kDim) = {first.s[i], second.s[i]};
    const float2 o = {add_chunks<kChunks>(out0), add_chunks<kChunks>(out1)};
    if (chunk == 0) *reinterpret_cast<float2*>(result + padded_index(column, kSpread)) = o;
    if (thread == kTicketThread) last = heads > 1 && before + 1 == static_cast<unsigned>(heads);
    __syncthreads();

    if (is_value) {
        const float scale = num::rms_scale(sum_of_lanes(chunk_squares(result, result), 0), kDim, net.eps);
        out[row * stride + head * kDim + thread] =
            num::rms_apply(result[padded_index(thread, kSpread)], scale, weight) * gate;
    }
    if (!last) return;
    __threadfence();
    if (thread == 0) *ticket = 0;
    window.move_on(conv_state + own, channels);
}

}  // namespace

void delta_net_decode(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z, const float* b,
                      const float* a, float* out, std::int64_t stride, unsigned* tickets, bool early,
                      cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(net.value_heads / net.key_heads),
                    static_cast<unsigned>(net.key_heads), static_cast<unsigned>(rows.count()));
    launch_pdl_if(early, "delta_decode", delta_decode, grid, dim3(kThreads), 0, stream, net, rows.device, qkv,
                  z, b, a, out, stride, tickets, num::inverse_root_of(kDim));
}

}  // namespace ftmpi::cuda
