#include "limits.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "../error.hpp"

namespace ftmpi {
namespace {

constexpr rlim_t kWantedStack = rlim_t{8} << 20;
constexpr rlim_t kLeastStack = rlim_t{512} << 10;  ///< several times what the deepest kernel needs
constexpr std::size_t kThreadStack = std::size_t{4} << 20;
constexpr std::size_t kStartBytes = std::size_t{64} << 20;  ///< address space that MPI maps while it starts

std::string kib(rlim_t bytes) { return std::to_string(bytes >> 10) + " KiB"; }

}  // namespace

void widen_stacks() {
    rlimit stack{};
    if (getrlimit(RLIMIT_STACK, &stack) != 0) return;
    if (stack.rlim_cur != RLIM_INFINITY && stack.rlim_cur < kWantedStack) {
        // The main thread's stack grows up to the limit of the moment.
        stack.rlim_cur =
            stack.rlim_max == RLIM_INFINITY ? kWantedStack : std::min(kWantedStack, stack.rlim_max);
        setrlimit(RLIMIT_STACK, &stack);
    }
#ifdef __GLIBC__
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return;
    if (pthread_attr_setstacksize(&attributes, kThreadStack) == 0) pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
#endif
}

void check_limits() {
    rlimit stack{};
    if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < kLeastStack)
        throw Error(
            Exit::failure,
            "the stack is limited to " + kib(stack.rlim_cur) + ", this program needs " + kib(kLeastStack),
            "raise the limit: ulimit -s 8192");
    rlimit space{};
    if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return;
    void* const trial =
        ::mmap(nullptr, kStartBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (trial == MAP_FAILED)
        throw Error(Exit::failure,
                    "the address space is limited to " + kib(space.rlim_cur) + ", of which less than " +
                        kib(kStartBytes) + " are left for MPI to start",
                    "raise the limit: ulimit -v unlimited");
    ::munmap(trial, kStartBytes);
}

}  // namespace ftmpi
