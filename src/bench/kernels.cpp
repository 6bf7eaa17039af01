#include "kernels.hpp"

#include <algorithm>
#include <cstdio>

#include "../generate.hpp"

namespace ftmpi {
namespace {

/// 1, 2, 4, ... below `most`, and `most`.
std::vector<std::int64_t> doublings(std::int64_t most) {
    std::vector<std::int64_t> all;
    for (std::int64_t n = 1; n < most; n *= 2) all.push_back(n);
    all.push_back(most);
    return all;
}

/// What steps of `sequences` prompts of `length` tokens and `decoded` steps behind them ran.
std::vector<KernelRun> traced(Engine& engine, const PromptSource& prompts, std::int64_t sequences,
                              std::int64_t length, std::int64_t decoded) {
    GenerateOptions o;
    o.run_ahead = false;
    o.ignore_eos = true;
    o.hash = false;
    o.prefill_chunk = engine.shard_plan().prefill_rows;
    Generator generator(engine.backend(), engine.communicator(), engine.model(), engine.state(),
                        engine.tokenizer(), o);
    std::vector<Request> requests;
    for (std::int64_t i = 0; i < sequences; ++i)
        requests.push_back({.index = i,
                            .id = {},
                            .prompt = {},
                            .ids = prompts.prompt(i, length),
                            .max_tokens = decoded + 1,
                            .max_tokens_asked = true,
                            .refused = {}});
    Generator::Events events;
    events.stop_requested = [&] { return engine.session().stop_requested(); };
    generator.run(requests, events);
    return engine.backend().traced_kernels();
}

void add_lines(std::string& table, const std::string& step, const std::vector<KernelRun>& runs,
               std::int64_t only_rows) {
    for (const KernelRun& r : runs) {
        if (only_rows && r.rows != only_rows) continue;
        char line[256];
        std::snprintf(line, sizeof line, "%-14s %6lld  %-52s %-34s %5lld %10.1f\n", step.c_str(),
                      static_cast<long long>(r.rows), r.operation.c_str(), r.kernel.c_str(),
                      static_cast<long long>(r.calls), r.seconds * 1e6 / static_cast<double>(r.calls));
        table += line;
    }
}

}  // namespace

std::string kernels_table(Engine& engine, const PromptSource& prompts) {
    const ShardPlan& plan = engine.shard_plan();
    const std::int64_t most = std::max<std::int64_t>(1, std::min(plan.prefill_rows, plan.context - 2));
    char head[160];
    std::snprintf(head, sizeof head, "%-14s %6s  %-52s %-34s %5s %10s\n", "step", "rows", "operator",
                  "kernel", "calls", "us a call");
    std::string table = head;
    engine.backend().trace_kernels(true);
    for (const std::int64_t rows : doublings(most)) {
        traced(engine, prompts, 1, rows, 0);  // what is made at first use is not measured
        add_lines(table, "prefill " + std::to_string(rows), traced(engine, prompts, 1, rows, 0), 0);
    }
    for (const std::int64_t batch : doublings(engine.options().batch)) {
        if (batch == 1) continue;
        traced(engine, prompts, batch, 1, 1);
        add_lines(table, "decode " + std::to_string(batch), traced(engine, prompts, batch, 1, 1), batch);
    }
    engine.backend().trace_kernels(false);
    return table;
}

}  // namespace ftmpi
