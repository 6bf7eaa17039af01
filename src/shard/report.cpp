// The plan as a table for people and as JSON for scripts.
#include <algorithm>
#include <cstdio>

#include "../error.hpp"
#include "../shard.hpp"
#include "../text/quoting.hpp"
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

/// `cells`, and one more for each group of bytes.
template <class F> std::vector<std::string> with_groups(std::vector<std::string> cells, F cell_of) {
    for (const ByteGroup& group : kByteGroups) cells.push_back(cell_of(group));
    return cells;
}

/// Names longer than the column are cut at the end of a UTF-8 character.
std::string short_name(const std::string& name) {
    constexpr std::size_t kWidth = 16;
    if (name.size() <= kWidth) return name;
    std::size_t end = kWidth - 1;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
    return name.substr(0, end) + "~";
}

/// The least and most of what a rank holds in a layer.
struct Extent {
    std::int64_t least = -1, most = 0;

    void add(std::int64_t n) {
        least = least < 0 ? n : std::min(least, n);
        most = std::max(most, n);
    }
    std::string text() const {
        return (least < 0 || least == most ? "" : std::to_string(least) + "-") + std::to_string(most);
    }
};

/// What a rank holds over all layers.
struct Held {
    std::int64_t groups = 0, query_heads = 0, kv_heads = 0;
    Extent out, expert, shared, down;
};

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
        held.out.add(cut.out[r].size());
        held.expert.add(cut.expert[r].size());
        held.shared.add(cut.shared[r].size());
        held.down.add(cut.down[r].size());
    }
    return held;
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

std::string decimal(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
}

std::string decimal_or_null(double value) { return value > 0 ? decimal(value) : "null"; }

std::string joined(const std::vector<std::string>& items, const char* between = ", ") {
    std::string out;
    for (const auto& item : items) out += (out.empty() ? "" : between) + item;
    return out;
}

/// One member of a JSON object; a text is JSON already.
template <class T> std::string member(const std::string& name, const T& value) {
    const std::string begin = '"' + name + "\": ";
    if constexpr (std::is_same_v<T, bool>) return begin + (value ? "true" : "false");
    else if constexpr (std::is_integral_v<T>) return begin + std::to_string(value);
    else return begin + value;
}

std::string json_ranges(const std::string& name, const std::vector<Range>& ranges) {
    std::vector<std::string> items;
    for (const Range r : ranges)
        items.push_back("[" + std::to_string(r.begin) + ", " + std::to_string(r.end) + "]");
    return member(name, "[" + joined(items) + "]");
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
    memory.row(with_groups({"rank", "name", "has", "needs", "free"},
                           [](auto& g) { return std::string(g.heading); }));
    for (std::size_t i = 0; i < plan.bytes.size(); ++i) {
        const auto& bytes = plan.bytes[i];
        memory.row(with_groups({std::to_string(i), short_name(plan.names[i]), mebibytes(plan.available[i]),
                                mebibytes(bytes.total()), mebibytes(plan.available[i] - bytes.total())},
                               [&](auto& g) { return mebibytes(bytes.*g.bytes); }));
    }
    text += memory.text();

    std::int64_t delta_layers = 0, attention_layers = 0;
    for (const auto kind : config.layers) ++(kind == LayerKind::delta_net ? delta_layers : attention_layers);
    text += "\nShares in % and rows (heads over all layers, the other rows in each layer)\n";
    Table rows;
    rows.row({"rank", "name", "asked", "given", "key heads", "query heads", "kv heads", "out", "expert",
              "shared", "down", "vocabulary"});
    for (std::size_t i = 0; i < plan.bytes.size(); ++i) {
        const auto held = held_by(config, plan, i);
        rows.row(
            {std::to_string(i), short_name(plan.names[i]), percent(plan.asked[i]), percent(plan.given[i]),
             std::to_string(held.groups) + "/" + std::to_string(delta_layers * config.key_heads),
             std::to_string(held.query_heads) + "/" + std::to_string(attention_layers * config.query_heads),
             std::to_string(held.kv_heads) + "/" + std::to_string(attention_layers * config.kv_heads),
             held.out.text(), held.expert.text(), held.shared.text(), held.down.text(),
             std::to_string(plan.head[i].begin) + "-" + std::to_string(plan.head[i].end)});
    }
    text += rows.text();

    text += "\nA decoded token, predicted\n";
    Table time;
    time.row({"rank", "name", "GB/s", "MB read", "ms"});
    for (std::size_t i = 0; i < plan.bytes.size(); ++i) {
        const bool known = plan.gb_per_s[i] > 0;
        time.row({std::to_string(i), short_name(plan.names[i]),
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
    table.row(with_groups({"rank", "", "all"}, [](auto& g) { return std::string(g.heading); }));
    const auto row = [&](std::size_t rank, const char* what, const RankBytes& bytes) {
        table.row(with_groups({std::to_string(rank), what, mebibytes(bytes.total())},
                              [&](auto& g) { return mebibytes(bytes.*g.bytes); }));
    };
    for (std::size_t r = 0; r < held.size(); ++r) {
        row(r, "planned", plan.bytes[r]);
        row(r, "held", held[r]);
    }
    return "Memory in MiB, planned and held\n" + table.text();
}

std::string plan_json(const ModelSizes& sizes, const ShardPlan& plan) {
    const auto& config = sizes.config;
    std::vector<std::string> ranks, layers, notes;
    for (std::size_t r = 0; r < plan.bytes.size(); ++r) {
        const auto held = held_by(config, plan, r);
        std::vector<std::string> bytes;
        for (const auto& group : kByteGroups) bytes.push_back(member(group.name, plan.bytes[r].*group.bytes));
        const bool known = plan.gb_per_s[r] > 0;
        ranks.push_back(
            "    {" +
            joined({member("rank", r), member("name", json_string(plan.names[r])),
                    member("available_bytes", plan.available[r]),
                    member("needed_bytes", plan.bytes[r].total()), member("bytes", "{" + joined(bytes) + "}"),
                    member("asked_share", decimal(plan.asked[r])),
                    member("given_share", decimal(plan.given[r])), member("key_heads", held.groups),
                    member("query_heads", held.query_heads), member("kv_heads", held.kv_heads),
                    member("read_bytes_per_token", decimal(plan.reads[r].token())),
                    member("gb_per_s", decimal_or_null(plan.gb_per_s[r])),
                    member("seconds", known ? decimal(plan.rank_seconds[r]) : std::string("null"))}) +
            "}");
    }
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
        const auto& cut = plan.layers[l];
        const char* kind = config.layers[l] == LayerKind::delta_net ? "\"delta_net\"" : "\"attention\"";
        layers.push_back("    {" +
                         joined({member("kind", kind), json_ranges("mixer", cut.mixer),
                                 json_ranges("out", cut.out), json_ranges("expert", cut.expert),
                                 json_ranges("shared", cut.shared), json_ranges("down", cut.down)}) +
                         "}");
    }
    for (const auto& note : plan.notes) notes.push_back(json_string(note));
    const double seconds = plan.seconds_per_token;
    return "{\n  " +
           joined(
               {member("policy", json_string(name_of(plan.policy))),
                member("ranks", "[\n" + joined(ranks, ",\n") + "\n  ]"), member("context", plan.context),
                member("context_capacity", plan.context_capacity),
                member("cache_tokens", plan.context_capacity * plan.slots), member("slots", plan.slots),
                member("kv", json_string(name_of(plan.kv))), member("prefill_rows", plan.prefill_rows),
                member("embedding_on_host", plan.embedding_on_host),
                member("out_replicated", plan.out_replicated),
                member("whole_kv_groups", plan.whole_kv_groups), member("gathers_per_token", plan.exchanges),
                member("gather_seconds", decimal(plan.exchange_seconds)),
                member("seconds_per_token", decimal_or_null(seconds)),
                member("tokens_per_second", decimal_or_null(seconds > 0 ? 1 / seconds : 0)),
                json_ranges("head", plan.head), member("layers", "[\n" + joined(layers, ",\n") + "\n  ]"),
                member("notes", "[" + joined(notes) + "]")},
               ",\n  ") +
           "\n}\n";
}

}  // namespace ftmpi
