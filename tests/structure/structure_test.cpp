// Modules and floors: reads every #include of src/, mpi/ and cuda/ and fails when one points up, sideways
// into another module's library, or to something no module owns. files.cpp looks at the files themselves.
#define BOOST_TEST_MODULE structure
#include <cctype>
#include <map>
#include <regex>
#include <set>

#include "tree.hpp"

using namespace structure;

namespace {

enum class Floor { words, facts, contracts, computed, hosted, program };

/// The floor of each module. A new module needs a line here, which is the moment to ask where it belongs.
const std::map<std::string, Floor> floors = {
    {"error", Floor::words},       {"packing", Floor::words},
    {"text", Floor::words},        {"json", Floor::words},
    {"dtype", Floor::words},       {"tensor", Floor::words},
    {"numerics", Floor::words},    {"format", Floor::words},
    {"options", Floor::facts},     {"checkpoint", Floor::facts},
    {"config", Floor::facts},      {"tokenizer", Floor::facts},
    {"digest", Floor::facts},      {"results", Floor::facts},
    {"backend", Floor::contracts}, {"communicator", Floor::contracts},
    {"stored", Floor::contracts},  {"kernel_trace", Floor::contracts},
    {"shard", Floor::computed},    {"weights", Floor::computed},
    {"state", Floor::computed},    {"rope", Floor::computed},
    {"model", Floor::computed},    {"sampler", Floor::computed},
    {"generate", Floor::computed}, {"cpu_backend", Floor::hosted},
    {"cuda", Floor::hosted},       {"mpi", Floor::hosted},
    {"main", Floor::program},      {"engine", Floor::program},
    {"run", Floor::program},       {"bench", Floor::program},
    {"plan", Floor::program},      {"verify", Floor::program},
    {"inspect", Floor::program},   {"recover", Floor::program}};

/// Libraries by the beginning of their headers' names, and the modules that may use them.
const std::vector<std::pair<std::string, std::set<std::string>>> libraries = {
    {"boost/program_options", {"options"}},
    {"hdf5", {"results"}},
    {"H5", {"results"}},
    {"simdjson", {"json", "options", "checkpoint", "config", "tokenizer"}},
    {"pcre2", {"tokenizer"}},
    {"utf8proc", {"tokenizer"}},
    {"openssl/", {"digest"}},
    {"mpi", {"mpi"}},
    {"nccl", {"mpi"}},
    {"cuda", {"cuda", "mpi"}},
    {"cub/", {"cuda"}},
    {"cooperative_groups", {"cuda"}},
    {"mma.h", {"cuda"}},
    {"nvml", {"cuda"}},
    {"immintrin.h", {"cpu_backend", "numerics"}},
    {"xmmintrin.h", {"cpu_backend", "numerics", "generate", "main"}},
};

/// src/results/wire.cpp -> results, src/results.hpp -> results, mpi/session.cpp -> mpi; empty outside the
/// three folders.
std::string module_of(const fs::path& relative) {
    auto part = relative.begin();
    if (part == relative.end()) return {};
    if (*part == "mpi" || *part == "cuda") return part->string();
    if (*part != "src" || ++part == relative.end()) return {};
    return part->stem().string();
}

std::string may_include(const std::string& from, const std::string& to, const fs::path& target) {
    if (from == to) return {};
    if (!floors.count(from)) return "module " + from + " has no floor";
    if (!floors.count(to)) return "module " + to + " has no floor";
    const auto here = floors.at(from), there = floors.at(to);
    const auto no = from + " may not include " + to;
    switch (here) {
        case Floor::words: return there == Floor::words ? "" : no;
        case Floor::facts:
            if (to == "digest" &&
                (from == "checkpoint" || from == "config" || from == "tokenizer" || from == "results"))
                return {};
            return there == Floor::words ? "" : no;
        case Floor::contracts: return there == Floor::words || there == Floor::contracts ? "" : no;
        case Floor::computed: return there <= Floor::computed ? "" : no;
        case Floor::hosted:
            if (from == "mpi" && to == "cuda") {
                return target == "cuda/runtime/handles.hpp" || target == "cuda/mailbox.hpp"
                           ? ""
                           : no + " but runtime/handles.hpp and mailbox.hpp";
            }
            return there == Floor::words || there == Floor::contracts ? "" : no;
        case Floor::program: return {};
    }
    return no;
}

/// Inside cuda/ an operator's folder may include those that it is built on, a header beside the folders or in
/// cuda/runtime no operator's.
std::string may_include_in_cuda(const fs::path& from, const fs::path& to) {
    static const std::map<std::string, std::set<std::string>> below = {{"gemv", {}},
                                                                       {"gemm", {"gemv"}},
                                                                       {"experts", {"gemv", "gemm"}},
                                                                       {"attention", {"gemm"}},
                                                                       {"delta_net", {}}};
    const auto folder = [](const fs::path& p) { return p.parent_path().filename().string(); };
    const std::string here = folder(from), there = folder(to);
    if (here == there || !below.count(there)) return {};
    const bool allowed = below.count(here) ? below.at(here).count(there) > 0
                                           : from.extension() != ".hpp" && from.extension() != ".cuh";
    return allowed ? "" : "cuda/" + here + " may not include cuda/" + there;
}

bool is_system_header(const std::string& name) {
    static const std::set<std::string> posix = {"cpuid.h",   "dirent.h",  "dlfcn.h",  "fcntl.h",  "netdb.h",
                                                "poll.h",    "pthread.h", "sched.h",  "signal.h", "spawn.h",
                                                "syscall.h", "time.h",    "unistd.h", "stdint.h", "stddef.h",
                                                "stdlib.h",  "math.h",    "string.h", "limits.h", "errno.h"};
    if (begins(name, "sys/") || begins(name, "linux/") || posix.count(name)) return true;
    return name.find_first_of("/.") == std::string::npos;  // the standard library
}

std::string may_use(const std::string& module, const fs::path& file, const std::string& header) {
    for (const auto& [prefix, modules] : libraries) {
        if (!begins(header, prefix)) continue;
        if (!modules.count(module)) return module + " may not include <" + header + ">";
        // In mpi/ only the transports of device memory see CUDA; CMake leaves them out by the same names.
        const auto name = file.filename().string();
        const bool device = begins(name, "nccl") || begins(name, "peer") || begins(name, "device");
        if (module == "mpi" && prefix == "cuda" && !device)
            return name + " may not include <" + header + ">: not a device communicator";
        return {};
    }
    return is_system_header(header) ? "" : "<" + header + "> belongs to no module";
}

struct Include {
    std::string name;
    bool angle = false;
    std::size_t line = 0;
};

std::vector<Include> includes_of(const std::string& content) {
    std::vector<Include> out;
    std::istringstream lines(content);
    std::string line;
    for (std::size_t number = 1; std::getline(lines, line); ++number) {
        std::size_t at = 0;
        const auto skip = [&] {
            while (at < line.size() && std::isspace(static_cast<unsigned char>(line[at]))) ++at;
        };
        skip();
        if (at == line.size() || line[at] != '#') continue;
        ++at, skip();
        if (line.compare(at, 7, "include") != 0) continue;
        at += 7, skip();
        if (at == line.size() || (line[at] != '<' && line[at] != '"')) continue;
        const char close = line[at] == '<' ? '>' : '"';
        const auto end = line.find(close, at + 1);
        if (end != std::string::npos)
            out.push_back({line.substr(at + 1, end - at - 1), close == '>', number});
    }
    return out;
}

/// One sentence for every include of the tree that the table does not allow.
std::vector<std::string> wrong_includes(const fs::path& root) {
    std::vector<std::string> faults;
    std::set<std::string> nccl_files;
    for (const auto& file : files_of(root, {"src", "mpi", "cuda"})) {
        const auto relative = fs::relative(file, root);
        const auto module = module_of(relative);
        for (const auto& include : includes_of(read(file))) {
            const auto refuse = [&](const std::string& why) {
                if (!why.empty())
                    faults.push_back(relative.string() + ":" + std::to_string(include.line) + ": " + why);
            };
            if (begins(include.name, "nccl") && include.angle) nccl_files.insert(relative.string());
            if (include.angle) {
                refuse(may_use(module, relative, include.name));
                continue;
            }
            fs::path target;
            for (const auto& base : {file.parent_path(), root / "src", root / "mpi", root / "cuda"})
                if (target.empty() && fs::exists(base / include.name)) target = base / include.name;
            if (target.empty()) {  // "nccl.h" in quotes is a library's header all the same
                const auto why = may_use(module, relative, include.name);
                refuse(why.find("belongs to no module") == std::string::npos
                           ? why
                           : "\"" + include.name + "\" is not in the tree");
                continue;
            }
            const auto to = fs::relative(fs::weakly_canonical(target), fs::weakly_canonical(root));
            const auto to_module = module_of(to);
            refuse(to_module.empty() ? "\"" + include.name + "\" lies outside src/, mpi/ and cuda/"
                                     : may_include(module, to_module, to));
            if (module == "cuda" && to_module == "cuda") refuse(may_include_in_cuda(relative, to));
        }
    }
    if (nccl_files.size() > 1)
        for (const auto& file : nccl_files)
            faults.push_back(file + ": NCCL belongs to one file, several include it");
    return faults;
}

}  // namespace

BOOST_AUTO_TEST_CASE(includes_point_down_and_libraries_stay_in_their_modules) {
    const fs::path root = FTMPI_SOURCE_DIR;
    BOOST_TEST_REQUIRE(files_of(root, {"src"}).size() > 10u);
    require_none(wrong_includes(root));
}

BOOST_AUTO_TEST_CASE(readme_has_every_row_of_the_table_of_kernels) {
    const fs::path root = FTMPI_SOURCE_DIR;
    const std::string source = read(root / "cuda/kernels.cpp"), readme = read(root / "cuda/README.md");
    const auto begin = source.find("KernelRow table[]"), end = source.find("\n};", begin);
    BOOST_TEST_REQUIRE(end != std::string::npos);
    const std::string table = source.substr(begin, end - begin);
    const std::regex literal("\"([^\"]*)\"");
    int count = 0;
    for (auto m = std::sregex_iterator(table.begin(), table.end(), literal); m != std::sregex_iterator();
         ++m, ++count)
        if (readme.find(m->str(1)) == std::string::npos)
            BOOST_ERROR("cuda/README.md does not say \"" + m->str(1) + "\"");
    BOOST_TEST(count > 30);
}

BOOST_AUTO_TEST_CASE(planted_includes_are_found) {
    const PlantedTree tree;
    BOOST_TEST(wrong_includes(tree.root).empty());
    const std::pair<const char*, const char*> wrong[] = {
        {"src/sampler.cpp", "#include <hdf5.h>\n"},
        {"src/sampler.cpp", "#  include  <mpi.h>\n"},
        {"src/error.cpp", "#include \"digest.hpp\"\n"},
        {"src/digest.cpp", "#include \"results.hpp\"\n"},
        {"src/config/parts.cpp", "#include \"../results.hpp\"\n"},
        {"src/results/io.cpp", "#include <simdjson.h>\n"},
        {"src/backend.cpp", "#include \"config.hpp\"\n"},
        {"src/model/step.cpp", "#include \"../cpu_backend.hpp\"\n"},
        {"src/model.cpp", "#include \"../mpi/session.hpp\"\n"},
        {"src/model.cpp", "#include <cuda_runtime.h>\n"},
        {"src/model.cpp", "#include \"run.hpp\"\n"},
        {"src/model.cpp", "#include <fmt/core.h>\n"},
        {"src/cpu_backend/a.cpp", "#include \"../model.hpp\"\n"},
        {"mpi/session.cpp", "#include \"../src/config.hpp\"\n"},
        {"mpi/session.cpp", "#include \"../cuda/stream.hpp\"\n"},
        {"mpi/session.cpp", "#include <cuda_runtime.h>\n"},
        {"cuda/a.cu", "#include \"../mpi/session.hpp\"\n"},
        {"cuda/a.cu", "#include <nccl.h>\n"},
        {"cuda/a.hpp", "#include \"gemv/gemv.cuh\"\n"},
        {"cuda/gemm/a.cu", "#include \"../experts/experts.hpp\"\n"},
        {"src/newmodule.cpp", "#include \"error.hpp\"\n"},
        {"src/model.cpp", "#include \"nowhere.hpp\"\n"},
    };
    for (const auto& [file, content] : wrong) {
        tree.plant(file, std::string("\n") + content);
        const auto faults = wrong_includes(tree.root);
        BOOST_TEST(faults.size() == 1u, file << ": " << content);
        if (!faults.empty()) BOOST_TEST(begins(faults.front(), std::string(file) + ":2: "), faults.front());
        tree.remove(file);
    }
    const std::pair<const char*, const char*> right[] = {
        {"src/results/io.cpp", "#include <hdf5.h>\n#include \"../digest.hpp\"\n"},
        {"mpi/nccl_communicator.cpp",
         "#include <nccl.h>\n#include <cuda_runtime.h>\n#include \"../cuda/runtime/handles.hpp\"\n"},
        {"src/engine/x.cpp",
         "#include \"../model.hpp\"\n#include \"../../mpi/session.hpp\"\n#include \"../cpu_backend.hpp\"\n"},
    };
    for (const auto& [file, content] : right) {
        tree.plant(file, content);
        BOOST_TEST(wrong_includes(tree.root).empty(), file);
    }
    tree.plant("mpi/nccl_second.cpp", "#include <nccl.h>\n");
    BOOST_TEST(wrong_includes(tree.root).size() == 2u);
}
