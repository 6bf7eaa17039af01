// A second, minimal reading of safetensors files for tests: whole files in memory, no checks beyond what
// tests need. It shares nothing with src/checkpoint, so that a mistake there cannot hide behind the same
// mistake here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ftmpi::testing {

struct PlainTensor {
    std::string dtype;                ///< as safetensors names it: "BF16", "F8_E4M3", "U8", ...
    std::vector<std::int64_t> shape;  ///< empty for a scalar
    const unsigned char* data = nullptr;
    std::size_t bytes = 0;

    std::int64_t elements() const {
        std::int64_t n = 1;
        for (const auto d : shape) n *= d;
        return n;
    }
};

class PlainSafetensors {
public:
    /// One .safetensors file, or every such file of a directory. Throws std::runtime_error.
    explicit PlainSafetensors(const std::filesystem::path& path);

    const std::map<std::string, PlainTensor>& tensors() const { return tensors_; }
    const PlainTensor* find(const std::string& name) const;  ///< null when absent
    const PlainTensor& at(const std::string& name) const;    ///< throws naming it when absent

private:
    void add(const std::filesystem::path& file);

    std::vector<std::unique_ptr<std::string>> files_;
    std::map<std::string, PlainTensor> tensors_;
};

}  // namespace ftmpi::testing
