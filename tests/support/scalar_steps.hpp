// Every step of a backend, scalar and one row at a time, straight from numerics.hpp on unpacked data. Tests
// hold backends equal to these bit by bit.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend.hpp"
#include "numerics.hpp"
#include "random.hpp"

namespace ftmpi::reference {

using ftmpi::Random;

/// A stored matrix with random legal contents, laid out as a file would: rows with gaps, in two blocks a
/// group.
struct StoredMatrix {
    Format format;
    std::int64_t groups, rows, cols;
    std::size_t pitch, scale_pitch;
    std::vector<std::uint8_t> codes,
        scales;  ///< [groups * rows][pitch]; scales per row, or one plane of 128-row blocks a group
    std::vector<float> row_scales;   ///< fp8_row
    std::vector<float> multipliers;  ///< nvfp4, one a block of rows: [2 * groups]

    StoredMatrix(Format f, std::int64_t g, std::int64_t r, std::int64_t c, std::uint64_t seed)
        : format(f), groups(g), rows(r), cols(c) {
        Random random(seed);
        pitch = code_bytes(f, c) + 3;
        codes.resize(static_cast<std::size_t>(g * r) * pitch);
        for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = code(random);
        const auto n = static_cast<std::size_t>(scales_per_row(f, c));
        if (f == Format::fp8_block) {
            scale_pitch = n * 4 + 4;
            scales.resize(static_cast<std::size_t>(g) * plane_rows() * scale_pitch);
            for (std::size_t i = 0; i + 4 <= scales.size(); i += 4) {
                const float x = random.unit() * 0.01f + 0.0101f;
                std::memcpy(&scales[i], &x, 4);
            }
        } else {
            scale_pitch = n + 1;
            scales.resize(static_cast<std::size_t>(g * r) * scale_pitch);
            for (auto& x : scales)
                x = f == Format::mxfp4
                        ? static_cast<std::uint8_t>(118 + random.bits() % 8)
                        : static_cast<std::uint8_t>(random.bits() % 9 == 0 ? random.bits() % 8
                                                                           : random.bits() % 0x7f);
        }
        if (f == Format::fp8_row)
            for (std::int64_t i = 0; i < g * r; ++i) row_scales.push_back(random.unit() * 0.01f + 0.0101f);
        for (std::int64_t i = 0; i < 2 * g; ++i) multipliers.push_back(random.unit() * 0.001f + 0.00101f);
        if (is_plain(f))  // random bits would be anything; keep sizes near 1
            for (std::int64_t i = 0; i < g * r; ++i)
                for (std::int64_t k = 0; k < c; ++k) {
                    const float wide = random.unit();
                    const auto half =
                        static_cast<std::uint16_t>(random.bits() % 0x4000 | (wide < 0 ? 0x8000 : 0));
                    const std::uint16_t x = f == Format::f16 ? half : num::to_bf16(wide);
                    const std::size_t size = code_bytes(f, 1);
                    std::memcpy(
                        &codes[static_cast<std::size_t>(i) * pitch + static_cast<std::size_t>(k) * size],
                        size == 4 ? static_cast<const void*>(&wide) : &x, size);
                }
    }

    std::int64_t first_part() const { return rows / 3; }  ///< rows of a group's first block
    std::size_t plane_rows() const { return static_cast<std::size_t>((rows + 5 + 127) / 128); }

    MatrixSource source() const {
        MatrixSource s{format, groups, rows, cols, {}};
        for (std::int64_t g = 0; g < groups; ++g)
            for (int part = 0; part < 2; ++part) {
                const std::int64_t from = part ? first_part() : 0,
                                   count = part ? rows - first_part() : first_part();
                const auto row = static_cast<std::size_t>(g * rows + from);
                RowBlock b;
                b.rows = count;
                b.codes = reinterpret_cast<const std::byte*>(codes.data() + row * pitch);
                b.pitch = pitch;
                b.scale_pitch = scale_pitch;
                b.name = "test.weight";
                b.stored_row = from;
                if (format == Format::fp8_block) {
                    b.scales = reinterpret_cast<const std::byte*>(
                        scales.data() + static_cast<std::size_t>(g) * plane_rows() * scale_pitch);
                    b.scale_type = DType::f32;
                    b.first_row = from + 5;  // blocks of 128 rows start elsewhere than the rows held
                } else if (!scales.empty()) {
                    b.scales = reinterpret_cast<const std::byte*>(scales.data() + row * scale_pitch);
                }
                if (format == Format::fp8_row)
                    b.row_scales = reinterpret_cast<const std::byte*>(row_scales.data() + row);
                b.multiplier = multipliers[static_cast<std::size_t>(2 * g + part)];
                s.blocks.push_back(b);
            }
        return s;
    }

    /// Row i of all as floats, of a format without scales.
    std::vector<float> floats(std::int64_t i) const {
        const std::uint8_t* w = codes.data() + static_cast<std::size_t>(i) * pitch;
        std::vector<float> values(static_cast<std::size_t>(cols));
        if (format == Format::f32) std::memcpy(values.data(), w, values.size() * 4);
        else
            for (auto& v : values) {
                std::uint16_t code;
                std::memcpy(&code, w, 2);
                v = format == Format::f16 ? num::from_f16(code) : num::from_bf16(code);
                w += 2;
            }
        return values;
    }

    /// One row of one group times x.
    float dot(std::int64_t group, std::int64_t row, const float* x) const {
        const auto i = static_cast<std::size_t>(group * rows + row);
        const std::uint8_t* w = codes.data() + i * pitch;
        if (is_plain(format)) return num::dot(floats(static_cast<std::int64_t>(i)).data(), x, cols);
        std::vector<std::int32_t> wide(static_cast<std::size_t>(cols));
        std::vector<std::int8_t> exponents(static_cast<std::size_t>((cols + 511) / 512));
        num::quantize_segments(x, cols, wide.data(), exponents.data());
        if (format == Format::fp8_row)
            return num::dot_fp8_row(w, row_scales[i], wide.data(), exponents.data(), cols);
        if (format == Format::fp8_block) {
            std::vector<float> s(static_cast<std::size_t>(scales_per_row(format, cols)));
            const std::size_t plane =
                static_cast<std::size_t>(group) * plane_rows() + static_cast<std::size_t>(row + 5) / 128;
            std::memcpy(s.data(), scales.data() + plane * scale_pitch, s.size() * 4);
            return num::dot_fp8_block(w, s.data(), wide.data(), exponents.data(), cols);
        }
        const auto chunks = static_cast<std::size_t>((cols + 31) / 32);
        std::vector<std::int16_t> q(chunks * 32);
        std::vector<std::int8_t> e(chunks);
        num::quantize_blocks(x, cols, q.data(), e.data());
        const std::uint8_t* s = scales.data() + i * scale_pitch;
        if (format == Format::mxfp4) return num::dot_mxfp4(w, s, q.data(), e.data(), cols);
        return num::dot_nvfp4(w, s, multipliers[static_cast<std::size_t>(2 * group + (row >= first_part()))],
                              q.data(), e.data(), cols);
    }

private:
    std::uint8_t code(Random& random) const {
        const auto x = static_cast<std::uint8_t>(random.bits() >> 8);
        if (is_4bit(format)) return x;
        return (x & 0x7f) == 0x7f ? static_cast<std::uint8_t>(x & 0x80) : x;
    }
};

/// One token of one value head of the delta net from the sequence's raw inputs so far. history: [taps - 1 +
/// t][channels].
struct DeltaReference {
    const DeltaNet& net;
    std::vector<std::vector<float>>
        history;               ///< raw inputs, oldest first, starting with taps - 1 rows of zeros
    std::vector<float> state;  ///< [value_heads][key_dim][value_dim]

    explicit DeltaReference(const DeltaNet& n)
        : net(n), history(static_cast<std::size_t>(n.taps - 1),
                          std::vector<float>(static_cast<std::size_t>(n.channels()), 0.0f)),
          state(static_cast<std::size_t>(n.value_heads * n.key_dim * n.value_dim), 0.0f) {}

    void token(const float* qkv, const float* z, const float* b, const float* a, float* out) {
        history.emplace_back(qkv, qkv + net.channels());
        const std::size_t oldest = history.size() - static_cast<std::size_t>(net.taps);
        std::vector<float> u(static_cast<std::size_t>(net.channels()));
        for (int c = 0; c < net.channels(); ++c)
            u[static_cast<std::size_t>(c)] =
                num::silu(num::causal_conv(net.conv + c * net.taps, net.taps, [&](int j) {
                    return history[oldest + static_cast<std::size_t>(j)][static_cast<std::size_t>(c)];
                }));
        const float root = num::inverse_root_of(net.key_dim);
        for (int h = 0; h < net.value_heads; ++h) {
            const int kh = h * net.key_heads / net.value_heads;
            const float* q0 = u.data() + kh * net.key_dim;
            const float* k0 = u.data() + (net.key_heads + kh) * net.key_dim;
            const float* v = u.data() + 2 * net.key_heads * net.key_dim + h * net.value_dim;
            std::vector<float> q, k;
            const float sq = num::l2_scale(num::sum_of_squares(q0, net.key_dim)),
                        sk = num::l2_scale(num::sum_of_squares(k0, net.key_dim));
            for (int i = 0; i < net.key_dim; ++i) {
                q.push_back(num::delta_query(q0[i], sq, root));
                k.push_back(k0[i] * sk);
            }
            const float beta = num::sigmoid(b[h]),
                        decay = num::delta_decay(net.neg_exp_a[h], a[h], net.dt_bias[h]);
            float* s = state.data() + h * net.key_dim * net.value_dim;
            std::vector<float> o;
            for (int j = 0; j < net.value_dim; ++j)
                o.push_back(num::delta_rule_column(s + j, net.value_dim, net.key_dim, k.data(), q.data(),
                                                   v[j], beta, decay));
            const float scale =
                num::rms_scale(num::sum_of_squares(o.data(), net.value_dim), net.value_dim, net.eps);
            for (int j = 0; j < net.value_dim; ++j)
                out[h * net.value_dim + j] = num::gated_norm(o[static_cast<std::size_t>(j)], scale,
                                                             net.norm[j], z[h * net.value_dim + j]);
        }
    }
};

/// Attention of one sequence, token by token; keys and values as they are read back from the cache.
struct AttentionReference {
    const Attention& t;
    std::vector<std::vector<float>> keys, values;  ///< [kv_heads][position * head_dim]

    explicit AttentionReference(const Attention& a)
        : t(a), keys(static_cast<std::size_t>(a.kv_heads)), values(static_cast<std::size_t>(a.kv_heads)) {}

    float stored(float x, float scale) const {
        if (t.kv == KvType::fp32) return x;
        if (t.kv == KvType::bf16) return num::from_bf16(num::to_bf16(x));
        return num::kv_from_fp8(num::kv_to_fp8(x, scale), scale);
    }
    std::vector<float> prepared(const float* x, const float* weight, std::int64_t position) const {
        const float scale = num::rms_scale(num::sum_of_squares(x, t.head_dim), t.head_dim, t.eps);
        std::vector<float> y;
        for (int i = 0; i < t.head_dim; ++i) y.push_back(num::rms_apply(x[i], scale, weight[i]));
        const int half = t.rotary_dim / 2;
        for (int i = 0; i < half; ++i) {
            const float a = y[static_cast<std::size_t>(i)], b = y[static_cast<std::size_t>(i + half)];
            y[static_cast<std::size_t>(i)] =
                num::rope_first(a, b, t.cos[position * half + i], t.sin[position * half + i]);
            y[static_cast<std::size_t>(i + half)] =
                num::rope_second(a, b, t.cos[position * half + i], t.sin[position * half + i]);
        }
        return y;
    }
    void token(std::int64_t position, const float* qg, const float* k, const float* v, float* out) {
        for (int h = 0; h < t.kv_heads; ++h) {
            for (const float x : prepared(k + h * t.head_dim, t.k_norm, position))
                keys[static_cast<std::size_t>(h)].push_back(stored(x, t.k_scale));
            for (int i = 0; i < t.head_dim; ++i)
                values[static_cast<std::size_t>(h)].push_back(stored(v[h * t.head_dim + i], t.v_scale));
        }
        for (int h = 0; h < t.query_heads; ++h) {
            const auto kv = static_cast<std::size_t>((t.first_query_head + h) / t.group - t.first_kv_head);
            const int pitch = t.gated ? 2 * t.head_dim : t.head_dim;
            const auto q = prepared(qg + h * pitch, t.q_norm, position);
            float max = 0, sum = 0;
            std::vector<float> merged(static_cast<std::size_t>(t.head_dim));
            for (std::int64_t p0 = 0; p0 <= position; p0 += num::kAttentionPiece) {
                const int n =
                    static_cast<int>(std::min<std::int64_t>(position - p0 + 1, num::kAttentionPiece));
                std::vector<float> s;
                for (int i = 0; i < n; ++i)
                    s.push_back(num::dot(q.data(), keys[kv].data() + (p0 + i) * t.head_dim, t.head_dim) *
                                t.scale);
                const float m = num::piece_max(s.data(), n);
                for (auto& x : s) x = num::exp(x - m);
                const float l = num::sum(s.data(), n);
                const num::Merge g = p0 ? num::merge_of(max, m) : num::Merge{m, 0, 0};
                for (int d = 0; d < t.head_dim; ++d) {
                    const float o =
                        num::piece_column(s.data(), values[kv].data() + p0 * t.head_dim + d, t.head_dim, n);
                    auto& old = merged[static_cast<std::size_t>(d)];
                    old = p0 ? num::merge_value(old, o, g) : o;
                }
                sum = p0 ? num::merge_value(sum, l, g) : l;
                max = g.max;
            }
            for (int d = 0; d < t.head_dim; ++d) {
                const float value = merged[static_cast<std::size_t>(d)];
                out[h * t.head_dim + d] = t.gated
                                              ? num::attention_out(value, sum, qg[h * pitch + t.head_dim + d])
                                              : num::attention_out(value, sum);
            }
        }
    }
};

}  // namespace ftmpi::reference
