// The CPU's arithmetic, done as late as a GPU far behind its host may do it: calls only queue; the queue runs
// when the host waits for something, and then to its end, before a copy behind it is carried out that no one
// has held for. So a host that reads before it waits finds old data, and a copy whose source is written again
// without a hold is wrong, every time.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "cpu_backend.hpp"

namespace ftmpi::testing {

class LateBackend : public CpuBackend {
public:
    LateBackend() : CpuBackend(1, default_simd()) {}
    ~LateBackend() override { synchronize(); }

    bool asynchronous() const override { return true; }
    void release(void* p) noexcept override {
        synchronize();
        CpuBackend::release(p);
    }
    void synchronize() override {
        const std::lock_guard lock(mutex_);
        run(asked_);
    }
    void copy_in(void* device, const void* host, std::size_t bytes) override {
        const auto* from = static_cast<const std::byte*>(host);
        queue([=, data = std::vector<std::byte>(from, from + bytes)] {
            if (!data.empty()) std::memcpy(device, data.data(), data.size());
        });
    }
    void copy_out(void* host, const void* device, std::size_t bytes) override {
        synchronize();
        CpuBackend::copy_out(host, device, bytes);
    }
    void fill_zero(void* device, std::size_t bytes) override {
        queue([=, this] { CpuBackend::fill_zero(device, bytes); });
    }
    std::uint64_t copy_async(void* host, const void* device, std::size_t bytes) override {
        const std::lock_guard lock(mutex_);
        copies_.push_back({host, device, bytes, asked_});
        return ++copies_asked_;
    }
    void wait_copy(std::uint64_t ticket) override {
        const std::lock_guard lock(mutex_);
        run(asked_);
        copy(ticket);
    }
    void fence_copies() override {
        const std::lock_guard lock(mutex_);
        queue([this, until = copies_asked_] { copy(until); });
    }

    void embed(const Matrix& table, const Rows& rows, float* x) override {
        queue([=, this, &table, kept = Kept(rows)] { CpuBackend::embed(table, kept.rows(), x); });
    }
    void resolve_tokens(Row* to, std::span<const Row> rows, const std::int32_t* tokens,
                        std::int64_t ids) override {
        queue([=, this, kept = std::vector<Row>(rows.begin(), rows.end())] {
            CpuBackend::resolve_tokens(to, kept, tokens, ids);
        });
    }
    void rms_norm(const float* x, const float* weight, float eps, std::int64_t rows, std::int64_t width,
                  float* y) override {
        queue([=, this] { CpuBackend::rms_norm(x, weight, eps, rows, width, y); });
    }
    void project(std::span<const Projection> to, const float* x, std::int64_t rows) override {
        queue([=, this, kept = std::vector<Projection>(to.begin(), to.end())] {
            CpuBackend::project(kept, x, rows);
        });
    }
    void delta_net(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z, const float* b,
                   const float* a, float* out, std::int64_t stride) override {
        queue([=, this, kept = Kept(rows)] {
            CpuBackend::delta_net(net, kept.rows(), qkv, z, b, a, out, stride);
        });
    }
    void attention(const Attention& t, const Rows& rows, const float* qg, const float* k, const float* v,
                   float* out, std::int64_t stride) override {
        queue([=, this, kept = Kept(rows)] { CpuBackend::attention(t, kept.rows(), qg, k, v, out, stride); });
    }
    void route(const float* logits, std::int64_t rows, int experts, const Routes& routes) override {
        queue([=, this] { CpuBackend::route(logits, rows, experts, routes); });
    }
    void experts_up(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* x,
                    std::int64_t rows, float* act, std::int64_t stride, float* shared_act,
                    std::int64_t shared_stride) override {
        queue([=, this, &routed] {
            CpuBackend::experts_up(routed, shared, routes, x, rows, act, stride, shared_act, shared_stride);
        });
    }
    void experts_down(const Matrix& routed, const Matrix* shared, const Routes& routes, const float* act,
                      const float* shared_act, const float* shared_gate, std::int64_t rows, float* out,
                      std::int64_t stride) override {
        queue([=, this, &routed] {
            CpuBackend::experts_down(routed, shared, routes, act, shared_act, shared_gate, rows, out, stride);
        });
    }
    void add(const float* h, const float* y, float* sum, std::int64_t n) override {
        queue([=, this] { CpuBackend::add(h, y, sum, n); });
    }
    void argmax(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t ids,
                const std::uint8_t* masked, std::int32_t* token, std::int32_t* finite) override {
        queue([=, this] { CpuBackend::argmax(logits, rows, stride, ids, masked, token, finite); });
    }

private:
    /// Rows whose part in host memory is a copy.
    struct Kept {
        explicit Kept(const Rows& r) : given(r), host(r.host.begin(), r.host.end()) {}
        Rows rows() const { return {host, given.device, given.tokens_on_device}; }
        Rows given;
        std::vector<Row> host;
    };
    struct Copy {
        void* host;
        const void* device;
        std::size_t bytes, after;  ///< calls that came before it
    };

    void queue(std::function<void()> call) {
        const std::lock_guard lock(mutex_);
        calls_.push_back(std::move(call));
        ++asked_;
    }
    void run(std::size_t until) {
        for (; done_ < until; ++done_) {
            const auto call = std::move(calls_.front());
            calls_.pop_front();
            call();
        }
    }
    void copy(std::uint64_t until) {
        for (; copies_done_ < until; ++copies_done_) {
            const Copy c = copies_.front();
            copies_.pop_front();
            run(c.after);
            CpuBackend::copy_out(c.host, c.device, c.bytes);
        }
    }

    std::recursive_mutex mutex_;  // the thread that hashes waits too
    std::deque<std::function<void()>> calls_;
    std::deque<Copy> copies_;
    std::size_t asked_ = 0, done_ = 0;
    std::uint64_t copies_asked_ = 0, copies_done_ = 0;
};

}  // namespace ftmpi::testing
