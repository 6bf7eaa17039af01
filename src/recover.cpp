#include "recover.hpp"

#include <iostream>

#include "error.hpp"
#include "results.hpp"

namespace ftmpi {

int recover_command(const Options& options) {
    if (options.files.empty())
        throw Error(Exit::usage, "recover takes the name of a result file, none given",
                    "ftmpi recover FILE.h5");
    for (std::string file : options.files) {
        // The journal's own name is what a user sees in the folder.
        if (file.ends_with(".journal")) file.resize(file.size() - 8);
        std::string note;
        const auto requests = recover_results(file, options.overwrite, &note);
        std::cout << printable(file) << ": " << counted(static_cast<std::uint64_t>(requests), "request")
                  << " recovered" << (note.empty() ? "" : "; " + printable(note)) << std::endl;
    }
    return static_cast<int>(Exit::ok);
}

}  // namespace ftmpi
