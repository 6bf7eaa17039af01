#include "gpu_choice.hpp"

#include <algorithm>
#include <cctype>

#include "../../src/error.hpp"

namespace ftmpi::cuda {
namespace {

constexpr std::size_t shortest_prefix = 4;

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

/// A UUID or its beginning without "GPU-" or "MIG-".
std::string bare(const std::string& uuid) {
    const std::string text = lower(uuid);
    return text.starts_with("gpu-") || text.starts_with("mig-") ? text.substr(4) : text;
}

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
}

std::string name_of(const std::vector<RankGpus>& ranks, std::size_t rank) {
    return "rank " + std::to_string(rank) + " (" + ranks[rank].host + ")";
}

std::string environment_of(const RankGpus& rank) {
    return rank.visible_devices ? "CUDA_VISIBLE_DEVICES is \"" + *rank.visible_devices + "\""
                                : "CUDA_VISIBLE_DEVICES is not set";
}

GpuChoice unasked(const std::vector<RankGpus>& ranks, std::size_t rank) {
    const RankGpus& mine = ranks[rank];
    // A launcher that binds tasks shows each rank its own GPU, and then the local rank is no ordinal.
    const std::size_t device = mine.visible.size() == 1 ? 0 : static_cast<std::size_t>(mine.local_rank);
    if (device >= mine.visible.size())
        throw Error(Exit::usage,
                    name_of(ranks, rank) + " is number " + std::to_string(mine.local_rank) +
                        ", from 0, of its host's ranks, but sees " + counted(mine.visible.size(), "GPU") +
                        " (" + environment_of(mine) + ")",
                    "start one rank a GPU; to share one, name it for each rank with --gpus");
    return {static_cast<int>(device), mine.visible[device]};
}

GpuChoice asked_for(const std::vector<RankGpus>& ranks, std::size_t rank, const std::string& wish) {
    const RankGpus& mine = ranks[rank];
    const std::string prefix = bare(wish);
    const bool hexadecimal = std::all_of(prefix.begin(), prefix.end(),
                                         [](unsigned char c) { return std::isxdigit(c) || c == '-'; });
    if (prefix.size() < shortest_prefix || !hexadecimal)
        throw Error(Exit::usage,
                    "--gpus: \"" + wish + "\" is no UUID nor the first " + std::to_string(shortest_prefix) +
                        " digits of one",
                    "nvidia-smi -L prints the UUIDs; numbers of GPUs are not used because they differ "
                    "between programs");
    std::vector<std::size_t> fitting;
    for (std::size_t i = 0; i < mine.visible.size(); ++i)
        if (bare(mine.visible[i]).starts_with(prefix)) fitting.push_back(i);
    if (fitting.empty())
        throw Error(Exit::usage, "--gpus: " + name_of(ranks, rank) +
                                     " sees no GPU whose UUID begins with \"" + wish + "\"; it sees " +
                                     joined(mine.visible) + " (" + environment_of(mine) + ")");
    if (fitting.size() > 1)
        throw Error(Exit::usage, "--gpus: \"" + wish + "\" fits " + mine.visible[fitting[0]] + " and " +
                                     mine.visible[fitting[1]] + " on " + name_of(ranks, rank));
    return {static_cast<int>(fitting[0]), mine.visible[fitting[0]]};
}

}  // namespace

std::vector<GpuChoice> choose_gpus(const std::vector<RankGpus>& ranks,
                                   const std::vector<std::string>& asked) {
    if (!asked.empty() && asked.size() != ranks.size())
        throw Error(Exit::usage,
                    "--gpus names " + counted(asked.size(), "GPU") + " for " + counted(ranks.size(), "rank"),
                    "give one UUID a rank");
    std::vector<GpuChoice> chosen;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if (ranks[rank].visible.empty())
            throw Error(Exit::usage,
                        name_of(ranks, rank) + " sees no GPU: " +
                            (ranks[rank].trouble.empty() ? "none is visible" : ranks[rank].trouble) + "; " +
                            environment_of(ranks[rank]),
                        "look at nvidia-smi and CUDA_VISIBLE_DEVICES there, or use --backend cpu");
        chosen.push_back(asked.empty() ? unasked(ranks, rank) : asked_for(ranks, rank, asked[rank]));
    }
    // Naming a GPU twice is asking for it.
    if (!asked.empty()) return chosen;
    for (std::size_t a = 0; a < ranks.size(); ++a)
        for (std::size_t b = a + 1; b < ranks.size(); ++b)
            if (ranks[a].host == ranks[b].host && bare(chosen[a].uuid) == bare(chosen[b].uuid))
                throw Error(Exit::usage,
                            "ranks " + std::to_string(a) + " and " + std::to_string(b) + " (" +
                                ranks[a].host + ") would share the GPU " + chosen[a].uuid + ": rank " +
                                std::to_string(a) + " sees " + joined(ranks[a].visible) + " (" +
                                environment_of(ranks[a]) + "), rank " + std::to_string(b) + " sees " +
                                joined(ranks[b].visible) + " (" + environment_of(ranks[b]) + ")",
                            "start one rank a GPU; to share it all the same, name it for both with --gpus");
    return chosen;
}

std::string uuid_text(const std::array<unsigned char, 16>& bytes) {
    static const char digits[] = "0123456789abcdef";
    std::string text = "GPU";
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits[bytes[i] >> 4];
        text += digits[bytes[i] & 15];
    }
    return text;
}

}  // namespace ftmpi::cuda
