#include "../generate.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <deque>
#include <map>

#include "../error.hpp"
#include "ledger.hpp"

static_assert(std::endian::native == std::endian::little, "logits are hashed as they lie in memory");

namespace ftmpi {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

void require_vocabulary(const Tokenizer& tokenizer, std::int64_t rows) {
    if (tokenizer.end() > rows)
        throw Error(Exit::bad_input, "tokenizer.json has token id " + std::to_string(tokenizer.end() - 1) +
                                         " but the model has only " + std::to_string(rows) + " vocabulary rows",
                    "tokenizer.json and config.json belong to different models");
}

struct Generator::Sequence {
    Sequence(const Request& r, int s, bool show) : request(r), slot(s), shown(show) {}
    const Request& request;
    int slot;
    bool shown;  ///< text goes out as it is made
    std::vector<std::int32_t> output;
    std::vector<double> step_seconds;
    double prefill_seconds = 0;
    std::vector<Communicator::Wait> waits_before;
    LogitsAccount account;
    Utf8Stream stream;
    bool finished = false;
};

struct Generator::Ledger : LogitsWorker {
    using LogitsWorker::LogitsWorker;
};

Generator::Generator(Backend& backend, Communicator& communicator, Model& model, SequenceState& state, const Tokenizer& tokenizer,
                     GenerateOptions options)
    : backend_(backend), communicator_(communicator), model_(model), state_(state), tokenizer_(tokenizer),
      options_(std::move(options)), vocabulary_(tokenizer.end()) {
    require_vocabulary(tokenizer, model.vocab());
    for (std::int64_t id = 0; id < vocabulary_; ++id) masked_host_.push_back(!tokenizer.has(static_cast<std::int32_t>(id)));
    masked_ = DeviceArray<std::uint8_t>(backend, vocabulary_, "token mask");
    backend.copy_in(masked_.data(), masked_host_.data(), masked_host_.size());
    chosen_ = DeviceArray<std::int32_t>(backend, 2 * std::int64_t{state.slots()}, "chosen tokens");
    slots_.resize(static_cast<std::size_t>(state.slots()));
    options_.prefill_chunk = std::clamp<std::int64_t>(options_.prefill_chunk, 1, model.max_rows());
    if (communicator.rank() == 0 && (options_.hash || options_.save_logits))
        ledger_ = std::make_unique<Ledger>(backend, options_.hash, options_.save_logits, vocabulary_,
                                           std::clamp<std::size_t>(2 * slots_.size(), 8, 64));
    if (!options_.sampling.greedy()) row_ = HostArray<float>(backend, vocabulary_, "logits in host memory");
}

Generator::~Generator() = default;

Generator::End Generator::run(const std::vector<Request>& requests, const Events& events) {
    std::size_t next = 0;
    const bool alone = slots_.size() == 1;
    while (!stopping_) {
        bool active = false;
        for (std::size_t s = 0; s < slots_.size() && !stopping_; ++s) {
            while (!slots_[s] && next < requests.size() && !stopping_) {
                const Request& request = requests[next++];
                slots_[s] = std::make_unique<Sequence>(request, static_cast<int>(s), alone);
                slots_[s]->waits_before = communicator_.waits();
                if (!request.refused.empty()) finish(*slots_[s], "error", request.refused, events);
                else if (request.max_tokens == 0) finish(*slots_[s], "length", "", events);
                else start(request, static_cast<int>(s), events);
                if (slots_[s] && slots_[s]->finished) slots_[s].reset();
            }
            active = active || slots_[s];
        }
        if (!active || stopping_) break;
        decode(events);
    }
    if (ledger_) ledger_->drain();  // it still works on the sequences that are given up now
    for (auto& s : slots_) s.reset();
    return stopping_ ? End::interrupted : End::done;
}

void Generator::start(const Request& request, int slot, const Events& events) {
    Sequence& sequence = *slots_[static_cast<std::size_t>(slot)];
    const double begin = now();
    state_.reset(slot);
    const auto total = static_cast<std::int64_t>(request.ids.size());
    for (std::int64_t at = 0; at < total && !stopping_; at += options_.prefill_chunk) {
        if (events.step) events.step("prefill");
        const std::int64_t n = std::min(options_.prefill_chunk, total - at);
        std::vector<Row> rows;
        for (std::int64_t i = at; i < at + n; ++i)
            rows.push_back({request.ids[static_cast<std::size_t>(i)], slot, static_cast<std::int32_t>(i)});
        const bool last = at + n == total;
        const float* logits = model_.forward(rows, last ? Range{n - 1, n} : Range{});
        if (!last) {
            stopping_ = synchronize(0, events);
            continue;
        }
        choose({&sequence}, logits, begin, events);
    }
}

void Generator::decode(const Events& events) {
    if (events.step) events.step("decode");
    const double begin = now();
    std::vector<Sequence*> sequences;
    std::vector<Row> rows;
    for (auto& s : slots_)
        if (s) {
            sequences.push_back(s.get());
            rows.push_back({s->output.back(), s->slot, static_cast<std::int32_t>(state_.length(s->slot))});
        }
    // A step may hold fewer rows than there are sequences; each part is a step of its own with the same bits.
    for (std::size_t at = 0; at < rows.size() && !stopping_;) {
        const std::size_t n = std::min(rows.size() - at, static_cast<std::size_t>(model_.max_rows()));
        const float* logits = model_.forward({rows.data() + at, n}, {0, static_cast<std::int64_t>(n)});
        choose({sequences.begin() + static_cast<std::ptrdiff_t>(at), sequences.begin() + static_cast<std::ptrdiff_t>(at + n)}, logits,
               begin, events);
        at += n;
    }
    for (auto& s : slots_)
        if (s && s->finished) s.reset();
}

void Generator::choose(std::vector<Sequence*> sequences, const float* logits, double begin, const Events& events) {
    const auto n = static_cast<std::int64_t>(sequences.size());
    backend_.argmax(logits, n, model_.vocab(), vocabulary_, masked_.data(), chosen_.data(), chosen_.data() + n);
    std::vector<std::int32_t> chosen(2 * sequences.size());
    backend_.copy_out(chosen.data(), chosen_.data(), chosen.size() * 4);
    const double seconds = now() - begin;
    if (!sequences[0]->output.empty()) {
        decode_seconds_ += seconds;
        decoded_ += n;
    }
    const std::span<std::int32_t> token{chosen.data(), sequences.size()}, finite{chosen.data() + sequences.size(), sequences.size()};
    const bool sampled = !options_.sampling.greedy();

    std::uint64_t digest = 14695981039346656037u;  // FNV-1a over what this rank chose, compared on all ranks
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        Sequence& s = *sequences[i];
        const float* row = logits + static_cast<std::int64_t>(i) * model_.vocab();
        if (finite[i] && sampled) {
            backend_.copy_out(row_.data(), row, row_.span().size_bytes());
            token[i] = sample(row_.span(), masked_host_, options_.sampling, static_cast<std::uint64_t>(s.request.index), s.output.size());
        }
        if (finite[i] && ledger_) ledger_->push(s.account, row, masked_host_);
        digest = (digest ^ static_cast<std::uint32_t>(token[i])) * 1099511628211u;
        digest = (digest ^ static_cast<std::uint32_t>(finite[i])) * 1099511628211u;
    }
    stopping_ = synchronize(digest, events);

    for (std::size_t i = 0; i < sequences.size(); ++i) {
        Sequence& s = *sequences[i];
        if (s.output.empty()) s.prefill_seconds = seconds;
        if (!finite[i] || token[i] < 0) {
            finish(s, "error",
                   !finite[i] ? "a logit of output token " + std::to_string(s.output.size()) + " is not finite"
                              : "the tokenizer has no token that could be chosen",
                   events);
            continue;
        }
        s.output.push_back(token[i]);
        s.step_seconds.push_back(seconds);
        const bool stop = !options_.ignore_eos && std::count(options_.stop_ids.begin(), options_.stop_ids.end(), token[i]);
        const auto made = static_cast<std::int64_t>(s.output.size()), used = static_cast<std::int64_t>(s.request.ids.size()) + made;
        const bool full = made == s.request.max_tokens || used >= state_.capacity();
        if (s.shown && !stop && communicator_.rank() == 0 && events.text) {
            const std::string text = s.stream.push(tokenizer_.bytes(token[i]));
            if (!text.empty()) events.text(s.request, text, false);
        }
        if (stop || full) finish(s, stop ? "stop" : "length", "", events);
    }
}

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
    for (std::size_t i = 0; i + (stopped ? 1 : 0) < s.output.size(); ++i) record.text += tokenizer_.bytes(s.output[i]);
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
    communicator_.all_gather_words(mine, all, "waits");
    for (auto bits : all) record.gather_seconds.push_back(std::bit_cast<double>(bits));
}

bool Generator::synchronize(std::uint64_t token_digest, const Events& events) {
    const std::uint64_t mine[] = {events.stop_requested && events.stop_requested() ? 1u : 0u, token_digest};
    if (communicator_.size() == 1) return mine[0] != 0;
    std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(communicator_.size()));
    communicator_.all_gather_words(mine, all, "step");
    bool stop = false;
    for (std::size_t r = 0; r < all.size() / 2; ++r) {
        stop = stop || all[2 * r];
        if (all[2 * r + 1] != all[1])
            throw Error(Exit::failure, "rank " + std::to_string(r) + " chose other tokens than rank 0: the ranks do not hold the same bits",
                        "memory errors or different programs on the hosts; compare with one rank");
    }
    return stop;
}

}  // namespace ftmpi
