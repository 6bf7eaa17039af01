// The contract of backend.hpp on a GPU: memory, facts, and one launcher a step.
#include "backend.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "../../src/error.hpp"
#include "../../src/kernel_trace.hpp"
#include "../../src/numerics.hpp"
#include "../device_code.hpp"
#include "../kernels.hpp"
#include "arrays.hpp"
#include "graphs.hpp"
#include "handles.hpp"
#include "matrix.hpp"
#include "read_rate.hpp"
#include "transfers.hpp"

namespace ftmpi {
namespace {

using namespace cuda;

__global__ void probe() {}

/// The device made current, its context with all modules loaded, and a check that kernels run on it.
cudaDeviceProp open_device(int device) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);  // read when the context is made
    int count = 0;
    if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess || count == 0)
        throw Error(Exit::failure,
                    "no GPU is usable here: " +
                        std::string(e == cudaSuccess ? "none is visible" : cudaGetErrorString(e)),
                    "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use --backend cpu");
    if (device < 0 || device >= count)
        throw Error(Exit::failure, "GPU " + std::to_string(device) + " was asked for, this process sees " +
                                       std::to_string(count));
    cudaDeviceProp properties{};
    FTMPI_CUDA(cudaGetDeviceProperties(&properties, device));
    // Modules that are loaded eagerly are missed where the context is made, the others where a kernel is
    // asked for.
    cudaFuncAttributes attributes{};
    const char* call = "cudaSetDevice";
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaFree(nullptr), call = "cudaFree";
    if (e == cudaSuccess)
        e = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe)),
        call = "cudaFuncGetAttributes";
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction ||
        e == cudaErrorUnsupportedPtxVersion) {
        cudaGetLastError();
        throw Error(Exit::failure,
                    "this program holds no code for " + std::string(properties.name) +
                        " (compute capability " + std::to_string(properties.major) + "." +
                        std::to_string(properties.minor) + "): " + cudaGetErrorString(e),
                    "build with -DFTMPI_CUDA_ARCHS=" + std::to_string(properties.major) +
                        std::to_string(properties.minor) + " or use a newer driver");
    }
    check(e, call, __FILE__);
    return properties;
}

/// Without rows where there is no matrix.
MatrixView view_of(const Matrix* m) { return m ? cuda_matrix(*m).view() : MatrixView{}; }

class CudaBackend : public Backend {
public:
    explicit CudaBackend(const CudaOptions& options)
        : device_(options.device), properties_(open_device(options.device)), loader_(stream_.get()),
          behind_(stream_.get(), options.device), replays_(stream_.get()) {
        card_ = {properties_.multiProcessorCount, properties_.sharedMemPerBlockOptin};
        launch("probe", probe, dim3(1), dim3(1), 0, stream_.get());
        tickets_ = DeviceArray<unsigned>(*this, kTickets, "counters");
        synchronize();
    }
    ~CudaBackend() override { cudaStreamSynchronize(stream_.get()); }

    DeviceInfo info() const override {
        DeviceInfo d;
        d.backend = "cuda";
        d.name = properties_.name;
        d.uuid = gpu_uuid(device_);
        d.capability = std::to_string(properties_.major) + "." + std::to_string(properties_.minor);
        int version = 0;
        FTMPI_CUDA(cudaDriverGetVersion(&version));
        std::ifstream("/sys/module/nvidia/version") >> d.driver;
        d.driver += (d.driver.empty() ? "CUDA " : ", CUDA ") + std::to_string(version / 1000) + "." +
                    std::to_string(version % 1000 / 10);
        FTMPI_CUDA(cudaMemGetInfo(&d.free_bytes, &d.total_bytes));
        return d;
    }
    double measure_read_rate() override { return cuda::read_rate(card_.multiprocessors, stream_.get()); }

    void* allocate(std::size_t bytes, std::string_view what) override {
        if (bytes == 0) return nullptr;
        void* p = arrays_.take(bytes, what);
        if (const cudaError_t e = cudaMemsetAsync(p, 0, bytes, stream_.get()); e != cudaSuccess) {
            arrays_.give_back(p);
            check(e, "cudaMemsetAsync", __FILE__, what);
        }
        return p;
    }
    void release(void* p) noexcept override {
        if (p) arrays_.give_back(p);
    }
    std::size_t allocated_bytes() const override { return arrays_.allocated() + scratch_.bytes(); }
    void copy_in(void* device, const void* host, std::size_t bytes) override {
        if (bytes == 0) return;
        if (bytes <= SmallCopies::kMost) return small_.in(device, host, bytes, stream_.get());
        FTMPI_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_.get()));
        // Pageable memory has been read when the call returns, page-locked memory may not have been.
        cudaPointerAttributes attributes{};
        FTMPI_CUDA(cudaPointerGetAttributes(&attributes, host));
        if (attributes.type != cudaMemoryTypeUnregistered) synchronize();
    }
    void copy_out(void* host, const void* device, std::size_t bytes) override {
        if (bytes && bytes <= SmallCopies::kMost) return small_.out(host, device, bytes, stream_.get());
        if (bytes) FTMPI_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_.get()));
        synchronize();
    }
    void fill_zero(void* device, std::size_t bytes) override {
        if (bytes) FTMPI_CUDA(cudaMemsetAsync(device, 0, bytes, stream_.get()));
    }
    void synchronize() override { FTMPI_CUDA(cudaStreamSynchronize(stream_.get())); }
    Stream stream() const override { return stream_.get(); }
    bool asynchronous() const override { return true; }

    void* allocate_host(std::size_t bytes, std::string_view what) override {
        void* p = nullptr;
        if (bytes) FTMPI_CUDA_ALLOCATE(cudaHostAlloc(&p, bytes, cudaHostAllocPortable), what, bytes);
        return p;
    }
    void release_host(void* p) noexcept override {
        if (p) cudaFreeHost(p);
    }
    std::uint64_t copy_async(void* host, const void* device, std::size_t bytes) override {
        return behind_.start(host, device, bytes);
    }
    void wait_copy(std::uint64_t ticket) override { behind_.wait(ticket); }
    void fence_copies() override { behind_.hold(replays_.capturing()); }
    void replay(const void* owner, std::uint64_t key, const std::function<void()>& record) override {
        if (trace_) record();
        else replays_.run(owner, key, record);
    }
    void forget_replays(const void* owner) noexcept override { replays_.forget(owner); }

    void check_limits(const StepLimits& l) const override {
        check_attention_limits(l);
        check_delta_net_limits(l);
        check_columns_limits(l, card_);
        check_experts_limits(l, card_);
    }
    std::size_t scratch_bytes(const StepLimits& l) const override {
        return std::max({argmax_scratch(l.rows),
                         delta_net_scratch(l.rows, l.key_heads, l.value_heads, l.key_dim, l.value_dim),
                         attention_scratch(l.rows, l.query_heads, l.head_dim, l.context),
                         matrices_scratch(l)});
    }
    std::size_t driver_bytes(const StepLimits& l) const override {
        // A recorded step has some twenty nodes a layer of up to 4 KiB each; memory comes in pages of 2 MiB.
        const auto graphs = static_cast<std::size_t>(std::min(l.slots, std::int64_t{Replays::kMost}));
        return graphs * static_cast<std::size_t>(20 * l.layers + 20) * 4096 + (std::size_t{8} << 20);
    }
    void reserve(const StepLimits& limits) override {
        loader_.release();
        arrays_.open(limits.array_bytes);
        grow(scratch_bytes(limits));
        for (Gather& g : gathers_)
            g.grow(static_cast<std::size_t>(limits.rows * limits.hidden) * sizeof(float));
        reserved_ = true;
    }

    std::unique_ptr<Matrix> load(const MatrixSource& source) override {
        check_shape(source);
        auto matrix = std::make_unique<CudaMatrix>(*this, source);
        loader_.load(source, matrix->view());
        return matrix;
    }
    std::unique_ptr<Matrix> load_table(const MatrixSource& source, bool on_host) override {
        check_table(source);
        auto table = std::make_unique<CudaTable>();
        table->rows = source.rows;
        table->cols = source.cols;
        if (on_host) {
            for (const RowBlock& b : source.blocks)
                table->stored.add(source.format, b.rows, b.codes, b.pitch, b.name);
        } else {
            table->device = std::make_unique<CudaMatrix>(*this, source);
            loader_.load(source, table->device->view());
            table->bytes = table->device->bytes;
        }
        return table;
    }

    void set_fast(bool fast) override { fast_ = fast; }
    void trace_kernels(bool on) override {
        if (on == (trace_ != nullptr)) return;
        trace_ = on ? std::make_unique<Trace>() : nullptr;
    }
    std::vector<KernelRun> traced_kernels() override {
        return trace_ ? trace_->kernels.take() : std::vector<KernelRun>{};
    }

    void embed(const Matrix& matrix, const Rows& rows, float* x) override {
        const auto* table = dynamic_cast<const CudaTable*>(&matrix);
        if (!table) throw Error(Exit::failure, "a matrix that is no lookup table was given to embed");
        if (rows.count() == 0) return;
        touched_.clear();
        if (rows.tokens_on_device) {
            if (!table->device)
                throw Error(Exit::failure,
                            "an embedding in host memory was asked for tokens that the host does not know");
            return cuda::embed(*table->device, rows, x, stream_.get());
        }
        for (const Row& row : rows.host)
            if (row.token < 0 || row.token >= table->rows)
                throw Error(Exit::bad_input, "token id " + std::to_string(row.token) + " is not among the " +
                                                 std::to_string(table->rows) + " rows of the embedding");
        if (table->device) return cuda::embed(*table->device, rows, x, stream_.get());
        Gather& gather = gathers_[next_gather_++ % 2];
        gather.free.wait();
        const auto bytes = static_cast<std::size_t>(rows.count() * table->cols) * sizeof(float);
        gather.grow(bytes);
        auto* to = static_cast<float*>(gather.memory.data());
        for (const Row& row : rows.host) {
            table->stored.copy_row(row.token, table->cols, to);
            to += table->cols;
        }
        FTMPI_CUDA(cudaMemcpyAsync(x, gather.memory.data(), bytes, cudaMemcpyHostToDevice, stream_.get()));
        gather.free.record(stream_.get());
    }
    bool embeds_from_device(const Matrix& matrix) const override {
        const auto* table = dynamic_cast<const CudaTable*>(&matrix);
        return table && table->device;
    }
    void resolve_tokens(Row* to, std::span<const Row> rows, const std::int32_t* tokens,
                        std::int64_t ids) override {
        cuda::resolve_tokens(to, rows, tokens, ids, stream_.get());
    }
    void rms_norm(const float* x, const float* weight, float eps, std::int64_t rows, std::int64_t width,
                  float* y) override {
        norm({.from = x, .weight = weight, .eps = eps, .width = width, .out = y}, rows);
    }
    void project(std::span<const Projection> to, const float* x, std::int64_t rows) override {
        traced([&] { return operation_name(to); }, rows,
               [&] {
                   const std::int64_t cols = to.empty() ? 0 : to[0].matrix->cols;
                   cuda::project(to, x, rows, card_, scratch(project_scratch(rows, cols)), stream_.get(),
                                 fast_);
               });
    }
    void norm_project(const Norm& norm, std::span<const Projection> to, std::int64_t rows) override {
        traced([&] { return "norm, " + operation_name(to); }, rows,
               [&] {
                   cuda::norm_project(norm, to, rows, card_, scratch(project_scratch(rows, norm.width)),
                                      stream_.get(), fast_);
               });
    }
    void delta_net(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z, const float* b,
                   const float* a, float* out, std::int64_t stride) override {
        traced([&] { return operation_name(net); }, rows.count(),
               [&] {
                   const auto need = delta_net_scratch(rows.count(), net.key_heads, net.value_heads,
                                                       net.key_dim, net.value_dim);
                   cuda::delta_net(net, rows, qkv, z, b, a, out, stride, scratch(need), stream_.get(),
                                   touch(net.state));
               });
    }
    void attention(const Attention& t, const Rows& rows, const float* qg, const float* k, const float* v,
                   float* out, std::int64_t stride) override {
        traced([&] { return operation_name(t); }, rows.count(),
               [&] {
                   const auto need = attention_scratch(rows.count(), t.query_heads, t.head_dim, t.capacity);
                   cuda::attention(t, rows, qg, k, v, out, stride, scratch(need), stream_.get(), fast_,
                                   touch(t.keys));
               });
    }
    void route(const float* logits, std::int64_t rows, int experts, const Routes& routes) override {
        traced([&] { return std::string("route"); }, rows,
               [&] { cuda::route(logits, rows, experts, routes, stream_.get()); });
    }
    void experts_up(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* x,
                    std::int64_t rows, float* act, std::int64_t stride, float* shared_act,
                    std::int64_t shared_stride) override {
        route_up(nullptr, static_cast<int>(routed.groups), routed, shared, routes, x, rows, act, stride,
                 shared_act, shared_stride);
    }
    void route_up(const float* logits, int experts, const Matrix& routed, const Matrix* shared,
                  const Routes& routes, const float* x, std::int64_t rows, float* act, std::int64_t stride,
                  float* shared_act, std::int64_t shared_stride) override {
        const char* const what = logits ? "route, experts_up" : "experts_up";
        traced([&] { return operation_name(what, routed, shared); }, rows,
               [&] {
                   const auto need = experts_up_scratch(rows, routes.top_k, experts,
                                                        std::max(routed.cols, shared ? shared->cols : 0));
                   cuda::experts_up({view_of(&routed), view_of(shared), experts, routes, logits, x, rows, act,
                                     shared_act, stride, shared_stride},
                                    card_, scratch(need), stream_.get());
               });
    }
    void experts_down(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* act,
                      const float* shared_act, const float* shared_gate, std::int64_t rows, float* out,
                      std::int64_t stride) override {
        traced([&] { return operation_name("experts_down", routed, shared); }, rows,
               [&] {
                   const auto need = experts_down_scratch(rows, routes.top_k, routed.groups, routed.cols,
                                                          shared ? shared->cols : 0, routed.rows);
                   cuda::experts_down({view_of(&routed), view_of(shared), static_cast<int>(routed.groups),
                                       routes, act, shared_act, shared_gate, rows, out, stride},
                                      card_, scratch(need), stream_.get());
               });
    }
    void add(const float* h, const float* y, float* sum, std::int64_t n) override {
        traced([&] { return std::string("add"); }, 1, [&] { cuda::add(h, y, sum, n, stream_.get()); });
    }
    void norm(const Norm& n, std::int64_t rows) override {
        traced([&] { return std::string("norm"); }, rows, [&] { cuda::norm(n, rows, stream_.get()); });
    }
    void argmax(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t ids,
                const std::uint8_t* masked, std::int32_t* token, std::int32_t* finite) override {
        traced([&] { return std::string("argmax"); }, rows,
               [&] {
                   cuda::argmax(logits, rows, stride, ids, masked, token, finite,
                                scratch(argmax_scratch(rows)), stream_.get());
               });
    }

private:
    struct Trace {
        KernelTrace kernels;
        EventHandle begin{cudaEventDefault}, end{cudaEventDefault};
    };
    /// A step's call; traced: between two events, waited for. `name` is asked for only then.
    template <class Name, class Call> void traced(Name name, std::int64_t rows, Call call) {
        if (!trace_) return call();
        const Chosen chosen;
        trace_->begin.record(stream_.get());
        call();
        trace_->end.record(stream_.get());
        trace_->end.wait();
        float milliseconds = 0;
        FTMPI_CUDA(cudaEventElapsedTime(&milliseconds, trace_->begin.get(), trace_->end.get()));
        const std::string kernels = chosen.names(), operation = name();
        trace_->kernels.add(operation, rows, kernels.empty() ? "steps: " + operation : kernels,
                            milliseconds * 1e-3);
    }

    /// Page-locked memory that a kernel reads the step's embedding rows from.
    struct Gather {
        PinnedMemory memory;
        EventHandle free;
        void grow(std::size_t bytes) {
            if (bytes > memory.bytes())
                memory = PinnedMemory(bytes, "embedding rows in page-locked host memory");
        }
    };

    static std::size_t matrices_scratch(const StepLimits& l) {
        return std::max(
            {experts_up_scratch(l.rows, l.top_k, l.experts, l.hidden),
             experts_down_scratch(l.rows, l.top_k, l.experts, l.expert_width, l.shared_width, l.own_down),
             project_scratch(l.rows, l.max_cols)});
    }
    void grow(std::size_t bytes) {
        if (bytes <= scratch_.bytes()) return;
        replays_.clear();  // they use the old one
        scratch_ = DeviceMemory();
        scratch_ = DeviceMemory(bytes, "working memory");
    }
    Scratch scratch(std::size_t need) {
        if (need > scratch_.bytes()) {
            if (reserved_)
                throw Error(Exit::failure, "a step needs " + std::to_string(need) +
                                               " bytes of working memory, " +
                                               std::to_string(scratch_.bytes()) + " were reserved");
            grow(need);
        }
        return {scratch_.data(), scratch_.bytes(), tickets_.data()};
    }

    /// True when the step has not touched this layer's state before. embed(), or the launch that follows on a
    /// false, waits for every kernel before it.
    bool touch(const void* state) {
        const bool first = std::find(touched_.begin(), touched_.end(), state) == touched_.end();
        if (!first) touched_.clear();
        touched_.push_back(state);
        return first;
    }

    int device_;
    cudaDeviceProp properties_;
    StreamHandle stream_;
    Arrays arrays_;
    Card card_;
    Loader loader_;
    DeviceArray<unsigned> tickets_;
    DeviceMemory scratch_;
    bool reserved_ = false, fast_ = false;
    std::vector<const void*> touched_;  ///< states and caches since the last embed()
    Gather gathers_[2];
    std::size_t next_gather_ = 0;
    SmallCopies small_;
    CopiesBehind behind_;
    Replays replays_;
    std::unique_ptr<Trace> trace_;  ///< null: kernels are not traced
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
    return std::make_unique<CudaBackend>(options);
}

}  // namespace ftmpi
