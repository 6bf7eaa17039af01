#include "plain_forward.hpp"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace ftmpi::testing {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

/// Four chains only so that a test run takes seconds; in double their order does not matter here.
double dot(const double* a, const double* b, std::int64_t n) {
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    std::int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        s0 += a[i] * b[i];
        s1 += a[i + 1] * b[i + 1];
        s2 += a[i + 2] * b[i + 2];
        s3 += a[i + 3] * b[i + 3];
    }
    for (; i < n; ++i) s0 += a[i] * b[i];
    return (s0 + s1) + (s2 + s3);
}

/// y = x W^T for stored [out, in] weights.
PlainMatrix apply(const PlainMatrix& w, const PlainMatrix& x) {
    if (w.cols != x.cols)
        throw std::runtime_error("matrix of " + std::to_string(w.cols) + " columns on a vector of " +
                                 std::to_string(x.cols));
    PlainMatrix y(x.rows, w.rows);
    for (std::int64_t r = 0; r < w.rows; ++r)
        for (std::int64_t t = 0; t < x.rows; ++t) y[t][r] = dot(w[r], x[t], w.cols);
    return y;
}

void scale_to_unit(double* x, int n, double eps, double factor) {
    const double s = factor / std::sqrt(dot(x, x, n) + eps);
    for (int i = 0; i < n; ++i) x[i] *= s;
}

/// Rows [begin, begin + rows).
PlainMatrix rows_of(const PlainMatrix& m, std::int64_t begin, std::int64_t rows) {
    PlainMatrix part(rows, m.cols);
    std::copy_n(m[begin], rows * m.cols, part[0]);
    return part;
}

}  // namespace

PlainReference::PlainReference(const std::filesystem::path& directory) {
    read_config(directory);
    const PlainSafetensors files(directory);
    const std::string prefix =
        files.find("model.language_model.embed_tokens.weight") ? "model.language_model." : "model.";
    embedding_ = plain_matrix(files, prefix + "embed_tokens");
    norm_ = plain_values(files.at(prefix + "norm.weight"));
    head_ = tied_ ? embedding_ : plain_matrix(files, "lm_head");
    for (std::size_t i = 0; i < attention_layers_.size(); ++i)
        layers_.push_back(
            read_layer(files, prefix + "layers." + std::to_string(i) + ".", attention_layers_[i]));
}

void PlainReference::read_config(const std::filesystem::path& directory) {
    simdjson::dom::parser parser;
    const simdjson::dom::element root = parser.load((directory / "config.json").string());
    simdjson::dom::element text = root;
    if (auto nested = root["text_config"]; !nested.error()) text = nested.value();
    const auto integer = [&](const char* key) { return static_cast<int>(std::int64_t(text[key])); };

    hidden_ = integer("hidden_size");
    heads_ = integer("num_attention_heads");
    kv_heads_ = integer("num_key_value_heads");
    head_dim_ = integer("head_dim");
    experts_ = integer("num_experts");
    top_k_ = integer("num_experts_per_tok");
    eps_ = double(text["rms_norm_eps"]);
    tied_ = bool(root["tie_word_embeddings"]);
    qwen3_moe_ = std::string_view(root["model_type"]) == "qwen3_moe";
    if (qwen3_moe_) {
        theta_ = double(text["rope_theta"]);
        rotary_ = head_dim_;
        attention_layers_.assign(static_cast<std::size_t>(integer("num_hidden_layers")), true);
        return;
    }
    key_heads_ = integer("linear_num_key_heads");
    value_heads_ = integer("linear_num_value_heads");
    key_dim_ = integer("linear_key_head_dim");
    value_dim_ = integer("linear_value_head_dim");
    taps_ = integer("linear_conv_kernel_dim");
    const auto rope = text["rope_parameters"];
    theta_ = rope["rope_theta"].is_double() ? double(rope["rope_theta"])
                                            : static_cast<double>(std::int64_t(rope["rope_theta"]));
    rotary_ = static_cast<int>(head_dim_ * double(rope["partial_rotary_factor"]));
    for (const std::string_view kind : simdjson::dom::array(text["layer_types"]))
        attention_layers_.push_back(kind == "full_attention");
}

PlainReference::Layer PlainReference::read_layer(const PlainSafetensors& files, const std::string& p,
                                                 bool attention) const {
    const auto vector = [&](const std::string& name) { return plain_values(files.at(p + name)); };
    const auto matrix = [&](const std::string& name) { return plain_matrix(files, p + name); };
    Layer l;
    l.attention = attention;
    l.norm1 = vector("input_layernorm.weight");
    l.norm2 = vector("post_attention_layernorm.weight");
    if (attention) {
        l.q = matrix("self_attn.q_proj");
        l.k = matrix("self_attn.k_proj");
        l.v = matrix("self_attn.v_proj");
        l.out = matrix("self_attn.o_proj");
        l.q_norm = vector("self_attn.q_norm.weight");
        l.k_norm = vector("self_attn.k_norm.weight");
    } else {
        l.qkv = matrix("linear_attn.in_proj_qkv");
        l.z = matrix("linear_attn.in_proj_z");
        l.b = matrix("linear_attn.in_proj_b");
        l.a = matrix("linear_attn.in_proj_a");
        l.conv = matrix("linear_attn.conv1d");
        l.out = matrix("linear_attn.out_proj");
        l.a_log = vector("linear_attn.A_log");
        l.dt_bias = vector("linear_attn.dt_bias");
        l.gated_norm = vector("linear_attn.norm.weight");
    }
    l.router = matrix("mlp.gate");
    if (!qwen3_moe_) {
        l.shared_gate = matrix("mlp.shared_expert_gate");
        l.shared = {matrix("mlp.shared_expert.gate_proj"), matrix("mlp.shared_expert.up_proj"),
                    matrix("mlp.shared_expert.down_proj")};
    }
    if (files.find(p + "mlp.experts.gate_up_proj")) {
        const auto gate_up = plain_stack(files, p + "mlp.experts.gate_up_proj");
        auto down = plain_stack(files, p + "mlp.experts.down_proj");
        for (std::size_t e = 0; e < gate_up.size(); ++e) {
            const std::int64_t width = gate_up[e].rows / 2;
            l.experts.push_back(
                {rows_of(gate_up[e], 0, width), rows_of(gate_up[e], width, width), std::move(down[e])});
        }
    } else {
        for (int e = 0; e < experts_; ++e) {
            const std::string name = "mlp.experts." + std::to_string(e);
            l.experts.push_back(
                {matrix(name + ".gate_proj"), matrix(name + ".up_proj"), matrix(name + ".down_proj")});
        }
    }
    return l;
}

/// x / rms(x) * (1 + weight), where weights are stored zero-centred; * weight in Qwen3 MoE.
PlainMatrix PlainReference::rms_norm(const PlainMatrix& x, const std::vector<double>& weight) const {
    PlainMatrix y(x.rows, x.cols);
    for (std::int64_t t = 0; t < x.rows; ++t) {
        const double s = 1.0 / std::sqrt(dot(x[t], x[t], x.cols) / static_cast<double>(x.cols) + eps_);
        for (std::int64_t i = 0; i < x.cols; ++i)
            y[t][i] = x[t][i] * s * ((qwen3_moe_ ? 0.0 : 1.0) + weight[static_cast<std::size_t>(i)]);
    }
    return y;
}

PlainMatrix PlainReference::attention(const Layer& l, const PlainMatrix& x, PlainTrace::Layer& out) const {
    const std::int64_t n = x.rows, d = head_dim_;
    const PlainMatrix qg = apply(l.q, x);  // a gate follows each head's query
    const std::int64_t pitch = qwen3_moe_ ? d : 2 * d;
    PlainMatrix query(n, heads_ * d), mixed(n, heads_ * d);
    out.keys = apply(l.k, x);
    out.values = apply(l.v, x);
    for (std::int64_t t = 0; t < n; ++t)
        for (int h = 0; h < heads_; ++h) std::copy_n(qg[t] + pitch * h, d, query[t] + d * h);

    const auto norm_and_rotate = [&](PlainMatrix& m, int heads, const std::vector<double>& weight) {
        for (std::int64_t t = 0; t < n; ++t)
            for (int h = 0; h < heads; ++h) {
                PlainMatrix head(1, d);
                std::copy_n(m[t] + d * h, d, head[0]);
                head = rms_norm(head, weight);
                const int half = rotary_ / 2;
                for (int i = 0; i < half; ++i) {
                    // Frequencies and angles are fp32 by the model's definition; their rounding is part of
                    // the model.
                    const float power = static_cast<float>(
                        std::pow(theta_, static_cast<float>(2 * i) / static_cast<float>(rotary_)));
                    const float angle = static_cast<float>(t) * (1.0f / power);
                    const double c = std::cos(double{angle}), s = std::sin(double{angle});
                    const double a = head[0][i], b = head[0][i + half];
                    head[0][i] = a * c - b * s;
                    head[0][i + half] = b * c + a * s;
                }
                std::copy_n(head[0], d, m[t] + d * h);
            }
    };
    norm_and_rotate(query, heads_, l.q_norm);
    norm_and_rotate(out.keys, kv_heads_, l.k_norm);

    std::vector<double> p(static_cast<std::size_t>(n));
    for (std::int64_t t = 0; t < n; ++t)
        for (int h = 0; h < heads_; ++h) {
            const std::int64_t kv = h / (heads_ / kv_heads_) * d;
            double top = -INFINITY, sum = 0;
            for (std::int64_t s = 0; s <= t; ++s) {
                p[static_cast<std::size_t>(s)] =
                    dot(query[t] + d * h, out.keys[s] + kv, d) / std::sqrt(static_cast<double>(d));
                top = std::max(top, p[static_cast<std::size_t>(s)]);
            }
            for (std::int64_t s = 0; s <= t; ++s)
                sum += p[static_cast<std::size_t>(s)] = std::exp(p[static_cast<std::size_t>(s)] - top);
            for (std::int64_t s = 0; s <= t; ++s)
                for (std::int64_t i = 0; i < d; ++i)
                    mixed[t][d * h + i] += p[static_cast<std::size_t>(s)] / sum * out.values[s][kv + i];
            for (std::int64_t i = 0; i < d && !qwen3_moe_; ++i)
                mixed[t][d * h + i] *= sigmoid(qg[t][pitch * h + d + i]);
        }
    return apply(l.out, mixed);
}

PlainMatrix PlainReference::delta_net(const Layer& l, const PlainMatrix& x, PlainTrace::Layer& out) const {
    const std::int64_t n = x.rows;
    const int dk = key_dim_, dv = value_dim_, keys = key_heads_ * dk, channels = 2 * keys + value_heads_ * dv;
    const PlainMatrix z = apply(l.z, x), b = apply(l.b, x), a = apply(l.a, x);
    out.conv_inputs = apply(l.qkv, x);
    PlainMatrix u(n, channels);
    for (std::int64_t t = 0; t < n; ++t)
        for (int c = 0; c < channels; ++c) {
            double s = 0;
            for (int j = 0; j < taps_; ++j)
                if (const std::int64_t at = t - (taps_ - 1) + j; at >= 0)
                    s += l.conv[c][j] * out.conv_inputs[at][c];
            u[t][c] = silu(s);
        }
    for (std::int64_t t = 0; t < n; ++t)
        for (int h = 0; h < key_heads_; ++h) {
            scale_to_unit(u[t] + h * dk, dk, 1e-6, 1.0 / std::sqrt(static_cast<double>(dk)));
            scale_to_unit(u[t] + keys + h * dk, dk, 1e-6, 1.0);
        }

    out.recurrent = PlainMatrix(std::int64_t{value_heads_} * dk, dv);
    PlainMatrix mixed(n, std::int64_t{value_heads_} * dv);
    std::vector<double> error(static_cast<std::size_t>(dv));
    for (std::int64_t t = 0; t < n; ++t)
        for (int h = 0; h < value_heads_; ++h) {
            const int kh = h / (value_heads_ / key_heads_);
            const double *q = u[t] + kh * dk, *k = u[t] + keys + kh * dk, *v = u[t] + 2 * keys + h * dv;
            const auto head = static_cast<std::size_t>(h);
            const double decay = std::exp(-std::exp(l.a_log[head]) * softplus(a[t][h] + l.dt_bias[head]));
            const double beta = sigmoid(b[t][h]);
            double* state = out.recurrent[std::int64_t{h} * dk];
            std::copy_n(v, dv, error.begin());
            for (int i = 0; i < dk; ++i)
                for (int j = 0; j < dv; ++j) {
                    state[i * dv + j] *= decay;
                    error[static_cast<std::size_t>(j)] -= state[i * dv + j] * k[i];
                }
            double* o = mixed[t] + h * dv;
            for (int i = 0; i < dk; ++i)
                for (int j = 0; j < dv; ++j) {
                    state[i * dv + j] += k[i] * beta * error[static_cast<std::size_t>(j)];
                    o[j] += state[i * dv + j] * q[i];
                }
            const double s = 1.0 / std::sqrt(dot(o, o, dv) / dv + eps_);
            for (int j = 0; j < dv; ++j)
                o[j] *= s * l.gated_norm[static_cast<std::size_t>(j)] * silu(z[t][h * dv + j]);
        }
    return apply(l.out, mixed);
}

PlainMatrix PlainReference::mixture(const Layer& l, const PlainMatrix& x, PlainTrace::Layer& out) const {
    const auto run = [](const Expert& e, const PlainMatrix& in) {
        PlainMatrix act = apply(e.gate, in);
        const PlainMatrix up = apply(e.up, in);
        for (std::size_t i = 0; i < act.v.size(); ++i) act.v[i] = silu(act.v[i]) * up.v[i];
        return apply(e.down, act);
    };
    PlainMatrix y(x.rows, x.cols);
    if (!qwen3_moe_) {
        const PlainMatrix gate = apply(l.shared_gate, x);
        y = run(l.shared, x);
        for (std::int64_t t = 0; t < x.rows; ++t)
            for (std::int64_t i = 0; i < x.cols; ++i) y[t][i] *= sigmoid(gate[t][0]);
    }
    out.router_logits = apply(l.router, x);
    out.router_weights = PlainMatrix(x.rows, top_k_);
    out.router_experts.resize(static_cast<std::size_t>(x.rows));
    for (std::int64_t t = 0; t < x.rows; ++t) {
        const double* logits = out.router_logits[t];
        auto& order = out.router_experts[static_cast<std::size_t>(t)];
        order.resize(static_cast<std::size_t>(experts_));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return logits[i] > logits[j]; });
        order.resize(static_cast<std::size_t>(top_k_));
        // Softmax over all experts, renormalized over the chosen, is the softmax over the chosen.
        double sum = 0;
        for (int i = 0; i < top_k_; ++i)
            sum += out.router_weights[t][i] =
                std::exp(logits[order[static_cast<std::size_t>(i)]] - logits[order[0]]);
        PlainMatrix one(1, x.cols);
        std::copy_n(x[t], x.cols, one[0]);
        for (int i = 0; i < top_k_; ++i) {
            out.router_weights[t][i] /= sum;
            const PlainMatrix e =
                run(l.experts[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])], one);
            for (std::int64_t c = 0; c < x.cols; ++c) y[t][c] += out.router_weights[t][i] * e[0][c];
        }
    }
    return y;
}

PlainTrace PlainReference::trace(const std::vector<int>& ids) const {
    PlainTrace trace;
    PlainMatrix h(static_cast<std::int64_t>(ids.size()), hidden_);
    for (std::int64_t t = 0; t < h.rows; ++t)
        std::copy_n(embedding_[ids[static_cast<std::size_t>(t)]], hidden_, h[t]);
    trace.embedding = h;
    for (const auto& l : layers_) {
        auto& out = trace.layers.emplace_back();
        const PlainMatrix x = rms_norm(h, l.norm1);
        out.mixer = l.attention ? attention(l, x, out) : delta_net(l, x, out);
        for (std::size_t i = 0; i < h.v.size(); ++i) h.v[i] += out.mixer.v[i];
        out.moe = mixture(l, rms_norm(h, l.norm2), out);
        for (std::size_t i = 0; i < h.v.size(); ++i) h.v[i] += out.moe.v[i];
        out.hidden = h;
    }
    trace.final_norm = rms_norm(h, norm_);
    return trace;
}

std::vector<double> PlainReference::head(const double* normed) const {
    std::vector<double> y(static_cast<std::size_t>(head_.rows));
    for (std::int64_t r = 0; r < head_.rows; ++r)
        y[static_cast<std::size_t>(r)] = dot(head_[r], normed, hidden_);
    return y;
}

std::vector<std::vector<double>> PlainReference::logits(const std::vector<int>& ids, std::size_t last) const {
    const auto t = trace(ids);
    std::vector<std::vector<double>> y;
    for (std::size_t i = last ? ids.size() - last : 0; i < ids.size(); ++i)
        y.push_back(head(t.final_norm[static_cast<std::int64_t>(i)]));
    return y;
}

}  // namespace ftmpi::testing
