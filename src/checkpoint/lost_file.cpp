#include "lost_file.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

#include "../checkpoint.hpp"
#include "../error.hpp"

namespace ftmpi {
namespace {

/// One mapping. `data` is written last and read first, so that a handler sees whole entries.
struct Entry {
    std::atomic<const std::byte*> data{nullptr};
    std::uint64_t size = 0;
    char path[512] = "";
};
std::array<Entry, 1024> entries;
struct sigaction before;

void write_and_leave(const char* path) {
    for (const char* text : {"ftmpi: error: ", path, kLostFile, "\n"})
        if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
    _exit(static_cast<int>(Exit::bad_input));
}

std::atomic<LostFile> lost{write_and_leave};

extern "C" void on_bus_error(int, siginfo_t* info, void*) {
    const auto* const address = static_cast<const std::byte*>(info->si_addr);
    for (const Entry& e : entries) {
        const auto* const data = e.data.load(std::memory_order_acquire);
        if (data != nullptr && address >= data && address < data + e.size) lost.load()(e.path);
    }
    // Another bus error: what was to happen before happens when the instruction runs again.
    sigaction(SIGBUS, &before, nullptr);
}

void install() {
    struct sigaction now {};
    if (sigaction(SIGBUS, nullptr, &now) != 0 ||
        ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error))
        return;
    before = now;
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

void on_lost_file(LostFile handler) noexcept { lost = handler; }

int watch(const std::byte* data, std::uint64_t size, const std::filesystem::path& path) {
    install();
    for (std::size_t i = 0; i < entries.size(); ++i) {
        Entry& e = entries[i];
        if (e.data.load(std::memory_order_relaxed) != nullptr) continue;
        e.size = size;
        std::strncpy(e.path, path.c_str(), sizeof e.path - 1);
        e.data.store(data, std::memory_order_release);
        return static_cast<int>(i);
    }
    return -1;
}

void forget(int watched) {
    if (watched >= 0)
        entries[static_cast<std::size_t>(watched)].data.store(nullptr, std::memory_order_release);
}

}  // namespace ftmpi
