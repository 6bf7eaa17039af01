// A loop that asks for the next step before it has read this one leaves the same records as one that does
// not.
#define BOOST_TEST_MODULE run_ahead
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "error.hpp"
#include "fleet.hpp"
#include "late_backend.hpp"
#include "tiny_model.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

const std::filesystem::path kModel = std::filesystem::path(FTMPI_DATA) / "tiny-nvfp4";

/// `count` requests over five prompts of which request i makes tokens[i % size] tokens.
std::vector<Request> requests_of(const Tokenizer& tokenizer, std::size_t count,
                                 const std::vector<std::int64_t>& tokens) {
    const char* texts[] = {"The capital of France is", "1, 2, 3,", "def fibonacci(n):", "The quick brown fox",
                           "Q: What is 17 times 24?\nA:"};
    std::vector<Request> requests;
    for (std::size_t i = 0; i < count; ++i) {
        std::string text = texts[i % 5];
        if (i >= 5) text += std::string(i, '!');
        requests.push_back({.index = static_cast<std::int64_t>(i),
                            .id = {},
                            .prompt = text,
                            .ids = tokenizer.encode(text),
                            .max_tokens = tokens[i % tokens.size()],
                            .max_tokens_asked = true,
                            .refused = {}});
    }
    return requests;
}

GenerateOptions options_of(std::optional<bool> ahead, std::vector<std::int32_t> stop_ids = {}) {
    return {.hash = true, .save_logits = true, .stop_ids = std::move(stop_ids), .run_ahead = ahead};
}

void check_record(const RequestRecord& have, const RequestRecord& want, const std::string& what) {
    BOOST_TEST(have.output_ids == want.output_ids, what << ": tokens");
    BOOST_TEST(have.text == want.text, what << ": text");
    BOOST_TEST(have.finish_reason == want.finish_reason,
               what << ": " << have.finish_reason << " for " << want.finish_reason);
    BOOST_TEST(have.error == want.error, what << ": " << have.error << " for " << want.error);
    BOOST_TEST(have.step_sha256 == want.step_sha256, what << ": hashes of the steps");
    BOOST_TEST(have.logits_sha256 == want.logits_sha256, what << ": hash");
    BOOST_TEST((have.margins == want.margins), what << ": margins");
    BOOST_TEST((have.logits == want.logits), what << ": logits that were kept");
    BOOST_TEST(have.step_seconds.size() == want.step_seconds.size(), what << ": times");
}

void check_run(const Run& have, const Run& want, const std::string& what) {
    for (std::size_t i = 0; i < want.records.size(); ++i) {
        const std::string which = what + ", request " + std::to_string(i);
        check_record(have.records[i], want.records[i], which);
        BOOST_TEST(have.shown[i] == want.shown[i], which << ": text shown");
    }
    BOOST_TEST((have.end == want.end), what << ": end");
    BOOST_TEST(have.decoded == want.decoded, what << ": tokens decoded");
    BOOST_TEST(have.failed == want.failed, what << ": failures");
}

FleetOptions late(FleetOptions options) {
    options.backend = [] { return std::make_unique<LateBackend>(); };
    return options;
}

/// Runs plainly, a step ahead and, with one rank, a step ahead of a backend that is late. Returns the plain
/// run.
Run check(const std::filesystem::path& model, const FleetOptions& options, std::size_t count,
          const std::vector<std::int64_t>& tokens, const std::vector<std::int32_t>& stop_ids,
          const std::string& what, bool steps_more = false) {
    Fleet fleet(model, options);
    const auto requests = requests_of(fleet.tokenizer(), count, tokens);
    const Run want = fleet.run(requests, options_of(false, stop_ids)),
              have = fleet.run(requests, options_of(true, stop_ids));
    check_run(have, want, what);
    // Of a batch the step that a stop token makes useless for one may be another's.
    if (steps_more && options.slots == 1)
        BOOST_TEST(have.steps > want.steps, what << ": no step was asked for ahead of a stop token");
    // Lengths are known beforehand, so without a stop token no step is in vain; two sequences may share one
    // otherwise than plainly.
    if (stop_ids.empty() && want.failed == 0 && options.slots == 1)
        BOOST_TEST(have.steps == want.steps, what << ": a step in vain");
    BOOST_TEST(fleet.run(requests, options_of({}, stop_ids)).steps ==
               want.steps);  // the CPU would gain nothing
    if (options.ranks > 1) return want;
    Fleet slow(model, late(options));
    const Run ahead = slow.run(requests, options_of({}, stop_ids));
    check_run(ahead, want, what + ", late");
    BOOST_TEST(ahead.steps == have.steps, what << ": a backend that returns early is run ahead of unasked");
    check_run(slow.run(requests, options_of(false, stop_ids)), want, what + ", late, plainly");
    return want;
}

/// Chooses another token than it should, once.
class OtherChoice : public CpuBackend {
public:
    explicit OtherChoice(int time) : CpuBackend(1, default_simd()), time_(time) {}
    void argmax(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t ids,
                const std::uint8_t* masked, std::int32_t* token, std::int32_t* finite) override {
        CpuBackend::argmax(logits, rows, stride, ids, masked, token, finite);
        if (--time_ == 0) token[rows - 1] ^= 1;
    }

private:
    int time_;
};

/// A vocabulary row, of an id without a token, whose logit overflows now and then.
void overflow_now_and_then(std::vector<StoredTensor>& tensors) {
    auto& head = tensor_named(tensors, "lm_head.weight");
    const std::size_t width = static_cast<std::size_t>(head.shape[1]);
    for (std::size_t i = 0; i < width; ++i) {
        const std::uint16_t code = static_cast<std::uint16_t>(0x7e00u | (i % 3 ? 0u : 0x8000u));  // 4.3e37
        std::memcpy(head.bytes.data() + (270 * width + i) * 2, &code, 2);
    }
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_late_backend_is_late) {
    LateBackend backend;
    DeviceArray<float> x(backend, 1, "test");
    HostArray<float> first(backend, 1, "test"), second(backend, 1, "test");
    const float values[] = {1, 2, 3};
    first.data()[0] = 0;
    backend.copy_in(x.data(), &values[0], 4);
    const auto unheld = backend.copy_async(first.data(), x.data(), 4);
    BOOST_TEST(first.data()[0] == 0.0f);
    backend.copy_in(x.data(), &values[1], 4);
    backend.wait_copy(unheld);
    BOOST_TEST(first.data()[0] == 2.0f);  // overwritten before it was copied
    const auto held = backend.copy_async(second.data(), x.data(), 4);
    backend.fence_copies();
    backend.copy_in(x.data(), &values[2], 4);
    backend.wait_copy(held);
    BOOST_TEST(second.data()[0] == 2.0f);
}

BOOST_AUTO_TEST_CASE(rows_take_tokens_from_the_device) {
    const auto backend = make_cpu_backend(1);
    const std::int32_t tokens[] = {7, -1, 10, 9};
    const Row rows[] = {{3, 0, 5}, {0, 1, 6}, {1, 2, 7}, {2, 4, 8}};
    Row to[4];
    backend->resolve_tokens(to, rows, tokens, 10);
    const std::int32_t want[] = {9, 7, 0, 0};
    for (int i = 0; i < 4; ++i)
        BOOST_TEST(
            (to[i].token == want[i] && to[i].slot == rows[i].slot && to[i].position == rows[i].position));
}

BOOST_AUTO_TEST_CASE(batches_queues_and_lengths) {
    for (const int slots : {1, 3, 5})
        check(kModel, {.slots = slots}, 8, {6, 1, 4, 9, 2}, {}, std::to_string(slots) + " slots");
    check(kModel, {.slots = 3}, 5, {1}, {}, "one token each");
    check(kModel, {.slots = 3}, 5, {0, 3}, {}, "none for some");
    check(kModel, {.slots = 5, .prefill_rows = 2}, 6, {5}, {}, "prefill in small steps");
}

BOOST_AUTO_TEST_CASE(stop_tokens_in_the_middle) {
    const Run free = check(kModel, {}, 5, {10}, {}, "without a stop token");
    // Of three requests a token in the middle, which may stop others as well.
    const std::vector<std::int32_t> stop{free.records[0].output_ids[4], free.records[2].output_ids[6],
                                         free.records[3].output_ids[2]};
    for (const int slots : {1, 3, 5}) {
        const Run stopped = check(kModel, {.slots = slots}, 8, {10}, stop,
                                  "stop tokens, " + std::to_string(slots) + " slots", true);
        BOOST_TEST(stopped.records[0].finish_reason == "stop");
        BOOST_TEST(stopped.records[0].output_ids.size() <= 5u);
    }
    // The very first token stops, and the last that would have been made anyway.
    check(kModel, {.slots = 3}, 5, {4}, {free.records[1].output_ids[0], free.records[0].output_ids[3]},
          "first and last token");
}

BOOST_AUTO_TEST_CASE(the_context_ends_a_sequence) {
    Fleet fleet(kModel, {.slots = 1});
    std::size_t longest = 0;
    for (const auto& r : requests_of(fleet.tokenizer(), 5, {1})) longest = std::max(longest, r.ids.size());
    for (const int slots : {1, 3}) {
        const auto context = static_cast<std::int64_t>(longest) + 3;
        const Run run = check(kModel, {.slots = slots, .context = context}, 5, {100}, {},
                              "context " + std::to_string(context));
        for (const auto& r : run.records) {
            BOOST_TEST(r.finish_reason == "length");
            BOOST_TEST(static_cast<std::int64_t>(r.prompt_ids.size() + r.output_ids.size()) == context);
        }
    }
}

BOOST_AUTO_TEST_CASE(logits_that_are_not_finite) {
    TemporaryDirectory directory;
    const TinySpec spec;
    auto tensors = make_tiny_tensors(spec);
    overflow_now_and_then(tensors);
    write_tiny_model(directory.path(), spec, tensors);
    for (const int slots : {1, 3, 5}) {
        const Run run = check(directory.path(), {.slots = slots}, 10, {30}, {},
                              "overflow, " + std::to_string(slots) + " slots");
        std::int64_t in_the_middle = 0;
        for (const auto& r : run.records) in_the_middle += !r.error.empty() && r.output_ids.size() > 1;
        BOOST_TEST(in_the_middle > 1);
        BOOST_TEST(in_the_middle < 10);
    }
}

BOOST_AUTO_TEST_CASE(ranks_together) {
    const Run free =
        Fleet(kModel, {}).run(requests_of(Fleet(kModel, {}).tokenizer(), 5, {8}), options_of(false));
    const std::vector<std::int32_t> stop{free.records[0].output_ids[3], free.records[4].output_ids[5]};
    for (const auto& shares : std::vector<std::vector<double>>{{3, 1}, {1, 0}, {5, 2, 1}})
        for (const int slots : {1, 3}) {
            FleetOptions options{.ranks = static_cast<int>(shares.size()), .shares = shares, .slots = slots};
            check(kModel, options, 5, {8}, stop,
                  std::to_string(shares.size()) + " ranks, " + std::to_string(slots) + " slots", true);
        }
}

BOOST_AUTO_TEST_CASE(a_rank_that_chooses_another_token_ends_the_job) {
    for (const int ranks : {2, 3})
        for (int other = 0; other < ranks; ++other)
            for (const bool ahead : {false, true})
                for (const int time : {1, 3, 7}) {  // a step of three prompts, then six: the last among them
                    int made = 0;
                    Fleet fleet(kModel,
                                {.ranks = ranks, .slots = 3, .backend = [&]() -> std::unique_ptr<Backend> {
                                     return std::make_unique<OtherChoice>(made++ == other ? time : 0);
                                 }});
                    // Every rank must leave by the same message: the fleet would say that only some failed.
                    const std::string want =
                        "rank " + std::to_string(other == 0 ? 1 : other) + " chose other tokens than rank 0";
                    BOOST_TEST_CONTEXT("rank " << other << " of " << ranks << ", choice " << time
                                               << (ahead ? ", ahead" : "")) {
                        BOOST_CHECK_EXCEPTION(
                            fleet.run(requests_of(fleet.tokenizer(), 3, {7}), options_of(ahead)), Error,
                            [&](const Error& e) {
                                return e.code() == Exit::failure &&
                                       std::string_view(e.what()).starts_with(want) && !e.hint().empty();
                            });
                    }
                }
}

BOOST_AUTO_TEST_CASE(prompts_share_steps_and_keep_their_bits) {
    // 3 to 40 tokens; one that ends with its prompt, one that is refused, one that asks for nothing.
    Fleet one(kModel, {});
    auto requests = requests_of(one.tokenizer(), 9, {4, 1, 6});
    requests[3].ids.resize(3);
    requests[5].refused = "too long";
    requests[7].max_tokens = 0;
    const Run alone = one.run(requests, options_of(false));
    const auto pieces = [&](std::int64_t rows) {
        std::int64_t n = 0;
        for (const Request& r : requests)
            if (r.refused.empty() && r.max_tokens > 0) n += (std::ssize(r.ids) + rows - 1) / rows;
        return n;
    };
    BOOST_TEST(alone.prefills == pieces(256));
    for (const int ranks : {1, 2})
        for (const std::int64_t rows : {256, 40, 8, 1}) {
            GenerateOptions options = options_of(false);
            options.prefill_chunk = rows;
            Fleet fleet(kModel, {.ranks = ranks, .slots = 9, .prefill_rows = rows});
            const Run run = fleet.run(requests, options);
            check_run(run, alone, std::to_string(rows) + " rows a step");
            if (rows == 256) BOOST_TEST(run.prefills == 1);
            if (rows == 40) BOOST_TEST((run.prefills > 1 && run.prefills < pieces(rows)));
            // Where no two pieces fit a step, there are as many as alone.
            if (rows == 1) BOOST_TEST(run.prefills == pieces(rows));
        }
}

BOOST_AUTO_TEST_CASE(a_wish_to_stop_ends_all_ranks_at_the_same_step) {
    const std::vector<std::int64_t> tokens{4, 20, 7};
    for (const int ranks : {1, 2})
        for (int at = 1; at <= 13; at += 2) {
            // The last rank wishes to stop when the ranks compare for the time `at`: three prompts, then
            // steps.
            const auto stopped = [&](Fleet& fleet, std::optional<bool> ahead) {
                std::vector<int> compared(static_cast<std::size_t>(ranks));
                const Run run =
                    fleet.run(requests_of(fleet.tokenizer(), 3, tokens), options_of(ahead), [&](int rank) {
                        return ++compared[static_cast<std::size_t>(rank)] == at && rank == ranks - 1;
                    });
                for (const int n : compared) BOOST_TEST(n == at);
                BOOST_TEST((run.end == Generator::End::interrupted));
                return run;
            };
            const FleetOptions options{.ranks = ranks, .slots = 3};
            Fleet fleet(kModel, options);
            const std::string what =
                "stopped at " + std::to_string(at) + ", " + std::to_string(ranks) + " ranks";
            const Run want = stopped(fleet, false);
            check_run(stopped(fleet, true), want, what);
            if (ranks > 1) continue;
            Fleet slow(kModel, late(options));
            check_run(stopped(slow, {}), want, what + ", late");
        }
}

BOOST_AUTO_TEST_CASE(a_wish_to_stop_while_requests_wait) {
    Fleet fleet(kModel, late({.slots = 2}));
    const auto requests = requests_of(fleet.tokenizer(), 7, {3, 6, 2});
    const Run whole = fleet.run(requests, options_of(false));
    for (int at = 1; at < 30; ++at) {
        int compared = 0;
        const Run run = fleet.run(requests, options_of({}), [&](int) { return ++compared == at; });
        for (std::size_t i = 0; i < requests.size(); ++i)
            if (!run.records[i].finish_reason.empty())
                check_record(run.records[i], whole.records[i], "stopped at " + std::to_string(at));
        if (run.end == Generator::End::done) {
            BOOST_TEST(compared <= at);  // the wish may come with the last step of all
            for (const auto& record : run.records) BOOST_TEST(!record.finish_reason.empty());
            return;
        }
        BOOST_TEST(compared == at);
    }
    BOOST_ERROR("the requests never came to their end");
}

BOOST_AUTO_TEST_CASE(sampling_needs_the_host) {
    Fleet fleet(kModel, late({.slots = 3}));
    const auto requests = requests_of(fleet.tokenizer(), 5, {6});
    const auto sampled = [&](std::optional<bool> ahead) {
        auto options = options_of(ahead);
        options.sampling = {.temperature = 1, .seed = 3};
        return fleet.run(requests, options);
    };
    const Run want = sampled(false), have = sampled(true);
    check_run(have, want, "sampling");
    BOOST_TEST(have.steps == want.steps);
    check_run(Fleet(kModel, {.slots = 3})
                  .run(requests,
                       [] {
                           auto options = options_of(false);
                           options.sampling = {.temperature = 1, .seed = 3};
                           return options;
                       }()),
              want, "sampling on a backend that is not late");
}
