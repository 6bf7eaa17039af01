// Prints name, dtype and shape of every tensor of a published checkpoint, one a line, to compare other lists
// with.
#include <cstdio>
#include <string_view>

#include "real_inventory.hpp"

int main(int argc, char** argv) {
    using namespace ftmpi::testing;
    const std::string_view kind = argc == 2 ? argv[1] : "";
    if (kind != "nvfp4" && kind != "fp8") {
        std::fprintf(stderr, "usage: real_names nvfp4|fp8\n");
        return 2;
    }
    for (const auto& e : real_inventory(kind == "fp8" ? RealCheckpoint::fp8 : RealCheckpoint::nvfp4)) {
        std::printf("%s %s", e.name.c_str(), std::string(ftmpi::name_of(e.dtype)).c_str());
        for (const auto d : e.shape) std::printf(" %lld", static_cast<long long>(d));
        std::printf("\n");
    }
}
