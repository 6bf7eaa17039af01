// Hashes and keeps logits on threads of its own, behind the decode loop: SHA-256 of a megabyte takes about as
// long as a fast GPU's step, and each row goes into two of them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../backend.hpp"
#include "../digest.hpp"

namespace ftmpi {

/// What the logits of one request left behind.
struct LogitsAccount {
    Digest all;
    std::string step_sha256;     ///< 32 bytes a step
    std::vector<float> margins;  ///< largest minus second largest
    std::vector<float> kept;     ///< with --save-logits
};

class LogitsWorker {
public:
    /// Holds up to `steps` rows of `vocabulary` logits.
    LogitsWorker(Backend& backend, bool hash, bool keep, std::int64_t vocabulary, std::size_t steps)
        : backend_(backend), hash_(hash), keep_(keep) {
        for (std::size_t i = 0; i < steps; ++i) {
            buffers_.emplace_back(backend, vocabulary, "logits in host memory");
            free_.push_back(i);
        }
        users_.resize(steps);
        try {
            threads_.emplace_back([this] { work(Part::step); });
            if (hash) threads_.emplace_back([this] { work(Part::request); });
        } catch (...) {  // no thread is left to be had
            stop();
            throw;
        }
    }
    ~LogitsWorker() { stop(); }
    LogitsWorker(const LogitsWorker&) = delete;

    /// A row of logits on its way to host memory.
    struct Copy {
        std::size_t buffer = 0;
        std::uint64_t ticket = 0;
    };

    /// Takes one row of logits in device memory, which the backend copies behind the loop. Blocks only when
    /// the worker is far behind, so that memory stays bounded. What is taken is to be pushed or dropped
    /// before `steps` rows more are taken.
    Copy capture(const float* logits) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !free_.empty() || failure_; });
        rethrow();
        const std::size_t buffer = free_.back();
        free_.pop_back();
        const auto to = buffers_[buffer].span();
        return {buffer, backend_.copy_async(to.data(), logits, to.size_bytes())};
    }
    void push(const Copy& copy, LogitsAccount& account, std::span<const std::uint8_t> masked) {
        const std::lock_guard lock(mutex_);
        rethrow();
        users_[copy.buffer] = threads_.size();
        for (std::size_t part = 0; part < threads_.size(); ++part)
            jobs_[part].push_back({&account, copy, masked});
        changed_.notify_all();
    }
    void drop(const Copy& copy) {
        backend_.wait_copy(copy.ticket);
        const std::lock_guard lock(mutex_);
        free_.push_back(copy.buffer);
    }

    /// Returns when all steps pushed so far are accounted for.
    void drain() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return (jobs_[0].empty() && jobs_[1].empty() && busy_ == 0) || failure_; });
        rethrow();
    }

private:
    struct Job {
        LogitsAccount* account;
        Copy copy;
        std::span<const std::uint8_t> masked;
    };

    void rethrow() {
        if (failure_) std::rethrow_exception(failure_);
    }

    /// What a thread does with every row: what is of the step alone, or the running hash of the request.
    enum class Part { step, request };

    void stop() {
        {
            const std::lock_guard lock(mutex_);
            end_ = true;
        }
        changed_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    void work(Part part) {
        auto& jobs = jobs_[static_cast<std::size_t>(part)];
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return !jobs.empty() || end_; });
            if (jobs.empty()) return;
            const Job job = jobs.front();
            jobs.pop_front();
            ++busy_;
            lock.unlock();
            std::exception_ptr failure;
            try {
                backend_.wait_copy(job.copy.ticket);
                const std::span<const float> logits = buffers_[job.copy.buffer].span();
                // Little-endian hosts only, checked at start.
                if (part == Part::request) job.account->all.update(logits.data(), logits.size_bytes());
                else account(job, logits);
            } catch (...) { failure = std::current_exception(); }
            lock.lock();
            if (failure && !failure_) failure_ = failure;
            if (--users_[job.copy.buffer] == 0) free_.push_back(job.copy.buffer);
            --busy_;
            changed_.notify_all();
        }
    }

    void account(const Job& job, std::span<const float> logits) {
        if (hash_) {
            Digest step;
            step.update(logits.data(), logits.size_bytes());
            const Sha256 value = step.value();
            job.account->step_sha256.append(reinterpret_cast<const char*>(value.data()), value.size());
        }
        float first = -std::numeric_limits<float>::infinity(), second = first;
        for (std::size_t i = 0; i < logits.size(); ++i) {
            if (job.masked[i]) continue;
            if (logits[i] > first) {
                second = first;
                first = logits[i];
            } else if (logits[i] > second) {
                second = logits[i];
            }
        }
        job.account->margins.push_back(first - second);
        if (keep_) job.account->kept.insert(job.account->kept.end(), logits.begin(), logits.end());
    }

    Backend& backend_;
    bool hash_, keep_, end_ = false;
    int busy_ = 0;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<HostArray<float>> buffers_;
    std::vector<std::size_t> free_;
    std::vector<std::size_t> users_;  ///< of each buffer: threads that have not been through it
    std::deque<Job> jobs_[2];         ///< of each part
    std::exception_ptr failure_;
    std::vector<std::thread> threads_;
};

}  // namespace ftmpi
