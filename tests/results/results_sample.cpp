// Writes a sample result file for results_read.sh: results_sample FILE REQUESTS [refuse|overwrite|resume]
// [odd|hang|leave].
//   odd: text that is not UTF-8, long text, many timings. hang: waits to be killed before finish. leave: ends
//   without finish.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "error.hpp"
#include "results_samples.hpp"

using namespace ftmpi;

int main(int argc, char** argv) {
    const std::string how = argc > 3 ? argv[3] : "refuse", special = argc > 4 ? argv[4] : "";
    if (argc < 3) return 2;
    try {
        RunRecord run = sample_run();
        if (special == "odd") {
            run.attributes.emplace_back("model", "/models/\xFF/tiny");
            run.attributes.emplace_back("job_text", std::string(70'000, 'j'));
        }
        ResultFile results(argv[1], run,
                           how == "overwrite" ? ResultFile::Existing::overwrite
                           : how == "resume"  ? ResultFile::Existing::resume
                                              : ResultFile::Existing::refuse);
        if (!results.warning().empty()) std::fprintf(stderr, "warning: %s\n", results.warning().c_str());
        std::fprintf(stderr, "started, %zu finished before\n", results.finished().size());
        for (std::int64_t i = static_cast<std::int64_t>(results.finished().size()); i < std::atoll(argv[2]);
             ++i) {
            RequestRecord request = sample_request(i);
            if (special == "odd") {
                const std::string odd[] = {std::string(70'000, 'p'), std::string("a\0b", 3), "\xFF",
                                           "cut \xF0\x9F\x98"};
                request = sample_request(i, i == 0 ? 9000 : 4);
                request.id = request.prompt = request.text = request.error = odd[i % 4];
                for (std::size_t v = 0; v < request.output_ids.size() * 5; ++v)
                    request.logits.push_back(0.5f * static_cast<float>(v));
            }
            results.append(request);
        }
        if (special == "hang") ::pause();
        if (special == "leave") return 0;
        results.finish({{{"decode_tokens_per_second", 1500.25}, {"load_seconds", 0.5}}});
    } catch (const Error& error) {
        std::fprintf(stderr, "error: %s\nhint: %s\n", error.what(), error.hint().c_str());
        return static_cast<int>(error.code());
    }
}
