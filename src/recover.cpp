#include "recover.hpp"

#include <iostream>

#include "error.hpp"
#include "results.hpp"

namespace ftmpi {

int recover_command(const Options& options) {
    std::string file = options.files.front(), note;
    // The journal's own name is what a user sees in the folder.
    if (file.ends_with(".journal")) file.resize(file.size() - 8);
    const auto requests = recover_results(file, options.overwrite, &note);
    std::cout << printable(file) << ": " << counted(static_cast<std::uint64_t>(requests), "request")
              << " recovered" << (note.empty() ? "" : "; " + printable(note)) << std::endl;
    return static_cast<int>(Exit::ok);
}

}  // namespace ftmpi
