// The same bits for any number of ranks, any uneven cut, any batch, any chunking, any instruction set.
#define BOOST_TEST_MODULE promise
#include <sys/mman.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstring>
#include <map>

#include "fleet.hpp"
#include "reference_files.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

const std::filesystem::path kData = FTMPI_DATA;
constexpr const char* kModels[] = {"tiny-nvfp4", "tiny-fp8", "tiny-qwen3-moe-bf16", "tiny-qwen3-moe-fp8",
                                   "tiny-qwen3-moe-nvfp4"};

/// Each buffer ends where no memory is, and begins behind NaNs.
class GuardedBackend : public CpuBackend {
public:
    GuardedBackend() : CpuBackend(1, default_simd()) {}
    void* allocate(std::size_t bytes, std::string_view) override {
        if (bytes == 0) return nullptr;
        constexpr std::size_t page = 4096, alignment = 64;
        const std::size_t whole = (bytes + alignment - 1) / alignment * alignment,
                          inside = (whole + page) / page * page;
        auto* begin = static_cast<std::byte*>(
            mmap(nullptr, inside + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        BOOST_TEST_REQUIRE((begin != MAP_FAILED && mprotect(begin + inside, page, PROT_NONE) == 0));
        std::byte* const p = begin + inside - whole;
        std::memset(begin, 0xff, inside);
        std::memset(p, 0, bytes);
        buffers_[p] = {begin, inside + page};
        return p;
    }
    void release(void* p) noexcept override {
        const auto at = buffers_.find(p);
        if (at == buffers_.end()) return;
        munmap(at->second.first, at->second.second);
        buffers_.erase(at);
    }

private:
    std::map<void*, std::pair<void*, std::size_t>> buffers_;
};

std::vector<Request> five_prompts(const Tokenizer& tokenizer, std::int64_t tokens) {
    std::vector<Request> requests;
    for (const char* text : {"The capital of France is", "1, 2, 3,", "def fibonacci(n):",
                             "The quick brown fox jumps over the lazy dog.", "Q: What is 17 times 24?\nA:"})
        requests.push_back({.index = static_cast<std::int64_t>(requests.size()),
                            .id = {},
                            .prompt = text,
                            .ids = tokenizer.encode(text),
                            .max_tokens = tokens,
                            .max_tokens_asked = true,
                            .refused = {}});
    return requests;
}

/// One hash a prompt.
std::vector<std::string> hashes(const std::filesystem::path& model, const FleetOptions& options,
                                std::int64_t tokens = 12, std::int64_t chunk = 256) {
    Fleet fleet(model, options);
    const auto records =
        fleet.generate(five_prompts(fleet.tokenizer(), tokens),
                       {.hash = true, .prefill_chunk = chunk, .stop_ids = fleet.config().stop_ids});
    std::vector<std::string> all;
    for (const auto& r : records) {
        BOOST_TEST(r.logits_sha256.size() == 64u);
        BOOST_TEST(r.error == "");
        BOOST_TEST(!r.output_ids.empty());
        all.push_back(r.logits_sha256);
    }
    return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(any_cut_gives_the_same_bits) {
    for (const char* model : kModels) {
        const auto want = hashes(kData / model, {});
        std::printf("%s: %s...\n", model, want[0].substr(0, 16).c_str());
        BOOST_TEST(want[0] != want[1]);
        for (const auto& shares : std::vector<std::vector<double>>{
                 {1, 1}, {3, 1}, {1, 0}, {0, 1}, {1, 1, 1}, {5, 2, 1}, {1, 1, 1, 1}, {7, 0, 2, 1}}) {
            const auto have =
                hashes(kData / model, {.ranks = static_cast<int>(shares.size()), .shares = shares});
            BOOST_TEST(have == want,
                       model << " with " << shares.size() << " ranks, first share " << shares[0]);
        }
        for (Policy policy : {Policy::speed, Policy::memory})
            BOOST_TEST(hashes(kData / model, {.ranks = 3, .policy = policy}) == want);
        for (bool whole : {false, true})  // the output projection on every rank, or cut
            BOOST_TEST(
                hashes(kData / model, {.ranks = 2, .shares = {3, 1}, .edit_plan = [&](ShardPlan& plan) {
                                           const std::int64_t h = plan.layers[0].down.back().end;
                                           plan.out_replicated = whole;
                                           for (auto& layer : plan.layers)
                                               layer.out = whole ? std::vector<Range>{{0, h}, {0, h}}
                                                                 : std::vector<Range>{{0, 80}, {80, h}};
                                       }}) == want);
    }
}

BOOST_AUTO_TEST_CASE(batch_chunking_and_repetition_change_nothing) {
    for (const auto& model : {kData / "tiny-nvfp4", kData / "tiny-qwen3-moe-nvfp4"})
        for (KvType kv : {KvType::fp32, KvType::bf16, KvType::fp8}) {
            const auto want = hashes(model, {.kv = kv});
            BOOST_TEST(hashes(model, {.kv = kv}) == want);
            BOOST_TEST(hashes(model, {.kv = kv, .slots = 5}) == want);
            BOOST_TEST(hashes(model, {.ranks = 2, .shares = {3, 1}, .kv = kv, .slots = 3}) == want);
            BOOST_TEST(hashes(model, {.kv = kv}, 12, 7) == want);
            BOOST_TEST(hashes(model, {.kv = kv}, 12, 1) == want);
            BOOST_TEST(hashes(model, {.kv = kv, .slots = 5, .prefill_rows = 2}) == want);
        }
}

BOOST_AUTO_TEST_CASE(instruction_sets_agree) {
    for (const char* model : kModels) {
        const auto want = hashes(kData / model, {.simd = Simd::plain, .best_simd = false}, 6);
        for (Simd simd : {Simd::avx2, Simd::avx512, Simd::avx512vnni, Simd::avx512amx}) {
            if (!supported(simd)) {
                std::printf("skipped: this processor lacks %s\n", simd == Simd::avx2 ? "AVX2" : "AVX-512");
                continue;
            }
            BOOST_TEST(hashes(kData / model, {.simd = simd, .best_simd = false}, 6) == want);
        }
    }
}

BOOST_AUTO_TEST_CASE(long_prompts_agree_in_any_chunking_and_cut) {
    const ReferenceFiles reference(kData / "references", "nvfp4");
    const auto& p = reference.prompt("len600");
    for (const char* name : {"tiny-nvfp4", "tiny-qwen3-moe-nvfp4"})
        for (KvType kv : {KvType::fp32, KvType::fp8}) {
            const auto model = kData / name;
            Fleet whole(model, {.kv = kv, .prefill_rows = 600});
            std::vector<std::int32_t> prompt, forced(p.greedy_ids.begin(), p.greedy_ids.begin() + 8);
            for (const int id : p.prompt_ids) prompt.push_back(id % static_cast<int>(whole.config().vocab));
            for (auto& id : forced) id %= static_cast<std::int32_t>(whole.config().vocab);
            const auto want = whole.logits(prompt, forced, 600);
            BOOST_TEST((Fleet(model, {.kv = kv}).logits(prompt, forced, 7) == want));
            BOOST_TEST((Fleet(model, {.kv = kv}).logits(prompt, forced, 1) == want));
            BOOST_TEST(
                (Fleet(model, {.ranks = 3, .shares = {5, 2, 1}, .kv = kv}).logits(prompt, forced, 256) ==
                 want));
        }
}

BOOST_AUTO_TEST_CASE(nothing_outside_the_buffers_is_read) {
    // Numbers of rows just beside those that fill a vector, a tile or a chunk.
    for (const auto& [model, shares] : std::vector<std::pair<const char*, std::vector<double>>>{
             {"tiny-nvfp4", {1}}, {"tiny-nvfp4", {3, 1}}, {"tiny-qwen3-moe-nvfp4", {3, 1}}}) {
        FleetOptions options{.ranks = static_cast<int>(shares.size()),
                             .shares = shares,
                             .context = 160,
                             .embedding_on_host = false};
        Fleet plain(kData / model, options);
        options.backend = [] { return std::make_unique<GuardedBackend>(); };
        Fleet guarded(kData / model, options);
        for (const std::size_t length : {1u, 3u, 63u, 65u, 129u}) {
            std::vector<std::int32_t> prompt;
            for (std::size_t i = 0; i < length; ++i)
                prompt.push_back(static_cast<std::int32_t>(97 + (i * i + i / 7) % 600));
            const std::vector<std::int32_t> forced{100, 101};
            for (const std::int64_t chunk : {64, 256})
                BOOST_TEST(
                    (guarded.logits(prompt, forced, chunk) == plain.logits(prompt, forced, 256)),
                    model << ", " << length << " tokens by " << chunk << " on " << shares.size() << " ranks");
        }
    }
}
