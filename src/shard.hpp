// The plan: which rows of each matrix each rank holds, and what that costs. Pure arithmetic; no MPI, no GPU,
// no files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config.hpp"
#include "config/family.hpp"
#include "format.hpp"
#include "options.hpp"
#include "tensor.hpp"

namespace ftmpi {

/// A stored matrix: format and size of the whole of it.
struct MatrixSize {
    Format format = Format::bf16;
    std::int64_t groups = 1, rows = 0, cols = 0;
};

/// The matrices of a role, whole: all experts, `second` after `key`.
MatrixSize size_of(const TensorRole& role, const ModelConfig& config, Format format);

/// One layer's matrices as the checkpoint stores them (formats may differ from layer to layer).
struct LayerSizes {
    LayerKind kind = LayerKind::delta_net;
    ByRole<MatrixSize> matrices;

    MatrixSize& operator[](Role role) { return matrices[role]; }
    const MatrixSize& operator[](Role role) const { return matrices[role]; }
};

struct ModelSizes {
    ModelConfig config;
    std::vector<LayerSizes> layers;
    MatrixSize embedding, head;
};

/// What a rank brings.
struct RankMemory {
    std::uint64_t bytes = 0;  ///< that weights, caches and workspace may take, fixed costs already subtracted
    double gb_per_s = 0;      ///< memory bandwidth; 0 = unknown, all equal
    std::string name;
    std::uint64_t fixed = 0;  ///< those fixed costs, for messages
};

struct PlanRequest {
    std::vector<RankMemory> ranks;
    Policy policy = Policy::speed;
    std::vector<double> shares;  ///< Policy::shares
    std::int64_t context = 0;    ///< tokens a sequence; 0 = as many as fit, at most max_positions
    int slots = 1;               ///< sequences held at once
    KvType kv = KvType::bf16;
    std::int64_t prefill_rows = 256;  ///< rows of the largest step
    bool embedding_on_host = true;
    double exchange_seconds = 0;  ///< predicted cost of one gather; 0 = a default
    std::string slots_hint =
        "a smaller --batch needs less";  ///< by the option that sets `slots` in the command at hand
    std::string size_hint;  ///< said first where memory is short: what its size may have been meant to be
};

/// Row ranges of one layer, one entry a rank in each.
struct LayerCut {
    std::vector<Range> mixer;   ///< delta_net: key-head groups; attention: query heads
    std::vector<Range> out;     ///< hidden rows of the output projection
    std::vector<Range> expert;  ///< intermediate rows of every routed expert (multiples of 16, or the end)
    std::vector<Range> shared;  ///< intermediate rows of the shared expert
    std::vector<Range> down;    ///< hidden rows of down, routed and shared
};

/// Bytes of what a step works with, by group.
template <class T> struct ModelBytes {
    T embedding = 0, delta_net = 0, attention = 0, experts = 0, shared_expert = 0, replicated = 0, head = 0;
    T kv_cache = 0, recurrent_state = 0;
    T weights() const {
        return embedding + delta_net + attention + experts + shared_expert + replicated + head;
    }
};

/// Bytes of one rank, planned or held. Weights are what stored_bytes() says of the rows it holds.
struct RankBytes : ModelBytes<std::uint64_t> {
    std::uint64_t rope = 0;
    std::uint64_t workspace = 0;  ///< with the scratch of a backend
    std::uint64_t driver = 0;     ///< what a GPU's driver takes beside it
    std::uint64_t arrays() const { return weights() + kv_cache + recurrent_state + rope + workspace; }
    std::uint64_t total() const { return arrays() + driver; }
};

/// Bytes that one rank reads in a decode step; its recurrent state is read and written, and counts twice.
struct StepBytes : ModelBytes<double> {
    double total() const { return weights() + kv_cache + recurrent_state; }
};

/// What decode steps of any size read on one rank. Weights are read once a step, without the padding of their
/// row tiles.
struct StepReads {
    /// Experts: all of them. Embedding and recurrent state: of one sequence. Cache: of one token in it.
    StepBytes unit;
    double routed = 0;  ///< part of the experts that one sequence chooses

    /// A step of `batch` sequences that hold `position` tokens each. Of the experts those that are chosen are
    /// read: for several sequences the number to be expected when experts are chosen evenly.
    StepBytes at(int batch, double position) const;
    /// A token of one sequence at the beginning of its context.
    double token() const { return at(1, 0).total(); }
};

/// Its groups by name, in the order of the table.
struct ByteGroup {
    const char* name;
    const char* heading;  ///< of a column
    std::uint64_t RankBytes::*bytes;
};
inline constexpr ByteGroup kByteGroups[] = {{"embedding", "embed", &RankBytes::embedding},
                                            {"delta_net", "delta", &RankBytes::delta_net},
                                            {"attention", "attn", &RankBytes::attention},
                                            {"experts", "expert", &RankBytes::experts},
                                            {"shared_expert", "shared", &RankBytes::shared_expert},
                                            {"replicated", "every", &RankBytes::replicated},
                                            {"head", "head", &RankBytes::head},
                                            {"kv_cache", "kv", &RankBytes::kv_cache},
                                            {"recurrent_state", "state", &RankBytes::recurrent_state},
                                            {"rope", "rope", &RankBytes::rope},
                                            {"workspace", "work", &RankBytes::workspace},
                                            {"driver", "driver", &RankBytes::driver}};

/// The capacity of a cut in which no rank has anything that grows with the context: a model without
/// attention.
inline constexpr std::int64_t kUnlimitedContext = 1'000'000'000'000'000;

struct ShardPlan {
    int ranks = 1;
    Policy policy = Policy::speed;
    std::vector<LayerCut> layers;
    std::vector<Range> head;      ///< vocabulary rows
    bool out_replicated = false;  ///< every rank holds the output projection whole; its gather is skipped
    std::int64_t context = 0;     ///< capacity in tokens of each slot
    std::int64_t context_capacity =
        0;  ///< what would fit at most with this cut (not limited by max_positions), or kUnlimitedContext
    int slots = 1;
    KvType kv = KvType::bf16;
    std::int64_t prefill_rows = 0;
    bool embedding_on_host = true;
    std::vector<RankBytes> bytes;  ///< one a rank
    std::vector<std::uint64_t> available;
    std::vector<StepReads> reads;    ///< one a rank
    double seconds_per_token = 0;    ///< predicted at context 0; 0 = no bandwidth is known
    std::vector<std::string> notes;  ///< asked and given shares, ranks without work, what limited the context

    // What the table shows beside the ranges, one a rank.
    std::vector<std::string> names;
    std::vector<double> gb_per_s;  ///< bandwidth counted with; 0 = unknown
    std::vector<double> asked;     ///< shares the policy asked for, adding up to 1
    std::vector<double>
        given;  ///< shares of the bytes that are cut, adding up to 1 (what is replicated left out)
    std::vector<double> rank_seconds;  ///< of reads.token() at the bandwidth; 0 = unknown
    int exchanges = 0;                 ///< gathers of one decoded token that are waited for
    double exchange_seconds = 0;       ///< predicted cost of one
    bool whole_kv_groups = false;  ///< attention is cut only between key/value heads, so none is held twice
};

/// Cost of one gather when the request does not say: between the 2 us of peer memory and the 6 us of NCCL in
/// a graph.
inline constexpr double kExchangeSeconds = 4e-6;
/// Context that Policy::speed must be able to hold when none was asked for (or max_positions if that is
/// smaller); what its cut leaves free then makes the context larger.
inline constexpr std::int64_t kSpeedContext = 8192;

/// Makes the plan, or throws Error(Exit::does_not_fit) with the bytes needed and available per rank and with
/// the context or the cut that would fit. Error(Exit::usage) for shares that are not one non-negative number
/// a rank, counts below 1, or a context above max_positions. The context is an exact number of tokens, not
/// rounded to a block.
///
/// Every matrix is dealt in units by the same shares; what rounding takes from a rank in one layer it is owed
/// in the next, so a single matrix is off by less than a unit and so is, in effect, the sum over all layers.
/// Policies: even and shares do as told; memory seeks the cut with the largest context; speed the one with
/// the least predicted time that holds the context. Prediction: the slowest rank's reads.token() / bandwidth,
/// plus the gathers, four a layer (three with out_replicated) and one for the head. No gather is waited for
/// when one rank holds every row (sole_rank). A rank whose bandwidth is unknown counts as the slowest known
/// one; when none is known all are equal and no time is stated.
ShardPlan make_plan(const ModelSizes& sizes, const PlanRequest& request);

/// Heads of key/value that query heads `q` read.
Range kv_heads_of(const ModelConfig& config, Range q);

/// Value heads of the key-head groups: each key head carries config.groups() of them.
Range value_head_range(const ModelConfig& config, Range key_head_groups);

/// Rows of in_proj_qkv (and channels of conv1d) that belong to the key-head groups: three ranges q, k, v.
std::vector<Range> qkv_rows(const ModelConfig& config, Range key_head_groups);

/// Rows of a stored tensor that `rank` holds, of each expert and part alike; single ranges may be empty.
std::vector<Range> rows_held(const TensorRole& role, const ModelConfig& config, const LayerCut& cut,
                             std::size_t rank);

/// The rows of each role that `rank` holds in the layer where they are most.
ByRole<std::int64_t> most_rows_held(const ModelConfig& config, const ShardPlan& plan, int rank);

/// The group of bytes that a tensor counts to.
template <class T> T ModelBytes<T>::*bytes_of(const TensorRole& role, const ShardPlan& plan) {
    if (role.cut == Cut::out && plan.out_replicated) return &ModelBytes<T>::replicated;
    switch (role.group) {
        case Group::attention: return &ModelBytes<T>::attention;
        case Group::delta_net: return &ModelBytes<T>::delta_net;
        case Group::experts: return &ModelBytes<T>::experts;
        case Group::shared: return &ModelBytes<T>::shared_expert;
        case Group::replicated: break;
    }
    return &ModelBytes<T>::replicated;
}

/// The rank that holds every row that is cut (rank 0 of one), or nothing. The others then only follow: nobody
/// waits for them.
std::optional<int> sole_rank(const ShardPlan& plan);

/// Number of floats, or of words as large, of each buffer of a step on `rank`; the model and the decode loop
/// allocate these.
struct Workspace {
    std::int64_t stream =
        0;  ///< of each of the three that hold the residual stream, what is added to it and their sum
    std::int64_t normed = 0, mixed = 0, qkv = 0, z = 0, b = 0, a = 0, q = 0, k = 0, v = 0, router = 0,
                 shared_gate = 0, act = 0, shared_act = 0, logits = 0;
    std::int64_t rows = 0;  ///< what a step is of: token, slot and position of each row
    std::int64_t expert_ids = 0, expert_weights = 0;  ///< the experts chosen for each row
    std::int64_t token_mask = 0, chosen = 0;  ///< of the choice of tokens; the mask is at most this large
    std::int64_t total() const {
        return 3 * stream + normed + mixed + qkv + z + b + a + q + k + v + router + shared_gate + act +
               shared_act + logits + rows + expert_ids + expert_weights + token_mask + chosen;
    }
};
Workspace workspace_of(const ModelConfig& config, const ShardPlan& plan, int rank);

/// The table of `ftmpi plan`: per rank, bytes by group, ranges, capacity, predicted time, notes.
std::string plan_table(const ModelSizes& sizes, const ShardPlan& plan);
std::string plan_json(const ModelSizes& sizes, const ShardPlan& plan);
/// What each rank holds in fact, by group, under what was planned.
std::string allocated_table(const ShardPlan& plan, const std::vector<RankBytes>& held);

}  // namespace ftmpi
