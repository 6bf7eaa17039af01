#include "wire.hpp"

#include <bit>
#include <cstring>
#include <type_traits>

#include "../error.hpp"

namespace ftmpi {

namespace {

static_assert(std::endian::native == std::endian::little,
              "the journal and the logit hashes are little-endian");

class Encoder {
public:
    explicit Encoder(RecordKind kind) { bytes_ += static_cast<char>(kind); }
    void put(std::int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
    void put(double value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
    void put(std::string_view text) {
        put(static_cast<std::int64_t>(text.size()));
        bytes_.append(text);
    }
    template <class T>
    requires std::is_arithmetic_v<T>
    void put(const std::vector<T>& values) {
        put(static_cast<std::int64_t>(values.size()));
        if (!values.empty())
            bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    }
    void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
    std::string take() { return std::move(bytes_); }

private:
    std::string bytes_;
};

class Decoder {
public:
    explicit Decoder(std::string_view bytes) : bytes_(bytes) { bytes_.remove_prefix(1); }
    void get(std::int64_t& value) { raw(&value, sizeof value); }
    void get(double& value) { raw(&value, sizeof value); }
    void get(std::string& text) {
        text.resize(count(1));
        raw(text.data(), text.size());
    }
    template <class T>
    requires std::is_arithmetic_v<T>
    void get(std::vector<T>& values) {
        values.resize(count(sizeof(T)));
        raw(values.data(), values.size() * sizeof(T));
    }
    /// A number of elements that each take at least `size` of the bytes that are left.
    std::size_t count(std::size_t size) {
        std::int64_t n = 0;
        get(n);
        if (n < 0 || static_cast<std::uint64_t>(n) > bytes_.size() / size) bad();
        return static_cast<std::size_t>(n);
    }
    bool at_end() const { return bytes_.empty(); }
    void finish() const {
        if (!at_end()) bad();
    }
    [[noreturn]] static void bad() {
        throw Error(Exit::bad_input, "journal: a record does not have the layout of this version");
    }

private:
    void raw(void* to, std::size_t n) {
        if (n > bytes_.size()) bad();
        if (n > 0) std::memcpy(to, bytes_.data(), n);
        bytes_.remove_prefix(n);
    }
    std::string_view bytes_;
};

void put_pairs(Encoder& out, const std::vector<std::pair<std::string, std::string>>& pairs) {
    out.put(static_cast<std::int64_t>(pairs.size()));
    for (const auto& [key, value] : pairs) {
        out.put(key);
        out.put(value);
    }
}

void get_pairs(Decoder& in, std::vector<std::pair<std::string, std::string>>& pairs) {
    pairs.resize(in.count(2 * sizeof(std::int64_t)));
    for (auto& [key, value] : pairs) {
        in.get(key);
        in.get(value);
    }
}

}  // namespace

std::string encode(const JournalRun& record) {
    Encoder out(RecordKind::run);
    out.put(record.session);
    out.put(record.journal_id);
    out.put(std::int64_t{record.keeps_file});
    put_pairs(out, record.run.attributes);
    out.put(static_cast<std::int64_t>(record.run.ranks.size()));
    for (const auto& rank : record.run.ranks) put_pairs(out, rank);
    out.put(record.run.plan_text);
    out.put(static_cast<std::int64_t>(record.run.plan_ranges.size()));
    for (const auto& [name, values] : record.run.plan_ranges) {
        out.put(name);
        out.put(values);
    }
    out.put(record.run.identity);
    // Neither is there in journals from before it was known, and the last only behind the one before.
    if (!record.replaces.empty() || record.run.requests_asked > 0) out.put(record.replaces);
    if (record.run.requests_asked > 0) out.put(record.run.requests_asked);
    return out.take();
}

JournalRun decode_run(std::string_view bytes) {
    if (kind_of(bytes) != RecordKind::run) Decoder::bad();
    Decoder in(bytes);
    JournalRun record;
    std::int64_t keeps_file = 0;
    in.get(record.session);
    in.get(record.journal_id);
    in.get(keeps_file);
    if (keeps_file != 0 && keeps_file != 1) Decoder::bad();
    record.keeps_file = keeps_file == 1;
    get_pairs(in, record.run.attributes);
    record.run.ranks.resize(in.count(sizeof(std::int64_t)));
    for (auto& rank : record.run.ranks) get_pairs(in, rank);
    in.get(record.run.plan_text);
    record.run.plan_ranges.resize(in.count(2 * sizeof(std::int64_t)));
    for (auto& [name, values] : record.run.plan_ranges) {
        in.get(name);
        in.get(values);
    }
    in.get(record.run.identity);
    if (!in.at_end()) {
        in.get(record.replaces);
        if (record.replaces.empty() && in.at_end()) Decoder::bad();
    }
    if (!in.at_end()) {
        in.get(record.run.requests_asked);
        if (record.run.requests_asked < 1) Decoder::bad();
    }
    in.finish();
    return record;
}

std::string encode(const RequestRecord& r, std::int64_t session) {
    Encoder out(RecordKind::request);
    out.reserve(
        1024 + r.prompt.size() + r.text.size() + r.step_sha256.size() + r.logits.size() * sizeof(float) +
        (r.prompt_ids.size() + r.output_ids.size() + r.margins.size()) * 4 + r.step_seconds.size() * 8);
    out.put(r.index);
    out.put(session);
    for (const std::string* text :
         {&r.id, &r.prompt, &r.text, &r.finish_reason, &r.error, &r.step_sha256, &r.logits_sha256})
        out.put(*text);
    out.put(r.prompt_ids);
    out.put(r.output_ids);
    out.put(r.vocabulary);
    out.put(r.logits);
    out.put(r.margins);
    out.put(r.prefill_seconds);
    out.put(r.step_seconds);
    out.put(static_cast<std::int64_t>(r.gather_names.size()));
    for (const auto& name : r.gather_names) out.put(name);
    out.put(r.gather_seconds);
    return out.take();
}

RequestRecord decode_request(std::string_view bytes) {
    if (kind_of(bytes) != RecordKind::request) Decoder::bad();
    Decoder in(bytes);
    RequestRecord r;
    in.get(r.index);
    in.get(r.session);
    for (std::string* text :
         {&r.id, &r.prompt, &r.text, &r.finish_reason, &r.error, &r.step_sha256, &r.logits_sha256})
        in.get(*text);
    in.get(r.prompt_ids);
    in.get(r.output_ids);
    in.get(r.vocabulary);
    in.get(r.logits);
    in.get(r.margins);
    in.get(r.prefill_seconds);
    in.get(r.step_seconds);
    r.gather_names.resize(in.count(sizeof(std::int64_t)));
    for (auto& name : r.gather_names) in.get(name);
    in.get(r.gather_seconds);
    in.finish();
    return r;
}

RecordKind kind_of(std::string_view record) {
    if (record.empty() || record[0] < 1 || record[0] > 2) Decoder::bad();
    return static_cast<RecordKind>(record[0]);
}

}  // namespace ftmpi
