// Which GPU each rank takes: arithmetic over facts that the ranks told each other. No CUDA and no MPI here.
//
// GPUs are known by UUID, never by index alone: what CUDA counts from 0 depends on CUDA_VISIBLE_DEVICES and
// CUDA_DEVICE_ORDER, which may differ from rank to rank, and that variable is never parsed but only shown in
// messages.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace ftmpi::cuda {

/// What one rank sees.
struct RankGpus {
    std::string host;
    int local_rank = 0;                          ///< among the ranks of its host
    std::vector<std::string> visible;            ///< UUIDs in CUDA's order; the index is the device's ordinal
    std::optional<std::string> visible_devices;  ///< CUDA_VISIBLE_DEVICES as it is set
    std::string trouble;                         ///< why CUDA shows no GPU, in its words
};

constexpr auto fields_of(std::type_identity<RankGpus>) {
    using R = RankGpus;
    return std::tuple(&R::host, &R::local_rank, &R::visible, &R::visible_devices, &R::trouble);
}

struct GpuChoice {
    int device = 0;  ///< ordinal among the GPUs that the rank sees
    std::string uuid;
};

/// One choice a rank. `asked` is --gpus: empty, or one UUID or beginning of a UUID a rank, with or without
/// "GPU-". Unasked, a rank that sees one GPU takes it, others take the one of their local rank. Throws
/// Error(Exit::usage) when a rank sees no GPU or too few, when a prefix fits none or several, and when two
/// ranks of a host would share a GPU that --gpus does not name for both.
std::vector<GpuChoice> choose_gpus(const std::vector<RankGpus>& ranks, const std::vector<std::string>& asked);

/// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as nvidia-smi -L prints it.
std::string uuid_text(const std::array<unsigned char, 16>& bytes);

}  // namespace ftmpi::cuda
