// The option table: one row an option, with how its value is read, how it is written back, and where it may
// stand.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../options.hpp"

namespace ftmpi {

/// Commands an option belongs to, and properties, as bits of one mask.
enum : unsigned {
    in_run = 1,
    in_bench = 2,
    in_plan = 4,
    in_verify = 8,
    in_inspect = 16,
    in_recover = 32,
    in_generation = in_run | in_bench,
    in_planning = in_run | in_bench | in_plan,
    in_all = 63,
    repeats = 64,    ///< may be given more than once
    per_rank = 128,  ///< may differ between ranks, so it is not part of digest_text
};

struct OptionRow {
    std::string group;
    unsigned
        group_where;  ///< commands of most rows of the group; the help names a row's own where they differ
    std::string name;
    std::string
        argument;  ///< what stands for the value in the help; empty for a switch (`--name`, `--name=on|off`)
    unsigned where;  ///< in_... | repeats | per_rank
    std::string text;
    std::function<void(Options&, const std::string&)> set;  ///< throws values::Refused
    std::function<std::string(const Options&)> get;         ///< canonical value; empty when unset
};

const std::vector<OptionRow>& option_table();
const OptionRow* find_option(const std::string& name);
/// Names of all options, for "did you mean".
std::vector<std::string> option_names();

struct CommandRow {
    std::string name;
    Command command;
    unsigned bit;
    std::string text;
};
const std::vector<CommandRow>& command_table();

/// One value as it was given, before its option is looked at more closely.
struct Given {
    const OptionRow* option = nullptr;
    std::string value;
    std::string where;  ///< "" on the command line, "FILE:LINE: " in a job file
};

struct JobFile {
    std::string command;  ///< of `command = NAME`; empty when the file has no such line
    std::string command_where;
    std::vector<Given> given;
};
/// Reads `key = value` lines; throws Error(usage) with file and line.
JobFile read_job_file(const std::filesystem::path& path);

}  // namespace ftmpi
