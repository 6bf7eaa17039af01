// Random numbers for tests of the CPU and of GPUs.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ftmpi {

/// A small fixed generator: the same numbers on every machine.
class Random {
public:
    explicit Random(std::uint64_t seed) : s_(seed * 0x9e3779b97f4a7c15ull + 1) {}
    std::uint32_t bits() {
        s_ = s_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<std::uint32_t>(s_ >> 33);
    }
    /// In [-1, 1).
    float unit() { return static_cast<float>(static_cast<std::int32_t>(bits() << 1)) * 4.656612873e-10f; }
    /// In [middle - size, middle + size).
    std::vector<float> floats(std::integral auto n, float size = 1.0f, float middle = 0.0f) {
        std::vector<float> v(static_cast<std::size_t>(n));
        for (float& x : v) x = middle + unit() * size;
        return v;
    }

private:
    std::uint64_t s_;
};

}  // namespace ftmpi
