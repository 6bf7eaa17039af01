// Tiles of 4-bit weights on the tensor cores: products of integers, exact in any order, then the float steps
// of a chunk.
//
// 128 threads; a warp owns 16 rows of the lower and 16 of the upper half of the tile and all inputs. Weights
// and coded inputs come by asynchronous copies, a stage or more ahead (of eight chunks for few inputs, of
// four for many). A weight is decoded once a tile. Few inputs take about twice the time
// of their weights' bytes on an H200, probably for the integer operations of decoding and products (2.75
// instructions a clock).
//
// Few inputs are multiplied as bytes, in fours: the eight columns of a product are the high and the low plane
// of each of them, so both planes of a result are one lane's and none is idle. A warp spends some 30
// operations on a chunk of 16 rows, and 22 on every four inputs. Many inputs are multiplied as half precision
// numbers, in eights: all of them are integers, and so is every sum, below 2^24, which fp32 accumulators hold
// exactly (PTX promises them at least single precision). Both planes add up in the same accumulator, which is
// then the float that num::nvfp4_chunk asks for: 36 operations for a chunk of 16 rows, and 24 for every eight
// inputs, 16 of them the float steps.
//
// Sums are in the order of num::ordered_sum (numerics.hpp).
#include <cstddef>
#include <type_traits>

#include "coding.cuh"
#include "gemm.hpp"
#include "tensor_cores.cuh"

namespace ftmpi::cuda {
namespace {

constexpr int kThreads = 128, kSegmentChunks = num::kSegment / num::kChunk;
constexpr int kScalePitch = 48;  ///< bytes of the scales of 16 chunks of a row, apart without bank conflicts

/// As multiply_bytes() of device_code.hpp, of unsigned by signed bytes.
__device__ __forceinline__ void multiply_unsigned(int (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                                  std::uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

/// c = a * b of half precision numbers, or, later, c += a * b: lane 4g + w gives two neighbouring elements of
/// rows g (a[0]) and g + 8 (a[1]) and two more of the same (a[2], a[3]), and the same elements of column g
/// (b0, b1); it holds columns 2w and 2w + 1 of row g (c[0], c[1]) and g + 8.
template <bool kLater>
__device__ __forceinline__ void multiply_halves(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                std::uint32_t b1) {
    if constexpr (kLater)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%10,%10,%10};"
            : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/// Words of a lane: those of rows g and g + 8 of the lower half of the tile, then of the upper half.
using Words = std::uint32_t[4];

/// What the tables of decode_e2m1() hold and numbers beside them, for each lane out of shared memory:
/// constants, and what all lanes have from one place, would be moved to registers again and again.
struct Tables {
    std::uint32_t positive0 = 0x0f0e0d0cu, positive1 = 0x18141210u, negative0 = 0x090a0b0cu,
                  negative1 = 0x00040608u;
    std::uint32_t exponents = 0x64646464u, minus1036 = 0xe40ce40cu;  ///< of half precision numbers
    /// decode_e2m1().
    __device__ __forceinline__ void decode(std::uint32_t codes, std::uint32_t (&bytes)[2]) const {
        const std::uint32_t flipped = codes ^ 0x88888888u;
        bytes[0] = permute(positive0, positive1, codes) | permute(negative0, negative1, flipped);
        bytes[1] = permute(positive0, positive1, codes >> 16) | permute(negative0, negative1, flipped >> 16);
    }
};

/// The inputs of a stage in shared memory.
template <class Form> struct StagedInputs {
    uint4 codes[Form::kChunks][Form::kParts][Form::kInputs][4];
    float meta[Form::kChunks][Form::kInputs]
              [Form::kMeta];  ///< the unit, then minus 12 times both groups' sums
};

/// A chunk of 16 + 16 rows times inputs 4 n .. 4 n + 3, as bytes: sums of lane 4g + w are of input 4 n + w,
/// [half of the tile][row g or g + 8].
struct Bytes {
    static constexpr int kInputs = kFewCoded, kTogether = 4, kSums = 4, kParts = 1, kMeta = 4, kChunks = 8,
                         kStages = 2, kBlocks = 4;
    std::uint32_t weights[4][2];

    /// They stay 12 too large, for which the sums pay: with few inputs that costs less than signed weights.
    __device__ __forceinline__ Bytes(const Tables& tables, const Words& words) {
#pragma unroll
        for (int i = 0; i < 4; ++i) tables.decode(words[i], weights[i]);
    }
    template <Format F>
    __device__ __forceinline__ void add(const StagedInputs<Bytes>& in, int c, int n, int g, int w,
                                        const float (&factor)[4][2], float (&sums)[kSums]) const {
        const uint2 x = reinterpret_cast<const uint2*>(&in.codes[c][0][g / 2][w])[n * 32 + g % 2];
        const float4 meta = *reinterpret_cast<const float4*>(in.meta[c][4 * n + w]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int sum0[4], sum1[4];
            multiply_unsigned(sum0, weights[2 * half][0], weights[2 * half + 1][0], x.x);
            multiply_unsigned(sum1, weights[2 * half][1], weights[2 * half + 1][1], x.y);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                // Exact, with the offset too: 24 * 16 * num::kMaxCode < 2^24.
                const float s0 = static_cast<float>(sum0[2 * r] * num::kPlane + sum0[2 * r + 1]) + meta.y,
                            s1 = static_cast<float>(sum1[2 * r] * num::kPlane + sum1[2 * r + 1]) + meta.z;
                const float v = FormatTraits<F>::chunk_value(s0, s1, factor[2 * half + r], meta.x);
                sums[2 * half + r] = sums[2 * half + r] + v;
            }
        }
    }
    static __device__ __forceinline__ int input_of(int, int w) { return w; }
    static constexpr int row_of(int sum) { return sum; }
};

/// The same of inputs 8 n .. 8 n + 7 as half precision numbers: sums of lane 4g + w are [half of the
/// tile][row g or g + 8][input 8 n + 2 w or the next].
template <int kMost> struct Halves {
    static constexpr int kInputs = kMost, kTogether = 8, kSums = 8, kParts = 2, kMeta = 1, kChunks = 4,
                         kStages = kMost <= 16 ? 3 : 2, kBlocks = kMost <= 16 ? 4 : 3;
    std::uint32_t weights[2][2][4];  ///< [half of the tile][group] as multiply_halves() takes them

    /// A byte under the exponent of 1024 is 1024 more than its value, and 12 is in the byte.
    __device__ __forceinline__ Halves(const Tables& tables, const Words& words) {
        const auto halves_of = [&](std::uint32_t bytes, int selector) {
            std::uint32_t r;
            asm("add.rn.f16x2 %0, %1, %2;"
                : "=r"(r)
                : "r"(permute(bytes, tables.exponents, static_cast<std::uint32_t>(selector))),
                  "r"(tables.minus1036));
            return r;
        };
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            std::uint32_t bytes[2];
            tables.decode(words[i], bytes);
#pragma unroll
            for (int group = 0; group < 2; ++group) {
                weights[i / 2][group][i % 2] = halves_of(bytes[group], 0x4140);
                weights[i / 2][group][i % 2 + 2] = halves_of(bytes[group], 0x4342);
            }
        }
    }
    template <Format F>
    __device__ __forceinline__ void add(const StagedInputs<Halves>& in, int c, int n, int g, int w,
                                        const float (&factor)[4][2], float (&sums)[kSums]) const {
        const uint4 x0 = (&in.codes[c][0][g][w])[n * 32], x1 = (&in.codes[c][1][g][w])[n * 32];
        const float2 unit = *reinterpret_cast<const float2*>(in.meta[c][8 * n + 2 * w]);
        float group[2][2]
                   [4];  // [half of the tile][group]; all of them, so that products need not wait for one
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            multiply_halves<false>(group[half][0], weights[half][0], x0.x, x0.y);
            multiply_halves<false>(group[half][1], weights[half][1], x1.x, x1.y);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            multiply_halves<true>(group[half][0], weights[half][0], x0.z, x0.w);
            multiply_halves<true>(group[half][1], weights[half][1], x1.z, x1.w);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float v = FormatTraits<F>::chunk_value(
                    group[half][0][e], group[half][1][e], factor[2 * half + e / 2], e % 2 ? unit.y : unit.x);
                sums[4 * half + e] = sums[4 * half + e] + v;
            }
    }
    static __device__ __forceinline__ int input_of(int sum, int w) { return 2 * w + sum % 2; }
    static constexpr int row_of(int sum) { return sum / 2; }
};

/// Shared memory of a block.
template <class Form> struct Space {
    struct Stage {
        uint4 weights[kTileRows * Form::kChunks];
        StagedInputs<Form> inputs;
    };
    Stage stages[Form::kStages];
    uint4 scales[2][kTileRows * kScalePitch / 16];  ///< of the segment and the next
    unsigned rows[Form::kInputs];                   ///< first chunks of the inputs
    Tables tables[2];

    /// Place of a chunk of a tile row: eight rows' same chunk are in all banks.
    static __device__ __forceinline__ int place(int row, int chunk) {
        if constexpr (Form::kChunks == 8) return 8 * row + (chunk ^ (row % 8));
        else return 4 * row + (chunk ^ (row / 2 % 4));
    }
};

/// The scales of the 16 chunks of a segment of the thread's tile row.
template <Format F>
__device__ __forceinline__ void bring_scales(const TileExtent& p, const std::uint8_t* row, int segment,
                                             uint4* to) {
    using Scale = typename FormatTraits<F>::Scale;
    constexpr int kBytes = kSegmentChunks * static_cast<int>(sizeof(Scale));
    const int first = segment * kBytes, pitch = static_cast<int>(p.m.scale_pitch);
    auto* at = reinterpret_cast<unsigned char*>(to) + threadIdx.x * kScalePitch;
    if ((reinterpret_cast<std::uintptr_t>(p.m.scales) | static_cast<unsigned>(pitch)) % 16 == 0) {
#pragma unroll
        for (int b = 0; b < kBytes; b += 16)
            if (first + b < pitch) copy_async(at + b, row + first + b);
    } else {  // zeroes behind the last chunk, as the inputs there are
#pragma unroll 1
        for (int i = 0; i < kSegmentChunks; ++i) {
            const int chunk = segment * kSegmentChunks + i;
            reinterpret_cast<Scale*>(at)[i] =
                chunk < p.m.chunks ? __ldg(reinterpret_cast<const Scale*>(row) + chunk) : Scale{0};
        }
    }
}

/// The chunks of a stage, from chunk `first`, of `count` inputs whose rows begin at chunks `rows`. `to` is
/// the shared address of StagedInputs.
template <class Form>
__device__ __forceinline__ void bring_inputs(const CodedRows& from, const unsigned* rows, int count,
                                             unsigned first, unsigned to) {
    constexpr int kChunkWords = 4 * Form::kParts, kWords = Form::kChunks * kChunkWords,
                  kStep = kThreads / kWords, kMetaStep = kThreads / Form::kChunks;
    const int thread = static_cast<int>(threadIdx.x), word = thread % kWords, input = thread / kWords,
              chunk = thread % Form::kChunks, owner = thread / Form::kChunks;
    const uint4* codes = from.codes + word;
    const unsigned at = to + static_cast<unsigned>(word / 4 * Form::kInputs + input) * 64 + word % 4 * 16;
#pragma unroll
    for (int i = 0; i < Form::kInputs; i += kStep)
        if (input + i < count)
            copy_async_to(at + i * 64, codes + std::uint64_t{rows[input + i] + first} * kChunkWords);
    const float4* meta = from.meta + chunk;
    const unsigned meta_at = to + Form::kInputs * kWords * 16 +
                             static_cast<unsigned>(chunk * Form::kInputs + owner) * (4 * Form::kMeta);
#pragma unroll
    for (int i = 0; i < Form::kInputs; i += kMetaStep)
        if (owner + i < count) {
            if constexpr (Form::kMeta == 1)
                copy_word_async(meta_at + i * 4, meta + (rows[owner + i] + first));
            else copy_async_to(meta_at + i * 16, meta + (rows[owner + i] + first));
        }
}

/// The scales of four chunks.
template <Format F> struct QuadScales;
template <> struct QuadScales<Format::nvfp4> {
    uint2 v;
    __device__ __forceinline__ std::uint32_t of(int chunk) const {
        return (chunk < 2 ? v.x : v.y) >> (16 * (chunk % 2));
    }
};
template <> struct QuadScales<Format::mxfp4> {
    std::uint32_t v;
    __device__ __forceinline__ std::uint32_t of(int chunk) const { return v >> (8 * chunk); }
};

template <Format F, TileKind Kind, class Form>
__global__ void __launch_bounds__(kThreads, Form::kBlocks)
    gemm_4bit_tiles(const __grid_constant__ TileTask a) {
    TileExtent p;
    if (!extent_of<Kind>(a, F, p)) return;
    using S = Space<Form>;
    constexpr int kSteps = Form::kInputs / Form::kTogether;
    auto& space = *reinterpret_cast<S*>(shared_bytes());
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4,
              w = lane % 4;
    const int steps = (p.count + Form::kTogether - 1) / Form::kTogether,
              all_stages = (p.m.chunks + Form::kChunks - 1) / Form::kChunks;
    if (thread < Form::kInputs)
        space.rows[thread] =
            static_cast<unsigned>(input_row<Kind>(a, p, thread) * static_cast<int>(coded_chunks(p.m.cols)));
    if (thread < 2) space.tables[thread] = Tables{};
    __syncthreads();

    // Of the weights this thread copies chunk thread % kChunks of every kRowStep-th tile row, and the scales
    // of row thread. Rows at or beyond their limit are not copied, and not stored.
    constexpr int kRowStep = kThreads / Form::kChunks, kHalf = kTileRows / 2;
    const int copied = thread / Form::kChunks, copied_chunk = thread % Form::kChunks,
              copied_to = S::place(copied, copied_chunk);
    const std::uint8_t* low = p.m.codes + (p.low + copied) * p.m.code_pitch + copied_chunk * kWord128;
    const std::uint8_t* high = p.m.codes + (p.high + copied) * p.m.code_pitch + copied_chunk * kWord128;
    const int low_rows = p.low_limit - p.low - copied, high_rows = p.high_limit - p.high - copied,
              scale_row = thread < kHalf ? p.low + thread : p.high + thread - kHalf;
    const bool scaled = scale_row < (thread < kHalf ? p.low_limit : p.high_limit);
    const std::uint8_t* scales = p.m.scales + scale_row * p.m.scale_pitch;
    const CodedRows& inputs = p.matrix->coded;
    const unsigned stages_at = shared_address(space.stages);
    const auto bring = [&](int s) {
        if (s < all_stages) {
            const unsigned to = stages_at +
                                static_cast<unsigned>(s % Form::kStages * sizeof(typename S::Stage)),
                           weights_to = to + static_cast<unsigned>(copied_to * kWord128);
            const int first = s * Form::kChunks;
            if (first + copied_chunk < p.m.chunks) {
                const std::uint8_t *from_low = low + first * kWord128, *from_high = high + first * kWord128;
#pragma unroll
                for (int i = 0; i < kHalf; i += kRowStep) {
                    constexpr unsigned kRow = Form::kChunks * kWord128;
                    if (i < low_rows) copy_async_to(weights_to + i * kRow, from_low);
                    if (i < high_rows) copy_async_to(weights_to + (kHalf + i) * kRow, from_high);
                    from_low += kRowStep * p.m.code_pitch;
                    from_high += kRowStep * p.m.code_pitch;
                }
            }
            if (first % kSegmentChunks == 0 && scaled)
                bring_scales<F>(p, scales, first / kSegmentChunks, space.scales[first / kSegmentChunks % 2]);
            bring_inputs<Form>(inputs, space.rows, steps * Form::kTogether, static_cast<unsigned>(first),
                               to + static_cast<unsigned>(offsetof(typename S::Stage, inputs)));
        }
        close_copy_group();
    };

    float segment[kSteps][Form::kSums], total[kSteps][Form::kSums];
#pragma unroll
    for (int n = 0; n < kSteps; ++n)
#pragma unroll
        for (int i = 0; i < Form::kSums; ++i) segment[n][i] = total[n][i] = 0.0f;

    const Tables tables = space.tables[lane % 2];
    // The row that load_matrices() takes from this lane's address.
    const int loaded = 16 * warp + lane % 16 + lane / 16 * kHalf;
    const auto chunk_of = [&](auto known, const typename S::Stage& stage, const QuadScales<F>(&scale)[4],
                              int first, int c) {
        Words words;
        load_matrices(words, shared_address(&stage.weights[S::place(loaded, first + c)]));
        float factor[4][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) FormatTraits<F>::decode_scale(scale[i].of(c), factor[i]);
        const Form weights(tables, words);
#pragma unroll
        for (int n = 0; n < known(); ++n)
            weights.template add<F>(stage.inputs, first + c, n, g, w, factor, segment[n]);
    };

    const auto stages = [&](auto known) {
#pragma unroll
        for (int s = 0; s < Form::kStages - 1; ++s) bring(s);
        for (int s = 0; s < all_stages; ++s) {
            wait_copy_groups<Form::kStages - 2>();
            __syncthreads();  // everyone's copies are there, and the stage before is no longer read
            bring(s + Form::kStages - 1);
            const auto& stage = space.stages[s % Form::kStages];
#pragma unroll 1
            for (int first = 0; first < Form::kChunks; first += 4) {
                const int at = s * Form::kChunks + first;
                QuadScales<F> scale[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int row = i / 2 * kHalf + 16 * warp + g + i % 2 * 8;
                    scale[i] = *reinterpret_cast<const QuadScales<F>*>(
                        reinterpret_cast<const unsigned char*>(space.scales[at / kSegmentChunks % 2]) +
                        row * kScalePitch +
                        at % kSegmentChunks / 4 * static_cast<int>(sizeof(QuadScales<F>)));
                }
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    chunk_of(known, stage, scale, first, c);  // beyond the last one all are 0
            }
            if ((s + 1) * Form::kChunks % kSegmentChunks == 0 || s + 1 == all_stages) {
#pragma unroll
                for (int n = 0; n < kSteps; ++n)
#pragma unroll
                    for (int i = 0; i < Form::kSums; ++i) {
                        total[n][i] = total[n][i] + segment[n][i];
                        segment[n][i] = 0.0f;
                    }
            }
        }
    };
    // Straight code for some numbers of inputs; those that are not there are stale ones, and not stored.
    if constexpr (kSteps == 2) {
        if (steps == 1) stages(std::integral_constant<int, 1>{});
        else stages(std::integral_constant<int, 2>{});
    } else {
        if (steps <= 2) stages(std::integral_constant<int, 2>{});
        else if (steps < kSteps) stages(std::integral_constant<int, kSteps - 1>{});
        else stages(std::integral_constant<int, kSteps>{});
    }
#pragma unroll
    for (int n = 0; n < kSteps; ++n)
#pragma unroll
        for (int i = 0; i < Form::kSums / 2; ++i) {
            const int input = Form::kTogether * n + Form::input_of(i, w);
            if (input >= p.count) continue;
            float* out = p.matrix->out + result_row(p, input) * p.matrix->stride;
            store_result<Kind>(a, p, 16 * warp + g + 8 * Form::row_of(i), out, total[n][i],
                               total[n][i + Form::kSums / 2]);
        }
}

template <Format F, TileKind Kind, class Form>
void launch_form(const TileTask& a, dim3 grid, cudaStream_t stream) {
    allow_shared_once<gemm_4bit_tiles<F, Kind, Form>>(sizeof(Space<Form>));
    launch("matrix tiles", gemm_4bit_tiles<F, Kind, Form>, grid, dim3(kThreads), sizeof(Space<Form>), stream,
           a);
}

template <Format F, TileKind Kind> void launch_kind(const TileTask& a, dim3 grid, cudaStream_t stream) {
    switch (a.tile_inputs) {
        case kFewCoded: return launch_form<F, Kind, Bytes>(a, grid, stream);
        case kSomeCoded: return launch_form<F, Kind, Halves<kSomeCoded>>(a, grid, stream);
        default: return launch_form<F, Kind, Halves<kMostCoded>>(a, grid, stream);
    }
}

template <CodedForm kForm>
__global__ void __launch_bounds__(kThreads)
    code_blocks(const float* x, std::int64_t rows, std::int64_t cols, CodedRows to) {
    code_part<kForm>(x, rows, cols, to, std::int64_t{blockIdx.x} * kThreads + threadIdx.x);
}

}  // namespace

void gemm_4bit(TileKind kind, const TileTask& task, Format format, int grid_rows, int grid_inputs,
               cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(grid_rows), static_cast<unsigned>(grid_inputs));
    with_format(format, [&]<Format F>() {
        if constexpr (is_4bit(F))
            with_kind(kind, [&]<TileKind K>() { launch_kind<F, K>(task, grid, stream); });
    });
}

void code_rows(const float* x, std::int64_t rows, std::int64_t cols, CodedForm form, CodedRows to,
               cudaStream_t stream) {
    launch("code activations",
           form == CodedForm::bytes ? code_blocks<CodedForm::bytes> : code_blocks<CodedForm::halves>,
           dim3(static_cast<unsigned>((coding_threads(rows, cols) + kThreads - 1) / kThreads)),
           dim3(kThreads), 0, stream, x, rows, cols, to);
}

}  // namespace ftmpi::cuda
