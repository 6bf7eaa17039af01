// The table of kernels: which one serves an operator, by rows, shape and format. The launchers ask choose()
// and launch what it says; `ftmpi bench --kernels` prints what it said. A new kernel is a row here and its
// case in the operator's launcher.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "launch.hpp"

namespace ftmpi::cuda {

enum class Operator { project, norm, route, experts_up, experts_down, attention, delta_net };
enum class Kernel {
    gemv,          ///< one row at a width known when compiled
    gemv_tiles,    ///< few rows of FP8 at a width known when compiled, on tensor cores
    gemv_any,      ///< few rows of any width
    gemm_exact,    ///< tiles of fma chains
    gemm_fp8,      ///< tiles of integer products of 24-bit codes
    gemm_4bit,     ///< tiles of integer products
    gemm_bf16,     ///< bf16 tensor cores, fast numerics
    decode,        ///< few rows at sizes known when compiled
    decode_any,    ///< few rows of any size
    prefill,       ///< many rows
    prefill_bf16,  ///< bf16 tensor cores, fast numerics
    fused,         ///< inside another operator's kernel
};

// Limits that the table and the kernels share.
inline constexpr std::int64_t kNarrowRows = 512;   ///< matrix rows up to which tiles would leave a GPU idle
inline constexpr std::int64_t kManyRows = 16;      ///< T from which tiles of rows take less than row by row
inline constexpr std::int64_t kManyFp8Rows = 9;    ///< the same of FP8 matrices
inline constexpr std::int64_t kManyCodedRows = 4;  ///< the same of 4-bit matrices
inline constexpr std::int64_t kManyCodedExperts = 9;                 ///< and of experts of 4-bit weights
inline constexpr int kMatrices = 8;                                  ///< of a launch of few rows
inline constexpr int kRouteEach = 8, kMostRouted = 32 * kRouteEach;  ///< experts that a warp chooses among
inline constexpr int kMostChoices = 32;                              ///< of a row, chosen by a warp
inline constexpr int kUpSets = 2;                                    ///< sets of 32 chunks: 2048 columns
inline constexpr int kMostUpChoices = 8, kMostDownChoices = 10, kDownChunks = 16;
inline constexpr int kMostDecodeHeads = 16;  ///< query heads of a key/value head
inline constexpr int kDeltaDim = 128, kDeltaTaps = 4;
inline constexpr std::int64_t kMostNormWidth = 8192;

/// Rows of gate and up, or of down, that a warp works on together; at least one gate row and its up row.
constexpr int expert_rows(Format f) { return words128_of(f) > 2 ? 2 : 4 / words128_of(f); }
/// Whether all addresses are multiples of 16; null is one.
bool aligned(std::initializer_list<const void*> addresses);

/// Whether few rows have kernels of experts of these formats (bits); else they take those of many rows, which
/// do not choose the experts themselves.
bool few_rows_serve_experts(unsigned formats);

/// T from which experts of these formats (bits) take tiles.
std::int64_t many_expert_rows(unsigned formats);

/// Most query heads of this rank that share a key/value head.
int heads_together(const Attention& t);

/// What a choice depends on; of each operator its own part.
struct Call {
    Operator op{};
    std::int64_t rows = 0;               ///< T
    bool fast = false;                   ///< Backend::set_fast()
    bool one_a_slot = false;             ///< mixers: every row of another slot
    bool aligned = true;                 ///< what is read in words of 16 bytes
    std::span<const Projection> to{};    ///< project: matrices with rows
    const MatrixView* routed = nullptr;  ///< experts
    const MatrixView* shared = nullptr;  ///< experts: null, or with rows
    int experts = 0, top_k = 0;
    bool routes = false;  ///< experts_up chooses the experts itself; route: it can
    const Attention* attention = nullptr;
    const DeltaNet* net = nullptr;
    std::int64_t width = 0;  ///< norm

    unsigned formats() const;  ///< bit_of() of the matrices' formats
};

struct KernelRow {
    Operator op;
    Kernel kernel;
    const char* name;            ///< folder/file of the kernel
    std::int64_t first, last;    ///< T
    unsigned formats;            ///< bits; project: it takes those and leaves the others
    bool (*suits)(const Call&);  ///< null: any
    const char* when;            ///< the same in words
};

/// In the order of preference.
std::span<const KernelRow> kernel_table();
/// The first row that serves the call; noted where a Chosen is alive on this thread.
const KernelRow& choose(const Call& call);

/// Notes what choose() says on this thread, for a trace.
class Chosen {
public:
    Chosen();
    Chosen(const Chosen&) = delete;
    Chosen& operator=(const Chosen&) = delete;
    ~Chosen();
    void note(const char* name) { names_.push_back(name); }
    std::string names() const;  ///< each once, " + " between them; empty when there was no choice

private:
    std::vector<std::string> names_;
};

}  // namespace ftmpi::cuda
