// What linear_check's files share: both backends, the formats, and the cases that stand in files of their
// own.
#pragma once

#include "checks.hpp"

namespace ftmpi::check {

constexpr Format kFormats[] = {Format::bf16,  Format::fp8_row, Format::fp8_block, Format::nvfp4,
                               Format::mxfp4, Format::f16,     Format::f32};
constexpr Format kPlain[] = {Format::bf16, Format::f16, Format::f32};

struct Pair {
    Backend& cpu;
    Backend& gpu;
    Tally& tally;
    Random random{7};
    bool quick = false;
};

inline std::string text(std::initializer_list<std::int64_t> numbers) {
    std::string s;
    for (auto n : numbers) s += (s.empty() ? "" : " x ") + std::to_string(n);
    return s;
}

// steps_cases.cu
void check_steps(Pair& p, std::int64_t rows, std::int64_t width);
void check_device_tokens(Pair& p, std::int64_t rows);
void check_halves(Pair& p);

}  // namespace ftmpi::check
