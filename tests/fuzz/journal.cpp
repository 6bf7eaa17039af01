// A journal. An input that begins with the magic line is a whole file. One that begins with '=' gives the
// fields of records, which are then written as the program writes them, but need not fit each other. Any
// other holds payloads between lines `---`, each of which gets a head with the right checksums; after '!' the
// bytes go into the file as they are.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "digest.hpp"
#include "fuzz.hpp"
#include "results.hpp"
#include "results/wire.hpp"
#include "text/utf8.hpp"

using namespace ftmpi;
using namespace ftmpi::fuzz;

namespace {

constexpr std::string_view kMagic = "ftmpi journal 1\n";

std::string check_of(std::uint64_t number, std::string_view bytes) {
    const auto digest = sha256(std::string(reinterpret_cast<const char*>(&number), 8) + std::string(bytes));
    return {digest.begin(), digest.begin() + 8};
}

std::string head_of(std::uint64_t number, std::string_view payload) {
    const std::uint64_t length = payload.size();
    const std::string bytes(reinterpret_cast<const char*>(&length), 8);
    return bytes + check_of(number, bytes) + check_of(number, payload);
}

/// The payloads of whole records, read by the format's description alone.
std::vector<std::string> payloads_of(std::string_view file) {
    std::vector<std::string> payloads;
    if (file.substr(0, kMagic.size()) != kMagic) return payloads;
    file.remove_prefix(kMagic.size());
    while (file.size() >= 24) {
        std::uint64_t length = 0;
        std::memcpy(&length, file.data(), 8);
        if (check_of(payloads.size(), file.substr(0, 8)) != file.substr(8, 8) || length > file.size() - 24)
            break;
        const auto payload = file.substr(24, length);
        if (check_of(payloads.size(), payload) != file.substr(16, 8)) break;
        payloads.emplace_back(payload);
        file.remove_prefix(24 + length);
    }
    return payloads;
}

template <class T> std::vector<T> numbers(FuzzedDataProvider& in) {
    std::vector<T> out(in.ConsumeIntegralInRange<std::size_t>(0, 6));
    for (auto& n : out)
        if constexpr (std::is_floating_point_v<T>) n = in.ConsumeFloatingPoint<T>();
        else n = in.ConsumeIntegral<T>();
    return out;
}

std::vector<std::pair<std::string, std::string>> pairs(FuzzedDataProvider& in) {
    std::vector<std::pair<std::string, std::string>> out(in.ConsumeIntegralInRange<std::size_t>(0, 3));
    for (auto& [key, value] : out)
        key = in.ConsumeRandomLengthString(8), value = in.ConsumeRandomLengthString(16);
    return out;
}

std::string made_run(FuzzedDataProvider& in) {
    JournalRun record;
    record.session = in.ConsumeIntegral<std::int8_t>();
    record.journal_id = in.ConsumeRandomLengthString(8);
    record.run.attributes = pairs(in);
    record.run.ranks.resize(in.ConsumeIntegralInRange<std::size_t>(0, 2));
    const auto keys = pairs(in);
    for (auto& rank : record.run.ranks) rank = in.ConsumeBool() ? keys : pairs(in);
    record.run.plan_text = in.ConsumeRandomLengthString(16);
    if (in.ConsumeBool())
        record.run.plan_ranges = {{in.ConsumeRandomLengthString(8), numbers<std::int64_t>(in)}};
    record.run.identity = in.ConsumeRandomLengthString(16);
    return encode(record);
}

std::string made_request(FuzzedDataProvider& in) {
    RequestRecord r;
    r.index = in.ConsumeIntegralInRange<std::int64_t>(-1, 4);
    for (auto* text : {&r.id, &r.prompt, &r.text, &r.finish_reason, &r.error})
        *text = in.ConsumeRandomLengthString(16);
    r.step_sha256 =
        std::string(in.ConsumeIntegralInRange<std::size_t>(0, 3) * (in.ConsumeBool() ? 32 : 31), 's');
    if (in.ConsumeBool()) r.logits_sha256 = std::string(64, '0');
    r.prompt_ids = numbers<std::int32_t>(in), r.output_ids = numbers<std::int32_t>(in);
    r.vocabulary = in.ConsumeIntegralInRange<std::int64_t>(-1, 3);
    r.logits = numbers<float>(in), r.margins = numbers<float>(in);
    r.prefill_seconds = in.ConsumeFloatingPoint<double>();
    r.step_seconds = numbers<double>(in);
    r.gather_names.resize(in.ConsumeIntegralInRange<std::size_t>(0, 3));
    for (auto& name : r.gather_names) name = in.ConsumeRandomLengthString(8);
    r.gather_seconds = numbers<double>(in);
    return encode(r, in.ConsumeIntegral<std::int8_t>());
}

std::string file_of(std::string_view input) {
    if (input.substr(0, 6) == kMagic.substr(0, 6)) return std::string(input);
    std::string file(kMagic);
    std::uint64_t number = 0;
    const auto add = [&](std::string_view payload) { (file += head_of(number++, payload)) += payload; };
    if (!input.empty() && input[0] == '=') {
        FuzzedDataProvider in(reinterpret_cast<const std::uint8_t*>(input.data()) + 1, input.size() - 1);
        add(made_run(in));
        while (in.remaining_bytes() > 0 && number < 6)
            add(in.ConsumeIntegralInRange(0, 7) ? made_request(in) : made_run(in));
        return file;
    }
    for (const auto part : parts_of(input, 64)) {
        if (!part.empty() && part[0] == '!') file += part.substr(1);
        else add(part);
    }
    return file;
}

template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

void require_same(const RequestRecord& a, const RequestRecord& b) {
    const auto name = std::to_string(a.index);
    require(a.index == b.index && a.id == b.id && a.prompt == b.prompt && a.text == b.text,
            "a recovered request has its text", name);
    require(a.finish_reason == b.finish_reason && a.error == b.error && a.session == b.session,
            "and how it ended", name);
    require(a.prompt_ids == b.prompt_ids && a.output_ids == b.output_ids, "and its ids", name);
    require(a.step_sha256 == b.step_sha256 && a.logits_sha256 == b.logits_sha256, "and its hashes", name);
    require(a.vocabulary == b.vocabulary && same_bits(a.logits, b.logits) && same_bits(a.margins, b.margins),
            "and its logits", name);
    auto names = a.gather_names;  // strings of a list are stored as readable text only
    for (auto& text : names) text = readable_text(text);
    require(same_bits<double>({a.prefill_seconds}, {b.prefill_seconds}) &&
                same_bits(a.step_seconds, b.step_seconds) && names == b.gather_names &&
                same_bits(a.gather_seconds, b.gather_seconds),
            "and its times", name);
}

/// The result made from the journal holds the same requests, and reading it needs the journal no more.
void check_recovered(const TemporaryDirectory& folder, const StoredRun& journal) {
    const auto h5 = folder / "out.h5";
    const auto made = recover_results(h5);
    require(!std::filesystem::exists(folder / "out.h5.part"), "no unfinished file is left");
    require(made == static_cast<std::int64_t>(journal.requests.size()), "all whole requests are recovered");
    const auto read = read_results(h5);
    require(!read.complete, "a recovered file says that it is one");
    require(read.run.identity == journal.run.identity, "a recovered run has its identity", read.run.identity);
    require(read.run.plan_text == readable_text(journal.run.plan_text), "a recovered run has its plan",
            read.run.plan_text);
    require(read.requests.size() == journal.requests.size(), "all recovered requests are read");
    for (std::size_t i = 0; i < read.requests.size(); ++i)
        require_same(journal.requests[i], read.requests[i]);
    require(!compare_results(journal, read), "verify finds no difference");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const TemporaryDirectory folder;
    for (const char* name : {"out.h5", "out.h5.part", "out.h5.journal.damaged"})
        std::filesystem::remove(folder / name);
    const auto path = folder / "out.h5.journal";
    const auto file = file_of(text_of(data, size));
    write_file(path, file);

    const auto payloads = payloads_of(file);
    StoredRun stored;
    const bool read = accepted([&] { stored = read_journal(path); });
    std::map<std::int64_t, std::string> expected;
    if (read) {
        for (const auto& payload : payloads) {
            if (kind_of(payload) == RecordKind::run) {
                require(encode(decode_run(payload)) == payload,
                        "a record of a run is written as it was read");
                continue;
            }
            const auto request = decode_request(payload);
            require(encode(request, request.session) == payload,
                    "a record of a request is written as it was read");
            expected.emplace(request.index, payload);
        }
        require(stored.requests.size() == expected.size(),
                "only records with right checksums are read, and all of them");
        for (const auto& request : stored.requests)
            require(encode(request, request.session) == expected[request.index],
                    "the first record of an index counts");
        require_one_line(stored.note);
        require(stored.torn_tail == !stored.note.empty(), "what was left out is said");
    }
    const bool recovered = accepted([&] { check_recovered(folder, stored); });
    require(recovered == (read && !expected.empty()),
            "a journal that can be read and holds a request can be recovered");
    return 0;
}
