// Results: an append-only journal that survives a kill, and the HDF5 file made from it at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ftmpi {

/// Facts of the run, known before the first prompt. All strings are UTF-8 or are stored as bytes.
struct RunRecord {
    std::vector<std::pair<std::string, std::string>> attributes;  ///< root attributes: version, argv, numerics, model hashes, ...
    std::vector<std::vector<std::pair<std::string, std::string>>> ranks;  ///< one row a rank; same keys in each
    std::string plan_text;                                        ///< the table as printed
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> plan_ranges;  ///< name -> [rank][begin, end] flattened, per matrix role
    std::string identity;  ///< hash of all that must be equal for --resume (model, options that change the text)
};

/// One finished prompt.
struct RequestRecord {
    std::int64_t index = 0;               ///< input order
    std::string id;                       ///< may be empty
    std::string prompt;                   ///< bytes as given; empty when ids were given
    std::vector<std::int32_t> prompt_ids, output_ids;
    std::string text;                     ///< bytes of output_ids' text, stop token left out
    std::string finish_reason;            ///< "stop", "length", "error", "interrupted"
    std::string error;                    ///< one line when finish_reason is "error"
    std::string step_sha256;              ///< 32 bytes a step, empty when hashing is off
    std::string logits_sha256;            ///< hex, over all steps; empty when hashing is off
    std::vector<float> logits;            ///< [steps][vocabulary], with --save-logits
    std::int64_t vocabulary = 0;          ///< real ids, width of logits
    std::vector<float> margins;           ///< per step: largest minus second largest logit
    double prefill_seconds = 0;
    std::vector<double> step_seconds;     ///< per output token; the first is its share of prefill
    std::vector<std::string> gather_names;
    std::vector<double> gather_seconds;   ///< [rank][gather name]: time spent waiting during this request
};

/// Facts known at the end.
struct SummaryRecord {
    std::vector<std::pair<std::string, double>> values;  ///< "decode_tokens_per_second", "load_seconds", ... with unit in the name's last word
};

class ResultFile {
public:
    enum class Existing { refuse, overwrite, resume };

    /// Checks that `path` can be written, before any work: its folder, an existing file (refused unless asked for), HDF5
    /// locking, a journal of an earlier run. With Existing::resume the finished requests of a journal or a finished file
    /// with the same identity are kept. Throws Error.
    ResultFile(std::filesystem::path path, RunRecord run, Existing existing);
    ~ResultFile();

    const std::filesystem::path& path() const;
    /// Indices already finished by the run that is resumed.
    const std::vector<std::int64_t>& finished() const;
    /// Appends to PATH.journal: length, checksum, record; flushed to disk before it returns.
    void append(const RequestRecord& request);
    /// Writes PATH.part from the journal, renames it to PATH, removes the journal. On failure the journal stays.
    void finish(const SummaryRecord& summary);

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// A result file (or journal) read back.
struct StoredRun {
    RunRecord run;
    std::vector<RequestRecord> requests;  ///< by index
    SummaryRecord summary;
    bool torn_tail = false;               ///< a journal whose last record was incomplete and was left out
};
StoredRun read_results(const std::filesystem::path& h5);
StoredRun read_journal(const std::filesystem::path& journal);
/// Makes `h5` from `h5`.journal; returns the number of requests recovered.
std::int64_t recover_results(const std::filesystem::path& h5);

/// The first difference of two runs, or empty when all requests of both agree in prompt ids, output ids and logit hashes.
struct Difference {
    std::int64_t request = -1;   ///< -1: the files do not hold the same requests
    std::int64_t step = -1;      ///< -1: prompt ids differ
    std::string what;            ///< one sentence with the values and the top-2 margin there
};
std::optional<Difference> compare_results(const StoredRun& a, const StoredRun& b);

}  // namespace ftmpi
