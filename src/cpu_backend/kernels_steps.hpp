// Norms, activations, routing and the choice of a token. Included inside the anonymous namespace of each
// kernel source.
#pragma once

/// Runs op(first element, lanes) over n elements; lanes is 16 except in the last call.
template <class Op> inline void over(std::int64_t n, Op op) {
    std::int64_t i = 0;
    for (; i + 16 <= n; i += 16) op(i, 16);
    if (i < n) op(i, static_cast<int>(n - i));
}
inline F load_some(const float* p, int n) { return n == 16 ? load(p) : load_first(p, n); }
inline void store_some(float* p, F a, int n) {
    if (n == 16) store(p, a);
    else store_first(p, a, n);
}

/// num::sum_of_squares with the chains of four chunks running together.
float sum_of_squares(const float* x, std::int64_t count) {
    float total = 0.0f;
    for (std::int64_t s = 0; s < count; s += num::kSegment) {
        const std::int64_t end = s + num::kSegment < count ? s + num::kSegment : count;
        float segment = 0.0f;
        std::int64_t k = s;
        for (; k + kQuad <= end; k += kQuad) {
            float c0 = 0.0f, c1 = 0.0f, c2 = 0.0f, c3 = 0.0f;
            for (std::int64_t i = k; i < k + num::kChunk; ++i) {
                c0 = num::fma(x[i], x[i], c0);
                c1 = num::fma(x[i + 32], x[i + 32], c1);
                c2 = num::fma(x[i + 64], x[i + 64], c2);
                c3 = num::fma(x[i + 96], x[i + 96], c3);
            }
            segment = (((segment + c0) + c1) + c2) + c3;
        }
        for (; k < end; k += num::kChunk) {
            float c = 0.0f;
            for (std::int64_t i = k; i < end && i < k + num::kChunk; ++i) c = num::fma(x[i], x[i], c);
            segment = segment + c;
        }
        total = total + segment;
    }
    return total;
}

inline F silu(F x) { return div(x, add(set(1.0f), exp(mul(x, set(-1.0f))))); }
inline F sigmoid(F x) { return div(set(1.0f), add(set(1.0f), exp(mul(x, set(-1.0f))))); }

void rms_norm(const float* x, const float* weight, float eps, std::int64_t width, float* y) {
    const F scale = set(num::rms_scale(sum_of_squares(x, width), width, eps));
    over(width, [=](std::int64_t i, int n) {
        store_some(y + i, mul(mul(load_some(x + i, n), scale), load_some(weight + i, n)), n);
    });
}

void expert_act(const float* gate, const float* up, std::int64_t n, float* act) {
    over(n, [=](std::int64_t i, int m) {
        store_some(act + i, mul(silu(load_some(gate + i, m)), load_some(up + i, m)), m);
    });
}

void expert_add(float weight, const float* y, std::int64_t n, float* acc) {
    over(n, [=](std::int64_t i, int m) {
        store_some(acc + i, fma(set(weight), load_some(y + i, m), load_some(acc + i, m)), m);
    });
}

void add_to(const float* h, const float* y, float* sum, std::int64_t n) {
    over(n, [=](std::int64_t i, int m) {
        store_some(sum + i, add(load_some(h + i, m), load_some(y + i, m)), m);
    });
}

void route(const float* logits, int experts, int top_k, std::int32_t* ids, float* weights) {
    num::route(logits, experts, top_k, ids, weights);
}

void argmax(const float* logits, std::int64_t ids, const std::uint8_t* masked, std::int32_t* token,
            std::int32_t* finite) {
    std::int32_t bad = 0;
    for (std::int64_t i = 0; i < ids; ++i) bad |= (num::bits_of(logits[i]) & 0x7f800000u) == 0x7f800000u;
    *finite = bad ? 0 : 1;
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < ids; ++i)
        if (!(masked && masked[i]) && (best < 0 || logits[i] > logits[best])) best = i;
    *token = static_cast<std::int32_t>(best);
}
