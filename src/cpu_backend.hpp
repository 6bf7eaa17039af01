// The backend that runs in host memory: 1 or more threads, plain, AVX2 or AVX-512 kernels, all with the same
// bits.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backend.hpp"
#include "kernel_trace.hpp"

namespace ftmpi {

enum class Simd { plain, avx2, avx512, avx512vnni, avx512amx };

/// True when this processor (and system) runs the kernels of `simd`.
bool supported(Simd simd);

/// The widest supported one, or what the environment variable FTMPI_SIMD (plain, avx2, avx512, avx512vnni,
/// avx512amx) asks for. Throws Error(Exit::usage) when that is unknown or not supported here.
Simd default_simd();

class Threads;

namespace cpu {
struct Kernels;
struct TileView;
struct InputRow;
struct QuantChunk;
struct WideRow;

/// Host memory that grows and is never shrunk; contents are lost when it grows.
class Scratch {
public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch();
    template <class T> T* get(std::size_t count) { return static_cast<T*>(bytes(count * sizeof(T))); }

private:
    void* bytes(std::size_t n);
    void* data_ = nullptr;
    std::size_t size_ = 0;
};
}  // namespace cpu

class CpuBackend : public Backend {
public:
    /// threads >= 1. Throws Error(Exit::failure) when a thread flushes denormals (that would change bits).
    CpuBackend(int threads, Simd simd);
    ~CpuBackend() override;

    DeviceInfo info() const override;

    void* allocate(std::size_t bytes, std::string_view what) override;
    void release(void* p) noexcept override;
    std::size_t allocated_bytes() const override;
    void copy_in(void* device, const void* host, std::size_t bytes) override;
    void copy_out(void* host, const void* device, std::size_t bytes) override;
    void fill_zero(void* device, std::size_t bytes) override;
    void synchronize() override {}
    Stream stream() const override { return nullptr; }
    double measure_read_rate() override;

    std::unique_ptr<Matrix> load(const MatrixSource& source) override;
    std::unique_ptr<Matrix> load_table(const MatrixSource& source, bool on_host) override;

    void trace_kernels(bool on) override;
    std::vector<KernelRun> traced_kernels() override { return trace_.take(); }

    void embed(const Matrix& table, const Rows& rows, float* x) override;
    void resolve_tokens(Row* to, std::span<const Row> rows, const std::int32_t* tokens,
                        std::int64_t ids) override;
    void rms_norm(const float* x, const float* weight, float eps, std::int64_t rows, std::int64_t width,
                  float* y) override;
    void project(std::span<const Projection> to, const float* x, std::int64_t rows) override;
    void delta_net(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z, const float* b,
                   const float* a, float* out, std::int64_t stride) override;
    void attention(const Attention& attention, const Rows& rows, const float* qg, const float* k,
                   const float* v, float* out, std::int64_t stride) override;
    void route(const float* logits, std::int64_t rows, int experts, const Routes& routes) override;
    void experts_up(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* x,
                    std::int64_t rows, float* act, std::int64_t stride, float* shared_act,
                    std::int64_t shared_stride) override;
    void experts_down(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* act,
                      const float* shared_act, const float* shared_gate, std::int64_t rows, float* out,
                      std::int64_t stride) override;
    void add(const float* h, const float* y, float* sum, std::int64_t n) override;
    void argmax(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t ids,
                const std::uint8_t* masked, std::int32_t* token, std::int32_t* finite) override;

private:
    /// Notes the call that it lives through, when kernels are traced.
    class Traced;

    /// Runs task(i, thread) for i in [0, count); on all threads when the work (in multiply-adds) is worth it.
    template <class Task> void parallel(std::int64_t count, double work, Task task);
    void check_denormals();

    /// What matrices of some formats read beside the floats.
    struct Coded {
        bool chunks = false;  ///< 4-bit formats
        bool wide = false;    ///< FP8
        void add(const Matrix& m);
    };
    /// Input rows of a step, coded as asked for; the codes lie in `codes`.
    const cpu::InputRow* inputs(const float* x, std::int64_t rows, std::int64_t cols, Coded coded,
                                cpu::Scratch& codes, std::vector<cpu::InputRow>& to);

    /// Expert choices of all rows sorted by expert: choices of expert e are order_[begin_[e] .. begin_[e +
    /// 1]).
    void group_by_expert(const Routes& routes, std::int64_t rows, std::int64_t experts);

    /// Rows of the step by slot, in order of first appearance.
    struct Sequence {
        std::int32_t slot;
        std::vector<std::int64_t> rows;
    };
    std::vector<Sequence> sequences(const Rows& rows) const;

    int threads_;
    std::unique_ptr<Threads> pool_;
    Simd simd_;
    const cpu::Kernels& kernels_;
    mutable std::mutex mutex_;
    std::unordered_map<void*, std::size_t> sizes_;  ///< of what is allocated
    std::size_t allocated_ = 0;
    cpu::Scratch codes_, shared_codes_, floats_, results_;
    std::vector<cpu::InputRow> inputs_, shared_inputs_;
    std::vector<std::int64_t> order_, begin_;
    KernelTrace trace_;
    bool tracing_ = false;
};

/// threads >= 1; simd by default as default_simd() says.
std::unique_ptr<Backend> make_cpu_backend(int threads, std::optional<Simd> simd = std::nullopt);

}  // namespace ftmpi
