#include "screen.hpp"

#include <cstdio>
#include <string>

#include "../../mpi/process/signals.hpp"
#include "../error.hpp"

namespace ftmpi {
namespace {

double mib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

/// A reader that stopped reading holds a print for ever: a signal that asks to stop must end it.
constexpr std::string_view kPrinting = "printing";

/// A prompt in one line for a heading: control characters shown as spaces, cut at a character boundary.
std::string heading(const std::string& prompt) {
    std::string s;
    for (unsigned char c : prompt) s += c < 0x20 || c == 0x7f ? ' ' : static_cast<char>(c);
    if (s.size() <= 60) return s;
    std::size_t n = 60;
    while (n > 0 && (static_cast<unsigned char>(s[n]) & 0xc0) == 0x80) --n;
    return s.substr(0, n) + "...";
}

}  // namespace

void Screen::plan(const Engine& engine) const {
    if (!shown_) return;
    const mpi::StopBound bound(kPrinting);
    for (const auto& w : engine.checkpoint().warnings()) std::fprintf(stderr, "note: %s\n", w.c_str());
    for (const auto& w : engine.config().warnings) std::fprintf(stderr, "note: %s\n", w.c_str());
    for (const auto& w : engine.inventory().notes()) std::fprintf(stderr, "note: %s\n", w.c_str());
    std::fputs(plan_table(engine.inventory().sizes(), engine.shard_plan()).c_str(), stderr);
    const Communicator& ranks = engine.communicator();
    std::fprintf(stderr, "transport: %s (%s)\n", ranks.transport().c_str(), ranks.reason().c_str());
}

void Screen::resumed(std::size_t finished, std::int64_t failed, bool nothing_left) const {
    if (!shown_ || !finished) return;
    const mpi::StopBound bound(kPrinting);
    std::fprintf(stderr, "resumed: %zu of %s %s finished already%s\n", finished,
                 counted(requests_, "request").c_str(), finished == 1 ? "is" : "are",
                 nothing_left ? "; nothing to do" : "");
    if (failed > 0)
        std::fprintf(stderr,
                     "note: %lld of these ended with an error of %s own, which counts as finished; "
                     "--overwrite runs all again\n",
                     static_cast<long long>(failed), failed == 1 ? "its" : "their");
}

void Screen::loaded(const Engine& engine) const {
    if (!shown_) return;
    const mpi::StopBound bound(kPrinting);
    std::uint64_t cut = 0, replicated = 0;
    for (const auto& r : engine.reads()) {
        cut += r.cut;
        replicated += r.replicated;
    }
    std::fprintf(
        stderr,
        "loaded in %.2f s: %.1f MiB of the checkpoint cut over the ranks, %.1f MiB read by every rank\n",
        engine.load_seconds(), mib(cut),
        mib(engine.reads().empty() ? 0 : replicated / engine.reads().size()));
    std::vector<RankBytes> held;
    for (const auto& h : engine.allocated()) held.push_back(h.bytes);
    std::fputs(allocated_table(engine.shard_plan(), held).c_str(), stderr);
}

void Screen::taken(const Engine& engine) const {
    if (!shown_) return;
    const mpi::StopBound bound(kPrinting);
    for (std::size_t r = 0; r < engine.allocated().size(); ++r) {
        const DeviceInfo& before = engine.ranks()[r].device;
        if (before.backend != "cuda") continue;
        std::fprintf(stderr, "memory: rank %zu planned %.1f MiB, its GPU has given %.1f MiB\n", r,
                     mib(engine.shard_plan().bytes[r].total()),
                     mib(before.free_bytes) - mib(engine.allocated()[r].free_bytes));
    }
}

void Screen::text(const Request& request, std::string_view text, bool last) {
    if (!shown_ || options_.json) return;
    const mpi::StopBound bound(kPrinting);
    if (requests_ > 1 && open_request_ != request.index) {
        std::fprintf(stdout, "--- %lld%s%s: %s\n", static_cast<long long>(request.index),
                     request.id.empty() ? "" : " ", printable(request.id).c_str(),
                     heading(request.prompt).c_str());
        open_request_ = request.index;
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    if (last) std::fputc('\n', stdout);
    std::fflush(stdout);
}

void Screen::finished(const RequestRecord& r) const {
    if (!shown_) return;
    const mpi::StopBound bound(kPrinting);
    if (!r.error.empty())
        std::fprintf(stderr, "ftmpi: request %lld failed: %s\n", static_cast<long long>(r.index),
                     printable(r.error).c_str());
    if (!options_.json) return;
    std::string ids;
    for (auto id : r.output_ids) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    std::printf(
        "{\"index\":%lld,\"id\":%s,\"text\":%s,\"output_ids\":[%s],\"finish_reason\":%s,\"error\":%s,"
        "\"logits_sha256\":%s,"
        "\"prompt_tokens\":%zu,\"prefill_seconds\":%.6f}\n",
        static_cast<long long>(r.index), json_string(r.id).c_str(), json_string(r.text).c_str(), ids.c_str(),
        json_string(r.finish_reason).c_str(), r.error.empty() ? "null" : json_string(r.error).c_str(),
        r.logits_sha256.empty() ? "null" : json_string(r.logits_sha256).c_str(), r.prompt_ids.size(),
        r.prefill_seconds);
    std::fflush(stdout);
}

void Screen::summary(const SessionFigures& f, const std::filesystem::path& file, bool interrupted,
                     std::int64_t left) const {
    if (!shown_) return;
    const mpi::StopBound bound(kPrinting);
    if (f.output_tokens > 0)
        std::fprintf(stderr,
                     "%s made, decode %.1f tokens/s (a step %.2f ms in the median; hashing %s), prefill %.1f "
                     "tokens/s\n",
                     counted(static_cast<std::uint64_t>(f.output_tokens), "token").c_str(),
                     f.decode_tokens_per_second, f.step_median_seconds * 1e3,
                     options_.hash.value_or(true) ? "on" : "off",
                     f.prefill_seconds > 0 ? static_cast<double>(f.prompt_tokens) / f.prefill_seconds : 0);
    if (interrupted)
        std::fprintf(stderr,
                     "interrupted: finished requests are saved, %lld %s left; run again with --resume\n",
                     static_cast<long long>(left), left == 1 ? "is" : "are");
    std::fprintf(stderr, "results: %s\n", printable(file.string()).c_str());
}

}  // namespace ftmpi
