#include "fault.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "../../src/error.hpp"

namespace ftmpi::mpi {
namespace {

template <class T> bool parse(std::string_view text, T& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
}

/// A line in the file that FTMPI_FAULT_REACHED names, for who waits until the fault is there.
void announce(const PlantedFault& fault) {
    const char* path = std::getenv("FTMPI_FAULT_REACHED");
    if (path == nullptr) return;
    const std::string line =
        "reached " + fault.phase + " " + std::to_string(fault.rank) + " " + std::to_string(getpid()) + "\n";
    const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0 || ::write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
        throw Error(Exit::usage, std::string("FTMPI_FAULT_REACHED: ") + path + " cannot be written");
    ::close(file);
}

void act(const PlantedFault& fault) {
    if (fault.action == "throw")
        throw Error(Exit::failure, "a fault in " + fault.phase + " that FTMPI_FAULT asked for");
    if (fault.action == "exit") _exit(3);
    if (fault.action == "abort") std::abort();
    if (fault.action == "kill") raise(SIGKILL);
    if (fault.action == "stop") raise(SIGSTOP);
    // To the process, as from outside: whichever thread takes it.
    if (fault.action == "term") ::kill(getpid(), SIGTERM);
    if (fault.action == "int") ::kill(getpid(), SIGINT);
    if (fault.action == "int2")
        for (const int pause : {200000, 0}) {
            ::kill(getpid(), SIGINT);
            usleep(static_cast<useconds_t>(pause));
        }
    if (fault.action == "hang")
        for (;;) sleep(1);
}

}  // namespace

PlantedFault parse_fault(std::string_view text) {
    PlantedFault fault;
    const auto first = text.find(':');
    const auto last = text.rfind(':');
    bool good = first != std::string_view::npos && last > first && parse(text.substr(0, first), fault.rank) &&
                fault.rank >= 0;
    if (good) {
        auto phase = text.substr(first + 1, last - first - 1);
        if (const auto hash = phase.find('#'); hash != std::string_view::npos) {
            good = parse(phase.substr(hash + 1), fault.time) && fault.time >= 1;
            phase = phase.substr(0, hash);
        }
        fault.phase = phase;
        fault.action = text.substr(last + 1);
        constexpr std::string_view actions[] = {"throw", "exit", "abort", "kill", "stop",
                                                "hang",  "term", "int",   "int2", "mark"};
        good = good && std::count(std::begin(actions), std::end(actions), fault.action) && !phase.empty();
    }
    if (!good)
        throw Error(Exit::usage, "FTMPI_FAULT=\"" + std::string(text) + "\" is not RANK:PHASE[#N]:ACTION",
                    "actions are throw, exit, abort, kill, stop, hang, term, int, int2 and mark; unset it "
                    "for normal work");
    return fault;
}

void fault_point(int rank, std::string_view phase) {
    struct Armed {
        PlantedFault fault;
        long times = 0;  ///< how often its phase was reached
    };
    static std::vector<Armed> all = [] {
        std::vector<Armed> parsed;
        const char* text = std::getenv("FTMPI_FAULT");
        for (std::string_view rest = text == nullptr ? "" : text; !rest.empty();) {
            const auto comma = std::min(rest.find(','), rest.size());
            parsed.push_back({parse_fault(rest.substr(0, comma))});
            rest.remove_prefix(std::min(comma + 1, rest.size()));
        }
        return parsed;
    }();
    for (auto& [fault, times] : all) {
        if (fault.rank != rank || fault.phase != phase || ++times != fault.time) continue;
        announce(fault);
        act(fault);
    }
}

}  // namespace ftmpi::mpi
