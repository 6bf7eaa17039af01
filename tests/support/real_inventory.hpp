// The names, dtypes and shapes of the published Qwen3.6-35B-A3B checkpoints, generated from the geometry, and
// files of their exact length that hold nothing (sparse), so that loading can be tested on what users have
// without the 20 to 70 GB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtype.hpp"

namespace ftmpi::testing {

enum class RealCheckpoint {
    nvfp4,  ///< ModelOpt mixed precision: experts and head NVFP4 per expert, projections FP8 per tensor, MTP
            ///< in BF16 and fused
    bf16,   ///< fused experts
    fp8,    ///< 128x128 blocks, per expert, MTP likewise
};

struct InventoryEntry {
    std::string name;
    DType dtype = DType::bf16;
    std::vector<std::int64_t> shape;

    std::uint64_t bytes() const;
};

/// Every tensor of the checkpoint, MTP and vision included, layer by layer.
std::vector<InventoryEntry> real_inventory(RealCheckpoint kind);

/// config.json of that checkpoint, quantization_config included.
std::string real_config_json(RealCheckpoint kind);
/// hf_quant_config.json; only the NVFP4 checkpoint has one (else empty).
std::string real_hf_quant_config_json(RealCheckpoint kind);
std::string real_generation_config_json();

/// Writes `shards` sparse safetensors files of about equal size and their index into `directory`; the JSON
/// files above are not written. Single fp32 values (per-tensor scales), last in each shard, are 1; all other
/// bytes read as zero.
void write_sparse_checkpoint(const std::filesystem::path& directory,
                             const std::vector<InventoryEntry>& inventory, int shards);

}  // namespace ftmpi::testing
