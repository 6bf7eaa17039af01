#include "kernels.hpp"

#include <algorithm>
#include <bit>

namespace ftmpi::cuda {
namespace {

constexpr std::int64_t kFew = kManyRows - 1, kEver = std::numeric_limits<std::int64_t>::max();
constexpr unsigned kBf16 = bit_of(Format::bf16), kFp8Row = bit_of(Format::fp8_row),
                   kFp8Block = bit_of(Format::fp8_block),
                   kCoded = bit_of(Format::nvfp4) | bit_of(Format::mxfp4),
                   kFloats = kBf16 | kFp8Row | kFp8Block, kF16 = bit_of(Format::f16),
                   kCommon = bits_of(CommonFormats{}), kOther = bits_of(OtherFormats{}),
                   kAll = kCommon | kOther;

bool fixed_width(const Call& c) {
    const std::int64_t cols = c.to[0].matrix->cols;
    return c.aligned && c.to.size() <= kMatrices && (cols == 1024 || cols == 2048 || cols == 4096) &&
           std::has_single_bit(c.formats() & kCommon);
}
/// One format of FP8.
bool fp8_width(const Call& c, std::int64_t cols) {
    return c.aligned && c.to.size() <= kMatrices && c.to[0].matrix->cols == cols &&
           std::has_single_bit(c.formats() & (kFp8Row | kFp8Block));
}
bool fp8_2048(const Call& c) { return fp8_width(c, 2048); }
bool fp8_4096(const Call& c) { return fp8_width(c, 4096); }
bool is_fast(const Call& c) { return c.fast; }
/// Too few rows of floats for tiles of 128: a router, b and a of the delta net.
bool narrow(const Call& c) {
    std::int64_t rows = 0;
    for (const Projection& p : c.to)
        if (bit_of(p.matrix->format) & (kBf16 | kOther)) rows += p.matrix->rows;
    return rows <= kNarrowRows;
}

/// Distances between experts are counted in 32 bits.
bool near(const MatrixView& m) {
    return m.padded * std::max(m.code_pitch, m.scale_pitch) < (std::int64_t{1} << 32);
}
bool same_format(const Call& c) { return !c.shared || c.shared->format == c.routed->format; }
bool up_fixed(const Call& c) {
    const auto whole = [](const MatrixView& m) {
        return near(m) && m.cols == kUpSets * 32 * num::kChunk &&
               m.rows / 2 % (expert_rows(m.format) / 2) == 0;
    };
    return c.routed && whole(*c.routed) && (!c.shared || whole(*c.shared)) && same_format(c) && c.aligned &&
           c.top_k >= 1 && c.top_k <= kMostUpChoices &&
           (!c.routes || (c.experts <= kMostRouted && c.top_k <= c.experts));
}
bool down_fixed(const Call& c) {
    const auto whole = [](const MatrixView& m) { return near(m) && m.cols == kDownChunks * num::kChunk; };
    return c.shared && whole(*c.routed) && whole(*c.shared) && same_format(c) && c.aligned && c.top_k >= 1 &&
           c.top_k <= kMostDownChoices;
}

bool few_rows(const Call& c) { return few_rows_serve_experts(c.formats()); }

bool route_in_up(const Call& c) {
    return c.routes && c.experts <= kMostRouted && c.top_k <= std::min(c.experts, kMostChoices);
}
bool route_by_warp(const Call& c) { return c.experts <= 2 * kMostRouted && c.top_k <= kMostChoices; }

bool few_heads(const Call& c) { return c.one_a_slot && heads_together(*c.attention) <= kMostDecodeHeads; }

bool delta_fixed(const Call& c) {
    const DeltaNet& n = *c.net;
    return c.one_a_slot && n.key_dim == kDeltaDim && n.value_dim == kDeltaDim && n.taps == kDeltaTaps &&
           reinterpret_cast<std::uintptr_t>(n.conv) % 16 == 0 &&
           reinterpret_cast<std::uintptr_t>(n.state) % 8 == 0;
}
bool norm_fixed(const Call& c) {
    return c.aligned && c.width > 0 && c.width % 4 == 0 && c.width <= kMostNormWidth;
}

constexpr KernelRow table[] = {
    {Operator::project, Kernel::gemm_bf16, "gemm/gemm_bf16", 1, kEver, kFloats, is_fast, "--numerics fast"},
    {Operator::project, Kernel::gemv_any, "gemv/gemv_any", kManyRows, kEver, kBf16, narrow, "up to 512 rows"},
    {Operator::project, Kernel::gemv_any, "gemv/gemv_any", kManyRows, kEver, kOther, narrow,
     "up to 512 rows"},
    {Operator::project, Kernel::gemm_exact, "gemm/gemm_exact", kManyRows, kEver, kBf16 | kOther, nullptr, ""},
    {Operator::project, Kernel::gemm_fp8, "gemm/gemm_fp8", kManyFp8Rows, kEver, kFp8Row | kFp8Block, nullptr,
     ""},
    {Operator::project, Kernel::gemm_4bit, "gemm/gemm_4bit", kManyCodedRows, kEver, kCoded, nullptr, ""},
    {Operator::project, Kernel::gemv_tiles, "gemv/gemv_tiles", 1, kFew, kFloats, fp8_2048,
     "2048 columns; one FP8 format, and BF16 beside it"},
    {Operator::project, Kernel::gemv_tiles, "gemv/gemv_tiles", 1, kFew, kFp8Row | kFp8Block, fp8_4096,
     "4096 columns; one FP8 format"},
    {Operator::project, Kernel::gemv, "gemv/gemv", 1, 1, kBf16 | kCoded, fixed_width,
     "1024, 2048 or 4096 columns; one format"},
    {Operator::project, Kernel::gemv_any, "gemv/gemv_any", 1, kFew, kCommon, nullptr, ""},
    {Operator::project, Kernel::gemv_any, "gemv/gemv_any", 1, kFew, kOther, nullptr, ""},
    {Operator::norm, Kernel::decode, "steps: norm_rows", 1, kEver, kAll, norm_fixed,
     "a width of up to 8192, in fours"},
    {Operator::norm, Kernel::decode_any, "steps: rms_norm_rows", 1, kEver, kAll, nullptr, ""},
    {Operator::route, Kernel::fused, "in experts_up", 1, kFew, kAll, route_in_up,
     "up to 32 of 256 experts, with rows of experts here"},
    {Operator::route, Kernel::decode, "steps: route_few", 1, kEver, kAll, route_by_warp,
     "up to 32 of 512 experts"},
    {Operator::route, Kernel::decode_any, "steps: route_rows", 1, kEver, kAll, nullptr, ""},
    {Operator::experts_up, Kernel::prefill, "experts/prefill", kManyCodedExperts, kEver, kCoded, nullptr, ""},
    {Operator::experts_up, Kernel::prefill, "experts/prefill", kManyRows, kEver, kAll, nullptr, ""},
    {Operator::experts_up, Kernel::decode, "experts/decode_up", 1, kFew, kCommon, up_fixed,
     "2048 columns, one format, up to 8 choices (of 256 where it chooses)"},
    {Operator::experts_up, Kernel::decode_any, "experts/decode_any", 1, kFew, kAll, few_rows,
     "not F32, not F16 beside another format"},
    {Operator::experts_up, Kernel::prefill, "experts/prefill", 1, kFew, kAll, nullptr, ""},
    {Operator::experts_down, Kernel::prefill, "experts/prefill", kManyCodedExperts, kEver, kCoded, nullptr,
     ""},
    {Operator::experts_down, Kernel::prefill, "experts/prefill", kManyRows, kEver, kAll, nullptr, ""},
    {Operator::experts_down, Kernel::decode, "experts/decode_down", 1, kFew, kCoded, down_fixed,
     "512 columns, one format, up to 10 choices, with a shared expert"},
    {Operator::experts_down, Kernel::decode_any, "experts/decode_any", 1, kFew, kAll, few_rows,
     "not F32, not F16 beside another format"},
    {Operator::experts_down, Kernel::prefill, "experts/prefill", 1, kFew, kAll, nullptr, ""},
    {Operator::attention, Kernel::prefill_bf16, "attention/prefill_bf16", 1, kEver, kAll, is_fast,
     "--numerics fast"},
    {Operator::attention, Kernel::decode, "attention/decode", 1, kEver, kAll, few_heads,
     "one row a slot, up to 16 query heads a key/value head"},
    {Operator::attention, Kernel::prefill, "attention/prefill", 1, kEver, kAll, nullptr, ""},
    {Operator::delta_net, Kernel::decode, "delta_net/decode", 1, kEver, kAll, delta_fixed,
     "one row a slot, heads of 128 x 128, four taps"},
    {Operator::delta_net, Kernel::prefill, "delta_net/delta_net", 1, kEver, kAll, nullptr, ""},
};

thread_local Chosen* noting = nullptr;

bool serves(const KernelRow& row, const Call& c) {
    if (row.op != c.op || c.rows < row.first || c.rows > row.last) return false;
    const unsigned formats = c.formats();
    const bool fits =
        c.op == Operator::project ? (formats & row.formats) != 0 : (formats & ~row.formats) == 0;
    return fits && (!row.suits || row.suits(c));
}

}  // namespace

bool aligned(std::initializer_list<const void*> addresses) {
    std::uintptr_t all = 0;
    for (const void* p : addresses) all |= reinterpret_cast<std::uintptr_t>(p);
    return all % 16 == 0;
}

unsigned Call::formats() const {
    unsigned all = 0;
    for (const Projection& p : to) all |= bit_of(p.matrix->format);
    for (const MatrixView* m : {routed, shared})
        if (m) all |= bit_of(m->format);
    return all;
}

bool few_rows_serve_experts(unsigned formats) { return (formats & ~kCommon) == 0 || formats == kF16; }

std::int64_t many_expert_rows(unsigned formats) {
    return (formats & ~kCoded) == 0 ? kManyCodedExperts : kManyRows;
}

int heads_together(const Attention& t) {
    int most = 0;
    for (int kv = 0; kv < t.kv_heads; ++kv) {
        const int begin = (t.first_kv_head + kv) * t.group - t.first_query_head;
        most = std::max(most, std::min(begin + t.group, t.query_heads) - std::max(begin, 0));
    }
    return most;
}

std::span<const KernelRow> kernel_table() { return table; }

const KernelRow& choose(const Call& call) {
    const auto row =
        std::find_if(std::begin(table), std::end(table), [&](const KernelRow& r) { return serves(r, call); });
    if (row == std::end(table)) throw Error(Exit::failure, "no kernel serves a step of no rows");
    if (noting) noting->note(row->name);
    return *row;
}

Chosen::Chosen() { noting = this; }
Chosen::~Chosen() { noting = nullptr; }
std::string Chosen::names() const {
    std::string all;
    for (auto i = names_.begin(); i != names_.end(); ++i)
        if (std::find(names_.begin(), i, *i) == i) all += (all.empty() ? "" : " + ") + *i;
    return all;
}

}  // namespace ftmpi::cuda
