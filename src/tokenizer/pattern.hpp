// The regular expression that cuts text into pieces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace ftmpi {

/// `pattern`, written for Oniguruma (which Hugging Face tokenizers use), as a PCRE2 pattern that means the
/// same. Only constructs that both read alike, or that have an exact translation, are let through; any other
/// is Error(bad_input) that names it and its offset. `where` begins the message.
std::string translate_pattern(std::string_view pattern, const std::string& where);

class Pattern {
public:
    /// Compiles `pattern` (Oniguruma's spelling). `where` begins the message of the Error(bad_input) for a
    /// bad one.
    Pattern(std::string_view pattern, const std::string& where);

    /// Appends where each piece of `text` (valid UTF-8) ends: every match is a piece, and so is every stretch
    /// between two matches. Linear in the length: a pattern that would need more on this text is
    /// Error(bad_input). Thread-safe.
    void split(std::string_view text, std::vector<std::size_t>& ends) const;

private:
    std::shared_ptr<pcre2_real_code_8> code_;
    std::string where_;
};

}  // namespace ftmpi
