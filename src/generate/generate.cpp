#include "../generate.hpp"

#include <algorithm>
#include <bit>

#include "../error.hpp"
#include "sequence.hpp"

static_assert(std::endian::native == std::endian::little, "logits are hashed as they lie in memory");

namespace ftmpi {

void require_vocabulary(const Tokenizer& tokenizer, std::int64_t rows) {
    if (tokenizer.end() > rows)
        throw Error(Exit::bad_input,
                    "tokenizer.json has token id " + std::to_string(tokenizer.end() - 1) +
                        " but the model has only " + std::to_string(rows) + " vocabulary rows",
                    "tokenizer.json and config.json belong to different models");
}

Generator::Generator(Backend& backend, Communicator& communicator, Model& model, SequenceState& state,
                     const Tokenizer& tokenizer, GenerateOptions options)
    : backend_(backend), communicator_(communicator), model_(model), state_(state), tokenizer_(tokenizer),
      options_(std::move(options)), vocabulary_(tokenizer.end()) {
    require_vocabulary(tokenizer, model.vocab());
    for (std::int64_t id = 0; id < vocabulary_; ++id)
        masked_host_.push_back(!tokenizer.has(static_cast<std::int32_t>(id)));
    masked_ = DeviceArray<std::uint8_t>(backend, vocabulary_, "token mask");
    backend.copy_in(masked_.data(), masked_host_.data(), masked_host_.size());
    chosen_ = DeviceArray<std::int32_t>(backend, 4 * std::int64_t{state.slots()}, "chosen tokens");
    chosen_host_ = HostArray<std::int32_t>(backend, chosen_.size(), "chosen tokens in host memory");
    slots_.resize(static_cast<std::size_t>(state.slots()));
    options_.prefill_chunk = std::clamp<std::int64_t>(options_.prefill_chunk, 1, model.max_rows());
    if (communicator.rank() == 0 && (options_.hash || options_.save_logits))
        ledger_ = std::make_unique<LogitsWorker>(
            backend, options_.hash, options_.save_logits, vocabulary_,
            std::max(slots_.size(), std::clamp<std::size_t>(2 * slots_.size(), 8, 64)));
    if (!options_.sampling.greedy()) row_ = HostArray<float>(backend, vocabulary_, "logits in host memory");
}

Generator::~Generator() = default;

Generator::End Generator::run(const std::vector<Request>& requests, const Events& events) {
    std::size_t next = 0;
    ahead_ = may_run_ahead();
    while (!stopping_) {
        while (next < requests.size() && std::count(slots_.begin(), slots_.end(), nullptr) && !stopping_) {
            if (in_flight_) {  // requests come into free slots: their prefill writes logits
                capture(*in_flight_);
                read_in_flight(nullptr, events);
                if (stopping_) break;
            }
            prefill(fill(requests, next, events), events);
        }
        if (stopping_ ||
            std::none_of(slots_.begin(), slots_.end(), [](const auto& s) { return s != nullptr; }))
            break;
        decode(events);
    }
    if (in_flight_) backend_.wait_copy(in_flight_->copy);  // nobody reads it, but it still uses this memory
    in_flight_.reset();
    if (ledger_) ledger_->drain();  // it still works on the sequences that are given up now
    // A stop that came with the last step of all interrupts nothing.
    const bool left = next < requests.size() || std::any_of(slots_.begin(), slots_.end(),
                                                            [](const auto& s) { return s && !s->finished; });
    for (auto& s : slots_) s.reset();
    return stopping_ && left ? End::interrupted : End::done;
}

/// The next requests into the free slots, in order; those that need no step end here.
std::vector<Generator::Sequence*> Generator::fill(const std::vector<Request>& requests, std::size_t& next,
                                                  const Events& events) {
    std::vector<Sequence*> fresh;
    const bool alone = slots_.size() == 1;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
        while (!slots_[s] && next < requests.size()) {
            const Request& request = requests[next++];
            slots_[s] = std::make_unique<Sequence>(request, static_cast<int>(s), alone);
            slots_[s]->waits_before = communicator_.waits();
            if (!request.refused.empty()) finish(*slots_[s], "error", request.refused, events);
            else if (request.max_tokens == 0) finish(*slots_[s], "length", "", events);
            if (slots_[s]->finished) {
                slots_[s].reset();
                continue;
            }
            state_.reset(static_cast<int>(s));
            fresh.push_back(slots_[s].get());
        }
    }
    return fresh;
}

/// The same on all ranks, though what one of them needs for it may be another's to have.
bool Generator::may_run_ahead() {
    if (!options_.run_ahead.value_or(communicator_.capturable()) || !options_.sampling.greedy()) return false;
    const std::uint64_t mine[] = {(options_.run_ahead || backend_.asynchronous()) &&
                                  model_.takes_device_tokens()};
    std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator_.size()), mine[0]);
    if (communicator_.size() > 1) communicator_.all_gather_values(mine, all, "step");
    return std::count(all.begin(), all.end(), 0u) == 0;
}

/// The prompts of `fresh`, as many in a step as it has rows for. A prompt is cut into the same pieces as
/// alone: fast numerics promise nothing about other ones.
void Generator::prefill(std::vector<Sequence*> fresh, const Events& events) {
    while (!fresh.empty() && !stopping_) {
        const double asked = now();
        std::vector<Row> rows;
        std::vector<Range> wanted;
        std::vector<Sequence*> complete;
        for (Sequence* s : fresh) {
            const std::vector<std::int32_t>& ids = s->request.ids;
            const auto total = static_cast<std::int64_t>(ids.size()),
                       end = std::min(s->prefilled + options_.prefill_chunk, total),
                       taken = static_cast<std::int64_t>(rows.size());
            if (taken + end - s->prefilled > options_.prefill_chunk) break;
            if (s->prefilled == 0) s->begin = asked;
            for (; s->prefilled < end; ++s->prefilled)
                rows.push_back({ids[static_cast<std::size_t>(s->prefilled)], s->slot,
                                static_cast<std::int32_t>(s->prefilled)});
            if (end < total) break;
            const auto last = static_cast<std::int64_t>(rows.size());
            wanted.push_back({last - 1, last});
            complete.push_back(s);
        }
        fresh.erase(fresh.begin(), fresh.begin() + static_cast<std::ptrdiff_t>(complete.size()));
        if (events.step) events.step("prefill");
        const float* logits = model_.prefill(rows, wanted);
        if (complete.empty()) {
            stopping_ = synchronize(0, events);
            prefill_seconds_ += now() - asked;
            continue;
        }
        const StepPointer step = argmax(std::move(complete), logits, asked, "prefill");
        capture(*step);
        read_back(*step, events);
        prefill_seconds_ += last_read_ - asked;
    }
    for (auto& s : slots_)
        if (s && s->finished) s.reset();
}

/// One step of all sequences is read; with `ahead_` the next one has been asked for by then.
void Generator::decode(const Events& events) {
    if (!in_flight_) in_flight_ = issue(nullptr, events);
    capture(*in_flight_);
    StepPointer next = ahead_ ? issue(in_flight_.get(), events) : nullptr;
    read_in_flight(std::move(next), events);
}

/// Reads what is under way, after which `next` is.
void Generator::read_in_flight(StepPointer next, const Events& events) {
    read_back(*in_flight_, events);
    if (next)
        for (Sequence*& s : next->sequences)
            if (s && s->finished) s = nullptr;
    in_flight_ = std::move(next);
    for (auto& s : slots_)
        if (s && s->finished) s.reset();
}

}  // namespace ftmpi
