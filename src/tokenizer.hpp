// Byte-level BPE from tokenizer.json: the file's own normalizer, pre-tokenizer pattern, vocabulary, merges,
// added tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ftmpi {

struct TokenizerDefinition;

class Tokenizer {
public:
    /// Reads DIRECTORY/tokenizer.json. A normalizer, pre-tokenizer, model or option this program does not
    /// implement exactly is refused by name (Exit::bad_input), never approximated.
    static Tokenizer load(const std::filesystem::path& directory);

    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    enum class Added { parse, plain };  ///< whether added tokens in the text become their single ids

    /// Ids of `text` (valid UTF-8, else Error(bad_input) with the byte offset). Linear in the length; no
    /// recursion.
    std::vector<std::int32_t> encode(std::string_view text, Added added = Added::parse) const;

    /// No text of this many bytes has fewer tokens, whatever it says. Chat adds to it.
    std::int64_t least_tokens(std::size_t bytes) const;

    /// The bytes of one token (an added token's text), empty for an id without a token.
    std::string_view bytes(std::int32_t id) const;
    bool has(std::int32_t id) const;
    /// The text of ids with invalid UTF-8 replaced by U+FFFD, as Hugging Face
    /// decode(skip_special_tokens=False) gives it.
    std::string decode(std::span<const std::int32_t> ids) const;
    /// Id of the token with exactly this text, added tokens first.
    std::optional<std::int32_t> id_of(std::string_view token) const;
    /// One past the highest id that has a token.
    std::int32_t end() const;
    bool is_special(std::int32_t id) const;         ///< an added token with special = true
    const std::string& sha256() const;              ///< of tokenizer.json's bytes
    const std::vector<std::string>& notes() const;  ///< keys of tokenizer.json that are not followed

private:
    explicit Tokenizer(std::unique_ptr<TokenizerDefinition>);
    std::unique_ptr<TokenizerDefinition> state_;
};

/// `text` (valid UTF-8) without the white space at both ends, as encode_chat() takes it.
std::string_view trim_as_chat(std::string_view text);

/// What follows the assistant's header.
enum class ChatEnding {
    none,           ///< nothing
    closed_only,    ///< an empty think block when thinking is off, nothing when it is on
    open_or_closed  ///< an open think block when thinking is on, an empty one when it is off
};

/// One user message under a template whose turns are ChatML.
struct ChatTemplate {
    std::string_view sha256;  ///< of the text without the newline at its end, which Jinja2 drops
    bool trims;               ///< the user's text at both ends
    bool wants_query;         ///< refuses a user's text that is a tool's response
    ChatEnding ending;
};

/// The template with this digest, null when it is none of those known.
const ChatTemplate* chat_template_of(std::string_view sha256);
/// The model directory's chat template: chat_template.jinja, else chat_template.json, else
/// tokenizer_config.json. Error(bad_input) where there is none, or none of those known.
const ChatTemplate& known_chat_template(const std::filesystem::path& directory);

/// The prompt ids of one user message. User text never becomes control tokens. Error(bad_input) where the
/// template refuses the text or tokenizer.json lacks a token of the template.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                      std::string_view user, bool thinking);

/// The token that ends a turn under the model directory's chat template, where that is a known one.
std::optional<std::int32_t> end_of_turn(const Tokenizer& tokenizer, const std::filesystem::path& directory);

}  // namespace ftmpi
