#include "report.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace ftmpi {
namespace {

__attribute__((format(printf, 2, 3))) void print(std::string& out, const char* format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    out += line;
}

/// The time of each step on the rank where it took longest.
std::vector<double> slowest(const std::vector<std::vector<double>>& of_rank) {
    std::vector<double> most = of_rank.at(0);
    for (const auto& rank : of_rank)
        for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], rank.at(i));
    return most;
}

/// A JSON number; null for what was not measured.
std::string number(double value, bool known = true) {
    std::string text;
    if (known) print(text, "%.9g", value);
    return known ? text : "null";
}

std::vector<double> flat(const std::vector<std::vector<double>>& rows) {
    std::vector<double> all;
    for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
}

struct NamedFigure {
    const char* name;
    const char* of_repeats;  ///< its name in the result file, beside the series of all repeats
    double CaseFigures::*value;
};
constexpr NamedFigure kFigures[] = {
    {"prefill_seconds", "prefill_median_seconds", &CaseFigures::prefill_seconds},
    {"prefill_tokens_per_second", "prefill_tokens_per_second", &CaseFigures::prefill_tokens_per_second},
    {"step_median_seconds", "step_median_seconds", &CaseFigures::step_median},
    {"step_p5_seconds", "step_p5_seconds", &CaseFigures::step_p5},
    {"step_p95_seconds", "step_p95_seconds", &CaseFigures::step_p95},
    {"step_p99_seconds", "step_p99_seconds", &CaseFigures::step_p99},
    {"decode_tokens_per_second", "decode_tokens_per_second", &CaseFigures::decode_tokens_per_second}};

struct NamedBytes {
    const char* name;
    double ModelBytes<double>::*bytes;
};
constexpr NamedBytes kStepGroups[] = {
    {"delta_net", &StepBytes::delta_net},   {"attention", &StepBytes::attention},
    {"experts", &StepBytes::experts},       {"shared_expert", &StepBytes::shared_expert},
    {"replicated", &StepBytes::replicated}, {"head", &StepBytes::head},
    {"embedding", &StepBytes::embedding},   {"recurrent_state", &StepBytes::recurrent_state},
    {"kv_cache", &StepBytes::kv_cache}};

std::string rank_name(std::size_t rank) { return "rank" + std::to_string(rank) + "_"; }

}  // namespace

CaseFigures figures_of(const CaseTimes& times, const ShardPlan& plan, const Surroundings& around) {
    CaseFigures f;
    f.what = times.what;
    f.prefill_seconds = median(slowest(times.prefill_seconds)) / f.what.batch;
    if (f.prefill_seconds > 0)
        f.prefill_tokens_per_second = static_cast<double>(f.what.prompt) / f.prefill_seconds;
    const auto steps = slowest(times.step_seconds);
    f.step_median = median(steps);
    f.step_p5 = percentile(steps, 0.05);
    f.step_p95 = percentile(steps, 0.95);
    f.step_p99 = percentile(steps, 0.99);
    if (f.step_median > 0) f.decode_tokens_per_second = f.what.batch / f.step_median;
    for (const auto& rank : times.gather_seconds) f.gather_median.push_back(median(rank));
    bool known = true;
    for (int r = 0; r < plan.ranks; ++r) {
        f.bytes.push_back(plan.reads[static_cast<std::size_t>(r)].at(
            f.what.batch, static_cast<double>(f.what.prompt) + static_cast<double>(f.what.decode) / 2));
        const double rate = around.read_bytes_per_second[static_cast<std::size_t>(r)];
        known = known && rate > 0;
        if (rate > 0) f.roofline_seconds = std::max(f.roofline_seconds, f.bytes.back().total() / rate);
    }
    if (!known) f.roofline_seconds = 0;
    if (f.step_median > 0) f.roofline_share = f.roofline_seconds / f.step_median;
    return f;
}

std::string bench_table(const std::vector<CaseFigures>& cases, const Surroundings& around) {
    std::string out;
    std::uint64_t loaded = 0;
    for (const auto bytes : around.loaded_bytes) loaded += bytes;
    print(out, "load %.2f s, %.2f GB/s;", around.load_seconds,
          around.load_seconds > 0 ? static_cast<double>(loaded) / around.load_seconds / 1e9 : 0);
    for (std::size_t r = 0; r < around.read_bytes_per_second.size(); ++r) {
        print(out, "%s rank %zu reads ", r ? "," : "", r);
        if (around.read_bytes_per_second[r] > 0)
            print(out, "%.1f GB/s", around.read_bytes_per_second[r] / 1e9);
        else out += "at an unknown rate";
    }
    if (around.read_bytes_per_second.size() > 1)
        print(out, "; a small gather takes %.1f us", around.exchange_seconds * 1e6);
    print(out, "\nlogits of the prompt before: sha256 %s; hashing while measuring: %s\n",
          around.prompt_sha256.c_str(), around.hash_on ? "on" : "off");
    out +=
        "\nprompt  decode  batch   prefill  prefill    step ms                                 decode   "
        "gathers  read MB  of "
        "the\n"
        "tokens   steps          seconds  tokens/s   median       p5      p95      p99  tokens/s   ms/step   "
        "a step  "
        "roofline\n";
    for (const auto& f : cases) {
        double gathers = 0, most = 0;
        for (const double g : f.gather_median) gathers = std::max(gathers, g);
        for (const auto& b : f.bytes) most = std::max(most, b.total());
        print(out, "%6lld  %6lld  %5d  %8.4f  %8.1f  %8.3f %8.3f %8.3f %8.3f  %8.1f  %8.3f  %7.1f  ",
              static_cast<long long>(f.what.prompt), static_cast<long long>(f.what.decode), f.what.batch,
              f.prefill_seconds, f.prefill_tokens_per_second, f.step_median * 1e3, f.step_p5 * 1e3,
              f.step_p95 * 1e3, f.step_p99 * 1e3, f.decode_tokens_per_second, gathers * 1e3, most / 1e6);
        if (f.roofline_seconds > 0) print(out, "%7.1f%%\n", f.roofline_share * 100);
        else out += " unknown\n";
    }
    if (std::any_of(cases.begin(), cases.end(), [](const CaseFigures& f) { return f.roofline_share > 1; }))
        out +=
            "Above 100%: what a step reads stays in caches, which are faster than the memory that was "
            "measured.\n";
    out +=
        "\nMB a decode step reads, by group (experts: those chosen; recurrent state: read and written)\n"
        "prompt  decode  batch  rank     delta  attention  experts   shared    every     head    state       "
        "kv    total\n";
    for (const auto& f : cases)
        for (std::size_t r = 0; r < f.bytes.size(); ++r) {
            const auto& b = f.bytes[r];
            print(out, "%6lld  %6lld  %5d  %4zu  %8.2f  %9.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f\n",
                  static_cast<long long>(f.what.prompt), static_cast<long long>(f.what.decode), f.what.batch,
                  r, b.delta_net / 1e6, b.attention / 1e6, b.experts / 1e6, b.shared_expert / 1e6,
                  (b.replicated + b.embedding) / 1e6, b.head / 1e6, b.recurrent_state / 1e6, b.kv_cache / 1e6,
                  b.total() / 1e6);
        }
    return out;
}

std::string bench_json(const std::vector<CaseFigures>& cases, const Surroundings& around) {
    std::string out = "{\"load_seconds\":" + number(around.load_seconds) + ",\"read_bytes_per_second\":[";
    for (std::size_t r = 0; r < around.read_bytes_per_second.size(); ++r)
        out += (r ? "," : "") + number(around.read_bytes_per_second[r], around.read_bytes_per_second[r] > 0);
    out +=
        "],\"exchange_seconds\":" + number(around.exchange_seconds, around.read_bytes_per_second.size() > 1) +
        ",\"prompt_logits_sha256\":\"" + around.prompt_sha256 +
        "\",\"hash\":" + (around.hash_on ? "true" : "false") + ",\"cases\":[";
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const auto& f = cases[i];
        print(out, "%s{\"prompt\":%lld,\"decode\":%lld,\"batch\":%d", i ? "," : "",
              static_cast<long long>(f.what.prompt), static_cast<long long>(f.what.decode), f.what.batch);
        for (const auto& figure : kFigures)
            out += ",\"" + std::string(figure.name) + "\":" + number(f.*figure.value);
        out += ",\"roofline_share\":" + number(f.roofline_share, f.roofline_seconds > 0) + ",\"ranks\":[";
        for (std::size_t r = 0; r < f.bytes.size(); ++r) {
            out += (r ? ",{" : "{") + std::string("\"gather_median_seconds\":") + number(f.gather_median[r]) +
                   ",\"bytes\":{";
            for (const auto& [name, bytes] : kStepGroups)
                out += "\"" + std::string(name) + "\":" + number(f.bytes[r].*bytes) + ",";
            out += "\"total\":" + number(f.bytes[r].total()) + "}}";
        }
        out += "]}";
    }
    return out + "]}\n";
}

SummaryRecord bench_summary(const std::vector<CaseTimes>& times, const std::vector<CaseFigures>& cases,
                            const Surroundings& around, double wall_seconds) {
    SummaryRecord s;
    const auto put = [&](std::string name, double value) { s.values.emplace_back(std::move(name), value); };
    put("wall_seconds", wall_seconds);
    put("load_seconds", around.load_seconds);
    if (around.read_bytes_per_second.size() > 1) put("exchange_median_seconds", around.exchange_seconds);
    for (std::size_t r = 0; r < around.read_bytes_per_second.size(); ++r) {
        put(rank_name(r) + "read_bytes_per_second", around.read_bytes_per_second[r]);
        put(rank_name(r) + "loaded_bytes", static_cast<double>(around.loaded_bytes[r]));
    }
    for (const auto& f : cases) {
        const std::string at = f.what.name() + "_";
        for (const auto& figure : kFigures) put(at + figure.of_repeats, f.*figure.value);
        if (f.roofline_seconds > 0) put(at + "roofline_share", f.roofline_share);
        for (std::size_t r = 0; r < f.bytes.size(); ++r) {
            put(at + rank_name(r) + "gather_median_seconds", f.gather_median[r]);
            for (const auto& [group, bytes] : kStepGroups)
                put(at + rank_name(r) + group + "_bytes", f.bytes[r].*bytes);
        }
    }
    for (const auto& t : times) {
        const std::string at = t.what.name() + "_";
        const auto series = [&](const char* name, const std::vector<std::vector<double>>& of_rank) {
            if (auto values = flat(of_rank); !values.empty())
                s.series.push_back({at + name, static_cast<std::int64_t>(of_rank.size()), std::move(values)});
        };
        series("prefill_seconds", t.prefill_seconds);
        series("prefill_gather_seconds", t.prefill_gather_seconds);
        series("step_seconds", t.step_seconds);
        series("gather_seconds", t.gather_seconds);
    }
    return s;
}

}  // namespace ftmpi
