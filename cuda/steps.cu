// Lookup, norms, routing and the choice of a token.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <algorithm>

#include "device_code.hpp"
#include "experts/route.cuh"
#include "kernels.hpp"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 256;
using PlainFormats = FormatList<Format::bf16, Format::f16, Format::f32>;

/// One block a row, a thread a quad of codes; the table lies in the matrix layout.
template <Format F> __global__ void embed_rows(MatrixView table, const Row* rows, float* x) {
    const std::uint8_t* codes = table.codes + rows[blockIdx.x].token * table.code_pitch;
    constexpr int kPieces = words128_of(F), kQuads = num::kChunk / 4 / kPieces;  // of a piece
    x += std::int64_t{blockIdx.x} * table.cols;
    for (int k = 4 * static_cast<int>(threadIdx.x); k < table.cols; k += 4 * static_cast<int>(blockDim.x)) {
        const int chunk = k / num::kChunk, set = chunk / 32 * 32,
                  n = table.chunks - set < 32 ? table.chunks - set : 32;
        const int quad = k % num::kChunk / 4, at = set * kPieces + quad / kQuads * n + (chunk - set);
        float w[4];
        FormatTraits<F>::decode(*reinterpret_cast<const uint4*>(codes + at * kWord128), quad % kQuads, w);
        for (int i = 0; i < 4 && k + i < table.cols; ++i) x[k + i] = w[i];
    }
}

/// The rows of resolve_tokens() as an argument of a kernel: what the host prepares for a step is read while
/// the step before still runs.
constexpr int kRowsOfLaunch = 128;
struct RowList {
    Row row[kRowsOfLaunch];
};
static_assert(sizeof(RowList) <= 2048);  // of the 4 KiB that arguments may take

__global__ void __launch_bounds__(kRowsOfLaunch)
    resolve_row_list(const __grid_constant__ RowList list, int count, const std::int32_t* tokens,
                     std::int64_t ids, Row* to) {
    const int t = static_cast<int>(threadIdx.x);
    if (t >= count) return;
    const Row row = list.row[t];
    const std::int32_t token = tokens[row.token];
    to[t] = {token >= 0 && token < ids ? token : 0, row.slot, row.position};
}

/// RMSNorm of `from`, or of sum = from + plus when kAdd. One block a row; everything the row needs is asked
/// for at once, and a thread keeps its 4 * kPer elements until the scale is known. Shared memory: the row in
/// chunks of 36 floats, so that threads with a chunk each do not meet in a bank; then the segments' sums.
template <bool kAdd, int kPer>
__global__ void __launch_bounds__(1024) norm_rows(const float* from, const float* plus, float* sum,
                                                  const float* weight, float eps, int width, float* out) {
    constexpr int kQuads = num::kChunk / 4;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x),
              lane = thread % 32;
    const int quads = width / 4, chunks = (width + num::kChunk - 1) / num::kChunk,
              segments = (chunks + 15) / 16;
    auto* tile = reinterpret_cast<float4*>(shared_bytes());
    auto* sums = reinterpret_cast<float*>(tile + chunks * (kQuads + 1));
    const std::int64_t first = std::int64_t{blockIdx.x} * quads;
    float4 v[kPer], w[kPer];
#pragma unroll
    for (int p = 0; p < kPer; ++p) {
        const int i = thread + p * threads;
        v[p] = w[p] = {0, 0, 0, 0};  // of squares, zeros add nothing
        if (i >= quads) continue;
        w[p] = reinterpret_cast<const float4*>(weight)[i];
        v[p] = reinterpret_cast<const float4*>(from)[first + i];
        if constexpr (kAdd) {
            const float4 b = reinterpret_cast<const float4*>(plus)[first + i];
            v[p].x = v[p].x + b.x, v[p].y = v[p].y + b.y, v[p].z = v[p].z + b.z, v[p].w = v[p].w + b.w;
        }
    }
#pragma unroll
    for (int p = 0; p < kPer; ++p) {
        const int i = thread + p * threads;
        if (i < chunks * kQuads) tile[i / kQuads * (kQuads + 1) + i % kQuads] = v[p];
        if (kAdd && i < quads) reinterpret_cast<float4*>(sum)[first + i] = v[p];
    }
    __syncthreads();
    if (thread - lane < chunks) {
        float chunk = 0.0f, segment = 0.0f;
        if (thread < chunks) {
            float4 q[kQuads];
#pragma unroll
            for (int i = 0; i < kQuads; ++i) q[i] = tile[thread * (kQuads + 1) + i];
#pragma unroll
            for (int i = 0; i < kQuads; ++i) chunk = add_squares(q[i], chunk);
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) segment = segment + __shfl_sync(kWholeWarp, chunk, (lane & 16) + i);
        if (lane % 16 == 0 && thread / 16 < segments) sums[thread / 16] = segment;
    }
    __syncthreads();
    float total = 0.0f;
    for (int s = 0; s < segments; ++s) total = total + sums[s];
    const float scale = num::rms_scale(total, width, eps);
#pragma unroll
    for (int p = 0; p < kPer; ++p) {
        const int i = thread + p * threads;
        if (i < quads) reinterpret_cast<float4*>(out)[first + i] = rms_apply(v[p], scale, w[p]);
    }
}

/// Any width. One block a row. Shared memory: the row's chunk values up to a whole segment, zeros behind the
/// last, so that no wide load of them can go beyond what the block has (ptxas makes one of scalar loads that
/// may turn out not to be wanted); then the segments' sums.
__global__ void rms_norm_rows(const float* x, const float* weight, float eps, std::int64_t width, float* y) {
    auto* values = reinterpret_cast<float*>(shared_bytes());
    const int chunks = static_cast<int>((width + num::kChunk - 1) / num::kChunk),
              segments = (chunks + 15) / 16;
    float* sums = values + 16 * segments;
    x += blockIdx.x * width;
    y += blockIdx.x * width;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int c = thread; c < 16 * segments; c += threads) {
        float v = 0.0f;
        for (std::int64_t i = c * num::kChunk; i < (c + 1) * num::kChunk && i < width; ++i)
            v = num::fma(x[i], x[i], v);
        values[c] = v;
    }
    __syncthreads();
    for (int s = thread; s < segments; s += threads) {
        float v = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; ++i)
            v = v + values[16 * s + i];  // a sum of squares is no -0: zeros add nothing
        sums[s] = v;
    }
    __syncthreads();
    float total = 0.0f;
    for (int s = 0; s < segments; ++s) total = total + sums[s];
    const float scale = num::rms_scale(total, width, eps);
    for (std::int64_t i = thread; i < width; i += threads) y[i] = num::rms_apply(x[i], scale, weight[i]);
}

/// `wide`: in words of 16 bytes.
__global__ void add_to(const float* h, const float* y, float* sum, std::int64_t n, bool wide) {
    const std::int64_t i = 4 * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
    if (wide && i + 4 <= n) {
        float4 a = *reinterpret_cast<const float4*>(h + i);
        const float4 b = *reinterpret_cast<const float4*>(y + i);
        a.x = a.x + b.x, a.y = a.y + b.y, a.z = a.z + b.z, a.w = a.w + b.w;
        *reinterpret_cast<float4*>(sum + i) = a;
    } else {
        for (std::int64_t k = i; k < i + 4 && k < n; ++k) sum[k] = h[k] + y[k];
    }
}

/// One warp a row, as route_by_warp() says.
template <int kEach>
__global__ void __launch_bounds__(32)
    route_few(const float* logits, int experts, int top_k, std::int32_t* ids, float* weights) {
    __shared__ RouteSpace space;
    const std::int64_t row = blockIdx.x;
    route_by_warp<kEach>(logits + row * experts, experts, top_k, ids + row * top_k, weights + row * top_k,
                         space);
}

/// Any number of experts and choices, a thread a row in the plain order of comparisons: more than models
/// have.
__global__ void route_rows(const float* logits, std::int64_t rows, int experts, int top_k, std::int32_t* ids,
                           float* weights) {
    const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (row < rows)
        num::route(logits + row * experts, experts, top_k, ids + row * top_k, weights + row * top_k);
}

constexpr int kArgmaxBlocks = 64;

/// A logit and its id as one number: the larger logit is larger, of equal ones the lower id. 0 is no logit.
__device__ unsigned long long key_of(float logit, std::int64_t id) {
    return (static_cast<unsigned long long>(rising_of(logit)) << 32) |
           (0xffffffffu - static_cast<std::uint32_t>(id));
}

struct Found {
    unsigned long long key;
    int finite;
};

/// The best of the block's keys; complete in thread 0.
__device__ Found best_of_block(Found f, Found* of_warp) {
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(kWholeWarp, f.key, step);
        f.key = other > f.key ? other : f.key;
        f.finite &= __shfl_xor_sync(kWholeWarp, f.finite, step);
    }
    const int thread = static_cast<int>(threadIdx.x);
    if (thread % 32 == 0) of_warp[thread / 32] = f;
    __syncthreads();
    if (thread == 0)
        for (int w = 1; w < kThreads / 32; ++w) {
            f.key = of_warp[w].key > f.key ? of_warp[w].key : f.key;
            f.finite &= of_warp[w].finite;
        }
    return f;
}

/// grid.y counts rows; the last block of a row to finish reads what the others found.
__global__ void argmax_rows(const float* logits, std::int64_t stride, std::int64_t ids,
                            const std::uint8_t* masked, std::int32_t* token, std::int32_t* finite,
                            unsigned* tickets, Found* found) {
    auto* of_warp = reinterpret_cast<Found*>(shared_bytes());
    auto* is_last = reinterpret_cast<int*>(of_warp + kThreads / 32);
    const unsigned row = blockIdx.y;
    logits += row * stride;
    found += row * kArgmaxBlocks;
    Found f{0, 1};
    trigger_dependents();
    wait_for_prerequisites();
    for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < ids;
         i += std::int64_t{kArgmaxBlocks} * kThreads) {
        const float x = logits[i];
        if (!num::is_finite(x)) f.finite = 0;
        if ((masked && masked[i]) || !(x == x)) continue;
        const unsigned long long key = key_of(x, i);
        f.key = key > f.key ? key : f.key;
    }
    f = best_of_block(f, of_warp);
    if (threadIdx.x == 0) {
        found[blockIdx.x] = f;
        __threadfence();
        *is_last = atomicAdd(tickets + row, 1u) == kArgmaxBlocks - 1;
    }
    __syncthreads();
    if (!*is_last) return;
    __threadfence();
    f = {0, 1};
    if (threadIdx.x < kArgmaxBlocks) {
        f.key = *const_cast<const volatile unsigned long long*>(&found[threadIdx.x].key);
        f.finite = *const_cast<const volatile int*>(&found[threadIdx.x].finite);
    }
    f = best_of_block(f, of_warp);
    if (threadIdx.x == 0) {
        token[row] = f.key ? static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(f.key)) : -1;
        finite[row] = f.finite;
        tickets[row] = 0;
    }
}

void norm_fixed(const Norm& n, std::int64_t rows, cudaStream_t stream) {
    const std::int64_t chunks = (n.width + num::kChunk - 1) / num::kChunk, quads = chunks * (num::kChunk / 4);
    const auto bytes =
        static_cast<std::size_t>(chunks * (num::kChunk + 4) + (chunks + 15) / 16) * sizeof(float);
    const auto threads = static_cast<unsigned>(std::min<std::int64_t>((quads + 31) / 32 * 32, 1024));
    const auto kernel = n.plus ? (quads <= 1024 ? norm_rows<true, 1> : norm_rows<true, 2>)
                               : (quads <= 1024 ? norm_rows<false, 1> : norm_rows<false, 2>);
    launch("norm", kernel, dim3(static_cast<unsigned>(rows)), dim3(threads), bytes, stream, n.from, n.plus,
           n.sum, n.weight, n.eps, static_cast<int>(n.width), n.out);
}

}  // namespace

void embed(const CudaMatrix& table, const Rows& rows, float* x, cudaStream_t stream) {
    with_format_of(PlainFormats{}, table.format, [&]<Format F>() {
        launch("embed", embed_rows<F>, dim3(static_cast<unsigned>(rows.count())), dim3(kThreads), 0, stream,
               table.view(), rows.device, x);
    });
}

void resolve_tokens(Row* to, std::span<const Row> rows, const std::int32_t* tokens, std::int64_t ids,
                    cudaStream_t stream) {
    for (std::size_t first = 0; first < rows.size(); first += kRowsOfLaunch) {
        const auto part = rows.subspan(first, std::min<std::size_t>(kRowsOfLaunch, rows.size() - first));
        RowList list{};
        std::copy(part.begin(), part.end(), list.row);
        launch("resolve_tokens", resolve_row_list, dim3(1), dim3(kRowsOfLaunch), 0, stream, list,
               static_cast<int>(part.size()), tokens, ids, to + first);
    }
}

void norm(const Norm& n, std::int64_t rows, cudaStream_t stream) {
    if (rows == 0) return;
    const Call call{.op = Operator::norm,
                    .rows = rows,
                    .aligned = aligned({n.from, n.plus, n.sum, n.weight, n.out}),
                    .width = n.width};
    if (choose(call).kernel == Kernel::decode) return norm_fixed(n, rows, stream);
    if (n.plus) add(n.from, n.plus, n.sum, rows * n.width, stream);
    const std::int64_t segments = (n.width + 16 * num::kChunk - 1) / (16 * num::kChunk);
    const auto bytes = static_cast<std::size_t>(17 * segments) * sizeof(float);
    launch("rms_norm", rms_norm_rows, dim3(static_cast<unsigned>(rows)), dim3(kThreads), bytes, stream,
           n.plus ? n.sum : n.from, n.weight, n.eps, n.width, n.out);
}

bool route_if_apart(const float* logits, std::int64_t rows, int experts, const Routes& routes, bool can_fuse,
                    cudaStream_t stream) {
    const int k = routes.top_k;
    if (k < 1 || k > experts)
        throw Error(Exit::failure,
                    "cannot choose " + std::to_string(k) + " of " + std::to_string(experts) + " experts");
    if (rows == 0) return false;
    const Kernel kernel =
        choose({.op = Operator::route, .rows = rows, .experts = experts, .top_k = k, .routes = can_fuse})
            .kernel;
    if (kernel == Kernel::fused) return true;
    if (kernel == Kernel::decode)
        launch("route", experts <= kMostRouted ? route_few<kRouteEach> : route_few<2 * kRouteEach>,
               dim3(static_cast<unsigned>(rows)), dim3(32), 0, stream, logits, experts, k, routes.experts,
               routes.weights);
    else
        launch("route", route_rows, dim3(static_cast<unsigned>((rows + 31) / 32)), dim3(32), 0, stream,
               logits, rows, experts, k, routes.experts, routes.weights);
    return false;
}

void route(const float* logits, std::int64_t rows, int experts, const Routes& routes, cudaStream_t stream) {
    route_if_apart(logits, rows, experts, routes, false, stream);
}

void add(const float* h, const float* y, float* sum, std::int64_t n, cudaStream_t stream) {
    constexpr std::int64_t kBlock = 4 * kThreads;
    launch("add", add_to, dim3(static_cast<unsigned>((n + kBlock - 1) / kBlock)), dim3(kThreads), 0, stream,
           h, y, sum, n, aligned({h, y, sum}));
}

std::size_t argmax_scratch(std::int64_t rows) {
    return static_cast<std::size_t>(rows) * kArgmaxBlocks * sizeof(Found);
}

void argmax(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t ids,
            const std::uint8_t* masked, std::int32_t* token, std::int32_t* finite, Scratch scratch,
            cudaStream_t stream) {
    for (std::int64_t first = 0; first < rows; first += kTickets) {
        const auto n = static_cast<unsigned>(std::min(kTickets, rows - first));
        launch_pdl("argmax", argmax_rows, dim3(kArgmaxBlocks, n), dim3(kThreads),
                   kThreads / 32 * sizeof(Found) + 16, stream, logits + first * stride, stride, ids, masked,
                   token + first, finite + first, scratch.tickets, static_cast<Found*>(scratch.data));
    }
}

}  // namespace ftmpi::cuda
