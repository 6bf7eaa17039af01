// One step of the loop: asked for, taken, read. The backend may be a step ahead of what is read here.
//
// A step's tokens are chosen in device memory, where the next step finds them, and copied out behind it. So
// with `ahead_` the next step is asked for before this one is read, and the device does not wait for the
// host. What the host alone decides comes a step late: a sequence that a stop token or a bad logit ends has a
// row in the step that is under way by then, which is left aside. Every rank reads the same tokens and the
// same wishes to stop with the same step, so all decide alike.
#include <algorithm>

#include "../error.hpp"
#include "sequence.hpp"

namespace ftmpi {

/// The decode step after `before`, which need not have been read, or of all sequences. Null when no sequence
/// is left.
Generator::StepPointer Generator::issue(const Step* before, const Events& events) {
    std::vector<Sequence*> sequences;
    std::vector<Row> rows;
    const auto add = [&](Sequence& s, std::int32_t token) {
        sequences.push_back(&s);
        rows.push_back({token, s.slot, static_cast<std::int32_t>(state_.length(s.slot))});
    };
    if (before) {
        for (std::size_t i = 0; i < before->sequences.size(); ++i)
            if (Sequence* s = before->sequences[i]; s && !full(*s, s->output.size() + 1))
                add(*s, static_cast<std::int32_t>(i));
    } else {
        for (auto& s : slots_)
            if (s) add(*s, s->output.back());
    }
    if (rows.empty()) return nullptr;
    if (events.step) events.step("decode");
    const double begin = now();
    const float* logits = model_.decode(rows, before ? before->tokens : nullptr);
    return argmax(std::move(sequences), logits, begin, "decode");
}

/// Chooses the largest of each row. The half of `chosen_` it writes was read by the step before last, and
/// copied out before that step's successor wrote its logits.
Generator::StepPointer Generator::argmax(std::vector<Sequence*> sequences, const float* logits, double begin,
                                         std::string_view phase) {
    const std::size_t n = sequences.size(), half = choices_++ % 2 * 2 * slots_.size();
    std::int32_t *device = chosen_.data() + half, *host = chosen_host_.data() + half;
    backend_.argmax(logits, static_cast<std::int64_t>(n), model_.vocab(), vocabulary_, masked_.data(), device,
                    device + n);
    auto step = std::make_unique<Step>();
    step->sequences = std::move(sequences);
    step->logits = logits;
    step->tokens = device;
    step->token = {host, n};
    step->finite = {host + n, n};
    step->copy = backend_.copy_async(host, device, 2 * n * sizeof *host);
    step->begin = begin;
    step->phase = phase;
    return step;
}

/// To be called before anything that writes logits: whether they are finite is not known yet.
void Generator::capture(Step& step) {
    if (!ledger_) return;
    for (std::size_t i = 0; i < step.sequences.size(); ++i)
        if (step.sequences[i])
            step.captured.push_back(
                ledger_->capture(step.logits + static_cast<std::int64_t>(i) * model_.vocab()));
}

void Generator::read_back(Step& step, const Events& events) {
    backend_.wait_copy(step.copy);
    const auto live = std::count_if(step.sequences.begin(), step.sequences.end(),
                                    [](const Sequence* s) { return s != nullptr; });
    if (live == 0) return;
    const double at = now(), seconds = at - std::max(step.begin, last_read_);
    last_read_ = at;
    if (step.phase == "decode") {
        decode_seconds_ += seconds;
        decoded_ += live;
    }
    const bool sampled = !options_.sampling.greedy();
    auto captured = step.captured.begin();
    std::uint64_t digest = 14695981039346656037u;  // FNV-1a over what this rank chose, compared on all ranks
    for (std::size_t i = 0; i < step.sequences.size(); ++i) {
        if (!step.sequences[i]) continue;
        Sequence& s = *step.sequences[i];
        if (step.finite[i] && sampled) {
            backend_.copy_out(row_.data(), step.logits + static_cast<std::int64_t>(i) * model_.vocab(),
                              row_.span().size_bytes());
            step.token[i] = sample(row_.span(), masked_host_, options_.sampling,
                                   static_cast<std::uint64_t>(s.request.index), s.output.size());
        }
        if (ledger_ && step.finite[i]) ledger_->push(*captured++, s.account, masked_host_);
        else if (ledger_) ledger_->drop(*captured++);
        digest = (digest ^ static_cast<std::uint32_t>(step.token[i])) * 1099511628211u;
        digest = (digest ^ static_cast<std::uint32_t>(step.finite[i])) * 1099511628211u;
    }
    stopping_ = synchronize(digest, events);
    if (events.read) events.read(step.phase);
    for (std::size_t i = 0; i < step.sequences.size(); ++i)
        if (step.sequences[i])
            commit(*step.sequences[i], step.token[i], step.finite[i] != 0, at, seconds, events);
}

void Generator::commit(Sequence& s, std::int32_t token, bool finite, double at, double seconds,
                       const Events& events) {
    if (s.output.empty()) s.prefill_seconds = seconds = at - s.begin;
    if (!finite || token < 0)
        return finish(s, "error",
                      !finite
                          ? "a logit of output token " + std::to_string(s.output.size()) + " is not finite"
                          : "the tokenizer has no token that could be chosen",
                      events);
    s.output.push_back(token);
    s.step_seconds.push_back(seconds);
    const bool stop =
        !options_.ignore_eos && std::count(options_.stop_ids.begin(), options_.stop_ids.end(), token);
    if (s.shown && !stop && communicator_.rank() == 0 && events.text) {
        const std::string text = s.stream.push(tokenizer_.bytes(token));
        if (!text.empty()) events.text(s.request, text, false);
    }
    if (stop || full(s, s.output.size())) finish(s, stop ? "stop" : "length", "", events);
}

/// Known without the tokens: a sequence that has made so many makes no more.
bool Generator::full(const Sequence& s, std::size_t made) const {
    return static_cast<std::int64_t>(made) == s.request.max_tokens ||
           static_cast<std::int64_t>(s.request.ids.size() + made) >= state_.capacity();
}

bool Generator::synchronize(std::uint64_t token_digest, const Events& events) {
    const std::uint64_t mine[] = {events.stop_requested && events.stop_requested() ? 1u : 0u, token_digest};
    if (communicator_.size() == 1) return mine[0] != 0;
    std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(communicator_.size()));
    communicator_.all_gather_values(mine, all, "step");
    bool stop = false;
    for (std::size_t r = 0; r < all.size() / 2; ++r) {
        stop = stop || all[2 * r];
        if (all[2 * r + 1] != all[1])
            throw Error(Exit::failure,
                        "rank " + std::to_string(r) +
                            " chose other tokens than rank 0: the ranks do not hold the same bits",
                        "memory errors or different programs on the hosts; compare with one rank");
    }
    return stop;
}

}  // namespace ftmpi
