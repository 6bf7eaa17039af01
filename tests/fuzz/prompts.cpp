// A prompts file: lines of text, or JSONL.
#include <set>

#include "fuzz.hpp"
#include "options.hpp"
#include "text/utf8.hpp"

using namespace ftmpi;
using namespace ftmpi::fuzz;

namespace {

/// Lines as the README describes them, without the program's own code.
std::vector<std::string> plain_lines(std::string_view text) {
    if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
    std::vector<std::string> lines(1);
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\n') lines.emplace_back();
        else if (!(text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n')) lines.back() += text[i];
    }
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    return lines;
}

void check(const std::vector<PromptText>& prompts, std::string_view input, bool chat) {
    require(!prompts.empty(), "a file that is accepted holds a prompt");
    std::set<std::string> ids;
    bool json = false;
    for (const auto& p : prompts) {
        std::string fault;
        require(p.text.empty() != p.ids.empty(), "a prompt is a text or ids");
        require(find_invalid_utf8(p.text, &fault) == std::string_view::npos, "a text is UTF-8", fault);
        require(find_invalid_utf8(p.id, &fault) == std::string_view::npos, "an id is UTF-8", fault);
        require(p.id.empty() || ids.insert(p.id).second, "ids are unique", p.id);
        require(!p.max_tokens || *p.max_tokens >= 1, "max_tokens is positive");
        for (const auto id : p.ids) require(id >= 0, "token ids are not negative");
        require(!chat || p.ids.empty(), "ids go through no chat template");
        json |= !p.ids.empty() || !p.id.empty() || p.max_tokens.has_value();
    }
    const auto first = input.find_first_not_of(" \t\r\n", input.substr(0, 3) == "\xEF\xBB\xBF" ? 3 : 0);
    if (first != input.npos && input[first] == '{') return;
    require(!json, "lines of text have neither ids nor limits");
    const auto lines = plain_lines(input);
    require(lines.size() == prompts.size(), "a line is a prompt");
    for (std::size_t i = 0; i < lines.size(); ++i)
        require(lines[i] == prompts[i].text, "a line is taken literally", lines[i]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const TemporaryDirectory folder;
    const auto input = text_of(data, size);
    Options options;
    options.prompts_file = folder / "prompts";
    write_file(options.prompts_file, input);
    for (const bool chat : {false, true}) {
        options.chat = chat;
        accepted([&] { check(read_prompts(options), input, chat); });
    }
    return 0;
}
