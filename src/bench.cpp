#include "bench.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <string>

#include "../mpi/process/fault.hpp"
#include "../mpi/process/report.hpp"
#include "../mpi/process/signals.hpp"
#include "bench/kernels.hpp"
#include "bench/measure.hpp"
#include "bench/prompts.hpp"
#include "bench/report.hpp"
#include "digest.hpp"
#include "engine/output.hpp"
#include "engine/record.hpp"
#include "engine/screen.hpp"
#include "results.hpp"

namespace ftmpi {
namespace {

std::vector<BenchCase> cases_of(const Options& options) {
    std::vector<BenchCase> cases;
    std::set<std::string> names;
    for (const auto prompt : options.prompt_lengths)
        for (const auto decode : options.decode_lengths)
            for (const auto batch : options.batches) {
                const BenchCase c{prompt, decode, static_cast<int>(batch)};
                if (!names.insert(c.name()).second)
                    throw Error(Exit::usage, "bench is asked for " + c.name() + " twice",
                                "leave repeated lengths out; --repeats measures again");
                cases.push_back(c);
            }
    return cases;
}

/// The options that the engine and the record see: slots for the largest batch, hashing as bench has it.
Options engine_options(const Options& options, const std::vector<BenchCase>& cases) {
    Options o = options;
    for (const auto& c : cases) o.batch = std::max(o.batch, c.batch);
    o.hash = options.hash.value_or(false);
    o.ignore_eos = true;
    return o;
}

std::string bytes_of(const std::vector<double>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

/// `mine` of every rank.
std::vector<std::vector<double>> gathered(mpi::Session& session, const std::vector<double>& mine) {
    std::vector<std::vector<double>> all;
    for (const auto& bytes : session.all_gather(bytes_of(mine), "times")) {
        all.emplace_back(bytes.size() / sizeof(double));
        if (!bytes.empty()) std::memcpy(all.back().data(), bytes.data(), bytes.size());
    }
    return all;
}

/// Runs cases through the lockstep loop that `run` uses.
class Bench {
public:
    Bench(Engine& engine, std::vector<BenchCase> cases, const PromptSource& prompts)
        : engine_(engine), cases_(std::move(cases)), prompts_(prompts),
          hash_(engine.options().hash.value_or(false)), generator_(generator(hash_)) {}

    /// Logits of the first case's first prompt and a few tokens after it, hashed. Empty on other ranks than
    /// 0.
    std::string prompt_sha256() {
        const auto hashed = generator(true);
        std::string sha;
        Generator::Events events = this->events(nullptr);
        events.finished = [&](const RequestRecord& r) { sha = r.logits_sha256; };
        stopped_ = hashed->run(requests({cases_[0].prompt, std::min<std::int64_t>(cases_[0].decode, 8), 1}),
                               events) == Generator::End::interrupted;
        require_success(*hashed);
        return sha;
    }

    /// One run; on rank 0 the records of its requests go to `records`.
    RunTimes run(const BenchCase& c, std::vector<RequestRecord>& records, bool watch_gathers = false) {
        StepClock clock(engine_.communicator(), watch_gathers);
        Generator::Events events = this->events(&clock);
        records.clear();
        events.finished = [&](const RequestRecord& r) { records.push_back(r); };
        const auto watched = watch_gathers ? generator(hash_, false) : nullptr;
        Generator& loop = watched ? *watched : *generator_;
        stopped_ = loop.run(requests(c), events) == Generator::End::interrupted;
        require_success(loop);
        return stopped_ ? RunTimes{} : clock.times(c.decode);
    }

    bool stopped() const { return stopped_; }
    const std::vector<BenchCase>& cases() const { return cases_; }

private:
    std::unique_ptr<Generator> generator(bool hash, std::optional<bool> run_ahead = {}) {
        GenerateOptions o;
        o.run_ahead = run_ahead;
        o.ignore_eos = true;
        o.hash = hash;
        o.prefill_chunk = engine_.shard_plan().prefill_rows;
        return std::make_unique<Generator>(engine_.backend(), engine_.communicator(), engine_.model(),
                                           engine_.state(), engine_.tokenizer(), o);
    }

    std::vector<Request> requests(const BenchCase& c) const {
        std::vector<Request> all;
        for (std::int64_t i = 0; i < c.batch; ++i)
            all.push_back({.index = i,
                           .id = {},
                           .prompt = {},
                           .ids = prompts_.prompt(i, c.prompt),
                           .max_tokens = c.new_tokens(),
                           .refused = {}});
        return all;
    }

    Generator::Events events(StepClock* clock) {
        Generator::Events e;
        e.stop_requested = [this] {
            engine_.check_checkpoint();
            return engine_.session().stop_requested();
        };
        e.step = [this, clock](std::string_view phase) {
            mpi::fault_point(engine_.session().rank(), phase);
            if (clock) clock->step();
        };
        if (clock) e.read = [clock](std::string_view phase) { clock->read(phase); };
        return e;
    }

    static void require_success(const Generator& g) {
        if (g.failed())
            throw Error(Exit::failure,
                        "a measured request failed: its logits are not finite, or no token can be chosen");
    }

    Engine& engine_;
    std::vector<BenchCase> cases_;
    const PromptSource& prompts_;
    bool hash_;
    std::unique_ptr<Generator> generator_;
    bool stopped_ = false;
};

}  // namespace

Exit bench_command(const Options& given, mpi::Session& session) {
    const bool root = session.rank() == 0;
    const auto begin = std::chrono::steady_clock::now();
    std::vector<BenchCase> cases;
    Options options;
    session.agree(
        "options",
        [&] {
            cases = cases_of(given);
            options = engine_options(given, cases);
        },
        true);

    Engine engine(options, session);
    std::optional<PromptSource> prompts;
    session.agree(
        "prompts", [&] { prompts.emplace(engine.tokenizer(), options.seed); }, true);
    std::int64_t longest = 0;
    for (const auto& c : cases) longest = std::max(longest, c.tokens());
    session.agree(
        "plan",
        [&] {
            if (longest > engine.config().max_positions)
                throw Error(Exit::usage, "bench needs " +
                                             counted(static_cast<std::uint64_t>(longest), "token") +
                                             " a sequence, this model was made for " +
                                             std::to_string(engine.config().max_positions));
        },
        true);
    engine.plan({longest});
    session.agree(
        "plan",
        [&] {
            if (engine.shard_plan().context < longest)
                throw Error(
                    options.context ? Exit::usage : Exit::does_not_fit,
                    "bench needs " + counted(static_cast<std::uint64_t>(longest), "token") +
                        " a sequence, the context holds " + std::to_string(engine.shard_plan().context),
                    options.context ? "raise --context"
                                    : "measure shorter prompts or smaller --batches, or use --kv fp8");
        },
        true);
    Screen screen(options, root, 0);
    screen.plan(engine);

    std::unique_ptr<ResultFile> results;
    session.agree(
        "results",
        [&] {
            if (!root) return;
            std::string names;
            std::int64_t requests = 0;
            for (const auto& c : cases) {
                names += " " + c.name();
                requests += std::int64_t{c.batch} * options.repeats;
            }
            RunRecord record = record_of(engine, hex(sha256(std::to_string(options.seed) + names)), requests,
                                         utc("%Y-%m-%dT%H:%M:%SZ"));
            record.attributes.emplace_back("cases_asked", names.substr(1));
            results = std::make_unique<ResultFile>(
                output_of(options, "ftmpi-bench"), std::move(record),
                options.overwrite ? ResultFile::Existing::overwrite : ResultFile::Existing::refuse, false);
            if (!results->warning().empty())
                std::fprintf(stderr, "note: %s\n", printable(results->warning()).c_str());
        },
        true);

    // Before the weights, while there is memory to read.
    Surroundings around;
    around.hash_on = *options.hash;
    double rate = 0;
    session.agree(
        "read rate", [&] { rate = engine.backend().measure_read_rate(); }, true);
    for (const auto& one : gathered(session, {rate})) around.read_bytes_per_second.push_back(one[0]);

    engine.load();
    screen.loaded(engine);
    around.load_seconds = engine.load_seconds();
    for (const auto& r : engine.reads()) around.loaded_bytes.push_back(r.cut + r.replicated);

    std::vector<CaseTimes> times;
    bool stopped = false;
    std::string kernels;
    try {
        around.exchange_seconds =
            measure_exchange(engine.backend(), engine.communicator(), engine.config().hidden);
        Bench bench(engine, cases, *prompts);
        around.prompt_sha256 = bench.prompt_sha256();
        std::int64_t index = 0;
        std::vector<RequestRecord> records;
        for (const auto& c : cases) {
            std::vector<double> prefill, step, prefill_gather, gather;
            for (int i = -options.warmup; i < options.repeats && !bench.stopped(); ++i) {
                const RunTimes t = bench.run(c, records);
                if (i < 0 || bench.stopped()) continue;
                prefill.push_back(t.prefill_seconds);
                step.insert(step.end(), t.step_seconds.begin(), t.step_seconds.end());
                for (auto& record : records) {
                    record.id =
                        c.name() + "_repeat" + std::to_string(i) + "_sequence" + std::to_string(record.index);
                    record.index = index++;
                    if (results) results->append(record);
                }
            }
            if (session.size() > 1 && !bench.stopped()) {
                RunTimes t = bench.run(c, records, true);
                if (!bench.stopped()) {
                    prefill_gather = {t.prefill_gather_seconds};
                    gather = std::move(t.gather_seconds);
                }
            }
            stopped = bench.stopped();
            if (prefill.empty()) break;
            times.push_back({c, gathered(session, prefill), gathered(session, prefill_gather),
                             gathered(session, step), gathered(session, gather)});
            if (stopped) break;
        }
        if (options.kernels && !stopped) kernels = kernels_table(engine, *prompts);
        engine.measure_allocated();
    } catch (...) {
        const Error error = mpi::error_of_current_exception();
        results.reset();  // a journal without a finished request goes; any other stays
        session.abort(error);
    }

    session.agree("write", [&] {
        if (!root) return;
        std::vector<CaseFigures> figures;
        for (const auto& t : times)
            figures.push_back(figures_of(t, engine.config(), engine.shard_plan(), around));
        SummaryRecord summary =
            bench_summary(times, figures, around,
                          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        add_allocated(engine, summary);
        results->finish(summary, stopped);
        screen.taken(engine);
        const mpi::StopBound bound("printing");
        const std::string text = options.json ? bench_json(figures, around) : bench_table(figures, around);
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fwrite(kernels.data(), 1, kernels.size(), options.json ? stderr : stdout);
        std::fflush(stdout);
        if (stopped) std::fprintf(stderr, "interrupted: what was measured is saved\n");
        std::fprintf(stderr, "results: %s\n", printable(results->path().string()).c_str());
    });
    return stopped ? Exit::interrupted : Exit::ok;
}

}  // namespace ftmpi
