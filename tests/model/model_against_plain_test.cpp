// The program's own model on the CPU backend, teacher-forced with an fp32 cache, against the plain forward in
// double.
#define BOOST_TEST_MODULE model_against_plain
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "checkpoint.hpp"
#include "config.hpp"
#include "cpu_backend.hpp"
#include "model.hpp"
#include "plain_forward.hpp"
#include "reference_files.hpp"
#include "shard.hpp"
#include "tiny_model.hpp"
#include "weights.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

using LogitRows = std::vector<std::vector<float>>;

/// A model directory opened as the program opens it, whole on one rank, with room for `rows` rows and their
/// logits a step.
class Program {
public:
    Program(const std::filesystem::path& directory, std::int64_t rows)
        : backend_(make_cpu_backend(1)), checkpoint_(Checkpoint::open(directory)),
          config_(load_config(directory)), inventory_(checkpoint_, config_),
          plan_(make_plan(inventory_.sizes(), request(rows))),
          weights_(checkpoint_, inventory_, plan_, 0, *backend_), state_(*backend_, config_, plan_, 0),
          model_(*backend_, communicator_, config_, plan_, weights_, state_) {}

    /// Logits after each id, the ids fed in steps of these sizes (the last one repeats until all are
    /// through).
    LogitRows logits(const std::vector<int>& ids, const std::vector<std::size_t>& steps) {
        state_.reset(0);
        LogitRows all;
        for (std::size_t begin = 0, turn = 0; begin < ids.size(); ++turn) {
            const std::size_t n = std::min(steps[std::min(turn, steps.size() - 1)], ids.size() - begin);
            std::vector<Row> rows;
            for (std::size_t i = begin; i < begin + n; ++i)
                rows.push_back({ids[i], 0, static_cast<std::int32_t>(i)});
            const float* out = model_.prefill(rows, {0, static_cast<std::int64_t>(n)});
            for (std::size_t i = 0; i < n; ++i) {
                auto& row = all.emplace_back(static_cast<std::size_t>(config_.vocab));
                backend_->copy_out(row.data(), out + i * row.size(), row.size() * sizeof(float));
            }
            begin += n;
        }
        backend_->synchronize();
        return all;
    }

    Model& model() { return model_; }

private:
    static PlanRequest request(std::int64_t rows) {
        PlanRequest r;
        r.ranks = {{.bytes = std::uint64_t{2} << 30, .gb_per_s = 0, .name = "test"}};
        r.policy = Policy::even;
        r.context = rows;
        r.slots = static_cast<int>(rows);  // a step returns the logits of at most this many rows
        r.kv = KvType::fp32;
        r.prefill_rows = rows;
        return r;
    }

    OneRank communicator_;
    std::unique_ptr<Backend> backend_;
    Checkpoint checkpoint_;
    ModelConfig config_;
    Inventory inventory_;
    ShardPlan plan_;
    Weights weights_;
    SequenceState state_;
    Model model_;
};

std::vector<int> some_ids(int count, int vocab = 260) {
    std::vector<int> ids;
    for (int i = 0; i < count; ++i) ids.push_back((i * i * 7 + i * 31 + 5) % vocab);
    return ids;
}

template <class T> int argmax(const std::vector<T>& v) {
    return static_cast<int>(std::max_element(v.begin(), v.end()) - v.begin());
}

struct Comparison {
    double worst = 0;                 ///< largest logit difference
    int same_first = 0;               ///< positions with the reference's largest logit
    int sure = 0, sure_and_same = 0;  ///< positions whose margin exceeds twice the bound
};

Comparison compare(const LogitRows& got, const std::vector<std::vector<double>>& expected, double bound) {
    BOOST_REQUIRE_EQUAL(got.size(), expected.size());
    Comparison c;
    for (std::size_t i = 0; i < got.size(); ++i) {
        BOOST_REQUIRE_EQUAL(got[i].size(), expected[i].size());
        for (std::size_t j = 0; j < got[i].size(); ++j) {
            const double d = std::fabs(double{got[i][j]} - expected[i][j]);
            if (!(d <= c.worst)) c.worst = d;  // NaN too
        }
        auto sorted = expected[i];
        std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
        const bool same = argmax(got[i]) == argmax(expected[i]);
        c.same_first += same;
        if (sorted[0] - sorted[1] > 2 * bound) {
            ++c.sure;
            c.sure_and_same += same;
        }
    }
    return c;
}

bool four_bit(Layout layout) {
    return layout == Layout::modelopt_nvfp4 || layout == Layout::compressed_nvfp4 ||
           layout == Layout::mxfp4 || layout == Layout::mixed;
}

void check_spec(const TinySpec& spec, const std::string& label, int count) {
    const TemporaryDirectory dir;
    write_tiny_model(dir.path(), spec);
    const auto ids = some_ids(count);
    const double bound = four_bit(spec.layout) ? 5e-2 : 1e-3;
    Program program(dir.path(), count);
    const auto got = program.logits(ids, {ids.size()});
    const auto c = compare(got, PlainReference(dir.path()).logits(ids), bound);
    BOOST_TEST_MESSAGE(label << ": logits within " << c.worst << ", " << c.same_first << " of " << count
                             << " winners equal");
    BOOST_TEST(c.worst < bound, label << ": " << c.worst);
    BOOST_TEST(c.sure_and_same == c.sure, label << ": a clear winner differs");
    BOOST_TEST(c.sure > count / 2, label << ": too few clear winners to compare");

    // The same bits however the ids are fed: odd pieces, then one by one.
    const auto pieces = program.logits(ids, {5, 1, 17, 1});
    for (std::size_t i = 0; i < got.size(); ++i)
        BOOST_REQUIRE_MESSAGE(
            std::memcmp(got[i].data(), pieces[i].data(), got[i].size() * sizeof(float)) == 0,
            label << ": row " << i << " differs between prefill and decode");
}

void check_stored(const std::string& variant, double bound, const std::vector<std::string>& prompts) {
    const auto dir = std::filesystem::path(FTMPI_DATA) / ("tiny-" + variant);
    const ReferenceFiles files(std::filesystem::path(FTMPI_DATA) / "references", variant);
    const PlainReference reference(dir);
    Program program(dir, 256);
    for (const std::string& name : prompts) {
        const auto& prompt = files.prompt(name);
        auto ids = prompt.prompt_ids;
        ids.insert(ids.end(), prompt.greedy_ids.begin(), prompt.greedy_ids.end() - 1);
        const auto got = program.logits(ids, {prompt.prompt_ids.size(), 1});
        const auto c = compare(got, reference.logits(ids), bound);
        BOOST_TEST_MESSAGE("tiny-" << variant << " " << name << ": logits within " << c.worst << ", "
                                   << c.same_first << " of " << ids.size() << " winners equal");
        BOOST_TEST(c.worst < bound, name << ": " << c.worst);
        BOOST_TEST(c.sure_and_same == c.sure);
        for (std::size_t i = 0; i < prompt.greedy_ids.size(); ++i) {
            const auto& row = got[prompt.prompt_ids.size() - 1 + i];
            if (prompt.margin[i] > 2 * bound)
                BOOST_TEST(argmax(row) == prompt.greedy_ids[i], name << " step " << i);
        }
    }

    // Where a difference first appears: every intermediate the model shows, relative to the largest value.
    const auto ids = files.ids("trace.prompt_ids");
    const auto trace = reference.trace(ids);
    std::map<std::string, double> worst;
    program.model().observe(
        [&](std::string_view name, int layer, const float* values, std::int64_t rows, std::int64_t width) {
            const PlainMatrix* expected = nullptr;
            if (name == "embed") expected = &trace.embedding;
            if (name == "final_norm") expected = &trace.final_norm;
            if (layer >= 0) {
                const auto& l = trace.layers[static_cast<std::size_t>(layer)];
                if (name == "mixer") expected = &l.mixer;
                if (name == "router") expected = &l.router_logits;
                if (name == "moe") expected = &l.moe;
                if (name == "hidden") expected = &l.hidden;
            }
            BOOST_REQUIRE_MESSAGE(expected, "unknown intermediate " << name);
            BOOST_REQUIRE_EQUAL(static_cast<std::int64_t>(expected->v.size()), rows * width);
            double d = 0, size = 0;
            for (std::size_t i = 0; i < expected->v.size(); ++i) {
                d = std::max(d, std::fabs(double{values[i]} - expected->v[i]));
                size = std::max(size, std::fabs(expected->v[i]));
            }
            auto& w = worst[std::string(name)];
            w = std::max(w, d / size);
        });
    program.logits(ids, {ids.size()});
    program.model().observe({});
    BOOST_TEST(worst.size() == 6u);
    for (const auto& [name, d] : worst) {
        BOOST_TEST_MESSAGE("tiny-" << variant << " " << name << ": within " << d << " of the largest value");
        BOOST_TEST(d < bound, name << ": " << d);
    }
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_layout_of_the_small_model) {
    for (const Layout layout : kAllLayouts) {
        TinySpec spec;
        spec.layout = layout;
        check_spec(spec, name_of(layout), 64);
    }
}

BOOST_AUTO_TEST_CASE(every_layout_of_the_wide_model) {
    for (const Layout layout : kAllLayouts) {
        TinySpec spec = TinySpec::wide();
        spec.layout = layout;
        check_spec(spec, std::string("wide ") + name_of(layout), 32);
    }
}

BOOST_AUTO_TEST_CASE(every_layout_of_qwen3_moe) {
    for (const Layout layout : kAllLayouts)
        check_spec(TinySpec::qwen3(layout), std::string("Qwen3 MoE ") + name_of(layout), 64);
    TinySpec spec =
        TinySpec::qwen3(Layout::fp8_block);  // several blocks, heads of 128 channels in groups of 8
    spec.hidden = 320;
    spec.heads = 8;
    spec.kv_heads = 1;
    spec.head_dim = 128;
    spec.expert_width = 192;
    check_spec(spec, "Qwen3 MoE, groups of 8 heads of 128", 32);
    spec = TinySpec::qwen3(Layout::compressed_nvfp4);
    spec.projection_storage = Storage::nvfp4_compressed;
    spec.tied_embeddings = true;
    check_spec(spec, "Qwen3 MoE, all linear layers NVFP4, tied embeddings", 32);
}

BOOST_AUTO_TEST_CASE(variants_that_exporters_write) {
    TinySpec spec;
    spec.layout = Layout::modelopt_nvfp4;
    spec.gate_up_share_scale = false;
    spec.shards = 3;
    spec.vision = true;
    spec.mtp = Mtp::fused;
    check_spec(spec, "NVFP4, gate and up scaled apart, 3 shards, vision, MTP", 32);

    spec = TinySpec{};
    spec.layout = Layout::compressed_nvfp4;
    spec.prefix = "model.";
    spec.projection_storage = Storage::nvfp4_compressed;
    spec.head_storage = Storage::nvfp4_compressed;
    check_spec(spec, "all linear layers NVFP4, prefix model.", 32);

    spec = TinySpec{};
    spec.layout = Layout::mxfp4;
    spec.expert_storage = Storage::mxfp4_packed;
    spec.form.e8m0_dtype = "F8_E8M0";
    spec.tied_embeddings = true;
    check_spec(spec, "MXFP4 packed, tied embeddings", 32);

    spec = TinySpec::wide();
    spec.form.dtype = "F32";
    spec.form.block_suffix = "weight_scale";
    spec.form.block_rank4 = true;
    spec.mtp = Mtp::per_expert;
    check_spec(spec, "FP8 blocks, fp32 scales of rank 4, MTP", 16);

    spec = TinySpec{};
    spec.layout = Layout::fp8_row;
    spec.form.dtype = "F32";
    spec.vector_dtype = "F32";
    check_spec(spec, "FP8 rows, fp32 scales and vectors", 32);

    // Fused FP8 experts: gate's last block of rows is also up's first (width 64 in blocks of 128).
    for (const Layout layout : {Layout::fp8_tensor, Layout::fp8_row, Layout::fp8_block}) {
        spec = TinySpec{};
        spec.layout = layout;
        spec.fp8_fused_experts = true;
        check_spec(spec, std::string("fused ") + name_of(layout), 32);
    }
}

BOOST_AUTO_TEST_CASE(stored_models) {
    // model_test has all prompts, and a tie between experts in "code"
    check_stored("nvfp4", 5e-2, {"capital", "times", "chat"});
    check_stored("fp8", 1e-3, {"capital", "times", "chat"});
    const std::vector<std::string> all{"capital", "count", "code", "pangram", "chat", "long"};
    check_stored("qwen3-moe-nvfp4", 5e-2, all);
    check_stored("qwen3-moe-fp8", 1e-3, all);
    check_stored("qwen3-moe-bf16", 1e-3, all);
}
