// Norms, sums, lookups and the choice of a token, on the GPU against the CPU.
#include <cmath>

#include "linear_cases.hpp"

namespace ftmpi::check {

void check_steps(Pair& p, std::int64_t rows, std::int64_t width) {
    const auto x = random_activations(p.random, rows, width), w = random_activations(p.random, 1, width),
               y = random_activations(p.random, rows, width);
    std::deque<Stored> tables;
    for (const Format f : kPlain) tables.emplace_back(p.random, f, 1, 67, width);
    std::vector<Row> host;
    for (std::int64_t t = 0; t < rows; ++t)
        host.push_back({static_cast<std::int32_t>(bits(p.random, 6)), 0, static_cast<std::int32_t>(t)});
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(width));
    for (auto& m : mask) m = bits(p.random, 2) == 0;
    auto logits = x;
    if (rows > 2 && width > 3) {
        logits[static_cast<std::size_t>(width + 3)] = INFINITY;
        for (std::int64_t i = 0; i < width; ++i)
            logits[static_cast<std::size_t>(2 * width + i)] = i % 2 ? 1.5f : i % 3 ? -0.0f : 0.0f;
    }
    std::vector<float> results[2];
    std::vector<std::int32_t> tokens[2];
    for (int side = 0; side < 2; ++side) {
        Backend& b = side ? p.gpu : p.cpu;
        auto in = upload(b, x), weight = upload(b, w), add = upload(b, y), l = upload(b, logits);
        auto masked = upload(b, mask);
        auto device_rows = upload(b, host);
        DeviceArray<float> normed(b, rows * width, "check"),
            embedded(b, 2 * std::ssize(tables) * rows * width, "check");
        DeviceArray<std::int32_t> token(b, 3 * rows, "check");
        b.rms_norm(in.data(), weight.data(), 1e-6f, rows, width, normed.data());
        b.add(in.data(), add.data(), in.data(), rows * width);
        float* to = embedded.data();
        for (const Stored& table : tables)
            for (const bool on_host : {false, true}) {
                const auto t = b.load_table(table.source, on_host);
                b.embed(*t, {host, device_rows.data()}, to);
                b.synchronize();
                to += rows * width;
            }
        b.argmax(l.data(), rows, width, width, nullptr, token.data(), token.data() + rows);
        auto all = download(b, token.data(), 2 * rows);
        b.argmax(l.data(), rows, width, width - width / 5, masked.data(), token.data(), token.data() + rows);
        const auto some = download(b, token.data(), 2 * rows);
        all.insert(all.end(), some.begin(), some.end());
        tokens[side] = all;
        for (const auto* a : {&normed, &in, &embedded}) {
            const auto v = download(b, a->data(), a->size());
            results[side].insert(results[side].end(), v.begin(), v.end());
        }
    }
    const auto d = difference(results[0], results[1]);
    p.tally.add(d.empty(), "rms_norm, add, embed " + text({rows, width}) + d);
    p.tally.add(tokens[0] == tokens[1], "argmax " + text({rows, width}));
}

/// Rows whose tokens are on the device alone, some of them no ids; their embedding; and a copy of tokens that
/// the host awaits while the next rows are already asked for.
void check_device_tokens(Pair& p, std::int64_t rows) {
    constexpr std::int64_t kIds = 67, kWidth = 96, kSteps = 8;
    const Stored table(p.random, Format::bf16, 1, kIds, kWidth);
    std::vector<std::vector<std::int32_t>> tokens(kSteps);
    std::vector<std::vector<Row>> host(kSteps);
    for (std::int64_t s = 0; s < kSteps; ++s)
        for (std::int64_t t = 0; t < rows; ++t) {
            tokens[static_cast<std::size_t>(s)].push_back(static_cast<std::int32_t>(bits(p.random, 7)) - 30);
            host[static_cast<std::size_t>(s)].push_back({static_cast<std::int32_t>(rows - 1 - t),
                                                         static_cast<std::int32_t>(t),
                                                         static_cast<std::int32_t>(s)});
        }
    std::vector<float> results[2];
    std::vector<std::int32_t> placed[2];
    for (int side = 0; side < 2; ++side) {
        Backend& b = side ? p.gpu : p.cpu;
        const auto on_device = b.load_table(table.source, false);
        p.tally.add(b.embeds_from_device(*on_device), "a table on the device takes tokens from there");
        DeviceArray<Row> to(b, rows, "check");
        DeviceArray<float> x(b, rows * kWidth, "check");
        DeviceArray<std::int32_t> chosen(b, rows, "check");
        std::vector<HostArray<std::int32_t>> seen;
        std::vector<std::uint64_t> tickets;
        for (std::int64_t s = 0; s < kSteps; ++s) {
            const auto& step = tokens[static_cast<std::size_t>(s)];
            b.fence_copies();
            b.copy_in(chosen.data(), step.data(), step.size() * 4);
            b.resolve_tokens(to.data(), host[static_cast<std::size_t>(s)], chosen.data(), kIds);
            b.embed(*on_device, {host[static_cast<std::size_t>(s)], to.data(), true}, x.data());
            seen.emplace_back(b, 3 * rows, "check");
            tickets.push_back(
                b.copy_async(seen.back().data(), to.data(), static_cast<std::size_t>(rows) * sizeof(Row)));
            if (s > 0) {
                b.wait_copy(tickets[static_cast<std::size_t>(s - 1)]);
                const auto row = seen[static_cast<std::size_t>(s - 1)].span();
                placed[side].insert(placed[side].end(), row.begin(), row.end());
            }
            if (s % 3 == 2) {
                const auto v = download(b, x.data(), x.size());
                results[side].insert(results[side].end(), v.begin(), v.end());
            }
        }
        b.synchronize();
    }
    const auto d = difference(results[0], results[1]);
    p.tally.add(d.empty(), "embed of tokens on the device, " + text({rows}) + " rows" + d);
    p.tally.add(placed[0] == placed[1], "rows with tokens on the device, " + text({rows}));
}

/// Every finite number of half precision, subnormal ones included.
void check_halves(Pair& p) {
    constexpr std::int64_t kCols = 256, kRows = 0x10000 / kCols;
    std::vector<std::uint16_t> codes;
    for (std::uint32_t code = 0; code < 0x10000; ++code)
        codes.push_back((code & 0x7c00u) == 0x7c00u ? std::uint16_t{0} : static_cast<std::uint16_t>(code));
    RowBlock block;
    block.rows = kRows;
    block.codes = reinterpret_cast<const std::byte*>(codes.data());
    block.pitch = kCols * 2;
    block.name = "halves";
    const MatrixSource source{Format::f16, 1, kRows, kCols, {block}};
    std::vector<Row> rows;
    for (std::int32_t i = 0; i < kRows; ++i) rows.push_back({i, 0, i});
    std::vector<float> values[2];
    for (int side = 0; side < 2; ++side) {
        Backend& b = side ? p.gpu : p.cpu;
        const auto table = b.load_table(source, false);
        auto device_rows = upload(b, rows);
        DeviceArray<float> x(b, kRows * kCols, "check");
        b.embed(*table, {rows, device_rows.data()}, x.data());
        values[side] = download(b, x.data(), x.size());
    }
    const auto d = difference(values[0], values[1]);
    p.tally.add(d.empty(), "numbers of half precision" + d);
}

}  // namespace ftmpi::check
