// A job file; after a line `---` arguments, one a line. What is accepted must mean the same when it is
// written out in full on the command line.
#include <cstring>

#include "fuzz.hpp"
#include "options.hpp"
#include "options/table.hpp"

using namespace ftmpi;
using namespace ftmpi::fuzz;

namespace {

Options parse(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"ftmpi"};
    for (const auto& argument : arguments) argv.push_back(argument.c_str());
    return parse_options(static_cast<int>(argv.size()), argv.data());
}

/// Every value that `options` holds, as one writes it on the command line.
std::vector<std::string> written_out(const Options& options) {
    std::vector<std::string> arguments;
    unsigned bit = 0;
    for (const auto& row : command_table())
        if (row.command == options.command) arguments = {row.name}, bit = row.bit;
    for (const auto& row : option_table()) {
        const auto value = row.get(options);
        if (!(row.where & bit) || value.empty() || row.name == "job") continue;
        if (row.name == "policy" && !options.shares.empty()) continue;
        if (row.name == "thinking" && !options.chat) continue;
        if (row.name == "model" && !options.files.empty()) continue;
        arguments.push_back("--" + row.name + "=" + value);
    }
    for (const auto& prompt : options.prompts) arguments.push_back("--prompt=" + prompt);
    for (const auto& file : options.files) arguments.push_back(file);
    return arguments;
}

void check(const Options& options) {
    if (options.command == Command::help || options.command == Command::version) return;
    require(options.max_tokens >= 1 && options.batch >= 1 && options.timeout > 0 && options.top_p > 0,
            "values are in their ranges");
    for (const auto& prompt : options.prompts) require(!prompt.empty(), "no prompt is empty");
    for (const auto& file : options.files)
        if (file.compare(0, 1, "-") == 0) return;  // only after `--`, which written_out does not write
    Options again;
    require(accepted([&] { again = parse(written_out(options)); }, {Exit::usage}),
            "written out, it is accepted");
    require(again.digest_text == options.digest_text, "written out, it means the same",
            options.digest_text + "\n" + again.digest_text);
    for (const auto& row : option_table())
        if (row.name != "job")
            require(row.get(options) == row.get(again), "written out, every value is the same", row.name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const TemporaryDirectory folder;
    const auto parts = parts_of(text_of(data, size), 2);
    const auto path = folder / "job.ini";
    write_file(path, parts[0]);
    std::vector<std::string> arguments;
    if (parts.size() > 1)
        for (const auto line : lines_of(parts[1])) arguments.emplace_back(line.substr(0, line.find('\0')));
    arguments.push_back("--job=" + path.string());
    accepted([&] { check(parse(arguments)); }, {Exit::usage});
    return 0;
}
