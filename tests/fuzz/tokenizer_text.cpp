// A text for the tokenizer of a trained model. With a line `---`: a chat template before it and a user's
// words after it.
#include <algorithm>
#include <array>

#include <simdjson.h>

#include "tokenizer_checks.hpp"

using namespace ftmpi;
using namespace ftmpi::fuzz;

namespace {

constexpr std::size_t kMostText = 1 << 17;

/// FTMPI_FUZZ_DATA: where the program was carried to another machine, the folder of the models.
const std::filesystem::path& model() {
    static const std::filesystem::path folder = [] {
        const char* moved = std::getenv("FTMPI_FUZZ_DATA");
        return std::filesystem::path(moved ? moved : FTMPI_DATA) / "tiny-nvfp4";
    }();
    return folder;
}

const Tokenizer& tokenizer() {
    static const Tokenizer loaded = Tokenizer::load(model());
    return loaded;
}

/// All of `ids` but the added tokens that the template itself writes.
void check_chat(const std::vector<std::int32_t>& ids, std::string_view user) {
    const auto& t = tokenizer();
    std::size_t starts = 0, ends = 0, thinks = 0;
    for (const auto id : ids) {
        require(t.has(id), "every id has a token");
        starts += t.bytes(id) == "<|im_start|>", ends += t.bytes(id) == "<|im_end|>";
        thinks += t.bytes(id) == "<think>" || t.bytes(id) == "</think>";
    }
    require(starts == 2 && ends == 1 && thinks <= 2, "a user's words never become control tokens",
            std::string(user));
    require(t.bytes(ids.front()) == "<|im_start|>", "a prompt begins with a turn");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const TemporaryDirectory folder;
    const auto parts = parts_of(text_of(data, size), 2);
    const auto text = repeated(parts.back(), kMostText);

    const auto invalid = find_invalid_utf8(text);
    require((invalid == std::string_view::npos) == simdjson::validate_utf8(text.data(), text.size()),
            "another reader calls the same texts valid");
    const bool taken = accepted([&] { check_round_trip(tokenizer(), text, true); });
    require(taken == (invalid == std::string_view::npos), "every text that is UTF-8 has ids, and no other");

    for (const bool thinking : {false, true}) {
        const auto chat = [&](const std::filesystem::path& directory) {
            return accepted([&] {
                check_chat(encode_chat(tokenizer(), known_chat_template(directory), text, thinking), text);
            });
        };
        if (parts.size() == 1) {
            require(chat(model()) == taken, "the model's own template takes every text");
        } else {
            write_file(folder / "chat_template.jinja", parts[0]);
            chat(folder.path());
        }
    }
    return 0;
}
