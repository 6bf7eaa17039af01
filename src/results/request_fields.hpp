// What is stored of a request under /requests/<n>, said once: writing and reading loop over it.
#pragma once

#include <cstddef>
#include <string>
#include <tuple>

#include "../digest.hpp"
#include "../results.hpp"

namespace ftmpi {

/// An integer or a text is an attribute, a vector or a double a dataset. README.md beside this file says what
/// each means.
template <class Value> struct RequestField {
    const char* name;
    Value value;  ///< a member of RequestRecord; a function of it for what is written and not read
    Contents least = Contents::compared;  ///< how much of a request is read where this is
    bool optional = false;                ///< absent where it is empty
    const char* unit = "";
    std::size_t (*width)(const RequestRecord&) = nullptr;  ///< columns of a matrix
    bool exact_bytes = false;  ///< of a text: in a dataset beside the attribute, replaced or not
};

/// In the order of the file. What a width needs stands before it.
constexpr auto request_fields() {
    using R = RequestRecord;
    using enum Contents;
    // clang-format off: one line a field.
    return std::tuple{
        RequestField{"index", &R::index},
        RequestField{"session", &R::session, all_but_logits},
        RequestField{"id", &R::id},
        RequestField{"finish_reason", &R::finish_reason},
        RequestField{"error", &R::error},
        RequestField{.name = "prompt", .value = &R::prompt, .least = all_but_logits, .exact_bytes = true},
        RequestField{.name = "text", .value = &R::text, .least = all_but_logits, .exact_bytes = true},
        RequestField{"text_sha256", +[](const R& r) { return hex(sha256(r.text)); }},
        RequestField{"prompt_ids", &R::prompt_ids},
        RequestField{"output_ids", &R::output_ids},
        RequestField{"logits_sha256", &R::logits_sha256, compared, true},
        RequestField{"step_logits_sha256", &R::step_sha256, all_but_logits, true, "",
                     +[](const R&) { return sizeof(Sha256); }},
        RequestField{"margins", &R::margins, all_but_logits, false, "logit"},
        RequestField{"prefill_seconds", &R::prefill_seconds, all_but_logits, false, "s"},
        RequestField{"step_seconds", &R::step_seconds, all_but_logits, false, "s"},
        RequestField{"gather_names", &R::gather_names, all_but_logits},
        RequestField{"gather_seconds", &R::gather_seconds, all_but_logits, false, "s",
                     +[](const R& r) { return r.gather_names.size(); }},
        RequestField{"vocabulary", &R::vocabulary, all_but_logits},
        RequestField{"logits", &R::logits, all, true, "",
                     +[](const R& r) { return static_cast<std::size_t>(r.vocabulary); }}};
    // clang-format on
}

}  // namespace ftmpi
