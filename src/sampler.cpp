#include "sampler.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "numerics.hpp"

namespace ftmpi {

double uniform(std::uint64_t seed, std::uint64_t request, std::uint64_t token) {
    // Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
    std::uint32_t c[4] = {static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(token >> 32),
                          static_cast<std::uint32_t>(request), static_cast<std::uint32_t>(request >> 32)};
    std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0], p1 = std::uint64_t{0xCD9E8D57u} * c[2];
        const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0,
                            n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1;
        c[1] = static_cast<std::uint32_t>(p1);
        c[3] = static_cast<std::uint32_t>(p0);
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const std::uint64_t bits = (std::uint64_t{c[0]} << 32 | c[1]) >> 11;
    return static_cast<double>(bits) * 0x1p-53;
}

std::int32_t sample(std::span<const float> logits, std::span<const std::uint8_t> masked, const Sampling& s,
                    std::uint64_t request, std::uint64_t token) {
    std::vector<std::int32_t> ids;
    ids.reserve(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
        if (i >= masked.size() || !masked[i]) ids.push_back(static_cast<std::int32_t>(i));
    if (ids.empty()) return -1;
    auto before = [&](std::int32_t a, std::int32_t b) {
        const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
        return x > y || (x == y && a < b);
    };
    std::size_t n = ids.size();
    if (s.top_k > 0 && static_cast<std::size_t>(s.top_k) < n) {
        n = static_cast<std::size_t>(s.top_k);
        std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(), before);
    } else {
        std::sort(ids.begin(), ids.end(), before);
    }
    if (s.greedy()) return ids[0];

    // Weights in fp32 by this program's exp, sums in double in candidate order: no library decides a bit.
    std::vector<double> weights(n);
    const float top = logits[static_cast<std::size_t>(ids[0])];
    // In double, where no temperature above 0 makes the quotient of a difference of 0 anything but 0.
    const auto scaled = [&](float logit) {
        return static_cast<float>((static_cast<double>(logit) - static_cast<double>(top)) / s.temperature);
    };
    double total = 0;
    for (std::size_t i = 0; i < n; ++i)
        total += weights[i] = static_cast<double>(num::exp(scaled(logits[static_cast<std::size_t>(ids[i])])));
    if (s.top_p < 1) {
        double sum = 0;
        std::size_t kept = 0;
        do sum += weights[kept++];
        while (kept < n && sum < s.top_p * total);
        n = kept;
        total = sum;
    }
    const double goal = uniform(s.seed, request, token) * total;
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
        sum += weights[i];
        if (sum > goal) return ids[i];
    }
    return ids[n - 1];
}

}  // namespace ftmpi
