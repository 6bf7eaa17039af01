// Chat prompts of one user turn, under chat templates whose exact text is known. Any other is refused: its
// rendering is left to Jinja2, the reference, which jobs/render_chat.py calls.
#include <algorithm>
#include <array>

#include "../digest.hpp"
#include "../error.hpp"
#include "../json.hpp"
#include "../text/small_file.hpp"
#include "../text/utf8.hpp"
#include "../tokenizer.hpp"

namespace ftmpi {

namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";
constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr std::size_t kLargestTemplate = std::size_t{1} << 24;

constexpr std::array<ChatTemplate, 4> kTemplates = {{
    {"a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715", true, true,
     ChatEnding::open_or_closed},  // Qwen3.5
    {"e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259", true, true,
     ChatEnding::open_or_closed},  // Qwen3.6
    {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", false, false,
     ChatEnding::closed_only},  // Qwen3
    {"6a398b08ca00e970cdddd19cc499101c3cb5be0e7aff3de574b6120b0123f1c0", true, false,
     ChatEnding::none},  // the models in data/
}};

struct FoundTemplate {
    std::string place;  ///< file, and the key in it
    std::string text;
};

/// `chat_template` of a JSON file: a text, or a list of named ones, of which "default" is meant.
std::optional<FoundTemplate> template_in(const std::filesystem::path& file) {
    if (std::filesystem::symlink_status(file).type() == std::filesystem::file_type::not_found) return {};
    const JsonFile json(file, kLargestTemplate);
    const auto value = json.root().member("chat_template");
    if (!value) return {};
    const auto place = file.string() + ": chat_template";
    std::string_view text, name;
    if (!value->get(text)) return FoundTemplate{place, std::string(text)};
    simdjson::dom::array named;
    if (value->get(named)) throw Error(Exit::bad_input, place + " is neither a string nor a list");
    for (const auto one : named)
        if (!one["name"].get(name) && name == "default" && !one["template"].get(text))
            return FoundTemplate{place + " \"default\"", std::string(text)};
    throw Error(Exit::bad_input, place + " is a list without a template named \"default\"");
}

/// The places in the order in which Hugging Face's libraries look.
FoundTemplate find_template(const std::filesystem::path& directory) {
    const auto file = directory / "chat_template.jinja";
    if (std::filesystem::symlink_status(file).type() != std::filesystem::file_type::not_found)
        return {file.string(), read_small_file(file, kLargestTemplate, {.downloaded = true})};
    for (const auto* name : {"chat_template.json", "tokenizer_config.json"})
        if (auto found = template_in(directory / name)) return std::move(*found);
    throw Error(Exit::bad_input,
                file.string() +
                    " does not exist, and no chat template is in chat_template.json or "
                    "tokenizer_config.json",
                "without --chat each prompt is taken as it is");
}

std::string digest_of(const FoundTemplate& found) {
    std::string_view text = found.text;
    if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    return hex(sha256(text));
}

/// What Jinja's trim filter takes away, Python's white space.
bool is_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

}  // namespace

const ChatTemplate* chat_template_of(std::string_view digest) {
    const auto known =
        std::find_if(kTemplates.begin(), kTemplates.end(), [&](const auto& t) { return t.sha256 == digest; });
    return known == kTemplates.end() ? nullptr : &*known;
}

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

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                      std::string_view user, bool thinking) {
    std::string fault;
    if (const auto at = find_invalid_utf8(user, &fault); at != std::string_view::npos) {
        throw Error(Exit::bad_input,
                    "invalid UTF-8 (" + fault + ") at byte " + std::to_string(at) + " of the text");
    }
    const auto text = chat.trims ? trim_as_chat(user) : user;
    if (chat.wants_query && text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))
        throw Error(Exit::bad_input,
                    "the chat template takes no tool's response (<tool_response>...) for a user's message");
    std::vector<std::int32_t> ids;
    const auto control = [&](std::string_view token) {
        const auto id = tokenizer.id_of(token);
        if (!id) {
            throw Error(Exit::bad_input, "the chat template needs the token " + std::string(token) +
                                             ", which tokenizer.json does not have");
        }
        ids.push_back(*id);
    };
    const auto plain = [&](std::string_view part) {
        const auto more = tokenizer.encode(part, Tokenizer::Added::plain);
        ids.insert(ids.end(), more.begin(), more.end());
    };
    control(kStart);
    plain("user\n" + std::string(text));
    control(kEnd);
    plain("\n");
    control(kStart);
    plain("assistant\n");
    if (chat.ending == ChatEnding::none || (chat.ending == ChatEnding::closed_only && thinking)) return ids;
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

const ChatTemplate& known_chat_template(const std::filesystem::path& directory) {
    const auto found = find_template(directory);
    const auto digest = digest_of(found);
    if (const auto* known = chat_template_of(digest)) return *known;
    throw Error(Exit::bad_input,
                found.place + " is not one of the known chat templates (its SHA-256 begins with " +
                    digest.substr(0, 12) + ")",
                "jobs/render_chat.py --model " + directory.string() +
                    " --prompt TEXT > prompts.jsonl renders it with Jinja2; then run with --prompts "
                    "prompts.jsonl and without --chat");
}

std::optional<std::int32_t> end_of_turn(const Tokenizer& tokenizer, const std::filesystem::path& directory) {
    try {
        if (chat_template_of(digest_of(find_template(directory)))) return tokenizer.id_of(kEnd);
    } catch (const Error&) {
        // A run without --chat needs no template, and one with it says what is wrong with it.
    }
    return {};
}

}  // namespace ftmpi
