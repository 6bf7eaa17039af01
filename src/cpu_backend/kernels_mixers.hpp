// Gated DeltaNet and attention. Included inside the anonymous namespace of each kernel source.
#pragma once

constexpr int kMostTaps = 8;

void convolve(const ConvTask& t) {
    over(t.count, [&](std::int64_t c, int n) {
        F w[kMostTaps];
        for (int j = 0; j < t.taps; ++j) {
            alignas(64) float lane[16] = {};
            for (int i = 0; i < n; ++i) lane[i] = t.weights[(c + i) * t.taps + j];
            w[j] = load(lane);
        }
        const auto input = [&](std::int64_t row) {  // raw inputs; rows before this step lie in the state
            const float* p =
                row < 0 ? t.state + (t.taps - 1 + row) * t.state_stride : t.inputs[row] + t.first_channel;
            return load_some(p + c, n);
        };
        for (std::int64_t row = 0; row < t.rows; ++row) {
            F acc = mul(w[0], input(row - t.taps + 1));
            for (int j = 1; j < t.taps; ++j) acc = fma(w[j], input(row - t.taps + 1 + j), acc);
            store_some(t.out + row * t.out_stride + c, silu(acc), n);
        }
        // Rising order: an entry is read, at a higher index, before it is overwritten.
        for (int s = 0; s < t.taps - 1; ++s)
            store_some(t.state + s * t.state_stride + c, input(t.rows - (t.taps - 1) + s), n);
    });
}

void l2_normalise(float* x, int dim, float inverse_root) {
    const F scale = set(num::l2_scale(sum_of_squares(x, dim))), root = set(inverse_root);
    over(dim,
         [=](std::int64_t i, int n) { store_some(x + i, mul(mul(load_some(x + i, n), scale), root), n); });
}

void gates(const float* b, const float* a, const float* neg_exp_a, const float* dt_bias, int heads,
           float* beta, float* decay) {
    for (int h = 0; h < heads; ++h) {
        beta[h] = num::sigmoid(b[h]);
        decay[h] = num::delta_decay(neg_exp_a[h], a[h], dt_bias[h]);
    }
}

/// num::delta_rule_column for 16 * N columns. The decayed state is not stored between the two passes but made
/// again.
template <int N>
inline void delta_columns(float* state, std::int64_t stride, int key_dim, const float* k, const float* q,
                          const float* v, float beta, float decay, float* out) {
    const F by = set(decay);
    F total[N], d[N];
    const auto pass = [&](auto element) __attribute__((always_inline)) {
        unroll<N>(FTMPI_UNROLLED(n) { total[n] = zero(); });
        for (int s = 0; s < key_dim; s += num::kSegment) {
            const int end = s + num::kSegment < key_dim ? s + num::kSegment : key_dim;
            F segment[N];
            unroll<N>(FTMPI_UNROLLED(n) { segment[n] = zero(); });
            for (int k0 = s; k0 < end; k0 += num::kChunk) {
                const int stop = k0 + num::kChunk < end ? k0 + num::kChunk : end;
                F c[N];
                unroll<N>(FTMPI_UNROLLED(n) { c[n] = zero(); });
                for (int i = k0; i < stop; ++i) element(i, c);
                unroll<N>(FTMPI_UNROLLED(n) { segment[n] = add(segment[n], c[n]); });
            }
            unroll<N>(FTMPI_UNROLLED(n) { total[n] = add(total[n], segment[n]); });
        }
    };
    pass([&](int i, F(&c)[N]) __attribute__((always_inline)) {
        const F key = set(k[i]);
        const float* at = state + i * stride;
        unroll<N>(FTMPI_UNROLLED(n) { c[n] = fma(mul(load(at + 16 * n), by), key, c[n]); });
    });
    unroll<N>(FTMPI_UNROLLED(n) { d[n] = mul(set(beta), sub(load(v + 16 * n), total[n])); });
    pass([&](int i, F(&c)[N]) __attribute__((always_inline)) {
        const F key = set(k[i]), query = set(q[i]);
        float* at = state + i * stride;
        unroll<N>(FTMPI_UNROLLED(n) {
            const F s = fma(key, d[n], mul(load(at + 16 * n), by));
            store(at + 16 * n, s);
            c[n] = fma(s, query, c[n]);
        });
    });
    unroll<N>(FTMPI_UNROLLED(n) { store(out + 16 * n, total[n]); });
}

/// All rows of 16 * N columns from column j on. Columns do not depend on each other.
template <int N> inline void delta_rows(const DeltaTask& t, int j, float* state, std::int64_t stride) {
    for (std::int64_t r = 0; r < t.rows; ++r)
        delta_columns<N>(state, stride, t.key_dim, t.k + r * t.stride, t.q + r * t.stride,
                         t.v + r * t.stride + j, t.beta[r], t.decay[r], t.out[r] + j);
}

void delta_rule(const DeltaTask& t) {
    int j = 0;
    constexpr int kBlock = 4;
    if (t.rows >= 4 && t.key_dim <= 128) {
        // A block's state stays in the first cache over all rows, in a place of its own: rows of value_dim
        // floats would all fall on the same few lines of that cache.
        alignas(64) float block[128 * 16 * kBlock];
        for (; j + 16 * kBlock <= t.value_dim; j += 16 * kBlock) {
            for (int i = 0; i < t.key_dim; ++i)
                std::memcpy(block + i * 16 * kBlock, t.state + i * t.value_dim + j, 64 * kBlock);
            delta_rows<kBlock>(t, j, block, 16 * kBlock);
            for (int i = 0; i < t.key_dim; ++i)
                std::memcpy(t.state + i * t.value_dim + j, block + i * 16 * kBlock, 64 * kBlock);
        }
    }
    for (; j + 16 * kChains <= t.value_dim; j += 16 * kChains)
        delta_rows<kChains>(t, j, t.state + j, t.value_dim);
    for (; j + 16 <= t.value_dim; j += 16) delta_rows<1>(t, j, t.state + j, t.value_dim);
    for (; j < t.value_dim; ++j)
        for (std::int64_t r = 0; r < t.rows; ++r)
            t.out[r][j] =
                num::delta_rule_column(t.state + j, t.value_dim, t.key_dim, t.k + r * t.stride,
                                       t.q + r * t.stride, t.v[r * t.stride + j], t.beta[r], t.decay[r]);
    for (std::int64_t r = 0; r < t.rows; ++r) {
        float* o = t.out[r];
        const F scale = set(num::rms_scale(sum_of_squares(o, t.value_dim), t.value_dim, t.eps));
        over(t.value_dim, [&](std::int64_t i, int n) {
            const F normed = mul(mul(load_some(o + i, n), scale), load_some(t.norm + i, n));
            store_some(o + i, mul(normed, silu(load_some(t.z[r] + i, n))), n);
        });
    }
}

void norm_rope(const float* x, const float* weight, float eps, int dim, int rotary_dim, const float* cos,
               const float* sin, float* y) {
    rms_norm(x, weight, eps, dim, y);
    const int half = rotary_dim / 2;
    for (int i = 0; i < half; ++i) {
        const float a = y[i], b = y[i + half];
        y[i] = num::rope_first(a, b, cos[i], sin[i]);
        y[i + half] = num::rope_second(a, b, cos[i], sin[i]);
    }
}

void store_kv(const float* x, int dim, KvType type, float scale, void* to) {
    if (type == KvType::fp32) {
        std::memcpy(to, x, static_cast<std::size_t>(dim) * 4);
    } else if (type == KvType::bf16) {
        auto* p = static_cast<std::uint16_t*>(to);
        for (int i = 0; i < dim; ++i) p[i] = num::to_bf16(x[i]);
    } else {
        auto* p = static_cast<std::uint8_t*>(to);
        for (int i = 0; i < dim; ++i) p[i] = num::kv_to_fp8(x[i], scale);
    }
}

/// Element i of a stored row.
inline float kv_at(const void* row, KvType type, float scale, int i) {
    if (type == KvType::fp32) return static_cast<const float*>(row)[i];
    if (type == KvType::bf16) return num::from_bf16(static_cast<const std::uint16_t*>(row)[i]);
    return num::kv_from_fp8(static_cast<const std::uint8_t*>(row)[i], scale);
}

inline const char* kv_row(const void* base, KvType type, int dim, std::int64_t position) {
    const int size = type == KvType::fp32 ? 4 : type == KvType::bf16 ? 2 : 1;
    return static_cast<const char*>(base) + position * dim * size;
}

/// 16 positions from `first` as [dim][16] floats; lanes beyond `count` repeat the last position.
inline void decode_keys(const AttendTask& t, std::int64_t first, int count, float* to) {
    const int size = t.kv == KvType::fp32 ? 4 : t.kv == KvType::bf16 ? 2 : 1, per_word = 4 / size;
    const char* base = kv_row(t.keys, t.kv, t.head_dim, first);
    alignas(64) std::int32_t offset[16];
    for (int i = 0; i < 16; ++i) offset[i] = (i < count ? i : count - 1) * t.head_dim * size;
    const I offsets = iload(offset);
    const F scale = set(t.k_scale);
    int d = 0;
    for (; d + per_word <= t.head_dim; d += per_word, base += 4) {
        const I v = gather(base, offsets);
        float* p = to + d * 16;
        if (t.kv == KvType::fp32) {
            store(p, as_float(v));
        } else if (t.kv == KvType::bf16) {
            store(p, as_float(shift_left<16>(v)));
            store(p + 16, as_float(iand(v, iset(static_cast<int>(0xffff0000u)))));
        } else {
            const I low = iset(0xff);
            store(p, mul(from_e4m3(iand(v, low)), scale));
            store(p + 16, mul(from_e4m3(iand(shift_right<8>(v), low)), scale));
            store(p + 32, mul(from_e4m3(iand(shift_right<16>(v), low)), scale));
            store(p + 48, mul(from_e4m3(shift_right<24>(v)), scale));
        }
    }
    for (; d < t.head_dim; ++d)
        for (int i = 0; i < 16; ++i)
            to[d * 16 + i] = kv_at(kv_row(t.keys, t.kv, t.head_dim, first + (i < count ? i : count - 1)),
                                   t.kv, t.k_scale, d);
}

/// `count` positions of values as [count][width] floats, columns from head_dim to width zero.
inline void decode_values(const AttendTask& t, std::int64_t first, int count, int width, float* to) {
    for (int i = 0; i < count; ++i, to += width) {
        const char* row = kv_row(t.values, t.kv, t.head_dim, first + i);
        int d = 0;
        if (t.kv == KvType::fp32)
            for (; d < t.head_dim; ++d) to[d] = kv_at(row, KvType::fp32, 1.0f, d);
        else if (t.kv == KvType::bf16)
            for (; d < t.head_dim; ++d) to[d] = kv_at(row, KvType::bf16, 1.0f, d);
        else
            for (; d + 16 <= t.head_dim; d += 16)
                store(to + d, mul(from_e4m3(widen_bytes(reinterpret_cast<const std::uint8_t*>(row) + d)),
                                  set(t.v_scale)));
        for (; d < t.head_dim; ++d) to[d] = kv_at(row, t.kv, t.v_scale, d);
        for (; d < width; ++d) to[d] = 0.0f;
    }
}

/// piece += a chunk of up to 32 positions: per column an fma chain over positions.
template <int N>
inline void add_chunk_columns(const float* p, const float* values, int count, int width, float* piece) {
    F c[N];
    unroll<N>(FTMPI_UNROLLED(n) { c[n] = zero(); });
    for (int i = 0; i < count; ++i) {
        const F w = set(p[i]);
        const float* at = values + i * width;
        unroll<N>(FTMPI_UNROLLED(n) { c[n] = fma(w, load(at + 16 * n), c[n]); });
    }
    unroll<N>(FTMPI_UNROLLED(n) { store(piece + 16 * n, add(load(piece + 16 * n), c[n])); });
}
inline void add_chunk(const float* p, const float* values, int count, int width, float* piece) {
    int d = 0;
    for (; d + 16 * kChains <= width; d += 16 * kChains)
        add_chunk_columns<kChains>(p, values + d, count, width, piece + d);
    for (; d < width; d += 16) add_chunk_columns<1>(p, values + d, count, width, piece + d);
}

void attend(const AttendTask& t) {
    const int width = (t.head_dim + 15) / 16 * 16;
    float* decoded = t.scratch;
    float* scores = decoded + 32 * width;  // [query][kAttentionPiece]: scores, then weights
    float* piece = scores + kQueryBlock * num::kAttentionPiece;  // [query][width]
    float* out = piece + kQueryBlock * width;                    // [query][width], merged so far
    float max[kQueryBlock], sum[kQueryBlock];
    const std::int64_t last = t.queries[t.count - 1].position;
    int from = 0;  // first query that reaches the piece, later the tile or chunk
    for (std::int64_t p0 = 0; p0 <= last; p0 += num::kAttentionPiece) {
        const int length =
            static_cast<int>(last - p0 + 1 < num::kAttentionPiece ? last - p0 + 1 : num::kAttentionPiece);
        const auto reach = [&](int query, int at) {  // positions the query sees of the piece from `at` on
            const std::int64_t n = t.queries[query].position - (p0 + at) + 1;
            return static_cast<int>(n < num::kAttentionPiece - at ? n : num::kAttentionPiece - at);
        };
        while (reach(from, 0) <= 0) ++from;
        int reaching = from;
        for (int at = 0; at < length; at += 16) {
            while (reach(reaching, at) <= 0) ++reaching;
            decode_keys(t, p0 + at, length - at < 16 ? length - at : 16, decoded);
            const float* q[kQueryBlock];
            F dots[kQueryBlock];
            const int count = t.count - reaching;
            for (int i = 0; i < count; ++i) q[i] = t.queries[reaching + i].q;
            tile_dot<FloatTile>(reinterpret_cast<const std::uint8_t*>(decoded), t.head_dim, q, count, dots);
            for (int i = 0; i < count; ++i)
                store(scores + (reaching + i) * num::kAttentionPiece + at, mul(dots[i], set(t.scale)));
        }
        float piece_max[kQueryBlock], piece_sum[kQueryBlock];
        for (int i = from; i < t.count; ++i) {
            const int n = reach(i, 0);
            float* s = scores + i * num::kAttentionPiece;
            const float m = piece_max[i] = num::piece_max(s, n);
            over(n, [=](std::int64_t k, int lanes) {
                store_some(s + k, exp(sub(load_some(s + k, lanes), set(m))), lanes);
            });
            piece_sum[i] = num::sum(s, n);
            for (int d = 0; d < width; ++d) piece[i * width + d] = 0.0f;
        }
        reaching = from;
        for (int at = 0; at < length; at += num::kChunk) {
            while (reach(reaching, at) <= 0) ++reaching;
            decode_values(t, p0 + at, length - at < num::kChunk ? length - at : num::kChunk, width, decoded);
            for (int i = reaching; i < t.count; ++i) {
                const int n = reach(i, at);
                add_chunk(scores + i * num::kAttentionPiece + at, decoded, n < num::kChunk ? n : num::kChunk,
                          width, piece + i * width);
            }
        }
        for (int i = from; i < t.count; ++i) {
            float *old = out + i * width, *now = piece + i * width;
            if (p0 == 0) {
                std::memcpy(old, now, static_cast<std::size_t>(width) * 4);
                max[i] = piece_max[i];
                sum[i] = piece_sum[i];
                continue;
            }
            const num::Merge g = num::merge_of(max[i], piece_max[i]);
            max[i] = g.max;
            sum[i] = num::merge_value(sum[i], piece_sum[i], g);
            const F old_scale = set(g.old_scale), new_scale = set(g.new_scale);
            for (int d = 0; d < width; d += 16)
                store(old + d, fma(load(now + d), new_scale, mul(load(old + d), old_scale)));
        }
    }
    for (int i = 0; i < t.count; ++i) {
        const Query& query = t.queries[i];
        const F l = set(sum[i]);
        over(t.head_dim, [&](std::int64_t d, int n) {
            F y = div(load(out + i * width + d), l);
            if (query.gate) y = mul(y, sigmoid(load_some(query.gate + d, n)));
            store_some(query.out + d, y, n);
        });
    }
}
