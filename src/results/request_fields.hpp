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

template <class Value>
constexpr RequestField<Value> field(const char* name, Value value, Contents least = Contents::compared,
                                    bool optional = false, const char* unit = "",
                                    std::size_t (*width)(const RequestRecord&) = nullptr,
                                    bool exact_bytes = false) {
    return {name, value, least, optional, unit, width, exact_bytes};
}

/// In the order of the file. What a width needs stands before it.
constexpr auto request_fields() {
    using R = RequestRecord;
    using enum Contents;
    return std::tuple{field("index", &R::index),
                      field("session", &R::session, all_but_logits),
                      field("id", &R::id),
                      field("finish_reason", &R::finish_reason),
                      field("error", &R::error),
                      field("prompt", &R::prompt, all_but_logits, false, "", nullptr, true),
                      field("text", &R::text, all_but_logits, false, "", nullptr, true),
                      field(
                          "text_sha256", +[](const R& r) { return hex(sha256(r.text)); }),
                      field("prompt_ids", &R::prompt_ids),
                      field("output_ids", &R::output_ids),
                      field("logits_sha256", &R::logits_sha256, compared, true),
                      field(
                          "step_logits_sha256", &R::step_sha256, all_but_logits, true, "",
                          +[](const R&) { return sizeof(Sha256); }),
                      field("margins", &R::margins, all_but_logits, false, "logit"),
                      field("prefill_seconds", &R::prefill_seconds, all_but_logits, false, "s"),
                      field("step_seconds", &R::step_seconds, all_but_logits, false, "s"),
                      field("gather_names", &R::gather_names, all_but_logits),
                      field(
                          "gather_seconds", &R::gather_seconds, all_but_logits, false, "s",
                          +[](const R& r) { return r.gather_names.size(); }),
                      field("vocabulary", &R::vocabulary, all_but_logits),
                      field(
                          "logits", &R::logits, all, true, "",
                          +[](const R& r) { return static_cast<std::size_t>(r.vocabulary); })};
}

}  // namespace ftmpi
