// What tests/mpi/mpi_test.sh starts under mpirun: the ranks alone, without a model.
//   gathers            known bytes through every exchange
//   phases [timeout]   set-up phases, a decode loop and a write phase; FTMPI_FAULT makes a rank fail in one
//   of them differ             ranks with different options mismatch, lengths  ranks in different
//   collectives, or with different sizes deserter           one rank leaves while the others gather scope the
//   session ends by its destructor unwind             ... while an exception of one rank passes stop decodes
//   until a signal asks to stop bench              microseconds of one exchange
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <stdexcept>
#include <thread>

#include "../../mpi/exchange.hpp"
#include "../../mpi/process/fault.hpp"
#include "../../mpi/session.hpp"
#include "../../src/backend.hpp"

using namespace ftmpi;
using mpi::Session;

namespace {

/// Memory only. As "device" its pointers lie where no memory is, so that any access but a copy is a crash.
class Memory : public Backend {
public:
    explicit Memory(bool device) : device_(device) {}
    DeviceInfo info() const override {
        DeviceInfo info;
        info.backend = device_ ? "device" : "cpu";
        return info;
    }
    void* allocate(std::size_t bytes, std::string_view) override {
        return shift(std::calloc(bytes, 1), offset());
    }
    void release(void* p) noexcept override { std::free(shift(p, -offset())); }
    void copy_in(void* device, const void* host, std::size_t bytes) override {
        if (bytes > 0) std::memcpy(shift(device, -offset()), host, bytes);
    }
    void copy_out(void* host, const void* device, std::size_t bytes) override {
        if (bytes > 0) std::memcpy(host, shift(const_cast<void*>(device), -offset()), bytes);
    }
    void fill_zero(void* device, std::size_t bytes) override {
        std::memset(shift(device, -offset()), 0, bytes);
    }
    void synchronize() override {}
    Stream stream() const override { return nullptr; }

    std::unique_ptr<Matrix> load(const MatrixSource&) override { no(); }
    std::unique_ptr<Matrix> load_table(const MatrixSource&, bool) override { no(); }
    void embed(const Matrix&, const Rows&, float*) override { no(); }
    void resolve_tokens(Row*, std::span<const Row>, const std::int32_t*, std::int64_t) override { no(); }
    void rms_norm(const float*, const float*, float, std::int64_t, std::int64_t, float*) override { no(); }
    void project(std::span<const Projection>, const float*, std::int64_t) override { no(); }
    void delta_net(const DeltaNet&, const Rows&, const float*, const float*, const float*, const float*,
                   float*, std::int64_t) override {
        no();
    }
    void attention(const Attention&, const Rows&, const float*, const float*, const float*, float*,
                   std::int64_t) override {
        no();
    }
    void route(const float*, std::int64_t, int, const Routes&) override { no(); }
    void experts_up(const Matrix&, const Matrix*, const Routes&, const float*, std::int64_t, float*,
                    std::int64_t, float*, std::int64_t) override {
        no();
    }
    void experts_down(const Matrix&, const Matrix*, const Routes&, const float*, const float*, const float*,
                      std::int64_t, float*, std::int64_t) override {
        no();
    }
    void add(const float*, const float*, float*, std::int64_t) override { no(); }
    void argmax(const float*, std::int64_t, std::int64_t, std::int64_t, const std::uint8_t*, std::int32_t*,
                std::int32_t*) override {
        no();
    }

private:
    [[noreturn]] static void no() { throw std::logic_error("this backend only holds memory"); }
    std::intptr_t offset() const { return device_ ? std::intptr_t(1) << 44 : 0; }
    static void* shift(void* p, std::intptr_t by) {
        return p == nullptr ? nullptr : reinterpret_cast<void*>(reinterpret_cast<std::intptr_t>(p) + by);
    }
    bool device_;
};

void require(bool good, const std::string& what) {
    if (!good) throw Error(Exit::failure, "wrong: " + what);
}

float value(int part, std::int64_t row, std::int64_t column) {
    return static_cast<float>(part) * 1e6f + static_cast<float>(row) * 1e4f +
           static_cast<float>(column % 9973);
}

/// Cuts [0, width) by weights; a weight of 0 gives an empty piece.
std::vector<Range> cut(std::int64_t width, const std::vector<int>& weights) {
    std::int64_t sum = 0, before = 0;
    for (const int w : weights) sum += w;
    std::vector<Range> ranges;
    for (const int w : weights) {
        ranges.push_back({width * before / sum, width * (before + w) / sum});
        before += w;
    }
    return ranges;
}

void gather_columns(Session& session, Memory& backend, Communicator& ranks) {
    const int size = session.size();
    std::vector<std::vector<int>> weights = {std::vector<int>(static_cast<std::size_t>(size), 1), {}, {}, {}};
    for (int r = 0; r < size; ++r) {
        weights[1].push_back(r == 0 ? 3 : 1);
        weights[2].push_back(r == 0 ? 1 : 0);         // all on one
        weights[3].push_back(r == size - 1 ? 5 : r);  // uneven, none on rank 0 from 2 ranks on
    }
    struct Shape {
        std::int64_t rows, width;
    };
    for (const auto& weight : weights)
        for (const Shape shape :
             {Shape{1, 1}, Shape{1, 3}, Shape{1, 4096}, Shape{7, 1001}, Shape{0, 64}, Shape{33, 12000}}) {
            // Two parts of unlike shapes in one exchange.
            const std::vector<Range> cuts[2] = {cut(shape.width, weight), cut(2 * shape.width + 5, weight)};
            std::vector<ShardedColumns> parts;
            std::vector<DeviceArray<float>> memory;
            for (int p = 0; p < 2; ++p) {
                const std::int64_t width = cuts[p].empty() ? 0 : (p == 0 ? shape.width : 2 * shape.width + 5);
                memory.emplace_back(backend, std::max<std::int64_t>(1, shape.rows * width), "columns");
                std::vector<float> host(static_cast<std::size_t>(shape.rows * width), -1.0f);
                const Range own = cuts[p][static_cast<std::size_t>(session.rank())];
                for (std::int64_t row = 0; row < shape.rows; ++row)
                    for (std::int64_t c = own.begin; c < own.end; ++c)
                        host[static_cast<std::size_t>(row * width + c)] = value(p, row, c);
                backend.copy_in(memory.back().data(), host.data(), host.size() * sizeof(float));
                parts.push_back({memory.back().data(), shape.rows, width, cuts[p]});
            }
            ranks.all_gather(parts, "columns", backend.stream());
            if (size == 1) continue;
            for (int p = 0; p < 2; ++p) {
                std::vector<float> host(
                    static_cast<std::size_t>(shape.rows * parts[static_cast<std::size_t>(p)].width));
                backend.copy_out(host.data(), memory[static_cast<std::size_t>(p)].data(),
                                 host.size() * sizeof(float));
                const std::int64_t width = parts[static_cast<std::size_t>(p)].width;
                for (std::int64_t row = 0; row < shape.rows; ++row)
                    for (std::int64_t c = 0; c < width; ++c)
                        require(host[static_cast<std::size_t>(row * width + c)] == value(p, row, c),
                                "a gathered column");
            }
        }
}

/// Blocks that MPI takes from where they lie, of unlike and empty lengths.
void blocks_in_place(Session& session) {
    const auto length = [](std::size_t rank, int round) {
        return round == 2 ? 0 : (rank + static_cast<std::size_t>(round)) * 700'001 % 2'000'003;
    };
    const auto byte = [](std::size_t rank, std::size_t i) {
        return static_cast<std::byte>(rank * 101 + i * 7 + i / 251);
    };
    for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<std::byte>> memory;
        for (std::size_t r = 0; r < static_cast<std::size_t>(session.size()); ++r)
            memory.emplace_back(length(r, round));
        const auto me = static_cast<std::size_t>(session.rank());
        for (std::size_t i = 0; i < memory[me].size(); ++i) memory[me][i] = byte(me, i);
        const std::vector<std::span<std::byte>> into(memory.begin(), memory.end());
        session.exchange().run_at("blocks in place", memory[me], into);
        for (std::size_t r = 0; r < memory.size(); ++r)
            for (std::size_t i = 0; i < memory[r].size(); ++i)
                require(memory[r][i] == byte(r, i), "a byte of a block in place");
    }
}

void gathers(Session& session) {
    std::string problem;
    for (const bool device : {false, true}) {
        Memory backend(device);
        const auto ranks = session.host_communicator(backend);
        require(ranks->rank() == session.rank() && ranks->size() == session.size(), "rank or size");
        require(ranks->transport() == (session.size() == 1 ? "none" : "mpi"), "name of the transport");
        gather_columns(session, backend, *ranks);
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{20000}}) {
            std::vector<std::uint64_t> mine(count), all(count * static_cast<std::size_t>(session.size()));
            for (std::size_t i = 0; i < count; ++i)
                mine[i] = 0x100000001ull * static_cast<unsigned>(session.rank() + 1) + i;
            ranks->all_gather_values(mine, all, "words");
            for (std::size_t r = 0; r < static_cast<std::size_t>(session.size()); ++r)
                for (std::size_t i = 0; i < count; ++i)
                    require(all[r * count + i] == 0x100000001ull * (r + 1) + i, "a gathered word");
        }
        if (session.size() > 1) {
            const auto waits = ranks->waits();
            require(waits.size() == 2 && waits[0].name == "columns" && waits[0].calls == 24 &&
                        waits[1].calls == 4,
                    "counts of calls");
            require(waits[0].seconds > 0, "seconds of calls");
            ranks->reset_waits();
            require(ranks->waits().empty(), "counts after a reset");
        }
    }
    blocks_in_place(session);
    std::string text(9'000'001, 'a');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 + i / 4096);
    require(session.broadcast(session.rank() == 0 ? text : "no one reads this", "text") == text,
            "a broadcast text");
    require(session.broadcast("", "nothing").empty(), "a broadcast of nothing");
    const auto all =
        session.all_gather(std::string(static_cast<std::size_t>(session.rank()) * 100'000, 'x'), "texts");
    for (std::size_t r = 0; r < all.size(); ++r)
        require(all[r] == std::string(r * 100'000, 'x'), "a gathered text");
    session.require_equal("options", "options", "one\ntwo\n");
    require(session.local_size() == session.size() && session.local_rank() == session.rank(),
            "ranks of this host");
    if (session.rank() == 0)
        std::cout << "gathers ok, " << session.size() << " ranks, " << session.library() << std::endl;
}

/// One step: a few gathers and the words that spread a wish to stop. False when any rank wants to stop.
bool step(Session& session, Communicator& ranks, Memory& backend, const DeviceArray<float>& x,
          std::span<const Range> cuts, int n) {
    mpi::fault_point(session.rank(), "decode");
    for (const char* name : {"heads", "output", "experts", "down"}) {
        const ShardedColumns part{x.data(), 1, x.size(), cuts};
        ranks.all_gather({&part, 1}, name, backend.stream());
    }
    const std::uint64_t mine[2] = {session.stop_requested(), static_cast<std::uint64_t>(n)};
    std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(session.size()));
    ranks.all_gather_values(mine, all, "step");
    for (std::size_t r = 0; r < all.size(); r += 2)
        if (all[r] != 0) return false;
    return true;
}

void phases(Session& session) {
    Memory backend(false);
    session.agree("options", [] {});
    session.agree("load", [] {});
    const auto ranks = session.host_communicator(backend);
    const std::vector<int> even(static_cast<std::size_t>(session.size()), 1);
    const auto cuts = cut(512, even);
    DeviceArray<float> x(backend, 512, "x");
    for (int n = 0; n < 50; ++n) step(session, *ranks, backend, x, cuts, n);
    const auto write = [&] {
        if (session.rank() == 0) std::cout << "written" << std::endl;
    };
    session.agree("write", write, mpi::OnStop::ignore);
}

void stop(Session& session) {
    Memory backend(false);
    const auto ranks = session.host_communicator(backend);
    const auto cuts = cut(512, std::vector<int>(static_cast<std::size_t>(session.size()), 1));
    DeviceArray<float> x(backend, 512, "x");
    std::cout << "rank " << session.rank() << " pid " << getpid() << std::endl;
    for (int n = 0; step(session, *ranks, backend, x, cuts, n); ++n)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto write = [&] {
        if (session.rank() == 0) std::cout << "stopped and written" << std::endl;
    };
    session.agree("write", write, mpi::OnStop::ignore);
    session.leave(Exit::interrupted);
}

void bench(Session& session) {
    Memory backend(false);
    const auto ranks = session.host_communicator(backend);
    for (const std::int64_t floats : {16, 256, 1024, 4096, 16384, 262144}) {
        DeviceArray<float> x(backend, floats, "x");
        const auto cuts = cut(floats, std::vector<int>(static_cast<std::size_t>(session.size()), 1));
        const ShardedColumns part{x.data(), 1, floats, cuts};
        const int warm = 100, times = floats > 100'000 ? 200 : 5000;
        std::chrono::steady_clock::time_point start;
        for (int i = -warm; i < times; ++i) {
            if (i == 0) start = std::chrono::steady_clock::now();
            ranks->all_gather({&part, 1}, "bench", nullptr);
        }
        const double us =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times * 1e6;
        if (session.rank() == 0)
            std::printf("%d ranks, %7.1f KB together: %8.2f us\n", session.size(),
                        static_cast<double>(floats) * 4 / 1024, us);
    }
}

void run(Session& session, const std::string& mode) {
    Memory backend(false);
    if (mode == "gathers") return gathers(session);
    if (mode == "phases" || mode == "unwind") return phases(session);
    if (mode == "bench") return bench(session);
    if (mode == "stop") return stop(session);
    if (mode == "differ")
        return session.require_equal(
            "options", "options",
            session.rank() == 1 ? "model = a\ncontext = 32\n" : "model = a\ncontext = 64\n");
    if (mode == "mismatch" || mode == "lengths") {
        const std::string name = mode == "mismatch" && session.rank() == 1 ? "down" : "heads";
        const std::int64_t width = mode == "lengths" && session.rank() == 1 ? 96 : 64;
        const auto cuts = cut(width, std::vector<int>(static_cast<std::size_t>(session.size()), 1));
        DeviceArray<float> x(backend, width, "x");
        const ShardedColumns part{x.data(), 1, width, cuts};
        return session.host_communicator(backend)->all_gather({&part, 1}, name, nullptr);
    }
    if (mode == "deserter") {
        if (session.rank() == 1) session.leave(Exit::bad_input);
        session.all_gather("here", "texts");
        return;
    }
    throw Error(Exit::usage, "unknown mode " + mode);
}

}  // namespace

int main(int argc, char** argv) {
    const std::string mode = argc > 1 ? argv[1] : "";
    const double timeout = argc > 2 ? std::atof(argv[2]) : 20;
    try {
        if (mode == "scope" || mode == "unwind") {
            Session session(timeout);
            session.agree(
                "options", [] {}, mpi::OnStop::ignore);
            if (mode == "unwind" && session.rank() == session.size() - 1)
                throw std::runtime_error("an exception on its way out");
            if (mode == "unwind") run(session, mode);
            return 0;
        }
        Session session(timeout);
        try {
            run(session, mode);
        } catch (const Session::Agreed& agreed) { session.leave(agreed.code); } catch (const Error& error) {
            session.abort(error);
        }
        session.leave(Exit::ok);
    } catch (const Session::Agreed& agreed) {
        return static_cast<int>(agreed.code);
    } catch (const Error& error) {
        std::cerr << "ftmpi: error: " << error.what() << "\nftmpi: hint: " << error.hint() << std::endl;
        return static_cast<int>(error.code());
    } catch (const std::exception& error) {
        std::cerr << "ftmpi: error: " << error.what() << std::endl;
        return 1;
    }
}
