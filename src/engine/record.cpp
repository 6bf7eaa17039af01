#include "record.hpp"

#include <sstream>

#include "../numerics.hpp"
#include "../options/values.hpp"
#include "output.hpp"

namespace ftmpi {
namespace {

template <class T> std::string joined(const std::vector<T>& items) {
    std::ostringstream text;
    for (std::size_t i = 0; i < items.size(); ++i) text << (i ? " " : "") << items[i];
    return text.str();
}

/// To be pasted into a shell.
std::string command_line(const std::vector<std::string>& argv) {
    std::vector<std::string> words;
    for (const auto& word : argv) words.push_back(shell_word(word));
    return joined(words);
}

std::vector<std::int64_t> flat(const std::vector<Range>& ranges) {
    std::vector<std::int64_t> v;
    for (const auto& r : ranges) {
        v.push_back(r.begin);
        v.push_back(r.end);
    }
    return v;
}

}  // namespace

void add_allocated(const Engine& engine, SummaryRecord& summary) {
    for (std::size_t r = 0; r < engine.allocated().size(); ++r) {
        const RankAllocated& h = engine.allocated()[r];
        const std::string rank = "rank" + std::to_string(r) + "_";
        for (const auto& group : kByteGroups)
            summary.values.emplace_back(rank + "held_" + group.name + "_bytes",
                                        static_cast<double>(h.bytes.*group.bytes));
        summary.values.emplace_back(rank + "held_all_bytes", static_cast<double>(h.bytes.total()));
        summary.values.emplace_back(rank + "memory_free_at_end_bytes", static_cast<double>(h.free_bytes));
    }
}

std::string version_line() {
    return std::string("ftmpi ") + FTMPI_VERSION + " (" + FTMPI_COMMIT + "), " +
#if defined(__clang__)
           "clang " __clang_version__
#else
           "gcc " __VERSION__
#endif
        ;
}

namespace {

using Attributes = std::vector<std::pair<std::string, std::string>>;

Attributes attributes_of(Engine& engine) {
    const Options& o = engine.options();
    const ShardPlan& plan = engine.shard_plan();
    Attributes attributes;
    auto add = [&](const char* name, std::string value) { attributes.emplace_back(name, std::move(value)); };
    add("program", version_line());
    add("version", FTMPI_VERSION);
    add("commit", FTMPI_COMMIT);
    add("argv", command_line(o.argv));
    add("job_file", o.job.string());
    Options effective = o;
    effective.hash = o.hash.value_or(true);  // bench has set its own before
    add("options", job_file_text(effective));
    add("start_time", utc("%Y-%m-%dT%H:%M:%SZ"));
    add("numerics", o.numerics == Numerics::exact ? "exact" : "fast");
    add("numerics_version", std::to_string(num::kVersion));
    add("kv", std::string(name_of(plan.kv)));
    add("hash", o.hash.value_or(true) ? "on" : "off");
    add("batch", std::to_string(plan.slots));
    add("context", std::to_string(plan.context));
    add("prefill_rows", std::to_string(plan.prefill_rows));
    add("model", std::filesystem::absolute(o.model).lexically_normal().string());
    add("model_type", engine.config().model_type);
    add("quantization", engine.config().quantization);
    add("config_sha256", engine.config().sha256);
    add("index_sha256", engine.checkpoint().index_sha256());
    add("mpi_library", engine.session().library());
    add("transport", engine.communicator().transport());
    add("transport_reason", engine.communicator().reason());
    add("ranks", std::to_string(engine.session().size()));
    return attributes;
}

std::vector<Attributes> rows_of_ranks(const Engine& engine) {
    const ShardPlan& plan = engine.shard_plan();
    std::vector<Attributes> rows;
    for (std::size_t i = 0; i < engine.ranks().size(); ++i) {
        const RankFacts& f = engine.ranks()[i];
        const RankBytes& b = plan.bytes[i];
        Attributes row;
        auto put = [&](const char* name, std::string value) { row.emplace_back(name, std::move(value)); };
        put("host", f.host);
        put("backend", f.device.backend);
        put("device", f.device.name);
        put("uuid", f.device.uuid);
        put("capability", f.device.capability);
        put("driver", f.device.driver);
        put("cpu_threads", std::to_string(f.threads));
        put("memory_total_bytes", std::to_string(f.device.total_bytes));
        put("memory_free_bytes", std::to_string(f.device.free_bytes));
        put("memory_available_bytes", std::to_string(f.available));
        put("bandwidth_gb_per_s", std::to_string(f.gb_per_s));
        for (const auto& group : kByteGroups)
            row.emplace_back(std::string(group.name) + "_bytes", std::to_string(b.*group.bytes));
        put("read_bytes_per_token", std::to_string(plan.reads[i].token()));
        rows.push_back(std::move(row));
    }
    return rows;
}

/// Of every matrix role the rows of each rank, layer by layer.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> ranges_of(const ShardPlan& plan) {
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> ranges;
    auto roles = [&](const char* name, std::vector<Range> LayerCut::*member) {
        std::vector<std::int64_t> all;
        for (const auto& layer : plan.layers)
            for (auto v : flat(layer.*member)) all.push_back(v);
        ranges.emplace_back(name, std::move(all));
    };
    roles("mixer", &LayerCut::mixer);
    roles("out", &LayerCut::out);
    roles("expert", &LayerCut::expert);
    roles("shared", &LayerCut::shared);
    roles("down", &LayerCut::down);
    ranges.emplace_back("head", flat(plan.head));
    return ranges;
}

/// Everything that decides the text; ranks, cut and transport do not.
std::string identity_of(Engine& engine, const std::string& prompts_digest) {
    const Options& o = engine.options();
    const ShardPlan& plan = engine.shard_plan();
    std::string identity;
    auto line = [&](const char* label, const std::string& value) {
        identity += std::string(label) + ": " + value + "\n";
    };
    line("model config", engine.config().sha256);
    line("model index", engine.checkpoint().index_sha256());
    line("model weights", engine.weights_sha256());
    line("tokenizer", engine.tokenizer().sha256());
    line("stop ids", joined(engine.config().stop_ids));
    line("numerics", o.numerics == Numerics::exact ? "exact"
                                                   : "fast on " + engine.ranks()[0].device.backend + " " +
                                                         engine.ranks()[0].device.capability +
                                                         ", chunks of " + std::to_string(plan.prefill_rows));
    line("numerics version", std::to_string(num::kVersion));
    line("kv", std::string(name_of(plan.kv)));
    line("temperature", values::text_of(o.temperature));
    line("top-k", std::to_string(o.top_k));
    line("top-p", values::text_of(o.top_p));
    line("seed", std::to_string(o.seed));
    // Asked for, a number that does not fit is refused; as the default it ends with the context.
    line("max-tokens", std::to_string(o.max_tokens) + (o.max_tokens_asked ? "" : ", the default"));
    line("ignore-eos", o.ignore_eos ? "yes" : "no");
    line("chat", o.chat ? (o.thinking ? "thinking" : "plain") : "off");
    line("context", std::to_string(o.context));
    line("hash", o.hash.value_or(true) ? "on" : "off");
    line("save-logits", o.save_logits ? "yes" : "no");
    line("prompts", prompts_digest);
    return identity;
}

}  // namespace

RunRecord record_of(Engine& engine, const std::string& prompts_digest, std::int64_t requests_asked) {
    RunRecord r;
    r.requests_asked = requests_asked;
    r.attributes = attributes_of(engine);
    r.ranks = rows_of_ranks(engine);
    r.plan_text = plan_table(engine.inventory().sizes(), engine.shard_plan());
    r.plan_ranges = ranges_of(engine.shard_plan());
    r.identity = identity_of(engine, prompts_digest);
    return r;
}

}  // namespace ftmpi
