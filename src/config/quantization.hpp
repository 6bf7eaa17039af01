// What quantization_config and hf_quant_config.json say, checked for names and layouts that this program does
// not have.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../json.hpp"

namespace ftmpi {

struct Quantization {
    std::string
        algorithm;     ///< quant_algo, or the format of compressed-tensors; empty when the method says it all
    std::string line;  ///< method, algorithm, producer
    std::map<std::string, std::string> layers;  ///< module -> algorithm
    std::vector<std::string> warnings;
};

/// `object` is quantization_config of config.json.
Quantization read_quantization_config(const JsonObject& object);
/// `root` is the whole of hf_quant_config.json.
Quantization read_hf_quant_config(const JsonObject& root);

}  // namespace ftmpi
