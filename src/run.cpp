#include "run.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "../mpi/process/fault.hpp"
#include "../mpi/process/report.hpp"
#include "digest.hpp"
#include "engine/engine.hpp"
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

/// A request's new tokens were asked for, by the prompt or the command line, and are not only the default.
bool asked_for_tokens(const Options& options, const PromptText& prompt) {
    return options.max_tokens_asked || prompt.max_tokens.has_value();
}

/// Refuses requests that the context cannot hold, with the numbers and what would help; the others go on. A
/// prompt must leave room for a token. The answer may end at the context where that was asked for with
/// --context, or where nobody asked for so many tokens.
void refuse_too_long(std::vector<Request>& requests, const Options& options,
                     const std::vector<PromptText>& prompts, const ShardPlan& plan,
                     std::int64_t model_context) {
    for (Request& r : requests) {
        if (!r.refused.empty()) continue;
        const auto n = static_cast<std::int64_t>(r.ids.size()), needed = n + r.max_tokens;
        const bool prompt_fits = n < plan.context;
        const bool may_end_early =
            options.context != 0 || !asked_for_tokens(options, prompts[static_cast<std::size_t>(r.index)]);
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

double median(std::vector<double> v) {
    if (v.empty()) return 0;
    const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
    std::nth_element(v.begin(), middle, v.end());
    return *middle;
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
        prefill_seconds += r.prefill_seconds;
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

}  // namespace

Exit run_command(const Options& options, mpi::Session& session) {
    const bool root = session.rank() == 0;
    const auto begin = std::chrono::steady_clock::now();
    std::vector<PromptText> prompts;
    session.agree(
        "options",
        [&] {
            if (options.model.empty()) throw Error(Exit::usage, "--model DIR is missing");
            prompts = read_prompts(options);
        },
        true);

    Engine engine(options, session);
    std::vector<Request> requests;
    session.agree(
        "prompts", [&] { requests = requests_of(options, prompts, engine); }, true);
    session.require_equal("prompts", "prompts",
                          prompts_digest(requests) + (options.max_tokens_asked ? " with --max-tokens" : ""));
    std::vector<std::int64_t> lengths;
    for (const Request& r : requests)
        if (const auto n = static_cast<std::int64_t>(r.ids.size());
            r.refused.empty() && n < engine.config().max_positions)
            lengths.push_back(n + r.max_tokens);
    engine.plan(lengths);
    refuse_too_long(requests, options, prompts, engine.shard_plan(), engine.config().max_positions);

    Screen screen(options, root, requests.size());
    screen.plan(engine);

    // The result file is checked before any weight is read, so that an hour of work cannot end at a read-only
    // folder.
    std::unique_ptr<ResultFile> results;
    std::string finished_text;
    bool nothing_left = false;  // known to rank 0
    const std::string start = utc("%Y-%m-%dT%H:%M:%SZ");
    session.agree(
        "results",
        [&] {
            if (!root) return;
            results = std::make_unique<ResultFile>(
                output_of(options, "ftmpi"),
                record_of(engine, prompts_digest(requests), std::ssize(requests), start),
                options.resume      ? ResultFile::Existing::resume
                : options.overwrite ? ResultFile::Existing::overwrite
                                    : ResultFile::Existing::refuse);
            if (!results->warning().empty())
                std::fprintf(stderr, "note: %s\n", printable(results->warning()).c_str());
            nothing_left = results->nothing_left();
            finished_text = std::to_string(results->failed_before()) + "\n";
            for (auto i : results->finished()) finished_text += std::to_string(i) + "\n";
        },
        true);
    std::vector<bool> done(requests.size(), false);
    std::int64_t failed = 0;  // of the whole run, earlier sessions too: the exit code is about the result
    {
        const std::string text = session.broadcast(finished_text, "finished requests");
        std::size_t at = text.find('\n') + 1, count = 0;
        failed = std::stoll(text.substr(0, at));
        for (std::size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1, ++count)
            done.at(static_cast<std::size_t>(std::stoll(text.substr(at, end - at)))) = true;
        screen.resumed(count, failed, nothing_left);
    }
    // What is refused ends before any work, so that nobody waits hours for it.
    Tally tally;
    std::vector<Request> open;
    session.agree(
        "results",
        [&] {
            for (const Request& r : requests) {
                if (done[static_cast<std::size_t>(r.index)]) continue;
                if (r.refused.empty()) {
                    open.push_back(r);
                    continue;
                }
                ++failed;
                if (!root) continue;
                RequestRecord record;
                record.index = r.index;
                record.id = r.id;
                record.prompt = r.prompt;
                record.prompt_ids = r.ids;
                record.finish_reason = "error";
                record.error = r.refused;
                results->append(record);
                tally.add(record);
                screen.finished(record);
            }
        },
        true);

    Generator::End end = Generator::End::done;
    if (!open.empty()) {
        engine.load();
        screen.loaded(engine);
        try {
            Generator generator(
                engine.backend(), engine.communicator(), engine.model(), engine.state(), engine.tokenizer(),
                {.sampling = {options.temperature, options.top_p, options.top_k, options.seed},
                 .ignore_eos = options.ignore_eos,
                 .hash = options.hash.value_or(true),
                 .save_logits = options.save_logits,
                 .prefill_chunk = engine.shard_plan().prefill_rows,
                 .stop_ids = engine.config().stop_ids});
            Generator::Events events;
            events.text = [&](const Request& r, std::string_view text, bool last) {
                screen.text(r, text, last);
            };
            events.finished = [&](const RequestRecord& r) {
                results->append(r);
                tally.add(r);
                screen.finished(r);
            };
            events.stop_requested = [&] {
                engine.check_checkpoint();
                return session.stop_requested();
            };
            events.step = [&](std::string_view phase) { mpi::fault_point(session.rank(), phase); };
            end = generator.run(open, events);
            engine.measure_allocated();
            failed += generator.failed();
            tally.decoded = generator.decoded();
            tally.decode_seconds = generator.decode_seconds();
        } catch (...) {
            const Error error = mpi::error_of_current_exception();
            results.reset();  // a journal without a finished request goes; any other stays
            session.abort(error);
        }
    }

    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    session.agree("write", [&] {
        if (!root) return;
        SummaryRecord summary = summary_of(tally, engine, wall);
        add_allocated(engine, summary);
        results->finish(summary, end == Generator::End::interrupted);
        screen.taken(engine);
        screen.summary(tally.figures(), results->path(), end == Generator::End::interrupted,
                       static_cast<std::int64_t>(requests.size()) -
                           static_cast<std::int64_t>(results->finished().size()) - tally.requests);
    });
    if (end == Generator::End::interrupted) return Exit::interrupted;
    return failed ? Exit::partly_failed : Exit::ok;
}

}  // namespace ftmpi
