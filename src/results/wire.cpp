#include "wire.hpp"

#include "../packing.hpp"

namespace ftmpi {

constexpr auto fields_of(std::type_identity<RequestRecord>) {
    using R = RequestRecord;
    return std::tuple(&R::id, &R::prompt, &R::text, &R::finish_reason, &R::error, &R::step_sha256,
                      &R::logits_sha256, &R::prompt_ids, &R::output_ids, &R::vocabulary, &R::logits,
                      &R::margins, &R::prefill_seconds, &R::step_seconds, &R::gather_names,
                      &R::gather_seconds);
}

/// Without requests_asked, which stands at the end and only where it is known.
constexpr auto fields_of(std::type_identity<RunRecord>) {
    using R = RunRecord;
    return std::tuple(&R::attributes, &R::ranks, &R::plan_text, &R::plan_ranges, &R::identity);
}

constexpr auto fields_of(std::type_identity<JournalRun>) {
    using R = JournalRun;
    return std::tuple(&R::session, &R::journal_id, &R::keeps_file, &R::run);
}

namespace {

Packer packer(RecordKind kind) { return Packer(std::string(1, static_cast<char>(kind))); }

Unpacker unpacker(std::string_view bytes, RecordKind kind) {
    const bool right = kind_of(bytes) == kind;
    Unpacker in(bytes.substr(1), "journal");
    if (!right) in.bad();
    return in;
}

}  // namespace

std::string encode(const JournalRun& record) {
    Packer out = packer(RecordKind::run);
    out.put(record);
    // Neither is there in journals from before it was known, and the last only behind the one before.
    if (!record.replaces.empty() || record.run.requests_asked > 0) out.put(record.replaces);
    if (record.run.requests_asked > 0) out.put(record.run.requests_asked);
    return out.take();
}

JournalRun decode_run(std::string_view bytes) {
    Unpacker in = unpacker(bytes, RecordKind::run);
    JournalRun record;
    in.get(record);
    if (!in.at_end()) {
        in.get(record.replaces);
        if (record.replaces.empty() && in.at_end()) in.bad();
    }
    if (!in.at_end()) {
        in.get(record.run.requests_asked);
        if (record.run.requests_asked < 1) in.bad();
    }
    in.finish();
    return record;
}

std::string encode(const RequestRecord& r, std::int64_t session) {
    Packer out = packer(RecordKind::request);
    out.reserve(
        1024 + r.prompt.size() + r.text.size() + r.step_sha256.size() + r.logits.size() * sizeof(float) +
        (r.prompt_ids.size() + r.output_ids.size() + r.margins.size()) * 4 + r.step_seconds.size() * 8);
    out.put(r.index);
    out.put(session);
    out.put(r);
    return out.take();
}

RequestRecord decode_request(std::string_view bytes) {
    Unpacker in = unpacker(bytes, RecordKind::request);
    RequestRecord r;
    in.get(r.index);
    in.get(r.session);
    in.get(r);
    in.finish();
    return r;
}

RecordKind kind_of(std::string_view record) {
    if (record.empty() || record[0] < 1 || record[0] > 2) Unpacker(record, "journal").bad();
    return static_cast<RecordKind>(record[0]);
}

}  // namespace ftmpi
