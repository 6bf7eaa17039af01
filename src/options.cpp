// The command line: tokens from Boost.ProgramOptions, meaning from the option table.
#include "options.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <set>

#include "error.hpp"
#include "options/table.hpp"
#include "options/values.hpp"

namespace ftmpi {
namespace {

namespace po = boost::program_options;

[[noreturn]] void refuse(const std::string& what, const std::string& hint = {}) {
    throw Error(Exit::usage, what, hint);
}

std::string suggestion(const std::string& meant) {
    return meant.empty() ? "" : "did you mean " + meant + "?";
}

const CommandRow* find_command(const std::string& name) {
    const auto& table = command_table();
    const auto found =
        std::find_if(table.begin(), table.end(), [&](const CommandRow& row) { return row.name == name; });
    return found == table.end() ? nullptr : &*found;
}

const CommandRow& row_of(Command command) {
    const auto& table = command_table();
    return *std::find_if(table.begin(), table.end(),
                         [&](const CommandRow& row) { return row.command == command; });
}

/// Those that do something, for suggestions.
std::vector<std::string> command_names() {
    std::vector<std::string> names;
    for (const auto& row : command_table())
        if (row.bit != 0) names.push_back(row.name);
    return names;
}

std::string commands_of(unsigned where) {
    std::string out;
    for (const auto& row : command_table())
        if (row.bit & where) out += (out.empty() ? "" : ", ") + row.name;
    return out;
}

struct CommandLine {
    std::vector<Given> given;
    std::vector<std::string> positional;
    bool after_option = false;  ///< what came last was an option
    std::string stray,
        stray_hint;  ///< the first word that looks like a misplaced value, and how it was likely meant
    bool help = false, version = false;
};

/// A word right behind an option that does not take it: a switch takes its value after '=', a list is one
/// word.
std::string hint_for_stray(const Given& before, const std::string& word) {
    const auto& row = *before.option;
    if (row.argument.empty() && (word == "on" || word == "off"))
        return "a switch takes its value after '=': --" + row.name + "=" + word;
    if (row.argument.ends_with(",..."))
        return "the items of a list are joined by commas: --" + row.name + " " + before.value + "," + word;
    return {};
}

po::options_description known_options() {
    po::options_description known;
    known.add_options()("help", "")("version", "");
    for (const auto& row : option_table())
        known.add_options()(row.name.c_str(), po::value<std::string>(), "");
    return known;
}

void add(const po::option& token, CommandLine& line) {
    if (token.position_key >= 0) {
        for (const auto& word : token.value)
            if (line.after_option && line.stray_hint.empty())
                line.stray_hint = hint_for_stray(line.given.back(), line.stray = word);
        line.positional.insert(line.positional.end(), token.value.begin(), token.value.end());
        line.after_option = false;
        return;
    }
    line.after_option = false;
    if (token.string_key == "help") line.help = true;
    else if (token.string_key == "version") line.version = true;
    else {
        const auto* option = find_option(token.string_key);
        const auto value = token.value.empty() ? std::string("on") : token.value.front();
        // `--output --overwrite`: the value was forgotten. `--prompt=--overwrite` says that it is meant.
        if (token.original_tokens.size() > 1 && value.rfind("--", 0) == 0 &&
            (find_option(value.substr(2, value.find('=') - 2)) || value == "--help" || value == "--version"))
            refuse("--" + option->name + ": value missing before " + value,
                   "write --" + option->name + "=" + value + " if that is the value");
        line.given.push_back({option, value, ""});
        line.after_option = true;
    }
}

void split_piece(const std::vector<std::string>& piece, const po::options_description& known,
                 CommandLine& line) {
    // No allow_guessing: a prefix that is unique today names something else after the next release.
    constexpr int style = po::command_line_style::allow_long | po::command_line_style::long_allow_adjacent |
                          po::command_line_style::long_allow_next;
    try {
        for (const auto& token : po::command_line_parser(piece).options(known).style(style).run().options)
            add(token, line);
    } catch (const po::unknown_option& e) {
        auto name = e.get_option_name();
        name.erase(0, name.find_first_not_of('-'));
        auto names = option_names();
        names.insert(names.end(), {"help", "version"});
        const auto meant = values::nearest(name, names);
        refuse("unknown option --" + name, suggestion(meant.empty() ? "" : "--" + meant));
    } catch (const po::invalid_command_line_syntax& e) {
        auto name = e.get_option_name();
        name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
        if (e.kind() == po::invalid_syntax::extra_parameter) refuse("--" + name + " takes no value");
        refuse("--" + name + ": value missing or empty");
    } catch (const po::error& e) { refuse(std::string("command line: ") + e.what()); }
}

/// Appends the argument at `at` and what stays together with it, an option's value; returns how many
/// arguments that were. A switch is written out, --chat as --chat=on, or the parser would take the next word
/// for its value.
std::size_t take(const std::vector<std::string>& arguments, std::size_t at, std::vector<std::string>& piece) {
    piece.push_back(arguments[at]);
    const auto* option = piece.back().rfind("--", 0) == 0 ? find_option(piece.back().substr(2)) : nullptr;
    if (option && option->argument.empty()) piece.back() += "=on";
    if (!option || option->argument.empty() || at + 1 == arguments.size()) return 1;
    piece.push_back(arguments[at + 1]);
    return 2;
}

/// Splits the arguments after the command into options and the rest.
CommandLine split(const std::vector<std::string>& arguments) {
    const auto known = known_options();
    // The parser's time grows with the square of what it is given at once.
    constexpr std::size_t most = 256;
    CommandLine line;
    for (std::size_t begin = 0; begin < arguments.size();) {
        std::vector<std::string> piece;
        while (begin < arguments.size() && piece.size() < most && arguments[begin] != "--")
            begin += take(arguments, begin, piece);
        split_piece(piece, known, line);
        if (begin < arguments.size() && arguments[begin] == "--") {  // ends the options
            line.positional.insert(line.positional.end(), arguments.data() + begin + 1,
                                   arguments.data() + arguments.size());
            break;
        }
    }
    return line;
}

void refuse_repeats(const std::vector<Given>& given) {
    for (std::size_t i = 0; i < given.size(); ++i)
        for (std::size_t j = 0; j < i && !(given[i].option->where & repeats); ++j)
            if (given[i].option == given[j].option)
                refuse("--" + given[i].option->name + " is given twice (" + in_quotes(given[j].value) +
                       " and " + in_quotes(given[i].value) + ")");
}

bool holds(const std::vector<Given>& given, const std::string& name) {
    return std::any_of(given.begin(), given.end(), [&](const Given& g) { return g.option->name == name; });
}

/// The command line's values, and those of the job file that none of these replaces, by its name or as its
/// rival.
std::vector<Given> merge(const std::vector<Given>& line, const JobFile& job) {
    static const std::vector<std::pair<std::string, std::string>> rivals = {{"shares", "policy"},
                                                                            {"overwrite", "resume"},
                                                                            {"prompt", "prompts"},
                                                                            {"hardware", "memory-limit"},
                                                                            {"hardware", "bandwidth"}};
    std::set<std::string> replaced;
    for (const auto& given : line) {
        replaced.insert(given.option->name);
        const bool undone = given.option->argument.empty() && given.value == "off";
        if (undone && given.option->name == "chat") replaced.insert("thinking");
        if (undone) continue;  // it asks for nothing that its rival could contradict
        for (const auto& [a, b] : rivals) {
            if (given.option->name == a) replaced.insert(b);
            if (given.option->name == b) replaced.insert(a);
        }
    }
    auto all = line;
    for (const auto& given : job.given)
        if (!replaced.contains(given.option->name)) all.push_back(given);
    return all;
}

/// Of a job file only: the file of a run may be planned as it is.
bool unused_in(unsigned command_bit, const Given& given) {
    return command_bit == in_plan && !given.where.empty() && !(given.option->where & in_plan) &&
           (given.option->where & in_run);
}

void apply(const Given& given, unsigned command_bit, Options& options) {
    const auto& row = *given.option;
    // In a job file the name stands without dashes; the message shows what the reader will find there.
    const auto name = given.where + (given.where.empty() ? "--" : "") + row.name;
    if (!(row.where & command_bit) && !unused_in(command_bit, given))
        refuse(name + " does not belong to `" + commands_of(command_bit) + "`",
               "it belongs to: " + commands_of(row.where));
    if (given.value.empty() && row.name == "prompt")
        refuse(name + (given.where.empty() ? " " + std::to_string(options.prompts.size() + 1) : "") +
               ": empty prompt");
    if (given.value.empty()) refuse(name + ": empty value");
    try {
        row.set(options, given.value);
    } catch (const values::Refused& refused) {
        refuse(values::sentence(name, given.value, refused), refused.hint);
    }
}

void check_positional(Options& o, const CommandLine& line) {
    const auto count = o.files.size();
    const bool takes_files =
        o.command == Command::verify || o.command == Command::recover || o.command == Command::inspect;
    std::error_code error;
    if (!line.stray_hint.empty() && !(takes_files && std::filesystem::exists(line.stray, error)))
        refuse("unexpected argument " + in_quotes(line.stray), line.stray_hint);
    if (o.command == Command::verify && count != 2)
        refuse("verify compares two result files, " + std::to_string(count) + " given",
               "ftmpi verify A.h5 B.h5");
    if (o.command == Command::recover && count != 1)
        refuse("recover takes one result file, " + std::to_string(count) + " given", "ftmpi recover OUT.h5");
    if (o.command == Command::inspect) {
        if (count + (o.model.empty() ? 0 : 1) != 1)
            refuse("inspect takes one checkpoint directory", "ftmpi inspect DIR");
        if (count == 1) o.model = o.files.front();
    }
    if (!takes_files) {
        if (count == 0) return;
        const auto& first = o.files.front();
        if (find_command(first)) refuse("the command " + first + " must be the first argument");
        const auto meant = values::nearest(first, command_names());
        refuse("unexpected argument " + in_quotes(first),
               !meant.empty()              ? "did you mean the command " + meant + "?"
               : o.model.empty()           ? "the checkpoint is given as --model DIR"
               : o.command == Command::run ? "a prompt is given as --prompt TEXT"
                                           : "ftmpi --help lists all options");
    }
    for (const auto& file : o.files)
        if (file.empty()) refuse("empty file name");
}

void check_together(const Options& o, const std::vector<Given>& given) {
    const bool generates = o.command == Command::run || o.command == Command::bench;
    if ((generates || o.command == Command::plan) && o.model.empty())
        refuse("--model is missing", "ftmpi --help lists all options");
    if (o.command == Command::run && o.prompts.empty() && o.prompts_file.empty())
        refuse("no prompt: give --prompt TEXT or --prompts FILE");
    if (holds(given, "shares") && holds(given, "policy")) refuse("--shares and --policy exclude each other");
    if (o.resume && o.overwrite) refuse("--resume and --overwrite exclude each other");
    if (o.resume && o.output.empty()) refuse("--resume needs --output FILE.h5, the file to go on with");
    if (holds(given, "thinking") && !o.chat) refuse("--thinking needs --chat");
    for (const char* name : {"top-k", "top-p"})
        if (holds(given, name) && !holds(given, "temperature"))
            refuse(std::string("--") + name + " needs --temperature",
                   "without it the likeliest token is taken and nothing is sampled");
    for (const char* name : {"memory-limit", "bandwidth"})
        if (!o.hardware.empty() && holds(given, name))
            refuse(std::string("--hardware and --") + name + " exclude each other",
                   "--hardware states size and bandwidth of every rank");
}

std::string digest_of(const Options& o) {
    std::string out = "command=" + row_of(o.command).name + "\n";
    for (const auto& file : o.files) out += "file=" + escaped(file) + "\n";
    for (const auto& prompt : o.prompts) out += "prompt=" + escaped(prompt) + "\n";
    for (const auto& row : option_table())
        if (!(row.where & (per_rank | repeats))) out += row.name + "=" + escaped(row.get(o)) + "\n";
    return out;
}

/// Appends `text` from column `left` on, wrapped before column 100.
void wrap(std::string& out, const std::string& text, std::size_t left) {
    std::size_t column = left;
    for (std::size_t begin = 0; begin < text.size();) {
        const auto end = std::min(text.find(' ', begin), text.size());
        const auto length = end - begin;
        if (column > left && column + 1 + length > 99) out += "\n" + std::string(left, ' '), column = left;
        if (column > left) out += ' ', ++column;
        out.append(text, begin, length);
        column += length;
        begin = end + 1;
    }
    out += '\n';
}

void two_columns(std::string& out, const std::string& name, const std::string& text, std::size_t left) {
    out += "  " + name;
    out += name.size() + 4 > left ? "\n" + std::string(left, ' ') : std::string(left - name.size() - 2, ' ');
    wrap(out, text, left);
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
    Options options;
    options.argv.assign(argv, argv + argc);
    std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
    const CommandRow* command = nullptr;
    if (!arguments.empty() && (arguments.front() == "-h" || arguments.front() == "--help"))
        arguments.front() = "help";
    if (!arguments.empty() && (command = find_command(arguments.front()))) arguments.erase(arguments.begin());

    auto line = split(arguments);
    if (line.help || (command && command->command == Command::help)) {
        options.command = Command::help;
        return options;
    }
    if (line.version || (command && command->command == Command::version)) {
        options.command = Command::version;
        return options;
    }
    refuse_repeats(line.given);
    JobFile job;
    for (const auto& given : line.given)
        if (given.option->name == "job") {
            if (given.value.empty()) refuse("--job: empty value");
            job = read_job_file(given.value);
        }
    if (!job.command.empty()) {
        const auto* named = find_command(job.command);
        if (!named || named->bit == 0)
            refuse(job.command_where + "unknown command " + in_quotes(job.command),
                   suggestion(values::nearest(job.command, command_names())));
        if (!command) command = named;
    }
    if (!command) command = &row_of(Command::run);
    options.command = command->command;

    auto given = merge(line.given, job);
    Options unused;  // so that what is wrong in the file of a run is found before the run
    for (const auto& one : given) apply(one, command->bit, unused_in(command->bit, one) ? unused : options);
    given.erase(std::remove_if(given.begin(), given.end(),
                               [&](const Given& one) { return unused_in(command->bit, one); }),
                given.end());
    if (holds(given, "shares") && !holds(given, "policy")) options.policy = Policy::shares;
    options.max_tokens_asked = holds(given, "max-tokens");
    options.temperature_asked = holds(given, "temperature");
    options.files = line.positional;
    check_positional(options, line);
    check_together(options, given);
    options.digest_text = digest_of(options);
    return options;
}

std::string help_text() {
    std::string out =
        "Usage: ftmpi [COMMAND] --model DIR [OPTION ...]\n"
        "       mpirun -np RANKS ftmpi --model DIR --prompt TEXT\n\n"
        "Commands\n";
    for (const auto& row : command_table()) two_columns(out, row.name, row.text, 12);
    const Options defaults;
    std::string group;
    for (const auto& row : option_table()) {
        if (row.group != group)
            out += "\n" + (group = row.group) + " (" + commands_of(row.group_where) + ")\n";
        auto text = row.text;
        if (const auto value = row.get(defaults); !value.empty() && !row.argument.empty())
            text += " [default " + value + "]";
        if (const auto where = row.where & in_all; where != row.group_where)
            text += where == in_all ? std::string(" [every command]") : " [" + commands_of(where) + "]";
        two_columns(out, "--" + row.name + (row.argument.empty() ? "" : " " + row.argument), text, 32);
    }
    out +=
        "\nSwitches may be undone: --NAME=off. A job file holds the same names as `key = value` lines: "
        "values\n"
        "are literal, a line that starts with # is a comment, switches are on or off, `command = plan` "
        "names\n"
        "the command. Paths in it are relative to the current directory, as on the command line. A value on\n"
        "the command line replaces that of the job file; --prompt or --prompts replaces all its prompts, "
        "and\n"
        "--hardware its memory-limit and bandwidth. plan takes the job file of a run: what only a run needs\n"
        "is checked and not used.\n";
    return out;
}

}  // namespace ftmpi
