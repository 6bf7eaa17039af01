#include "pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "../error.hpp"
#include "utf8.hpp"

namespace ftmpi {

namespace {

struct Free {
    void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};

std::string message_of(int error) {
    unsigned char text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return reinterpret_cast<const char*>(text);
}

template <class T>
T* checked(T* pointer) {
    if (!pointer) throw std::bad_alloc();
    return pointer;
}

/// A match first sees this many bytes; where that is not enough to decide it, four times as many, and so on.
constexpr std::size_t kWindow = 256;
/// Bytes seen beyond those that were matched, per byte of text, before a pattern is called worse than linear. Growing
/// windows alone cost up to four.
constexpr std::size_t kWaste = 16;

}  // namespace

Pattern::Pattern(std::string_view pattern, const std::string& where) : where_(where) {
    const auto translated = translate_pattern(pattern, where);
    const std::unique_ptr<pcre2_compile_context, Free> context(checked(pcre2_compile_context_create(nullptr)));
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), PCRE2_UTF | PCRE2_UCP,
                               &error, &offset, context.get());
    if (!code) {
        throw Error(Exit::bad_input, where + ": the pattern is invalid: " + message_of(error) + " at byte " +
                                         std::to_string(offset) + " of '" + translated + "'");
    }
    code_.reset(code, [](pcre2_code* p) { pcre2_code_free(p); });
    std::uint32_t may_be_empty = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty) throw Error(Exit::bad_input, where + ": a pattern that matches the empty text is not implemented");
    // Without the just-in-time compiler (some hardened systems forbid it) the same code is interpreted.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
}

void Pattern::split(std::string_view text, std::vector<std::size_t>& ends) const {
    const std::unique_ptr<pcre2_match_context, Free> context(checked(pcre2_match_context_create(nullptr)));
    const std::unique_ptr<pcre2_match_data, Free> match(checked(pcre2_match_data_create_from_pattern(code_.get(), nullptr)));
    const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const auto* const ovector = pcre2_get_ovector_pointer(match.get());
    const auto too_slow = [&](std::size_t at) {
        throw Error(Exit::bad_input,
                    where_ + ": the pattern needs more than linear time on the text at byte " + std::to_string(at));
    };

    std::size_t limit_window = 0;
    std::size_t waste = 0;
    std::size_t begin = 0;  // of the piece to come
    std::size_t from = 0;   // where the search goes on: [begin, from) is known to hold no match
    std::size_t window = kWindow;
    while (from < text.size()) {
        auto end = window < text.size() - from ? from + window : text.size();
        while (end < text.size() && is_continuation(text[end])) ++end;
        if (limit_window != window) {
            limit_window = window;
            pcre2_set_match_limit(context.get(),
                                  static_cast<std::uint32_t>(std::min<std::size_t>(1000 + 64 * window, 0xFFFFFFFFu)));
        }
        // A hard partial match is the answer whenever the end of the window was looked at; any other answer holds for the
        // whole text.
        const std::uint32_t options = PCRE2_NO_UTF_CHECK | (end < text.size() ? PCRE2_PARTIAL_HARD : 0u);
        int rc = pcre2_match(code_.get(), subject, end, from, options, match.get(), context.get());
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
            rc = pcre2_match(code_.get(), subject, end, from, options | PCRE2_NO_JIT, match.get(), context.get());
        }
        if (rc == PCRE2_ERROR_PARTIAL) {
            waste += end - from;
            window *= 4;
        } else if (rc == PCRE2_ERROR_NOMATCH) {
            from = end;
            window = kWindow;
        } else if (rc > 0 && ovector[1] > ovector[0]) {
            if (ovector[0] > begin) ends.push_back(ovector[0]);
            ends.push_back(ovector[1]);
            if (window > kWindow) waste += end - from;
            waste -= std::min(waste, ovector[1] - begin);
            begin = from = ovector[1];
            window = kWindow;
        } else if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT) {
            too_slow(from);
        } else {
            throw Error(Exit::bad_input, where_ + ": the pattern fails at byte " + std::to_string(from) +
                                             " of the text: " + (rc > 0 ? "an empty match" : message_of(rc)));
        }
        if (waste > kWaste * (text.size() + kWindow)) too_slow(from);
    }
    if (begin < text.size()) ends.push_back(text.size());
}

}  // namespace ftmpi
