// Results: an append-only journal that survives a kill, and the HDF5 file made from it at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ftmpi {

/// Facts of the run, known before the first prompt. Values may be any bytes; what is not UTF-8 is also stored
/// as bytes. Keys and names are printable, without '/', and unique. Values of `ranks` become numbers when all
/// ranks' parse as such.
struct RunRecord {
    std::vector<std::pair<std::string, std::string>>
        attributes;  ///< root attributes: version, argv, numerics, model hashes, ...
    std::vector<std::vector<std::pair<std::string, std::string>>>
        ranks;              ///< one row a rank; same keys in each
    std::string plan_text;  ///< the table as printed
    std::vector<std::pair<std::string, std::vector<std::int64_t>>>
        plan_ranges;  ///< name -> [rank][begin, end] flattened, per matrix role
    /// All that must be equal for --resume (model hashes, prompts, options that change the text), as lines
    /// "label: value", so that a message can show the first line that differs.
    std::string identity;
    std::int64_t requests_asked =
        0;  ///< how many requests the run is to end with; 0: not known (from before it was written)
};

/// One finished prompt.
struct RequestRecord {
    std::int64_t index = 0;  ///< input order
    std::string id;          ///< may be empty
    std::string prompt;      ///< bytes as given; empty when ids were given
    std::vector<std::int32_t> prompt_ids, output_ids;
    std::string text;             ///< bytes of output_ids' text, stop token left out
    std::string finish_reason;    ///< "stop", "length", "error", "interrupted"
    std::string error;            ///< one line when finish_reason is "error"
    std::string step_sha256;      ///< 32 bytes a step, empty when hashing is off
    std::string logits_sha256;    ///< hex, over all steps; empty when hashing is off
    std::vector<float> logits;    ///< [steps][vocabulary], with --save-logits
    std::int64_t vocabulary = 0;  ///< real ids, width of logits
    std::vector<float> margins;   ///< per step: largest minus second largest logit
    double prefill_seconds = 0;   ///< from its first step asked for to its first token, others' rows included
    std::vector<double> step_seconds;  ///< per output token; the first is its share of prefill
    std::vector<std::string> gather_names;
    std::vector<double> gather_seconds;  ///< [rank][gather name]: time spent waiting during this request
    std::int64_t session = 0;  ///< set by ResultFile: 0 = made by the first run, n = by the n-th --resume
};

/// What can be counted from requests that are written.
struct RequestCounts {
    std::int64_t requests = 0, prompt_tokens = 0, output_tokens = 0;
    std::int64_t errors = 0;  ///< requests that ended with an error of their own
    void add(const RequestRecord& request);
};

/// Facts known at the end, beside the counts over all requests, which the file gets of itself.
struct SummaryRecord {
    std::vector<std::pair<std::string, double>>
        values;  ///< "decode_tokens_per_second", "load_seconds", ... with unit in the name's last word
    /// Measured one by one, each a matrix of `rows` rows: "step_seconds" as [rank][step]. Names as above,
    /// other than the values'.
    struct Series {
        std::string name;
        std::int64_t rows = 1;
        std::vector<double> values;
    };
    std::vector<Series> series = {};
};

class ResultFile {
public:
    enum class Existing { refuse, overwrite, resume };

    /// Checks that `path` can be written, before any work: its folder, an existing file (refused unless asked
    /// for), HDF5 locking, a journal of an earlier run. Existing::resume keeps the finished requests of a
    /// journal or a finished file with the same identity; a file that an interrupted --overwrite was to
    /// replace is still replaced. Throws Error, whose hints name --resume where the command `can_resume`.
    ResultFile(std::filesystem::path path, RunRecord run, Existing existing, bool can_resume = true);
    ~ResultFile();

    const std::filesystem::path& path() const;
    /// What the user should be told about this output at the start, one sentence; empty when there is
    /// nothing.
    const std::string& warning() const;
    /// Indices already finished by the run that is resumed.
    const std::vector<std::int64_t>& finished() const;
    /// How many of them ended with an error.
    std::int64_t failed_before() const;
    /// Existing::resume found a finished file of this run that holds every request asked for. It stays as it
    /// is, byte for byte: nothing can be appended, and finish() only removes the journal.
    bool nothing_left() const;
    /// Appends to PATH.journal: length, checksum, record; flushed to disk before it returns. On failure (a
    /// full disk, say) the journal is cut back to its last whole record and Error(failure) is thrown;
    /// appending may be tried again.
    void append(const RequestRecord& request);
    /// Writes PATH.part from the journal, renames it to PATH, removes the journal. On failure the journal
    /// stays; so it does, with a note on stderr, where the folder cannot be flushed. To be called once. A
    /// ResultFile destroyed without it keeps a journal that holds a finished request or names a file to
    /// replace, and removes an empty one. `interrupted`: the run was told to end.
    void finish(const SummaryRecord& summary, bool interrupted = false);

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// A result file (or journal) read back.
struct StoredRun {
    RunRecord run;
    std::vector<RequestRecord> requests;  ///< by index
    SummaryRecord summary;
    bool torn_tail = false;  ///< a journal that did not end with a whole record; the rest was left out
    bool complete = true;    ///< the run ended by itself with every request it was asked for
    bool recovered = false;  ///< a file made from a journal by recover_results
    bool changed = false;    ///< a file without its checksum: another program has written to it
    std::string note;  ///< one sentence when torn_tail: what was left out, where, after how many requests
};
/// How much of a request is read.
enum class Contents {
    compared,  ///< what tells whether two requests differ: ids, logits_sha256, finish_reason, error
    all_but_logits,
    all
};
/// Both throw Error(bad_input) that names the file and the object.
StoredRun read_results(const std::filesystem::path& h5, Contents contents = Contents::all);
RequestRecord read_request(const std::filesystem::path& h5, std::int64_t index, Contents contents);
StoredRun read_journal(const std::filesystem::path& journal);
/// Makes `h5` from `h5`.journal; returns the number of requests recovered. A finished file of another run
/// under that name is refused unless `overwrite`; one of this run that is unreadable is then set aside.
/// `note`, if given, gets one sentence when something was left out, else it is cleared.
std::int64_t recover_results(const std::filesystem::path& h5, bool overwrite = false,
                             std::string* note = nullptr);

/// The first difference of two runs, or empty when all requests of both agree in prompt ids, output ids and
/// logit hashes. Of requests read as Contents::compared, `what` cannot name the step where only logits
/// differ.
struct Difference {
    std::int64_t request = -1;  ///< index; -1: the files do not hold the same requests
    std::int64_t step = -1;     ///< -1: prompt ids differ
    std::string what;           ///< one sentence with the values and the top-2 margin there
};
/// Logit hashes are compared where both files have them; a file written without hashes still has its ids
/// compared.
std::optional<Difference> compare_results(const StoredRun& a, const StoredRun& b);

/// The first line that differs between two RunRecord::identity, as a sentence; empty when they are equal.
std::string identity_difference(const std::string& a, const std::string& b);
/// Every label whose value differs between the two, with the words "LABEL is A in the first, B in the
/// second".
std::vector<std::pair<std::string, std::string>> setting_differences(const std::string& a,
                                                                     const std::string& b);
/// Those words. Nothing stands for a value that is not there.
std::string setting_difference(const std::string& label, const std::optional<std::string>& a,
                               const std::optional<std::string>& b);

}  // namespace ftmpi
