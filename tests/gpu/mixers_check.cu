// Gated DeltaNet and attention on the GPU against the CPU backend, bit by bit, then their times at the real
// model's size. Prints a line a check, exits with 1 when any fails. Usage: mixers_check [check|time], both
// without an argument. FTMPI_CHECK_SHORT=1: few shapes, no times.
#include <chrono>

#include "mixers_cases.hpp"
#include "mixers_times.hpp"
#include "short_form.hpp"

using namespace ftmpi;
using namespace ftmpi::gpu_check;

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    try {
        const auto start = std::chrono::steady_clock::now();
        if (what != "time") {
            check_delta_net();
            check_attention();
            std::printf("checks took %.1f s\n",
                        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
        if (what != "check" && !check::short_form()) time_mixers();
    } catch (const std::exception& e) { report(false, "no error", e.what()); }
    std::printf("mixers_check: %d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
