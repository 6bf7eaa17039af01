// The one shape of chat prompt that this program writes: a single user turn of ChatML.
#include <algorithm>
#include <array>

#include "../error.hpp"
#include "../tokenizer.hpp"
#include "text_file.hpp"
#include "utf8.hpp"

namespace ftmpi {

namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";
constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr std::size_t kLargestTemplate = std::size_t{1} << 24;

/// What follows the assistant's header.
enum class Ending {
    none,           ///< nothing
    closed_only,    ///< an empty think block when thinking is off, nothing when it is on
    open_or_closed  ///< an open think block when thinking is on, an empty one when it is off
};

[[noreturn]] void unknown(const std::filesystem::path& file, const std::string& why) {
    throw Error(Exit::bad_input, file.string() + ": unknown chat template: " + why,
                "give the whole prompt as text instead");
}

/// The template's tags without the white space and the trim marks that mean nothing, strings kept, in one
/// line. Text outside of tags is output as it stands, so a template that has any but white space is unknown.
std::string skeleton_of(std::string_view text, const std::filesystem::path& file) {
    std::string skeleton;
    for (std::size_t i = 0; i < text.size();) {
        const auto open = std::min(text.find('{', i), text.size());
        if (text.find_first_not_of(" \t\r\n", i) < open)
            unknown(file, "text outside of tags at byte " + std::to_string(i));
        if (open == text.size()) break;
        const char kind = open + 1 < text.size() ? text[open + 1] : '\0';
        if (kind != '{' && kind != '%' && kind != '#')
            unknown(file, "text outside of tags at byte " + std::to_string(open));
        i = open + 2;
        const std::string close{kind == '{' ? '}' : kind, '}'};
        if (kind == '#') {
            i = text.find(close, i);
            if (i == std::string_view::npos) unknown(file, "an unfinished comment");
            i += 2;
            continue;
        }
        skeleton += text.substr(open, 2);
        if (i < text.size() && text[i] == '-') ++i;
        for (char quote = '\0'; quote || text.compare(i, 2, close) != 0; ++i) {
            if (i >= text.size()) unknown(file, "an unfinished tag at byte " + std::to_string(open));
            const char c = text[i];
            if (quote) {
                if (c == '\\' && i + 1 < text.size()) skeleton += text[i++];
                if (c == quote) quote = '\0';
            } else if (c == '\'' || c == '"') {
                quote = c;
            } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n' ||
                       (c == '-' && text.compare(i + 1, 2, close) == 0)) {
                continue;
            }
            skeleton += text[i] == '"' && c == '"' ? '\'' : text[i];
        }
        skeleton += close;
        i += 2;
    }
    return skeleton;
}

bool ends_with(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

Ending recognise(const std::string& skeleton, const std::filesystem::path& file) {
    // One user message alone must make nothing but its own turn: either the template is no more than the
    // loop, or its user branch is the known one and every system turn takes its words from the caller.
    constexpr std::string_view turn =
        R"({{'<|im_start|>'+message.role+'\n'+(message.content|trim)+'<|im_end|>\n'}})";
    constexpr std::string_view branch =
        R"({%elifmessage.role=='user'%}{{'<|im_start|>'+message.role+'\n'+content+'<|im_end|>'+'\n'}}{%elif)";
    constexpr std::string_view trimmed =
        R"({%formessageinmessages%}{%setcontent=render_content(message.content,true)|trim%})";
    const auto loop = "{%formessageinmessages%}" + std::string(turn) + "{%endfor%}";

    const std::string prompt = R"({%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}})";
    const std::string open = R"({{'<think>\n'}})", closed = R"({{'<think>\n\n</think>\n\n'}})";
    const std::string if_off = "{%ifenable_thinkingisdefinedandenable_thinkingisfalse%}";
    const std::string if_on = "{%ifenable_thinkingisdefinedandenable_thinkingistrue%}";
    const std::string end = "{%endif%}";
    const std::pair<std::string, Ending> endings[] = {
        {prompt + end, Ending::none},
        {prompt + if_off + closed + end + end, Ending::closed_only},
        {prompt + if_off + closed + "{%else%}" + open + end + end, Ending::open_or_closed},
        {prompt + if_on + open + "{%else%}" + closed + end + end, Ending::open_or_closed},
    };
    const auto ending = std::find_if(std::begin(endings), std::end(endings), [&](const auto& candidate) {
        return ends_with(skeleton, candidate.first);
    });
    if (ending == std::end(endings)) unknown(file, "its generation prompt is not one of ChatML");

    const auto head = std::string_view(skeleton).substr(0, skeleton.size() - ending->first.size());
    if (head == loop) return ending->second;
    if (!contains(head, trimmed) || !contains(head, branch)) {
        unknown(file,
                "its user turn is not '<|im_start|>' + role + newline + trimmed content + '<|im_end|>' + "
                "newline");
    }
    constexpr std::string_view system = R"(<|im_start|>system\n)";
    for (auto at = head.find(system); at != std::string_view::npos; at = head.find(system, at + 1)) {
        if (head.substr(at + system.size(), 1) != "'") unknown(file, "it has a system text of its own");
    }
    return ending->second;
}

/// What Jinja's trim filter takes away, Python's white space.
bool is_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

}  // namespace

std::string_view trim_as_chat(std::string_view text) {
    const char* begin = text.data();
    const char* end = begin + text.size();
    while (begin != end) {
        const char* next = begin;
        if (!is_space(next_character(next))) break;
        begin = next;
    }
    while (end != begin) {
        const char* last = end - 1;
        while (is_continuation(*last)) --last;
        const char* p = last;
        if (!is_space(next_character(p))) break;
        end = last;
    }
    return {begin, static_cast<std::size_t>(end - begin)};
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const std::filesystem::path& directory,
                                      std::string_view user, bool thinking) {
    const auto file = directory / "chat_template.jinja";
    const auto text = read_text_file(file, kLargestTemplate, "a chat prompt needs the model's chat template");
    const auto ending = recognise(skeleton_of(text, file), file);

    std::string fault;
    if (const auto at = find_invalid_utf8(user, &fault); at != std::string_view::npos) {
        throw Error(Exit::bad_input,
                    "invalid UTF-8 (" + fault + ") at byte " + std::to_string(at) + " of the text");
    }
    std::vector<std::int32_t> ids;
    const auto control = [&](std::string_view token) {
        const auto id = tokenizer.id_of(token);
        if (!id) {
            throw Error(Exit::bad_input, (directory / "tokenizer.json").string() +
                                             ": the chat template needs the token " + std::string(token));
        }
        ids.push_back(*id);
    };
    const auto plain = [&](std::string_view part) {
        const auto more = tokenizer.encode(part, Tokenizer::Added::plain);
        ids.insert(ids.end(), more.begin(), more.end());
    };
    control(kStart);
    plain("user\n" + std::string(trim_as_chat(user)));
    control(kEnd);
    plain("\n");
    control(kStart);
    plain("assistant\n");
    if (ending == Ending::none || (ending == Ending::closed_only && thinking)) return ids;
    control(kThinkOpen);
    if (thinking) {
        plain("\n");
    } else {
        plain("\n\n");
        control(kThinkClose);
        plain("\n\n");
    }
    return ids;
}

}  // namespace ftmpi
