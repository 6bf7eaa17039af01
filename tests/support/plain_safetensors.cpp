#include "plain_safetensors.hpp"

#include <simdjson.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace ftmpi::testing {

PlainSafetensors::PlainSafetensors(const std::filesystem::path& path) {
    if (!std::filesystem::is_directory(path)) {
        add(path);
        return;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path))
        if (entry.path().extension() == ".safetensors") add(entry.path());
}

void PlainSafetensors::add(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) throw std::runtime_error("cannot read " + file.string());
    auto text = std::make_unique<std::string>(std::filesystem::file_size(file), '\0');
    in.read(text->data(), static_cast<std::streamsize>(text->size()));
    const auto* bytes = reinterpret_cast<const unsigned char*>(text->data());
    std::uint64_t header = 0;
    for (int i = 7; i >= 0; --i) header = header << 8 | bytes[i];

    simdjson::dom::parser parser;
    const simdjson::dom::object root = parser.parse(simdjson::padded_string(text->data() + 8, header));
    for (const auto& [key, value] : root) {
        if (key == "__metadata__") continue;
        PlainTensor t;
        t.dtype = std::string(std::string_view(value["dtype"]));
        for (const std::int64_t d : simdjson::dom::array(value["shape"])) t.shape.push_back(d);
        const std::int64_t begin = value["data_offsets"].at(0), end = value["data_offsets"].at(1);
        if (begin > end || 8 + header + static_cast<std::uint64_t>(end) > text->size())
            throw std::runtime_error(file.string() + ": " + std::string(key) + " lies outside the file");
        t.data = bytes + 8 + header + begin;
        t.bytes = static_cast<std::size_t>(end - begin);
        if (!tensors_.emplace(std::string(key), std::move(t)).second)
            throw std::runtime_error(file.string() + ": " + std::string(key) + " twice");
    }
    files_.push_back(std::move(text));
}

const PlainTensor* PlainSafetensors::find(const std::string& name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &it->second;
}

const PlainTensor& PlainSafetensors::at(const std::string& name) const {
    if (const auto* t = find(name)) return *t;
    throw std::runtime_error("no tensor " + name);
}

}  // namespace ftmpi::testing
