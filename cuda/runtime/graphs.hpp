// Steps captured as CUDA graphs and launched again: a step of hundreds of kernels costs the host one launch,
// and the GPU no gaps between them. Header only, plain C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "../../src/error.hpp"
#include "handles.hpp"

namespace ftmpi::cuda {

class Replays {
public:
    explicit Replays(cudaStream_t stream) : stream_(stream) {}
    Replays(const Replays&) = delete;
    Replays& operator=(const Replays&) = delete;
    ~Replays() { clear(); }

    /// The first time plainly, so that whatever is made at first use is there before a capture; then as a
    /// graph.
    void run(const void* owner, std::uint64_t key, const std::function<void()>& record) {
        Replay& replay = replays_[{owner, key}];
        replay.last_use = ++uses_;
        if (!replay.graph && (std::exchange(replay.runs, replay.runs + 1) == 0 || !capture(replay, record)))
            return record();
        FTMPI_CUDA(cudaGraphLaunch(replay.graph, stream_));
    }

    void forget(const void* owner) noexcept {
        for (auto r = replays_.begin(); r != replays_.end();)
            r = r->first.first == owner ? drop(r) : std::next(r);
    }
    /// For when memory that graphs refer to is replaced.
    void clear() noexcept {
        for (auto r = replays_.begin(); r != replays_.end();) r = drop(r);
    }

    bool capturing() const { return capturing_; }

    static constexpr std::size_t kMost =
        32;  ///< graphs kept: a step of one model has hundreds of nodes of up to 4 KB

private:
    struct Replay {
        cudaGraphExec_t graph = nullptr;
        std::uint64_t last_use = 0, runs = 0;
    };
    using Map = std::map<std::pair<const void*, std::uint64_t>, Replay>;

    Map::iterator drop(Map::iterator r) noexcept {
        if (r->second.graph) {
            cudaStreamSynchronize(stream_);
            cudaGraphExecDestroy(r->second.graph);
            --graphs_;
        }
        return replays_.erase(r);
    }

    void make_room() {
        while (graphs_ >= kMost) {
            auto oldest = replays_.end();
            for (auto r = replays_.begin(); r != replays_.end(); ++r)
                if (r->second.graph &&
                    (oldest == replays_.end() || r->second.last_use < oldest->second.last_use))
                    oldest = r;
            drop(oldest);
        }
    }

    bool capture(Replay& replay, const std::function<void()>& record) {
        if (failed_) return false;
        make_room();
        // What other threads of this process do must not end the capture.
        FTMPI_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
        capturing_ = true;
        cudaGraph_t graph = nullptr;
        std::string trouble;
        try {
            record();
        } catch (const Error& error) {
            trouble = error.what();  // a real one comes again when the step runs plainly
        } catch (...) {
            capturing_ = false;
            cudaStreamEndCapture(stream_, &graph);
            if (graph) cudaGraphDestroy(graph);
            throw;
        }
        capturing_ = false;
        cudaError_t status = cudaStreamEndCapture(stream_, &graph);
        if (status == cudaSuccess && trouble.empty()) status = cudaGraphInstantiate(&replay.graph, graph, 0);
        if (graph) cudaGraphDestroy(graph);
        if (status == cudaSuccess && trouble.empty()) {
            ++graphs_;
            return true;
        }
        cudaGetLastError();
        replay.graph = nullptr;
        failed_ = true;
        if (trouble.empty())
            trouble = std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
        std::fprintf(stderr, "ftmpi: note: steps run without a CUDA graph, which is slower: %s\n",
                     trouble.c_str());
        return false;
    }

    cudaStream_t stream_;
    Map replays_;
    std::size_t graphs_ = 0;
    std::uint64_t uses_ = 0;
    bool capturing_ = false, failed_ = false;
};

}  // namespace ftmpi::cuda
