// "mpi" for GPU memory: this rank's columns are packed by a kernel, travel by MPI, and are unpacked by a
// kernel. The buffers lie in GPU memory when the library takes such pointers, else in page-locked host memory
// that the kernels read and write directly. The host takes part in every exchange, so none can be captured in
// a graph.
#include "device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "../exchange.hpp"

namespace ftmpi::mpi {
namespace {

// For all ranks' floats of one window; larger exchanges go in several.
constexpr std::size_t buffer_bytes = 16u << 20;

class DeviceMpi : public DeviceTransport {
public:
    DeviceMpi(Session& session, Backend& backend, bool cuda_aware, std::string reason)
        : DeviceTransport(session, backend, std::move(reason)), cuda_aware_(cuda_aware) {
        const auto what = "buffer for MPI";
        if (cuda_aware) device_ = cuda::DeviceMemory(buffer_bytes, what);
        else host_ = cuda::PinnedMemory(buffer_bytes, what);
        buffer_ = static_cast<float*>(cuda_aware ? device_.data() : host_.data());
    }

    std::string transport() const override { return "mpi"; }

protected:
    std::uint32_t window(std::uint64_t) const override {
        return static_cast<std::uint32_t>(buffer_bytes / sizeof(float) / static_cast<std::size_t>(size()));
    }

    void move(const cuda::GatherLayout& layout, const cuda::Tag& tag, std::string_view name,
              cudaStream_t stream) override {
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        FTMPI_CUDA(cudaStreamIsCapturing(stream, &capture));
        if (capture != cudaStreamCaptureStatusNone)
            throw Error(Exit::failure,
                        "'" + std::string(name) + "': an exchange through MPI cannot be part of a graph");
        cuda::SegmentOffsets offsets{};
        for (int r = 1; r < size(); ++r) offsets.at[r] = offsets.at[r - 1] + layout.count[r - 1];
        cuda::pack(layout, tag, buffer_ + offsets.at[rank()], control(), report(), stream);
        // Also ends the unpacking of the exchange before, whose data lies in the same buffer.
        FTMPI_CUDA(cudaStreamSynchronize(stream));
        const std::uint64_t largest =
            *std::max_element(layout.count, layout.count + size()) * std::uint64_t{sizeof(float)};
        if (!cuda_aware_ && largest <= Exchange::one_message()) send_copies(layout, offsets, name);
        else send_in_place(layout, offsets, name);
        cuda::unpack(layout, tag, buffer_, offsets, control(), report(), stream);
    }

private:
    std::span<std::byte> bytes_of(const cuda::GatherLayout& layout, const cuda::SegmentOffsets& offsets,
                                  int rank) const {
        return {reinterpret_cast<std::byte*>(buffer_ + offsets.at[rank]), layout.count[rank] * sizeof(float)};
    }

    void send_copies(const cuda::GatherLayout& layout, const cuda::SegmentOffsets& offsets,
                     std::string_view name) {
        const auto own = bytes_of(layout, offsets, rank());
        std::byte* const out = exchange().outgoing(own.size());
        std::copy(own.begin(), own.end(), out);
        exchange().run(name);
        for (int r = 0; r < size(); ++r) {
            if (r == rank()) continue;
            const auto to = bytes_of(layout, offsets, r);
            const auto in = exchange().incoming(r, to.size(), name);
            std::copy(in.begin(), in.end(), to.begin());
        }
    }

    void send_in_place(const cuda::GatherLayout& layout, const cuda::SegmentOffsets& offsets,
                       std::string_view name) {
        std::vector<std::span<std::byte>> into;
        for (int r = 0; r < size(); ++r) into.push_back(bytes_of(layout, offsets, r));
        exchange().run_at(name, into[static_cast<std::size_t>(rank())], into);
    }

    bool cuda_aware_;
    cuda::DeviceMemory device_;
    cuda::PinnedMemory host_;
    float* buffer_ = nullptr;
};

}  // namespace

Attempt make_device_mpi(Session& session, Backend& backend, bool cuda_aware, std::string reason) {
    if (session.size() > cuda::max_ranks)
        return {nullptr, "there are more than " + std::to_string(cuda::max_ranks) + " ranks"};
    std::unique_ptr<DeviceMpi> transport;
    std::string trouble = trouble_of(session, [&] {
        transport = std::make_unique<DeviceMpi>(session, backend, cuda_aware, std::move(reason));
    });
    if (trouble.empty()) trouble = transport->try_out(session);
    if (!trouble.empty()) return {nullptr, trouble};
    return {std::move(transport), {}};
}

}  // namespace ftmpi::mpi
