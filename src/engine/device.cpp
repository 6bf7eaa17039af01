#include "device.hpp"

#include <algorithm>
#include <utility>

#include "../cpu_backend.hpp"
#include "../error.hpp"
#ifdef FTMPI_HAVE_CUDA
#include "../../cuda/runtime/backend.hpp"
#include "../../cuda/runtime/device.hpp"
#endif

namespace ftmpi {
namespace {

RankDevice cpu_device(const Options& options, double processors) {
    const int threads = options.threads ? options.threads : std::max(1, static_cast<int>(processors));
    return {make_cpu_backend(threads), threads, 0};
}

}  // namespace

double share_of_host(Bound::Of of, mpi::Session& session) {
    const auto mine = host_bounds();
    std::vector<std::vector<Bound>> here;
    for (auto& [host, bounds] : session.gather_records(std::pair(session.host(), mine), "host"))
        if (host == session.host()) here.push_back(std::move(bounds));
    return share_of(of, mine, here);
}

RankDevice open_device(const Options& options, mpi::Session& session) {
    RankDevice device;
#ifdef FTMPI_HAVE_CUDA
    if (options.backend != BackendChoice::cpu) {
        cuda::RankGpus mine;
        session.agree("device", [&] { mine = cuda::visible_gpus(session.host(), session.local_rank()); });
        const auto all = session.gather_records(mine, "GPUs");
        const bool none =
            std::all_of(all.begin(), all.end(), [](const auto& r) { return r.visible.empty(); });
        if (options.backend == BackendChoice::cuda || !none || !options.gpus.empty()) {
            session.agree("device", [&] {
                const auto chosen =
                    cuda::choose_gpus(all, options.gpus)[static_cast<std::size_t>(session.rank())];
                device.gb_per_s = cuda::gpu_facts(chosen.device).gb_per_s;
                device.backend = make_cuda_backend({chosen.device});
            });
            return device;
        }
    }
#endif
    const double processors = share_of_host(Bound::Of::processors, session);
    session.agree("device", [&] {
#ifndef FTMPI_HAVE_CUDA
        if (options.backend == BackendChoice::cuda || !options.gpus.empty())
            throw Error(
                Exit::usage, "this program was built without CUDA",
                "configure with -DFTMPI_CUDA=ON where nvcc (CUDA 12.8 or newer) and NCCL are installed");
#endif
        device = cpu_device(options, processors);
    });
    return device;
}

}  // namespace ftmpi
