// The header of a safetensors file: 8 bytes of length, a JSON object of tensors, then their bytes without
// gaps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../dtype.hpp"
#include "mapped_file.hpp"

namespace ftmpi {

/// Larger headers are refused before memory is taken for them, as other readers of the format do.
inline constexpr std::uint64_t kHeaderLimit = 100'000'000;

struct HeaderEntry {
    std::string name;
    std::optional<DType> dtype;  ///< empty for a name this program does not know
    std::string dtype_name;      ///< only for an unknown one
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  ///< from the first byte after the header
};

struct Header {
    std::string_view text;  ///< the JSON with its padding, inside the mapping
    std::uint64_t data_offset = 0;
    std::vector<HeaderEntry> entries;  ///< in the order of the text; they cover the rest of the file exactly
};

/// Reads and checks the header of `file`. Everything the header says is checked against the size of the file,
/// so that [begin, end) of each entry lies inside the mapping. Throws Error(bad_input) naming the file,
/// tensor and offsets.
Header read_header(const MappedFile& file);

}  // namespace ftmpi
