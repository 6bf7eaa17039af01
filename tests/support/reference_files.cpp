#include "reference_files.hpp"

#include <simdjson.h>

#include <cstring>
#include <stdexcept>

namespace ftmpi::testing {
namespace {

std::vector<int> int_array(const simdjson::dom::element& e) {
    std::vector<int> v;
    for (const std::int64_t i : simdjson::dom::array(e)) v.push_back(static_cast<int>(i));
    return v;
}

std::string text_of(const simdjson::dom::element& e) { return std::string(std::string_view(e)); }

}  // namespace

ReferenceFiles::ReferenceFiles(const std::filesystem::path& directory, const std::string& variant)
    : tensors_(directory / ("reference-" + variant + ".safetensors")) {
    simdjson::dom::parser parser;
    const simdjson::dom::element root =
        parser.load((directory / ("reference-" + variant + ".json")).string());
    for (const auto& e : simdjson::dom::array(root["prompts"])) {
        ReferencePrompt p;
        p.name = text_of(e["name"]);
        p.text = text_of(e["prompt"]);
        p.greedy_text = text_of(e["greedy_text"]);
        p.prompt_ids = int_array(e["prompt_ids"]);
        p.greedy_ids = int_array(e["greedy_ids"]);
        for (const double m : simdjson::dom::array(e["margin"])) p.margin.push_back(m);
        if (!e["first_stop"].is_null()) p.first_stop = static_cast<int>(std::int64_t(e["first_stop"]));
        prompts_.push_back(std::move(p));
    }
}

const ReferencePrompt& ReferenceFiles::prompt(const std::string& name) const {
    for (const auto& p : prompts_)
        if (p.name == name) return p;
    throw std::runtime_error("no reference prompt " + name);
}

std::vector<int> ReferenceFiles::ids(const std::string& tensor) const {
    const auto& t = tensors_.at(tensor);
    if (t.dtype != "I32") throw std::runtime_error(tensor + " is not I32");
    std::vector<int> v(t.bytes / 4);
    std::memcpy(v.data(), t.data, t.bytes);
    return v;
}

std::vector<float> ReferenceFiles::floats(const std::string& tensor) const {
    const auto& t = tensors_.at(tensor);
    if (t.dtype != "F32") throw std::runtime_error(tensor + " is not F32");
    std::vector<float> v(t.bytes / 4);
    std::memcpy(v.data(), t.data, t.bytes);
    return v;
}

}  // namespace ftmpi::testing
