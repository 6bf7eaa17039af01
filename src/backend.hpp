// What the model needs from the place where it runs. Floor 2: no MPI, no CUDA, no model names here.
//
// Conventions: all activations are fp32, row-major (rows, width) in the backend's memory ("device memory",
// which on the CPU is host memory). A "row" is one token of one sequence. Strides are in elements. The
// letters of shapes are those of model.hpp: T rows, H hidden, Q query heads of this rank, ... Calls are
// ordered as on one stream; results are ready for the host only after synchronize() or copy_out(). The
// arithmetic of every call is fixed to the bit by numerics.hpp. Errors are thrown as ftmpi::Error; running
// out of memory is Exit::does_not_fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format.hpp"

namespace ftmpi {

/// A stream of the backend as an opaque value (cudaStream_t on the GPU, null on the CPU).
using Stream = void*;

/// One token to be processed: which token, in which sequence slot, at which absolute position.
/// Rows of one sequence come in rising position without gaps, starting where its state stands.
struct Row {
    std::int32_t token = 0;
    std::int32_t slot = 0;
    std::int32_t position = 0;
};

/// The rows of one step, on the host and in device memory.
struct Rows {
    std::span<const Row> host;
    const Row* device = nullptr;
    bool tokens_on_device = false;  ///< the tokens are in `device` alone, put there by resolve_tokens()
    std::int64_t count() const { return static_cast<std::int64_t>(host.size()); }
};

/// Weights in a backend's own layout.
class Matrix {
public:
    virtual ~Matrix() = default;
    Format format = Format::bf16;
    std::int64_t groups = 1;
    std::int64_t rows = 0;  ///< of one group, without padding
    std::int64_t cols = 0;
    std::size_t bytes = 0;  ///< device memory held
};

/// One matrix applied to the step's input: out[t][r] = sum over k of matrix[r][k] * x[t][k].
struct Projection {
    const Matrix* matrix = nullptr;
    float* out = nullptr;
    std::int64_t stride = 0;  ///< elements between consecutive rows of out
};

/// The norm before a projection: sum = from + plus, then out = RMSNorm(sum). Without `plus` it is of `from`,
/// and `sum` is not written. `sum` must not overlap `from`: a backend may read it after it began to write.
struct Norm {
    const float* from = nullptr;    ///< (T, H)
    const float* plus = nullptr;    ///< (T, H), or null
    float* sum = nullptr;           ///< (T, H)
    const float* weight = nullptr;  ///< (H), as it multiplies
    float eps = 0;
    std::int64_t width = 0;
    float* out = nullptr;  ///< (T, H)
};

/// Gated DeltaNet of this rank's heads in one layer. Value head j uses key head j * key_heads / value_heads.
struct DeltaNet {
    int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, taps = 0;
    float eps = 0;
    const float* conv = nullptr;  ///< (W, L), channels q | k | v; the last tap multiplies the current token
    const float* neg_exp_a = nullptr;  ///< (U): -exp(A_log)
    const float* dt_bias = nullptr;    ///< (U)
    const float* norm = nullptr;       ///< (N), plain weight
    float* conv_state = nullptr;       ///< (S, L - 1, W), raw inputs of earlier tokens, oldest first
    float* state = nullptr;            ///< (S, U, M, N)
    int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

/// Full attention of this rank's query heads in one layer, with or without an output gate.
struct Attention {
    int query_heads = 0;       ///< held by this rank
    int kv_heads = 0;          ///< held by this rank (those its query heads read)
    int first_query_head = 0;  ///< index of the first in the whole model
    int first_kv_head = 0;
    int group = 1;  ///< query heads per key/value head in the whole model
    int head_dim = 0, rotary_dim = 0;
    float eps = 0, scale = 0;       ///< scale of the scores, 1/sqrt(head_dim)
    const float* q_norm = nullptr;  ///< (D), as it multiplies
    const float* k_norm = nullptr;  ///< (D), as it multiplies
    const float* cos = nullptr;     ///< (C, R / 2)
    const float* sin = nullptr;
    KvType kv = KvType::bf16;
    float k_scale = 1, v_scale = 1;  ///< fp8 cache only: stored code * scale is the value
    std::int64_t capacity = 0;       ///< positions a slot holds
    void* keys = nullptr;            ///< (S, K, C, D), after norm and RoPE
    void* values = nullptr;          ///< same shape
    bool gated = true;               ///< the output is multiplied by sigmoid(gate)
};

/// The experts chosen for each row: ids rising, weights adding up to about 1. Both (T, X) in device memory.
struct Routes {
    std::int32_t* experts = nullptr;
    float* weights = nullptr;
    int top_k = 0;
};

/// The largest step a backend will be given and the sizes of this rank's part of the model. A backend sizes
/// its working memory from it once, before decoding. Every number is an upper bound; what does not occur in
/// the model is 0.
struct StepLimits {
    std::int64_t rows = 0;      ///< of one step
    std::int64_t slots = 0;     ///< sequences held at once
    std::int64_t context = 0;   ///< positions a slot holds
    std::int64_t max_cols = 0;  ///< of any matrix given to project()
    std::int64_t hidden = 0, vocab = 0;
    int experts = 0, top_k = 0;
    std::int64_t expert_width = 0, shared_width = 0;          ///< whole intermediate widths
    std::int64_t own_expert_width = 0, own_shared_width = 0;  ///< this rank's part of them
    std::int64_t own_down = 0;                                ///< this rank's rows of the down projection
    int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0,
        taps = 0;                                     ///< delta net, this rank's heads
    int query_heads = 0, kv_heads = 0, head_dim = 0;  ///< attention, this rank's heads
    std::int64_t layers = 0;
    std::size_t array_bytes = 0;  ///< of all weights, caches and arrays that will be allocated; 0: not known
};

/// Facts of the device for the plan, the screen and the result file.
struct DeviceInfo {
    std::string backend;     ///< "cpu" or "cuda"
    std::string name;        ///< processor or GPU name
    std::string uuid;        ///< empty on the CPU
    std::string capability;  ///< "AVX-512", "AVX2", "plain", or a compute capability such as "9.0"
    std::string driver;
    std::size_t total_bytes = 0;
    std::size_t free_bytes = 0;
};

/// Calls that one kernel served while kernels were traced.
struct KernelRun {
    std::string operation;  ///< the operator, with the sizes and formats of its part of the model
    std::int64_t rows = 0;  ///< of the step
    std::string kernel;     ///< its name in the backend; several have " + " between them
    std::int64_t calls = 0;
    double seconds = 0;  ///< of all calls, each measured alone
};

class Backend {
public:
    virtual ~Backend() = default;

    virtual DeviceInfo info() const = 0;

    // --- memory -------------------------------------------------------------------------------------------
    /// `bytes` of zeroed device memory, at least 64-byte aligned; `what` names it in an error. 0 bytes give
    /// null.
    virtual void* allocate(std::size_t bytes, std::string_view what) = 0;
    virtual void release(void* p) noexcept = 0;
    /// Device memory that is allocated, loaded and reserved now: what was asked for, without what the device
    /// adds to it.
    virtual std::size_t allocated_bytes() const { return 0; }
    virtual void copy_in(void* device, const void* host, std::size_t bytes) = 0;
    virtual void copy_out(void* host, const void* device, std::size_t bytes) = 0;
    virtual void fill_zero(void* device, std::size_t bytes) = 0;
    virtual void synchronize() = 0;
    virtual Stream stream() const = 0;
    /// True when calls return before their work is done: then the host gains time by asking for the next step
    /// meanwhile.
    virtual bool asynchronous() const { return false; }

    /// Host memory that copies to and from the device go through fastest; 64-byte aligned. 0 bytes give null.
    virtual void* allocate_host(std::size_t bytes, std::string_view) {
        return bytes ? ::operator new (bytes, std::align_val_t{64}) : nullptr;
    }
    virtual void release_host(void* p) noexcept { ::operator delete (p, std::align_val_t{64}); }
    /// Copies out behind the calls made so far, beside those that follow. `host` is of allocate_host(); it
    /// holds the data when wait_copy() with the number returned has returned. Until then the device memory
    /// may only be written by calls that follow a fence_copies().
    virtual std::uint64_t copy_async(void* host, const void* device, std::size_t bytes) {
        copy_out(host, device, bytes);
        return 0;
    }
    /// The host waits for a copy_async(). From any thread.
    virtual void wait_copy(std::uint64_t) {}
    /// Calls that follow wait for every copy_async() started before. Within replay(): before the replay.
    virtual void fence_copies() {}

    /// Runs `record`, or does again what it did when it was run for the same owner and key. So all that it
    /// does must be calls of this backend and of a communicator that is capturable, which depend on the key
    /// alone and on what device memory holds: pointers, sizes and Rows::host (but for positions) are the same
    /// each time. It does not wait and copies nothing from or to the host.
    virtual void replay(const void* owner, std::uint64_t key, const std::function<void()>& record) {
        static_cast<void>(owner), static_cast<void>(key);
        record();
    }
    /// Forgets what replay() keeps of this owner. To be called before anything that its records use goes
    /// away.
    virtual void forget_replays(const void*) noexcept {}

    /// Bytes a second of a kernel that only reads, from memory too large for any cache; takes memory for it
    /// while it runs. 0: not known.
    virtual double measure_read_rate() { return 0; }

    /// Error(Exit::bad_input) for a model that this backend cannot run, with what it can; asked before memory
    /// is taken for it.
    virtual void check_limits(const StepLimits&) const {}
    /// Device memory that reserve() takes for these limits; the plan counts it as workspace.
    virtual std::size_t scratch_bytes(const StepLimits&) const { return 0; }
    /// Device memory that the driver will take beside what is held, for replays and for whole pages: an upper
    /// bound for the plan.
    virtual std::size_t driver_bytes(const StepLimits&) const { return 0; }
    /// Takes the working memory for steps within these limits. Without it a backend takes memory when a step
    /// needs it; after it no step allocates, and a step beyond the limits is an Error(Exit::failure) with the
    /// numbers. Called again when the weights are there, it gives back what loading took.
    virtual void reserve(const StepLimits&) {}

    // --- weights ------------------------------------------------------------------------------------------
    /// Copies rows out of the mapped file into the backend's layout. Refuses (Exit::bad_input, naming the
    /// tensor, the count and the first index) NaN codes and scales that are NaN, negative or infinite.
    virtual std::unique_ptr<Matrix> load(const MatrixSource& source) = 0;
    /// A lookup table (V, H) of bf16, f16 or f32 that stays in host memory (the mapped file) or is
    /// copied to the device.
    virtual std::unique_ptr<Matrix> load_table(const MatrixSource& source, bool on_host) = 0;

    /// True: project() and attention() of the calls that follow may round activations to bf16 and use tensor
    /// cores for floating weights, keys and values. A row's result then still does not depend on the other
    /// rows of the step or the matrix, and is the same on backends of one kind. A backend without such a way
    /// stays exact.
    virtual void set_fast(bool) {}

    /// True: every step's call that follows notes which kernel served it and how long it took, each by
    /// itself, and replay() runs plainly. A backend that cannot notes nothing.
    virtual void trace_kernels(bool) {}
    /// What was noted since the last call, in the order of first calls.
    virtual std::vector<KernelRun> traced_kernels() { return {}; }

    // --- steps of the model -------------------------------------------------------------------------------
    /// x[t] = table[rows[t].token]
    virtual void embed(const Matrix& table, const Rows& rows, float* x) = 0;
    /// True when embed() takes rows of this table whose tokens are on the device.
    virtual bool embeds_from_device(const Matrix&) const { return true; }
    /// The rows of a step whose tokens the step before chooses: to[t] = rows[t], but its token is
    /// tokens[rows[t].token] as that stands when the calls before have run, and 0 where it is not in [0,
    /// ids). `to` and `tokens` are in device memory; `rows` has been read when the call returns.
    virtual void resolve_tokens(Row* to, std::span<const Row> rows, const std::int32_t* tokens,
                                std::int64_t ids) = 0;
    /// y[t] = x[t] / rms(x[t]) * weight, weight as it multiplies (1 + w in families that store w so).
    virtual void rms_norm(const float* x, const float* weight, float eps, std::int64_t rows,
                          std::int64_t width, float* y) = 0;
    /// Several matrices that read the same input x (T, cols).
    virtual void project(std::span<const Projection> to, const float* x, std::int64_t rows) = 0;
    /// out[t][own columns], `stride` between rows; reads and advances conv_state and state.
    /// qkv (T, W), z (T, U * N), b and a (T, U).
    virtual void delta_net(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z,
                           const float* b, const float* a, float* out, std::int64_t stride) = 0;
    /// out[t][own columns]; appends to the cache. qg (T, Q, 2 * D), query then gate of each head, without a
    /// gate (T, Q, D); k and v (T, K, D).
    virtual void attention(const Attention& attention, const Rows& rows, const float* qg, const float* k,
                           const float* v, float* out, std::int64_t stride) = 0;
    /// Top-k experts of each row: the k largest logits (ties to the lower id), ids rising, weights
    /// exp-normalised.
    virtual void route(const float* logits, std::int64_t rows, int experts, const Routes& routes) = 0;
    /// norm, then project(to, norm.out, rows): both in one.
    virtual void norm_project(const Norm& norm, std::span<const Projection> to, std::int64_t rows) {
        this->norm(norm, rows);
        project(to, norm.out, rows);
    }
    /// Gate and up rows of the chosen experts and of the shared expert, this rank's rows only. `shared` null:
    /// the model has no shared expert, and shared_act is null and not used.
    /// routed: E groups of F gate rows then F up rows. act (T, X, stride) and shared_act (T, shared_stride)
    /// point at this rank's first column: act = silu(gate) * up.
    virtual void experts_up(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* x,
                            std::int64_t rows, float* act, std::int64_t stride, float* shared_act,
                            std::int64_t shared_stride) = 0;
    /// out[t][own columns] = sum over chosen experts (rising id) of weight * down(act), then the shared
    /// expert times sigmoid(shared_gate[t]). act (T, X, F') and shared_act (T, I') are whole (gathered)
    /// here, without gaps between rows. `shared` null: no shared expert; shared_act and shared_gate are null
    /// and not read.
    virtual void experts_down(const Matrix& routed, const Matrix* shared, const Routes& routes,
                              const float* act, const float* shared_act, const float* shared_gate,
                              std::int64_t rows, float* out, std::int64_t stride) = 0;
    /// route(), then experts_up(): both in one.
    virtual void route_up(const float* logits, int experts, const Matrix& routed, const Matrix* shared,
                          const Routes& routes, const float* x, std::int64_t rows, float* act,
                          std::int64_t stride, float* shared_act, std::int64_t shared_stride) {
        route(logits, rows, experts, routes);
        experts_up(routed, shared, routes, x, rows, act, stride, shared_act, shared_stride);
    }
    /// sum = h + y, n elements; sum may be h.
    virtual void add(const float* h, const float* y, float* sum, std::int64_t n) = 0;
    /// As Norm says; here `sum` may also be `from`.
    virtual void norm(const Norm& n, std::int64_t rows) {
        if (n.plus) add(n.from, n.plus, n.sum, rows * n.width);
        rms_norm(n.plus ? n.sum : n.from, n.weight, n.eps, rows, n.width, n.out);
    }
    /// token[t] = id of the largest logit among ids below `ids` whose `masked` byte is 0 (lowest id on a
    /// tie); finite[t] = 0 when any logit among ids below `ids` is not finite. masked may be null. Device
    /// pointers.
    virtual void argmax(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t ids,
                        const std::uint8_t* masked, std::int32_t* token, std::int32_t* finite) = 0;
};

/// Counts into `to` the bytes that the backend allocates during a scope, less those that it releases.
class AllocationCounter {
public:
    AllocationCounter(const Backend& backend, std::uint64_t& to)
        : backend_(backend), to_(to), before_(backend.allocated_bytes()) {}
    AllocationCounter(const AllocationCounter&) = delete;
    AllocationCounter& operator=(const AllocationCounter&) = delete;
    ~AllocationCounter() { to_ += backend_.allocated_bytes() - before_; }

private:
    const Backend& backend_;
    std::uint64_t& to_;
    std::size_t before_;
};

/// Memory of a backend that releases itself; not initialised.
template <class T, auto kAllocate, auto kRelease> class BackendArray {
public:
    BackendArray() = default;
    BackendArray(Backend& backend, std::int64_t count, std::string_view what)
        : backend_(&backend), count_(count),
          data_(static_cast<T*>((backend.*kAllocate)(static_cast<std::size_t>(count) * sizeof(T), what))) {}
    BackendArray(BackendArray&& o) noexcept { swap(o); }
    BackendArray& operator=(BackendArray&& o) noexcept {
        swap(o);
        return *this;
    }
    ~BackendArray() {
        if (data_) (backend_->*kRelease)(data_);
    }

    T* data() const { return data_; }
    std::int64_t size() const { return count_; }
    std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }
    std::span<T> span() const { return {data_, static_cast<std::size_t>(count_)}; }

private:
    void swap(BackendArray& o) noexcept {
        std::swap(backend_, o.backend_);
        std::swap(count_, o.count_);
        std::swap(data_, o.data_);
    }
    Backend* backend_ = nullptr;
    std::int64_t count_ = 0;
    T* data_ = nullptr;
};

/// Where kernels compute.
template <class T> using DeviceArray = BackendArray<T, &Backend::allocate, &Backend::release>;
/// Host memory that copies to and from there are fast with.
template <class T> using HostArray = BackendArray<T, &Backend::allocate_host, &Backend::release_host>;

}  // namespace ftmpi
