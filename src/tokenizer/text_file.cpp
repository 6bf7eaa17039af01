#include "text_file.hpp"

#include <fstream>

#include "../error.hpp"

namespace ftmpi {

std::string read_text_file(const std::filesystem::path& file, std::size_t limit, const std::string& hint) {
    const auto refuse = [&](const std::string& what) {
        throw Error(Exit::bad_input, file.string() + ": " + what, hint);
    };
    std::error_code error;
    const auto status = std::filesystem::status(file, error);
    if (status.type() == std::filesystem::file_type::not_found) refuse("does not exist");
    if (!std::filesystem::is_regular_file(status)) refuse("is not a regular file");
    const auto size = std::filesystem::file_size(file, error);
    if (!error && size > limit) refuse("is larger than " + std::to_string(limit) + " bytes");
    std::ifstream stream(file, std::ios::binary);
    if (!stream) refuse("cannot be opened");
    std::string text(limit + 1 < 65536 ? limit + 1 : 65536, '\0');
    std::size_t have = 0;
    while (stream.read(text.data() + have, static_cast<std::streamsize>(text.size() - have)),
           stream.gcount() > 0) {
        have += static_cast<std::size_t>(stream.gcount());
        if (have > limit) refuse("is larger than " + std::to_string(limit) + " bytes");
        if (have == text.size()) text.resize(2 * have);
    }
    if (stream.bad()) refuse("cannot be read");
    text.resize(have);
    return text;
}

}  // namespace ftmpi
