// The launchers of the CUDA backend, one for each step of the model. Each mirrors the arguments of the
// Backend method of the same name, all pointers in device memory, and only queues kernels on `stream`: no
// synchronisation, no allocation, no host memory that must outlive the call, so that a step can be captured
// as a graph. What a kernel needs to know about the rows of a step beyond their number (slots, positions) it
// reads from Rows::device; a launch over one row a slot depends on rows.count() alone. Letters of shapes are
// those of src/model.hpp: T rows, H hidden, Q query heads here, ...
//
// Scratch is device memory that a launcher may use until the next launcher on the same stream. How much it
// needs is said by the function beside it, which is monotone in every argument: the backend reserves with the
// largest.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "../src/backend.hpp"
#include "../src/error.hpp"
#include "runtime/matrix.hpp"

namespace ftmpi::cuda {

struct Scratch {
    void* data = nullptr;  ///< 256-byte aligned
    std::size_t bytes = 0;
    /// kTickets counters, 0 before and after every launcher.
    unsigned* tickets = nullptr;
};
inline constexpr std::int64_t kTickets = 4096;

/// Parts of a scratch in order, each 256-byte aligned. With a null scratch it only counts.
class Parts {
public:
    explicit Parts(void* data) : data_(static_cast<unsigned char*>(data)) {}
    template <class T> T* take(std::int64_t count) {
        const std::size_t at = bytes_;
        bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
        return data_ ? reinterpret_cast<T*>(data_ + at) : nullptr;
    }
    std::size_t bytes() const { return bytes_; }

private:
    unsigned char* data_;
    std::size_t bytes_ = 0;
};

/// Throws when a launcher was given less scratch than its function says.
inline void check_scratch(const char* what, std::size_t needed, const Scratch& scratch) {
    if (needed > scratch.bytes)
        throw Error(Exit::failure, std::string(what) + " needs " + std::to_string(needed) +
                                       " bytes of scratch and was given " + std::to_string(scratch.bytes));
}

/// What launches are sized by.
struct Card {
    int multiprocessors = 0;
    std::size_t shared_per_block = 0;  ///< bytes a block may take when a kernel asks for more than 48 KiB
};

/// Refuses a model that the kernels cannot run; `what` they were asked for, and `only` what they can.
[[noreturn]] inline void refuse(const std::string& what, const std::string& only) {
    throw Error(Exit::bad_input, "the GPU kernels cannot run " + what + ", only " + only,
                "use --backend cpu");
}

// ---- what the kernels can run
// Error(Exit::bad_input) for a model that the steps below would refuse, from what is known before its weights
// are. Formats are not, so a matrix whose columns just fit in one format can still be refused in another, by
// its step.
void check_attention_limits(const StepLimits& limits);
void check_delta_net_limits(const StepLimits& limits);
void check_columns_limits(const StepLimits& limits, const Card& card);
void check_experts_limits(const StepLimits& limits, const Card& card);

// `early` below: the kernels are launched by launch_pdl(). The launch is the first since embed() that touches
// these states or this cache, so that it may read them before the launches in between have ended.
// ---- mixers
/// qkv (T, W), z (T, U, N), b and a (T, U), out (T, stride).
std::size_t delta_net_scratch(std::int64_t rows, int key_heads, int value_heads, int key_dim, int value_dim);
void delta_net(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z, const float* b,
               const float* a, float* out, std::int64_t stride, Scratch scratch, cudaStream_t stream,
               bool early = false);

/// qg (T, Q, 2*D) or (T, Q, D), k and v (T, K, D), out (T, stride). `capacity`: C. `fast`:
/// Backend::set_fast().
std::size_t attention_scratch(std::int64_t rows, int query_heads, int head_dim, std::int64_t capacity);
void attention(const Attention& attention, const Rows& rows, const float* qg, const float* k, const float* v,
               float* out, std::int64_t stride, Scratch scratch, cudaStream_t stream, bool fast = false,
               bool early = false);

// ---- matrices
/// x (T, `cols`).
std::size_t project_scratch(std::int64_t rows, std::int64_t cols);
void project(std::span<const Projection> to, const float* x, std::int64_t rows, const Card& card,
             Scratch scratch, cudaStream_t stream, bool fast = false);
/// norm(), then project().
void norm_project(const Norm& n, std::span<const Projection> to, std::int64_t rows, const Card& card,
                  Scratch scratch, cudaStream_t stream, bool fast = false);
/// act = silu(gate) * up of every row's chosen experts, and of the shared expert.
struct ExpertsUp {
    MatrixView routed;              ///< (E, 2*F, H): gate rows, then up rows
    MatrixView shared;              ///< (2*I, H); without rows where there is no shared expert
    int groups = 0;                 ///< E
    Routes routes;                  ///< (T, X)
    const float* logits = nullptr;  ///< (T, E), of which the experts are chosen; null: routes hold the choice
    const float* x = nullptr;       ///< (T, H)
    std::int64_t rows = 0;          ///< T
    float* act = nullptr;           ///< (T, X, stride)
    float* shared_act = nullptr;    ///< (T, shared_stride)
    std::int64_t stride = 0, shared_stride = 0;
};

/// The sum of down(act) over a row's experts in rising id, the shared expert last.
struct ExpertsDown {
    MatrixView routed;                  ///< (E, rows of H here, F')
    MatrixView shared;                  ///< (the same rows, I'); without rows where there is no shared expert
    std::int64_t groups = 0;            ///< E
    Routes routes;                      ///< (T, X)
    const float* act = nullptr;         ///< (T, X, F')
    const float* shared_act = nullptr;  ///< (T, I')
    const float* shared_gate = nullptr;  ///< (T)
    std::int64_t rows = 0;               ///< T
    float* out = nullptr;                ///< (T, stride)
    std::int64_t stride = 0;
};

std::size_t experts_up_scratch(std::int64_t rows, int top_k, std::int64_t experts, std::int64_t cols);
void experts_up(ExpertsUp e, const Card& card, Scratch scratch, cudaStream_t stream);
/// `columns`: output rows held here.
std::size_t experts_down_scratch(std::int64_t rows, int top_k, std::int64_t experts, std::int64_t cols,
                                 std::int64_t shared_cols, std::int64_t columns);
void experts_down(const ExpertsDown& e, const Card& card, Scratch scratch, cudaStream_t stream);

// ---- steps
/// x[t] = table[rows[t].token], (T, H)
void embed(const CudaMatrix& table, const Rows& rows, float* x, cudaStream_t stream);
/// Backend::resolve_tokens(). `rows` travels with the launch, so there is no host memory that a step in
/// flight still needs.
void resolve_tokens(Row* to, std::span<const Row> rows, const std::int32_t* tokens, std::int64_t ids,
                    cudaStream_t stream);
/// n.sum may be n.from.
void norm(const Norm& n, std::int64_t rows, cudaStream_t stream);
/// logits (T, E)
void route(const float* logits, std::int64_t rows, int experts, const Routes& routes, cudaStream_t stream);
/// The same unless experts_up's kernel can do it (`can_fuse`: it will be launched): then true, and nothing
/// done.
bool route_if_apart(const float* logits, std::int64_t rows, int experts, const Routes& routes, bool can_fuse,
                    cudaStream_t stream);
void add(const float* h, const float* y, float* sum, std::int64_t n, cudaStream_t stream);

std::size_t argmax_scratch(std::int64_t rows);
void argmax(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t ids,
            const std::uint8_t* masked, std::int32_t* token, std::int32_t* finite, Scratch scratch,
            cudaStream_t stream);

}  // namespace ftmpi::cuda
