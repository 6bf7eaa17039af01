// What a person sees: text on stdout as it is made, plan and figures on stderr. Rank 0 only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "../generate.hpp"
#include "engine.hpp"

namespace ftmpi {

/// What this session has made, whatever the file holds of earlier ones.
struct SessionFigures {
    std::int64_t requests = 0, prompt_tokens = 0, output_tokens = 0;
    double prefill_seconds = 0, decode_tokens_per_second = 0, step_median_seconds = 0;
};

class Screen {
public:
    Screen(const Options& options, bool shown, std::size_t requests)
        : options_(options), shown_(shown), requests_(requests) {}

    void plan(const Engine& engine) const;
    /// `nothing_left`: there is no work, and the file stays as it is.
    void resumed(std::size_t finished, std::int64_t failed, bool nothing_left) const;
    void loaded(const Engine& engine) const;
    /// On GPUs: what the device has given since the plan was made, beside the plan. After
    /// Engine::measure_allocated().
    void taken(const Engine& engine) const;
    void text(const Request& request, std::string_view text, bool last);
    void finished(const RequestRecord& record) const;
    void summary(const SessionFigures& figures, const std::filesystem::path& file, bool interrupted,
                 std::int64_t left) const;

private:
    const Options& options_;
    bool shown_;
    std::size_t requests_;
    std::int64_t open_request_ = -1;  ///< whose heading is on the screen
};

}  // namespace ftmpi
