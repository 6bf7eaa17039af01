// Attention on the GPU against the CPU backend, bit by bit.
#include <cmath>

#include "../../cuda/attention/attention.cuh"
#include "mixers_cases.hpp"
#include "short_form.hpp"

namespace ftmpi::gpu_check {
namespace {

struct AttentionResult {
    std::vector<float> out;
    std::vector<std::uint8_t> keys, values;
};

struct AttentionCase {
    Attention t;
    int slots;
    std::vector<float> q_norm, k_norm, cos, sin;
    int gap;  ///< floats between the rows of out

    AttentionCase(int query_heads, int kv_heads, int first_query, int first_kv, int group, int dim,
                  int rotary, KvType kv, std::int64_t capacity, int slot_count, int out_gap = 4)
        : slots(slot_count), gap(out_gap) {
        Random random(static_cast<std::uint64_t>(dim) * 3 + static_cast<std::uint64_t>(kv));
        t.query_heads = query_heads, t.kv_heads = kv_heads, t.first_query_head = first_query,
        t.first_kv_head = first_kv;
        t.group = group, t.head_dim = dim, t.rotary_dim = rotary, t.eps = 1e-6f;
        t.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
        t.kv = kv, t.capacity = capacity;
        if (kv == KvType::fp8) t.k_scale = 0.037f, t.v_scale = 0.021f;
        q_norm = random.floats(dim, 0.5f, 1.5f), k_norm = random.floats(dim, 0.5f, 1.5f);
        for (std::int64_t i = 0; i < capacity * rotary / 2; ++i) {
            const float angle = random.unit() * 3.0f;
            cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
        }
    }
    AttentionCase ungated() const {
        AttentionCase c = *this;
        c.t.gated = false;
        return c;
    }
    std::int64_t query_width() const { return std::int64_t{t.query_heads} * cuda::query_pitch(t); }
    std::string name() const {
        return "attention " + std::to_string(t.query_heads) + "/" + std::to_string(t.kv_heads) + " x " +
               std::to_string(t.head_dim) +
               (t.first_query_head ? " from head " + std::to_string(t.first_query_head) : "") + ", " +
               std::string(name_of(t.kv)) + (t.gated ? "" : ", no gate");
    }
    /// Earlier positions of each slot hold values, the others NaNs: nothing may be read there.
    std::vector<std::uint8_t> cache(std::uint64_t seed, const std::vector<int>& lengths) const {
        Random random(seed);
        const auto size = static_cast<std::int64_t>(size_of(t.kv));
        std::vector<std::uint8_t> bytes(
            static_cast<std::size_t>(slots * t.kv_heads * t.capacity * t.head_dim * size));
        std::uint8_t* p = bytes.data();
        for (int slot = 0; slot < slots; ++slot)
            for (int h = 0; h < t.kv_heads; ++h)
                for (std::int64_t i = 0; i < t.capacity; ++i)
                    for (int d = 0; d < t.head_dim; ++d, p += size) {
                        const float x = i < lengths[static_cast<std::size_t>(slot)]
                                            ? random.unit() * 2.0f
                                            : num::float_of(Guarded::kNan);
                        if (t.kv == KvType::fp32) {
                            std::memcpy(p, &x, 4);
                        } else if (t.kv == KvType::bf16) {
                            const std::uint16_t half = num::to_bf16(x);
                            std::memcpy(p, &half, 2);
                        } else {
                            *p = num::kv_to_fp8(x, t.v_scale);
                        }
                    }
        return bytes;
    }
    std::vector<int> lengths(const std::vector<std::vector<Row>>& steps) const {
        std::vector<int> first(static_cast<std::size_t>(slots), 0);
        for (auto s = steps.rbegin(); s != steps.rend(); ++s)
            for (auto r = s->rbegin(); r != s->rend(); ++r)
                first[static_cast<std::size_t>(r->slot)] = r->position;
        return first;
    }
    struct Inputs {
        std::vector<float> qg, k, v;
    };
    Inputs inputs(std::int64_t rows) const {
        Random random(78);
        return {random.floats(rows * query_width(), 3.0f), random.floats(rows * t.kv_heads * t.head_dim),
                random.floats(rows * t.kv_heads * t.head_dim, 2.0f)};
    }
    std::int64_t stride() const { return std::int64_t{t.query_heads} * t.head_dim + gap; }

    template <class Step> void over(const std::vector<std::vector<Row>>& steps, Step step) const {
        std::int64_t at = 0;
        for (const auto& rows : steps) {
            step(rows, at, at * query_width(), at * t.kv_heads * t.head_dim);
            at += static_cast<std::int64_t>(rows.size());
        }
    }
    AttentionResult on_cpu(const std::vector<std::vector<Row>>& steps) const {
        const std::int64_t n = count_of(steps);
        const Inputs in = inputs(n);
        AttentionResult r{
            std::vector<float>(static_cast<std::size_t>(n * stride()), num::float_of(Guarded::kNan)),
            cache(5, lengths(steps)), cache(6, lengths(steps))};
        Attention a = t;
        a.q_norm = q_norm.data(), a.k_norm = k_norm.data(), a.cos = cos.data(), a.sin = sin.data();
        a.keys = r.keys.data(), a.values = r.values.data();
        over(steps, [&](const std::vector<Row>& rows, std::int64_t at, std::int64_t q, std::int64_t kv) {
            cpu().attention(a, {rows, rows.data()}, in.qg.data() + q, in.k.data() + kv, in.v.data() + kv,
                            r.out.data() + at * stride(), stride());
        });
        return r;
    }
    AttentionResult on_gpu(const std::vector<std::vector<Row>>& steps, std::string& trouble) const {
        const std::int64_t n = count_of(steps);
        const Inputs in = inputs(n);
        const Guarded qg(in.qg), k(in.k), v(in.v), qn(q_norm), kn(k_norm), c(cos), s(sin),
            keys(cache(5, lengths(steps))), values(cache(6, lengths(steps))),
            out(static_cast<std::size_t>(n * stride()) * 4);
        Attention a = t;
        a.q_norm = qn.floats(), a.k_norm = kn.floats(), a.cos = c.floats(), a.sin = s.floats();
        a.keys = keys.data(), a.values = values.data();
        std::size_t most = 0;
        for (const auto& rows : steps) most = std::max(most, rows.size());
        const Workplace work(steps, cuda::attention_scratch(static_cast<std::int64_t>(most), t.query_heads,
                                                            t.head_dim, t.capacity));
        const auto* device = reinterpret_cast<const Row*>(work.rows.data());
        over(steps, [&](const std::vector<Row>& rows, std::int64_t at, std::int64_t q, std::int64_t kv) {
            const bool early = work.begin_step();
            const Rows step{rows, device + at};
            if (work.halves && t.query_heads <= cuda::kMostDecodeHeads &&
                cuda::one_row_a_slot(step))  // as on cards without clusters
                return cuda::attention_decode(a, step, qg.floats() + q, k.floats() + kv, v.floats() + kv,
                                              out.floats() + at * stride(), stride(), work.get(), early,
                                              nullptr, false);
            cuda::attention(a, step, qg.floats() + q, k.floats() + kv, v.floats() + kv,
                            out.floats() + at * stride(), stride(), work.get(), nullptr, false, early);
        });
        FTMPI_CUDA(cudaDeviceSynchronize());
        for (const Guarded* g : {&qg, &k, &v, &qn, &kn, &c, &s, &keys, &values, &out})
            if (!g->intact()) trouble = "memory beside a buffer was written";
        if (trouble.empty()) trouble = work.trouble();
        return {out.read<float>(), keys.read<std::uint8_t>(), values.read<std::uint8_t>()};
    }
    void compare(const std::string& what, const AttentionResult& want,
                 const std::vector<std::vector<Row>>& steps) const {
        std::string trouble;
        const AttentionResult got = on_gpu(steps, trouble);
        for (const auto& d :
             {difference("keys", got.keys, want.keys), difference("values", got.values, want.values),
              difference("out", got.out, want.out)})
            if (!d.empty()) trouble += (trouble.empty() ? "" : "; ") + d;
        report(trouble.empty(), name() + ", " + what, trouble);
    }
    void check(const std::string& what, const std::vector<std::vector<Row>>& steps) const {
        compare(what, on_cpu(steps), steps);
    }
};

void check_e4m3();

/// As above; positions cross 256, where a second piece begins.
void check_attention_shortly() {
    check_e4m3();
    for (const KvType kv : {KvType::fp32, KvType::bf16, KvType::fp8}) {
        const AttentionCase cases[] = {{4, 2, 0, 0, 2, 256, 64, kv, 301, 3, 3},
                                       {5, 1, 3, 0, 8, 72, 24, kv, 301, 3},
                                       AttentionCase(8, 1, 8, 1, 8, 128, 128, kv, 301, 3).ungated(),
                                       AttentionCase(5, 1, 3, 0, 8, 72, 24, kv, 301, 3, 1).ungated()};
        for (const AttentionCase& c : cases) {
            c.check("9 rows from 250", steps_of(1, 250, 9, 9));
            c.check("a row of each of 3 slots",
                    Steps{{{0, 2, 0}, {0, 0, 257}, {0, 1, 254}}, {{0, 2, 1}, {0, 0, 258}, {0, 1, 255}}});
            Steps mixed(1);
            append(mixed[0], 0, 254, 4), append(mixed[0], 2, 0, 3), append(mixed[0], 0, 258, 1);
            c.check("8 rows of 2 slots", mixed);
        }
    }
}

void check_attention_wholly() {
    check_e4m3();
    for (const KvType kv : {KvType::fp32, KvType::bf16, KvType::fp8}) {
        // 300 rows from position 230 cross 256 and 512; the capacity is no multiple of anything.
        const AttentionCase cases[] = {{16, 2, 0, 0, 8, 256, 64, kv, 701, 3},
                                       {4, 2, 0, 0, 2, 256, 64, kv, 701, 3, 3},
                                       {4, 2, 0, 0, 2, 16, 4, kv, 701, 3},
                                       {5, 1, 3, 0, 8, 128, 128, kv, 701, 3},
                                       {7, 2, 5, 0, 8, 64, 16, kv, 701, 3, 1},
                                       {20, 1, 0, 0, 20, 72, 24, kv, 701, 3},
                                       {3, 3, 2, 2, 1, 32, 32, kv, 701, 3},
                                       AttentionCase(32, 4, 0, 0, 8, 128, 128, kv, 701, 3).ungated(),
                                       AttentionCase(7, 2, 5, 0, 8, 64, 16, kv, 701, 3, 1).ungated()};
        for (const AttentionCase& c : cases) {
            for (const int n : {1, 2, 7, 33, 300})
                c.check(std::to_string(n) + " rows from 230", steps_of(1, 230, n, n));
            const AttentionResult whole = c.on_cpu(steps_of(2, 230, 300, 300));
            for (const int step : {7, 1})
                c.compare("300 rows from 230 in steps of " + std::to_string(step), whole,
                          steps_of(2, 230, 300, step));
            c.check("the first 40 rows", steps_of(0, 0, 40, 40));
            c.check("the first 3 rows one by one", steps_of(0, 0, 3, 1));
            std::vector<std::vector<Row>> decode;
            for (int i = 0; i < 4; ++i) decode.push_back({{0, 2, i}, {0, 0, 510 + i}, {0, 1, 254 + i}});
            c.check("a row of each of 3 slots", decode);
            std::vector<std::vector<Row>> mixed(1);
            append(mixed[0], 0, 250, 20), append(mixed[0], 2, 0, 13), append(mixed[0], 0, 270, 5),
                append(mixed[0], 1, 511, 1);
            for (int i = 0; i < 4; ++i) append(mixed[0], 1, 512 + i, 1), append(mixed[0], 2, 13 + i, 1);
            c.check("47 rows of 3 slots", mixed);
        }
    }
    AttentionCase far(16, 2, 0, 0, 8, 256, 64, KvType::bf16, 9001, 1);
    far.check("2 rows one by one at 8959, 36 pieces", steps_of(0, 8959, 2, 1));
    far.check("66 rows at 4000", steps_of(0, 4000, 66, 66));
    AttentionCase many(16, 2, 0, 0, 8, 256, 64, KvType::bf16, 3001, 9);
    std::vector<std::vector<Row>> decode(1);
    for (int i = 0; i < 9; ++i) decode[0].push_back({0, (i * 5) % 9, 3000 - 327 * i});
    many.check("a row of each of 9 slots to 3000", decode);
    AttentionCase crowd(16, 1, 0, 0, 16, 8, 4, KvType::fp8, 12001,
                        120);  // more than fit the scratch together
    decode[0].clear();
    for (int i = 0; i < 120; ++i) decode[0].push_back({0, i, i == 60 ? 12000 : i * 5});
    crowd.check("a row of each of 120 slots, one at 12000", decode);
}

__global__ void decode_codes(float* to, float scale) {
    cuda::Stored<KvType::fp8, 8> stored;
    const unsigned first = threadIdx.x * 8;
    stored.w[0] = first | (first + 1) << 8 | (first + 2) << 16 | (first + 3) << 24;
    stored.w[1] = (first + 4) | (first + 5) << 8 | (first + 6) << 16 | (first + 7) << 24;
    float x[8];
    stored.decode(scale, x);
    for (int i = 0; i < 8; ++i) to[first + i] = x[i];
}

void check_e4m3() {
    const Guarded out(256 * 4);
    cuda::launch("decode_codes", decode_codes, dim3(1), dim3(32), 0, nullptr, out.floats(), 0.0123f);
    FTMPI_CUDA(cudaDeviceSynchronize());
    const auto got = out.read<float>();
    int wrong = 0;
    for (unsigned i = 0; i < 256; ++i) {
        const float want = num::kv_from_fp8(static_cast<std::uint8_t>(i), 0.0123f);
        const bool nan = !(want == want);
        if (nan ? got[i] == got[i] : num::bits_of(got[i]) != num::bits_of(want)) ++wrong;
    }
    report(wrong == 0 && out.intact(), "all 256 codes of an fp8 cache",
           wrong ? std::to_string(wrong) + " differ" : "");
}

}  // namespace

void check_attention() { check::short_form() ? check_attention_shortly() : check_attention_wholly(); }

}  // namespace ftmpi::gpu_check
