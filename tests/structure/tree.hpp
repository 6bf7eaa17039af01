// The files of a tree, and trees with faults planted in them, for the checks of this folder.
#pragma once

#include <unistd.h>
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace structure {

namespace fs = std::filesystem;

inline bool begins(const std::string& text, const std::string& with) {
    return text.compare(0, with.size(), with) == 0;
}

inline std::string read(const fs::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
}

/// Files below `folders` of the tree, in a stable order.
inline std::vector<fs::path> files_of(const fs::path& root, const std::vector<std::string>& folders) {
    std::vector<fs::path> files;
    for (const auto& folder : folders) {
        const auto start = root / folder;
        if (fs::is_regular_file(start)) files.push_back(start);
        if (!fs::is_directory(start)) continue;
        for (const auto& entry : fs::recursive_directory_iterator(start))
            if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
}

inline void require_none(const std::vector<std::string>& faults) {
    for (const auto& fault : faults) BOOST_ERROR(fault);
}

struct PlantedTree {
    fs::path root;
    PlantedTree() {
        char name[] = "/tmp/ftmpi-structure-XXXXXX";
        root = mkdtemp(name);
        for (const char* header :
             {"error", "digest", "results", "config", "backend", "sampler", "model", "cpu_backend", "run"})
            plant("src/" + std::string(header) + ".hpp", "#pragma once\n#include <vector>\n");
        for (const char* header : {"cuda/runtime/handles.hpp", "cuda/stream.hpp", "cuda/gemv/gemv.cuh",
                                   "cuda/experts/experts.hpp", "mpi/session.hpp"})
            plant(header, "#pragma once\n");
    }
    ~PlantedTree() { fs::remove_all(root); }
    void plant(const std::string& name, const std::string& content) const {
        fs::create_directories((root / name).parent_path());
        std::ofstream(root / name) << content;
    }
    void remove(const std::string& name) const { fs::remove(root / name); }
};

}  // namespace structure
