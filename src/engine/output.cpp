#include "output.hpp"

#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "../error.hpp"

namespace fs = std::filesystem;

namespace ftmpi {
namespace {

/// The folder that `path` lies in once links are followed, its own included.
fs::path real_folder(const fs::path& path) {
    std::error_code error;
    const bool link = fs::symlink_status(path, error).type() == fs::file_type::symlink;
    const fs::path file = link ? fs::weakly_canonical(path, error) : path;
    const fs::path folder = file.parent_path();
    return fs::weakly_canonical(folder.empty() ? "." : folder, error);
}

bool lies_in(const fs::path& folder, const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), folder.begin(), folder.end()).first == outer.end();
}

}  // namespace

std::string utc(const char* format) {
    const std::time_t t = std::time(nullptr);
    std::tm tm{};
    gmtime_r(&t, &tm);
    char text[64];
    std::strftime(text, sizeof text, format, &tm);
    return text;
}

fs::path output_of(const Options& options, const char* prefix) {
    const fs::path output = options.output.empty()
                                ? fs::path(prefix + utc("-%Y%m%d-%H%M%S-") + std::to_string(getpid()) + ".h5")
                                : options.output;
    std::error_code error;
    const fs::path model = fs::canonical(options.model, error);
    if (!error && lies_in(real_folder(output), model))
        throw Error(Exit::usage,
                    (options.output.empty() ? "the result file " : "--output ") + output.string() +
                        ": lies in the folder of the checkpoint, where nothing is written",
                    "choose an --output elsewhere");
    return output;
}

}  // namespace ftmpi
