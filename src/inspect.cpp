#include "inspect.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint.hpp"
#include "config.hpp"
#include "config/family.hpp"
#include "engine/open.hpp"
#include "error.hpp"

namespace ftmpi {
namespace {

/// Larger tensors (embedding, head) are not scanned: reading them takes longer than the rest of the listing
/// is worth.
constexpr std::size_t kScanLimit = std::size_t{64} << 20;

struct Count {
    std::uint64_t tensors = 0, bytes = 0;
    void add(const TensorView& t) { ++tensors, bytes += t.bytes; }
};

struct Damage {
    std::string name;
    std::int64_t zero_rows = 0, rows = 0, bad_scales = 0;
};

struct Report {
    std::filesystem::path directory;
    std::vector<std::filesystem::path> files;
    std::string config_line, config_error, quantization;
    std::map<std::string_view, Count> by_type;
    std::array<Count, 3> by_part;                               // text, vision, MTP
    std::map<std::string, std::map<std::string, int>> formats;  // role -> format -> matrices
    std::vector<Damage> damage;
    std::uint64_t scanned = 0, not_scanned = 0;  // text tensors
    std::vector<std::string> warnings;
};

constexpr std::array<std::string_view, 3> kParts = {"text", "vision", "mtp"};

std::size_t part_index(std::string_view tensor) {
    return static_cast<std::size_t>(std::find(kParts.begin(), kParts.end(), part_of(tensor)) -
                                    kParts.begin());
}

/// The name with every number as '*' and without the prefix all text tensors share.
std::string role_of(std::string_view module) {
    module = without_prefix(module);
    std::string role;
    for (std::size_t i = 0; i < module.size(); ++i) {
        const bool digit = std::isdigit(static_cast<unsigned char>(module[i])) != 0;
        const bool begins = i == 0 || module[i - 1] == '.' || (!role.empty() && role.back() == '*');
        if (!digit || !begins) role += module[i];
        else if (role.empty() || role.back() != '*') role += '*';
    }
    return role;
}

/// The matrices of all experts in one tensor; a convolution has one row a channel.
bool is_fused(const TensorView& t) { return t.shape.size() == 3 && t.dim(1) > 1; }

/// The name that a matrix and its scales have in common: without .weight or _weight, and _packed.
std::string base_of(std::string_view name) {
    for (const std::string_view end : {"_packed", ".weight", "_weight"})
        if (name.ends_with(end)) name.remove_suffix(end.size());
    return std::string(name);
}

/// The format of the matrix `codes` by the tensors beside it, as a loader would find it.
std::string format_beside(const Checkpoint& checkpoint, const TensorView& codes) {
    const auto beside = [&, base = base_of(codes.name)](const char* suffix) -> const TensorView* {
        for (const char* stem : {".weight", "_weight", ""})
            if (const auto* tensor = checkpoint.find(base + stem + suffix)) return tensor;
        return nullptr;
    };
    const std::string type(name_of(codes.dtype));
    if (beside("_scale_2")) return "NVFP4";
    const auto* scale = beside("_scale");
    if (codes.name.ends_with("_packed") && (codes.dtype != DType::u8 || !scale)) return "packed " + type;
    if (beside("_scale_inv")) return "FP8 128x128";
    if (codes.dtype == DType::u8 && scale)
        return scale->dtype == DType::f8_e4m3 ? "NVFP4 (divisor)" : "MXFP4";
    if (codes.dtype != DType::f8_e4m3 || !scale) return type;
    const auto scales = scale->elements(), experts = is_fused(codes) ? codes.dim(0) : 1;
    return scales == 1 || scales == experts             ? "FP8 per tensor"
           : scales == codes.elements() / codes.dim(-1) ? "FP8 per row"
                                                        : "FP8 128x128";
}

bool is_scale(std::string_view name) {
    return name.substr(name.rfind('.') + 1).find("scale") != std::string_view::npos;
}

/// The bits of an element that a zero of either sign leaves clear, repeated over 8 bytes.
std::uint64_t magnitude_mask(const TensorView& t) {
    switch (t.dtype) {
        case DType::f8_e4m3:
        case DType::f8_e5m2: return 0x7f7f7f7f7f7f7f7f;
        case DType::bf16:
        case DType::f16: return 0x7fff7fff7fff7fff;
        case DType::f32: return 0x7fffffff7fffffff;
        case DType::u8: return 0x7777777777777777;  // two e2m1 codes
        default: return ~std::uint64_t{0};
    }
}

std::int64_t zero_rows(const TensorView& t, std::int64_t rows) {
    const auto mask = magnitude_mask(t);
    const auto pitch = t.bytes / static_cast<std::size_t>(rows);
    const auto zero = [&](const std::byte* row) {
        std::uint64_t word = 0;
        std::size_t i = 0;
        for (; i + 8 <= pitch; i += 8) {
            std::memcpy(&word, row + i, 8);
            if (word & mask) return false;
        }
        word = 0;
        std::memcpy(&word, row + i, pitch - i);
        return (word & mask) == 0;
    };
    std::int64_t n = 0;
    for (std::int64_t r = 0; r < rows; ++r) n += zero(t.data + static_cast<std::size_t>(r) * pitch);
    return n;
}

/// Scales that are NaN or infinite.
std::int64_t bad_scales(const TensorView& t) {
    const auto count = [&](auto sample, auto&& bad) {
        std::int64_t n = 0;
        for (std::size_t i = 0; i < t.bytes; i += sizeof sample) {
            std::memcpy(&sample, t.data + i, sizeof sample);
            n += bad(sample);
        }
        return n;
    };
    switch (t.dtype) {
        case DType::f8_e4m3: return count(std::uint8_t{}, [](std::uint8_t b) { return (b & 0x7f) == 0x7f; });
        case DType::u8:
        case DType::f8_e8m0: return count(std::uint8_t{}, [](std::uint8_t b) { return b == 0xff; });
        case DType::bf16:
            return count(std::uint16_t{}, [](std::uint16_t b) { return (b & 0x7f80) == 0x7f80; });
        case DType::f16:
            return count(std::uint16_t{}, [](std::uint16_t b) { return (b & 0x7c00) == 0x7c00; });
        case DType::f32:
            return count(std::uint32_t{}, [](std::uint32_t b) { return (b & 0x7f800000) == 0x7f800000; });
        default: return 0;
    }
}

void scan(const Checkpoint& checkpoint, const TensorView& t, Report& report) {
    if (t.bytes > kScanLimit) {
        ++report.not_scanned;
        return;
    }
    ++report.scanned;
    Damage found{t.name, 0, 0, 0};
    if (is_scale(t.name)) {
        found.bad_scales = bad_scales(t);
    } else if (t.shape.size() >= 2 && t.bytes > 0) {
        found.rows = t.elements() / t.dim(-1);
        found.zero_rows = zero_rows(t, found.rows);
    }
    checkpoint.drop_pages(t.data, t.bytes);
    if (found.zero_rows || found.bad_scales) report.damage.push_back(std::move(found));
}

void describe_config(const Checkpoint& checkpoint, Report& report) {
    try {
        const auto config = load_config(checkpoint.directory());
        const auto attention = std::count(config.layers.begin(), config.layers.end(), LayerKind::attention);
        report.config_line =
            config.model_type + ", hidden " + std::to_string(config.hidden) + ", " +
            counted(config.layers.size(), "layer") + " (" + std::to_string(attention) + " attention), " +
            std::to_string(config.query_heads) + "/" + std::to_string(config.kv_heads) + " heads of " +
            std::to_string(config.head_dim) + ", " +
            (config.key_heads ? "delta net " + std::to_string(config.key_heads) + "/" +
                                    std::to_string(config.value_heads) + " heads, "
                              : "") +
            counted(static_cast<std::uint64_t>(config.experts), "expert") + " of " +
            std::to_string(config.expert_width) + ", top " + std::to_string(config.top_k) + ", vocabulary " +
            std::to_string(config.vocab) + (config.tied_embeddings ? ", tied head" : "");
        report.quantization = config.quantization.empty() ? "none" : config.quantization;
        report.warnings.insert(report.warnings.end(), config.warnings.begin(), config.warnings.end());
    } catch (const Error& e) { report.config_error = e.what(); }
}

Report examine(const std::filesystem::path& directory) {
    const auto checkpoint = open_checkpoint(directory);
    Report report;
    report.directory = directory;
    report.files = checkpoint.files();
    report.warnings = checkpoint.warnings();
    describe_config(checkpoint, report);
    for (const auto& [name, tensor] : checkpoint.tensors()) {
        const auto part = part_index(name);
        report.by_type[name_of(tensor.dtype)].add(tensor);
        report.by_part[part].add(tensor);
        if (part != 0) continue;
        scan(checkpoint, tensor, report);
        if (is_scale(name) || tensor.shape.size() < 2) continue;
        ++report.formats[role_of(base_of(name))]
                        [(is_fused(tensor) ? "fused " : "") + format_beside(checkpoint, tensor)];
    }
    checkpoint.check_unchanged();
    return report;
}

std::string gigabytes(std::uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3f GB", static_cast<double>(bytes) / 1e9);
    return text;
}

void print_text(const Report& r) {
    std::printf("checkpoint    %s\n", printable(r.directory.string()).c_str());
    if (r.config_error.empty())
        std::printf("model         %s\nquantization  %s\n", printable(r.config_line).c_str(),
                    printable(r.quantization).c_str());
    else std::printf("model         not usable: %s\n", printable(r.config_error).c_str());
    std::printf("files         %zu\n", r.files.size());
    for (const auto& file : r.files) std::printf("  %s\n", printable(file.filename().string()).c_str());
    const auto line = [](std::string_view label, const Count& c) {
        std::printf("  %-10.*s %9llu tensors %18llu bytes  %s\n", static_cast<int>(label.size()),
                    label.data(), static_cast<unsigned long long>(c.tensors),
                    static_cast<unsigned long long>(c.bytes), gigabytes(c.bytes).c_str());
    };
    Count all;
    for (const auto& c : r.by_part) all.tensors += c.tensors, all.bytes += c.bytes;
    std::printf("tensors\n");
    line("all", all);
    for (const auto& [type, count] : r.by_type) line(type, count);
    std::printf("parts\n");
    for (std::size_t i = 0; i < kParts.size(); ++i) line(kParts[i], r.by_part[i]);
    std::printf("formats of the text matrices\n");
    for (const auto& [role, formats] : r.formats) {
        std::printf("  %-40s", role.c_str());
        for (const auto& [format, count] : formats) std::printf(" %s x%d", format.c_str(), count);
        std::printf("\n");
    }
    std::printf("scan          %llu text tensors of at most 64 MiB, %llu larger ones left out\n",
                static_cast<unsigned long long>(r.scanned), static_cast<unsigned long long>(r.not_scanned));
    if (r.damage.empty()) std::printf("  no all-zero rows, every scale finite\n");
    for (const auto& d : r.damage) {
        if (d.zero_rows)
            std::printf("  %s: %lld of %lld rows all zero\n", printable(d.name).c_str(),
                        static_cast<long long>(d.zero_rows), static_cast<long long>(d.rows));
        if (d.bad_scales)
            std::printf("  %s: %s not finite\n", printable(d.name).c_str(),
                        counted(static_cast<std::uint64_t>(d.bad_scales), "scale").c_str());
    }
    for (const auto& w : r.warnings) std::printf("warning       %s\n", printable(w).c_str());
}

/// "open" + the items' texts separated by commas + "close".
template <class Items, class F> std::string json_list(char open, char close, const Items& items, F&& text) {
    std::string out(1, open);
    for (const auto& item : items) out += (out.size() > 1 ? "," : "") + text(item);
    return out + close;
}

void print_json(const Report& r) {
    const auto count = [](const Count& c) {
        return "{\"tensors\":" + std::to_string(c.tensors) + ",\"bytes\":" + std::to_string(c.bytes) + "}";
    };
    std::string out = "{\"checkpoint\":" + json_string(r.directory.string());
    if (r.config_error.empty())
        out +=
            ",\"model\":" + json_string(r.config_line) + ",\"quantization\":" + json_string(r.quantization);
    else out += ",\"config_error\":" + json_string(r.config_error);
    out += ",\"files\":" +
           json_list('[', ']', r.files, [](const auto& f) { return json_string(f.filename().string()); });
    out += ",\"types\":" + json_list('{', '}', r.by_type, [&](const auto& t) {
               return json_string(t.first) + ":" + count(t.second);
           });
    std::size_t part = 0;
    out += ",\"parts\":" + json_list('{', '}', r.by_part, [&](const Count& c) {
               return json_string(kParts[part++]) + ":" + count(c);
           });
    out += ",\"formats\":" + json_list('{', '}', r.formats, [](const auto& role) {
               return json_string(role.first) + ":" + json_list('{', '}', role.second, [](const auto& f) {
                          return json_string(f.first) + ":" + std::to_string(f.second);
                      });
           });
    out += ",\"scanned\":" + std::to_string(r.scanned) + ",\"not_scanned\":" + std::to_string(r.not_scanned);
    out += ",\"damage\":" + json_list('[', ']', r.damage, [](const Damage& d) {
               return "{\"tensor\":" + json_string(d.name) + ",\"zero_rows\":" + std::to_string(d.zero_rows) +
                      ",\"rows\":" + std::to_string(d.rows) +
                      ",\"bad_scales\":" + std::to_string(d.bad_scales) + "}";
           });
    out += ",\"warnings\":" + json_list('[', ']', r.warnings, [](const auto& w) { return json_string(w); }) +
           "}";
    std::printf("%s\n", out.c_str());
}

}  // namespace

int inspect_command(const Options& options) {
    const auto report = examine(options.model);
    if (options.json) print_json(report);
    else print_text(report);
    return static_cast<int>(report.config_error.empty() ? Exit::ok : Exit::bad_input);
}

}  // namespace ftmpi
