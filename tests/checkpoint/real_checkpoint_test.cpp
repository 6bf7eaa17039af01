// The published 35B checkpoints, name by name: sparse files of their exact length open, agree with the
// published totals and do so quickly. Their configurations are read as well.
#define BOOST_TEST_MODULE real_checkpoint
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <map>

#include "checkpoint.hpp"
#include "config.hpp"
#include "real_inventory.hpp"
#include "safetensors_writer.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;

namespace {

struct Published {
    RealCheckpoint kind;
    int shards;
    std::size_t tensors;
    std::uint64_t bytes;
    std::map<DType, std::size_t> dtypes;
};

const Published published[] = {
    {RealCheckpoint::nvfp4,
     3,
     124'468,
     23'407'580'856,
     {{DType::bf16, 714}, {DType::f32, 61'942}, {DType::f8_e4m3, 30'971}, {DType::u8, 30'841}}},
    {RealCheckpoint::bf16, 26, 1'045, 71'903'645'408, {{DType::bf16, 1'045}}},
    {RealCheckpoint::fp8, 14, 64'196, 37'454'789'472, {}},
};

}  // namespace

BOOST_AUTO_TEST_CASE(published_checkpoints_open_name_by_name) {
    for (const auto& p : published) {
        TemporaryDirectory directory;
        const auto inventory = real_inventory(p.kind);
        write_sparse_checkpoint(directory.path(), inventory, p.shards);

        const auto start = std::chrono::steady_clock::now();
        const auto checkpoint = Checkpoint::open(directory.path());
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        BOOST_TEST_MESSAGE(p.tensors << " tensors opened in " << seconds.count() << " s");

        BOOST_TEST(checkpoint.tensors().size() == p.tensors);
        BOOST_TEST(checkpoint.tensor_bytes() == p.bytes);
        BOOST_TEST(checkpoint.files().size() == static_cast<std::size_t>(p.shards));
        BOOST_TEST(checkpoint.warnings().empty());
        // Far above what is seen (well under 0.3 s, 5 s with sanitizers on a busy machine); quadratic work
        // would fail it.
        BOOST_TEST(seconds.count() < 20.0);

        std::map<DType, std::size_t> dtypes;
        std::size_t equal = 0;
        for (const auto& e : inventory) {
            const auto* t = checkpoint.find(e.name);
            equal += t && t->dtype == e.dtype && t->shape == e.shape && t->bytes == e.bytes();
            ++dtypes[e.dtype];
        }
        BOOST_TEST(equal == p.tensors);
        if (!p.dtypes.empty()) BOOST_TEST((dtypes == p.dtypes));
        checkpoint.check_unchanged();
    }
}

BOOST_AUTO_TEST_CASE(published_configurations_are_read) {
    for (const auto& p : published) {
        TemporaryDirectory directory;
        write_file(directory / "config.json", real_config_json(p.kind));
        write_file(directory / "generation_config.json", real_generation_config_json());
        if (const auto text = real_hf_quant_config_json(p.kind); !text.empty())
            write_file(directory / "hf_quant_config.json", text);
        const auto config = load_config(directory.path());
        BOOST_TEST(config.layers.size() == 40u);
        BOOST_TEST((config.layers[39] == LayerKind::attention));
        BOOST_TEST(config.rotary_dim == 64);
        BOOST_TEST(config.rope_theta == 1e7);
        BOOST_TEST(config.stop_ids == (std::vector<std::int32_t>{248046, 248044}),
                   boost::test_tools::per_element());
        BOOST_TEST(config.experts == 256);
        BOOST_TEST(config.quantization.empty() == (p.kind == RealCheckpoint::bf16));
        if (p.kind == RealCheckpoint::nvfp4) BOOST_TEST(config.quantized_layers.size() == 291u);
    }
}
