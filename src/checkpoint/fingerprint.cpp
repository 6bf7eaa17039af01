// What tells two checkpoints of one shape apart without reading them whole.
#include <algorithm>

#include "../checkpoint.hpp"
#include "../digest.hpp"

namespace ftmpi {

std::string weights_fingerprint(const Checkpoint& checkpoint) {
    constexpr std::size_t kTensors = 512, kLargest = 64, kSpots = 16, kBytes = 64;
    std::vector<const TensorView*> all, sampled;
    for (const auto& [name, tensor] : checkpoint.tensors()) all.push_back(&tensor);
    const std::size_t step = all.size() / kTensors + 1;
    for (std::size_t i = 0; i < all.size(); i += step) sampled.push_back(all[i]);
    std::stable_sort(all.begin(), all.end(),
                     [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
    sampled.insert(sampled.end(), all.begin(),
                   all.begin() + static_cast<std::ptrdiff_t>(std::min(kLargest, all.size())));
    Digest digest;
    for (const TensorView* t : sampled) {
        digest.update(t->name.data(), t->name.size());
        const std::size_t n = std::min(kBytes, t->bytes);
        for (std::size_t s = 0; s < kSpots; ++s)
            digest.update(t->data + (t->bytes - n) * s / (kSpots - 1), n);
        checkpoint.drop_pages(t->data, t->bytes);  // around each spot the kernel maps many
    }
    return hex(digest.value());
}

}  // namespace ftmpi
