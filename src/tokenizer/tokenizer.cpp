#include "../tokenizer.hpp"

#include <algorithm>

#include "../error.hpp"
#include "../text/utf8.hpp"
#include "definition.hpp"
#include "normalizer.hpp"

namespace ftmpi {

namespace {

/// Calls segment(text) for what lies between added tokens and token(id) for each of them, in order.
template <class Segment, class Token>
void for_each_part(const AddedTokens& added, std::string_view text, Segment segment, Token token) {
    std::size_t begin = 0;
    for (auto match = added.find(text, 0); match.id >= 0; match = added.find(text, begin)) {
        if (match.begin > begin) segment(text.substr(begin, match.begin - begin));
        token(match.id);
        begin = match.end;
    }
    if (begin < text.size()) segment(text.substr(begin));
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
    return Tokenizer(std::make_unique<TokenizerDefinition>(read_definition(directory / "tokenizer.json")));
}

const std::string& Tokenizer::sha256() const { return state_->sha256; }
const std::vector<std::string>& Tokenizer::notes() const { return state_->notes; }

Tokenizer::Tokenizer(std::unique_ptr<TokenizerDefinition> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, Added added) const {
    std::string fault;
    if (const auto at = find_invalid_utf8(text, &fault); at != std::string_view::npos) {
        throw Error(Exit::bad_input,
                    "invalid UTF-8 (" + fault + ") at byte " + std::to_string(at) + " of the text");
    }
    if (text.size() >= std::size_t{1} << 30)
        throw Error(Exit::bad_input, "a text of 1 GiB or more cannot be tokenized");

    std::vector<std::int32_t> ids;
    Merges::Scratch scratch;
    std::vector<std::size_t> ends;
    std::string storage;
    const auto token = [&](std::int32_t id) { ids.push_back(id); };
    const auto plain = [&](std::string_view segment) {
        ends.clear();
        state_->pattern->split(segment, ends);
        std::size_t begin = 0;
        for (const auto end : ends) {
            state_->merges.encode(segment.substr(begin, end - begin), scratch, ids);
            begin = end;
        }
    };
    const auto raw = [&](std::string_view segment) {
        const auto normal = state_->nfc ? to_nfc(segment, storage) : segment;
        if (added == Added::plain) {
            if (!normal.empty()) plain(normal);
        } else {
            for_each_part(state_->normalized, normal, plain, token);
        }
    };
    if (added == Added::plain) {
        raw(text);
    } else {
        for_each_part(state_->raw, text, raw, token);
    }
    return ids;
}

std::int64_t Tokenizer::least_tokens(std::size_t bytes) const {
    // No canonical composition is shorter than a quarter of what it is made of; the worst takes seven bytes
    // to two.
    constexpr std::size_t kComposed = 4;
    const std::size_t longest =
        std::max<std::size_t>(state_->vocabulary.longest(), 1) * (state_->nfc ? kComposed : 1);
    return static_cast<std::int64_t>(bytes / longest + (bytes % longest != 0));
}

std::string_view Tokenizer::bytes(std::int32_t id) const { return state_->vocabulary.bytes(id); }

bool Tokenizer::has(std::int32_t id) const { return state_->vocabulary.has(id); }

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
    std::string all;
    for (const auto id : ids) all.append(bytes(id));
    Utf8Stream stream;
    auto text = stream.push(all);
    return text + stream.finish();
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
    if (const auto it = state_->added_ids.find(std::string(token)); it != state_->added_ids.end())
        return it->second;
    const auto id = state_->vocabulary.find(token);
    return id == Vocabulary::kNone ? std::nullopt : std::optional(id);
}

std::int32_t Tokenizer::end() const { return state_->vocabulary.end(); }

bool Tokenizer::is_special(std::int32_t id) const { return state_->special_ids.count(id) != 0; }

}  // namespace ftmpi
