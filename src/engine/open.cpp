#include "open.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "../error.hpp"

namespace ftmpi {

Checkpoint open_checkpoint(const std::filesystem::path& directory) {
    try {
        return Checkpoint::open(directory);
    } catch (const Error&) {
        std::error_code none;
        if (std::filesystem::exists(directory / "config.json", none)) load_config(directory);
        throw;
    }
}

void add_stop_tokens(ModelConfig& config, const Tokenizer& tokenizer,
                     const std::filesystem::path& directory) {
    auto& ids = config.stop_ids;
    const auto note = [&](const std::string& text) { config.warnings.push_back(printable(text)); };
    for (const auto id : ids)
        if (!tokenizer.has(id))
            note("stop id " + std::to_string(id) + " is no token of tokenizer.json: nothing stops on it");
    const auto add = [&](std::optional<std::int32_t> id, std::string_view place) {
        if (!id || std::find(ids.begin(), ids.end(), *id) != ids.end()) return;
        ids.push_back(*id);
        config.stop_places.push_back(place);
    };
    const auto named = tokenizer.id_of(config.stop_token);
    if (!config.stop_token.empty() && (!named || *named >= config.vocab))
        note("tokenizer_config.json: eos_token " + config.stop_token + " is no token of tokenizer.json");
    else add(named, "tokenizer_config.json");
    add(end_of_turn(tokenizer, directory), "the chat template");
    if (ids.empty()) throw Error(Exit::bad_input, directory.string() + " names no token that ends a text");

    constexpr std::string_view usual = "generation_config.json";
    if (std::all_of(config.stop_places.begin(), config.stop_places.end(),
                    [&](std::string_view place) { return place == usual; }))
        return;
    constexpr std::size_t most = 8;
    std::string list;
    for (std::size_t i = 0; i < std::min(ids.size(), most); ++i)
        list += (i ? ", " : "") + std::string(tokenizer.bytes(ids[i])) + " (" + std::to_string(ids[i]) +
                ", " + std::string(config.stop_places[i]) + ")";
    if (ids.size() > most) list += " and " + std::to_string(ids.size() - most) + " more";
    note("a text ends at " + list);
}

}  // namespace ftmpi
