#include "engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "../../mpi/process/fault.hpp"
#include "../../mpi/process/signals.hpp"
#include "../../mpi/transport/choice.hpp"
#include "../shard/request.hpp"
#include "figures.hpp"
#include "open.hpp"

namespace ftmpi {
namespace {

template <class T> void check_count(const std::vector<T>& values, int ranks, const char* option) {
    if (values.size() > 1 && values.size() != static_cast<std::size_t>(ranks))
        throw Error(Exit::usage,
                    std::string(option) + " names " + counted(values.size(), "value") + " for " +
                        counted(static_cast<std::uint64_t>(ranks), "rank"),
                    "give one value for all ranks or one a rank");
}

mpi::Transport transport_of(TransportChoice choice) {
    switch (choice) {
        case TransportChoice::peer: return mpi::Transport::peer;
        case TransportChoice::pinned: return mpi::Transport::pinned;
        case TransportChoice::nccl: return mpi::Transport::nccl;
        case TransportChoice::mpi: return mpi::Transport::mpi;
        default: return mpi::Transport::automatic;
    }
}

}  // namespace

Engine::Engine(const Options& options, mpi::Session& session) : options_(options), session_(session) {
    on_lost_file(
        [](const char* path) { mpi::leave_in_handler(path, kLostFile, static_cast<int>(Exit::bad_input)); });
    session.agree("open", [&] {
        check_count(options.memory_limit, session.size(), "--memory-limit");
        check_count(options.bandwidth, session.size(), "--bandwidth");
        if (!options.shares.empty() && options.shares.size() != static_cast<std::size_t>(session.size()))
            throw Error(Exit::usage,
                        "--shares names " + counted(options.shares.size(), "share") + " for " +
                            counted(static_cast<std::uint64_t>(session.size()), "rank"),
                        "give one share a rank");
        checkpoint_.emplace(open_checkpoint(options.model));
        config_ = load_config(options.model);
        tokenizer_.emplace(Tokenizer::load(options.model));
        require_vocabulary(*tokenizer_, config_.vocab);
        add_stop_tokens(config_, *tokenizer_, options.model);
        config_.warnings.insert(config_.warnings.end(), tokenizer_->notes().begin(),
                                tokenizer_->notes().end());
        if (options.command == Command::run && !options.temperature_asked && !config_.sampling.empty())
            config_.warnings.push_back("generation_config.json asks for sampling (" + config_.sampling +
                                       "); without --temperature the likeliest token is taken");
        inventory_.emplace(*checkpoint_, config_);
        embedding_ = inventory_->embedding().codes->data;
        weights_sha256_ = weights_fingerprint(*checkpoint_);
    });
    device_ = open_device(options, session);
    communicator_ = mpi::make_communicator(session, *device_.backend, transport_of(options.transport));
    // Hosts may have copies of their own.
    std::string facts = "index " + checkpoint_->index_sha256() + "\nconfig.json " + config_.sha256 +
                        "\nweights " + weights_sha256_ + "\ntokenizer.json " + tokenizer_->sha256() +
                        "\nstop ids";
    for (const auto id : config_.stop_ids) facts += " " + std::to_string(id);
    session.require_equal("open", "checkpoints", facts);
}

RankFacts Engine::facts(double memory) const {
    RankFacts f;
    f.host = session_.host();
    f.device = device_.backend->info();
    f.threads = device_.threads;
    const auto limit =
        of_rank<std::uint64_t>(options_.memory_limit, static_cast<std::size_t>(session_.rank()), 0);
    if (f.device.backend == "cpu") {
        f.available = static_cast<std::uint64_t>(memory);
        if (limit) f.available = std::min(f.available, limit);
    } else {
        // The limit is the whole card: what the context, the kernels and the communicator took already counts
        // against it. A little stays free, because the driver takes some for itself while the program runs.
        constexpr std::uint64_t reserve = std::uint64_t{256} << 20;
        const std::uint64_t taken = f.device.total_bytes - f.device.free_bytes;
        std::uint64_t free = f.device.free_bytes;
        if (limit) free = std::min(free, limit > taken ? limit - taken : 0);
        f.available = free > reserve ? free - reserve : 0;
    }
    f.gb_per_s =
        of_rank<double>(options_.bandwidth, static_cast<std::size_t>(session_.rank()), device_.gb_per_s);
    return f;
}

std::int64_t Engine::ranks_on_device_of(std::size_t rank) const {
    const RankFacts& one = ranks_[rank];
    if (one.device.backend == "cpu") return 1;
    return std::count_if(ranks_.begin(), ranks_.end(), [&](const RankFacts& other) {
        return other.host == one.host && other.device.uuid == one.device.uuid;
    });
}

ShardPlan Engine::plan_with(const std::vector<BesideArrays>& beside,
                            const std::vector<std::int64_t>& contexts) const {
    std::vector<RankMemory> memory;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
        const auto other = beside[r].scratch + beside[r].driver;
        memory.push_back({ranks_[r].available > other ? ranks_[r].available - other : 0, ranks_[r].gb_per_s,
                          ranks_[r].host + " " + ranks_[r].device.name});
    }
    PlanRequest request = plan_request(options_, memory);
    const bool on_gpus = ranks_[0].device.backend != "cpu";
    if (options_.prefill_chunk == 0) request.prefill_rows = on_gpus ? kPrefillRowsGpu : kPrefillRowsCpu;
    const ModelSizes sizes = inventory_->sizes();
    if (request.context != 0) return plan_for(options_, sizes, request, on_gpus);
    // Unasked, the context need not be larger than anything this run will use.
    return plan_for(options_, sizes, request, on_gpus, contexts);
}

void Engine::plan(std::vector<std::int64_t> tokens) {
    // Rounded up to friendly sizes.
    tokens.push_back(0);
    for (auto& n : tokens)
        n = std::min(config_.max_positions, (std::max<std::int64_t>(n, 4096) + 255) / 256 * 256);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    const double memory = share_of_host(Bound::Of::memory_left, session_);
    RankFacts mine;
    session_.agree("plan", [&] { mine = facts(memory); });
    ranks_ = session_.gather_records(mine, "rank facts");
    // Ranks that share a GPU all see the whole of its free memory.
    for (std::size_t r = 0; r < ranks_.size(); ++r)
        if (const std::int64_t ranks = ranks_on_device_of(r); ranks > 1)
            ranks_[r].available = std::min(ranks_[r].available,
                                           ranks_[r].device.free_bytes / static_cast<std::uint64_t>(ranks));
    // What a backend's kernels need beside the workspace depends on the cut, and the cut on what is left for
    // it. What was counted once is not given back, so this comes to an end.
    std::vector<BesideArrays> beside(ranks_.size());
    for (bool enough = false; !enough;) {
        BesideArrays own;
        session_.agree("plan", [&] {
            plan_ = plan_with(beside, tokens);
            const StepLimits most = limits(plan_);
            device_.backend->check_limits(most);
            own = {device_.backend->scratch_bytes(most), device_.backend->driver_bytes(most)};
        });
        enough = true;
        const auto all = session_.gather_records(own, "scratch");
        for (std::size_t r = 0; r < all.size(); ++r) {
            const BesideArrays& needed = all[r];
            enough = enough && needed.scratch <= beside[r].scratch && needed.driver <= beside[r].driver;
            beside[r] = {std::max(beside[r].scratch, needed.scratch),
                         std::max(beside[r].driver, needed.driver)};
        }
    }
    for (std::size_t r = 0; r < beside.size(); ++r) {
        plan_.bytes[r].workspace += beside[r].scratch;
        plan_.bytes[r].driver = beside[r].driver;
        plan_.available[r] += beside[r].scratch + beside[r].driver;
    }
    session_.require_equal("plan", "plan", plan_json(inventory_->sizes(), plan_));
}

StepLimits Engine::limits(const ShardPlan& plan) const {
    const auto most = most_rows_held(config_, plan, session_.rank());
    StepLimits l;
    l.rows = std::max<std::int64_t>(plan.prefill_rows, plan.slots);
    l.slots = plan.slots;
    l.context = plan.context;
    l.hidden = config_.hidden;
    l.vocab = config_.vocab;
    for (const LayerRoles& kind : family_of(config_).kinds)
        for (const TensorRole& role : kind.roles)
            if (role.is_matrix()) l.max_cols = std::max(l.max_cols, role.cols(config_));
    l.experts = config_.experts;
    l.top_k = config_.top_k;
    l.expert_width = config_.expert_width;
    l.shared_width = config_.shared_width;
    l.own_expert_width = most[Role::gate_up];
    l.own_shared_width = most[Role::shared_gate_up];
    l.own_down = most[Role::down];
    l.key_dim = config_.key_dim;
    l.value_dim = config_.value_dim;
    l.taps = config_.conv_taps;
    l.head_dim = config_.head_dim;
    l.value_heads = static_cast<int>(most[Role::in_b]);
    l.key_heads = l.value_heads ? l.value_heads / config_.groups() : 0;
    l.kv_heads = static_cast<int>(most[Role::k] / config_.head_dim);
    for (std::size_t i = 0; i < plan.layers.size(); ++i)
        if (config_.layers[i] == LayerKind::attention)
            l.query_heads = std::max(
                l.query_heads,
                static_cast<int>(plan.layers[i].mixer[static_cast<std::size_t>(session_.rank())].size()));
    l.layers = static_cast<std::int64_t>(plan.layers.size());
    return l;
}

void Engine::load() {
    const auto begin = Clock::now();
    const bool bar = session_.rank() == 0 && isatty(2);
    session_.agree("load", [&] {
        StepLimits most = limits(plan_);
        const std::uint64_t arrays = plan_.bytes[static_cast<std::size_t>(session_.rank())].arrays(),
                            scratch = device_.backend->scratch_bytes(most);
        most.array_bytes = arrays > scratch ? arrays - scratch : 0;
        device_.backend->reserve(most);
        weights_.emplace(*checkpoint_, *inventory_, plan_, session_.rank(), *device_.backend,
                         [&](std::uint64_t done, std::uint64_t total) {
                             if (session_.stop_requested()) throw Error(Exit::interrupted, mpi::stop_text());
                             if (bar)
                                 std::fprintf(stderr, "\rloading %3.0f%%%s",
                                              100.0 * static_cast<double>(done) / static_cast<double>(total),
                                              done == total ? "\n" : "");
                         });
        state_.emplace(*device_.backend, config_, plan_, session_.rank());
        model_.emplace(*device_.backend, *communicator_, config_, plan_, *weights_, *state_);
        model_->set_fast_prefill(options_.numerics == Numerics::fast);
        device_.backend->reserve(most);
        device_.backend->synchronize();
    });
    load_seconds_ = seconds_since(begin);
    reads_ = session_.gather_records(weights_->read(), "read counts");
    measure_allocated();
}

void Engine::measure_allocated() {
    const Backend& backend = *device_.backend;
    const RankFacts& before = ranks_[static_cast<std::size_t>(session_.rank())];
    const DeviceInfo now = backend.info();
    RankBytes mine = weights_->allocated();
    mine.kv_cache = state_->allocated().kv_cache;
    mine.recurrent_state = state_->allocated().recurrent_state;
    mine.rope = state_->allocated().rope;
    // All that no one else accounts for is working memory, so that nothing held is left out.
    const std::uint64_t held = backend.allocated_bytes();
    mine.workspace = held > mine.arrays() ? held - mine.arrays() : 0;
    const bool alone = ranks_on_device_of(static_cast<std::size_t>(session_.rank())) ==
                       1;  // else others take of the same memory
    if (now.backend == "cuda" && alone && before.device.free_bytes > now.free_bytes + held)
        mine.driver = before.device.free_bytes - now.free_bytes - held;
    allocated_ = session_.gather_records(RankAllocated{mine, now.free_bytes}, "memory held");
}

Generator::Events Engine::loop_events() {
    Generator::Events events;
    events.stop_requested = [this] {
        check_checkpoint();
        return session_.stop_requested();
    };
    events.step = [this](std::string_view phase) { mpi::fault_point(session_.rank(), phase); };
    return events;
}

}  // namespace ftmpi
