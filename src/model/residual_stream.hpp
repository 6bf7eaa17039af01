// The residual stream, which each half of a layer reads through a norm and adds to.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "../backend.hpp"

namespace ftmpi {

/// What a half of a layer adds is summed up by the next norm, which is one call of the backend with the
/// projection behind it. The sum may not overwrite what it is made of: stream, part and sum are three buffers
/// in turns.
class ResidualStream {
public:
    /// Room for `rows` rows of `width`.
    ResidualStream(Backend& backend, std::int64_t rows, std::int64_t width, float eps)
        : backend_(backend), width_(width), eps_(eps) {
        for (auto* buffer : {&buffers_[0], &buffers_[1], &buffers_[2], &normed_})
            *buffer = DeviceArray<float>(backend, rows * width, "workspace");
    }

    /// Where a step's embeddings go; nothing is to be added to them yet.
    float* begin() {
        x_ = buffers_[0].data(), part_ = buffers_[1].data(), sum_ = buffers_[2].data();
        adds_ = false;
        return x_;
    }
    /// Where half a layer writes what it adds.                                             (T, H)
    float* part() {
        adds_ = true;
        return part_;
    }
    /// The sum of all so far, and its last norm; valid behind norm_project() or add().      (T, H)
    const float* x() const { return x_; }
    const float* normed() const { return normed_.data(); }

    /// x += part, normed = RMSNorm(x), then the projections of normed: all `rows` rows.
    void norm_project(const float* weight, std::span<const Projection> to, std::int64_t rows) {
        Norm norm = norm_of(weight, 0, 0);
        if (adds_) norm.plus = part_, norm.sum = sum_;
        backend_.norm_project(norm, to, rows);
        turn();
    }
    /// The same of the rows in `some`, one behind the other in normed; behind add().
    void norm_project(const float* weight, std::span<const Projection> to, std::span<const Range> some) {
        if (some.size() == 1)
            return backend_.norm_project(norm_of(weight, some[0].begin, 0), to, some[0].size());
        std::int64_t rows = 0;
        for (const Range& range : some) {
            backend_.norm(norm_of(weight, range.begin, rows), range.size());
            rows += range.size();
        }
        backend_.project(to, normed_.data(), rows);
    }
    /// x += part alone.
    void add(std::int64_t rows) {
        if (adds_) backend_.add(x_, part_, sum_, rows * width_);
        turn();
    }

private:
    Norm norm_of(const float* weight, std::int64_t from, std::int64_t to) const {
        return {.from = x_ + from * width_,
                .weight = weight,
                .eps = eps_,
                .width = width_,
                .out = normed_.data() + to * width_};
    }
    /// The sum is the stream now; the memory of the other two takes the next part and the next sum.
    void turn() {
        if (!std::exchange(adds_, false)) return;
        float* const free = x_;
        x_ = sum_, sum_ = part_, part_ = free;
    }

    Backend& backend_;
    DeviceArray<float> buffers_[3], normed_;  // (T, H)
    float *x_ = nullptr, *part_ = nullptr, *sum_ = nullptr;
    bool adds_ = false;  ///< part_ waits to be added
    std::int64_t width_;
    float eps_;
};

}  // namespace ftmpi
