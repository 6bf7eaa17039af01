// The plan as a table for people and as JSON for scripts.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "../error.hpp"
#include "../shard.hpp"
#include "../text/size.hpp"

namespace ftmpi {
namespace {

std::string count_of(std::int64_t n, const char* one) { return counted(static_cast<std::uint64_t>(n), one); }

std::string_view name_of(Policy policy) {
    switch (policy) {
        case Policy::memory: return "memory";
        case Policy::speed: return "speed";
        case Policy::even: return "even";
        case Policy::shares: return "shares";
    }
    return "?";
}

/// Rows of cells, right-aligned but for the first two columns (rank and name).
class Table {
public:
    void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    std::string text() const {
        std::vector<std::size_t> width;
        for (const auto& row : rows_)
            for (std::size_t c = 0; c < row.size(); ++c) {
                if (c == width.size()) width.push_back(0);
                width[c] = std::max(width[c], row[c].size());
            }
        std::string text;
        for (const auto& row : rows_) {
            std::string line;
            for (std::size_t c = 0; c < row.size(); ++c) {
                const std::string space(width[c] - row[c].size(), ' ');
                line += (c ? "  " : "") + (c < 2 ? row[c] + space : space + row[c]);
            }
            line.erase(line.find_last_not_of(' ') + 1);
            text += line + '\n';
        }
        return text;
    }

private:
    std::vector<std::vector<std::string>> rows_;
};

/// Names longer than the column are cut at the end of a UTF-8 character.
std::string short_name(const std::string& name) {
    constexpr std::size_t kWidth = 16;
    if (name.size() <= kWidth) return name;
    std::size_t end = kWidth - 1;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
    return name.substr(0, end) + "~";
}

/// What a rank holds over all layers: sums, and the least and most of a layer.
struct Held {
    std::int64_t groups = 0, query_heads = 0, kv_heads = 0;
    std::int64_t out_least = -1, out_most = 0, expert_least = -1, expert_most = 0, shared_least = -1,
                 shared_most = 0, down_least = -1, down_most = 0;
};

void widen(std::int64_t& least, std::int64_t& most, std::int64_t n) {
    least = least < 0 ? n : std::min(least, n);
    most = std::max(most, n);
}

Held held_by(const ModelConfig& config, const ShardPlan& plan, std::size_t r) {
    Held held;
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
        const auto& cut = plan.layers[l];
        if (config.layers[l] == LayerKind::delta_net) {
            held.groups += cut.mixer[r].size();
        } else {
            held.query_heads += cut.mixer[r].size();
            held.kv_heads += kv_heads_of(config, cut.mixer[r]).size();
        }
        widen(held.out_least, held.out_most, cut.out[r].size());
        widen(held.expert_least, held.expert_most, cut.expert[r].size());
        widen(held.shared_least, held.shared_most, cut.shared[r].size());
        widen(held.down_least, held.down_most, cut.down[r].size());
    }
    return held;
}

std::string span(std::int64_t least, std::int64_t most) {
    if (least < 0) return "0";
    return least == most ? std::to_string(most) : std::to_string(least) + "-" + std::to_string(most);
}

/// Text broken at spaces so that no line is longer than 118 columns; later lines are indented.
std::string wrapped(const std::string& text) {
    std::string out, line;
    std::size_t begin = 0;
    while (begin < text.size()) {
        auto end = text.find(' ', begin);
        if (end == std::string::npos) end = text.size();
        const auto word = text.substr(begin, end - begin);
        if (!line.empty() && line.size() + 1 + word.size() > 116) {
            out += line + "\n    ";
            line.clear();
        }
        line += (line.empty() ? "" : " ") + word;
        begin = end + 1;
    }
    return out + line;
}

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x",
                          static_cast<unsigned>(static_cast<unsigned char>(c)));
            out += escape;
        } else {
            out += c;
        }
    }
    return out + '"';
}

std::string decimal(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
}

template <class T, class F> std::string json_array(const std::vector<T>& values, F&& element) {
    std::string out = "[";
    for (const auto& value : values) out += (out.size() > 1 ? ", " : "") + element(value);
    return out + "]";
}

std::string json_ranges(const std::vector<Range>& ranges) {
    return json_array(
        ranges, [](Range r) { return "[" + std::to_string(r.begin) + ", " + std::to_string(r.end) + "]"; });
}

}  // namespace

std::string plan_table(const ModelSizes& sizes, const ShardPlan& plan) {
    const auto& config = sizes.config;
    std::string text = "Plan: policy " + std::string(name_of(plan.policy)) + ", " +
                       count_of(plan.ranks, "rank") + ", " + std::to_string(plan.slots) + " x " +
                       count_of(plan.context, "token") + ", " + std::string(name_of(plan.kv)) +
                       " cache, steps of " + count_of(plan.prefill_rows, "row") + ", embedding " +
                       (plan.embedding_on_host ? "in host memory" : "on every rank") + "\n\nMemory in MiB\n";

    Table memory;
    std::vector<std::string> headings{"rank", "name", "has", "needs", "free"};
    for (const auto& group : kByteGroups) headings.push_back(group.heading);
    memory.row(std::move(headings));
    for (int r = 0; r < plan.ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const auto& bytes = plan.bytes[i];
        std::vector<std::string> cells{std::to_string(r), short_name(plan.names[i]),
                                       mebibytes(plan.available[i]), mebibytes(bytes.total()),
                                       mebibytes(plan.available[i] - bytes.total())};
        for (const auto& group : kByteGroups) cells.push_back(mebibytes(bytes.*group.bytes));
        memory.row(std::move(cells));
    }
    text += memory.text();

    std::int64_t delta_layers = 0, attention_layers = 0;
    for (const auto kind : config.layers) ++(kind == LayerKind::delta_net ? delta_layers : attention_layers);
    text += "\nShares in % and rows (heads over all layers, the other rows in each layer)\n";
    Table rows;
    rows.row({"rank", "name", "asked", "given", "key heads", "query heads", "kv heads", "out", "expert",
              "shared", "down", "vocabulary"});
    for (int r = 0; r < plan.ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const auto held = held_by(config, plan, i);
        rows.row(
            {std::to_string(r), short_name(plan.names[i]), percent(plan.asked[i]), percent(plan.given[i]),
             std::to_string(held.groups) + "/" + std::to_string(delta_layers * config.key_heads),
             std::to_string(held.query_heads) + "/" + std::to_string(attention_layers * config.query_heads),
             std::to_string(held.kv_heads) + "/" + std::to_string(attention_layers * config.kv_heads),
             span(held.out_least, held.out_most), span(held.expert_least, held.expert_most),
             span(held.shared_least, held.shared_most), span(held.down_least, held.down_most),
             std::to_string(plan.head[i].begin) + "-" + std::to_string(plan.head[i].end)});
    }
    text += rows.text();

    text += "\nA decoded token, predicted\n";
    Table time;
    time.row({"rank", "name", "GB/s", "MB read", "ms"});
    for (int r = 0; r < plan.ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const bool known = plan.gb_per_s[i] > 0;
        time.row({std::to_string(r), short_name(plan.names[i]),
                  known ? number_text(plan.gb_per_s[i]) : "unknown", number_text(plan.reads[i].token() / 1e6),
                  known ? number_text(plan.rank_seconds[i] * 1e3, 3) : "unknown"});
    }
    text += time.text();
    if (plan.seconds_per_token > 0) {
        text += wrapped("all: " + milliseconds(plan.seconds_per_token) + ", " +
                        number_text(1 / plan.seconds_per_token, 1) + " tokens/s; in it " +
                        count_of(plan.exchanges, "gather") + " of " +
                        number_text(plan.exchange_seconds * 1e6, 1) + " us") +
                "\n";
    }
    text += plan.context_capacity == kUnlimitedContext
                ? "\nCapacity: nothing grows with the context"
                : "\nCapacity: the caches could hold " + count_of(plan.context_capacity, "token") +
                      " a sequence, " + std::to_string(plan.context_capacity * plan.slots) + " in all";
    text += "; this model takes sequences of up to " + std::to_string(sizes.config.max_positions) + "\n";
    for (const auto& note : plan.notes) text += wrapped("- " + note) + "\n";
    return text;
}

std::string allocated_table(const ShardPlan& plan, const std::vector<RankBytes>& held) {
    Table table;
    std::vector<std::string> headings{"rank", "", "all"};
    for (const auto& group : kByteGroups) headings.push_back(group.heading);
    table.row(std::move(headings));
    const auto row = [&](std::size_t rank, const char* what, const RankBytes& bytes) {
        std::vector<std::string> cells{std::to_string(rank), what, mebibytes(bytes.total())};
        for (const auto& group : kByteGroups) cells.push_back(mebibytes(bytes.*group.bytes));
        table.row(std::move(cells));
    };
    for (std::size_t r = 0; r < held.size(); ++r) {
        row(r, "planned", plan.bytes[r]);
        row(r, "held", held[r]);
    }
    return "Memory in MiB, planned and held\n" + table.text();
}

std::string plan_json(const ModelSizes& sizes, const ShardPlan& plan) {
    const auto& config = sizes.config;
    const auto whole = [](std::int64_t n) { return std::to_string(n); };
    std::string out = "{\n  \"policy\": " + quoted(std::string(name_of(plan.policy))) + ",\n  \"ranks\": [\n";
    for (int r = 0; r < plan.ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const auto held = held_by(config, plan, i);
        out += "    {\"rank\": " + whole(r) + ", \"name\": " + quoted(plan.names[i]) +
               ", \"available_bytes\": " + std::to_string(plan.available[i]) +
               ", \"needed_bytes\": " + std::to_string(plan.bytes[i].total()) + ", \"bytes\": {";
        bool first = true;
        for (const auto& group : kByteGroups) {
            out += std::string(first ? "" : ", ") + '"' + group.name +
                   "\": " + std::to_string(plan.bytes[i].*group.bytes);
            first = false;
        }
        out += "}, \"asked_share\": " + decimal(plan.asked[i]) +
               ", \"given_share\": " + decimal(plan.given[i]) + ", \"key_heads\": " + whole(held.groups) +
               ", \"query_heads\": " + whole(held.query_heads) + ", \"kv_heads\": " + whole(held.kv_heads) +
               ", \"read_bytes_per_token\": " + decimal(plan.reads[i].token()) +
               ", \"gb_per_s\": " + (plan.gb_per_s[i] > 0 ? decimal(plan.gb_per_s[i]) : "null") +
               ", \"seconds\": " + (plan.gb_per_s[i] > 0 ? decimal(plan.rank_seconds[i]) : "null") + "}" +
               (r + 1 < plan.ranks ? ",\n" : "\n");
    }
    out += "  ],\n  \"context\": " + whole(plan.context) +
           ",\n  \"context_capacity\": " + whole(plan.context_capacity) +
           ",\n  \"cache_tokens\": " + whole(plan.context_capacity * plan.slots) +
           ",\n  \"slots\": " + whole(plan.slots) + ",\n  \"kv\": " + quoted(std::string(name_of(plan.kv))) +
           ",\n  \"prefill_rows\": " + whole(plan.prefill_rows) +
           ",\n  \"embedding_on_host\": " + (plan.embedding_on_host ? "true" : "false") +
           ",\n  \"out_replicated\": " + (plan.out_replicated ? "true" : "false") +
           ",\n  \"whole_kv_groups\": " + (plan.whole_kv_groups ? "true" : "false") +
           ",\n  \"gathers_per_token\": " + whole(plan.exchanges) +
           ",\n  \"gather_seconds\": " + decimal(plan.exchange_seconds) + ",\n  \"seconds_per_token\": " +
           (plan.seconds_per_token > 0 ? decimal(plan.seconds_per_token) : "null") +
           ",\n  \"tokens_per_second\": " +
           (plan.seconds_per_token > 0 ? decimal(1 / plan.seconds_per_token) : "null") +
           ",\n  \"head\": " + json_ranges(plan.head) + ",\n  \"layers\": [\n";
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
        const auto& cut = plan.layers[l];
        out += std::string("    {\"kind\": ") +
               (config.layers[l] == LayerKind::delta_net ? "\"delta_net\"" : "\"attention\"") +
               ", \"mixer\": " + json_ranges(cut.mixer) + ", \"out\": " + json_ranges(cut.out) +
               ", \"expert\": " + json_ranges(cut.expert) + ", \"shared\": " + json_ranges(cut.shared) +
               ", \"down\": " + json_ranges(cut.down) + "}" + (l + 1 < plan.layers.size() ? ",\n" : "\n");
    }
    return out + "  ],\n  \"notes\": " + json_array(plan.notes, quoted) + "\n}\n";
}

}  // namespace ftmpi
