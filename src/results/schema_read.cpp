// Reads a result file back, strictly: what a version 2 file must have is either there or named in an error.
#include <algorithm>
#include <charconv>
#include <string_view>

#include "checksum.hpp"
#include "part_file.hpp"
#include "request_fields.hpp"
#include "schema.hpp"

namespace ftmpi {

namespace {

using namespace hdf5;

[[noreturn]] void bad(const Object& at, const std::string& what, const std::string& hint = {}) {
    throw Error(Exit::bad_input, at.file + ": " + (at.path.empty() ? "" : at.path + ": ") + what, hint);
}

std::int64_t integer(const Object& at, const std::string& name) {
    const auto value = read_integer(at, name);
    if (!value) bad(at, "integer attribute " + name + " is missing");
    return *value;
}

std::string text(const Object& at, const std::string& name) {
    auto value = read_text(at, name);
    if (!value) bad(at, "attribute " + name + " is missing");
    return std::move(*value);
}

double one_number(const Object& at, const std::string& name) {
    const auto values = read_array<double>(at, name);
    if (values.size() != 1) bad(at, name + " is not one number");
    return values[0];
}

}  // namespace

bool is_result(const std::filesystem::path& path) {
    if (!begins_as_hdf5(path)) return false;
    // Without HDF5, which may be told by its environment to respect locks of other programs.
    if (has_checksum(path)) return true;
    try {
        const Object root = open_file(path);
        return read_integer(root, "schema_version") && read_text(root, "journal_id") &&
               read_text(root, "identity");
    } catch (const Error&) { return false; }
}

SchemaReader::SchemaReader(const std::filesystem::path& path, Checksum checksum) {
    check_is_hdf5(path);
    has_checksum_ = verify_checksum(path);
    if (!has_checksum_ && checksum == Checksum::required)
        throw Error(Exit::bad_input,
                    path.string() +
                        ": lacks the checksum that ftmpi puts at the end of a result: it is "
                        "truncated, or another program has written to it",
                    "copy it again from where it was made; `ftmpi verify` compares what it holds");
    root_ = open_file(path);
    const auto version = read_integer(root_, "schema_version");
    if (!version)
        bad(root_,
            "is an HDF5 file, but not a result of ftmpi: the root has no integer attribute schema_version");
    if (*version != schema_version)
        bad(root_,
            "has schema version " + std::to_string(*version) + "; this program reads version " +
                std::to_string(schema_version),
            "read it with the ftmpi that wrote it");
    requests_ = open_group(root_, "requests");
    for (const auto& name : members(requests_)) {
        std::int64_t index = -1;
        const auto end = std::from_chars(name.data(), name.data() + name.size(), index).ptr;
        if (end != name.data() + name.size() || index < 0 || name != std::to_string(index))
            bad(requests_, "has a member that is no request: " + name);
        indices_.push_back(index);
    }
    std::sort(indices_.begin(), indices_.end());
}

JournalRun SchemaReader::run() const {
    JournalRun record;
    record.session = integer(root_, "session");
    if (!is_session(record.session))
        bad(root_, "session " + std::to_string(record.session) + " is no count of resumed runs");
    record.journal_id = text(root_, "journal_id");
    record.run.identity = text(root_, "identity");
    if (const auto asked = read_integer(root_, "requests_asked")) {
        if (*asked < 1) bad(root_, "its attribute requests_asked is " + std::to_string(*asked));
        record.run.requests_asked = *asked;
    }
    const auto add = [&](const std::string& name) {
        const bool own = std::ranges::find(own_attributes, name) != own_attributes.end();
        const auto& known = record.run.attributes;
        if (own || std::any_of(known.begin(), known.end(), [&](const auto& a) { return a.first == name; }))
            return;
        record.run.attributes.emplace_back(name, text(root_, name));
    };
    for (const auto& name : text_attributes(root_)) add(name);
    // Long text has no attribute, only its bytes.
    for (const auto& name : members(root_))
        if (name.ends_with("_bytes")) add(name.substr(0, name.size() - 6));

    const Object ranks = open_group(root_, "ranks"), plan = open_group(root_, "plan");
    for (const auto& key : members(ranks)) {
        const auto values = read_strings(ranks, key);
        if (record.run.ranks.empty()) record.run.ranks.resize(values.size());
        if (values.size() != record.run.ranks.size())
            bad(ranks, key + " has another number of ranks than the keys before it");
        for (std::size_t r = 0; r < values.size(); ++r) record.run.ranks[r].emplace_back(key, values[r]);
    }
    record.run.plan_text = read_document(plan, "text");
    for (const auto& name : members(plan))
        if (name != "text") record.run.plan_ranges.emplace_back(name, read_array<std::int64_t>(plan, name));
    return record;
}

bool SchemaReader::complete() const {
    if (integer(root_, "complete") == 0) return false;
    const auto asked = read_integer(root_, "requests_asked");
    return !asked || *asked == static_cast<std::int64_t>(indices_.size());
}

// Before there was an attribute for it, a file was complete unless it was recovered.
bool SchemaReader::recovered() const {
    return read_integer(root_, "recovered").value_or(integer(root_, "complete") == 0) != 0;
}

RequestRecord SchemaReader::request(std::int64_t index, Contents contents) const {
    const Object group = open_listed_group(requests_, std::to_string(index));
    RequestRecord r;
    const auto need_columns = [&](const std::string& name, const std::vector<hsize_t>& dims, std::size_t n) {
        if (dims.size() == 2 && dims[1] == n) return;
        std::string shape;
        for (const hsize_t d : dims) shape += "[" + std::to_string(d) + "]";
        bad(group, name + " should be [steps][" + std::to_string(n) + "], but is " +
                       (shape.empty() ? "one value" : shape));
    };
    const auto read = [&](const auto& field) {
        if constexpr (std::is_member_object_pointer_v<decltype(field.value)>) {
            if (contents < field.least) return;
            auto& value = r.*field.value;
            using V = std::remove_cvref_t<decltype(value)>;
            if constexpr (std::is_same_v<V, std::int64_t>) value = integer(group, field.name);
            else if constexpr (std::is_same_v<V, double>) value = one_number(group, field.name);
            else if constexpr (std::is_same_v<V, std::string>) {
                if (!field.width && field.optional) value = read_text(group, field.name).value_or("");
                else if (!field.width) value = text(group, field.name);
                else if (has_member(group, field.name)) {
                    std::vector<hsize_t> dims;
                    value = read_bytes(group, field.name, &dims);
                    need_columns(field.name, dims, field.width(r));
                }
            } else if constexpr (std::is_same_v<V, std::vector<std::string>>)
                value = read_strings(group, field.name);
            else if (!field.optional || has_member(group, field.name))
                value = read_array<typename V::value_type>(group, field.name);
        }
    };
    std::apply([&](const auto&... field) { (read(field), ...); }, request_fields());
    if (r.index != index) bad(group, "its attribute index is " + std::to_string(r.index));
    if (contents == Contents::compared) {
        // Refused by its length, a prompt has no ids and is compared as text.
        if (r.prompt_ids.empty()) r.prompt = text(group, "prompt");
        return r;
    }
    if (has_member(group, "logits"))
        need_columns("logits", shape_of_floats(group, "logits"), static_cast<std::size_t>(r.vocabulary));
    // The checks of appending again: --resume and recover write this request anew, and must not fail at it
    // when all else is done.
    try {
        check_shapes(r);
    } catch (const Error& error) { bad(group, error.what()); }
    return r;
}

SummaryRecord SchemaReader::summary() const {
    const Object group = open_group(root_, "summary");
    SummaryRecord summary;
    for (const auto& name : members(group)) {
        if (name == "series") {
            const Object all = open_group(group, name);
            for (const auto& member : members(all)) {
                std::vector<hsize_t> dims;
                auto values = read_array<double>(all, member, &dims);
                if (dims.size() != 2) bad(all, member + " is not a matrix");
                summary.series.push_back({member, static_cast<std::int64_t>(dims[0]), std::move(values)});
            }
            continue;
        }
        summary.values.emplace_back(name, one_number(group, name));
    }
    return summary;
}

StoredRun read_results(const std::filesystem::path& h5, Contents contents) {
    const SchemaReader reader(h5, SchemaReader::Checksum::may_be_missing);
    StoredRun stored;
    stored.changed = !reader.has_checksum();
    stored.run = reader.run().run;
    stored.complete = reader.complete();
    stored.recovered = reader.recovered();
    for (const auto index : reader.indices()) stored.requests.push_back(reader.request(index, contents));
    stored.summary = reader.summary();
    return stored;
}

RequestRecord read_request(const std::filesystem::path& h5, std::int64_t index, Contents contents) {
    return SchemaReader(h5, SchemaReader::Checksum::may_be_missing).request(index, contents);
}

}  // namespace ftmpi
