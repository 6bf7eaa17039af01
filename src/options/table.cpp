#include "table.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "values.hpp"

namespace ftmpi {
namespace {

using values::Refused;

struct Binding {
    std::function<void(Options&, const std::string&)> set;
    std::function<std::string(const Options&)> get;
};

template <class T> Binding choice(T Options::*member, std::vector<std::pair<std::string, T>> names) {
    return {[=](Options& o, const std::string& text) {
                std::string all;
                std::vector<std::string> known;
                for (const auto& [name, value] : names) {
                    if (name == text) return void(o.*member = value);
                    all += (all.empty() ? "" : ", ") + name;
                    known.push_back(name);
                }
                const auto meant = values::nearest(text, known);
                throw Refused{"must be one of " + all, meant.empty() ? "" : "did you mean " + meant + "?"};
            },
            [=](const Options& o) {
                for (const auto& [name, value] : names)
                    if (o.*member == value) return name;
                return std::string();
            }};
}

Binding on_off(bool Options::*member) { return choice<bool>(member, {{"on", true}, {"off", false}}); }

template <class T> Binding integer(T Options::*member, std::int64_t least, std::int64_t most) {
    return {[=](Options& o, const std::string& text) {
                o.*member = static_cast<T>(values::integer(text, least, most));
            },
            [=](const Options& o) { return o.*member < least ? std::string() : std::to_string(o.*member); }};
}

Binding number(double Options::*member, double least, double most, bool open_below = false) {
    return {[=](Options& o, const std::string& text) {
                const double value = values::number(text);
                if (value < least || value > most || (open_below && value == least))
                    throw Refused{std::string("must be ") + (open_below ? "above " : "at least ") +
                                  values::text_of(least) + " and at most " + values::text_of(most)};
                o.*member = value;
            },
            [=](const Options& o) { return values::text_of(o.*member); }};
}

Binding path(std::filesystem::path Options::*member) {
    return {[=](Options& o, const std::string& text) {
                if (text.find('\0') != std::string::npos) throw Refused{"must not hold a NUL byte"};
                o.*member = text;
            },
            [=](const Options& o) { return (o.*member).string(); }};
}

/// A list of `read(item)`, written back by `write(value)`, of at most `most` items.
template <class T, class Read, class Write>
Binding list(std::vector<T> Options::*member, const char* separators, Read read, Write write,
             std::size_t most = 1 << 20) {
    return {[=](Options& o, const std::string& text) {
                std::vector<T> out;
                const auto items = values::parts(text, separators);
                if (items.size() > most)
                    throw Refused{"must have at most " + std::to_string(most) + " items"};
                for (const auto& item : items) {
                    try {
                        out.push_back(read(item));
                    } catch (Refused& refused) {
                        refused.item = item;
                        throw;
                    }
                }
                o.*member = std::move(out);
            },
            [=](const Options& o) {
                std::string out;
                for (const auto& value : o.*member) out += (out.empty() ? "" : ",") + write(value);
                return out;
            }};
}

template <class T> T above_zero(T value) {
    if (!(value > 0)) throw Refused{"must be above 0"};
    return value;
}

std::uint64_t memory(const std::string& text) { return above_zero(values::bytes(text)); }
/// GB/s of any memory there will be; its bytes and seconds stay numbers.
double rate(const std::string& text) {
    const double value = values::number(text);
    if (!(value >= 1e-3 && value <= 1e9)) throw Refused{"must be at least 0.001 and at most 1e+09"};
    return value;
}
std::string bytes_text(std::uint64_t bytes) { return std::to_string(bytes); }

Hardware hardware(const std::string& text) {
    const auto at = text.find('@');
    if (at == std::string::npos || at == 0 || at + 1 == text.size())
        throw Refused{"must be SIZE@GB_PER_SECOND", "for example 24GiB@1008,16GiB@288"};
    const auto part = [](const std::string& text, auto read) {
        try {
            return read(text);
        } catch (Refused& refused) {
            refused.part = text;
            throw;
        }
    };
    return {part(text.substr(0, at), memory), part(text.substr(at + 1), rate)};
}

/// Notes the first size of the list that has no unit and is too small to be meant as bytes.
Binding noting_bare_size(Binding binding) {
    binding.set = [set = std::move(binding.set)](Options& o, const std::string& text) {
        set(o, text);
        for (const auto& item : values::parts(text, ",")) {
            const auto size = item.substr(0, item.find('@'));
            if (size.find_first_not_of("0123456789") != std::string::npos || values::bytes(size) >= 1 << 20)
                continue;
            o.bare_size = size;
            break;
        }
    };
    return binding;
}

Binding shares() {
    auto binding = list(
        &Options::shares, ",:", [](const std::string& s) { return values::number(s); }, values::text_of);
    binding.set = [set = binding.set](Options& o, const std::string& text) {
        set(o, text);
        if (std::all_of(o.shares.begin(), o.shares.end(), [](double s) { return s == 0; }))
            throw Refused{"must not be 0 for all ranks"};
    };
    return binding;
}

Binding gpus() {
    auto same = [](const std::string& s) { return s; };
    return list(&Options::gpus, ",", same, same);  // a GPU named twice is shared
}

Binding prompts() {
    return {[](Options& o, const std::string& text) { o.prompts.push_back(text); },
            [](const Options&) { return std::string(); }};
}

Binding seed() {
    return {[](Options& o, const std::string& text) { o.seed = values::unsigned_integer(text); },
            [](const Options& o) { return std::to_string(o.seed); }};
}

Binding lengths(std::vector<std::int64_t> Options::*member, std::int64_t most) {
    return list(
        member, ",", [=](const std::string& s) { return values::integer(s, 1, most); },
        [](std::int64_t n) { return std::to_string(n); });
}

/// One of two words, or unset.
Binding either(std::optional<bool> Options::*member, const std::string& yes, const std::string& no) {
    return {[=](Options& o, const std::string& text) {
                if (text != yes && text != no) throw Refused{"must be one of " + yes + ", " + no};
                o.*member = text == yes;
            },
            [=](const Options& o) { return !(o.*member)   ? ""
                                           : *(o.*member) ? yes
                                                          : no; }};
}

std::vector<OptionRow> build_table() {
    constexpr std::int64_t tokens = std::int64_t(1) << 31;
    std::vector<OptionRow> rows;
    std::string group;
    unsigned group_where = 0;
    const auto add = [&](const char* name, const char* argument, unsigned where, const char* text,
                         Binding binding) {
        rows.push_back({group, group_where, name, argument, where, text, std::move(binding.set),
                        std::move(binding.get)});
    };
    using B = BackendChoice;
    using T = TransportChoice;

    group = "Input", group_where = in_run;
    add("model", "DIR", in_planning | in_inspect, "checkpoint directory in Hugging Face layout",
        path(&Options::model));
    add("prompt", "TEXT", in_run | repeats, "a prompt, taken literally (no escapes); may be repeated",
        prompts());
    add("prompts", "FILE", in_run,
        "prompts, one a line, or JSONL with `prompt` or `ids`, and `id`, `max_tokens`",
        path(&Options::prompts_file));
    add("chat", "", in_run, "put each prompt through the checkpoint's chat template as a user message",
        on_off(&Options::chat));
    add("thinking", "on|off", in_run, "with --chat: let the model think before it answers",
        on_off(&Options::thinking));
    add("job", "FILE", in_all | per_rank,
        "job file: these names as `key = value` lines; the command line wins", path(&Options::job));

    group = "Generation", group_where = in_run;
    add("max-tokens", "N", in_run, "new tokens a prompt at most", integer(&Options::max_tokens, 1, tokens));
    add("ignore-eos", "", in_run, "do not stop at the end-of-text token", on_off(&Options::ignore_eos));
    add("temperature", "T", in_run, "0 takes the likeliest token; above 0 samples",
        number(&Options::temperature, 0, 100));
    add("top-k", "K", in_run, "sample among the K likeliest tokens; 0 for all",
        integer(&Options::top_k, 0, tokens));
    add("top-p", "P", in_run, "sample among the likeliest tokens of total probability P",
        number(&Options::top_p, 0, 1, true));
    add("seed", "N", in_generation,
        "seed of the sampling, in bench of the prompts; the same on any number of ranks", seed());
    add("batch", "N", in_run | in_plan, "prompts decoded together; does not change their text",
        integer(&Options::batch, 1, 4096));

    group = "Measuring", group_where = in_bench;
    add("prompt-lengths", "N,...", in_bench,
        "tokens of the prompts; every combination of the three lists is measured",
        lengths(&Options::prompt_lengths, tokens));
    add("decode-lengths", "N,...", in_bench, "decode steps to measure",
        lengths(&Options::decode_lengths, tokens));
    add("batches", "N,...", in_bench, "prompts decoded together", lengths(&Options::batches, 4096));
    add("repeats", "N", in_bench, "measured runs of each combination", integer(&Options::repeats, 1, 10000));
    add("warmup", "N", in_bench, "runs before them that are not counted",
        integer(&Options::warmup, 0, 10000));
    add("kernels", "", in_bench, "also print which kernel serves each operator, and its time",
        on_off(&Options::kernels));

    group = "Machine and plan", group_where = in_planning;
    add("backend", "auto|cpu|cuda", in_planning, "where the arithmetic runs",
        choice<B>(&Options::backend, {{"auto", B::automatic}, {"cpu", B::cpu}, {"cuda", B::cuda}}));
    add("transport", "auto|peer|pinned|nccl|mpi", in_generation, "how ranks exchange rows",
        choice<T>(&Options::transport, {{"auto", T::automatic},
                                        {"peer", T::peer},
                                        {"pinned", T::pinned},
                                        {"nccl", T::nccl},
                                        {"mpi", T::mpi}}));
    add("numerics", "exact|fast", in_generation,
        "exact: the same bits on every backend; fast: prefill may use tensor cores",
        choice<Numerics>(&Options::numerics, {{"exact", Numerics::exact}, {"fast", Numerics::fast}}));
    add("policy", "memory|speed|even", in_planning,
        "how the cut is chosen: largest context, least time a token, or equal parts",
        choice<Policy>(&Options::policy,
                       {{"memory", Policy::memory}, {"speed", Policy::speed}, {"even", Policy::even}}));
    add("shares", "A,B,...", in_planning,
        "cut by these shares, one a rank (3,1 or 3:1); in place of --policy", shares());
    add("gpus", "UUID,...", in_generation | per_rank, "GPUs by UUID or a prefix of it, one a rank", gpus());
    add("memory-limit", "SIZE,...", in_planning,
        "memory to use, the whole card counted; one for all ranks or one a rank (24GiB,16GiB)",
        noting_bare_size(list(&Options::memory_limit, ",", memory, bytes_text)));
    add("bandwidth", "GB/S,...", in_planning,
        "memory bandwidth to plan with, in GB/s; one for all ranks or one a rank",
        list(&Options::bandwidth, ",", rate, values::text_of));
    add("hardware", "SIZE@GB/S,...", in_plan, "plan for ranks that are not here (24GiB@1008,16GiB@288)",
        noting_bare_size(list(
            &Options::hardware, ",", hardware,
            [](const Hardware& h) { return bytes_text(h.bytes) + "@" + values::text_of(h.gb_per_s); },
            1024)));
    add("context", "TOKENS", in_planning, "longest prompt plus answer; as much as fits when left out",
        integer(&Options::context, 2, tokens));
    add("kv", "bf16|fp8|fp32", in_planning, "storage of keys and values",
        choice<KvType>(&Options::kv, {{"bf16", KvType::bf16}, {"fp8", KvType::fp8}, {"fp32", KvType::fp32}}));
    add("embedding", "host|device", in_planning,
        "where the embedding table stays; when left out, on GPUs that have room for it",
        either(&Options::embedding_on_host, "host", "device"));
    add("prefill-chunk", "TOKENS", in_planning,
        "rows of one prefill step; 0: 256 on the CPU, 1024 on GPUs; does not change the bits of exact "
        "numerics",
        integer(&Options::prefill_chunk, 0, 65536));
    add("threads", "N", in_generation | per_rank,
        "CPU threads a rank; when left out, what the process may use, shared with the host's other ranks",
        integer(&Options::threads, 1, 1024));

    group = "Results", group_where = in_generation;
    add("output", "FILE.h5", in_generation, "result file; its name is chosen and printed when left out",
        path(&Options::output));
    add("overwrite", "", in_generation | in_recover, "replace an existing result file",
        on_off(&Options::overwrite));
    add("resume", "", in_run, "keep the finished prompts of an interrupted run and do the rest",
        on_off(&Options::resume));
    add("save-logits", "", in_run, "store the logits of every step", on_off(&Options::save_logits));
    add("hash", "on|off", in_generation,
        "SHA-256 of every step's logits; on in run, off in bench when left out",
        either(&Options::hash, "on", "off"));
    add("json", "", in_planning | in_inspect,
        "JSON on stdout in place of text; plan, bench, inspect: one object; run: one for each finished "
        "request, one a line, in the order of finishing",
        on_off(&Options::json));
    add("timeout", "SECONDS", in_generation, "longest wait for the other ranks, a phase or a collective",
        number(&Options::timeout, 0.1, 1e6));
    return rows;
}

}  // namespace

const std::vector<OptionRow>& option_table() {
    static const std::vector<OptionRow> table = build_table();
    return table;
}

const OptionRow* find_option(const std::string& name) {
    const auto& table = option_table();
    const auto found =
        std::find_if(table.begin(), table.end(), [&](const OptionRow& row) { return row.name == name; });
    return found == table.end() ? nullptr : &*found;
}

std::vector<std::string> option_names() {
    std::vector<std::string> names;
    for (const auto& row : option_table()) names.push_back(row.name);
    return names;
}

const std::vector<CommandRow>& command_table() {
    static const std::vector<CommandRow> table = {
        {"run", Command::run, in_run,
         "answer the prompts and write a result file (when no command is named)"},
        {"bench", Command::bench, in_bench, "measure load, prefill and decode"},
        {"plan", Command::plan, in_plan, "print what each rank would hold, without loading it"},
        {"verify", Command::verify, in_verify,
         "A.h5 B.h5: compare two result files; exit code 8 when they differ"},
        {"inspect", Command::inspect, in_inspect, "DIR: list what a checkpoint holds"},
        {"recover", Command::recover, in_recover,
         "OUT.h5: make the result file of an interrupted run from its journal"},
        {"help", Command::help, 0, "print this text (also --help)"},
        {"version", Command::version, 0, "print the version (also --version)"},
    };
    return table;
}

}  // namespace ftmpi
