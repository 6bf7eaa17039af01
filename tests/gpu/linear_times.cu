// Times of the matrix kernels at the sizes of a 35B model with 3B active: hidden 2048, 256 experts of width
// 512, 8 chosen.
#include "../../cuda/runtime/backend.hpp"
#include "checks.hpp"

namespace ftmpi::check {
namespace {

/// A matrix of random bytes that are valid codes; one stored tensor shared by all rows.
std::unique_ptr<Matrix> random_matrix(Backend& b, Random& r, Format f, std::int64_t groups, std::int64_t rows,
                                      std::int64_t cols) {
    static std::vector<std::byte> codes, scales;
    const std::size_t need = code_bytes(f, cols) * static_cast<std::size_t>(rows);
    while (codes.size() < need)
        codes.push_back(static_cast<std::byte>(random_e4m3(r) & 0xbf));  // also a finite bf16
    while (scales.size() < static_cast<std::size_t>(rows * scales_per_row(f, cols)))
        scales.push_back(static_cast<std::byte>(bits(r, 5) + 32));
    MatrixSource s{.format = f, .groups = groups, .rows = rows, .cols = cols, .blocks = {}};
    const std::vector<float> plane(static_cast<std::size_t>((rows + 127) / 128 * ((cols + 127) / 128)),
                                   0.01f);
    RowBlock block;
    block.rows = rows;
    block.codes = codes.data();
    block.pitch = code_bytes(f, cols);
    block.scales = f == Format::fp8_block ? reinterpret_cast<const std::byte*>(plane.data()) : scales.data();
    block.scale_pitch = static_cast<std::size_t>(scales_per_row(f, cols)) * (f == Format::fp8_block ? 4 : 1);
    block.scale_type = DType::f32;
    block.multiplier = 0.01f;
    block.name = "random";
    s.blocks.assign(static_cast<std::size_t>(groups), block);
    return b.load(s);
}

struct Sizes {
    Backend& gpu;
    double rate;  ///< bytes a second of a pure read
    Random random{11};

    DeviceArray<float> values(std::int64_t rows, std::int64_t cols) {
        return upload(gpu, random_activations(random, rows, cols));
    }

    void print(const std::string& what, double us, double bytes, double macs) const {
        std::printf("%-44s %9.2f us  %6.0f GB/s  %5.1f%% of read  %6.2f TFMA/s\n", what.c_str(), us,
                    bytes / us / 1e3, 100 * bytes / us * 1e6 / rate, macs / us / 1e6);
        std::fflush(stdout);
    }

    void project(const std::string& name, std::vector<std::pair<Format, std::int64_t>> shapes,
                 std::int64_t cols, std::int64_t inputs) {
        double bytes = 0, macs = 0;
        for (const auto& [f, rows] : shapes) {
            bytes += static_cast<double>(stored_bytes(f, 1, rows, cols));
            macs += static_cast<double>(rows * cols * inputs);
        }
        const int copies =
            std::max(1, static_cast<int>(400e6 / bytes));  // several times the second-level cache
        const int calls = inputs > 8 ? 2 : copies;
        std::vector<std::vector<std::unique_ptr<Matrix>>> matrices(
            static_cast<std::size_t>(std::min(copies, calls)));
        std::int64_t width = 0;
        for (const auto& s : shapes) width += s.second;
        for (auto& set : matrices)
            for (const auto& [f, rows] : shapes) set.push_back(random_matrix(gpu, random, f, 1, rows, cols));
        auto x = values(inputs, cols);
        DeviceArray<float> out(gpu, width * inputs, "times");
        const double us = median_microseconds(gpu, calls, [&](int i) {
            std::vector<Projection> to;
            std::int64_t at = 0;
            for (const auto& m : matrices[static_cast<std::size_t>(i) % matrices.size()]) {
                to.push_back({m.get(), out.data() + at, width});
                at += m->rows;
            }
            gpu.project(to, x.data(), inputs);
        });
        print(name + ", " + std::to_string(inputs) + " rows", us, bytes, macs);
    }

    void experts(Format f, std::int64_t rows) {
        constexpr int kExperts = 256, kTop = 8, kCalls = 12;
        const auto up = random_matrix(gpu, random, f, kExperts, 1024, 2048),
                   down = random_matrix(gpu, random, f, kExperts, 2048, 512);
        const auto shared_up = random_matrix(gpu, random, f, 1, 1024, 2048),
                   shared_down = random_matrix(gpu, random, f, 1, 2048, 512);
        auto x = values(rows, 2048), act = values(rows * kTop, 512), shared_act = values(rows, 512),
             gate = values(rows, 1);
        DeviceArray<float> out(gpu, rows * 2048, "times"), weights(gpu, kCalls * rows * kTop, "times");
        DeviceArray<std::int32_t> ids(gpu, kCalls * rows * kTop, "times");
        std::vector<std::vector<bool>> used(kCalls, std::vector<bool>(kExperts));
        std::vector<std::int32_t> chosen;
        for (int c = 0; c < kCalls; ++c)
            for (std::int64_t t = 0; t < rows; ++t) {
                std::vector<std::int32_t> row(kExperts);
                for (int e = 0; e < kExperts; ++e) row[static_cast<std::size_t>(e)] = e;
                std::shuffle(row.begin(), row.end(), random);
                std::sort(row.begin(), row.begin() + kTop);
                for (int k = 0; k < kTop; ++k)
                    used[static_cast<std::size_t>(c)]
                        [static_cast<std::size_t>(row[static_cast<std::size_t>(k)])] = true;
                chosen.insert(chosen.end(), row.begin(), row.begin() + kTop);
            }
        gpu.copy_in(ids.data(), chosen.data(), ids.bytes());
        double distinct = 0;
        for (const auto& u : used)
            distinct += static_cast<double>(std::count(u.begin(), u.end(), true)) / kCalls;
        const double macs = static_cast<double>(rows) * (kTop + 1);
        const auto routes = [&](int i) {
            return Routes{ids.data() + i * rows * kTop, weights.data() + i * rows * kTop, kTop};
        };
        const std::string name =
            "experts " + std::string(name_of(f)) + " 8+1 of 512, " + std::to_string(rows) + " rows, ";
        const double up_us = median_microseconds(gpu, kCalls, [&](int i) {
            gpu.experts_up(*up, shared_up.get(), routes(i), x.data(), rows, act.data(), 512,
                           shared_act.data(), 512);
        });
        print(name + "up", up_us, (distinct + 1) * static_cast<double>(stored_bytes(f, 1, 1024, 2048)),
              macs * 1024 * 2048);
        const double down_us = median_microseconds(gpu, kCalls, [&](int i) {
            gpu.experts_down(*down, shared_down.get(), routes(i), act.data(), shared_act.data(), gate.data(),
                             rows, out.data(), 2048);
        });
        print(name + "down", down_us, (distinct + 1) * static_cast<double>(stored_bytes(f, 1, 2048, 512)),
              macs * 2048 * 512);
    }

    void steps(std::int64_t rows) {
        auto x = values(rows, 2048), w = values(1, 2048), logits = values(rows, 248320),
             router = values(rows, 256);
        DeviceArray<float> y(gpu, rows * 2048, "times"), weights(gpu, rows * 8, "times");
        DeviceArray<std::int32_t> ids(gpu, rows * 8, "times"), token(gpu, 2 * rows, "times");
        const std::string end = ", " + std::to_string(rows) + " rows";
        const auto time = [&](const std::string& name, double bytes, const std::function<void(int)>& call) {
            print(name + end, median_microseconds(gpu, 20, call), bytes, 0);
        };
        const auto n = static_cast<double>(rows);
        time("rms_norm 2048", n * 2048 * 8,
             [&](int) { gpu.rms_norm(x.data(), w.data(), 1e-6f, rows, 2048, y.data()); });
        time("add 2048", n * 2048 * 12, [&](int) { gpu.add(y.data(), x.data(), y.data(), rows * 2048); });
        time("route 8 of 256", n * 1024, [&](int) {
            gpu.route(router.data(), rows, 256, {ids.data(), weights.data(), 8});
        });
        time("argmax 248320", n * 248320 * 4, [&](int) {
            gpu.argmax(logits.data(), rows, 248320, 248320, nullptr, token.data(), token.data() + rows);
        });
    }
};

}  // namespace
}  // namespace ftmpi::check

void time_all(ftmpi::Backend& gpu) {
    using namespace ftmpi;
    check::Sizes s{gpu, check::read_rate(gpu)};
    std::printf("pure read %.0f GB/s\n", s.rate / 1e9);
    for (const std::int64_t rows : {1, 2, 4, 8}) {
        s.project("delta net inputs FP8 12288 + BF16 64 x 2048",
                  {{Format::fp8_row, 8192}, {Format::fp8_row, 4096}, {Format::bf16, 32}, {Format::bf16, 32}},
                  2048, rows);
        s.project("output projection FP8 2048 x 4096", {{Format::fp8_row, 2048}}, 4096, rows);
        if (rows == 1)
            s.project("attention inputs FP8 9216 x 2048",
                      {{Format::fp8_row, 8192}, {Format::fp8_row, 512}, {Format::fp8_row, 512}}, 2048, rows);
        if (rows == 1) s.project("FP8-128x128 8192 x 2048", {{Format::fp8_block, 8192}}, 2048, rows);
        s.project("router BF16 257 x 2048", {{Format::bf16, 256}, {Format::bf16, 1}}, 2048, rows);
        s.project("head NVFP4 248320 x 2048", {{Format::nvfp4, 248320}}, 2048, rows);
        s.experts(Format::nvfp4, rows);
    }
    s.steps(1);
    for (const std::int64_t rows : {16, 32, 128}) {
        s.project("head NVFP4 248320 x 2048", {{Format::nvfp4, 248320}}, 2048, rows);
        s.experts(Format::nvfp4, rows);
    }
    for (const std::int64_t rows : {16, 32, 128, 256, 1024}) {
        s.project("delta net inputs FP8 12288 + BF16 64 x 2048",
                  {{Format::fp8_row, 8192}, {Format::fp8_row, 4096}, {Format::bf16, 32}, {Format::bf16, 32}},
                  2048, rows);
        s.project("output projection FP8 2048 x 4096", {{Format::fp8_row, 2048}}, 4096, rows);
        s.project("BF16 2048 x 2048", {{Format::bf16, 2048}}, 2048, rows);
        s.project("FP8-128x128 8192 x 2048", {{Format::fp8_block, 8192}}, 2048, rows);
        s.project("NVFP4 8192 x 2048", {{Format::nvfp4, 8192}}, 2048, rows);
        s.project("router BF16 257 x 2048", {{Format::bf16, 256}, {Format::bf16, 1}}, 2048, rows);
        s.experts(Format::nvfp4, rows);
        s.steps(rows);
    }
    const std::int64_t most = 2048;
    s.experts(Format::nvfp4, most);
    s.experts(Format::fp8_row, 1);
}
