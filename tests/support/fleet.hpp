// A model on the CPU with its ranks as threads of the test: cuts without MPI.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "cpu_backend.hpp"
#include "generate.hpp"
#include "model.hpp"

namespace ftmpi::testing {

struct FleetOptions {
    int ranks = 1;
    std::vector<double> shares = {};  ///< empty: even
    std::optional<Policy> policy = {};
    KvType kv = KvType::fp32;
    int slots = 1;
    std::int64_t prefill_rows = 256;
    std::int64_t context = 1024;
    bool embedding_on_host = true;
    Simd simd = Simd::avx2;
    bool best_simd = true;  ///< ignore `simd`
    std::function<void(ShardPlan&)> edit_plan = {};
    std::function<std::unique_ptr<Backend>()> backend = {};  ///< one a rank; the CPU's when left out
};

/// What a run left behind, beside its records.
struct Run {
    std::vector<RequestRecord> records;  ///< by index; that of a request without a record is empty
    std::vector<std::string> shown;      ///< text that went out, by index
    Generator::End end = Generator::End::done;
    std::int64_t decoded = 0, failed = 0;
    std::int64_t steps = 0;     ///< decode steps that were asked for
    std::int64_t prefills = 0;  ///< steps of prompts
};

/// Ranks as threads over shared memory: a gather copies the others' columns between two barriers.
class ThreadRanks;

class Fleet {
public:
    Fleet(const std::filesystem::path& model, const FleetOptions& options);
    ~Fleet();

    /// Logits [step][real ids] when the prompt is prefilled in chunks and then `forced` is fed token by
    /// token: step i is what chooses token i. Throws std::runtime_error when two ranks' logits differ in a
    /// bit.
    std::vector<std::vector<float>> logits(const std::vector<std::int32_t>& prompt,
                                           const std::vector<std::int32_t>& forced, std::int64_t chunk = 256,
                                           int slot = 0);
    /// The lockstep loop over requests; records by index.
    std::vector<RequestRecord> generate(const std::vector<Request>& requests, GenerateOptions options);
    /// The same, with all that is heard of it on rank 0; `stop` is asked on every rank whenever ranks compare
    /// a step.
    Run run(const std::vector<Request>& requests, GenerateOptions options,
            const std::function<bool(int rank)>& stop = {});
    /// Runs `rows` once with an observer on rank 0.
    void observe(const std::vector<std::int32_t>& prompt, const Model::Observer& observer);

    const ModelConfig& config() const { return config_; }
    const Tokenizer& tokenizer() const { return *tokenizer_; }
    const Inventory& inventory() const { return *inventory_; }
    const ShardPlan& plan() const { return plan_; }
    const Weights& weights(int rank) const;
    Backend& backend(int rank);
    const SequenceState& state(int rank) const;
    Model& model(int rank);

private:
    struct Rank;
    void on_all(const std::function<void(Rank&)>& work);

    std::optional<Checkpoint> checkpoint_;
    ModelConfig config_;
    std::optional<Tokenizer> tokenizer_;
    std::optional<Inventory> inventory_;
    ShardPlan plan_;
    std::unique_ptr<ThreadRanks> threads_;
    std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace ftmpi::testing
