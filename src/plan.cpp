#include "plan.hpp"

#include <cstdio>

#include "error.hpp"
#include "shard/request.hpp"

namespace ftmpi {

int plan_command(const Options& options, const ModelSizes& sizes) {
    const auto plan = plan_for(options, sizes, plan_request(options, ranks_of(options)),
                               options.backend != BackendChoice::cpu);
    const auto text = options.json ? plan_json(sizes, plan) : plan_table(sizes, plan);
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
        throw Error(Exit::failure, "the plan could not be written to standard output");
    return static_cast<int>(Exit::ok);
}

}  // namespace ftmpi
