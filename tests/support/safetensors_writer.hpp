// Writes safetensors files and model directories for tests: well-formed ones from tensors, malformed ones
// from raw text.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ftmpi::testing {

/// A directory of its own under the system's temporary directory, removed with all it holds at the end of the
/// scope.
class TemporaryDirectory {
public:
    TemporaryDirectory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "ftmpi-test-XXXXXX").string();
        if (!::mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp " + pattern);
        path_ = pattern;
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

private:
    std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

/// A tensor to write: dtype is the safetensors name ("BF16", "F8_E4M3", ...); bytes are row-major and
/// little-endian.
struct StoredTensor {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::uint8_t> bytes;
};

/// The object representation of `values`: bytes_of<float>({1, 2}), bytes_of<std::uint16_t>({0x3f80}).
template <class T> std::vector<std::uint8_t> bytes_of(const std::vector<T>& values) {
    std::vector<std::uint8_t> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

inline std::string json_string(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\"";
}

/// One header entry: "NAME":{"dtype":...,"shape":[...],"data_offsets":[begin,end]}.
inline std::string header_entry(std::string_view name, std::string_view dtype,
                                const std::vector<std::int64_t>& shape, std::uint64_t begin,
                                std::uint64_t end) {
    std::string dims;
    for (const auto d : shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    return json_string(name) + ":{\"dtype\":" + json_string(dtype) + ",\"shape\":[" + dims +
           "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

/// How a raw file departs from the format.
struct RawForm {
    std::optional<std::uint64_t> header_length;  ///< forged: written in place of the header's own length
    char padding = ' ';                          ///< fills the header up to a multiple of 8
    bool pad = true;
};

/// Writes length, `header` as it is, and `data`. Nothing is checked.
inline void write_raw_safetensors(const std::filesystem::path& path, std::string_view header,
                                  std::span<const std::uint8_t> data = {}, const RawForm& form = {}) {
    std::string text(header);
    while (form.pad && text.size() % 8) text += form.padding;
    const std::uint64_t length = form.header_length.value_or(text.size());
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i)
        bytes[static_cast<std::size_t>(i)] = static_cast<char>(length >> (8 * i) & 0xff);
    bytes += text;
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
    write_file(path, bytes);
}

/// Writes a well-formed file holding `tensors` in the order given.
inline void write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors) {
    std::string header = "{";
    std::vector<std::uint8_t> data;
    for (const auto& t : tensors) {
        if (header.size() > 1) header += ",";
        header += header_entry(t.name, t.dtype, t.shape, data.size(), data.size() + t.bytes.size());
        data.insert(data.end(), t.bytes.begin(), t.bytes.end());
    }
    write_raw_safetensors(path, header + "}", data);
}

/// Writes DIRECTORY/model.safetensors.index.json from pairs (tensor name, shard file name).
inline void write_index(const std::filesystem::path& directory,
                        const std::vector<std::pair<std::string, std::string>>& weight_map) {
    std::string text = "{\"metadata\":{},\"weight_map\":{";
    for (std::size_t i = 0; i < weight_map.size(); ++i)
        text += (i ? ",\n" : "") + json_string(weight_map[i].first) + ":" + json_string(weight_map[i].second);
    write_file(directory / "model.safetensors.index.json", text + "}}");
}

/// Writes the shards (named model-00001-of-0000N.safetensors) and the index that agrees with them.
inline void write_sharded(const std::filesystem::path& directory,
                          const std::vector<std::vector<StoredTensor>>& shards) {
    std::vector<std::pair<std::string, std::string>> weight_map;
    const auto five = [](std::size_t n) {
        const auto digits = std::to_string(n);
        return std::string(5 - digits.size(), '0') + digits;
    };
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const auto file = "model-" + five(i + 1) + "-of-" + five(shards.size()) + ".safetensors";
        write_safetensors(directory / file, shards[i]);
        for (const auto& t : shards[i]) weight_map.emplace_back(t.name, file);
    }
    write_index(directory, weight_map);
}

}  // namespace ftmpi::testing
