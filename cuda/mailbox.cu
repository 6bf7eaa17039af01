// The kernels of mailbox.hpp.
//
// Why they do not lock up: word i and chunk b of one rank are sent and awaited by the block of the same
// number on every rank, and each block sends before it waits. So a block depends only on its namesakes, which
// all start because no kernel has more blocks than run at once. What is left to wait for is a rank that does
// not come, and for that every wait has an end.
//
// Flags in the data words, so that a reader needs no second look: NCCL's LL protocol.
#include <cuda_runtime.h>

#include <algorithm>

#include "mailbox.hpp"
#include "runtime/handles.hpp"

namespace ftmpi::cuda {
namespace {

constexpr int threads = 512;
constexpr std::uint32_t spins_between_looks = 256;

// --- memory that two GPUs see: system scope, never through L1

using Address = unsigned long long;

__device__ std::uint64_t load_word(const std::uint64_t* p) {
    std::uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ std::uint64_t load_acquire(const std::uint64_t* p) {
    std::uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ void store_word(std::uint64_t* p, std::uint64_t v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ float4 load_four(const float* p) {
    float4 v;
    asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ void store_four(float* p, float4 v) {
    asm volatile("st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y),
                 "f"(v.z), "f"(v.w)
                 : "memory");
}
__device__ std::uint64_t now_ns() {
    std::uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// --- a mailbox: words, flags, staging; each by parity and by the rank that writes it -----------------

__host__ __device__ std::size_t words_of(std::uint32_t words) {
    return (std::size_t{words} + 1 + 31) / 32 * 32;
}

struct Areas {
    std::size_t writers;  // ranks but the owner
    std::uint32_t words, bulk;

    __host__ __device__ std::size_t writer(int owner, int source) const {
        return static_cast<std::size_t>(source < owner ? source : source - 1);
    }
    __host__ __device__ std::size_t flags_at() const { return 2 * writers * words_of(words) * 8; }
    __host__ __device__ std::size_t bulk_at() const { return flags_at() + 2 * writers * max_blocks * 8; }
    __host__ __device__ std::size_t bytes() const { return bulk_at() + 2 * writers * std::size_t{bulk} * 4; }
};

/// What `source` sends to `owner`, by the exchange's parity.
struct Area {
    std::uint64_t* words;  ///< its floats, then one word with the signature
    std::uint64_t* flags;
    float* bulk;

    __device__ Area(const Mailboxes& m, int ranks, int owner, int source, std::uint32_t parity) {
        const Areas a{static_cast<std::size_t>(ranks - 1), m.words, m.bulk};
        const std::size_t index = parity * a.writers + a.writer(owner, source);
        std::byte* const at = m.of_rank[owner];
        words = reinterpret_cast<std::uint64_t*>(at) + index * words_of(m.words);
        flags = reinterpret_cast<std::uint64_t*>(at + a.flags_at()) + index * max_blocks;
        bulk = reinterpret_cast<float*>(at + a.bulk_at()) + index * m.bulk;
    }
};

__device__ std::uint64_t flagged(std::uint32_t value, std::uint32_t epoch) {
    return std::uint64_t{epoch} << 32 | value;
}
__device__ std::uint32_t epoch_of(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }

// --- columns

struct Element {
    float* at;
    std::uint32_t left;  // floats that follow without a gap, this one included
};

/// Float number i of `source`; i must exist.
__device__ Element element_of(const GatherLayout& p, int source, std::uint32_t i) {
    int part = 0;
    for (; part + 1 < p.parts; ++part) {
        const std::uint32_t n = p.rows[part] * p.size[part][source];
        if (i < n) break;
        i -= n;
    }
    const std::uint32_t size = p.size[part][source];
    const std::uint32_t row = i < size ? 0 : i / size;
    const std::uint32_t column = i - row * size;
    return {p.data[part] + row * p.width[part] + p.begin[part][source] + column, size - column};
}

__device__ bool is_whole(const Element& e) {
    return e.left >= 4 && (reinterpret_cast<Address>(e.at) & 15) == 0;
}

__device__ float4 take(const GatherLayout& p, int source, std::uint32_t i, std::uint32_t n) {
    const Element from = element_of(p, source, i);
    if (n >= 4 && is_whole(from)) return *reinterpret_cast<const float4*>(from.at);
    float4 v = {*from.at, 0, 0, 0};
    if (n > 1) v.y = *element_of(p, source, i + 1).at;
    if (n > 2) v.z = *element_of(p, source, i + 2).at;
    if (n > 3) v.w = *element_of(p, source, i + 3).at;
    return v;
}

__device__ void put(const GatherLayout& p, int source, std::uint32_t i, std::uint32_t n, float4 v) {
    const Element to = element_of(p, source, i);
    if (n >= 4 && is_whole(to)) {
        *reinterpret_cast<float4*>(to.at) = v;
        return;
    }
    *to.at = v.x;
    if (n > 1) *element_of(p, source, i + 1).at = v.y;
    if (n > 2) *element_of(p, source, i + 2).at = v.z;
    if (n > 3) *element_of(p, source, i + 3).at = v.w;
}

// --- an exchange's begin and end

/// Epoch of this exchange. 0 is what memory holds before its first; leaving it out keeps the parity
/// alternating.
__device__ std::uint32_t after(std::uint32_t epoch) { return epoch == 0xffffffffu ? 2 : epoch + 1; }

__device__ Control::Slot slot_of(const Control* control) {
    const std::uint64_t both = load_word(reinterpret_cast<const std::uint64_t*>(&control->slot[blockIdx.x]));
    return {static_cast<std::uint32_t>(both), static_cast<std::uint32_t>(both >> 32)};
}

__device__ void fail(const Mailboxes& m, const Tag& tag, Report::Fault fault, int source) {
    if (atomicExch(&m.control->slot[0].broken, 1u) != 0) return;
    for (int b = 1; b < max_blocks; ++b) atomicExch(&m.control->slot[b].broken, 1u);
    volatile Report* report = m.report;
    report->name = tag.name;
    report->source = static_cast<std::uint32_t>(source);
    __threadfence_system();
    report->fault = fault;
}

/// The end of waits: looked at now and then.
struct Deadline {
    std::uint32_t spins = 0;
    std::uint64_t at = 0;

    __device__ bool passed(const Mailboxes& m, const Tag& tag, int source) {
        if (++spins % spins_between_looks != 0) return false;
        if (slot_of(m.control).broken != 0) return true;
        const std::uint64_t now = now_ns();
        if (at == 0) at = now + m.timeout_ns;
        if (now < at) return false;
        fail(m, tag, Report::timed_out, source);
        return true;
    }
};

__device__ void check_signature(const Mailboxes& m, const Tag& tag, std::uint64_t word, int source) {
    if (static_cast<std::uint32_t>(word) != tag.signature) fail(m, tag, Report::out_of_step, source);
}

/// To be called by all threads when they no longer need the old epoch. Block 0 also raises the slots of
/// blocks that this exchange does not have.
__device__ void end_exchange(const Mailboxes& m, const Tag& tag, std::uint32_t epoch, std::uint64_t begin) {
    __syncthreads();
    if (blockIdx.x != 0) {
        if (threadIdx.x == 0) m.control->slot[blockIdx.x].epoch = epoch;
        return;
    }
    if (threadIdx.x < max_blocks && (threadIdx.x == 0 || threadIdx.x >= gridDim.x))
        m.control->slot[threadIdx.x].epoch = epoch;
    if (threadIdx.x == 0) {
        m.control->waited_ns[tag.name] += now_ns() - begin;
        m.control->calls[tag.name] += tag.calls;
    }
}

__global__ void __launch_bounds__(threads)
    words_kernel(const __grid_constant__ Mailboxes m, const __grid_constant__ GatherLayout p,
                 const __grid_constant__ Tag tag) {
    const std::uint64_t begin = now_ns();
    const Control::Slot slot = slot_of(m.control);
    if (slot.broken != 0) return;
    const std::uint32_t epoch = after(slot.epoch), parity = epoch & 1;
    const std::uint32_t thread = blockIdx.x * threads + threadIdx.x, stride = gridDim.x * threads;

    for (std::uint32_t i = thread; i <= p.count[p.rank]; i += stride) {
        const bool is_last = i == p.count[p.rank];
        const std::uint64_t word =
            flagged(is_last ? tag.signature : __float_as_uint(*element_of(p, p.rank, p.first + i).at), epoch);
        for (int k = 1; k < p.ranks; ++k) {
            const int peer = (p.rank + k) % p.ranks;
            store_word(Area(m, p.ranks, peer, p.rank, parity).words + i, word);
        }
    }

    Deadline deadline;
    for (int k = 1; k < p.ranks; ++k) {
        const int source = (p.rank + p.ranks - k) % p.ranks;
        const std::uint64_t* const words = Area(m, p.ranks, p.rank, source, parity).words;
        for (std::uint32_t i = thread; i <= p.count[source]; i += stride) {
            std::uint64_t word = load_word(words + i);
            bool given_up = false;
            while (epoch_of(word) != epoch && !(given_up = deadline.passed(m, tag, source)))
                word = load_word(words + i);
            if (given_up) break;
            if (i == p.count[source]) check_signature(m, tag, word, source);
            else *element_of(p, source, p.first + i).at = __uint_as_float(static_cast<std::uint32_t>(word));
        }
    }
    end_exchange(m, tag, epoch, begin);
}

/// Floats of one block's chunk: whole 16-byte groups, so that chunks stay aligned.
__device__ std::uint32_t chunk_of(std::uint32_t count) {
    return (count + 4 * gridDim.x - 1) / (4 * gridDim.x) * 4;
}

__global__ void __launch_bounds__(threads)
    bulk_kernel(const __grid_constant__ Mailboxes m, const __grid_constant__ GatherLayout p,
                const __grid_constant__ Tag tag) {
    const std::uint64_t begin = now_ns();
    const Control::Slot slot = slot_of(m.control);
    if (slot.broken != 0) return;
    const std::uint32_t epoch = after(slot.epoch), parity = epoch & 1;

    {
        const std::uint32_t n = p.count[p.rank], chunk = chunk_of(n);
        const std::uint32_t low = min(n, blockIdx.x * chunk), high = min(n, low + chunk);
        for (std::uint32_t i = low + 4 * threadIdx.x; i < high; i += 4 * threads) {
            const float4 v = take(p, p.rank, p.first + i, high - i);
            for (int k = 1; k < p.ranks; ++k) {
                const int peer = (p.rank + k) % p.ranks;
                store_four(Area(m, p.ranks, peer, p.rank, parity).bulk + i, v);
            }
        }
    }
    __syncthreads();
    if (const int peer = static_cast<int>(threadIdx.x); peer < p.ranks && peer != p.rank) {
        __threadfence_system();
        store_word(Area(m, p.ranks, peer, p.rank, parity).flags + blockIdx.x, flagged(tag.signature, epoch));
    }

    Deadline deadline;
    for (int k = 1; k < p.ranks; ++k) {
        const int source = (p.rank + p.ranks - k) % p.ranks;
        bool given_up = false;
        if (threadIdx.x == 0) {
            const std::uint64_t* const flag = Area(m, p.ranks, p.rank, source, parity).flags + blockIdx.x;
            std::uint64_t word = load_acquire(flag);
            while (epoch_of(word) != epoch && !(given_up = deadline.passed(m, tag, source)))
                word = load_acquire(flag);
            if (!given_up) check_signature(m, tag, word, source);
        }
        if (__syncthreads_or(given_up)) break;
        const float* const from = Area(m, p.ranks, p.rank, source, parity).bulk;
        const std::uint32_t n = p.count[source], chunk = chunk_of(n);
        const std::uint32_t low = min(n, blockIdx.x * chunk), high = min(n, low + chunk);
        for (std::uint32_t i = low + 4 * threadIdx.x; i < high; i += 4 * threads)
            put(p, source, p.first + i, high - i, load_four(from + i));
    }
    end_exchange(m, tag, epoch, begin);
}

// --- the test of the mapping

__device__ std::uint32_t pattern(int owner, int source, std::uint64_t i) {
    return (static_cast<std::uint32_t>(i) * 2654435761u) ^ static_cast<std::uint32_t>(i >> 13) ^
           static_cast<std::uint32_t>(owner * 977 + source * 131 + 1);
}

/// Calls f(word, value) for all of a mailbox that `source` writes, in 4-byte words.
template <class F> __device__ void each_word(const Mailboxes& m, int ranks, int owner, int source, F f) {
    const std::uint64_t thread = blockIdx.x * std::uint64_t{threads} + threadIdx.x,
                        stride = gridDim.x * std::uint64_t{threads};
    for (std::uint32_t parity = 0; parity < 2; ++parity) {
        const std::uint64_t words = 2 * std::uint64_t{words_of(m.words)}, salt = parity << 29;
        const Area area(m, ranks, owner, source, parity);
        auto* const at = reinterpret_cast<std::uint32_t*>(area.words);
        for (std::uint64_t i = thread; i < words; i += stride) f(at + i, pattern(owner, source, i + salt));
        auto* const flag = reinterpret_cast<std::uint32_t*>(area.flags);
        for (std::uint64_t i = thread; i < 2 * max_blocks; i += stride)
            f(flag + i, pattern(owner, source, i + salt + 1));
        auto* const bulk = reinterpret_cast<std::uint32_t*>(area.bulk);
        for (std::uint64_t i = thread; i < m.bulk; i += stride)
            f(bulk + i, pattern(owner, source, i + salt + 2));
    }
}

__global__ void pattern_kernel(const __grid_constant__ Mailboxes m, int rank, int ranks) {
    for (int owner = 0; owner < ranks; ++owner)
        if (owner != rank)
            each_word(m, ranks, owner, rank, [](std::uint32_t* at, std::uint32_t value) {
                *static_cast<volatile std::uint32_t*>(at) = value;
            });
    __threadfence_system();
}

__global__ void count_wrong_kernel(const __grid_constant__ Mailboxes m, int rank, int ranks,
                                   unsigned long long* wrong) {
    unsigned long long mine = 0;
    for (int source = 0; source < ranks; ++source)
        if (source != rank)
            each_word(m, ranks, rank, source, [&](std::uint32_t* at, std::uint32_t value) {
                if (*static_cast<volatile std::uint32_t*>(at) != value) ++mine;
            });
    if (mine != 0) atomicAdd(wrong, mine);
}

// --- one contiguous buffer

__global__ void __launch_bounds__(threads)
    pack_kernel(const __grid_constant__ GatherLayout p, const __grid_constant__ Tag tag, float* to,
                Control* control, Report* report) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        control->begun_ns = now_ns();
        const std::uint32_t begun = control->begun + 1;
        control->begun = begun;
        static_cast<volatile Report*>(report)->begun_name = tag.name;
        __threadfence_system();
        static_cast<volatile Report*>(report)->begun = begun;
    }
    for (std::uint32_t i = blockIdx.x * threads + threadIdx.x; i < p.count[p.rank]; i += gridDim.x * threads)
        to[i] = *element_of(p, p.rank, p.first + i).at;
}

__global__ void __launch_bounds__(threads)
    unpack_kernel(const __grid_constant__ GatherLayout p, const __grid_constant__ Tag tag, const float* from,
                  const __grid_constant__ SegmentOffsets offsets, Control* control, Report* report) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        control->waited_ns[tag.name] += now_ns() - control->begun_ns;
        control->calls[tag.name] += tag.calls;
        static_cast<volatile Report*>(report)->ended = control->begun;
    }
    for (int source = 0; source < p.ranks; ++source)
        if (source != p.rank)
            for (std::uint32_t i = blockIdx.x * threads + threadIdx.x; i < p.count[source];
                 i += gridDim.x * threads)
                *element_of(p, source, p.first + i).at = from[offsets.at[source] + i];
}

std::uint32_t largest(const GatherLayout& p) { return *std::max_element(p.count, p.count + p.ranks); }

/// Enough blocks for one word a thread, within the limit.
unsigned blocks_for(std::uint32_t words, int most) {
    return std::clamp<unsigned>((words + threads - 1) / threads, 1, static_cast<unsigned>(most));
}

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

std::size_t mailbox_bytes(int ranks, std::uint32_t words, std::uint32_t bulk) {
    return Areas{static_cast<std::size_t>(ranks - 1), words, bulk}.bytes();
}

void exchange_words(const Mailboxes& m, const GatherLayout& p, const Tag& tag, Stream stream) {
    words_kernel<<<blocks_for(largest(p) + 1, m.blocks), threads, 0, native(stream)>>>(m, p, tag);
    check(cudaGetLastError(), "exchange_words", __FILE__);
}

void exchange_bulk(const Mailboxes& m, const GatherLayout& p, const Tag& tag, Stream stream) {
    bulk_kernel<<<static_cast<unsigned>(m.blocks), threads, 0, native(stream)>>>(m, p, tag);
    check(cudaGetLastError(), "exchange_bulk", __FILE__);
}

void write_pattern(const Mailboxes& m, int rank, int ranks, Stream stream) {
    pattern_kernel<<<max_blocks, threads, 0, native(stream)>>>(m, rank, ranks);
    check(cudaGetLastError(), "write_pattern", __FILE__);
}

std::uint64_t count_wrong(const Mailboxes& m, int rank, int ranks, Stream stream) {
    const DeviceMemory memory(sizeof(unsigned long long), "a counter");
    unsigned long long wrong = 0;
    FTMPI_CUDA(cudaMemsetAsync(memory.data(), 0, memory.bytes(), native(stream)));
    count_wrong_kernel<<<max_blocks, threads, 0, native(stream)>>>(
        m, rank, ranks, static_cast<unsigned long long*>(memory.data()));
    check(cudaGetLastError(), "count_wrong", __FILE__);
    FTMPI_CUDA(cudaMemcpyAsync(&wrong, memory.data(), sizeof wrong, cudaMemcpyDeviceToHost, native(stream)));
    FTMPI_CUDA(cudaStreamSynchronize(native(stream)));
    return wrong;
}

void pack(const GatherLayout& p, const Tag& tag, float* to, Control* control, Report* report, Stream stream) {
    pack_kernel<<<blocks_for(p.count[p.rank], 256), threads, 0, native(stream)>>>(p, tag, to, control,
                                                                                  report);
    check(cudaGetLastError(), "pack", __FILE__);
}

void unpack(const GatherLayout& p, const Tag& tag, const float* from, const SegmentOffsets& offsets,
            Control* control, Report* report, Stream stream) {
    unpack_kernel<<<blocks_for(largest(p), 256), threads, 0, native(stream)>>>(p, tag, from, offsets, control,
                                                                               report);
    check(cudaGetLastError(), "unpack", __FILE__);
}

}  // namespace ftmpi::cuda
