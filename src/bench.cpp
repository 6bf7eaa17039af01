#include "bench.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <string>

#include "../mpi/process/signals.hpp"
#include "bench/kernels.hpp"
#include "bench/measure.hpp"
#include "bench/prompts.hpp"
#include "bench/report.hpp"
#include "digest.hpp"
#include "engine/figures.hpp"
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

/// Runs cases through the lockstep loop that `run` uses.
class Bench {
public:
    Bench(Engine& engine, const PromptSource& prompts)
        : engine_(engine), prompts_(prompts), hash_(engine.options().hash.value_or(false)),
          generator_(generator(hash_)) {}

    /// Logits of the first prompt of `c` and a few tokens after it, hashed. Empty on other ranks than 0.
    std::string prompt_sha256(const BenchCase& c) {
        const auto hashed = generator(true);
        std::string sha;
        Generator::Events events = this->events(nullptr);
        events.finished = [&](const RequestRecord& r) { sha = r.logits_sha256; };
        stopped_ = hashed->run(requests({c.prompt, std::min<std::int64_t>(c.decode, 8), 1}), events) ==
                   Generator::End::interrupted;
        require_success(*hashed);
        return sha;
    }

    /// Warms up and measures one case, and watches its gathers in a run of their own. `append` gets each
    /// measured request on rank 0. Nothing where it was stopped before the first repeat ended.
    std::optional<CaseTimes> measure(const BenchCase& c,
                                     const std::function<void(const RequestRecord&)>& append) {
        std::vector<RequestRecord> records;
        std::vector<double> prefill, step, prefill_gather, gather;
        for (int i = -engine_.options().warmup; i < engine_.options().repeats && !stopped_; ++i) {
            const RunTimes t = run(c, records);
            if (i < 0 || stopped_) continue;
            prefill.push_back(t.prefill_seconds);
            step.insert(step.end(), t.step_seconds.begin(), t.step_seconds.end());
            for (auto& record : records) {
                record.id =
                    c.name() + "_repeat" + std::to_string(i) + "_sequence" + std::to_string(record.index);
                record.index = measured_++;
                append(record);
            }
        }
        mpi::Session& session = engine_.session();
        if (session.size() > 1 && !stopped_) {
            RunTimes t = run(c, records, true);
            if (!stopped_) {
                prefill_gather = {t.prefill_gather_seconds};
                gather = std::move(t.gather_seconds);
            }
        }
        if (prefill.empty()) return std::nullopt;
        const auto gathered = [&](const std::vector<double>& mine) {
            return session.gather_records(mine, "times");
        };
        return CaseTimes{c, gathered(prefill), gathered(prefill_gather), gathered(step), gathered(gather)};
    }

    bool stopped() const { return stopped_; }

private:
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
                           .max_tokens_asked = true,
                           .refused = {}});
        return all;
    }

    Generator::Events events(StepClock* clock) {
        Generator::Events e = engine_.loop_events();
        if (!clock) return e;
        e.step = [before = std::move(e.step), clock](std::string_view phase) {
            before(phase);
            clock->step();
        };
        e.read = [clock](std::string_view phase) { clock->read(phase); };
        return e;
    }

    static void require_success(const Generator& g) {
        if (g.failed())
            throw Error(Exit::failure,
                        "a measured request failed: its logits are not finite, or no token can be chosen");
    }

    Engine& engine_;
    const PromptSource& prompts_;
    bool hash_;
    std::unique_ptr<Generator> generator_;
    bool stopped_ = false;
    std::int64_t measured_ = 0;  ///< requests
};

/// Plans for the longest case, or says what it needs. Phase "plan".
void plan_for(const std::vector<BenchCase>& cases, Engine& engine) {
    std::int64_t longest = 0;
    for (const auto& c : cases) longest = std::max(longest, c.tokens());
    const std::string needs =
        "bench needs " + counted(static_cast<std::uint64_t>(longest), "token") + " a sequence, ";
    engine.session().agree("plan", [&] {
        if (longest > engine.config().max_positions)
            throw Error(Exit::usage,
                        needs + "this model was made for " + std::to_string(engine.config().max_positions));
    });
    engine.plan({longest});
    engine.session().agree("plan", [&] {
        const bool asked = engine.options().context != 0;
        if (engine.shard_plan().context < longest)
            throw Error(
                asked ? Exit::usage : Exit::does_not_fit,
                needs + "the context holds " + std::to_string(engine.shard_plan().context),
                asked ? "raise --context" : "measure shorter prompts or smaller --batches, or use --kv fp8");
    });
}

RunRecord record_of_cases(const std::vector<BenchCase>& cases, Engine& engine) {
    std::string names;
    std::int64_t requests = 0;
    for (const auto& c : cases) {
        names += " " + c.name();
        requests += std::int64_t{c.batch} * engine.options().repeats;
    }
    RunRecord record =
        record_of(engine, hex(sha256(std::to_string(engine.options().seed) + names)), requests);
    record.attributes.emplace_back("cases_asked", names.substr(1));
    return record;
}

/// Loads the model and measures what the figures need beside the cases: the read rate first, while there is
/// memory to read.
Surroundings load(Engine& engine) {
    Surroundings around;
    around.hash_on = *engine.options().hash;
    double rate = 0;
    engine.session().agree("read rate", [&] { rate = engine.backend().measure_read_rate(); });
    around.read_bytes_per_second = engine.session().gather_records(rate, "read rates");
    engine.load();
    around.load_seconds = engine.load_seconds();
    for (const auto& r : engine.reads()) around.loaded_bytes.push_back(r.cut + r.replicated);
    return around;
}

void show(const std::vector<CaseFigures>& figures, const Surroundings& around, const std::string& kernels,
          bool json, bool stopped, const ResultFile& file) {
    const mpi::StopBound bound("printing");
    const std::string text = json ? bench_json(figures, around) : bench_table(figures, around);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fwrite(kernels.data(), 1, kernels.size(), json ? stderr : stdout);
    std::fflush(stdout);
    if (stopped) std::fprintf(stderr, "interrupted: what was measured is saved\n");
    std::fprintf(stderr, "results: %s\n", printable(file.path().string()).c_str());
}

}  // namespace

Exit bench_command(const Options& given, mpi::Session& session) {
    const auto begin = Clock::now();
    std::vector<BenchCase> cases;
    Options options;
    session.agree("options", [&] {
        cases = cases_of(given);
        options = engine_options(given, cases);
    });
    Engine engine(options, session);
    std::optional<PromptSource> prompts;
    session.agree("prompts", [&] { prompts.emplace(engine.tokenizer(), options.seed); });
    plan_for(cases, engine);
    Screen screen(options, session.rank() == 0, 0);
    screen.plan(engine);
    Output output(engine, screen);
    output.open(
        "ftmpi-bench", [&] { return record_of_cases(cases, engine); }, false);
    Surroundings around = load(engine);
    screen.loaded(engine);

    std::vector<CaseTimes> times;
    bool stopped = false;
    std::string kernels;
    output.guard([&] {
        around.exchange_seconds =
            measure_exchange(engine.backend(), engine.communicator(), engine.config().hidden);
        Bench bench(engine, *prompts);
        around.prompt_sha256 = bench.prompt_sha256(cases[0]);
        for (const auto& c : cases) {
            if (auto measured = bench.measure(c, [&](const RequestRecord& r) { output.file()->append(r); }))
                times.push_back(std::move(*measured));
            if (bench.stopped()) break;
        }
        stopped = bench.stopped();
        if (options.kernels && !stopped) kernels = kernels_table(engine, *prompts);
    });

    std::vector<CaseFigures> figures;
    output.write(
        [&] {
            for (const auto& t : times) figures.push_back(figures_of(t, engine.shard_plan(), around));
            return bench_summary(times, figures, around, seconds_since(begin));
        },
        stopped,
        [&](const ResultFile& file) { show(figures, around, kernels, options.json, stopped, file); });
    return stopped ? Exit::interrupted : Exit::ok;
}

}  // namespace ftmpi
