// Gated DeltaNet: the launcher, and the kernels for several rows of a slot and for any size.
//
// Rows of a slot are taken in runs of neighbours. A run goes through three kernels: convolution, norms and
// gates of all its rows at once; the delta rule row by row with the state in registers, a block for 16 to 128
// columns of a head; the gated norm. At the real size the rule takes two chains of 32 fma a row, side by
// side, and two sums over lanes, about 0.12 us; the others move 3 x 33 kB a row, 0.02 us.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
// Gated DeltaNet: Yang, Kautz, Hatamizadeh, arXiv 2412.06464; the rule is its equation for one token: decay,
// read, write, read.
#include <cuda_pipeline.h>

#include <algorithm>

#include "delta_net.cuh"

namespace ftmpi::cuda {
namespace {

/// Neighbouring rows of one slot; given to kernels by value.
struct Run {
    std::int32_t first, rows;
};
struct Runs {
    static constexpr int kMost = 32;
    Run run[kMost];
};

constexpr int kConvThreads = 128, kConvRows = 16;

/// Convolution, SiLU and, for q and k, l2 normalisation of kConvRows rows of one head, to conv (T, W); the
/// last block in y does the gates (T, U). Grid: row tiles, q heads + k heads + v heads + 1, runs.
__global__ void __launch_bounds__(kConvThreads)
    convolve_rows(DeltaNet net, Runs runs, const Row* rows, const float* qkv, const float* b, const float* a,
                  float* conv, float2* gates, float inverse_root) {
    __shared__ __align__(16) float tile[kConvRows][kMostDeltaDim];
    const Run run = runs.run[blockIdx.z];
    const int start = static_cast<int>(blockIdx.x) * kConvRows, thread = static_cast<int>(threadIdx.x);
    if (start >= run.rows) return;
    const int n = run.rows - start < kConvRows ? run.rows - start : kConvRows;
    const std::int64_t first = run.first + start;
    const int key_heads = net.key_heads, unit = static_cast<int>(blockIdx.y);
    if (unit == 2 * key_heads + net.value_heads) {
        for (int i = thread; i < n * net.value_heads; i += kConvThreads) {
            const int h = i % net.value_heads;
            const std::int64_t at = first * net.value_heads + i;
            gates[at] = {num::sigmoid(b[at]), num::delta_decay(net.neg_exp_a[h], a[at], net.dt_bias[h])};
        }
        return;
    }
    const bool is_value = unit >= 2 * key_heads;
    const int dim = is_value ? net.value_dim : net.key_dim, channels = channels_of(net), taps = net.taps;
    const int first_channel =
        is_value ? 2 * key_heads * net.key_dim + (unit - 2 * key_heads) * net.value_dim : unit * net.key_dim;
    const float* state = net.conv_state + std::int64_t{rows[run.first].slot} * (taps - 1) * channels;
    for (int c = thread; c < dim; c += kConvThreads) {
        const int channel = first_channel + c;
        const auto input = [&](int row) {  // of the run; rows before it lie in the state
            return row < 0 ? state[std::int64_t{taps - 1 + row} * channels + channel]
                           : qkv[(std::int64_t{run.first} + row) * channels + channel];
        };
        float w[kMostTaps], u[kMostTaps];
#pragma unroll
        for (int j = 0; j < kMostTaps; ++j) {
            if (j < taps) w[j] = net.conv[std::int64_t{channel} * taps + j];
            if (j < taps - 1) u[j] = input(start - (taps - 1) + j);
        }
        float* to = is_value ? conv + first * channels + channel : &tile[0][c];
        const std::int64_t pitch = is_value ? channels : kMostDeltaDim;
        constexpr int kAhead = 4;  // inputs asked for together
#pragma unroll 1
        for (int r0 = 0; r0 < n; r0 += kAhead) {
            float x[kAhead];
#pragma unroll
            for (int r = 0; r < kAhead; ++r) x[r] = r0 + r < n ? input(start + r0 + r) : 0.0f;
#pragma unroll
            for (int r = 0; r < kAhead; ++r) {
#pragma unroll
                for (int j = 0; j < kMostTaps; ++j)
                    if (j == taps - 1) u[j] = x[r];
                if (r0 + r < n) to[(r0 + r) * pitch] = convolved(w, u, taps);
#pragma unroll
                for (int j = 0; j + 1 < kMostTaps; ++j) u[j] = u[j + 1];
            }
        }
    }
    if (is_value) return;
    __syncthreads();
    const float root = unit < key_heads ? inverse_root : 1.0f;
    for (int r = thread / 32; r < n; r += kConvThreads / 32) {
        const float scale = num::l2_scale(warp_squares(tile[r], dim, num::kChunk));
        for (int c = thread % 32; c < dim; c += 32)
            conv[(first + r) * channels + first_channel + c] = num::delta_query(tile[r][c], scale, root);
    }
}

constexpr int kRuleThreads = 128;

/// The delta rule of a run for some columns of one value head; out gets the result before its norm. Also
/// moves the convolution state on, which convolve_rows has read. Grid: value heads * column groups, runs.
template <int kChunks>
__global__ void __launch_bounds__(kRuleThreads)
    delta_rows(DeltaNet net, Runs runs, const Row* rows, const float* qkv, const float* conv,
               const float2* gates, float* out, std::int64_t stride, int column_groups) {
    constexpr int kColumns = 32 / kChunks, kBlockColumns = kRuleThreads / kChunks;
    constexpr int kTokens = kChunks == 8 ? 8 : 16;  // of a buffer
    struct Buffer {
        float key[kTokens][kChunks * kSpread];
        float query[kTokens][kChunks * kSpread];
        float value[kTokens][kBlockColumns];
        float2 gate[kTokens];
    };
    __shared__ __align__(16) Buffer buffers[2];
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int key_dim = net.key_dim, value_dim = net.value_dim, channels = channels_of(net);
    const int head = static_cast<int>(blockIdx.x) / column_groups,
              group = static_cast<int>(blockIdx.x) % column_groups;
    const int key_head = head / (net.value_heads / net.key_heads);
    const Run run = runs.run[blockIdx.y];
    const std::int64_t slot = rows[run.first].slot;

    const int first_key = lane / kColumns * num::kChunk, first_column = group * kBlockColumns;
    const int own_column = warp * kColumns + lane % kColumns, column = first_column + own_column;
    const int own_keys = column < value_dim ? key_dim - first_key : 0;
    float* state = net.state + ((slot * net.value_heads + head) * key_dim + first_key) * value_dim + column;
    StateChunk chunk;
    chunk.load(state, value_dim, own_keys);

    // Keys beyond key_dim and columns beyond value_dim are zero: the copies below leave them alone.
    for (int i = thread; i < static_cast<int>(sizeof(buffers) / 4); i += kRuleThreads)
        reinterpret_cast<float*>(buffers)[i] = 0.0f;
    __syncthreads();
    const float* from = conv + std::int64_t{run.first} * channels;
    const int key_words = key_dim / 4;
    const int columns = value_dim - first_column < kBlockColumns ? value_dim - first_column : kBlockColumns;
    const int value_words = columns / 4;
    const auto fetch = [&](int start, Buffer& to) {
        const int n = run.rows - start < kTokens ? run.rows - start : kTokens;
        for (int i = thread; i < n * key_words; i += kRuleThreads) {
            const int t = i / key_words, k = i % key_words * 4;
            const float* p = from + std::int64_t{start + t} * channels + key_head * key_dim + k;
            __pipeline_memcpy_async(&to.query[t][padded_index(k, kSpread)], p, 16);
            __pipeline_memcpy_async(&to.key[t][padded_index(k, kSpread)], p + net.key_heads * key_dim, 16);
        }
        for (int i = thread; i < n * value_words; i += kRuleThreads) {
            const int t = i / value_words, j = i % value_words * 4;
            const float* p =
                from + std::int64_t{start + t} * channels + 2 * net.key_heads * key_dim + head * value_dim;
            __pipeline_memcpy_async(&to.value[t][j], p + first_column + j, 16);
        }
        if (thread < n)
            __pipeline_memcpy_async(
                &to.gate[thread], gates + (std::int64_t{run.first} + start + thread) * net.value_heads + head,
                8);
    };

    fetch(0, buffers[0]);
    __pipeline_commit();
    for (int start = 0, now = 0; start < run.rows; start += kTokens, now ^= 1) {
        if (start + kTokens < run.rows) fetch(start + kTokens, buffers[now ^ 1]);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        const Buffer& in = buffers[now];
        const int n = run.rows - start < kTokens ? run.rows - start : kTokens,
                  own = lane / kColumns * kSpread;
        float c = chunk.decay_and_read(&in.key[0][own], in.gate[0].y);
        for (int t = 0; t < n; ++t) {
            const float d = in.gate[t].x * (in.value[t][own_column] - add_chunks<kChunks>(c));
            // After the last token a decay of 1 leaves the state as it is, and what is read is not used.
            const int next = t + 1 < n ? t + 1 : t;
            const float decay = t + 1 < n ? in.gate[next].y : 1.0f;
            const float o = chunk.both(&in.key[t][own], &in.query[t][own], d, &in.key[next][own], decay, c);
            const float sum = add_chunks<kChunks>(o);
            if (lane < kColumns && column < value_dim)
                out[(std::int64_t{run.first} + start + t) * stride + head * value_dim + column] = sum;
        }
        __syncthreads();
    }
    chunk.store(state, value_dim, own_keys);

    const int before = net.taps - 1;
    float* conv_state = net.conv_state + slot * before * channels;
    for (int c = static_cast<int>(blockIdx.x) * kRuleThreads + thread; c < channels;
         c += static_cast<int>(gridDim.x) * kRuleThreads)
        for (int s = 0; s < before;
             ++s) {  // rising: an entry is read, at a higher index, before it is overwritten
            const int row = run.rows - before + s;
            conv_state[std::int64_t{s} * channels + c] =
                row < 0 ? conv_state[std::int64_t{before + row} * channels + c]
                        : qkv[(std::int64_t{run.first} + row) * channels + c];
        }
}

constexpr int kNormWarps = 8;

/// The gated norm in place, a warp for each head of each row.
__global__ void __launch_bounds__(kNormWarps * 32)
    gated_norms(DeltaNet net, std::int64_t count, const float* z, float* out, std::int64_t stride) {
    __shared__ __align__(16) float vectors[kNormWarps][kMostDeltaDim];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
              dim = net.value_dim;
    const std::int64_t i = std::int64_t{blockIdx.x} * kNormWarps + warp;
    if (i >= count) return;
    float* x = vectors[warp];
    float* to = out + i / net.value_heads * stride + i % net.value_heads * dim;
    for (int c = lane; c < dim; c += 32) x[c] = to[c];
    __syncwarp();
    const float scale = num::rms_scale(warp_squares(x, dim, num::kChunk), dim, net.eps);
    for (int c = lane; c < dim; c += 32) to[c] = num::gated_norm(x[c], scale, net.norm[c], z[i * dim + c]);
}

struct Memory {
    float* conv;
    float2* gates;
    std::size_t bytes;
};

Memory memory_of(void* scratch, std::int64_t rows, std::int64_t channels, int value_heads) {
    Parts parts(scratch);
    Memory m{};
    m.conv = parts.take<float>(rows * channels);
    m.gates = parts.take<float2>(rows * value_heads);
    m.bytes = parts.bytes();
    return m;
}

void check_geometry(int taps, int key_heads, int key_dim, int value_dim) {
    if (taps < 2 || taps > kMostTaps)
        refuse("a convolution of " + std::to_string(taps) + " taps", "2 to " + std::to_string(kMostTaps));
    for (const int dim : {key_dim, value_dim})
        if (dim < 4 || dim % 4 || dim > kMostDeltaDim)
            refuse("delta net heads of " + std::to_string(dim) + " elements",
                   "multiples of 4 up to " + std::to_string(kMostDeltaDim));
    if (key_heads > kTickets)
        refuse(std::to_string(key_heads) + " key heads", "up to " + std::to_string(kTickets) + " a rank");
}

}  // namespace

bool one_row_a_slot(const Rows& rows) {
    for (std::size_t r = 1; r < rows.host.size(); ++r)
        if (rows.host[r].slot == rows.host[r - 1].slot) return false;
    std::vector<std::int32_t> slots;
    for (const Row& row : rows.host) slots.push_back(row.slot);
    std::sort(slots.begin(), slots.end());
    return std::adjacent_find(slots.begin(), slots.end()) == slots.end();
}

void check_delta_net_limits(const StepLimits& l) {
    if (l.key_heads) check_geometry(l.taps, l.key_heads, l.key_dim, l.value_dim);
}

std::size_t delta_net_scratch(std::int64_t rows, int key_heads, int value_heads, int key_dim, int value_dim) {
    const std::int64_t channels =
        std::int64_t{2} * key_heads * key_dim + std::int64_t{value_heads} * value_dim;
    return memory_of(nullptr, rows, channels, value_heads).bytes;
}

void delta_net(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z, const float* b,
               const float* a, float* out, std::int64_t stride, Scratch scratch, cudaStream_t stream,
               bool early) {
    if (rows.count() == 0 || net.key_heads == 0) return;
    check_geometry(net.taps, net.key_heads, net.key_dim, net.value_dim);
    if (net.value_heads % net.key_heads)
        throw Error(Exit::failure, std::to_string(net.value_heads) + " value heads for " +
                                       std::to_string(net.key_heads) + " key heads");
    const Memory memory = memory_of(scratch.data, rows.count(), net.channels(), net.value_heads);
    check_scratch("delta_net", memory.bytes, scratch);
    const Kernel kernel = choose({.op = Operator::delta_net,
                                  .rows = rows.count(),
                                  .one_a_slot = one_row_a_slot(rows),
                                  .net = &net})
                              .kernel;
    if (kernel == Kernel::decode) {
        const std::int64_t batch = kTickets / net.key_heads, values = net.value_heads;
        for (std::int64_t r = 0; r < rows.count(); r += batch) {
            const std::int64_t n = std::min(batch, rows.count() - r);
            const Rows part{rows.host.subspan(static_cast<std::size_t>(r), static_cast<std::size_t>(n)),
                            rows.device + r};
            delta_net_decode(net, part, qkv + r * net.channels(), z + r * values * net.value_dim,
                             b + r * values, a + r * values, out + r * stride, stride, scratch.tickets, early,
                             stream);
        }
        return;
    }

    const auto rule = net.key_dim <= 32 ? delta_rows<1> : net.key_dim <= 128 ? delta_rows<4> : delta_rows<8>;
    const int chunks = net.key_dim <= 32 ? 1 : net.key_dim <= 128 ? 4 : 8, columns = kRuleThreads / chunks;
    const int column_groups = (net.value_dim + columns - 1) / columns;
    const float inverse_root = num::inverse_root_of(net.key_dim);
    const auto count = static_cast<std::int32_t>(rows.count());
    // Runs of different slots together, runs of one slot after each other: of one row a slot the runs depend
    // on their number alone, as a captured step must.
    for (std::int32_t r = 0; r < count;) {
        Runs runs{};
        unsigned n = 0;
        std::int32_t most = 0;
        std::int32_t slots[Runs::kMost];
        while (r < count && n < Runs::kMost) {
            const std::int32_t slot = rows.host[static_cast<std::size_t>(r)].slot;
            if (std::find(slots, slots + n, slot) != slots + n) break;
            std::int32_t end = r + 1;
            while (end < count && rows.host[static_cast<std::size_t>(end)].slot == slot) ++end;
            slots[n] = slot;
            runs.run[n++] = {r, end - r};
            most = std::max(most, end - r);
            r = end;
        }
        const auto tiles = static_cast<unsigned>((most + kConvRows - 1) / kConvRows);
        launch("convolve_rows", convolve_rows,
               dim3(tiles, static_cast<unsigned>(2 * net.key_heads + net.value_heads + 1), n),
               dim3(kConvThreads), 0, stream, net, runs, rows.device, qkv, b, a, memory.conv, memory.gates,
               inverse_root);
        launch("delta_rows", rule, dim3(static_cast<unsigned>(net.value_heads * column_groups), n),
               dim3(kRuleThreads), 0, stream, net, runs, rows.device, qkv, memory.conv, memory.gates, out,
               stride, column_groups);
    }
    const std::int64_t vectors = rows.count() * net.value_heads;
    launch("gated_norms", gated_norms, dim3(static_cast<unsigned>((vectors + kNormWarps - 1) / kNormWarps)),
           dim3(kNormWarps * 32), 0, stream, net, vectors, z, out, stride);
}

}  // namespace ftmpi::cuda
