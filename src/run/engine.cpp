#include "engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <thread>

#include "../../mpi/fault.hpp"
#include "../cpu_backend.hpp"
#include "../plan.hpp"

namespace ftmpi {
namespace {

std::string field(std::istringstream& in) {
    std::string line;
    std::getline(in, line);
    return line;
}

std::string one_line(std::string s) {
    std::replace(s.begin(), s.end(), '\n', ' ');
    return s;
}

std::string text_of(const RankFacts& f) {
    std::ostringstream out;
    for (const auto& s : {f.host, f.device.backend, f.device.name, f.device.uuid, f.device.capability, f.device.driver})
        out << one_line(s) << '\n';
    out << f.device.total_bytes << '\n' << f.device.free_bytes << '\n' << f.available << '\n' << f.gb_per_s << '\n';
    return out.str();
}

RankFacts facts_of(const std::string& text) {
    std::istringstream in(text);
    RankFacts f;
    f.host = field(in);
    f.device.backend = field(in);
    f.device.name = field(in);
    f.device.uuid = field(in);
    f.device.capability = field(in);
    f.device.driver = field(in);
    in >> f.device.total_bytes >> f.device.free_bytes >> f.available >> f.gb_per_s;
    return f;
}

template <class T>
T of_rank(const std::vector<T>& values, int rank, T otherwise) {
    if (values.empty()) return otherwise;
    return values.size() == 1 ? values[0] : values.at(static_cast<std::size_t>(rank));
}

template <class T>
void check_count(const std::vector<T>& values, int ranks, const char* option) {
    if (values.size() > 1 && values.size() != static_cast<std::size_t>(ranks))
        throw Error(Exit::usage, std::string(option) + " names " + std::to_string(values.size()) + " values for " +
                                     std::to_string(ranks) + " ranks", "give one value for all ranks or one a rank");
}

}  // namespace

std::unique_ptr<Backend> make_backend(const Options& options, const mpi::Session& session) {
    if (options.backend == BackendChoice::cuda)
        throw Error(Exit::usage, "--backend cuda: this program was built without CUDA",
                    "configure with -DFTMPI_CUDA=ON where nvcc (CUDA 12.8 or newer) and NCCL are installed");
    int threads = options.threads;
    if (threads == 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / session.local_size());
    return make_cpu_backend(threads);
}

Engine::Engine(const Options& options, mpi::Session& session) : options_(options), session_(session) {
    session.agree("open", [&] {
        check_count(options.memory_limit, session.size(), "--memory-limit");
        check_count(options.bandwidth, session.size(), "--bandwidth");
        if (!options.shares.empty() && options.shares.size() != static_cast<std::size_t>(session.size()))
            throw Error(Exit::usage, "--shares names " + std::to_string(options.shares.size()) + " shares for " +
                                         std::to_string(session.size()) + " ranks", "give one share a rank");
        if (options.transport == TransportChoice::peer || options.transport == TransportChoice::nccl)
            throw Error(Exit::usage, "--transport peer and nccl need the CUDA backend", "use --transport mpi or auto");
        backend_ = make_backend(options, session);
        communicator_ = session.host_communicator(*backend_);
        checkpoint_.emplace(Checkpoint::open(options.model));
        config_ = load_config(options.model);
        tokenizer_.emplace(Tokenizer::load(options.model));
        inventory_.emplace(*checkpoint_, config_);
    });
    session.require_equal("open", "checkpoint", checkpoint_->index_sha256() + "\n" + config_.sha256);
}

RankFacts Engine::facts() const {
    RankFacts f;
    f.host = session_.host();
    f.device = backend_->info();
    f.available = f.device.free_bytes / static_cast<std::uint64_t>(session_.local_size());
    if (const auto limit = of_rank<std::uint64_t>(options_.memory_limit, session_.rank(), 0)) f.available = std::min(f.available, limit);
    f.gb_per_s = of_rank<double>(options_.bandwidth, session_.rank(), 0);
    return f;
}

void Engine::plan(std::int64_t tokens) {
    RankFacts mine;
    session_.agree("plan", [&] { mine = facts(); });
    for (const auto& text : session_.all_gather(text_of(mine), "rank facts")) ranks_.push_back(facts_of(text));
    session_.agree("plan", [&] {
        std::vector<RankMemory> memory;
        for (const auto& r : ranks_) memory.push_back({r.available, r.gb_per_s, r.host + " " + r.device.name});
        PlanRequest request = plan_request(options_, memory);
        const ModelSizes sizes = inventory_->sizes();
        if (request.context == 0) {
            // Unasked, the context need not be larger than anything this run will use, rounded up to a friendly size.
            const std::int64_t wanted = std::min(config_.max_positions, (std::max<std::int64_t>(tokens, 4096) + 255) / 256 * 256);
            try {
                request.context = wanted;
                plan_ = make_plan(sizes, request);
            } catch (const Error& e) {
                if (e.code() != Exit::does_not_fit) throw;
                request.context = 0;  // as many as fit; requests beyond it are refused one by one, the others run
                plan_ = make_plan(sizes, request);
            }
        } else {
            plan_ = make_plan(sizes, request);
        }
    });
    session_.require_equal("plan", "plan", plan_json(inventory_->sizes(), plan_));
}

void Engine::load() {
    const auto begin = std::chrono::steady_clock::now();
    const bool bar = session_.rank() == 0 && isatty(2);
    session_.agree("load", [&] {
        weights_.emplace(*checkpoint_, *inventory_, plan_, session_.rank(), *backend_, [&](std::uint64_t done, std::uint64_t total) {
            if (bar) std::fprintf(stderr, "\rloading %3.0f%%%s", 100.0 * static_cast<double>(done) / static_cast<double>(total),
                                  done == total ? "\n" : "");
        });
        state_.emplace(*backend_, config_, plan_, session_.rank());
        model_.emplace(*backend_, *communicator_, config_, plan_, *weights_, *state_);
        backend_->synchronize();
    });
    load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto& mine = weights_->read();
    for (const auto& text : session_.all_gather(std::to_string(mine.cut) + " " + std::to_string(mine.replicated), "read counts")) {
        ReadCount c;
        std::istringstream(text) >> c.cut >> c.replicated;
        reads_.push_back(c);
    }
}

}  // namespace ftmpi
