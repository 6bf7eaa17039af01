// The result file as README.md beside this file describes it, written. Everything with a unit is a dataset
// with attribute `unit`; text that is not UTF-8, holds NUL, or has 60,000 bytes or more: see
// hdf5::write_text.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>

#include "request_fields.hpp"
#include "schema.hpp"

namespace ftmpi {

namespace {

using namespace hdf5;

void check_name(const std::string& name, const char* what, std::set<std::string>& seen) {
    const bool printable =
        std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 127 && c != '/'; });
    if (name.empty() || !printable || name == "." || name == ".." || name.size() > 200)
        throw Error(Exit::failure,
                    std::string("results: ") + what + " \"" + name + "\" cannot be used as a name");
    if (!seen.insert(name).second)
        throw Error(Exit::failure, std::string("results: ") + what + " " + name + " is given twice");
}

std::string last_word(const std::string& key) { return key.substr(key.rfind('_') + 1); }

/// Keys whose values are names even where they look like numbers: a host called 0012, a driver 570.10.
bool is_textual(const std::string& key) {
    static const std::set<std::string> words = {
        "host",   "name",    "uuid",      "gpu",   "device", "cpu", "driver", "version", "capability",
        "serial", "backend", "transport", "peers", "pci",    "isa", "commit", "id"};
    return words.contains(last_word(key));
}

template <class T> bool parse_all(const std::vector<std::string>& texts, std::vector<T>& values) {
    for (const auto& text : texts) {
        T value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size()) return false;
        if constexpr (std::is_floating_point_v<T>)
            if (!std::isfinite(value)) return false;
        values.push_back(value);
    }
    return !texts.empty();
}

/// The unit that a name ends with: load_seconds, decode_tokens_per_second, bytes_per_token, h2d_gb_per_s.
std::string unit_of(const std::string& name) {
    static const std::vector<std::pair<std::string, std::string>> words = {
        {"seconds", "s"},       {"second", "s"},        {"s", "s"},
        {"milliseconds", "ms"}, {"microseconds", "us"}, {"ms", "ms"},
        {"us", "us"},           {"bytes", "B"},         {"gb", "GB"},
        {"gib", "GiB"},         {"mib", "MiB"},         {"kib", "KiB"},
        {"tokens", "token"},    {"token", "token"},     {"requests", "request"},
        {"steps", "step"},      {"step", "step"},       {"mhz", "MHz"},
        {"watts", "W"},         {"celsius", "degC"},    {"percent", "%"},
        {"share", "1"},         {"fraction", "1"},      {"ratio", "1"}};
    const auto unit = [](const std::string& word) -> std::string {
        for (const auto& [key, value] : words)
            if (key == word) return value;
        return {};
    };
    const std::string last = unit(last_word(name));
    const auto per = name.rfind("_per_");
    if (last.empty() || per == std::string::npos || name.substr(per + 5) != last_word(name)) return last;
    const std::string first = unit(last_word(name.substr(0, per)));
    return (first.empty() ? "1" : first) + "/" + last;
}

void write_ranks(const Object& root, const RunRecord& run) {
    const Object group = create_group(root, "ranks");
    if (run.ranks.empty()) return;
    for (std::size_t k = 0; k < run.ranks[0].size(); ++k) {
        const std::string& key = run.ranks[0][k].first;
        std::vector<std::string> texts;
        for (const auto& rank : run.ranks) texts.push_back(rank[k].second);
        std::vector<std::int64_t> integers;
        std::vector<double> numbers;
        if (!is_textual(key) && parse_all(texts, integers)) write_list(group, key, integers, unit_of(key));
        else if (!is_textual(key) && parse_all(texts, numbers)) write_list(group, key, numbers, unit_of(key));
        else write_strings(group, key, texts);
    }
}

void write_plan(const Object& root, const RunRecord& run) {
    const Object group = create_group(root, "plan");
    write_document(group, "text", run.plan_text);
    const std::size_t pairs = 2 * run.ranks.size();
    for (const auto& [name, values] : run.plan_ranges) {
        std::vector<hsize_t> dims = {values.size()};
        if (pairs > 0 && values.size() == pairs) dims = {run.ranks.size(), 2};
        else if (pairs > 0 && values.size() % pairs == 0) dims = {values.size() / pairs, run.ranks.size(), 2};
        write_array<std::int64_t>(group, name, values, dims, "row");
    }
}

void write_series(const Object& group, const SummaryRecord& summary) {
    for (const auto& s : summary.series) {
        const auto rows = static_cast<std::size_t>(s.rows);
        if (s.rows < 1 || s.values.size() % rows != 0)
            throw Error(Exit::failure,
                        "results: series " + s.name + " is not " + std::to_string(s.rows) + " whole rows");
        write_array<double>(group, s.name, s.values, {rows, s.values.size() / rows}, unit_of(s.name));
    }
}

}  // namespace

void check_names(const RunRecord& run) {
    std::set<std::string> attributes(own_attributes.begin(), own_attributes.end());
    for (const auto& [key, value] : run.attributes) {
        check_name(key, "attribute", attributes);
        if (key.ends_with("_replaced"))
            throw Error(Exit::failure, "results: attribute " + key + " has a name of the schema's own");
    }
    for (const auto& rank : run.ranks) {
        std::set<std::string> keys;
        for (const auto& [key, value] : rank) check_name(key, "rank key", keys);
        const bool same = std::equal(rank.begin(), rank.end(), run.ranks[0].begin(), run.ranks[0].end(),
                                     [](const auto& a, const auto& b) { return a.first == b.first; });
        if (!same)
            throw Error(Exit::failure, "results: the ranks do not have the same keys in the same order");
    }
    std::set<std::string> roles = {"text"};
    for (const auto& [name, values] : run.plan_ranges) check_name(name, "plan range", roles);
}

void check_shapes(const RequestRecord& r) {
    const auto need = [&](bool ok, const char* what) {
        if (!ok) throw Error(Exit::failure, "results: request " + std::to_string(r.index) + ": " + what);
    };
    need(r.index >= 0, "its index is negative");
    need(is_session(r.session), "its session is no count of resumed runs");
    need(r.step_sha256.size() % 32 == 0, "step_sha256 is not 32 bytes a step");
    need(r.step_sha256.empty() || !r.logits_sha256.empty(), "step_sha256 without logits_sha256");
    need(r.logits.empty() ||
             (r.vocabulary > 0 && r.logits.size() % static_cast<std::size_t>(r.vocabulary) == 0),
         "logits are not whole rows of the vocabulary");
    need(r.gather_seconds.empty() ||
             (!r.gather_names.empty() && r.gather_seconds.size() % r.gather_names.size() == 0),
         "gather_seconds are not whole rows of gather names");
}

void RequestCounts::add(const RequestRecord& r) {
    ++requests;
    prompt_tokens += static_cast<std::int64_t>(r.prompt_ids.size());
    output_tokens += static_cast<std::int64_t>(r.output_ids.size());
    errors += !r.error.empty();
}

SchemaWriter::SchemaWriter(const std::filesystem::path& path, const JournalRun& run)
    : root_(create_file(path)), requests_asked_(run.run.requests_asked) {
    write_integer(root_, "schema_version", schema_version);
    write_integer(root_, "session", run.session);
    if (requests_asked_ > 0) write_integer(root_, "requests_asked", requests_asked_);
    write_text(root_, "journal_id", run.journal_id);
    write_text(root_, "identity", run.run.identity);
    write_text(root_, "hdf5_library", library_version());
    for (const auto& [key, value] : run.run.attributes) write_text(root_, key, value);
    write_ranks(root_, run.run);
    write_plan(root_, run.run);
    requests_ = create_group(root_, "requests");
}

void SchemaWriter::add(const RequestRecord& r) {
    counts_.add(r);
    const Object group = create_group(requests_, std::to_string(r.index));
    const auto write = [&](const auto& field) {
        const auto& value = std::invoke(field.value, r);
        using V = std::remove_cvref_t<decltype(value)>;
        const auto array = [&](auto values) {
            const std::size_t width = field.width ? field.width(r) : 1,
                              rows = width ? values.size() / width : 0;
            std::vector<hsize_t> dims = {rows};
            if (field.width) dims.push_back(width);
            write_array(group, field.name, values, dims, field.unit);
        };
        if constexpr (std::is_same_v<V, std::int64_t>) write_integer(group, field.name, value);
        else if constexpr (std::is_same_v<V, double>)
            write_array<double>(group, field.name, {&value, 1}, {}, field.unit);
        else if (field.optional && value.empty()) return;
        else if constexpr (std::is_same_v<V, std::vector<std::string>>)
            write_strings(group, field.name, value);
        else if constexpr (!std::is_same_v<V, std::string>) array(std::span(value));
        else if (field.width)
            array(std::span(reinterpret_cast<const std::uint8_t*>(value.data()), value.size()));
        else write_text(group, field.name, value, field.exact_bytes ? Bytes::always : Bytes::if_needed);
    };
    std::apply([&](const auto&... field) { (write(field), ...); }, request_fields());
}

void SchemaWriter::close(const SummaryRecord& summary, RunEnd end) {
    const bool all_there = requests_asked_ == 0 || counts_.requests == requests_asked_;
    write_integer(root_, "complete", end == RunEnd::by_itself && all_there);
    write_integer(root_, "recovered", end == RunEnd::recovered);
    {
        const Object group = create_group(root_, "summary");
        const auto put = [&](const std::string& name, double value) {
            write_array<double>(group, name, {&value, 1}, {}, unit_of(name));
        };
        put("requests_count", static_cast<double>(counts_.requests));
        put("errors_count", static_cast<double>(counts_.errors));
        put("prompt_tokens", static_cast<double>(counts_.prompt_tokens));
        put("output_tokens", static_cast<double>(counts_.output_tokens));
        for (const auto& [name, value] : summary.values) put(name, value);
        if (!summary.series.empty()) write_series(create_group(group, "series"), summary);
    }
    requests_.id.close();
    check(root_, H5Fflush(root_.id.get(), H5F_SCOPE_GLOBAL), "cannot be written to the disk");
    if (!root_.id.close()) fail(root_, "cannot be closed");
}

}  // namespace ftmpi
