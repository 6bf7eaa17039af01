// Records with every field set.
#pragma once

#include <string>

#include "digest.hpp"
#include "results.hpp"

namespace ftmpi {

inline RunRecord sample_run(const std::string& model = "aaaa") {
    RunRecord run;
    run.attributes = {
        {"version", "0.1.0"}, {"argv", "ftmpi --prompt \"x\""}, {"numerics", "exact"}, {"empty", ""}};
    for (int r = 0; r < 3; ++r)
        run.ranks.push_back({{"host", "node" + std::to_string(r)},
                             {"driver", "570.10"},
                             {"free_bytes", std::to_string(1000 + r)},
                             {"bandwidth_gb_per_s", std::to_string(r) + ".5"}});
    run.plan_text = "rank  share\n0     50 %\n";
    run.plan_ranges = {{"head", {0, 10, 10, 20, 20, 20}}, {"mixer", {0, 1, 1, 2, 2, 2, 0, 2, 2, 2, 2, 2}}};
    run.identity = "model config: " + model + "\nnumerics: exact\n";
    return run;
}

inline RequestRecord sample_request(std::int64_t index, std::size_t steps = 4) {
    RequestRecord r;
    r.index = index;
    r.id = "p" + std::to_string(index);
    r.prompt = "Say " + std::to_string(index);
    r.prompt_ids = {1, 2, static_cast<std::int32_t>(index)};
    r.text = " ok";
    r.finish_reason = "length";
    r.vocabulary = 5;
    r.gather_names = {"mixer", "down"};
    r.gather_seconds = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6};
    r.prefill_seconds = 0.25;
    Digest all;
    for (std::size_t s = 0; s < steps; ++s) {
        const auto hash = sha256(std::to_string(index) + " " + std::to_string(s));
        all.update(hash.data(), hash.size());
        r.step_sha256.append(hash.begin(), hash.end());
        r.output_ids.push_back(static_cast<std::int32_t>(index * 10 + static_cast<std::int64_t>(s)));
        r.margins.push_back(0.5f + static_cast<float>(s));
        r.step_seconds.push_back(0.001 * static_cast<double>(s + 1));
    }
    r.logits_sha256 = hex(all.value());
    return r;
}

}  // namespace ftmpi
