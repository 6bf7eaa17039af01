// How tests of Checkpoint say what they expect of a directory.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint.hpp"
#include "error.hpp"
#include "safetensors_writer.hpp"

namespace ftmpi::testing {

/// The message of the bad_input error that opening `directory` ends with; empty when it opens.
inline std::string refusal(const std::filesystem::path& directory) {
    try {
        Checkpoint::open(directory);
    } catch (const Error& e) {
        BOOST_TEST((e.code() == Exit::bad_input), e.what());
        return std::string(e.what()) + " | " + e.hint();
    }
    return {};
}

inline void expect_refused(const std::filesystem::path& directory, const std::vector<std::string>& words) {
    const auto message = refusal(directory);
    BOOST_TEST(!message.empty(), "was accepted; expected a message with \"" << words.front() << '"');
    for (const auto& word : words)
        BOOST_TEST(message.find(word) != std::string::npos,
                   "\"" << message << "\" does not say \"" << word << '"');
}

inline bool warns(const Checkpoint& checkpoint, const std::string& word) {
    for (const auto& w : checkpoint.warnings())
        if (w.find(word) != std::string::npos) return true;
    return false;
}

inline StoredTensor floats(const std::string& name, float value) {
    return {name, "F32", {2}, bytes_of<float>({value, value})};
}

inline float first_value(const Checkpoint& checkpoint, std::string_view name) {
    float value = 0;
    std::memcpy(&value, checkpoint.at(name).data, sizeof value);
    return value;
}

}  // namespace ftmpi::testing
