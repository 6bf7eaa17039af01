// The command line and job files: one row an option in options/table.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "format.hpp"

namespace ftmpi {

enum class Command { run, bench, plan, verify, inspect, recover, help, version };
enum class BackendChoice { automatic, cpu, cuda };
enum class TransportChoice { automatic, peer, pinned, nccl, mpi };
enum class Numerics { exact, fast };
enum class Policy { memory, speed, even, shares };

struct Hardware {  ///< one `24GiB@1008` of --hardware
    std::uint64_t bytes = 0;
    double gb_per_s = 0;
};

struct Options {
    Command command = Command::run;
    std::vector<std::string> files;  ///< positional arguments of verify, inspect, recover

    std::filesystem::path model;
    std::vector<std::string> prompts;    ///< --prompt, taken literally
    std::filesystem::path prompts_file;  ///< --prompts: text lines, or JSONL
    bool chat = false, thinking = true;
    std::int64_t max_tokens = 64;
    bool max_tokens_asked = false;  ///< given, not the default
    bool ignore_eos = false;
    bool save_logits = false;
    std::filesystem::path output;       ///< --output FILE.h5; empty: chosen by `run` and printed
    double temperature = 0, top_p = 1;  ///< temperature 0 is greedy
    bool temperature_asked = false;     ///< given, not the default
    std::int64_t top_k = 0;             ///< 0 = all
    std::uint64_t seed = 0;
    int batch = 1;

    // bench
    std::vector<std::int64_t> prompt_lengths = {128, 1024}, decode_lengths = {64}, batches = {1};
    int repeats = 3, warmup = 1;
    bool kernels = false;  ///< which kernel serves each operator

    BackendChoice backend = BackendChoice::automatic;
    TransportChoice transport = TransportChoice::automatic;
    Numerics numerics = Numerics::exact;
    Policy policy = Policy::speed;
    std::vector<double> shares;               ///< --shares, one a rank
    std::vector<std::string> gpus;            ///< --gpus, UUIDs or prefixes, one a rank
    std::vector<std::uint64_t> memory_limit;  ///< bytes, one for all ranks or one a rank
    std::string
        bare_size;  ///< a size of --memory-limit or --hardware below 1 MiB that has no unit, for a hint
    std::vector<double> bandwidth;   ///< GB/s, likewise
    std::vector<Hardware> hardware;  ///< `plan` only
    std::int64_t context = 0;        ///< 0 = chosen from memory
    KvType kv = KvType::bf16;
    std::optional<bool> embedding_on_host;  ///< left out: on GPUs that have room for it, else in host memory
    std::int64_t prefill_chunk =
        0;            ///< rows of one prefill step, 0 = kPrefillRowsCpu or kPrefillRowsGpu (plan.hpp)
    int threads = 0;  ///< CPU threads a rank, 0 = those the process may use, over the ranks that share them
    std::optional<bool> hash;  ///< on in run, off in bench
    bool resume = false, overwrite = false;
    double timeout = 300;  ///< seconds a phase or a collective may take
    bool json = false;
    std::filesystem::path job;

    std::vector<std::string> argv;  ///< as given, for the result file
    std::string digest_text;        ///< every value that must be equal on all ranks, one a line
};

/// Parses argv (and the job file it names; the command line wins). Throws Error(Exit::usage) naming option
/// and value.
Options parse_options(int argc, const char* const* argv);
/// The effective options of a run or a bench as a job file that repeats it anywhere: paths are absolute, what
/// was left out for the program to choose stays left out, and so do --output, --overwrite, --resume and
/// --job, which say nothing of what is computed.
std::string job_file_text(const Options& options);
/// The option table, as `--help` prints it.
std::string help_text();

/// One prompt of a run, before tokenizing.
struct PromptText {
    std::string id;
    std::string text;  ///< empty when ids are given
    std::vector<std::int32_t> ids;
    std::optional<std::int64_t> max_tokens;
};

/// --prompt and --prompts in input order. Text files: one prompt a line, the line end (LF or CRLF) is not
/// part of it. JSONL (first non-blank byte is '{'): `prompt` or `ids`, optional `id`, `max_tokens`. Empty
/// prompts, duplicate ids and invalid UTF-8 are Error(bad_input) with file and line, and so is a file that is
/// JSON by its name and not JSONL.
std::vector<PromptText> read_prompts(const Options& options);

}  // namespace ftmpi
