#include "resolver.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../error.hpp"
#include "../numerics.hpp"

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
    if (t && t->dtype != DType::bf16 && t->dtype != DType::f32 && t->dtype != DType::f16)
        refuse(*t, "expected BF16, F16 or F32");
    return t;
}

float Resolver::scalar(const TensorView& t) const {
    if (t.elements() != 1) refuse(t, "expected one value");
    const float v = floats_of(t)[0];
    if (!(v > 0.0f) || !num::is_finite(v))
        refuse(t, "a scale must be finite and above 0, this one is " + std::to_string(v));
    return v;
}

StoredMatrix Resolver::four_bit(const std::string& base, const TensorView& codes, std::int64_t rows,
                                std::int64_t cols, bool packed_key) {
    StoredMatrix m{.rows = rows, .cols = cols, .codes = &codes};
    if (cols % 2 || codes.shape != std::vector<std::int64_t>{rows, cols / 2})
        refuse(codes, "expected two 4-bit codes a byte, " + shape_text({rows, cols / 2}));
    const TensorView* s = need(base + ".weight_scale");
    const TensorView* multiplier = take(base + ".weight_scale_2");
    const TensorView* divisor = take(base + ".weight_global_scale");
    if (multiplier && divisor) refuse(*multiplier, "both weight_scale_2 and weight_global_scale are present");
    if (!s) return m;
    const bool mx = s->dtype == DType::u8 || s->dtype == DType::f8_e8m0;
    m.format = mx ? Format::mxfp4 : Format::nvfp4;
    if (!mx && s->dtype != DType::f8_e4m3) refuse(*s, "expected F8_E4M3 (NVFP4) or E8M0 (MXFP4) scales");
    const auto per_row = scales_per_row(m.format, cols);
    if (s->shape != std::vector<std::int64_t>{rows, per_row})
        refuse(*s, "expected " + shape_text({rows, per_row}) + ", one scale per " +
                       std::to_string(scale_group(m.format)) + " columns");
    if (cols % scale_group(m.format))
        refuse(codes, "the number of columns is not a multiple of the scale group");
    m.scales = s;
    if (mx) {
        if (multiplier || divisor) refuse(*s, "MXFP4 has no global scale, but one is present");
        return m;
    }
    // ModelOpt stores the factor, compressed-tensors its reciprocal: the name decides, never the magnitude. A
    // missing one is an error: a scale never defaults to 1.
    if (multiplier) {
        m.multiplier = scalar(*multiplier);
        m.scalar_bytes = multiplier->bytes;
    } else if (divisor) {
        m.multiplier = 1.0f / scalar(*divisor);
        if (!num::is_finite(m.multiplier)) refuse(*divisor, "its reciprocal is not finite");
        m.scalar_bytes = divisor->bytes;
    } else {
        missing_.push_back(base + (packed_key ? ".weight_global_scale" : ".weight_scale_2"));
    }
    return m;
}

StoredMatrix Resolver::eight_bit(const std::string& base, const TensorView& codes, std::int64_t rows,
                                 std::int64_t cols) {
    StoredMatrix m{.format = Format::fp8_row, .rows = rows, .cols = cols, .codes = &codes};
    if (codes.shape != std::vector<std::int64_t>{rows, cols})
        refuse(codes, "expected shape " + shape_text({rows, cols}));
    const TensorView* inv = take(base + ".weight_scale_inv");
    const TensorView* s = take(base + ".weight_scale");
    if (inv && s) refuse(*inv, "both weight_scale_inv and weight_scale are present");
    if (!s) s = inv;
    if (!s) {
        missing_.push_back(base + ".weight_scale");
        return m;
    }
    if (s->dtype != DType::f32 && s->dtype != DType::bf16) refuse(*s, "expected F32 or BF16 scales");
    const std::int64_t block_rows = (rows + 127) / 128, block_cols = (cols + 127) / 128;
    auto shape = s->shape;
    if (shape.size() == 4 && shape[1] == 1 && shape[3] == 1) shape = {shape[0], shape[2]};  // [o, 1, i, 1]
    // A single scale is per tensor whatever its rank, unless the suffix says blocks and one block covers the
    // matrix.
    if (s->elements() == 1 && !(inv && block_rows == 1 && block_cols == 1)) {
        m.multiplier = scalar(*s);
        m.scalar_bytes = s->bytes;
    } else if (shape == std::vector<std::int64_t>{block_rows, block_cols}) {
        m.format = Format::fp8_block;
        m.scales = s;
    } else if (s->elements() == rows && (shape.size() == 1 || (shape.size() == 2 && shape[0] == rows))) {
        m.scales = s;
    } else {
        refuse(*s, "fits neither one scale, one a row, nor 128x128 blocks of " + shape_text({rows, cols}));
    }
    return m;
}

StoredMatrix Resolver::matrix(const std::string& base, std::int64_t rows, std::int64_t cols) {
    if (const TensorView* packed = take(base + ".weight_packed")) {
        if (take(base + ".weight")) refuse(*packed, "both weight and weight_packed are present");
        if (packed->dtype != DType::u8)
            refuse(*packed, "packed integer weights are not a format this program runs; expected U8 (NVFP4)");
        return four_bit(base, *packed, rows, cols, true);
    }
    const TensorView* w = need(base + ".weight");
    if (!w) {
        // Scales without their weight are named by the missing weight, not as unknown tensors.
        for (const char* suffix :
             {".weight_scale", ".weight_scale_2", ".weight_scale_inv", ".weight_global_scale"})
            take(base + suffix);
        return {};
    }
    switch (w->dtype) {
        case DType::u8: return four_bit(base, *w, rows, cols, false);
        case DType::f8_e4m3: return eight_bit(base, *w, rows, cols);
        case DType::bf16:
            if (w->shape != std::vector<std::int64_t>{rows, cols})
                refuse(*w, "expected shape " + shape_text({rows, cols}));
            return {.format = Format::bf16, .rows = rows, .cols = cols, .codes = w};
        default: refuse(*w, "expected BF16, F8_E4M3 or U8 (4-bit) weights");
    }
}

StoredMatrix Resolver::fused(const std::string& base, std::int64_t slices, std::int64_t all_rows,
                             std::int64_t cols, std::int64_t index, std::int64_t first, std::int64_t rows) {
    const TensorView* w = need(base);
    if (!w) return {};
    if (w->shape != std::vector<std::int64_t>{slices, all_rows, cols})
        refuse(*w, "expected shape " + shape_text({slices, all_rows, cols}));
    StoredMatrix m{.format = Format::bf16,
                   .rows = rows,
                   .cols = cols,
                   .codes = w,
                   .first_code_row = index * all_rows + first};
    if (w->dtype == DType::bf16) return m;
    if (w->dtype != DType::f8_e4m3) refuse(*w, "fused experts must be BF16 or F8_E4M3");
    const TensorView* s = nullptr;
    for (const char* suffix : {"_scale_inv", "_scale", ".weight_scale_inv", ".weight_scale"})
        if (const TensorView* found = take(base + suffix)) {
            if (s) refuse(*found, "a second scale beside " + s->name);
            s = found;
        }
    if (!s) {
        missing_.push_back(base + "_scale_inv");
        return m;
    }
    const std::int64_t block_rows = (all_rows + 127) / 128, block_cols = (cols + 127) / 128;
    m.scales = s;
    if (s->shape == std::vector<std::int64_t>{slices, block_rows, block_cols}) {
        m.format = Format::fp8_block;
        m.first_scale_row = index * block_rows;
        m.row_in_plane = first;
    } else if (s->shape == std::vector<std::int64_t>{slices, all_rows, 1} ||
               s->shape == std::vector<std::int64_t>{slices, all_rows}) {
        m.format = Format::fp8_row;
        m.first_scale_row = index * all_rows + first;
    } else if (s->elements() == slices || s->elements() == 1) {
        m.format = Format::fp8_row;
        const auto values = floats_of(*s);
        const bool shared = s->elements() == 1;
        m.multiplier = values[shared ? 0 : static_cast<std::size_t>(index)];
        // Gate and up have it in common, and so may all slices: it is counted with the first.
        if (first == 0 && !(shared && index > 0)) m.scalar_bytes = size_of(s->dtype);
        m.scales = nullptr;
        if (!(m.multiplier > 0.0f)) refuse(*s, "a scale must be finite and above 0");
    } else {
        refuse(*s, "does not fit fused experts " + shape_text(w->shape));
    }
    return m;
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
