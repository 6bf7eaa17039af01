// Gated DeltaNet and attention: which heads of which sequence make a task.
#include <algorithm>

#include "../cpu_backend.hpp"
#include "../error.hpp"
#include "../numerics.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "traced.hpp"

namespace ftmpi {

std::vector<CpuBackend::Sequence> CpuBackend::sequences(const Rows& rows) const {
    std::vector<Sequence> all;
    for (std::int64_t r = 0; r < rows.count(); ++r) {
        const Row& row = rows.host[static_cast<std::size_t>(r)];
        auto it =
            std::find_if(all.rbegin(), all.rend(), [&](const Sequence& s) { return s.slot == row.slot; });
        if (row.slot < 0 || row.position < 0) throw Error(Exit::failure, "a row has no slot or no position");
        if (it == all.rend()) {
            all.push_back({row.slot, {}});
            it = all.rbegin();
        } else if (rows.host[static_cast<std::size_t>(it->rows.back())].position + 1 != row.position) {
            throw Error(Exit::failure, "rows of a sequence are not in rising position without gaps");
        }
        it->rows.push_back(r);
    }
    return all;
}

void CpuBackend::delta_net(const DeltaNet& net, const Rows& rows, const float* qkv, const float* z,
                           const float* b, const float* a, float* out, std::int64_t stride) {
    const Traced traced(*this, "delta_rule", rows.count(), [&] { return operation_name(net); });
    if (rows.count() == 0 || net.key_heads == 0) return;
    if (net.taps < 2 || net.taps > 8)
        throw Error(Exit::failure,
                    "a convolution of " + std::to_string(net.taps) + " taps; 2 to 8 are supported");
    const auto all = sequences(rows);
    const int key_dim = net.key_dim, value_dim = net.value_dim, channels = net.channels();
    const int most_values = (net.value_heads + net.key_heads - 1) / net.key_heads;
    std::size_t most_rows = 0;
    for (const auto& s : all) most_rows = std::max(most_rows, s.rows.size());

    // A task is a key head with its value heads, of one sequence: [q | k | v heads] a row after the
    // convolution, then gates.
    const std::int64_t width = 2 * key_dim + most_values * value_dim;
    const std::size_t per_thread = most_rows * static_cast<std::size_t>(width + 2);
    float* scratch = floats_.get<float>(per_thread * static_cast<std::size_t>(threads_));
    const float inverse_root = num::inverse_root_of(key_dim);
    const double work = static_cast<double>(rows.count()) * net.value_heads * key_dim * value_dim * 2;
    const std::int64_t heads = net.key_heads;
    parallel(static_cast<std::int64_t>(all.size()) * heads, work, [&](std::int64_t task, int thread) {
        const Sequence& s = all[static_cast<std::size_t>(task / heads)];
        const int head = static_cast<int>(task % heads);
        const auto n = static_cast<std::int64_t>(s.rows.size());
        float* conv = scratch + per_thread * static_cast<std::size_t>(thread);
        float *beta = conv + n * width, *decay = beta + n;
        const int first_value = (head * net.value_heads + net.key_heads - 1) / net.key_heads;
        const int last_value = ((head + 1) * net.value_heads + net.key_heads - 1) / net.key_heads;

        std::vector<const float*> in(s.rows.size());
        std::vector<float*> to(s.rows.size());
        for (std::size_t i = 0; i < s.rows.size(); ++i) in[i] = qkv + s.rows[i] * channels;
        float* state = net.conv_state + static_cast<std::int64_t>(s.slot) * (net.taps - 1) * channels;
        const auto convolve = [&](int channel, int count, float* at) {
            kernels_.convolve({count, net.taps, net.conv + channel * net.taps, state + channel, channels,
                               in.data(), channel, n, at, width});
        };
        convolve(head * key_dim, key_dim, conv);
        convolve((net.key_heads + head) * key_dim, key_dim, conv + key_dim);
        convolve(2 * net.key_heads * key_dim + first_value * value_dim,
                 (last_value - first_value) * value_dim, conv + 2 * key_dim);
        for (std::int64_t i = 0; i < n; ++i) {
            kernels_.l2_normalise(conv + i * width, key_dim, inverse_root);
            kernels_.l2_normalise(conv + i * width + key_dim, key_dim, 1.0f);
        }
        for (int h = first_value; h < last_value; ++h) {
            for (std::size_t i = 0; i < s.rows.size(); ++i) {
                const std::int64_t at = s.rows[i] * net.value_heads + h;
                kernels_.gates(b + at, a + at, net.neg_exp_a + h, net.dt_bias + h, 1, beta + i, decay + i);
                in[i] = z + at * value_dim;
                to[i] = out + s.rows[i] * stride + h * value_dim;
            }
            float* head_state =
                net.state + (static_cast<std::int64_t>(s.slot) * net.value_heads + h) * key_dim * value_dim;
            kernels_.delta_rule({key_dim, value_dim, n, conv, conv + key_dim,
                                 conv + 2 * key_dim + (h - first_value) * value_dim, width, beta, decay,
                                 head_state, net.norm, net.eps, in.data(), to.data()});
        }
    });
}

void CpuBackend::attention(const Attention& t, const Rows& rows, const float* qg, const float* k,
                           const float* v, float* out, std::int64_t stride) {
    const Traced traced(*this, "attend", rows.count(), [&] { return operation_name(t); });
    if (rows.count() == 0 || t.query_heads == 0) return;
    const auto all = sequences(rows);
    for (const Row& row : rows.host)
        if (row.position >= t.capacity)
            throw Error(Exit::failure, "position " + std::to_string(row.position) +
                                           " is beyond the cache of " + std::to_string(t.capacity));
    const std::int64_t dim = t.head_dim, half = t.rotary_dim / 2, pitch = t.gated ? 2 * dim : dim;
    const auto row_bytes = static_cast<std::int64_t>(size_of(t.kv)) * dim;

    // Queries of each local key/value head are consecutive.
    std::vector<int> first_query(static_cast<std::size_t>(t.kv_heads) + 1, t.query_heads);
    for (int h = t.query_heads - 1; h >= 0; --h) {
        const int kv = (t.first_query_head + h) / t.group - t.first_kv_head;
        if (kv < 0 || kv >= t.kv_heads)
            throw Error(Exit::failure, "a query head's key/value head is not held here");
        for (int i = 0; i <= kv; ++i) first_query[static_cast<std::size_t>(i)] = h;
    }
    struct Part {
        std::int32_t slot;
        int kv_head, count;
        std::size_t first;
    };
    std::vector<Part> parts;
    std::vector<cpu::Query> queries;
    float* q = floats_.get<float>(static_cast<std::size_t>(rows.count() * t.query_heads * dim));
    double work = 0;
    for (const Sequence& s : all)
        for (int kv = 0; kv < t.kv_heads; ++kv) {
            const std::size_t first = queries.size();
            for (const std::int64_t r : s.rows)
                for (int h = first_query[static_cast<std::size_t>(kv)];
                     h < first_query[static_cast<std::size_t>(kv) + 1]; ++h) {
                    const std::int64_t at = r * t.query_heads + h,
                                       position = rows.host[static_cast<std::size_t>(r)].position;
                    queries.push_back({q + at * dim, t.gated ? qg + at * pitch + dim : nullptr,
                                       out + r * stride + h * dim, position});
                    work += static_cast<double>(position * dim) * 2;
                }
            for (std::size_t i = first; i < queries.size(); i += cpu::kQueryBlock)
                parts.push_back(
                    {s.slot, kv,
                     static_cast<int>(std::min<std::size_t>(cpu::kQueryBlock, queries.size() - i)), i});
        }

    // The step's own keys and values go through the cache first: they are read back as stored.
    const std::size_t scratch_size = std::max(cpu::attend_scratch(t.head_dim), static_cast<std::size_t>(dim));
    float* scratch = results_.get<float>(scratch_size * static_cast<std::size_t>(threads_));
    const double prepare = static_cast<double>(rows.count() * (t.query_heads + 2 * t.kv_heads) * dim) * 4;
    parallel(rows.count(), prepare, [&](std::int64_t r, int thread) {
        const Row& row = rows.host[static_cast<std::size_t>(r)];
        const float *cos = t.cos + row.position * half, *sin = t.sin + row.position * half;
        for (int h = 0; h < t.query_heads; ++h) {
            const std::int64_t at = r * t.query_heads + h;
            kernels_.norm_rope(qg + at * pitch, t.q_norm, t.eps, t.head_dim, t.rotary_dim, cos, sin,
                               q + at * dim);
        }
        float* key = scratch + scratch_size * static_cast<std::size_t>(thread);
        for (int h = 0; h < t.kv_heads; ++h) {
            const std::int64_t from = (r * t.kv_heads + h) * dim;
            const std::int64_t to =
                ((static_cast<std::int64_t>(row.slot) * t.kv_heads + h) * t.capacity + row.position) *
                row_bytes;
            kernels_.norm_rope(k + from, t.k_norm, t.eps, t.head_dim, t.rotary_dim, cos, sin, key);
            kernels_.store_kv(key, t.head_dim, t.kv, t.k_scale, static_cast<std::byte*>(t.keys) + to);
            kernels_.store_kv(v + from, t.head_dim, t.kv, t.v_scale, static_cast<std::byte*>(t.values) + to);
        }
    });
    parallel(static_cast<std::int64_t>(parts.size()), work, [&](std::int64_t i, int thread) {
        const Part& part = parts[static_cast<std::size_t>(i)];
        const std::int64_t at =
            (static_cast<std::int64_t>(part.slot) * t.kv_heads + part.kv_head) * t.capacity * row_bytes;
        kernels_.attend({t.head_dim, t.kv, t.scale, t.k_scale, t.v_scale,
                         static_cast<const std::byte*>(t.keys) + at,
                         static_cast<const std::byte*>(t.values) + at, queries.data() + part.first,
                         part.count, scratch + scratch_size * static_cast<std::size_t>(thread)});
    });
}

}  // namespace ftmpi
