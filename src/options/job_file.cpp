// Job files: `key = value` lines with the names of the command line. They set values and do nothing else.
#include <algorithm>
#include <map>

#include "../error.hpp"
#include "../text/small_file.hpp"
#include "../text/utf8.hpp"
#include "table.hpp"
#include "values.hpp"

namespace ftmpi {
namespace {

constexpr std::uint64_t largest_job_file = 1 << 20;

}  // namespace

std::string job_file_text(const Options& given) {
    Options o = given;
    for (auto* path : {&o.model, &o.prompts_file})
        if (!path->empty()) *path = std::filesystem::absolute(*path).lexically_normal();
    const auto& commands = command_table();
    const auto& command = *std::find_if(commands.begin(), commands.end(),
                                        [&](const CommandRow& row) { return row.command == o.command; });
    std::string out = "command = " + command.name + "\n";
    const auto line = [&](const std::string& name, const std::string& value) {
        if (value.empty()) return;
        out += fits_job_line(value) ? name + " = " + value + "\n"
                                    : "# " + name + ": no line of a job file can hold its value\n";
    };
    for (const auto& row : option_table()) {
        if (!(row.where & command.bit)) continue;
        if (row.name == "job" || row.name == "output" || row.name == "overwrite" || row.name == "resume")
            continue;
        if (row.name == "thinking" && !o.chat) continue;  // it would be refused
        // With some prompts missing, another run would be repeated; with none, none is.
        if (row.name == "prompt" && !std::all_of(o.prompts.begin(), o.prompts.end(), fits_job_line))
            out += "# prompt: no line of a job file can hold one of them; argv and the requests do\n";
        else if (row.name == "prompt")
            for (const auto& prompt : o.prompts) line(row.name, prompt);
        // An answer longer than the context is refused where its length was asked for, so the default is not
        // asked for.
        else if (row.name == "max-tokens" && !o.max_tokens_asked)
            out += "# max-tokens = " + row.get(o) + " by default\n";
        else line(row.name, row.get(o));
    }
    return out;
}

JobFile read_job_file(const std::filesystem::path& path) {
    auto content = read_small_file(path, largest_job_file, {.code = Exit::usage, .name = "job file "});

    // A byte order mark states the encoding of the file, as in prompt files; it is no part of the first key.
    if (content.compare(0, 3, "\xEF\xBB\xBF") == 0) content.erase(0, 3);
    if (content.compare(0, 2, "\xFF\xFE") == 0 || content.compare(0, 2, "\xFE\xFF") == 0)
        throw Error(Exit::usage, path.string() + ": byte 0: invalid UTF-8, the file looks like UTF-16",
                    "save it as UTF-8");

    JobFile job;
    std::map<std::string, int> first_line;
    int line_number = 0;
    for (std::size_t begin = 0; begin < content.size();) {
        const auto end = std::min(content.find('\n', begin), content.size());
        const auto raw = std::string_view(content).substr(begin, end - begin);
        begin = end + 1;
        const auto where = path.string() + ":" + std::to_string(++line_number) + ": ";
        const auto refuse = [&](const std::string& what, const std::string& hint = {}) {
            throw Error(Exit::usage, where + what, hint);
        };
        std::string fault;
        if (const auto at = find_invalid_utf8(raw, &fault); at != std::string_view::npos)
            refuse("invalid UTF-8 (" + fault + ") at byte " + std::to_string(at) + " of the line");
        if (raw.find('\0') != std::string_view::npos) refuse("holds a NUL byte");
        const auto line = without_blanks(raw);
        if (line.empty() || line.front() == '#') continue;
        if (line.front() == '[') refuse("sections are not used in job files");
        const auto equals = line.find('=');
        if (equals == std::string::npos) refuse(in_quotes(line) + " is not a `key = value` line");

        const std::string key(without_blanks(line.substr(0, equals)));
        const std::string value(without_blanks(line.substr(equals + 1)));
        if (key.empty()) refuse("no key before '='");
        if (value.empty()) refuse(key + ": empty value");
        if (key == "job") refuse("a job file cannot name another job file");
        const auto* option = find_option(key);
        if (!option && key != "command") {
            const auto meant = values::nearest(key, option_names());
            refuse("unknown key " + in_quotes(key), meant.empty() ? "" : "did you mean " + meant + "?");
        }
        const auto [earlier, is_new] = first_line.emplace(key, line_number);
        if (!is_new && !(option && option->where & repeats))
            refuse(key + " was already set in line " + std::to_string(earlier->second));
        if (option) job.given.push_back({option, value, where});
        else job.command = value, job.command_where = where;
    }
    return job;
}

}  // namespace ftmpi
