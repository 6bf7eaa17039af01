// The plain reference against the stored outputs of an independent implementation, and the generated
// checkpoints against each other.
#define BOOST_TEST_MODULE plain_forward
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include "plain_forward.hpp"
#include "reference_files.hpp"
#include "tiny_model.hpp"

using namespace ftmpi::testing;

namespace {

const std::filesystem::path kData = FTMPI_DATA;

/// Ids that visit much of the vocabulary of the generated models in no simple order.
std::vector<int> some_ids(int count, int vocab = 260) {
    std::vector<int> ids;
    for (int i = 0; i < count; ++i) ids.push_back((i * i * 7 + i * 31 + 5) % vocab);
    return ids;
}

std::vector<std::vector<double>> logits_of(const TinySpec& spec, int count = 24) {
    const TemporaryDirectory dir;
    write_tiny_model(dir.path(), spec);
    return PlainReference(dir.path()).logits(some_ids(count));
}

double largest_difference(const std::vector<std::vector<double>>& a,
                          const std::vector<std::vector<double>>& b) {
    BOOST_REQUIRE_EQUAL(a.size(), b.size());
    double d = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        BOOST_REQUIRE_EQUAL(a[i].size(), b[i].size());
        for (std::size_t j = 0; j < a[i].size(); ++j) d = std::max(d, std::fabs(a[i][j] - b[i][j]));
    }
    return d;
}

/// Largest difference over the largest magnitude: the residual stream reaches 635, where one fp32 rounding is
/// 6e-5.
double relative_difference(const PlainMatrix& a, const std::vector<float>& b) {
    BOOST_REQUIRE_EQUAL(a.v.size(), b.size());
    double d = 0, size = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
        d = std::max(d, std::fabs(a.v[i] - double{b[i]}));
        size = std::max(size, std::fabs(double{b[i]}));
    }
    BOOST_REQUIRE(size > 0);
    return d / size;
}

int argmax(const std::vector<double>& v) {
    return static_cast<int>(std::max_element(v.begin(), v.end()) - v.begin());
}

/// Largest logit difference over the stored top 64 of every greedy step, the model fed the stored tokens.
double compare_prompt(const PlainReference& model, const ReferenceFiles& files,
                      const ReferencePrompt& prompt) {
    auto ids = prompt.prompt_ids;
    ids.insert(ids.end(), prompt.greedy_ids.begin(), prompt.greedy_ids.end() - 1);
    const auto logits = model.logits(ids, prompt.greedy_ids.size());
    const auto top_ids = files.ids(prompt.name + ".top_ids");
    const auto top_logits = files.floats(prompt.name + ".top_logits");
    const auto kept = static_cast<std::size_t>(files.shape(prompt.name + ".top_ids").at(1));
    BOOST_REQUIRE_EQUAL(top_ids.size(), kept * logits.size());
    double worst = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        for (std::size_t j = 0; j < kept; ++j)
            worst = std::max(worst, std::fabs(logits[i][static_cast<std::size_t>(top_ids[i * kept + j])] -
                                              double{top_logits[i * kept + j]}));
        if (prompt.margin[i] > 1e-3)
            BOOST_TEST(argmax(logits[i]) == prompt.greedy_ids[i], prompt.name << " step " << i);
    }
    BOOST_TEST(worst < 2e-4, prompt.name << ": " << worst);
    return worst;
}

double compare_hidden(const PlainTrace& trace, const ReferenceFiles& files) {
    double worst = std::max(relative_difference(trace.embedding, files.floats("trace.hidden.embed")),
                            relative_difference(trace.final_norm, files.floats("trace.hidden.final_norm")));
    for (std::size_t i = 0; i < trace.layers.size(); ++i)
        worst = std::max(worst, relative_difference(trace.layers[i].hidden,
                                                    files.floats("trace.hidden.layer" + std::to_string(i))));
    return worst;
}

}  // namespace

BOOST_AUTO_TEST_CASE(stored_outputs_of_the_nvfp4_model) {
    const PlainReference model(kData / "tiny-nvfp4");
    const ReferenceFiles files(kData / "references", "nvfp4");
    double worst = 0;
    for (const auto& prompt : files.prompts()) worst = std::max(worst, compare_prompt(model, files, prompt));

    const auto& capital = files.prompt("capital");
    auto ids = capital.prompt_ids;
    ids.insert(ids.end(), capital.greedy_ids.begin(), capital.greedy_ids.end() - 1);
    const auto logits = model.logits(ids, capital.greedy_ids.size());
    const auto stored = files.floats("capital.logits");
    double full = 0;
    for (std::size_t i = 0; i < stored.size(); ++i)
        full =
            std::max(full, std::fabs(logits[i / logits[0].size()][i % logits[0].size()] - double{stored[i]}));
    BOOST_TEST(full < 2e-4);
    BOOST_TEST_MESSAGE("tiny-nvfp4: top logits within " << worst << ", whole rows within " << full);
}

BOOST_AUTO_TEST_CASE(stored_trace_of_the_nvfp4_model) {
    const PlainReference model(kData / "tiny-nvfp4");
    const ReferenceFiles files(kData / "references", "nvfp4");
    const auto trace = model.trace(files.ids("trace.prompt_ids"));
    const double hidden = compare_hidden(trace, files);
    BOOST_TEST(hidden < 1e-5);

    double blocks = 0, router = 0, weights = 0, state = 0;
    for (std::size_t i = 0; i < trace.layers.size(); ++i) {
        const auto& layer = trace.layers[i];
        const auto stored = [&](const std::string& name) {
            return files.floats("trace." + name + ".layer" + std::to_string(i));
        };
        blocks = std::max({blocks, relative_difference(layer.mixer, stored("mixer")),
                           relative_difference(layer.moe, stored("moe"))});
        router = std::max(router, relative_difference(layer.router_logits, stored("router_logits")));
        weights = std::max(weights, relative_difference(layer.router_weights, stored("router_weights")));
        const auto experts = files.ids("trace.router_experts.layer" + std::to_string(i));
        std::vector<int> chosen;
        for (const auto& row : layer.router_experts) chosen.insert(chosen.end(), row.begin(), row.end());
        BOOST_TEST(chosen == experts, boost::test_tools::per_element());

        if (layer.recurrent.v.empty()) {
            const auto keys = stored("state.keys"),
                       values = stored("state.values");  // [kv head, position, channel]
            const auto n = static_cast<std::size_t>(layer.keys.rows),
                       d = static_cast<std::size_t>(
                           files.shape("trace.state.keys.layer" + std::to_string(i)).at(2));
            for (std::size_t j = 0; j < keys.size(); ++j) {
                const auto at = static_cast<std::int64_t>(j / d % n);
                const auto column = j / d / n * d + j % d;
                state = std::max({state, std::fabs(layer.keys[at][column] - double{keys[j]}),
                                  std::fabs(layer.values[at][column] - double{values[j]})});
            }
        } else {
            state = std::max(state, relative_difference(layer.recurrent, stored("state.recurrent")));
            const auto conv = stored("state.conv");  // [channel, last 4 inputs]
            for (std::size_t j = 0; j < conv.size(); ++j)
                state = std::max(state, std::fabs(layer.conv_inputs[layer.conv_inputs.rows - 4 +
                                                                    static_cast<std::int64_t>(j % 4)][j / 4] -
                                                  double{conv[j]}));
        }
    }
    BOOST_TEST(blocks < 1e-5);
    BOOST_TEST(router < 1e-5);
    BOOST_TEST(weights < 1e-5);
    BOOST_TEST(state < 5e-5);
    BOOST_TEST_MESSAGE("tiny-nvfp4 trace, relative: hidden "
                       << hidden << ", mixer and moe " << blocks << ", router logits " << router
                       << ", router weights " << weights << ", states " << state);
}

BOOST_AUTO_TEST_CASE(stored_outputs_of_the_fp8_model) {
    const PlainReference model(kData / "tiny-fp8");
    const ReferenceFiles files(kData / "references", "fp8");
    double worst = 0;
    for (const char* name : {"capital", "code", "times", "one-token", "len65", "chat"})
        worst = std::max(worst, compare_prompt(model, files, files.prompt(name)));
    const double hidden = compare_hidden(model.trace(files.ids("trace.prompt_ids")), files);
    BOOST_TEST(hidden < 1e-5);
    BOOST_TEST_MESSAGE("tiny-fp8: top logits within " << worst << ", hidden states within " << hidden
                                                      << " (relative)");
}

BOOST_AUTO_TEST_CASE(stored_outputs_of_the_qwen3_moe_models) {
    for (const std::string variant : {"qwen3-moe-bf16", "qwen3-moe-fp8", "qwen3-moe-nvfp4"}) {
        const PlainReference model(kData / ("tiny-" + variant));
        const ReferenceFiles files(kData / "references", variant);
        double worst = 0, full = 0, blocks = 0;
        for (const auto& prompt : files.prompts())
            worst = std::max(worst, compare_prompt(model, files, prompt));
        const auto& capital = files.prompt("capital");
        auto ids = capital.prompt_ids;
        ids.insert(ids.end(), capital.greedy_ids.begin(), capital.greedy_ids.end() - 1);
        const auto logits = model.logits(ids, capital.greedy_ids.size());
        const auto stored = files.floats("capital.logits");
        BOOST_REQUIRE_EQUAL(stored.size(), logits.size() * logits[0].size());
        for (std::size_t i = 0; i < stored.size(); ++i)
            full = std::max(
                full, std::fabs(logits[i / logits[0].size()][i % logits[0].size()] - double{stored[i]}));
        BOOST_TEST(full < 2e-4);
        const auto trace = model.trace(files.ids("trace.prompt_ids"));
        BOOST_TEST(compare_hidden(trace, files) < 1e-5);
        for (std::size_t i = 0; i < trace.layers.size(); ++i) {
            const auto at = ".layer" + std::to_string(i);
            const auto& layer = trace.layers[i];
            blocks = std::max(
                {blocks, relative_difference(layer.mixer, files.floats("trace.mixer" + at)),
                 relative_difference(layer.moe, files.floats("trace.moe" + at)),
                 relative_difference(layer.router_logits, files.floats("trace.router_logits" + at))});
        }
        BOOST_TEST(blocks < 1e-5);
        BOOST_TEST_MESSAGE("tiny-" << variant << ": top logits within " << worst << ", whole rows within "
                                   << full << ", blocks within " << blocks << " (relative)");
    }
}

BOOST_AUTO_TEST_CASE(codes_have_their_published_values) {
    const std::pair<unsigned, double> known[] = {{0x00, 0},   {0x01, 0x1p-9}, {0x08, 0x1p-6},
                                                 {0x38, 1},   {0x3c, 1.5},    {0x77, 240},
                                                 {0x78, 256}, {0x7e, 448},    {0xb8, -1}};
    for (const auto& [code, value] : known) BOOST_TEST(plain_e4m3(code) == value);
    BOOST_TEST(std::isnan(plain_e4m3(0x7f)));
    BOOST_TEST(std::isnan(plain_e4m3(0xff)));
    BOOST_TEST(std::signbit(plain_e4m3(0x80)));
    BOOST_TEST(plain_e8m0(0) == 0x1p-127);
    BOOST_TEST(plain_e8m0(127) == 1.0);
    for (unsigned code = 0; code < 256; ++code)
        if ((code & 127) != 127) BOOST_TEST(unsigned{encode_e4m3(plain_e4m3(code))} == code);
    for (unsigned code = 0; code < 16; ++code) BOOST_TEST(unsigned{encode_e2m1(plain_e2m1(code))} == code);
    // Between two neighbours the encoders take the nearer one, at the midpoint the even code.
    for (unsigned code = 0; code + 1 < 0x7f; ++code) {
        const double low = plain_e4m3(code), high = plain_e4m3(code + 1), middle = (low + high) / 2;
        BOOST_TEST(unsigned{encode_e4m3(middle)} == code + code % 2);
        BOOST_TEST(unsigned{encode_e4m3(std::nextafter(middle, low))} == code);
        BOOST_TEST(unsigned{encode_e4m3(std::nextafter(middle, high))} == code + 1);
    }
    for (unsigned code = 0; code < 7; ++code)
        BOOST_TEST(unsigned{encode_e2m1((plain_e2m1(code) + plain_e2m1(code + 1)) / 2)} == code + code % 2);
    BOOST_TEST(unsigned{encode_e4m3(1e9)} == 0x7eu);
    BOOST_TEST(unsigned{encode_e2m1(-9)} == 15u);
    BOOST_TEST(encode_bf16(1.0 + 0x1p-8) == 0x3f80);
    BOOST_TEST(encode_bf16(1.0 + 0x3p-8) == 0x3f82);
}

BOOST_AUTO_TEST_CASE(a_row_of_all_codes_reads_the_same_from_both_nvfp4_exporters) {
    const TemporaryDirectory dir;
    const std::vector<std::uint8_t> codes{0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
    write_safetensors(dir / "row.safetensors",
                      {{"a.weight", "U8", {1, 8}, codes},
                       {"a.weight_scale", "F8_E4M3", {1, 1}, {0x38}},
                       {"a.weight_scale_2", "F32", {}, bytes_of<float>({0.5f})},
                       {"b.weight_packed", "U8", {1, 8}, codes},
                       {"b.weight_scale", "F8_E4M3", {1, 1}, {0x38}},
                       {"b.weight_global_scale", "F32", {1}, bytes_of<float>({2.0f})}});
    const PlainSafetensors files(dir / "row.safetensors");
    const std::vector<double> expected{0, .25, .5, .75, 1, 1.5, 2, 3, -0., -.25, -.5, -.75, -1, -1.5, -2, -3};
    BOOST_TEST(plain_matrix(files, "a").v == expected, boost::test_tools::per_element());
    BOOST_TEST(plain_matrix(files, "b").v == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(layouts_that_store_the_same_numbers_give_the_same_logits) {
    TinySpec bf16, other;
    const auto fused = logits_of(bf16);
    other.layout = Layout::bf16_per_expert;
    other.shards = 3;
    BOOST_TEST(largest_difference(fused, logits_of(other)) == 0);
    other.prefix = "model.";
    other.flat_config = true;
    BOOST_TEST(largest_difference(fused, logits_of(other)) == 0);
    other = bf16;
    other.mtp = Mtp::per_expert;
    other.vision = true;
    BOOST_TEST(largest_difference(fused, logits_of(other)) == 0);

    TinySpec modelopt;
    modelopt.layout = Layout::modelopt_nvfp4;
    modelopt.form.power_of_two_global = true;
    other = modelopt;
    other.layout = Layout::compressed_nvfp4;
    other.projection_storage = Storage::fp8_tensor;
    other.head_storage = Storage::nvfp4_compressed;
    BOOST_TEST(largest_difference(logits_of(modelopt), logits_of(other)) == 0);

    TinySpec mx;
    mx.layout = Layout::mxfp4;
    other = mx;
    other.form.e8m0_dtype = "F8_E8M0";
    other.expert_storage = Storage::mxfp4_packed;
    BOOST_TEST(largest_difference(logits_of(mx), logits_of(other)) == 0);

    TinySpec block = TinySpec::wide();
    other = block;
    other.form.block_suffix = "weight_scale";
    other.form.block_rank4 = true;
    const auto block_logits = logits_of(block, 8);
    BOOST_TEST(largest_difference(block_logits, logits_of(other, 8)) == 0);
    other.fp8_fused_experts = true;  // gate ends on a block edge
    BOOST_TEST(largest_difference(block_logits, logits_of(other, 8)) == 0);

    TinySpec row;
    row.layout = Layout::fp8_row;
    other = row;
    other.fp8_fused_experts = true;
    BOOST_TEST(largest_difference(logits_of(row), logits_of(other)) == 0);
}

BOOST_AUTO_TEST_CASE(every_format_stays_near_the_weights_it_stores) {
    const TemporaryDirectory dir;
    TinySpec spec = TinySpec::wide();
    spec.layers = 1;
    spec.experts = 2;
    spec.layout = Layout::bf16_per_expert;
    write_tiny_model(dir / "bf16", spec);
    const std::string module = "model.language_model.layers.0.mlp.experts.1.down_proj";
    const PlainMatrix exact = plain_matrix(PlainSafetensors(dir / "bf16"), module);
    // Root mean square error over root mean square weight: half a step of 3, 1 fraction bits, spread evenly,
    // and the scales' own.
    const std::pair<Storage, std::pair<double, double>> bounds[] = {
        {Storage::fp8_tensor, {0.01, 0.04}},       {Storage::fp8_row, {0.01, 0.04}},
        {Storage::fp8_block, {0.01, 0.04}},        {Storage::nvfp4_modelopt, {0.05, 0.13}},
        {Storage::nvfp4_compressed, {0.05, 0.13}}, {Storage::mxfp4, {0.05, 0.16}}};
    for (const auto& [storage, range] : bounds) {
        spec.expert_storage = storage;
        const auto at = dir / std::to_string(static_cast<int>(storage));
        write_tiny_model(at, spec);
        const PlainMatrix q = plain_matrix(PlainSafetensors(at), module);
        double error = 0, size = 0;
        for (std::size_t i = 0; i < q.v.size(); ++i) {
            error += (q.v[i] - exact.v[i]) * (q.v[i] - exact.v[i]);
            size += exact.v[i] * exact.v[i];
        }
        error = std::sqrt(error / size);
        BOOST_TEST_MESSAGE("storage " << static_cast<int>(storage) << ": relative error " << error);
        BOOST_TEST(error > range.first);
        BOOST_TEST(error < range.second);
    }
}

BOOST_AUTO_TEST_CASE(generated_models_have_lively_logits) {
    std::vector<TinySpec> specs{TinySpec::qwen3(), TinySpec::qwen3(Layout::fp8_block),
                                TinySpec::qwen3(Layout::modelopt_nvfp4)};
    for (const Layout layout : kAllLayouts) specs.emplace_back().layout = layout;
    for (const TinySpec& spec : specs) {
        const TemporaryDirectory dir;
        write_tiny_model(dir.path(), spec);
        const PlainReference model(dir.path());
        const auto ids = some_ids(64);
        const auto trace = model.trace(ids);
        const auto logits = model.logits(ids);
        std::vector<double> margins;
        std::set<int> winners;
        for (auto row : logits) {
            for (const double x : row) BOOST_REQUIRE(std::isfinite(x));
            winners.insert(argmax(row));
            std::partial_sort(row.begin(), row.begin() + 2, row.end(), std::greater<>());
            margins.push_back(row[0] - row[1]);
        }
        std::sort(margins.begin(), margins.end());
        BOOST_TEST(winners.size() > 20u);
        BOOST_TEST(margins[32] > 0.3);
        // Every expert is used somewhere, and both blocks of every layer matter.
        for (const auto& layer : trace.layers) {
            std::set<int> used;
            for (const auto& row : layer.router_experts) used.insert(row.begin(), row.end());
            BOOST_TEST(used.size() == static_cast<std::size_t>(spec.experts));
            double mixer = 0, moe = 0, hidden = 0;
            for (std::size_t i = 0; i < layer.hidden.v.size(); ++i) {
                mixer += layer.mixer.v[i] * layer.mixer.v[i];
                moe += layer.moe.v[i] * layer.moe.v[i];
                hidden += layer.hidden.v[i] * layer.hidden.v[i];
            }
            BOOST_TEST(std::sqrt(mixer / hidden) > 0.1);
            BOOST_TEST(std::sqrt(moe / hidden) > 0.1);
        }
        BOOST_TEST_MESSAGE((spec.qwen3_moe ? "Qwen3 MoE " : "")
                           << name_of(spec.layout) << ": median margin " << margins[32] << ", smallest "
                           << margins[0] << ", " << winners.size() << " different winners of 64");
    }
}

BOOST_AUTO_TEST_CASE(what_is_said_later_does_not_change_what_was_said) {
    const TemporaryDirectory dir;
    write_tiny_model(dir.path(), TinySpec{});
    const PlainReference model(dir.path());
    const auto ids = some_ids(40);
    auto whole = model.logits(ids);
    whole.resize(17);
    BOOST_TEST(largest_difference(whole, model.logits({ids.begin(), ids.begin() + 17})) == 0);
}

BOOST_AUTO_TEST_CASE(variants_that_change_the_model_change_the_logits) {
    const auto plain = logits_of(TinySpec{});
    TinySpec spec;
    spec.vector_dtype = "F32";
    const double vectors = largest_difference(plain, logits_of(spec));
    BOOST_TEST(vectors > 1e-4);  // the F32 values are not BF16 values
    BOOST_TEST(vectors < 1.0);
    spec = TinySpec{};
    spec.seed = 2;
    BOOST_TEST(largest_difference(plain, logits_of(spec)) > 1.0);

    spec = TinySpec{};
    spec.tied_embeddings = true;
    const TemporaryDirectory dir;
    write_tiny_model(dir.path(), spec);
    const PlainReference model(dir.path());
    const auto ids = some_ids(3);
    const auto trace = model.trace(ids);
    double expected = 0;
    const auto table = plain_matrix(PlainSafetensors(dir.path()), "model.language_model.embed_tokens");
    for (std::int64_t i = 0; i < table.cols; ++i) expected += table[77][i] * trace.final_norm[2][i];
    BOOST_TEST(model.logits(ids, 1)[0][77] == expected, boost::test_tools::tolerance(1e-12));
    BOOST_CHECK(!PlainSafetensors(dir.path()).find("lm_head.weight"));
}

BOOST_AUTO_TEST_CASE(edits_that_miss_are_errors) {
    TinySpec spec;
    spec.layout = Layout::modelopt_nvfp4;
    auto tensors = make_tiny_tensors(spec);
    const auto count = tensors.size();
    const std::string name = "model.language_model.layers.2.linear_attn.dt_bias";
    remove_tensor(tensors, name);
    BOOST_TEST(tensors.size() == count - 1);
    BOOST_CHECK_THROW(remove_tensor(tensors, name), std::invalid_argument);
    tensor_named(tensors, "lm_head.weight_scale_2").bytes = bytes_of<float>({0.25f});
    const TemporaryDirectory dir;
    write_tiny_model(dir.path(), spec, tensors);
    BOOST_TEST(plain_values(PlainSafetensors(dir.path()).at("lm_head.weight_scale_2")).at(0) == 0.25);
    replace_in_file(dir / "config.json", "\"num_experts\": 4", "\"num_experts\": 5");
    BOOST_CHECK_THROW(replace_in_file(dir / "config.json", "\"num_experts\": 4", ""), std::invalid_argument);
    BOOST_CHECK_THROW(replace_in_file(dir / "config.json", "\"", "'"), std::invalid_argument);
}
