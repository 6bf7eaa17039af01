// Rooms and floors: reads every #include of src/, mpi/ and cuda/ and fails when one points up, sideways into
// another room's library, or to something no room owns. It also keeps files short and paths of one machine
// out of the tree.
#define BOOST_TEST_MODULE structure
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

enum class Floor { words, facts, contracts, computed, hosted, program };

/// The floor of each room. A new room needs a line here, which is the moment to ask where it belongs.
const std::map<std::string, Floor> floors = {{"error", Floor::words},
                                             {"dtype", Floor::words},
                                             {"tensor", Floor::words},
                                             {"numerics", Floor::words},
                                             {"format", Floor::words},
                                             {"options", Floor::facts},
                                             {"checkpoint", Floor::facts},
                                             {"config", Floor::facts},
                                             {"tokenizer", Floor::facts},
                                             {"digest", Floor::facts},
                                             {"results", Floor::facts},
                                             {"backend", Floor::contracts},
                                             {"communicator", Floor::contracts},
                                             {"stored", Floor::contracts},
                                             {"family", Floor::computed},
                                             {"shard", Floor::computed},
                                             {"weights", Floor::computed},
                                             {"state", Floor::computed},
                                             {"rope", Floor::computed},
                                             {"attention", Floor::computed},
                                             {"delta_net", Floor::computed},
                                             {"moe", Floor::computed},
                                             {"model", Floor::computed},
                                             {"sampler", Floor::computed},
                                             {"generate", Floor::computed},
                                             {"cpu_backend", Floor::hosted},
                                             {"cuda", Floor::hosted},
                                             {"mpi", Floor::hosted},
                                             {"main", Floor::program},
                                             {"engine", Floor::program},
                                             {"run", Floor::program},
                                             {"bench", Floor::program},
                                             {"plan", Floor::program},
                                             {"verify", Floor::program},
                                             {"inspect", Floor::program},
                                             {"recover", Floor::program}};

/// Libraries by the beginning of their headers' names, and the rooms that may use them.
const std::vector<std::pair<std::string, std::set<std::string>>> libraries = {
    {"boost/program_options", {"options"}},
    {"hdf5", {"results"}},
    {"H5", {"results"}},
    {"simdjson", {"options", "checkpoint", "config", "tokenizer"}},
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
    {"omp.h", {"cpu_backend"}},
    {"immintrin.h", {"cpu_backend", "numerics"}},
    {"xmmintrin.h", {"cpu_backend", "numerics", "generate", "main"}},
};

bool begins(const std::string& text, const std::string& with) {
    return text.compare(0, with.size(), with) == 0;
}

/// src/results/wire.cpp -> results, src/results.hpp -> results, mpi/session.cpp -> mpi; empty outside the
/// three folders.
std::string room_of(const fs::path& relative) {
    auto part = relative.begin();
    if (part == relative.end()) return {};
    if (*part == "mpi" || *part == "cuda") return part->string();
    if (*part != "src" || ++part == relative.end()) return {};
    return part->stem().string();
}

std::string may_include(const std::string& from, const std::string& to, const fs::path& target) {
    if (from == to) return {};
    if (!floors.count(from)) return "room " + from + " has no floor";
    if (!floors.count(to)) return "room " + to + " has no floor";
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

bool is_system_header(const std::string& name) {
    static const std::set<std::string> posix = {"cpuid.h",   "dirent.h",  "dlfcn.h",  "fcntl.h",  "netdb.h",
                                                "poll.h",    "pthread.h", "sched.h",  "signal.h", "spawn.h",
                                                "syscall.h", "time.h",    "unistd.h", "stdint.h", "stddef.h",
                                                "stdlib.h",  "math.h",    "string.h", "limits.h", "errno.h"};
    if (begins(name, "sys/") || begins(name, "linux/") || posix.count(name)) return true;
    return name.find_first_of("/.") == std::string::npos;  // the standard library
}

std::string may_use(const std::string& room, const fs::path& file, const std::string& header) {
    for (const auto& [prefix, rooms] : libraries) {
        if (!begins(header, prefix)) continue;
        if (!rooms.count(room)) return room + " may not include <" + header + ">";
        // In mpi/ only the transports of device memory see CUDA; CMake leaves them out by the same names.
        const auto name = file.filename().string();
        const bool device = begins(name, "nccl") || begins(name, "peer") || begins(name, "device");
        if (room == "mpi" && prefix == "cuda" && !device)
            return name + " may not include <" + header + ">: not a device communicator";
        return {};
    }
    return is_system_header(header) ? "" : "<" + header + "> belongs to no room";
}

std::string read(const fs::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
}

/// Files below `folders` of the tree, in a stable order.
std::vector<fs::path> files_of(const fs::path& root, const std::vector<std::string>& folders) {
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
        const auto room = room_of(relative);
        for (const auto& include : includes_of(read(file))) {
            const auto refuse = [&](const std::string& why) {
                if (!why.empty())
                    faults.push_back(relative.string() + ":" + std::to_string(include.line) + ": " + why);
            };
            if (begins(include.name, "nccl") && include.angle) nccl_files.insert(relative.string());
            if (include.angle) {
                refuse(may_use(room, relative, include.name));
                continue;
            }
            fs::path target;
            for (const auto& base : {file.parent_path(), root / "src", root / "mpi", root / "cuda"})
                if (target.empty() && fs::exists(base / include.name)) target = base / include.name;
            if (target.empty()) {  // "nccl.h" in quotes is a library's header all the same
                const auto why = may_use(room, relative, include.name);
                refuse(why.find("belongs to no room") == std::string::npos
                           ? why
                           : "\"" + include.name + "\" is not in the tree");
                continue;
            }
            const auto to = fs::relative(fs::weakly_canonical(target), fs::weakly_canonical(root));
            const auto to_room = room_of(to);
            refuse(to_room.empty() ? "\"" + include.name + "\" lies outside src/, mpi/ and cuda/"
                                   : may_include(room, to_room, to));
        }
    }
    if (nccl_files.size() > 1)
        for (const auto& file : nccl_files)
            faults.push_back(file + ": NCCL belongs to one file, several include it");
    return faults;
}

/// Files that are one idea and say so: the arithmetic, whole and in one header, because host and device must
/// share every line.
const std::map<std::string, std::size_t> longer = {
    {"src/numerics.hpp", 600}, {"src/results/result_file.cpp", 475},  // to be parted
};

std::vector<std::string> long_files(const fs::path& root, std::size_t most) {
    std::vector<std::string> faults;
    for (const auto& file : files_of(root, {"src", "mpi", "cuda"})) {
        const auto content = read(file);
        const auto lines = static_cast<std::size_t>(std::count(content.begin(), content.end(), '\n'));
        const auto name = fs::relative(file, root).string();
        if (lines > (longer.count(name) ? longer.at(name) : most))
            faults.push_back(name + ": " + std::to_string(lines) + " lines");
    }
    return faults;
}

std::vector<std::string> machine_paths(const fs::path& root) {
    // Written in two halves so that this file passes its own check.
    const std::vector<std::string> roots = {std::string("/wo") + "rk/", std::string("/ho") + "me/",
                                            std::string("/ro") + "ot/", std::string("/tmp/bu") + "ild",
                                            std::string("/Us") + "ers/"};
    std::vector<std::string> faults;
    for (const auto& file :
         files_of(root, {"CMakeLists.txt", "README.md", "CHANGELOG.md", ".ci", ".clang-format", ".clang-tidy",
                         ".gitignore", "src", "mpi", "cuda", "jobs", "slurm", "tests"})) {
        std::istringstream lines(read(file));
        std::string line;
        for (std::size_t number = 1; std::getline(lines, line); ++number)
            for (const auto& path : roots) {
                const auto at = line.find(path);
                // Inside a longer path or word it is relative; an absolute path starts a word.
                if (at == std::string::npos) continue;
                if (at > 0 && (std::isalnum(static_cast<unsigned char>(line[at - 1])) ||
                               line[at - 1] == '}' || line[at - 1] == '.'))
                    continue;
                faults.push_back(fs::relative(file, root).string() + ":" + std::to_string(number) +
                                 ": names " + path);
            }
    }
    return faults;
}

/// Every part of `text` that `pattern` finds.
std::vector<std::smatch> all_of(const std::string& text, const std::string& pattern) {
    const std::regex expression(pattern);
    return {std::sregex_iterator(text.begin(), text.end(), expression), {}};
}

bool is_word_of(const std::string& text, const std::string& word) {
    return std::regex_search(text, std::regex("\\b" + word + "\\b"));
}

std::string lower(std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
}

/// The files of a folder of tests by their names, which no two of them share but those that many folders
/// have.
std::map<std::string, fs::path> tests_by_name(const fs::path& root) {
    std::map<std::string, fs::path> found;
    for (const auto& file : files_of(root, {"tests"})) found[file.filename().string()] = file;
    return found;
}

/// Sources and scripts below tests/ that no line of CMake and no other script names: nothing would run them.
std::vector<std::string> unnamed_tests(const fs::path& root) {
    std::map<std::string, std::string> naming;  // the files that name others, without their comments
    naming[".ci/run"] = read(root / ".ci/run");
    std::vector<fs::path> sources;
    for (const auto& file : files_of(root, {"tests"})) {
        const auto kind = file.extension();
        const bool is_cmake = file.filename() == "CMakeLists.txt";
        if (is_cmake || kind == ".sh" || kind == ".py")
            naming[fs::relative(file, root).string()] =
                std::regex_replace(read(file), std::regex("(^|\n)[ \t]*#[^\n]*"), "\n");
        if (kind == ".cpp" || kind == ".cu" || kind == ".sh" || kind == ".py") sources.push_back(file);
    }
    std::vector<std::string> faults;
    for (const auto& file : sources) {
        const auto name = fs::relative(file, root).string();
        auto word = file.stem().string();
        const auto test = word.rfind("_test");  // unit_test(room/name) adds it
        if (file.extension() == ".cpp" && test != std::string::npos && test + 5 == word.size())
            word.resize(test);
        const bool is_named = std::any_of(naming.begin(), naming.end(), [&](const auto& entry) {
            return entry.first != name && is_word_of(entry.second, word);
        });
        if (!is_named) faults.push_back(name + ": no line of CMake and no script names it");
    }
    return faults;
}

/// The table of failures names programs with their cases, scripts with words of theirs, and phases of the
/// proof on GPUs.
std::vector<std::string> missing_tests(const fs::path& root) {
    const fs::path tests = root / "tests";
    const std::string phases = read(tests / "gpu/small_phases.sh") + read(tests / "gpu/fault_phases.sh") +
                               read(tests / "gpu/full_steps.sh");
    auto files = tests_by_name(root);
    std::vector<std::string> faults;
    std::istringstream lines(read(tests / "reported_failures.md"));
    std::string line;
    for (std::size_t number = 1; std::getline(lines, line); ++number) {
        const auto refuse = [&](const std::string& why) {
            faults.push_back("reported_failures.md:" + std::to_string(number) + ": " + why);
        };
        if (!begins(line, "| ") || begins(line, "| What goes wrong")) continue;
        const auto last = line.rfind(" | ");
        if (last == 0 || last == std::string::npos) {
            refuse("no column of tests");
            continue;
        }
        const std::string named = line.substr(last + 3);
        bool any = std::regex_search(named, std::regex("impossible by design: |needs "));
        for (const auto& m : all_of(named, "\\b([a-z0-9_]+_test): ([a-z0-9_]+(?:, [a-z0-9_]+)*)")) {
            any = true;
            const std::string source = read(files[m.str(1) + ".cpp"]), cases = m.str(2);
            for (const auto& name : all_of(cases, "[a-z0-9_]+"))
                if (!std::regex_search(source, std::regex("TEST_CASE\\(" + name.str() + "[,) ]")))
                    refuse(m.str(1) + " has no case " + name.str());
        }
        for (const auto& m : all_of(named, "\\b([a-z_]+\\.sh)(?:: ([^|;]*))?")) {
            any = true;
            if (m.str(1) == "run.sh" || m.str(1) == "mpirun.sh") continue;
            const std::string script = lower(read(files[m.str(1)])),
                              words = std::regex_replace(m.str(2), std::regex("\\([^)]*\\)|`"), "");
            if (script.empty()) refuse("no script " + m.str(1));
            if (m.str(1) != "reported_test.sh" && m.str(1) != "run_test.sh" && m.str(1) != "hosts_test.sh")
                continue;
            for (const auto& part : all_of(words, "[^ ,][^,]*[^ ,]"))
                if (script.find(lower(part.str())) == std::string::npos)
                    refuse(m.str(1) + " does not say \"" + part.str() + "\"");
        }
        for (const auto& m : all_of(named, "tests/gpu/run\\.sh: ([^|;]*)")) {
            const std::string words = m.str(1);
            for (const auto& part : all_of(words, "([a-z-]+)( \\([^)]*\\))?"))
                if (!is_word_of(phases, (part.str(2) == " (full)" ? "full_" : "small_") + part.str(1)))
                    refuse("no phase " + part.str());
        }
        if (!any) refuse("names no test");
    }
    return faults;
}

void require_none(const std::vector<std::string>& faults) {
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
        for (const char* header : {"cuda/runtime/handles.hpp", "cuda/stream.hpp", "mpi/session.hpp"})
            plant(header, "#pragma once\n");
    }
    ~PlantedTree() { fs::remove_all(root); }
    void plant(const std::string& name, const std::string& content) const {
        fs::create_directories((root / name).parent_path());
        std::ofstream(root / name) << content;
    }
    void remove(const std::string& name) const { fs::remove(root / name); }
};

}  // namespace

BOOST_AUTO_TEST_CASE(includes_point_down_and_libraries_stay_in_their_rooms) {
    const fs::path root = FTMPI_SOURCE_DIR;
    BOOST_TEST_REQUIRE(files_of(root, {"src"}).size() > 10u);
    require_none(wrong_includes(root));
}

BOOST_AUTO_TEST_CASE(files_are_short) { require_none(long_files(FTMPI_SOURCE_DIR, 450)); }

BOOST_AUTO_TEST_CASE(no_path_of_one_machine_is_in_the_tree) { require_none(machine_paths(FTMPI_SOURCE_DIR)); }

BOOST_AUTO_TEST_CASE(tests_of_reported_failures_exist) {
    const fs::path root = FTMPI_SOURCE_DIR;
    BOOST_TEST_REQUIRE(all_of(read(root / "tests/reported_failures.md"), "\n\\| ").size() > 150u);
    require_none(missing_tests(root));
}

BOOST_AUTO_TEST_CASE(every_test_is_run) { require_none(unnamed_tests(FTMPI_SOURCE_DIR)); }

BOOST_AUTO_TEST_CASE(planted_faults_are_found) {
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
        {"src/newroom.cpp", "#include \"error.hpp\"\n"},
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

    BOOST_TEST(long_files(tree.root, 450).empty());
    std::string lines;
    for (int i = 0; i < 451; ++i) lines += "\n";
    tree.plant("cuda/long.cu", lines);
    BOOST_TEST(long_files(tree.root, 450).size() == 1u);

    tree.plant("tests/model/good_test.cpp",
               "BOOST_AUTO_TEST_CASE(one) {}\nBOOST_FIXTURE_TEST_CASE(two, Folder) {}\n");
    tree.plant("tests/program/run_test.sh", "# --- Context edges: 31\n");
    tree.plant("tests/gpu/small_phases.sh", "small_memory() {}\n");
    tree.plant("tests/gpu/full_steps.sh", "full_load() {}\n");
    const std::string row = "| a | b | ";
    for (const std::string good : {"good_test: one, two; run_test.sh: context edges (32)",
                                   "tests/gpu/run.sh: memory (held), load (full)",
                                   "impossible by design: no such thing", "needs two cards"}) {
        tree.plant("tests/reported_failures.md", row + good + " |\n");
        BOOST_TEST(missing_tests(tree.root).empty(), good);
    }
    for (const std::string bad :
         {"good_test: one, three", "other_test: one", "run_test.sh: context ends", "other.sh",
          "tests/gpu/run.sh: load", "tests/gpu/run.sh: memory (full)", "by hand"}) {
        tree.plant("tests/reported_failures.md", row + bad + " |\n");
        BOOST_TEST(missing_tests(tree.root).size() == 1u, bad);
    }

    // A test that nothing names, one that only a comment names, and one whose name is a part of another's.
    tree.plant("tests/CMakeLists.txt",
               "unit_test(model/good)\nscript_test(run_test program/run_test.sh)\n# unit_test(model/lost)\n");
    tree.plant(".ci/run", "small_phases full_steps\n");
    BOOST_TEST(unnamed_tests(tree.root).empty());
    for (const char* lost : {"tests/model/lost_test.cpp", "tests/model/goo_test.cpp", "tests/gpu/lost.cu",
                             "tests/program/other.sh"}) {
        tree.plant(lost, "// tests/model/lost_test.cpp\n# other\n");
        BOOST_TEST(unnamed_tests(tree.root).size() == 1u, lost);
        tree.remove(lost);
    }

    BOOST_TEST(machine_paths(tree.root).empty());
    tree.plant("jobs/a.sh", std::string("model=/ho") + "me/someone/model\nok=network" + "/wo" + "rk/x\n");
    BOOST_TEST(machine_paths(tree.root).size() == 1u);
}
