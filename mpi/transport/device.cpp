#include "device.hpp"

#include <algorithm>
#include <cstring>

#include "../exchange.hpp"
#include "../process/report.hpp"
#include "columns.hpp"

namespace ftmpi::mpi {
namespace {

std::uint32_t fnv(std::uint32_t hash, const void* data, std::size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 16777619u;
    return hash;
}

/// Of everything that must be equal on all ranks.
std::uint32_t signature_of(std::string_view name, const cuda::GatherLayout& p) {
    std::uint32_t hash = fnv(2166136261u, name.data(), name.size());
    hash = fnv(hash, &p.first, sizeof p.first);
    for (int part = 0; part < p.parts; ++part) {
        hash = fnv(hash, &p.rows[part], sizeof p.rows[part]);
        hash = fnv(hash, &p.width[part], sizeof p.width[part]);
        hash = fnv(hash, p.size[part], static_cast<std::size_t>(p.ranks) * sizeof p.size[part][0]);
    }
    return hash;
}

cuda::GatherLayout layout_of(std::span<const ShardedColumns> parts, int rank, int size) {
    cuda::GatherLayout p{};
    p.ranks = size;
    p.rank = rank;
    for (const auto& part : parts) {
        p.data[p.parts] = part.data;
        p.width[p.parts] = part.width;
        p.rows[p.parts] = static_cast<std::uint32_t>(part.rows);
        for (int r = 0; r < size; ++r) {
            const Range range = part.of_rank[static_cast<std::size_t>(r)];
            if (range.empty()) continue;
            p.begin[p.parts][r] = static_cast<std::uint32_t>(range.begin);
            p.size[p.parts][r] = static_cast<std::uint32_t>(range.size());
        }
        ++p.parts;
    }
    return p;
}

bool in_capture(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    FTMPI_CUDA(cudaStreamIsCapturing(stream, &status));
    return status != cudaStreamCaptureStatusNone;
}

}  // namespace

std::string first_trouble(Session& session, const std::string& mine) {
    const auto all = session.all_gather(mine, "transport");
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        if (!all[rank].empty())
            return name_ranks({static_cast<int>(rank)}, session.exchange().hosts()) + ": " + all[rank];
    return {};
}

DeviceTransport::DeviceTransport(Session& session, Backend& backend, std::string reason)
    : exchange_(session.exchange()), backend_(backend), host_values_(session.host_communicator(backend)),
      rank_(session.rank()), size_(session.size()), reason_(std::move(reason)),
      control_(sizeof(cuda::Control), "state of the exchanges"),
      report_(sizeof(cuda::Report), "reports of the exchanges"),
      stream_(static_cast<cudaStream_t>(backend.stream())) {
    std::memset(report_.data(), 0, report_.bytes());
    FTMPI_CUDA(cudaMemsetAsync(control_.data(), 0, control_.bytes(), stream_));
    FTMPI_CUDA(cudaStreamSynchronize(stream_));
}

double DeviceTransport::timeout() const { return exchange_.timeout(); }

std::uint32_t DeviceTransport::id_of(std::string_view name) {
    // A step runs its collectives in the same order each time, so the next one is mostly the one after the
    // last.
    for (std::size_t i = 0; i < names_.size(); ++i) {
        last_name_ = last_name_ + 1 < names_.size() ? last_name_ + 1 : 0;
        if (names_[last_name_] == name) return static_cast<std::uint32_t>(last_name_);
    }
    if (names_.size() + 1 == cuda::max_names) names_.emplace_back("others");
    if (names_.size() == cuda::max_names) return cuda::max_names - 1;
    names_.emplace_back(name);
    last_name_ = names_.size() - 1;
    return static_cast<std::uint32_t>(last_name_);
}

void DeviceTransport::all_gather(std::span<const ShardedColumns> parts, std::string_view name,
                                 Stream stream) {
    check();
    check_columns(parts, size_, name);
    stream_ = static_cast<cudaStream_t>(stream);
    const std::uint32_t id = id_of(name);
    for (std::size_t at = 0; at < parts.size(); at += cuda::max_parts)
        gather_some(parts.subspan(at, std::min<std::size_t>(cuda::max_parts, parts.size() - at)), name, id,
                    stream_);
}

void DeviceTransport::gather_some(std::span<const ShardedColumns> parts, std::string_view name,
                                  std::uint32_t id, cudaStream_t stream) {
    std::vector<std::uint64_t> floats(static_cast<std::size_t>(size_));
    for (int r = 0; r < size_; ++r) floats[static_cast<std::size_t>(r)] = floats_of(parts, r);
    const std::uint64_t largest = *std::max_element(floats.begin(), floats.end());
    if (largest == 0) return;
    // Kernels count a rank's floats in 32 bits, with room for the rounding of chunks.
    if (largest >= 1u << 31)
        throw Error(Exit::failure, "'" + std::string(name) + "': a rank would send " +
                                       std::to_string(largest) +
                                       " floats in one exchange; 2147483647 are the most");
    cuda::GatherLayout layout = layout_of(parts, rank_, size_);
    const std::uint32_t most = window(largest);
    cuda::Tag tag{0, id, 1};
    for (std::uint64_t first = 0; first < largest; first += most) {
        layout.first = static_cast<std::uint32_t>(first);
        for (int r = 0; r < size_; ++r) {
            const std::uint64_t n = floats[static_cast<std::size_t>(r)];
            layout.count[r] =
                static_cast<std::uint32_t>(n > first ? std::min<std::uint64_t>(most, n - first) : 0);
        }
        tag.signature = signature_of(name, layout);
        move(layout, tag, name, stream);
        tag.calls = 0;
    }
}

void DeviceTransport::all_gather_values(std::span<const std::uint64_t> mine, std::span<std::uint64_t> all,
                                        std::string_view name) {
    check();
    host_values_->all_gather_values(mine, all, name);
    // A kernel may have given up meanwhile.
    check();
}

void DeviceTransport::check() {
    const volatile cuda::Report& r = *report();
    const std::uint32_t fault = r.fault;
    if (fault == cuda::Report::none) return;
    const int source = static_cast<int>(r.source);
    if (fault == cuda::Report::timed_out) fail_timed_out(r.name, {source});
    exchange_.fail(Error(Exit::failure,
                         "ranks are out of step: rank " + std::to_string(rank_) + " is in '" +
                             names_[r.name] + "', rank " + std::to_string(source) +
                             " in another exchange or with other sizes",
                         "all ranks must get the same options and files, and this must not happen even then: "
                         "please report it"));
}

void DeviceTransport::fail_timed_out(std::uint32_t name, std::vector<int> ranks) {
    const std::string whom = ranks.empty() ? "" : ": waited for " + name_ranks(ranks, exchange_.hosts());
    exchange_.fail(Error(Exit::timed_out,
                         "'" + names_[name] + "' was not finished within " + seconds_text(timeout()) + whom,
                         "that process is stopped, hangs or is gone; if it is only slow, raise --timeout"),
                   std::move(ranks));
}

std::vector<Communicator::Wait> DeviceTransport::waits() const {
    std::vector<Wait> all = host_values_->waits();
    if (names_.empty() || in_capture(stream_)) return all;
    auto state = std::make_unique<cuda::Control>();
    FTMPI_CUDA(cudaMemcpyAsync(state.get(), control_.data(), sizeof *state, cudaMemcpyDeviceToHost, stream_));
    FTMPI_CUDA(cudaStreamSynchronize(stream_));
    for (std::size_t i = 0; i < names_.size(); ++i)
        if (state->calls[i] > 0)
            all.push_back({names_[i], static_cast<double>(state->waited_ns[i]) * 1e-9,
                           static_cast<std::int64_t>(state->calls[i])});
    return all;
}

void DeviceTransport::reset_waits() {
    host_values_->reset_waits();
    FTMPI_CUDA(cudaMemsetAsync(&control()->waited_ns, 0,
                               sizeof(cuda::Control::waited_ns) + sizeof(cuda::Control::calls), stream_));
}

std::string DeviceTransport::try_out(Session& session) {
    // Few floats and many, pieces of unlike size, an empty one, and rows whose pieces are not aligned.
    for (const std::int64_t width : {std::int64_t{3}, std::int64_t{2001}, std::int64_t{300'007}}) {
        const std::string trouble = trouble_of(session, [&] {
            const std::int64_t rows = 3;
            std::vector<Range> cuts;
            for (int r = 0; r < size_; ++r)
                cuts.push_back({r == 0 ? 0 : cuts.back().end,
                                r + 1 == size_ ? width : width * (2 * r + 1) / (2 * size_)});
            const auto value = [&](std::int64_t i) { return static_cast<float>((i * 37 + width) % 65'521); };
            std::vector<float> host(static_cast<std::size_t>(rows * width), -1.0f);
            const Range own = cuts[static_cast<std::size_t>(rank_)];
            for (std::int64_t row = 0; row < rows; ++row)
                for (std::int64_t i = row * width + own.begin; i < row * width + own.end; ++i)
                    host[static_cast<std::size_t>(i)] = value(i);
            const DeviceArray<float> device(backend_, rows * width, "a first exchange");
            backend_.copy_in(device.data(), host.data(), device.bytes());
            const ShardedColumns part{device.data(), rows, width, cuts};
            all_gather({&part, 1}, "first exchange", backend_.stream());
            backend_.copy_out(host.data(), device.data(), device.bytes());
            const volatile cuda::Report& r = *report();
            if (r.fault != cuda::Report::none)
                throw Error(Exit::failure, "the data of rank " + std::to_string(r.source) +
                                               " did not arrive in a first exchange");
            for (std::int64_t i = 0; i < rows * width; ++i)
                if (host[static_cast<std::size_t>(i)] != value(i))
                    throw Error(Exit::failure, "a first exchange changed the data (" + std::to_string(rows) +
                                                   " x " + std::to_string(width) + " floats, at " +
                                                   std::to_string(i) + ")");
        });
        if (!trouble.empty()) return trouble;
    }
    names_.clear();
    last_name_ = 0;
    reset_waits();
    return {};
}

}  // namespace ftmpi::mpi
