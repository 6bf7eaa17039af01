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

    /// x += part, normed = RMSNorm(x), then the projections of normed: of `rows` rows from `first` on, which
    /// is 0 where there is a part to add.
    void norm_project(const float* weight, std::span<const Projection> to, std::int64_t rows,
                      std::int64_t first = 0) {
        backend_.norm_project({.from = x_ + first * width_,
                               .plus = adds_ ? part_ : nullptr,
                               .sum = adds_ ? sum_ : nullptr,
                               .weight = weight,
                               .eps = eps_,
                               .width = width_,
                               .out = normed_.data()},
                              to, rows);
        turn();
    }
    /// x += part alone.
    void add(std::int64_t rows) {
        if (adds_) backend_.add(x_, part_, sum_, rows * width_);
        turn();
    }

private:
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
