// Writes the states of every layer for one prompt, to be compared with another implementation:
//   layer_dump MODEL OUT [cpu|cuda [TOKENS [exact|fast [fp32|bf16|fp8]]]]
// The last two are the numerics and the type of the cache. OUT.f32 holds fp32 matrices, OUT.txt one line for
// each: name, layer (-1 outside), rows, width, first float.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "../../src/checkpoint.hpp"
#include "../../src/config.hpp"
#include "../../src/cpu_backend.hpp"
#include "../../src/error.hpp"
#include "../../src/model.hpp"
#include "../../src/tokenizer.hpp"
#ifdef FTMPI_HAVE_CUDA
#include "../../cuda/runtime/backend.hpp"
#endif

namespace {

using namespace ftmpi;

std::unique_ptr<Backend> backend_named(const std::string& name) {
    if (name == "cpu")
        return make_cpu_backend(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
#ifdef FTMPI_HAVE_CUDA
    if (name == "cuda") return make_cuda_backend({});
#endif
    throw Error(Exit::usage, "this program has no backend " + name);
}

class Dump {
public:
    explicit Dump(const std::string& path)
        : values_(path + ".f32", std::ios::binary), index_(path + ".txt") {}

    void add(Backend& backend, std::string_view name, int layer, const float* device, std::int64_t rows,
             std::int64_t width) {
        host_.resize(static_cast<std::size_t>(rows * width));
        backend.copy_out(host_.data(), device, host_.size() * sizeof(float));
        values_.write(reinterpret_cast<const char*>(host_.data()),
                      static_cast<std::streamsize>(host_.size() * sizeof(float)));
        index_ << name << ' ' << layer << ' ' << rows << ' ' << width << ' ' << floats_ << '\n';
        floats_ += rows * width;
    }
    std::int64_t close() {
        values_.close();
        index_.close();
        if (!values_ || !index_) throw Error(Exit::failure, "the dump could not be written");
        return floats_;
    }

private:
    std::ofstream values_, index_;
    std::vector<float> host_;
    std::int64_t floats_ = 0;
};

KvType kv_named(const std::string& name) {
    for (const KvType t : {KvType::fp32, KvType::bf16, KvType::fp8})
        if (name_of(t) == name) return t;
    throw Error(Exit::usage, "no cache has the type " + name);
}

bool is_fast(const std::string& numerics) {
    if (numerics != "exact" && numerics != "fast")
        throw Error(Exit::usage, "numerics are exact or fast, not " + numerics);
    return numerics == "fast";
}

void run(const std::filesystem::path& directory, const std::string& out, const std::string& backend_name,
         std::int64_t tokens, bool fast, KvType kv) {
    const auto checkpoint = Checkpoint::open(directory);
    const ModelConfig config = load_config(directory);
    const auto tokenizer = Tokenizer::load(directory);
    const Inventory inventory(checkpoint, config);
    const auto backend = backend_named(backend_name);
    OneRank alone;
    PlanRequest request;
    request.ranks = {{backend->info().free_bytes, 0, backend_name}};
    request.context = request.prefill_rows = tokens;
    request.kv = kv;
    const ShardPlan plan = make_plan(inventory.sizes(), request);
    const Weights weights(checkpoint, inventory, plan, 0, *backend);
    SequenceState state(*backend, config, plan, 0);
    Model model(*backend, alone, config, plan, weights, state);
    model.set_fast_prefill(fast);

    Dump dump(out);
    std::ofstream ids(out + ".ids");
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < tokens; ++i) {
        const auto id = static_cast<std::int32_t>((i * 7919 + 257) %
                                                  std::min<std::int64_t>(tokenizer.end(), config.vocab));
        rows.push_back({id, 0, static_cast<std::int32_t>(i)});
        ids << id << '\n';
    }
    model.observe([&](std::string_view name, int layer, const float* values, std::int64_t n,
                      std::int64_t width) { dump.add(*backend, name, layer, values, n, width); });
    const float* logits = model.prefill(rows, {tokens - 1, tokens});
    dump.add(*backend, "logits", -1, logits, 1, config.vocab);
    ids.close();
    std::printf("%lld tokens through %zu layers on %s: %lld values\n", static_cast<long long>(tokens),
                config.layers.size(), backend->info().name.c_str(), static_cast<long long>(dump.close()));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3 || argc > 7) {
        std::fprintf(stderr,
                     "usage: layer_dump MODEL OUT [cpu|cuda [TOKENS [exact|fast [fp32|bf16|fp8]]]]\n");
        return 2;
    }
    try {
        // By default keys and values are not rounded, as by the other implementation.
        run(argv[1], argv[2], argc > 3 ? argv[3] : "cpu", argc > 4 ? std::stoll(argv[4]) : 48,
            is_fast(argc > 5 ? argv[5] : "exact"), kv_named(argc > 6 ? argv[6] : "fp32"));
        return 0;
    } catch (const Error& e) {
        std::fprintf(stderr, "layer_dump: %s\n", e.what());
        return static_cast<int>(e.code());
    } catch (const std::exception& e) {
        std::fprintf(stderr, "layer_dump: %s\n", e.what());
        return 1;
    }
}
