// Every transport of GPU memory against known bytes: transport_check.sh starts it under mpirun, one rank a
// GPU. With more ranks than GPUs they share, and only the transports that can are checked.
//   transport_check           gathers, repeated exchanges, graphs, a table of times; counts what passed
//   transport_check hang T    the last rank stops before an exchange of transport T: the others must end with
//   its name
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <numeric>

#include "../../cuda/runtime/backend.hpp"
#include "../../cuda/runtime/device.hpp"
#include "../../cuda/runtime/handles.hpp"
#include "../../mpi/exchange.hpp"
#include "../../mpi/transport/choice.hpp"

using namespace ftmpi;
using mpi::Session;
using mpi::Transport;

namespace {

using Clock = std::chrono::steady_clock;

int passed = 0, failed = 0;

void expect(bool good, const std::string& what) {
    good ? ++passed : ++failed;
    if (!good) std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

std::uint32_t known(std::uint32_t seed, std::int64_t i) {
    // Any bits, also those of denormals and of numbers that are none: a transport moves bytes.
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761u + seed * 40503u;
    x ^= x >> 15;
    return x * 2246822519u;
}

/// Cuts [0, width) by weights; a weight of 0 gives an empty piece.
std::vector<Range> cut(std::int64_t width, const std::vector<int>& weights) {
    const std::int64_t sum = std::accumulate(weights.begin(), weights.end(), 0);
    std::int64_t before = 0;
    std::vector<Range> ranges;
    for (const int w : weights) {
        ranges.push_back({width * before / sum, width * (before + w) / sum});
        before += w;
    }
    return ranges;
}

/// One matrix of columns, its known content and its comparison.
class Matrix2d {
public:
    Matrix2d(Backend& backend, std::int64_t rows, std::int64_t width, std::vector<Range> cuts, int rank)
        : backend_(backend), rows_(rows), width_(width), cuts_(std::move(cuts)),
          own_(cuts_[static_cast<std::size_t>(rank)]),
          device_(backend, std::max<std::int64_t>(1, rows * width), "columns"),
          host_(static_cast<std::size_t>(rows * width)) {}

    /// This rank's columns get their values, all others something else.
    void fill(std::uint32_t seed) {
        for (std::int64_t i = 0; i < rows_ * width_; ++i) {
            const std::int64_t column = i % width_;
            const bool mine = column >= own_.begin && column < own_.end;
            host_[static_cast<std::size_t>(i)] = mine ? known(seed, i) : ~known(seed, i);
        }
        backend_.copy_in(device_.data(), host_.data(), host_.size() * 4);
    }
    bool holds(std::uint32_t seed) {
        backend_.copy_out(host_.data(), device_.data(), host_.size() * 4);
        for (std::int64_t i = 0; i < rows_ * width_; ++i)
            if (host_[static_cast<std::size_t>(i)] != known(seed, i)) return false;
        return true;
    }
    ShardedColumns columns() const { return {device_.data(), rows_, width_, cuts_}; }

private:
    Backend& backend_;
    std::int64_t rows_, width_;
    std::vector<Range> cuts_;
    Range own_;
    DeviceArray<float> device_;
    std::vector<std::uint32_t> host_;
};

std::vector<std::vector<int>> weightings(int size) {
    std::vector<std::vector<int>> all(4);
    for (int r = 0; r < size; ++r) {
        all[0].push_back(1);
        all[1].push_back(r == 0 ? 3 : 1);
        all[2].push_back(r == size - 1 ? 1 : 0);      // all on one
        all[3].push_back(r == size - 1 ? 5 : 2 * r);  // uneven, none on rank 0
    }
    return all;
}

void gathers(Backend& backend, Communicator& ranks, const std::string& name) {
    struct Shape {
        std::int64_t rows, width;
        int parts;
    };
    std::uint32_t seed = 1;
    const auto all_weights = weightings(ranks.size());
    for (const auto& weights : all_weights)
        for (const Shape shape : {Shape{1, 1, 1}, Shape{1, 3, 1}, Shape{1, 4096, 1}, Shape{8, 512, 2},
                                  Shape{0, 64, 2}, Shape{5, 1001, 7}, Shape{1, 248'320, 1},
                                  Shape{256, 1024, 1}, Shape{333, 3001, 2}, Shape{2560, 4096, 1}}) {
            // 40 MB, several windows of every transport's buffers.
            if (shape.rows == 2560 && &weights != &all_weights[1]) continue;
            std::vector<std::unique_ptr<Matrix2d>> matrices;
            std::vector<ShardedColumns> parts;
            for (int p = 0; p < shape.parts; ++p) {
                // Parts of unlike width, so that none begins aligned by chance.
                const std::int64_t width = shape.width + (p > 0 ? 5 * p : 0);
                matrices.push_back(std::make_unique<Matrix2d>(backend, shape.rows, width, cut(width, weights),
                                                              ranks.rank()));
                matrices.back()->fill(seed + static_cast<std::uint32_t>(p));
                parts.push_back(matrices.back()->columns());
            }
            ranks.all_gather(parts, "columns", backend.stream());
            bool good = true;
            for (int p = 0; p < shape.parts; ++p)
                good = matrices[static_cast<std::size_t>(p)]->holds(seed + static_cast<std::uint32_t>(p)) &&
                       good;
            expect(good, name + ": " + std::to_string(shape.parts) + " parts of " +
                             std::to_string(shape.rows) + " x " + std::to_string(shape.width));
            seed += 16;
        }
}

/// Eight exchanges follow each other without the host between them, again and again with other data.
void repeated(Backend& backend, Communicator& ranks, const std::string& name) {
    std::vector<std::unique_ptr<Matrix2d>> matrices;
    const auto weights = weightings(ranks.size());
    for (int k = 0; k < 8; ++k)
        matrices.push_back(std::make_unique<Matrix2d>(
            backend, 1, 700 * (k + 1), cut(700 * (k + 1), weights[static_cast<std::size_t>(k % 4)]),
            ranks.rank()));
    int wrong = 0;
    for (std::uint32_t round = 0; round < 125; ++round) {
        for (std::size_t k = 0; k < 8; ++k) matrices[k]->fill(8 * round + static_cast<std::uint32_t>(k));
        for (std::size_t k = 0; k < 8; ++k) {
            const ShardedColumns part = matrices[k]->columns();
            ranks.all_gather({&part, 1}, k % 2 == 0 ? "even" : "odd", backend.stream());
        }
        for (std::size_t k = 0; k < 8; ++k)
            wrong += matrices[k]->holds(8 * round + static_cast<std::uint32_t>(k)) ? 0 : 1;
    }
    expect(wrong == 0, name + ": " + std::to_string(wrong) + " of 1000 repeated exchanges were wrong");
}

class Graph {
public:
    Graph(cudaStream_t stream, const std::function<void()>& work) : stream_(stream) {
        cudaGraph_t graph = nullptr;
        FTMPI_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        work();
        FTMPI_CUDA(cudaStreamEndCapture(stream, &graph));
        const cudaError_t e = cudaGraphInstantiate(&graph_, graph, 0);
        cudaGraphDestroy(graph);
        cuda::check(e, "cudaGraphInstantiate", __FILE__);
    }
    Graph(const Graph&) = delete;
    ~Graph() {
        cudaStreamSynchronize(stream_);
        cudaGraphExecDestroy(graph_);
    }
    void launch() { FTMPI_CUDA(cudaGraphLaunch(graph_, stream_)); }

private:
    cudaStream_t stream_;
    cudaGraphExec_t graph_ = nullptr;
};

void graphs(Backend& backend, Communicator& ranks, const std::string& name) {
    const auto weights = weightings(ranks.size());
    std::vector<std::unique_ptr<Matrix2d>> matrices;
    for (const std::int64_t width : {1, 2048, 16'384, 600'001, 4096, 77})
        matrices.push_back(std::make_unique<Matrix2d>(
            backend, 1, width, cut(width, weights[matrices.size() % 4]), ranks.rank()));
    Graph graph(static_cast<cudaStream_t>(backend.stream()), [&] {
        for (const auto& matrix : matrices) {
            const ShardedColumns part = matrix->columns();
            ranks.all_gather({&part, 1}, "in a graph", backend.stream());
        }
    });
    int wrong = 0;
    for (std::uint32_t round = 0; round < 100; ++round) {
        for (const auto& matrix : matrices) matrix->fill(round);
        graph.launch();
        // Now and then an exchange outside the graph, as between decode steps and a prefill.
        if (round % 10 == 5) {
            const ShardedColumns part = matrices[1]->columns();
            ranks.all_gather({&part, 1}, "beside a graph", backend.stream());
        }
        for (const auto& matrix : matrices) wrong += matrix->holds(round) ? 0 : 1;
    }
    expect(wrong == 0,
           name + ": " + std::to_string(wrong) + " of 600 exchanges in a replayed graph were wrong");
}

double seconds_of(Backend& backend, Communicator& ranks, const std::function<void()>& work) {
    const std::uint64_t none[] = {0};
    std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks.size()));
    work();
    backend.synchronize();
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
        ranks.all_gather_values(none, all, "barrier");
        const auto start = Clock::now();
        work();
        backend.synchronize();
        best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
    return best;
}

void times(Backend& backend, Communicator& ranks, const std::string& name, bool capturable) {
    const std::vector<int> even(static_cast<std::size_t>(ranks.size()), 1);
    for (const std::int64_t floats : {1024, 4096, 16'384, 1'048'576}) {
        const int count = floats > 100'000 ? 10 : 80;
        Matrix2d matrix(backend, 1, floats * ranks.size(), cut(floats * ranks.size(), even), ranks.rank());
        const auto exchanges = [&] {
            const ShardedColumns part = matrix.columns();
            for (int i = 0; i < count; ++i) ranks.all_gather({&part, 1}, "timed", backend.stream());
        };
        const double plain = seconds_of(backend, ranks, exchanges) / count;
        std::string text =
            name + ", " + std::to_string(floats) + " floats a rank: " + std::to_string(plain * 1e6) + " us";
        if (capturable) {
            Graph graph(static_cast<cudaStream_t>(backend.stream()), exchanges);
            text += ", in a graph " +
                    std::to_string(seconds_of(backend, ranks, [&] { graph.launch(); }) / count * 1e6) + " us";
        }
        if (ranks.rank() == 0) std::printf("%s\n", text.c_str());
    }
    for (const auto& wait : ranks.waits())
        if (wait.name == "timed" && ranks.rank() == 0)
            std::printf("%s: by its own count %.2f us an exchange, over %lld\n", name.c_str(),
                        wait.seconds / static_cast<double>(wait.calls) * 1e6,
                        static_cast<long long>(wait.calls));
}

std::unique_ptr<Backend> open_gpu(Session& session, bool& shared) {
    cuda::RankGpus mine;
    session.agree("GPUs", [&] { mine = cuda::visible_gpus(session.host(), session.local_rank()); });
    const auto all = session.gather_records(mine, "GPUs");
    // More ranks than GPUs: they are named for each rank, which asks for sharing.
    std::vector<std::string> names;
    for (const auto& rank : all) {
        if (rank.visible.empty()) break;
        shared = shared || (rank.visible.size() > 1 &&
                            static_cast<std::size_t>(rank.local_rank) >= rank.visible.size());
        names.push_back(rank.visible[static_cast<std::size_t>(rank.local_rank) % rank.visible.size()]);
    }
    for (std::size_t a = 0; a < names.size(); ++a)
        shared = shared || std::count(names.begin(), names.end(), names[a]) > 1;
    std::unique_ptr<Backend> backend;
    session.agree("GPUs", [&] {
        const auto chosen = cuda::choose_gpus(all, shared ? names : std::vector<std::string>{});
        backend = make_cuda_backend({chosen[static_cast<std::size_t>(session.rank())].device});
        const auto facts = cuda::gpu_facts(chosen[static_cast<std::size_t>(session.rank())].device);
        std::fprintf(stderr, "rank %d: %s %s %s, %.0f GB/s, peers %s\n", session.rank(), facts.name.c_str(),
                     facts.uuid.c_str(), facts.pci.c_str(), facts.gb_per_s, facts.peers.c_str());
    });
    return backend;
}

void check_transport(Session& session, Backend& backend, Transport transport) {
    const std::string name(mpi::name_of(transport));
    const auto start = Clock::now();
    const auto ranks = mpi::make_communicator(session, backend, transport);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (session.rank() == 0)
        std::printf("%s: %s (%s), ready in %.2f s\n", name.c_str(), ranks->transport().c_str(),
                    ranks->reason().c_str(), seconds);
    expect(transport == Transport::automatic || ranks->transport() == name,
           name + " is " + ranks->transport());
    if (transport == Transport::automatic) return;
    const bool capturable = ranks->transport() != "mpi";
    gathers(backend, *ranks, name);
    repeated(backend, *ranks, name);
    if (capturable) graphs(backend, *ranks, name);
    ranks->reset_waits();
    times(backend, *ranks, name, capturable);
}

[[noreturn]] void hang(Session& session, Backend& backend, const std::string& name) {
    for (const auto transport : {Transport::peer, Transport::pinned, Transport::nccl, Transport::mpi}) {
        if (mpi::name_of(transport) != name) continue;
        session.set_timeout(4);
        const auto ranks = mpi::make_communicator(session, backend, transport);
        if (session.rank() == session.size() - 1)
            for (;;) sleep(1);
        try {
            Matrix2d matrix(backend, 1, 4096, cut(4096, weightings(session.size())[0]), session.rank());
            const ShardedColumns part = matrix.columns();
            ranks->all_gather({&part, 1}, "hang check", backend.stream());
            backend.synchronize();
            const std::uint64_t mine[] = {1};
            std::vector<std::uint64_t> all(static_cast<std::size_t>(session.size()));
            ranks->all_gather_values(mine, all, "step");
        } catch (const Error& error) { session.abort(error); }
    }
    session.abort(Error(Exit::failure, "the exchange that a rank did not join came to an end"));
}

}  // namespace

int main(int argc, char** argv) {
    Session session(60);
    try {
        bool shared = false;
        const auto backend = open_gpu(session, shared);
        if (argc == 3 && std::string(argv[1]) == "hang") hang(session, *backend, argv[2]);
        std::vector<Transport> list = {Transport::automatic};
        if (session.size() > 1) {
            list.insert(list.end(), {Transport::pinned, Transport::mpi});
            if (!shared) list.insert(list.end(), {Transport::peer, Transport::nccl});
        }
        if (session.size() == 1) {
            const auto none = mpi::make_communicator(session, *backend, Transport::automatic);
            expect(none->transport() == "none", "one rank has a transport: " + none->transport());
        } else {
            for (const auto transport : list) check_transport(session, *backend, transport);
        }
        int all_passed = 0, all_failed = 0;
        for (const auto& text :
             session.all_gather(std::to_string(passed) + " " + std::to_string(failed), "counts")) {
            all_passed += std::stoi(text);
            all_failed += std::stoi(text.substr(text.find(' ')));
        }
        if (session.rank() == 0)
            std::printf("transport_check: %d passed, %d failed\n", all_passed, all_failed);
        failed = all_failed;
    } catch (const Session::Agreed& agreed) { session.leave(agreed.code); } catch (const Error& error) {
        session.abort(error);
    }
    session.leave(failed == 0 ? Exit::ok : Exit::failure);
}
