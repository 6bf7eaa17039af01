// What the known chat templates make of one user message.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "../tokenizer.hpp"

namespace ftmpi {

/// What follows the assistant's header.
enum class Ending {
    none,           ///< nothing
    closed_only,    ///< an empty think block when thinking is off, nothing when it is on
    open_or_closed  ///< an open think block when thinking is on, an empty one when it is off
};

/// One user message under a template whose turns are ChatML.
struct KnownTemplate {
    std::string_view sha256;  ///< of the text without the newline at its end, which Jinja2 drops
    bool trims;               ///< the user's text at both ends
    bool wants_query;         ///< refuses a user's text that is a tool's response
    Ending ending;
};

/// The template with this digest, null when it is none of those known.
const KnownTemplate* known_template(std::string_view sha256);

/// The prompt ids of one user message. Throws Error(bad_input) where the template refuses it or
/// tokenizer.json lacks a token of the template.
std::vector<std::int32_t> encode_known_chat(const Tokenizer& tokenizer, const KnownTemplate& known,
                                            std::string_view user, bool thinking);

}  // namespace ftmpi
