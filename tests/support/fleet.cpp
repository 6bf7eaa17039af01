#include "fleet.hpp"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace ftmpi::testing {

class ThreadRanks {
public:
    explicit ThreadRanks(int size)
        : size_(size), parts_(static_cast<std::size_t>(size)), words_(static_cast<std::size_t>(size)),
          barrier_(size) {}

    void all_gather(int rank, std::span<const ShardedColumns> parts) {
        parts_[static_cast<std::size_t>(rank)] = parts;
        barrier_.arrive_and_wait();
        for (int r = 0; r < size_; ++r) {
            if (r == rank) continue;
            for (std::size_t p = 0; p < parts.size(); ++p) {
                const ShardedColumns &from = parts_[static_cast<std::size_t>(r)][p], &to = parts[p];
                const Range c = from.of_rank[static_cast<std::size_t>(r)];
                if (c.empty()) continue;
                for (std::int64_t t = 0; t < to.rows; ++t)
                    std::memcpy(to.data + t * to.width + c.begin, from.data + t * from.width + c.begin,
                                static_cast<std::size_t>(c.size()) * 4);
            }
        }
        barrier_.arrive_and_wait();
    }

    void words(int rank, std::span<const std::uint64_t> mine, std::span<std::uint64_t> all) {
        words_[static_cast<std::size_t>(rank)] = mine;
        barrier_.arrive_and_wait();
        for (int r = 0; r < size_; ++r)
            std::copy(words_[static_cast<std::size_t>(r)].begin(), words_[static_cast<std::size_t>(r)].end(),
                      all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(r) * mine.size()));
        barrier_.arrive_and_wait();
    }

    int size() const { return size_; }

private:
    int size_;
    std::vector<std::span<const ShardedColumns>> parts_;
    std::vector<std::span<const std::uint64_t>> words_;
    std::barrier<> barrier_;
};

namespace {

class ThreadCommunicator : public Communicator {
public:
    ThreadCommunicator(ThreadRanks& ranks, int rank) : ranks_(ranks), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return ranks_.size(); }
    std::string transport() const override { return "threads"; }
    std::string reason() const override { return "test"; }
    void all_gather(std::span<const ShardedColumns> parts, std::string_view, Stream) override {
        ranks_.all_gather(rank_, parts);
    }
    void all_gather_values(std::span<const std::uint64_t> mine, std::span<std::uint64_t> all,
                           std::string_view) override {
        ranks_.words(rank_, mine, all);
    }
    std::vector<Wait> waits() const override { return {}; }
    void reset_waits() override {}

private:
    ThreadRanks& ranks_;
    int rank_;
};

}  // namespace

struct Fleet::Rank {
    int index = 0;
    std::unique_ptr<Backend> backend;
    std::unique_ptr<ThreadCommunicator> communicator;
    std::optional<Weights> weights;
    std::optional<SequenceState> state;
    std::optional<Model> model;
};

Fleet::Fleet(const std::filesystem::path& directory, const FleetOptions& options) {
    checkpoint_.emplace(Checkpoint::open(directory));
    config_ = load_config(directory);
    tokenizer_.emplace(Tokenizer::load(directory));
    inventory_.emplace(*checkpoint_, config_);
    PlanRequest request;
    for (int r = 0; r < options.ranks; ++r) request.ranks.push_back({std::uint64_t{8} << 30, 0, "thread"});
    request.policy = options.policy.value_or(options.shares.empty() ? Policy::even : Policy::shares);
    request.shares = options.shares;
    request.context = options.context;
    request.slots = options.slots;
    request.kv = options.kv;
    request.prefill_rows = options.prefill_rows;
    request.embedding_on_host = options.embedding_on_host;
    plan_ = make_plan(inventory_->sizes(), request);
    if (options.edit_plan) options.edit_plan(plan_);
    threads_ = std::make_unique<ThreadRanks>(options.ranks);
    for (int r = 0; r < options.ranks; ++r) {
        auto rank = std::make_unique<Rank>();
        rank->index = r;
        rank->backend = options.backend     ? options.backend()
                        : options.best_simd ? make_cpu_backend(1)
                                            : make_cpu_backend(1, options.simd);
        rank->communicator = std::make_unique<ThreadCommunicator>(*threads_, r);
        rank->weights.emplace(*checkpoint_, *inventory_, plan_, r, *rank->backend);
        rank->state.emplace(*rank->backend, config_, plan_, r);
        rank->model.emplace(*rank->backend, *rank->communicator, config_, plan_, *rank->weights,
                            *rank->state);
        ranks_.push_back(std::move(rank));
    }
}

Fleet::~Fleet() = default;

const Weights& Fleet::weights(int rank) const { return *ranks_[static_cast<std::size_t>(rank)]->weights; }
Backend& Fleet::backend(int rank) { return *ranks_[static_cast<std::size_t>(rank)]->backend; }
const SequenceState& Fleet::state(int rank) const { return *ranks_[static_cast<std::size_t>(rank)]->state; }
Model& Fleet::model(int rank) { return *ranks_[static_cast<std::size_t>(rank)]->model; }

void Fleet::on_all(const std::function<void(Rank&)>& work) {
    if (ranks_.size() == 1) return work(*ranks_[0]);
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> failures(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r)
        threads.emplace_back([&, r] {
            try {
                work(*ranks_[r]);
            } catch (...) {
                failures[r] = std::current_exception();  // ranks run the same steps, so all of them come here
            }
        });
    for (auto& t : threads) t.join();
    const auto failed =
        std::count_if(failures.begin(), failures.end(), [](const auto& f) { return f != nullptr; });
    if (failed != 0 && failed != std::ssize(failures)) throw std::runtime_error("only some ranks failed");
    if (failed != 0) std::rethrow_exception(failures[0]);
}

std::vector<std::vector<float>> Fleet::logits(const std::vector<std::int32_t>& prompt,
                                              const std::vector<std::int32_t>& forced, std::int64_t chunk,
                                              int slot) {
    const auto ids = static_cast<std::size_t>(tokenizer_->end());
    std::vector<std::vector<std::vector<float>>> of_rank(ranks_.size());
    on_all([&](Rank& rank) {
        auto& rows = of_rank[static_cast<std::size_t>(rank.index)];
        auto keep = [&](const float* logits) {
            rows.emplace_back(ids);
            rank.backend->copy_out(rows.back().data(), logits, ids * 4);
        };
        rank.state->reset(slot);
        const auto n = static_cast<std::int64_t>(prompt.size());
        for (std::int64_t at = 0; at < n; at += chunk) {
            std::vector<Row> step;
            for (std::int64_t i = at; i < std::min(n, at + chunk); ++i)
                step.push_back({prompt[static_cast<std::size_t>(i)], slot, static_cast<std::int32_t>(i)});
            const auto count = static_cast<std::int64_t>(step.size());
            const bool last = at + count == n;
            const float* logits = rank.model->prefill(step, last ? Range{count - 1, count} : Range{});
            if (last) keep(logits);
        }
        for (std::size_t i = 0; i < forced.size(); ++i) {
            const Row row{forced[i], slot, static_cast<std::int32_t>(prompt.size() + i)};
            keep(rank.model->decode({&row, 1}));
        }
    });
    for (const auto& rows : of_rank)
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (std::memcmp(rows[i].data(), of_rank[0][i].data(), ids * 4) != 0)
                throw std::runtime_error("two ranks hold different logits at step " + std::to_string(i));
    return of_rank[0];
}

std::vector<RequestRecord> Fleet::generate(const std::vector<Request>& requests, GenerateOptions options) {
    return run(requests, std::move(options)).records;
}

Run Fleet::run(const std::vector<Request>& requests, GenerateOptions options,
               const std::function<bool(int rank)>& stop) {
    Run run;
    run.records.resize(requests.size());
    run.shown.resize(requests.size());
    std::vector<Generator::End> ends(ranks_.size());
    on_all([&](Rank& rank) {
        Generator generator(*rank.backend, *rank.communicator, *rank.model, *rank.state, *tokenizer_,
                            options);
        Generator::Events events;
        events.finished = [&](const RequestRecord& r) { run.records[static_cast<std::size_t>(r.index)] = r; };
        events.text = [&](const Request& r, std::string_view text, bool) {
            run.shown[static_cast<std::size_t>(r.index)] += text;
        };
        if (stop) events.stop_requested = [&] { return stop(rank.index); };
        if (rank.index == 0)
            events.step = [&](std::string_view phase) { ++(phase == "decode" ? run.steps : run.prefills); };
        ends[static_cast<std::size_t>(rank.index)] = generator.run(requests, events);
        if (rank.index != 0) return;
        run.decoded = generator.decoded();
        run.failed = generator.failed();
    });
    run.end = ends[0];
    for (const Generator::End end : ends)
        if (end != run.end) throw std::runtime_error("ranks ended differently");
    return run;
}

void Fleet::observe(const std::vector<std::int32_t>& prompt, const Model::Observer& observer) {
    on_all([&](Rank& rank) {
        rank.state->reset(0);
        if (rank.index == 0) rank.model->observe(observer);
        std::vector<Row> rows;
        for (std::size_t i = 0; i < prompt.size(); ++i)
            rows.push_back({prompt[i], 0, static_cast<std::int32_t>(i)});
        rank.model->prefill(
            rows, {static_cast<std::int64_t>(rows.size()) - 1, static_cast<std::int64_t>(rows.size())});
        rank.model->observe({});
    });
}

}  // namespace ftmpi::testing
