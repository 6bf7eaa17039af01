// Prompts from --prompt, text files and JSONL, checked before any of them is tokenized: what the model reads
// is what was given.
#include <simdjson.h>
#include <limits>
#include <new>
#include <set>
#include <string_view>

#include "../error.hpp"
#include "../json.hpp"
#include "../options.hpp"
#include "../text/small_file.hpp"
#include "../text/utf8.hpp"
#include "values.hpp"

namespace ftmpi {
namespace {

constexpr std::uint64_t largest_prompts_file = std::uint64_t(1) << 30;

[[noreturn]] void refuse(const std::string& what, const std::string& hint = {}) {
    throw Error(Exit::bad_input, what, hint);
}

void require_utf8(std::string_view text, const std::string& where, std::size_t offset,
                  const std::string& of) {
    std::string what;
    const auto at = find_invalid_utf8(text, &what);
    if (at != std::string_view::npos)
        refuse(where + "invalid UTF-8 (" + what + ") at byte " + std::to_string(offset + at) + of);
}

/// The lines of `content` without their ends (LF or CRLF), and without empty lines at the end of the file.
std::vector<std::string_view> lines_of(std::string_view content) {
    std::vector<std::string_view> lines;
    for (std::size_t begin = 0; begin < content.size();) {
        const auto end = content.find('\n', begin);
        auto line = content.substr(begin, end == std::string_view::npos ? end : end - begin);
        if (end != std::string_view::npos && !line.empty() && line.back() == '\r') line.remove_suffix(1);
        lines.push_back(line);
        if (end == std::string_view::npos) break;
        begin = end + 1;
    }
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    return lines;
}

/// Refuses \uD800..\uDFFF escapes that do not form a pair. JSON readers differ in what they make of them, so
/// none is asked.
void require_paired_surrogates(std::string_view line, const std::string& where) {
    const auto unit_at = [&](std::size_t at) -> int {
        if (at + 6 > line.size() || line[at] != '\\' || line[at + 1] != 'u') return -1;
        int unit = 0;
        for (std::size_t k = at + 2; k < at + 6; ++k) {
            const char c = line[k];
            const int figure = c >= '0' && c <= '9'   ? c - '0'
                               : c >= 'a' && c <= 'f' ? c - 'a' + 10
                               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                      : -1;
            if (figure < 0) return -1;
            unit = unit * 16 + figure;
        }
        return unit;
    };
    for (auto at = line.find('\\'); at != std::string_view::npos; at = line.find('\\', at)) {
        const int unit = unit_at(at);
        if (unit < 0xD800 || unit > 0xDFFF) {
            at += 2;  // also past the second character of an escaped backslash
            continue;
        }
        const int next = unit < 0xDC00 ? unit_at(at + 6) : -1;
        if (next < 0xDC00 || next > 0xDFFF)
            refuse(where + "lone surrogate " + std::string(line.substr(at, 6)) + " at byte " +
                       std::to_string(at) + " of the line",
                   "a character above U+FFFF is a pair of escapes, or itself in UTF-8");
        at += 12;
    }
}

using simdjson::dom::element;

std::int64_t integer_of(const element& value, const std::string& where, const std::string& name,
                        std::int64_t least, std::int64_t most) {
    std::int64_t number = 0;
    if (!value.is_int64() || value.get(number) != simdjson::SUCCESS || number < least || number > most)
        refuse(where + name + " must be a whole number from " + std::to_string(least) + " to " +
               std::to_string(most));
    return number;
}

std::string string_of(const element& value, const std::string& where, const std::string& name) {
    std::string_view text;
    if (value.get(text) != simdjson::SUCCESS) refuse(where + name + " must be a string");
    return std::string(text);
}

PromptText prompt_of_json(simdjson::dom::parser& parser, std::string_view line, const std::string& where) {
    require_paired_surrogates(line, where);
    element document;
    const auto fault = parser.parse(line.data(), line.size()).get(document);
    if (fault == simdjson::MEMALLOC) throw std::bad_alloc();
    if (fault != simdjson::SUCCESS)
        refuse(where + "not one JSON object: " + json_fault(fault),
               "the file is read as JSONL because it starts with '{'; give a text prompt that starts so as "
               "{\"prompt\": ...}");
    simdjson::dom::object object;
    if (document.get(object) != simdjson::SUCCESS) refuse(where + "not a JSON object");

    PromptText prompt;
    std::set<std::string_view> seen;
    for (const auto field : object) {
        const auto key = std::string(field.key);
        if (!seen.insert(field.key).second) refuse(where + "key " + in_quotes(key) + " twice");
        if (key == "prompt") {
            prompt.text = string_of(field.value, where, key);
            if (prompt.text.empty()) refuse(where + "empty prompt");
        } else if (key == "ids") {
            simdjson::dom::array ids;
            if (field.value.get(ids) != simdjson::SUCCESS)
                refuse(where + "ids must be an array of token ids");
            for (const element id : ids)
                prompt.ids.push_back(static_cast<std::int32_t>(
                    integer_of(id, where, "ids[" + std::to_string(prompt.ids.size()) + "]", 0,
                               std::numeric_limits<std::int32_t>::max())));
            if (prompt.ids.empty()) refuse(where + "empty prompt: ids is empty");
        } else if (key == "id") {
            prompt.id = field.value.is_int64() ? std::to_string(std::int64_t(field.value))
                                               : string_of(field.value, where, key);
            if (prompt.id.empty()) refuse(where + "id is empty");
        } else if (key == "max_tokens") {
            prompt.max_tokens = integer_of(field.value, where, key, 1, std::int64_t(1) << 31);
        } else {
            const auto meant = values::nearest(key, {"prompt", "ids", "id", "max_tokens"});
            refuse(where + "unknown key " + in_quotes(key), meant.empty()
                                                                ? "known are prompt, ids, id and max_tokens"
                                                                : "did you mean " + meant + "?");
        }
    }
    if (prompt.text.empty() == prompt.ids.empty())
        refuse(where + (prompt.ids.empty() ? "neither prompt nor ids" : "both prompt and ids"));
    return prompt;
}

/// A file that is JSON by its name and not one object a line would be read as text, brackets, quotes and all.
void refuse_other_json(const std::filesystem::path& path, char first) {
    auto extension = path.extension().string();
    for (auto& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (extension != ".json" && extension != ".jsonl" && extension != ".ndjson") return;
    refuse(path.string() + (first == '[' ? ": holds a JSON array"
                                         : ": has the name of a JSON file and does not start with '{'"),
           "one JSON object a line is read, such as {\"prompt\": \"...\"}; text, one prompt a line, needs "
           "another name, such as .txt");
}

void read_file(const Options& options, std::vector<PromptText>& prompts) {
    const auto path = options.prompts_file.string();
    const auto content =
        read_small_file(options.prompts_file, largest_prompts_file, {.name = "prompts file "});
    // A byte order mark states the encoding of the file; it is no part of the first prompt.
    const std::size_t mark = content.compare(0, 3, "\xEF\xBB\xBF") == 0 ? 3 : 0;
    if (content.compare(0, 2, "\xFF\xFE") == 0 || content.compare(0, 2, "\xFE\xFF") == 0)
        refuse(path + ": byte 0: invalid UTF-8, the file looks like UTF-16", "save it as UTF-8");
    const auto text = std::string_view(content).substr(mark);
    const auto first = text.find_first_not_of(" \t\r\n");
    const bool jsonl = first != std::string_view::npos && text[first] == '{';
    const auto lines = lines_of(text);
    if (lines.empty()) refuse(path + ": no prompts, the file is empty");
    if (!jsonl && first != std::string_view::npos) refuse_other_json(options.prompts_file, text[first]);

    simdjson::dom::parser parser;
    std::set<std::string> ids;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const auto line = lines[i];
        const auto where = path + ": line " + std::to_string(i + 1) + ": ";
        require_utf8(line, where, static_cast<std::size_t>(line.data() - content.data()), " of the file");
        if (line.empty()) refuse(where + "empty prompt", "remove the empty line");
        if (!jsonl) {
            prompts.push_back({{}, std::string(line), {}, {}});
            continue;
        }
        auto prompt = prompt_of_json(parser, line, where);
        if (options.chat && !prompt.ids.empty())
            refuse(where + "ids cannot go through a chat template", "leave out --chat, or give prompt");
        if (!prompt.id.empty() && !ids.insert(prompt.id).second)
            refuse(where + "id " + in_quotes(prompt.id) + " was used before");
        prompts.push_back(std::move(prompt));
    }
}

}  // namespace

std::vector<PromptText> read_prompts(const Options& options) {
    std::vector<PromptText> prompts;
    for (const auto& text : options.prompts) {
        const auto where = "--prompt " + std::to_string(prompts.size() + 1) + ": ";
        if (text.empty()) refuse(where + "empty prompt");
        require_utf8(text, where, 0, "");
        prompts.push_back({{}, text, {}, {}});
    }
    if (!options.prompts_file.empty()) read_file(options, prompts);
    return prompts;
}

}  // namespace ftmpi
