// What the tests of the options share: command lines parsed and refused, and a folder for job and prompt
// files.
#pragma once

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "options.hpp"
#include "refusal.hpp"

namespace ftmpi::testing {

namespace fs = std::filesystem;

inline Options parse(std::vector<std::string> arguments) {
    std::vector<const char*> argv{"ftmpi"};
    for (const auto& a : arguments) argv.push_back(a.c_str());
    return parse_options(static_cast<int>(argv.size()), argv.data());
}

inline Options parse_run(std::vector<std::string> more) {
    more.insert(more.begin(), {"--model", "m", "--prompt", "hello"});
    return parse(std::move(more));
}

inline std::string usage(std::vector<std::string> arguments) {
    return refusal(Exit::usage, [&] { parse(std::move(arguments)); });
}
inline std::string usage_run(std::vector<std::string> more) {
    return refusal(Exit::usage, [&] { parse_run(std::move(more)); });
}

#define TEST_HOLDS(text, part)                                                                   \
    do {                                                                                         \
        const std::string text_ = (text), part_ = (part);                                        \
        BOOST_TEST((text_.find(part_) != std::string::npos), text_ << " should hold " << part_); \
    } while (false)

struct Folder {
    fs::path path;
    Folder() {
        char name[] = "/tmp/ftmpi-options-XXXXXX";
        path = mkdtemp(name);
    }
    ~Folder() { fs::remove_all(path); }
    std::string write(const std::string& name, const std::string& bytes) const {
        std::ofstream(path / name, std::ios::binary) << bytes;
        return (path / name).string();
    }
};

}  // namespace ftmpi::testing
