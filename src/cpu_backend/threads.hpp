// A few threads that run the same work together, for steps of tens of microseconds: they watch for the next
// one a moment and then sleep, so that a busy machine is not kept busier by waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ftmpi {

class Threads {
public:
    /// `count` in all, the caller's among them.
    explicit Threads(int count);
    ~Threads();
    Threads(const Threads&) = delete;

    int count() const { return static_cast<int>(workers_.size()) + 1; }
    /// work(thread) on every thread, 0 being the caller's; returns when all are done. One exception of theirs
    /// is thrown again.
    void run(const std::function<void(int)>& work);

private:
    void stop();
    void serve(int thread);
    void attempt(int thread);

    std::atomic<std::uint32_t> round_{0};  ///< rises with every run, and once more at the end
    std::atomic<std::uint32_t> working_{0};
    const std::function<void(int)>* work_ = nullptr;
    bool end_ = false;
    std::mutex failing_;
    std::exception_ptr failure_;
    std::vector<std::thread> workers_;
};

}  // namespace ftmpi
