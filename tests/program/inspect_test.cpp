// `ftmpi inspect`: a damaged checkpoint must be recognisable before anyone blames the program for its text.
#define BOOST_TEST_MODULE inspect
#include "inspect.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "error.hpp"
#include "real_inventory.hpp"
#include "safetensors_writer.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

struct Output {
    int code = 0;
    std::string text;
};

/// Runs the command with its standard output going to a file.
Output inspect(const std::filesystem::path& directory, bool json = false) {
    TemporaryDirectory scratch;
    const auto file = scratch / "out";
    Options options;
    options.command = Command::inspect;
    options.model = directory;
    options.json = json;
    std::fflush(stdout);
    const int kept = ::dup(STDOUT_FILENO);
    BOOST_REQUIRE(std::freopen(file.c_str(), "w", stdout) != nullptr);
    Output out;
    std::string thrown;
    try {
        out.code = inspect_command(options);
    } catch (const Error& e) { thrown = e.what(); }
    std::fflush(stdout);
    ::dup2(kept, STDOUT_FILENO);
    ::close(kept);
    BOOST_TEST(thrown == "");
    std::ifstream in(file);
    out.text.assign(std::istreambuf_iterator<char>(in), {});
    return out;
}

void expect(const Output& out, const std::string& words) {
    BOOST_TEST(out.text.find(words) != std::string::npos, "no \"" << words << "\" in\n" << out.text);
}

}  // namespace

BOOST_AUTO_TEST_CASE(damage_and_formats_are_listed) {
    TemporaryDirectory directory;
    const std::string p = "model.language_model.layers.0.";
    std::vector<std::uint16_t> qkv(8 * 4, 0x3f80);
    for (const std::size_t row : {2, 3, 5})
        for (std::size_t c = 0; c < 4; ++c) qkv[row * 4 + c] = c % 2 ? 0x8000 : 0;  // zeros of both signs
    qkv[6 * 4 + 3] = 0;  // one zero does not make a zero row
    write_sharded(
        directory.path(),
        {{{p + "linear_attn.in_proj_qkv.weight", "BF16", {8, 4}, bytes_of(qkv)},
          {p + "input_layernorm.weight", "BF16", {4}, std::vector<std::uint8_t>(8)},  // zero-centred: all
                                                                                      // zero is fine
          {p + "mlp.experts.0.up_proj.weight",
           "U8",
           {2, 8},
           {0x08, 0x80, 0, 0, 0, 0, 0x88, 0, 0x10, 0, 0, 0, 0, 0, 0, 0}},
          {p + "mlp.experts.0.up_proj.weight_scale", "F8_E4M3", {2, 1}, {0x38, 0xff}},
          {p + "mlp.experts.0.up_proj.weight_scale_2", "F32", {}, bytes_of<std::uint32_t>({0x7f800000})},
          {p + "self_attn.q_proj.weight", "F8_E4M3", {2, 2}, {0x38, 0, 0, 1}},
          {p + "self_attn.q_proj.weight_scale", "BF16", {2, 1}, bytes_of<std::uint16_t>({0x3f80, 0x3f80})}},
         {{"model.visual.x.weight", "BF16", {2, 2}, std::vector<std::uint8_t>(8)},
          {"mtp.fc.weight", "BF16", {1, 2}, std::vector<std::uint8_t>(4)}}});
    write_file(directory / "config.json", real_config_json(RealCheckpoint::nvfp4));

    const auto out = inspect(directory.path());
    BOOST_TEST(out.code == 0);
    expect(out, "quantization  modelopt MIXED_PRECISION (modelopt 0.37.0)");
    expect(out, "layers.0.linear_attn.in_proj_qkv.weight: 3 of 8 rows all zero");
    expect(out, "mlp.experts.0.up_proj.weight: 1 of 2 rows all zero");
    expect(out, "up_proj.weight_scale: 1 scale not finite");
    expect(out, "up_proj.weight_scale_2: 1 scale not finite");
    expect(out, "NVFP4 x1");
    expect(out, "FP8 per row x1");
    for (const std::string fine : {"q_proj.weight:", "q_proj.weight_scale:", "layernorm.weight:",
                                   "visual.x.weight:", "mtp.fc.weight:"})
        BOOST_TEST(out.text.find(fine) == std::string::npos, fine);

    const auto json = inspect(directory.path(), true);
    BOOST_TEST(json.code == 0);
    expect(json, "\"parts\":{\"text\":{\"tensors\":7,\"bytes\":");
    expect(json, "\"vision\":{\"tensors\":1,\"bytes\":8},\"mtp\":{\"tensors\":1,\"bytes\":4}}");
    expect(json, "in_proj_qkv.weight\",\"zero_rows\":3,\"rows\":8,\"bad_scales\":0}");
    expect(json, "\"layers.*.mlp.experts.*.up_proj\":{\"NVFP4\":1}");

    // A name that is no UTF-8 is still a JSON string, and does not move the cursor.
    const std::filesystem::path strange = directory / "a\xff\x1b[2J.safetensors";
    for (const auto& file : std::filesystem::directory_iterator(directory.path()))
        if (file.path().extension() == ".safetensors") {
            std::filesystem::copy_file(file.path(), strange);
            break;
        }
    expect(inspect(directory.path(), true), "json: a\xEF\xBF\xBD\\\\x1b[2J.safetensors\"");
    BOOST_TEST(inspect(directory.path()).text.find('\x1b') == std::string::npos);
}

BOOST_AUTO_TEST_CASE(tensors_are_listed_although_the_configuration_is_refused) {
    TemporaryDirectory directory;
    write_safetensors(directory / "model.safetensors",
                      {{"lm_head.weight", "F32", {1, 2}, bytes_of<float>({1, 2})}});
    write_file(directory / "config.json", "{\"model_type\":\"gpt2\"}");
    const auto out = inspect(directory.path());
    BOOST_TEST(out.code == static_cast<int>(Exit::bad_input));
    expect(out, "not usable");
    expect(out, "gpt2");
    expect(out, "no all-zero rows, every scale finite");
}

BOOST_AUTO_TEST_CASE(experts_in_one_tensor_are_named_by_their_format) {
    using Bytes = std::vector<std::uint8_t>;
    const auto formats = [](const std::string& codes, const std::string& type,
                            std::vector<std::int64_t> shape, std::size_t bytes,
                            std::vector<StoredTensor> beside) {
        TemporaryDirectory directory;
        beside.push_back({codes, type, std::move(shape), Bytes(bytes, 0x11)});
        write_safetensors(directory / "model.safetensors", beside);
        write_file(directory / "config.json", "{\"model_type\":\"gpt2\"}");
        const auto json = inspect(directory.path(), true).text;
        const auto begin = json.find("\"formats\":") + 10, end = json.find("},\"scanned\"");
        return json.substr(begin, end - begin);
    };
    const std::string base = "model.language_model.layers.0.mlp.experts.down_proj";
    const auto named = [](const std::string& format) {
        return "{\"layers.*.mlp.experts.down_proj\":{\"" + format + "\":1}";
    };
    const StoredTensor e4m3{base + "_scale", "F8_E4M3", {2, 4, 1}, Bytes(8, 0x38)};
    const StoredTensor factor{base + "_scale_2", "F32", {2}, Bytes(8, 0x3f)};
    BOOST_TEST(formats(base, "U8", {2, 4, 8}, 64, {e4m3, factor}) == named("fused NVFP4"));
    BOOST_TEST(formats(base + "_packed", "U8", {2, 4, 8}, 64,
                       {e4m3, {base + "_global_scale", "F32", {2}, Bytes(8, 0x3f)}}) ==
               named("fused NVFP4 (divisor)"));
    BOOST_TEST(formats(base + ".weight", "U8", {2, 4, 16}, 128,
                       {{base + ".weight_scale", "U8", {2, 4, 1}, Bytes(8, 0x7f)}}) == named("fused MXFP4"));
    BOOST_TEST(formats(base + "_weight", "F8_E4M3", {2, 4, 8}, 64,
                       {{base + "_weight_scale", "F32", {2}, Bytes(8, 0x3f)}}) ==
               named("fused FP8 per tensor"));
    BOOST_TEST(formats(base, "F8_E4M3", {2, 4, 8}, 64,
                       {{base + "_scale", "F32", {2, 4, 1}, Bytes(32, 0x3f)}}) == named("fused FP8 per row"));
    BOOST_TEST(
        formats(base, "F8_E4M3", {2, 4, 8}, 64, {{base + "_scale_inv", "F32", {2, 1, 1}, Bytes(8, 0x3f)}}) ==
        named("fused FP8 128x128"));
    BOOST_TEST(formats(base, "BF16", {2, 4, 8}, 128, {}) == named("fused BF16"));
    // A packing that no loader here knows, and a convolution, which has three dimensions as well.
    BOOST_TEST(formats(base + "_packed", "I32", {2, 4, 2}, 64, {}) == named("fused packed I32"));
    BOOST_TEST(formats("model.language_model.layers.0.linear_attn.conv1d.weight", "BF16", {8, 1, 4}, 64,
                       {}) == "{\"layers.*.linear_attn.conv1d\":{\"BF16\":1}");
}

BOOST_AUTO_TEST_CASE(a_model_is_described_by_the_parts_it_has) {
    const std::filesystem::path data = FTMPI_DATA;
    expect(inspect(data / "tiny-fp8"), "4/2 heads of 256, delta net 4/8 heads, 16 experts of 64");
    const auto qwen3 = inspect(data / "tiny-qwen3-moe-nvfp4");
    BOOST_TEST(qwen3.code == 0);
    expect(qwen3, "qwen3_moe, hidden 128, 2 layers (2 attention), 4/2 heads of 128, 8 experts of 48, top 3");
    expect(qwen3, "layers.*.mlp.experts.*.down_proj         NVFP4 x16");
}
