// Fast numerics of the CUDA backend: how far from exact, the same bits for any cut of a matrix's rows and any
// other rows beside, then times beside the exact kernels' at the sizes of a 35B model.
#include <cmath>

#include "../../cuda/runtime/backend.hpp"
#include "checks.hpp"
#include "short_form.hpp"

namespace {

using namespace ftmpi;
using namespace ftmpi::check;

struct Place {
    Backend& gpu;
    Tally& tally;
    Random random{5};
};

std::vector<float> project(Backend& b, bool fast, const std::vector<const Matrix*>& matrices,
                           const std::vector<float>& x, std::int64_t inputs) {
    std::int64_t width = 3;  // a gap
    for (const Matrix* m : matrices) width += m->rows;
    auto in = upload(b, x),
         out = upload(b, std::vector<float>(static_cast<std::size_t>(width * inputs), 77.0f));
    std::vector<Projection> to;
    std::int64_t at = 0;
    for (const Matrix* m : matrices) {
        to.push_back({m, out.data() + at, width});
        at += m->rows;
    }
    b.set_fast(fast);
    b.project(to, in.data(), inputs);
    b.set_fast(false);
    return download(b, out.data(), width * inputs);
}

/// Rows [begin, end) of a matrix of one group.
MatrixSource cut(const MatrixSource& all, std::int64_t begin, std::int64_t end) {
    MatrixSource part = all;
    part.blocks.clear();
    part.rows = end - begin;
    std::int64_t first = 0;
    for (RowBlock b : all.blocks) {
        const std::int64_t from = std::max(begin, first) - first, to = std::min(end, first + b.rows) - first;
        first += b.rows;
        if (from >= to) continue;
        b.rows = to - from;
        b.codes += static_cast<std::size_t>(from) * b.pitch;
        if (is_4bit(all.format)) b.scales += static_cast<std::size_t>(from) * b.scale_pitch;
        if (all.format == Format::fp8_block) b.first_row += from;
        if (b.row_scales) b.row_scales += static_cast<std::size_t>(from) * size_of(b.row_scale_type);
        part.blocks.push_back(b);
    }
    return part;
}

/// The matrix without signs, in place.
void drop_signs(const MatrixSource& s) {
    for (const RowBlock& b : s.blocks)
        for (std::int64_t row = 0; row < b.rows; ++row) {
            auto* codes = const_cast<std::byte*>(b.codes) + static_cast<std::size_t>(row) * b.pitch;
            for (std::size_t i = s.format == Format::bf16 ? 1 : 0; i < code_bytes(s.format, s.cols);
                 i += s.format == Format::bf16 ? 2 : 1)
                codes[i] &= std::byte{0x7f};
        }
}

std::vector<float> columns(const std::vector<float>& v, std::int64_t width, std::int64_t begin,
                           std::int64_t count) {
    std::vector<float> part;
    for (std::size_t row = 0; row < v.size(); row += static_cast<std::size_t>(width))
        part.insert(part.end(), v.begin() + static_cast<std::ptrdiff_t>(row) + begin,
                    v.begin() + static_cast<std::ptrdiff_t>(row) + begin + count);
    return part;
}

void check_project(Place& p, Format f, std::int64_t rows, std::int64_t cols, std::int64_t inputs) {
    const std::string name = std::string(name_of(f)) + " " + std::to_string(rows) + " x " +
                             std::to_string(cols) + ", " + std::to_string(inputs) + " inputs";
    const Stored stored(p.random, f, 1, rows, cols);
    const auto whole = p.gpu.load(stored.source);
    const auto x = random_activations(p.random, inputs, cols);
    const auto exact = project(p.gpu, false, {whole.get()}, x, inputs),
               fast = project(p.gpu, true, {whole.get()}, x, inputs);

    for (const std::int64_t first : {std::int64_t{16}, rows / 2 / 16 * 16, (rows - 1) / 16 * 16}) {
        if (first <= 0 || first >= rows) continue;
        const auto head = p.gpu.load(cut(stored.source, 0, first)),
                   tail = p.gpu.load(cut(stored.source, first, rows));
        const auto parts = project(p.gpu, true, {head.get(), tail.get()}, x, inputs);
        const auto alone = project(p.gpu, true, {tail.get()}, x, inputs);
        p.tally.add(difference(fast, parts).empty(),
                    name + ": cut at row " + std::to_string(first) + difference(fast, parts));
        const auto d = difference(columns(fast, rows + 3, first, rows - first),
                                  columns(alone, rows - first + 3, 0, rows - first));
        p.tally.add(d.empty(), name + ": rows from " + std::to_string(first) + " alone" + d);
    }
    for (const std::int64_t count : {1, 2, 15, 16, 64, 127, 129}) {
        if (count >= inputs) continue;
        const auto first = static_cast<std::int64_t>(p.random() % static_cast<std::uint64_t>(inputs - count));
        const std::vector<float> some(x.begin() + first * cols, x.begin() + (first + count) * cols);
        const std::vector<float> want(fast.begin() + first * (rows + 3),
                                      fast.begin() + (first + count) * (rows + 3));
        const auto d = difference(want, project(p.gpu, true, {whole.get()}, some, count));
        p.tally.add(d.empty(), name + ": " + std::to_string(count) + " of them" + d);
    }

    // Both roundings of a product's factors are at most 2^-9 of it (weights are exact): the bound is twice
    // that of the sum of absolute products. Last, because it changes the stored matrix.
    drop_signs(stored.source);
    auto absolute = x;
    for (float& v : absolute) v = std::fabs(v);
    const auto unsigned_matrix = p.gpu.load(stored.source);
    const auto size = project(p.gpu, false, {unsigned_matrix.get()}, absolute, inputs);
    double worst = 0;
    for (std::size_t i = 0; i < exact.size(); ++i)
        worst = std::max(worst, std::fabs(static_cast<double>(fast[i]) - exact[i]) /
                                    (static_cast<double>(size[i]) + 1e-25));
    char text[100];
    std::snprintf(text, sizeof text, ": error %.5f of 2^-8 of the absolute products", worst * 256);
    p.tally.add(worst <= 1.0 / 256, name + text);
    p.tally.add(inputs < 8 || worst > 0, name + ": took the fast way");
}

/// Each column alone, times 1: every code comes out exactly, from its own column.
void check_codes(Place& p, Format f) {
    constexpr std::int64_t kRows = 272, kCols = 200;
    const Stored stored(p.random, f, 1, kRows, kCols);
    const auto m = p.gpu.load(stored.source);
    std::vector<float> x(kCols * kCols);
    for (std::int64_t i = 0; i < kCols; ++i) x[static_cast<std::size_t>(i * kCols + i)] = 1.0f;
    const auto d =
        difference(project(p.gpu, false, {m.get()}, x, kCols), project(p.gpu, true, {m.get()}, x, kCols));
    p.tally.add(d.empty(), std::string(name_of(f)) + ": codes one by one" + d);
}

/// Others are exact with fast numerics, too.
bool has_fast_kernel(Format f) { return !is_4bit(f) && f != Format::f16 && f != Format::f32; }

void check_mixed(Place& p) {
    const auto x = random_activations(p.random, 70, 256);
    std::vector<std::unique_ptr<Matrix>> held;
    std::vector<const Matrix*> matrices;
    for (const Format f : {Format::fp8_row, Format::nvfp4, Format::bf16, Format::fp8_block, Format::mxfp4,
                           Format::f16, Format::fp8_row, Format::bf16, Format::fp8_row, Format::bf16,
                           Format::f32, Format::bf16, Format::bf16}) {
        held.push_back(p.gpu.load(Stored(p.random, f, 1, 48, 256).source));
        matrices.push_back(held.back().get());
    }
    const auto together = project(p.gpu, true, matrices, x, 70);
    const auto width = static_cast<std::int64_t>(matrices.size()) * 48 + 3;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
        const auto d = difference(
            columns(together, width, static_cast<std::int64_t>(i) * 48, 48),
            columns(project(p.gpu, has_fast_kernel(matrices[i]->format), {matrices[i]}, x, 70), 51, 0, 48));
        p.tally.add(d.empty(), "matrix " + std::to_string(i) + " of several formats" + d);
    }
}

// ---- attention
// ----------------------------------------------------------------------------------------------------------

struct Heads {
    int query_heads, kv_heads, group, dim, rotary;
    KvType kv;
    bool gated = true;
    int pitch() const { return gated ? 2 * dim : dim; }
};

/// A model's attention with inputs of one slot's rows; runs any part of its heads.
class AttentionRun {
public:
    AttentionRun(Place& p, const Heads& h, std::int64_t rows)
        : gpu_(p.gpu), h_(h), rows_(rows), capacity_(rows + 37) {
        const auto floats = [&](std::int64_t n, float low, float high) {
            std::uniform_real_distribution<float> d(low, high);
            std::vector<float> v(static_cast<std::size_t>(n));
            for (float& x : v) x = d(p.random);
            return v;
        };
        qg_ = floats(rows * h.query_heads * h.pitch(), -2, 2);
        k_ = floats(rows * h.kv_heads * h.dim, -2, 2);
        v_ = floats(rows * h.kv_heads * h.dim, -2, 2);
        norm_ = upload(gpu_, floats(h.dim, 0.8f, 1.2f));
        std::vector<float> cos, sin;
        for (std::int64_t i = 0; i < capacity_ * h.rotary / 2; ++i) {
            const auto angle = static_cast<float>(p.random() % 6283) * 1e-3f;
            cos.push_back(std::cos(angle));
            sin.push_back(std::sin(angle));
        }
        cos_ = upload(gpu_, cos);
        sin_ = upload(gpu_, sin);
    }

    /// Query heads [begin, end) in steps of these many rows; with `beside` every step has the same rows of
    /// another slot before.
    std::vector<float> run(bool fast, const std::vector<std::int64_t>& steps, int begin, int end,
                           bool beside) {
        const int kv_begin = begin / h_.group, kv_end = (end - 1) / h_.group + 1, heads = end - begin,
                  kvs = kv_end - kv_begin;
        Attention t;
        t.query_heads = heads, t.kv_heads = kvs, t.first_query_head = begin, t.first_kv_head = kv_begin;
        t.group = h_.group, t.head_dim = h_.dim, t.rotary_dim = h_.rotary, t.eps = 1e-6f;
        t.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(h_.dim)));
        t.q_norm = t.k_norm = norm_.data(), t.cos = cos_.data(), t.sin = sin_.data();
        t.kv = h_.kv, t.gated = h_.gated, t.capacity = capacity_;
        if (h_.kv == KvType::fp8) t.k_scale = 0.01f, t.v_scale = 0.006f;
        // What was never written are NaNs.
        const std::vector<std::uint8_t> unset(
            2 * static_cast<std::size_t>(kvs * capacity_ * h_.dim) * size_of(h_.kv), 0xff);
        auto keys = upload(gpu_, unset), values = upload(gpu_, unset);
        t.keys = keys.data(), t.values = values.data();
        std::vector<float> result;
        std::int64_t at = 0;
        for (const std::int64_t n : steps) {
            std::vector<Row> rows;
            std::vector<float> qg, k, v;
            const auto take = [&](std::int32_t slot, std::int64_t position) {
                rows.push_back({0, slot, static_cast<std::int32_t>(position)});
                const auto part = [&](std::vector<float>& to, const std::vector<float>& from,
                                      std::int64_t all, std::int64_t first, std::int64_t count) {
                    const auto start = from.begin() + position * all + first;
                    to.insert(to.end(), start, start + count);
                };
                part(qg, qg_, std::int64_t{h_.query_heads} * h_.pitch(), std::int64_t{begin} * h_.pitch(),
                     std::int64_t{heads} * h_.pitch());
                part(k, k_, std::int64_t{h_.kv_heads} * h_.dim, std::int64_t{kv_begin} * h_.dim,
                     std::int64_t{kvs} * h_.dim);
                part(v, v_, std::int64_t{h_.kv_heads} * h_.dim, std::int64_t{kv_begin} * h_.dim,
                     std::int64_t{kvs} * h_.dim);
            };
            for (std::int64_t i = 0; beside && i < n; ++i) take(0, at + i);
            for (std::int64_t i = 0; i < n; ++i) take(1, at + i);
            const std::int64_t width = std::int64_t{heads} * h_.dim + 2,
                               count = static_cast<std::int64_t>(rows.size());
            auto device_rows = upload(gpu_, rows);
            auto in_qg = upload(gpu_, qg), in_k = upload(gpu_, k), in_v = upload(gpu_, v);
            auto out = upload(gpu_, std::vector<float>(static_cast<std::size_t>(count * width), 77.0f));
            gpu_.set_fast(fast);
            gpu_.attention(t, {rows, device_rows.data()}, in_qg.data(), in_k.data(), in_v.data(), out.data(),
                           width);
            gpu_.set_fast(false);
            const auto got = columns(download(gpu_, out.data(), count * width), width, 0, width - 2);
            for (std::int64_t i = 0; i < count; ++i)
                if (rows[static_cast<std::size_t>(i)].slot == 1)
                    result.insert(result.end(), got.begin() + i * (width - 2),
                                  got.begin() + (i + 1) * (width - 2));
            at += n;
        }
        return result;
    }

private:
    Backend& gpu_;
    Heads h_;
    std::int64_t rows_, capacity_;
    std::vector<float> qg_, k_, v_;
    DeviceArray<float> norm_, cos_, sin_;
};

void check_attention(Place& p, const Heads& h) {
    const std::int64_t kRows = short_form() ? 70 : 300;
    const std::string name = "attention " + std::to_string(h.query_heads) + "/" + std::to_string(h.kv_heads) +
                             " x " + std::to_string(h.dim) + ", " + std::string(name_of(h.kv)) +
                             (h.gated ? "" : ", no gate");
    AttentionRun run(p, h, kRows);
    const auto exact = run.run(false, {kRows}, 0, h.query_heads, false),
               fast = run.run(true, {kRows}, 0, h.query_heads, false);
    // Errors of queries, keys and weights, 2^-9 each at most, add up as random numbers do: a head's result is
    // held to 2^-6 of itself.
    double worst = 0;
    for (std::size_t at = 0; at < exact.size(); at += static_cast<std::size_t>(h.dim)) {
        double error = 0, size = 0;
        for (std::size_t i = at; i < at + static_cast<std::size_t>(h.dim); ++i) {
            error += std::pow(static_cast<double>(fast[i]) - exact[i], 2);
            size += std::pow(static_cast<double>(exact[i]), 2);
        }
        const double ratio = std::sqrt(error / size);
        if (!(ratio <= worst)) worst = ratio;  // also a NaN
    }
    char text[60];
    std::snprintf(text, sizeof text, ": error %.3f of 2^-6", worst * 64);
    p.tally.add(worst > 0 && worst <= 1.0 / 64, name + text);
    const auto same = [&](const std::string& what, const std::vector<float>& got) {
        const auto d = difference(fast, got);
        p.tally.add(d.empty(), name + ", " + what + d);
    };
    same("in uneven steps", run.run(true, shapes<std::int64_t>({1, 2, 29, 38}, {1, 2, 60, 65, 100, 72}), 0,
                                    h.query_heads, false));
    same("another slot beside",
         run.run(true, {131 * kRows / 300, kRows - 131 * kRows / 300}, 0, h.query_heads, true));
    const int half = h.query_heads / 2;
    if (half == 0) return;
    const std::int64_t width = std::int64_t{h.query_heads} * h.dim;
    for (const auto& [begin, end] : {std::pair{0, half}, std::pair{half, h.query_heads}}) {
        const auto d =
            difference(columns(fast, width, std::int64_t{begin} * h.dim, std::int64_t{end - begin} * h.dim),
                       run.run(true, {kRows}, begin, end, false));
        p.tally.add(d.empty(), name + ", heads from " + std::to_string(begin) + d);
    }
}

// ---- times
// ----------------------------------------------------------------------------------------------------------

void time_project(Place& p, const std::string& name,
                  const std::vector<std::pair<Format, std::int64_t>>& shapes, std::int64_t cols,
                  std::int64_t inputs) {
    std::vector<std::unique_ptr<Matrix>> matrices;
    std::int64_t width = 0;
    for (const auto& [f, rows] : shapes) {
        matrices.push_back(p.gpu.load(Stored(p.random, f, 1, rows, cols).source));
        width += rows;
    }
    auto x = upload(p.gpu, random_activations(p.random, inputs, cols));
    const DeviceArray<float> out(p.gpu, width * inputs, "times");
    double us[2];
    for (const bool fast : {false, true}) {
        p.gpu.set_fast(fast);
        us[fast] = median_microseconds(p.gpu, fast ? 4 : 1, [&](int) {
            std::vector<Projection> to;
            std::int64_t at = 0;
            for (const auto& m : matrices) {
                to.push_back({m.get(), out.data() + at, width});
                at += m->rows;
            }
            p.gpu.project(to, x.data(), inputs);
        });
    }
    p.gpu.set_fast(false);
    const double macs = static_cast<double>(width) * static_cast<double>(cols * inputs);
    std::printf("%-34s %5lld rows: fast %8.1f us %6.1f TFMA/s, exact %8.1f us %6.1f TFMA/s\n", name.c_str(),
                static_cast<long long>(inputs), us[1], macs / us[1] / 1e6, us[0], macs / us[0] / 1e6);
    std::fflush(stdout);
}

void time_attention(Place& p, KvType kv, std::int64_t first, std::int64_t n) {
    Attention t;
    t.query_heads = 16, t.kv_heads = 2, t.group = 8, t.head_dim = 256, t.rotary_dim = 64, t.eps = 1e-6f,
    t.scale = 0.0625f;
    t.capacity = first + n;
    t.kv = kv;
    const auto zeroes = [&](std::int64_t count) { return DeviceArray<float>(p.gpu, count, "times"); };
    const auto norm = upload(p.gpu, std::vector<float>(256, 1.0f)),
               angle = upload(p.gpu, std::vector<float>(static_cast<std::size_t>(t.capacity * 32), 0.7f));
    const auto qg = upload(p.gpu, random_activations(p.random, n, 16 * 512)),
               k = upload(p.gpu, random_activations(p.random, n, 512)),
               v = upload(p.gpu, random_activations(p.random, n, 512)), out = zeroes(n * 4096),
               keys = zeroes(t.capacity * 512), values = zeroes(t.capacity * 512);
    t.q_norm = t.k_norm = norm.data(), t.cos = t.sin = angle.data(), t.keys = keys.data(),
    t.values = values.data();
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < n; ++i) rows.push_back({0, 0, static_cast<std::int32_t>(first + i)});
    const auto device_rows = upload(p.gpu, rows);
    double us[2];
    for (const bool fast : {false, true}) {
        p.gpu.set_fast(fast);
        us[fast] = median_microseconds(p.gpu, 1, [&](int) {
            p.gpu.attention(t, {rows, device_rows.data()}, qg.data(), k.data(), v.data(), out.data(), 4096);
        });
    }
    p.gpu.set_fast(false);
    const double macs = 16.0 * 512 *
                        (static_cast<double>(first) * static_cast<double>(n) +
                         0.5 * static_cast<double>(n) * static_cast<double>(n + 1));
    std::printf(
        "attention %s, %lld rows from %lld: fast %8.1f us %6.1f TFMA/s, exact %8.1f us %6.1f TFMA/s\n",
        std::string(name_of(kv)).c_str(), static_cast<long long>(n), static_cast<long long>(first), us[1],
        macs / us[1] / 1e6, us[0], macs / us[0] / 1e6);
    std::fflush(stdout);
}

void time_all(Place& p) {
    for (const std::int64_t n : {64, 256, 1024, 2048}) {
        time_project(
            p, "delta net inputs FP8 12288 + BF16 64",
            {{Format::fp8_row, 8192}, {Format::fp8_row, 4096}, {Format::bf16, 32}, {Format::bf16, 32}}, 2048,
            n);
        time_project(p, "output projection FP8 2048 x 4096", {{Format::fp8_row, 2048}}, 4096, n);
        time_project(p, "attention inputs FP8 9216 x 2048",
                     {{Format::fp8_row, 8192}, {Format::fp8_row, 512}, {Format::fp8_row, 512}}, 2048, n);
        time_project(p, "BF16 8192 x 2048", {{Format::bf16, 8192}}, 2048, n);
        time_project(p, "FP8-128x128 8192 x 2048", {{Format::fp8_block, 8192}}, 2048, n);
    }
    time_attention(p, KvType::bf16, 0, 8192);
    time_attention(p, KvType::bf16, 7168, 1024);
    time_attention(p, KvType::fp8, 7168, 1024);
}

}  // namespace

/// --quick: no times. FTMPI_CHECK_SHORT=1: few shapes either.
int main(int argc, char** argv) {
    try {
        Tally tally("fast_check");
        tally.loud = argc > 1 && std::string(argv[1]) == "--loud";
        const auto gpu = make_cuda_backend({});
        const auto info = gpu->info();
        std::printf("%s, capability %s, driver %s\n", info.name.c_str(), info.capability.c_str(),
                    info.driver.c_str());
        Place p{*gpu, tally};
        for (const Format f : {Format::bf16, Format::fp8_row, Format::fp8_block}) {
            if (short_form()) {
                check_project(p, f, 40, 100, 17);  // part of a tile, of a stage and of a chunk
                check_project(p, f, 144, 1120,
                              80);  // more than a tile each way; an odd number of chunks, sets of 32 and 3
                continue;
            }
            check_codes(p, f);
            check_project(p, f, 300, 2048, 300);
            check_project(p, f, 40, 32, 3);
            check_project(p, f, 129, 100, 17);
            check_project(p, f, 528, 1120, 200);  // an odd number of chunks, sets of 32 and 3
            check_project(p, f, 257, 4096, 64);
        }
        check_mixed(p);
        for (const KvType kv : {KvType::bf16, KvType::fp8, KvType::fp32}) {
            if (short_form()) {
                check_attention(p, {4, 2, 2, 256, 64, kv});
                check_attention(p, {3, 1, 3, 72, 24, kv});
                check_attention(p, {8, 1, 8, 128, 128, kv, false});
                continue;
            }
            check_attention(p, {16, 2, 8, 256, 64, kv});
            check_attention(p, {4, 2, 2, 16, 4, kv});
            check_attention(p, {6, 1, 6, 72, 24, kv});
            check_attention(p, {3, 3, 1, 128, 128, kv});
            check_attention(p, {32, 4, 8, 128, 128, kv, false});
        }
        if (!short_form() && (argc < 2 || std::string(argv[1]) != "--quick")) time_all(p);
        return tally.finish();
    } catch (const Error& e) {
        std::printf("fast_check: error: %s\n", e.what());
        return 1;
    }
}
