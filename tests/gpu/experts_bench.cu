#define time_all unused_time_all
#include "linear_times.cu"
#undef time_all
#include <cstdlib>
int main(int argc, char** argv) {
    using namespace ftmpi;
    using namespace ftmpi::check;
    const auto gpu = make_cuda_backend({});
    Sizes s{*gpu, read_rate(*gpu)};
    std::printf("pure read %.0f GB/s\n", s.rate / 1e9);
    std::vector<std::int64_t> rows{4, 6, 8, 9, 16, 32, 64, 128, 256, 1024};
    if (argc > 1) {
        rows.clear();
        for (int i = 1; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
    }
    for (auto r : rows) s.experts(Format::nvfp4, r);
    if (argc > 1) return 0;
    for (std::int64_t r : {4, 8, 16, 32, 64, 128})
        s.project("head NVFP4 248320 x 2048", {{Format::nvfp4, 248320}}, 2048, r);
    s.project("NVFP4 8192 x 2048", {{Format::nvfp4, 8192}}, 2048, 1024);
}
