// The set-up that run and bench share: from options to a model that is loaded on every rank.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../mpi/session.hpp"
#include "../checkpoint.hpp"
#include "../config.hpp"
#include "../generate.hpp"
#include "../model.hpp"
#include "../options.hpp"
#include "../shard.hpp"
#include "../state.hpp"
#include "../tokenizer.hpp"
#include "../weights.hpp"
#include "device.hpp"

namespace ftmpi {

/// What rank 0 knows of every rank, gathered before the plan.
struct RankFacts {
    std::string host;
    DeviceInfo device;
    int threads = 0;              ///< that do the arithmetic on the CPU; 0 on GPUs
    std::uint64_t available = 0;  ///< bytes for weights, caches and workspace
    double gb_per_s = 0;
};

constexpr auto fields_of(std::type_identity<DeviceInfo>) {
    using D = DeviceInfo;
    return std::tuple(&D::backend, &D::name, &D::uuid, &D::capability, &D::driver, &D::total_bytes,
                      &D::free_bytes);
}
constexpr auto fields_of(std::type_identity<RankFacts>) {
    using R = RankFacts;
    return std::tuple(&R::host, &R::device, &R::threads, &R::available, &R::gb_per_s);
}
constexpr auto fields_of(std::type_identity<ReadCount>) {
    return std::tuple(&ReadCount::cut, &ReadCount::replicated);
}

/// What a rank holds, beside what it planned.
struct RankAllocated {
    RankBytes bytes;
    std::uint64_t free_bytes = 0;  ///< of the device
};

constexpr auto fields_of(std::type_identity<RankBytes>) {
    return []<std::size_t... I>(std::index_sequence<I...>) { return std::tuple(kByteGroups[I].bytes...); }
    (std::make_index_sequence<std::size(kByteGroups)>());
}
constexpr auto fields_of(std::type_identity<RankAllocated>) {
    return std::tuple(&RankAllocated::bytes, &RankAllocated::free_bytes);
}

/// What a rank's backend needs beside the arrays of the plan, in bytes.
struct BesideArrays {
    std::uint64_t scratch = 0, driver = 0;
};

constexpr auto fields_of(std::type_identity<BesideArrays>) {
    return std::tuple(&BesideArrays::scratch, &BesideArrays::driver);
}

class Engine {
public:
    /// Opens and checks the checkpoint on every rank (headers only) and reads the tokenizer. Phase "open".
    Engine(const Options& options, mpi::Session& session);

    /// Makes the plan from every rank's memory. `tokens`: the lengths of the sequences asked for, of which
    /// the plan serves the longest that fits when --context is not given. Phase "plan".
    void plan(std::vector<std::int64_t> tokens);
    /// Loads this rank's weights, allocates caches and workspace. Phase "load".
    void load();
    /// Throws when the part of the checkpoint that is read while the model runs was changed. Cheap enough for
    /// every step.
    void check_checkpoint() const { checkpoint_->check_contents(embedding_); }
    /// What the loop of every command does at each step: it looks at the checkpoint and at signals, and
    /// passes the point of faults.
    Generator::Events loop_events();
    /// Asks every rank what it holds now. To be called by all together.
    void measure_allocated();

    const Options& options() const { return options_; }
    mpi::Session& session() { return session_; }
    Backend& backend() { return *device_.backend; }
    Communicator& communicator() const { return *communicator_; }
    const Checkpoint& checkpoint() const { return *checkpoint_; }
    const ModelConfig& config() const { return config_; }
    const Tokenizer& tokenizer() const { return *tokenizer_; }
    const Inventory& inventory() const { return *inventory_; }
    const std::string& weights_sha256() const { return weights_sha256_; }  ///< weights_fingerprint()
    const ShardPlan& shard_plan() const { return plan_; }
    SequenceState& state() { return *state_; }
    Model& model() { return *model_; }
    const std::vector<RankFacts>& ranks() const { return ranks_; }
    double load_seconds() const { return load_seconds_; }
    const std::vector<ReadCount>& reads() const { return reads_; }  ///< one a rank, after load()
    /// One a rank, of the last measure_allocated(); load() calls it.
    const std::vector<RankAllocated>& allocated() const { return allocated_; }

private:
    /// `memory`: this rank's part of the host's, in bytes.
    RankFacts facts(double memory) const;
    std::int64_t ranks_on_device_of(std::size_t rank) const;  ///< that one among them
    /// `contexts`: rising.
    ShardPlan plan_with(const std::vector<BesideArrays>& beside,
                        const std::vector<std::int64_t>& contexts) const;
    StepLimits limits(const ShardPlan& plan) const;

    const Options& options_;
    mpi::Session& session_;
    RankDevice device_;
    std::unique_ptr<Communicator> communicator_;
    std::optional<Checkpoint> checkpoint_;
    std::string weights_sha256_;
    ModelConfig config_;
    std::optional<Tokenizer> tokenizer_;
    std::optional<Inventory> inventory_;
    ShardPlan plan_;
    std::optional<Weights> weights_;
    std::optional<SequenceState> state_;
    std::optional<Model> model_;
    std::vector<RankFacts> ranks_;
    std::vector<ReadCount> reads_;
    std::vector<RankAllocated> allocated_;
    double load_seconds_ = 0;
    const std::byte* embedding_ = nullptr;
};

}  // namespace ftmpi
