#include "pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "../error.hpp"
#include "../text/utf8.hpp"

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

template <class T> T* checked(T* pointer) {
    if (!pointer) throw std::bad_alloc();
    return pointer;
}

/// A search sees this many bytes. Where a match that begins at some place needs to see more, that place alone
/// is tried again with four times as many, and so on.
constexpr std::size_t kWindow = 256;
/// Steps of a search in one window from each place in it.
constexpr std::size_t kSteps = 1024;
/// Bytes seen and steps made from single places, beyond the bytes that were matched, per byte of text, before
/// a pattern is called worse than linear. Growing windows alone cost up to four.
constexpr std::size_t kWaste = 64;

}  // namespace

Pattern::Pattern(std::string_view pattern, const std::string& where) : where_(where) {
    const auto translated = translate_pattern(pattern, where);
    const std::unique_ptr<pcre2_compile_context, Free> context(
        checked(pcre2_compile_context_create(nullptr)));
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT, &error, &offset, context.get());
    if (!code) {
        throw Error(Exit::bad_input, where + ": the pattern is invalid: " + message_of(error) + " at byte " +
                                         std::to_string(offset) + " of '" + translated + "'");
    }
    code_.reset(code, [](pcre2_code* p) { pcre2_code_free(p); });
    std::uint32_t may_be_empty = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty)
        throw Error(Exit::bad_input, where + ": a pattern that matches the empty text is not implemented");
    // Without the just-in-time compiler (some hardened systems forbid it) the same code is interpreted.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
}

void Pattern::split(std::string_view text, std::vector<std::size_t>& ends) const {
    const std::unique_ptr<pcre2_match_context, Free> context(checked(pcre2_match_context_create(nullptr)));
    const std::unique_ptr<pcre2_match_data, Free> match(
        checked(pcre2_match_data_create_from_pattern(code_.get(), nullptr)));
    const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const auto* const ovector = pcre2_get_ovector_pointer(match.get());
    const auto too_slow = [&](std::size_t at) {
        throw Error(
            Exit::bad_input,
            where_ + ": the pattern needs more than linear time on the text at byte " + std::to_string(at));
    };

    std::size_t waste = 0;
    std::size_t begin = 0;   // of the piece to come
    std::size_t from = 0;    // where the search goes on: [begin, from) is known to hold no match
    std::size_t single = 0;  // places before this one are tried one by one
    std::size_t window = kWindow;
    std::size_t steps = kSteps;
    const auto go_on = [&](std::size_t at) {
        from = at;
        window = kWindow;
        steps = kSteps;
    };
    while (from < text.size()) {
        auto end = window < text.size() - from ? from + window : text.size();
        while (end < text.size() && is_continuation(text[end])) ++end;
        const bool alone = from < single;
        pcre2_set_offset_limit(context.get(), alone ? from : PCRE2_UNSET);
        pcre2_set_match_limit(context.get(),
                              static_cast<std::uint32_t>(std::min<std::size_t>(steps, 0xFFFFFFFFu)));
        // A hard partial match is the answer whenever the end of the window was looked at; any other answer
        // holds for the whole text.
        const std::uint32_t options = PCRE2_NO_UTF_CHECK | (end < text.size() ? PCRE2_PARTIAL_HARD : 0u);
        int rc = pcre2_match(code_.get(), subject, end, from, options, match.get(), context.get());
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
            rc = pcre2_match(code_.get(), subject, end, from, options | PCRE2_NO_JIT, match.get(),
                             context.get());
        }
        if (rc == PCRE2_ERROR_PARTIAL) {
            if (ovector[0] > from) {
                go_on(ovector[0]);
            } else {
                waste += end - from;
                window *= 4;
                steps = kSteps + 4 * window;
            }
            single = std::max(single, from + 1);
        } else if (rc == PCRE2_ERROR_NOMATCH) {
            if (alone) {
                if (window > kWindow) waste += end - from;
                end = from + 1;
                while (end < text.size() && is_continuation(text[end])) ++end;
            }
            go_on(end);
        } else if (rc > 0 && ovector[1] > ovector[0]) {
            if (ovector[0] > begin) ends.push_back(ovector[0]);
            ends.push_back(ovector[1]);
            if (window > kWindow) waste += end - from;
            waste -= std::min(waste, ovector[1] - begin);
            begin = ovector[1];
            go_on(begin);
        } else if (rc == PCRE2_ERROR_MATCHLIMIT && !alone) {
            single = end;
        } else if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT ||
                   rc == PCRE2_ERROR_DEPTHLIMIT) {
            waste += steps;
            if (rc != PCRE2_ERROR_MATCHLIMIT || steps >= 64 * (window + kSteps)) too_slow(from);
            steps *= 4;
        } else {
            throw Error(Exit::bad_input, where_ + ": the pattern fails at byte " + std::to_string(from) +
                                             " of the text: " + (rc > 0 ? "an empty match" : message_of(rc)));
        }
        if (waste > kWaste * (text.size() + kWindow)) too_slow(from);
    }
    if (begin < text.size()) ends.push_back(text.size());
}

}  // namespace ftmpi
