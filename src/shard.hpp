// The plan: which rows of each matrix each rank holds, and what that costs. Pure arithmetic; no MPI, no GPU, no files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config.hpp"
#include "format.hpp"
#include "options.hpp"
#include "tensor.hpp"

namespace ftmpi {

/// A stored matrix: format and size of the whole of it.
struct MatrixSize {
    Format format = Format::bf16;
    std::int64_t groups = 1, rows = 0, cols = 0;
};

/// One layer's matrices as the checkpoint stores them (formats may differ from layer to layer).
struct LayerSizes {
    LayerKind kind = LayerKind::delta_net;
    MatrixSize in_qkv, in_z, in_b, in_a;  ///< delta_net: rows in head order q | k | v
    MatrixSize q, k, v;                   ///< attention: q holds query and gate of each head
    MatrixSize out;                       ///< out_proj or o_proj
    MatrixSize router, shared_gate;
    MatrixSize gate_up;                   ///< groups = experts, rows = 2 * expert_width
    MatrixSize down;                      ///< groups = experts, rows = hidden, cols = expert_width
    MatrixSize shared_gate_up, shared_down;
};

struct ModelSizes {
    ModelConfig config;
    std::vector<LayerSizes> layers;
    MatrixSize embedding, head;
};

/// What a rank brings.
struct RankMemory {
    std::uint64_t bytes = 0;   ///< that weights, caches and workspace may take, fixed costs already subtracted
    double gb_per_s = 0;       ///< memory bandwidth; 0 = unknown, all equal
    std::string name;
};

struct PlanRequest {
    std::vector<RankMemory> ranks;
    Policy policy = Policy::speed;
    std::vector<double> shares;          ///< Policy::shares
    std::int64_t context = 0;            ///< tokens a sequence; 0 = as many as fit, at most max_positions
    int slots = 1;                       ///< sequences held at once
    KvType kv = KvType::bf16;
    std::int64_t prefill_rows = 256;     ///< rows of the largest step
    bool embedding_on_host = true;
    double exchange_seconds = 0;         ///< predicted cost of one gather; 0 = a default
};

/// Row ranges of one layer, one entry a rank in each.
struct LayerCut {
    std::vector<Range> mixer;   ///< delta_net: key-head groups; attention: query heads
    std::vector<Range> out;     ///< hidden rows of the output projection
    std::vector<Range> expert;  ///< intermediate rows of every routed expert (multiples of 16, or the end)
    std::vector<Range> shared;  ///< intermediate rows of the shared expert
    std::vector<Range> down;    ///< hidden rows of down, routed and shared
};

/// Bytes of one rank by group. Weights are what stored_bytes() says of the rows it holds.
struct RankBytes {
    std::uint64_t embedding = 0, delta_net = 0, attention = 0, experts = 0, shared = 0, replicated = 0, head = 0;
    std::uint64_t kv_cache = 0, recurrent_state = 0, rope = 0, workspace = 0;
    std::uint64_t weights() const { return embedding + delta_net + attention + experts + shared + replicated + head; }
    std::uint64_t total() const { return weights() + kv_cache + recurrent_state + rope + workspace; }
};

struct ShardPlan {
    int ranks = 1;
    Policy policy = Policy::speed;
    std::vector<LayerCut> layers;
    std::vector<Range> head;             ///< vocabulary rows
    bool out_replicated = false;         ///< every rank holds the output projection whole; its gather is skipped
    std::int64_t context = 0;            ///< capacity in tokens of each slot
    std::int64_t context_capacity = 0;   ///< what would fit at most with this cut (not limited by max_positions)
    int slots = 1;
    KvType kv = KvType::bf16;
    std::int64_t prefill_rows = 0;
    bool embedding_on_host = true;
    std::vector<RankBytes> bytes;        ///< one a rank
    std::vector<std::uint64_t> available;
    std::vector<double> read_bytes;      ///< per decoded token at context 0, one a rank
    double seconds_per_token = 0;        ///< predicted
    std::vector<std::string> notes;      ///< asked and given shares, ranks without work, what limited the context
};

/// Makes the plan, or throws Error(Exit::does_not_fit) with the bytes needed and available per rank and with the context
/// or the cut that would fit.
ShardPlan make_plan(const ModelSizes& sizes, const PlanRequest& request);

/// Heads of key/value that query heads `q` read.
Range kv_heads_of(const ModelConfig& config, Range q);

/// Number of floats of each buffer of a step of `rows` rows on `rank`; the model allocates exactly these.
struct Workspace {
    std::int64_t x, normed, mixer, qkv, z, b, a, qg, k, v, out, router, shared_gate, act, shared_act, down, logits;
    std::int64_t total() const {
        return x + normed + mixer + qkv + z + b + a + qg + k + v + out + router + shared_gate + act + shared_act + down + logits;
    }
};
Workspace workspace_of(const ModelConfig& config, const ShardPlan& plan, int rank);

/// The table of `ftmpi plan`: per rank, bytes by group, ranges, capacity, predicted time, notes.
std::string plan_table(const ModelSizes& sizes, const ShardPlan& plan);
std::string plan_json(const ModelSizes& sizes, const ShardPlan& plan);

}  // namespace ftmpi
