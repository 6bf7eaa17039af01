#include "run.hpp"

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "digest.hpp"
#include "engine/engine.hpp"
#include "engine/figures.hpp"
#include "engine/output.hpp"
#include "engine/record.hpp"
#include "engine/screen.hpp"
#include "generate.hpp"
#include "results.hpp"

namespace ftmpi {
namespace {

/// The prompts, tokenized. Their token counts decide how large a context the plan should hold. One that
/// cannot fit whatever its tokens are is refused by its length: hundreds of megabytes in a line are not worth
/// the wait.
std::vector<Request> requests_of(const Options& options, const std::vector<PromptText>& prompts,
                                 const Engine& engine) {
    std::vector<Request> requests;
    const auto& tokenizer = engine.tokenizer();
    const auto* chat = options.chat ? &known_chat_template(options.model) : nullptr;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        const PromptText& p = prompts[i];
        Request r{.index = static_cast<std::int64_t>(i),
                  .id = p.id,
                  .prompt = p.text,
                  .ids = p.ids,
                  .max_tokens = p.max_tokens.value_or(options.max_tokens),
                  .max_tokens_asked = options.max_tokens_asked || p.max_tokens.has_value(),
                  .refused = {}};
        const std::string which =
            p.id.empty() ? "prompt " + std::to_string(i) : "prompt " + std::to_string(i) + " (" + p.id + ")";
        const auto limit = options.context ? options.context : engine.config().max_positions;
        const auto bytes = (options.chat ? trim_as_chat(p.text) : std::string_view(p.text)).size();
        if (const auto least = tokenizer.least_tokens(bytes); least >= limit) {
            r.refused = "a prompt of " + counted(bytes, "byte") + " is at least " +
                        counted(static_cast<std::uint64_t>(least), "token") + ", the context holds " +
                        std::to_string(limit);
            requests.push_back(std::move(r));
            continue;
        }
        try {
            if (r.ids.empty())
                r.ids =
                    chat ? encode_chat(tokenizer, *chat, p.text, options.thinking) : tokenizer.encode(p.text);
        } catch (const Error& e) { throw Error(e.code(), which + ": " + e.what(), e.hint()); }
        if (r.ids.empty()) throw Error(Exit::bad_input, which + " has no tokens: empty prompt");
        for (auto id : r.ids)
            if (id < 0 || id >= engine.config().vocab || !tokenizer.has(id))
                throw Error(Exit::bad_input, which + ": token id " + std::to_string(id) +
                                                 " is not in the vocabulary of " +
                                                 std::to_string(tokenizer.end()) + " ids");
        requests.push_back(std::move(r));
    }
    return requests;
}

/// Refuses requests that the context cannot hold, with the numbers and what would help; the others go on. A
/// prompt must leave room for a token. The answer may end at the context where that was asked for with
/// --context, or where nobody asked for so many tokens.
void refuse_too_long(std::vector<Request>& requests, const Options& options, const ShardPlan& plan,
                     std::int64_t model_context) {
    for (Request& r : requests) {
        if (!r.refused.empty()) continue;
        const auto n = static_cast<std::int64_t>(r.ids.size()), needed = n + r.max_tokens;
        const bool prompt_fits = n < plan.context;
        const bool may_end_early = options.context != 0 || !r.max_tokens_asked;
        if (prompt_fits && (may_end_early || needed <= plan.context)) continue;
        r.refused = "needs " + counted(r.ids.size(), "prompt token") + " and " +
                    counted(static_cast<std::uint64_t>(r.max_tokens), "new one") + ", " +
                    std::to_string(needed) + " in all; the context holds " + std::to_string(plan.context);
        std::string help;
        const auto add = [&](const std::string& way) { help += (help.empty() ? "; " : " or ") + way; };
        if (plan.context >= model_context) r.refused += ", all that the model was made for";
        if (prompt_fits) add("--max-tokens " + std::to_string(plan.context - n));
        if (options.context != 0 && needed <= std::min(model_context, plan.context_capacity))
            add("--context " + std::to_string(needed));
        if (plan.context < model_context && needed > plan.context_capacity) {
            if (plan.slots > 1) add("a smaller --batch");
            if (size_of(plan.kv) > 1) add("--kv fp8");
            add("more memory");
        }
        if (!help.empty()) r.refused += help + " would help";
    }
}

std::string prompts_digest(const std::vector<Request>& requests) {
    std::string all;
    for (const Request& r : requests) {
        all += r.id + '\n' + std::to_string(r.max_tokens) + '\n';
        for (auto id : r.ids) all += std::to_string(id) + ' ';
        if (r.ids.empty()) all += hex(sha256(r.prompt));  // refused by its length
        all += '\n';
    }
    return hex(sha256(all));
}

/// Figures over the requests of this session.
struct Tally {
    std::int64_t requests = 0, prompt_tokens = 0, output_tokens = 0, decoded = 0;
    double prefill_seconds = 0, decode_seconds = 0;
    std::vector<double> steps;

    void add(const RequestRecord& r) {
        ++requests;
        if (r.prefill_seconds > 0) prompt_tokens += static_cast<std::int64_t>(r.prompt_ids.size());
        output_tokens += static_cast<std::int64_t>(r.output_ids.size());
        if (!r.step_seconds.empty())
            steps.insert(steps.end(), r.step_seconds.begin() + 1, r.step_seconds.end());
    }
    SessionFigures figures() const {
        return {requests,
                prompt_tokens,
                output_tokens,
                prefill_seconds,
                decode_seconds > 0 ? static_cast<double>(decoded) / decode_seconds : 0,
                median(steps)};
    }
};

/// The times of this session; what can be counted the file counts itself, over all sessions.
SummaryRecord summary_of(const Tally& t, const Engine& engine, double wall_seconds) {
    SummaryRecord s;
    auto put = [&](const std::string& name, double value) { s.values.emplace_back(name, value); };
    put("wall_seconds", wall_seconds);
    if (engine.load_seconds() > 0) {
        put("load_seconds", engine.load_seconds());
        put("prefill_seconds", t.prefill_seconds);
        put("decode_seconds", t.decode_seconds);
    }
    if (!t.steps.empty()) {
        put("decode_step_median_seconds", median(t.steps));
        put("decode_tokens_per_second", t.figures().decode_tokens_per_second);
    }
    for (std::size_t r = 0; r < engine.reads().size(); ++r) {
        put("rank" + std::to_string(r) + "_checkpoint_cut_bytes", static_cast<double>(engine.reads()[r].cut));
        put("rank" + std::to_string(r) + "_checkpoint_replicated_bytes",
            static_cast<double>(engine.reads()[r].replicated));
    }
    return s;
}

/// What rank 0 has found in the file that a run goes on with.
struct Earlier {
    std::int64_t failed = 0;             ///< of those finished
    std::vector<std::int64_t> finished;  ///< indices
};

constexpr auto fields_of(std::type_identity<Earlier>) {
    return std::tuple(&Earlier::failed, &Earlier::finished);
}

RequestRecord record_of_refused(const Request& r) {
    RequestRecord record;
    record.index = r.index;
    record.id = r.id;
    record.prompt = r.prompt;
    record.prompt_ids = r.ids;
    record.finish_reason = "error";
    record.error = r.refused;
    return record;
}

/// One `ftmpi run`, its phases in the order in which they are called.
class Run {
public:
    Run(const Options& options, mpi::Session& session, const std::vector<PromptText>& prompts)
        : options_(options), session_(session), root_(session.rank() == 0), engine_(options, session),
          screen_(options, root_, prompts.size()), output_(engine_, screen_) {
        session.agree("prompts", [&] { requests_ = requests_of(options, prompts, engine_); });
        digest_ = prompts_digest(requests_);
        session.require_equal("prompts", "prompts",
                              digest_ + (options.max_tokens_asked ? " with --max-tokens" : ""));
    }

    void plan() {
        std::vector<std::int64_t> lengths;
        for (const Request& r : requests_)
            if (const auto n = std::ssize(r.ids); r.refused.empty() && n < engine_.config().max_positions)
                lengths.push_back(n + r.max_tokens);
        engine_.plan(lengths);
        refuse_too_long(requests_, options_, engine_.shard_plan(), engine_.config().max_positions);
        screen_.plan(engine_);
    }

    /// Opens the file and leaves out what an earlier run has finished. What is refused ends here, so that
    /// nobody waits hours for it.
    void open_results() {
        output_.open(
            "ftmpi", [&] { return record_of(engine_, digest_, std::ssize(requests_)); }, true);
        const ResultFile* file = output_.file();
        const auto earlier = session_.broadcast_record(
            file ? Earlier{file->failed_before(), file->finished()} : Earlier{}, "finished requests");
        failed_ = earlier.failed;
        screen_.resumed(earlier.finished.size(), failed_, file && file->nothing_left());
        std::vector<bool> done(requests_.size(), false);
        for (const auto index : earlier.finished) done.at(static_cast<std::size_t>(index)) = true;
        session_.agree("results", [&] {
            for (const Request& r : requests_) {
                if (done[static_cast<std::size_t>(r.index)]) continue;
                if (r.refused.empty()) {
                    open_.push_back(r);
                    continue;
                }
                ++failed_;
                if (root_) finished(record_of_refused(r));
            }
        });
    }

    void generate() {
        if (open_.empty()) return;
        engine_.load();
        screen_.loaded(engine_);
        output_.guard([&] {
            Generator generator(
                engine_.backend(), engine_.communicator(), engine_.model(), engine_.state(),
                engine_.tokenizer(),
                {.sampling = {options_.temperature, options_.top_p, options_.top_k, options_.seed},
                 .ignore_eos = options_.ignore_eos,
                 .hash = options_.hash.value_or(true),
                 .save_logits = options_.save_logits,
                 .prefill_chunk = engine_.shard_plan().prefill_rows,
                 .stop_ids = engine_.config().stop_ids});
            Generator::Events events = engine_.loop_events();
            events.text = [&](const Request& r, std::string_view text, bool last) {
                screen_.text(r, text, last);
            };
            events.finished = [&](const RequestRecord& r) { finished(r); };
            interrupted_ = generator.run(open_, events) == Generator::End::interrupted;
            failed_ += generator.failed();
            tally_.decoded = generator.decoded();
            tally_.decode_seconds = generator.decode_seconds();
            tally_.prefill_seconds = generator.prefill_seconds();
        });
    }

    Exit write(Clock::time_point begin) {
        output_.write([&] { return summary_of(tally_, engine_, seconds_since(begin)); }, interrupted_,
                      [&](const ResultFile& file) {
                          screen_.summary(
                              tally_.figures(), file.path(), interrupted_,
                              std::ssize(requests_) - std::ssize(file.finished()) - tally_.requests);
                      });
        if (interrupted_) return Exit::interrupted;
        return failed_ ? Exit::partly_failed : Exit::ok;
    }

private:
    /// On rank 0.
    void finished(const RequestRecord& record) {
        output_.file()->append(record);
        tally_.add(record);
        screen_.finished(record);
    }

    const Options& options_;
    mpi::Session& session_;
    bool root_;
    Engine engine_;
    Screen screen_;
    Output output_;
    std::vector<Request> requests_, open_;  ///< all, and those that are neither finished nor refused
    std::string digest_;
    Tally tally_;
    std::int64_t failed_ = 0;  ///< of the whole run, earlier sessions too: the exit code is about the result
    bool interrupted_ = false;
};

}  // namespace

Exit run_command(const Options& options, mpi::Session& session) {
    const auto begin = Clock::now();
    std::vector<PromptText> prompts;
    session.agree("options", [&] { prompts = read_prompts(options); });
    Run run(options, session, prompts);
    run.plan();
    run.open_results();
    run.generate();
    return run.write(begin);
}

}  // namespace ftmpi
