// Files that stay short and name no machine, and tests that run and exist.
#include <cctype>
#include <map>
#include <regex>

#include "tree.hpp"

using namespace structure;

namespace {

/// Files that are one idea and say so: the arithmetic, whole and in one header, because host and device must
/// share every line.
const std::map<std::string, std::size_t> longer = {
    {"src/numerics.hpp", 600},
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

/// The lines of `content` without what stands in raw string literals, which clang-format leaves as they are.
std::vector<std::string> lines_without_raw_strings(const std::string& content) {
    std::vector<std::string> lines;
    std::istringstream in(content);
    std::string line, close;  // of the literal that this line begins in
    while (std::getline(in, line)) {
        std::string kept;
        for (std::size_t at = 0; at < line.size();) {
            if (!close.empty()) {
                const auto end = line.find(close, at);
                if (end == std::string::npos) break;
                at = end + close.size();
                close.clear();
                continue;
            }
            const auto open = line.find("R\"", at);
            const auto bracket = open == std::string::npos ? open : line.find('(', open);
            if (bracket == std::string::npos || bracket - open > 18) {
                kept += line.substr(at);
                break;
            }
            kept += line.substr(at, open - at);
            close = ")" + line.substr(open + 2, bracket - open - 2) + "\"";
            at = bracket + 1;
        }
        lines.push_back(kept);
    }
    return lines;
}

std::vector<fs::path> sources_of(const fs::path& root, const std::vector<std::string>& folders) {
    auto files = files_of(root, folders);
    std::erase_if(files, [](const fs::path& file) {
        const auto kind = file.extension();
        return kind != ".cpp" && kind != ".hpp" && kind != ".cu" && kind != ".cuh";
    });
    return files;
}

std::vector<std::string> wide_lines(const fs::path& root, std::ptrdiff_t most) {
    std::vector<std::string> faults;
    for (const auto& file : sources_of(root, {"src", "mpi", "cuda", "tests"})) {
        std::size_t number = 0;
        for (const auto& line : lines_without_raw_strings(read(file))) {
            ++number;
            const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
                return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // one a character of UTF-8
            });
            if (columns > most)
                faults.push_back(fs::relative(file, root).string() + ":" + std::to_string(number) + ": " +
                                 std::to_string(columns) + " columns");
        }
    }
    return faults;
}

/// The table of options.
const std::map<std::string, std::size_t> longer_functions = {{"src/options/table.cpp", 120}};

/// Functions of more than `most` lines outside kernels: from a line at the margin that ends with a brace to
/// the next brace alone there. Tables, classes and namespaces end otherwise.
std::vector<std::string> long_functions(const fs::path& root, std::size_t most) {
    std::vector<std::string> faults;
    for (const auto& file : sources_of(root, {"src", "mpi", "cuda"})) {
        const auto name = fs::relative(file, root).string();
        const auto allowed = longer_functions.count(name) ? longer_functions.at(name) : most;
        std::size_t number = 0, first = 0;
        std::string head;
        for (const auto& line : lines_without_raw_strings(read(file))) {
            ++number;
            const bool at_margin = !line.empty() && !std::isspace(static_cast<unsigned char>(line[0]));
            if (line == "}" && first > 0 && number - first >= allowed)
                faults.push_back(name + ":" + std::to_string(first) + ": " +
                                 std::to_string(number - first + 1) + " lines of one function");
            if (at_margin && line.front() != '}') {
                head += line;  // a signature may begin with lines of its own
                if (line.back() == ';' || line.back() == '}' || begins(line, "//") || begins(line, "#"))
                    head = {};
                if (line.back() != '{') continue;
                const bool counts = !begins(head, "namespace") &&
                                    head.find("__global__") == std::string::npos &&
                                    head.find("__device__") == std::string::npos;
                first = counts ? number : 0;
                head = {};
            } else if (at_margin) {
                first = 0, head = {};
            } else if (!line.empty() && line.back() == '{' && first == 0 && !head.empty()) {
                first =
                    head.find("__global__") == std::string::npos ? number : 0;  // a signature of two lines
                head = {};
            }
        }
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

}  // namespace

BOOST_AUTO_TEST_CASE(files_are_short) { require_none(long_files(FTMPI_SOURCE_DIR, 450)); }

BOOST_AUTO_TEST_CASE(lines_are_short) { require_none(wide_lines(FTMPI_SOURCE_DIR, 110)); }

BOOST_AUTO_TEST_CASE(functions_are_short) { require_none(long_functions(FTMPI_SOURCE_DIR, 80)); }

BOOST_AUTO_TEST_CASE(no_path_of_one_machine_is_in_the_tree) { require_none(machine_paths(FTMPI_SOURCE_DIR)); }

BOOST_AUTO_TEST_CASE(tests_of_reported_failures_exist) {
    const fs::path root = FTMPI_SOURCE_DIR;
    BOOST_TEST_REQUIRE(all_of(read(root / "tests/reported_failures.md"), "\n\\| ").size() > 150u);
    require_none(missing_tests(root));
}

BOOST_AUTO_TEST_CASE(every_test_is_run) { require_none(unnamed_tests(FTMPI_SOURCE_DIR)); }

BOOST_AUTO_TEST_CASE(planted_faults_in_files_are_found) {
    const PlantedTree tree;
    BOOST_TEST(long_files(tree.root, 450).empty());
    std::string lines;
    for (int i = 0; i < 451; ++i) lines += "\n";
    tree.plant("cuda/long.cu", lines);
    BOOST_TEST(long_files(tree.root, 450).size() == 1u);

    const std::string wide(111, 'x'), umlauts = "// \xc3\xa4\xc3\xb6\xc3\xbc" + std::string(104, 'x');
    tree.plant("src/wide.cpp", "// " + wide.substr(4) + "\n" + umlauts + "\nauto a = R\"(" + wide + "\n" +
                                   wide + ")\" + R\"x(" + wide + ")x\";\n");
    BOOST_TEST(wide_lines(tree.root, 110).empty());
    for (const std::string& line :
         {wide, std::string("R\"(\n)\"") + wide, "R\"(" + wide + ")\"" + wide, "char c = '('; // " + wide}) {
        tree.plant("src/wide.cpp", line + "\n");
        BOOST_TEST(wide_lines(tree.root, 110).size() == 1u, line);
    }

    const std::string body = std::string("    if (a) {\n    }\n") + lines.substr(0, 77) + "}\n";
    for (const std::string head : {"int f() {\n", "template <class T>\nint f(int a,\n      int b) {\n",
                                   "namespace {\n\nint C::f() const {\n"}) {
        tree.plant("src/function.cpp", head + body);
        BOOST_TEST(long_functions(tree.root, 81).empty(), head);
        BOOST_TEST(long_functions(tree.root, 80).size() == 1u, head);
    }
    for (const std::string head : {"__global__ void f() {\n",
                                   "template <int N>\n__global__ void __launch_bounds__(32)\n"
                                   "    f(int a) {\n",
                                   "namespace a {\n"}) {
        tree.plant("src/function.cpp", head + body);
        BOOST_TEST(long_functions(tree.root, 80).empty(), head);
    }
    tree.plant("src/function.cpp", "const int table[] = {\n" + lines.substr(0, 90) + "};\n");
    BOOST_TEST(long_functions(tree.root, 80).empty());

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
