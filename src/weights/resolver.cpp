#include "resolver.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "../error.hpp"
#include "../numerics.hpp"
#include "../stored.hpp"

namespace ftmpi {

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string s = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
    return s + "]";
}

void refuse(const TensorView& tensor, const std::string& what) {
    throw Error(Exit::bad_input, "tensor " + tensor.name + " (" + std::string(name_of(tensor.dtype)) + " " +
                                     shape_text(tensor.shape) + "): " + what);
}

namespace {
std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }
}  // namespace

const TensorView* Resolver::take(const std::string& name) {
    const TensorView* t = checkpoint_.find(name);
    if (t) used_.insert(name);
    return t;
}

const TensorView* Resolver::need(const std::string& name) {
    const TensorView* t = take(name);
    if (!t) missing_.push_back(name);
    return t;
}

const TensorView* Resolver::vector(const std::string& name, std::vector<std::int64_t> shape) {
    const TensorView* t = need(name);
    if (t && t->shape != shape) refuse(*t, "expected shape " + shape_text(shape));
    if (t && !is_float(t->dtype)) refuse(*t, "expected BF16, F16 or F32");
    return t;
}

float Resolver::scalar(const TensorView& t, const Slice& slice) const {
    const bool one_each = slice.count > 0 && t.elements() == slice.count;
    if (t.elements() != 1 && !one_each)
        refuse(t, slice.count ? "expected one value or one an expert" : "expected one value");
    if (!is_float(t.dtype)) refuse(t, "expected BF16, F16 or F32");
    const std::int64_t at = t.elements() == 1 ? 0 : slice.index;
    const float v = value_at(t.data + static_cast<std::size_t>(at) * size_of(t.dtype), t.dtype);
    if (!(v > 0.0f) || !num::is_finite(v))
        refuse(t, "a scale must be finite and above 0, this one is " + std::to_string(v));
    return v;
}

const TensorView* Resolver::beside(Stems stems, std::initializer_list<const char*> suffixes) {
    const TensorView* found = nullptr;
    for (const auto& stem : stems)
        for (const char* suffix : suffixes)
            if (const TensorView* t = take(stem + suffix)) {
                if (found)
                    refuse(*t,
                           "both " + last_part(found->name) + " and " + last_part(t->name) + " are present");
                found = t;
            }
    return found;
}

/// Takes the per-tensor scale `t` for `m`. What all slices, or gate and up, have in common is counted once.
void Resolver::apply_scalar(StoredMatrix& m, const TensorView& t, const Slice& slice) const {
    m.multiplier = scalar(t, slice);
    if (slice.first == 0 && (t.elements() > 1 || slice.index == 0)) m.scalar_bytes = size_of(t.dtype);
}

void Resolver::four_bit(StoredMatrix& m, Stems stems, const Slice& slice, bool packed_key) {
    if (m.cols % 2 || m.codes->shape != slice.shape({slice.rows, m.cols / 2}))
        refuse(*m.codes,
               "expected two 4-bit codes a byte, " + shape_text(slice.shape({slice.rows, m.cols / 2})));
    const TensorView* s = beside(stems, {"_scale"});
    const TensorView* multiplier = beside(stems, {"_scale_2"});
    const TensorView* divisor = beside(stems, {"_global_scale"});
    if (multiplier && divisor) refuse(*multiplier, "both weight_scale_2 and weight_global_scale are present");
    if (!s) {
        missing_.push_back(stems.back() + "_scale");
        return;
    }
    const bool mx = s->dtype == DType::u8 || s->dtype == DType::f8_e8m0;
    m.format = mx ? Format::mxfp4 : Format::nvfp4;
    if (!mx && s->dtype != DType::f8_e4m3) refuse(*s, "expected F8_E4M3 (NVFP4) or E8M0 (MXFP4) scales");
    const auto shape = slice.shape({slice.rows, scales_per_row(m.format, m.cols)});
    if (s->shape != shape)
        refuse(*s, "expected " + shape_text(shape) + ", one scale per " +
                       std::to_string(scale_group(m.format)) + " columns");
    if (m.cols % scale_group(m.format))
        refuse(*m.codes, "the number of columns is not a multiple of the scale group");
    m.scales = s;
    m.first_scale_row = m.first_code_row;
    if (mx) {
        if (multiplier || divisor) refuse(*s, "MXFP4 has no global scale, but one is present");
        return;
    }
    // ModelOpt stores the factor, compressed-tensors its reciprocal: the name decides, never the magnitude. A
    // missing one is an error: a scale never defaults to 1.
    if (multiplier) {
        apply_scalar(m, *multiplier, slice);
    } else if (divisor) {
        apply_scalar(m, *divisor, slice);
        m.multiplier = 1.0f / m.multiplier;
        if (!num::is_finite(m.multiplier)) refuse(*divisor, "its reciprocal is not finite");
    } else {
        missing_.push_back(stems.back() + (packed_key ? "_global_scale" : "_scale_2"));
    }
}

void Resolver::eight_bit(StoredMatrix& m, Stems stems, const Slice& slice) {
    m.format = Format::fp8_row;
    const TensorView* s = beside(stems, {"_scale_inv", "_scale"});
    if (!s) {
        missing_.push_back(stems.back() + "_scale");
        return;
    }
    if (!is_float(s->dtype)) refuse(*s, "expected F32, BF16 or F16 scales");
    const std::int64_t rows = slice.rows, n = s->elements();
    const std::int64_t block_rows = (rows + 127) / 128, block_cols = (m.cols + 127) / 128;
    auto shape = s->shape;
    if (!slice.count && shape.size() == 4 && shape[1] == 1 && shape[3] == 1)
        shape = {shape[0], shape[2]};  // [o, 1, i, 1]
    const bool blocks = shape == slice.shape({block_rows, block_cols});
    // A single scale is per tensor whatever its rank, unless the suffix says blocks and one block covers the
    // matrix.
    const bool one_block = s->name.ends_with("_scale_inv") && block_rows == 1 && block_cols == 1;
    const bool single = slice.count ? !blocks && (n == slice.count || n == 1) : n == 1 && !one_block;
    const bool a_row = slice.count
                           ? shape == slice.shape({rows, 1}) || shape == slice.shape({rows})
                           : n == rows && (shape.size() == 1 || (shape.size() == 2 && shape[0] == rows));
    if (blocks && !single) {
        m.format = Format::fp8_block;
        m.scales = s;
        m.first_scale_row = slice.index * block_rows;
        m.row_in_plane = slice.first;
    } else if (a_row && !single) {
        m.scales = s;
        m.first_scale_row = m.first_code_row;
    } else if (single) {
        apply_scalar(m, *s, slice);
    } else {
        refuse(*s, "fits neither one scale" + std::string(slice.count ? " or one an expert" : "") +
                       ", one a row, nor 128x128 blocks of " + shape_text(slice.shape({rows, m.cols})));
    }
}

StoredMatrix Resolver::find(Stems stems, const Slice& slice, std::int64_t rows, std::int64_t cols) {
    StoredMatrix m{.rows = rows, .cols = cols, .first_code_row = slice.index * slice.rows + slice.first};
    m.codes = beside(stems, {"", "_packed"});
    if (!m.codes) {
        missing_.push_back(stems.back());
        // Scales without their weight are named by the missing weight, not as unknown tensors.
        for (const auto& stem : stems)
            for (const char* suffix : {"_scale", "_scale_2", "_scale_inv", "_global_scale"})
                take(stem + suffix);
        return m;
    }
    const bool packed = m.codes->name.ends_with("_packed");
    const DType type = m.codes->dtype;
    if (packed && type != DType::u8)
        refuse(*m.codes, "packed integer weights are not a format this program runs; expected U8 (NVFP4)");
    if (type == DType::u8) {
        four_bit(m, stems, slice, packed);
        return m;
    }
    if (type != DType::f8_e4m3 && !is_float(type))
        refuse(*m.codes, "expected BF16, F16, F32, F8_E4M3 or U8 (4-bit) weights");
    if (m.codes->shape != slice.shape({slice.rows, cols}))
        refuse(*m.codes, "expected shape " + shape_text(slice.shape({slice.rows, cols})));
    if (type == DType::f8_e4m3) eight_bit(m, stems, slice);
    else m.format = type == DType::bf16 ? Format::bf16 : type == DType::f16 ? Format::f16 : Format::f32;
    return m;
}

StoredMatrix Resolver::matrix(const std::string& base, std::int64_t rows, std::int64_t cols) {
    const std::string stem = base + ".weight";
    return find({&stem, 1}, {.rows = rows}, rows, cols);
}

namespace {
/// What exporters put the suffixes of scales and packed codes behind; messages use the last.
std::array<std::string, 3> stems_of(const std::string& base) {
    return {base + ".weight", base + "_weight", base};
}
}  // namespace

bool Resolver::has_fused(const std::string& base) const {
    for (const auto& stem : stems_of(base))
        if (checkpoint_.find(stem) || checkpoint_.find(stem + "_packed")) return true;
    return false;
}

StoredMatrix Resolver::fused(const std::string& base, std::int64_t slices, std::int64_t all_rows,
                             std::int64_t cols, std::int64_t index, std::int64_t first, std::int64_t rows) {
    const auto stems = stems_of(base);
    return find(stems, {slices, index, all_rows, first}, rows, cols);
}

void Resolver::finish(const std::vector<std::string>& unknown) const {
    if (missing_.empty() && unknown.empty()) return;
    std::string what;
    auto list = [&](const char* label, std::vector<std::string> names) {
        if (names.empty()) return;
        std::sort(names.begin(), names.end());
        names.erase(std::unique(names.begin(), names.end()), names.end());
        what += (what.empty() ? "" : "; ") + std::string(label) + names[0];
        if (names.size() > 1)
            what += " and " + std::to_string(names.size() - 1) + " more (the next is " + names[1] + ")";
    };
    list("missing tensor ", missing_);
    list("unknown tensor ", unknown);
    throw Error(Exit::bad_input, checkpoint_.directory().string() + ": " + what,
                "the checkpoint does not hold exactly the tensors of this model; was it downloaded whole and "
                "for this model type?");
}

}  // namespace ftmpi
