// The lockstep loop: prompts in, tokens out, the same on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model.hpp"
#include "results.hpp"
#include "sampler.hpp"
#include "tokenizer.hpp"

namespace ftmpi {

/// One prompt, tokenized.
struct Request {
    std::int64_t index = 0;  ///< input order; part of the random counter
    std::string id, prompt;
    std::vector<std::int32_t> ids;
    std::int64_t max_tokens = 0;
    bool max_tokens_asked = false;  ///< by the prompt or the command line, and not only the default
    std::string refused;  ///< not empty: the request is not run, its record carries this as its error
};

struct GenerateOptions {
    Sampling sampling = {};
    bool ignore_eos = false;
    bool hash = true;
    bool save_logits = false;
    std::int64_t prefill_chunk = 256;  ///< rows of a prefill step, at most Model::max_rows()
    std::vector<std::int32_t> stop_ids = {};
    /// Whether a step is asked for before the tokens of the step before are read. Left out: where that gains
    /// time. Sampling needs the host, and so does an embedding that the backend cannot reach by itself: they
    /// never run ahead.
    std::optional<bool> run_ahead = {};
};

/// Throws Error(bad_input) when the tokenizer has ids beyond the model's `rows` of vocabulary.
void require_vocabulary(const Tokenizer& tokenizer, std::int64_t rows);

class LogitsWorker;

class Generator {
public:
    struct Events {
        /// Rank 0: text to show, valid UTF-8. `last` ends the request.
        std::function<void(const Request&, std::string_view text, bool last)> text;
        /// Rank 0: a finished request, before the next one takes its slot.
        std::function<void(const RequestRecord&)> finished;
        /// Any rank: true once this rank was asked to stop; spread to all with the host values of the next
        /// step.
        std::function<bool()> stop_requested;
        /// Every rank, before each step: "prefill" or "decode".
        std::function<void(std::string_view phase)> step;
        /// Every rank, when the tokens that a step chose have been read and compared. The next step may be
        /// under way by then.
        std::function<void(std::string_view phase)> read;
    };

    /// plan.slots requests run together; each gets the bits it has alone. Throws as require_vocabulary does.
    Generator(Backend& backend, Communicator& communicator, Model& model, SequenceState& state,
              const Tokenizer& tokenizer, GenerateOptions options);
    ~Generator();

    enum class End { done, interrupted };
    /// Runs all requests in order. The same arguments on every rank. Requests unfinished at an interruption
    /// leave no record.
    End run(const std::vector<Request>& requests, const Events& events);

    std::int64_t vocabulary() const { return vocabulary_; }  ///< ids the logits hash covers: [0, vocabulary)
    std::int64_t failed() const { return failed_; }          ///< requests that ended with an error
    std::int64_t decoded() const {
        return decoded_;
    }  ///< tokens made by decode steps (each prompt's first is prefill's)
    double decode_seconds() const {
        return decode_seconds_;
    }  ///< wall time of all decode steps, from tokens read to tokens read
    double prefill_seconds() const {
        return prefill_seconds_;
    }  ///< wall time of all steps of prompts, whose number in a step the requests' own times do not show

private:
    struct Sequence;
    struct Step;
    using StepPointer = std::unique_ptr<Step>;
    bool may_run_ahead();
    std::vector<Sequence*> fill(const std::vector<Request>& requests, std::size_t& next,
                                const Events& events);
    void prefill(std::vector<Sequence*> fresh, const Events& events);
    void decode(const Events& events);
    void read_in_flight(StepPointer next, const Events& events);
    // A step's life: issued, its logits captured before the next step writes its own, read back.
    StepPointer issue(const Step* before, const Events& events);
    StepPointer argmax(std::vector<Sequence*> sequences, const float* logits, double begin,
                       std::string_view phase);
    void capture(Step& step);
    void read_back(Step& step, const Events& events);
    void commit(Sequence& sequence, std::int32_t token, bool finite, double at, double seconds,
                const Events& events);
    bool full(const Sequence& sequence, std::size_t made) const;
    void finish(Sequence& sequence, std::string reason, std::string error, const Events& events);
    bool synchronize(std::uint64_t token_digest, const Events& events);
    void report_waits(const Sequence& sequence, RequestRecord& record);

    Backend& backend_;
    Communicator& communicator_;
    Model& model_;
    SequenceState& state_;
    const Tokenizer& tokenizer_;
    GenerateOptions options_;
    std::int64_t vocabulary_ = 0, failed_ = 0, decoded_ = 0;
    double decode_seconds_ = 0, prefill_seconds_ = 0, last_read_ = 0;
    std::vector<std::uint8_t> masked_host_;
    DeviceArray<std::uint8_t> masked_;
    DeviceArray<std::int32_t> chosen_;  ///< two steps in turns; of a step of n rows: n tokens, then n flags
    HostArray<std::int32_t> chosen_host_;  ///< likewise
    std::size_t choices_ = 0;
    HostArray<float> row_;  ///< logits to sample from
    std::vector<std::unique_ptr<Sequence>> slots_;
    StepPointer in_flight_;  ///< issued and not read back; while there is one, all sequences are in it
    std::unique_ptr<LogitsWorker> ledger_;
    bool ahead_ = false, stopping_ = false;
};

}  // namespace ftmpi
