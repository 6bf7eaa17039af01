// The end of a request: its record, its text, its waits.
#include <bit>
#include <map>

#include "sequence.hpp"

namespace ftmpi {

void Generator::finish(Sequence& s, std::string reason, std::string error, const Events& events) {
    s.finished = true;
    if (!error.empty()) ++failed_;
    RequestRecord record;
    report_waits(s, record);
    if (communicator_.rank() != 0) return;
    if (ledger_) ledger_->drain();
    record.index = s.request.index;
    record.id = s.request.id;
    record.prompt = s.request.prompt;
    record.prompt_ids = s.request.ids;
    record.output_ids = s.output;
    const bool stopped = reason == "stop";
    for (std::size_t i = 0; i + (stopped ? 1 : 0) < s.output.size(); ++i)
        record.text += tokenizer_.bytes(s.output[i]);
    record.finish_reason = std::move(reason);
    record.error = std::move(error);
    if (options_.hash) {
        record.step_sha256 = std::move(s.account.step_sha256);
        record.logits_sha256 = hex(s.account.all.value());
    }
    record.margins = std::move(s.account.margins);
    record.logits = std::move(s.account.kept);
    record.vocabulary = vocabulary_;
    record.prefill_seconds = s.prefill_seconds;
    record.step_seconds = std::move(s.step_seconds);
    if (events.text) {
        if (s.shown) {
            events.text(s.request, s.stream.finish(), true);
        } else {
            Utf8Stream whole;
            std::string text = whole.push(record.text);
            events.text(s.request, text + whole.finish(), true);
        }
    }
    if (events.finished) events.finished(record);
}

void Generator::report_waits(const Sequence& s, RequestRecord& record) {
    if (communicator_.size() == 1) return;
    std::map<std::string, double> spent;
    for (const auto& w : communicator_.waits()) spent[w.name] += w.seconds;
    for (const auto& w : s.waits_before) spent[w.name] -= w.seconds;
    std::vector<std::uint64_t> mine, all;
    for (const auto& [name, seconds] : spent) {
        record.gather_names.push_back(name);
        mine.push_back(std::bit_cast<std::uint64_t>(seconds));
    }
    if (mine.empty()) return;
    all.resize(mine.size() * static_cast<std::size_t>(communicator_.size()));
    communicator_.all_gather_values(mine, all, "waits");
    for (auto bits : all) record.gather_seconds.push_back(std::bit_cast<double>(bits));
}

}  // namespace ftmpi
