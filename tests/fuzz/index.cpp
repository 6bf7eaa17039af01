// model.safetensors.index.json beside two shards that do not change.
#include <set>

#include "checkpoint.hpp"
#include "fuzz.hpp"

using namespace ftmpi;
using namespace ftmpi::fuzz;

namespace {

/// a.safetensors holds x and y, b.safetensors holds z and a tensor without bytes.
const TemporaryDirectory& shards() {
    static const TemporaryDirectory folder;
    static const bool written = [] {
        testing::write_safetensors(folder / "a.safetensors",
                                   {{"x", "F32", {2}, std::vector<std::uint8_t>(8, 1)},
                                    {"y", "BF16", {3, 1}, std::vector<std::uint8_t>(6, 2)}});
        testing::write_safetensors(
            folder / "b.safetensors",
            {{"z", "U8", {4}, std::vector<std::uint8_t>(4, 3)}, {"model.empty", "F32", {0}, {}}});
        return true;
    }();
    static_cast<void>(written);
    return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto& folder = shards();
    const auto input = text_of(data, size);
    write_file(folder / "model.safetensors.index.json", input);
    accepted([&] {
        const auto checkpoint = Checkpoint::open(folder.path());
        std::set<std::string> files;
        for (const auto& file : checkpoint.files()) {
            require(file.parent_path() == folder.path(), "only files of the folder are opened",
                    file.string());
            require(files.insert(file.filename().string()).second, "no file is opened twice", file.string());
        }
        std::set<std::string> expected;
        if (files.erase("a.safetensors")) expected.insert({"x", "y"});
        if (files.erase("b.safetensors")) expected.insert({"z", "model.empty"});
        require(files.empty() && !expected.empty(), "only the shards that are there are opened");
        for (const auto& [name, view] : checkpoint.tensors()) {
            require(expected.erase(name) == 1, "the tensors are those of the shards", name);
            require(input.find("weight_map") != input.npos || input.find('\\') != input.npos,
                    "no index without a weight_map");
            for (std::size_t i = 0; i < view.bytes; ++i)
                require(view.data[i] == std::byte(name == "x"   ? 1
                                                  : name == "y" ? 2
                                                                : 3),
                        "bytes are those of the tensor", name);
        }
        require(expected.empty(), "no tensor of an opened shard is left out");
        for (const auto& warning : checkpoint.warnings()) require_one_line(warning);
    });
    return 0;
}
