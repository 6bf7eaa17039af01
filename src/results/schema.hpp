// The layout of the result file, written and read in one place each; README.md beside it holds the table.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "../results.hpp"
#include "hdf5.hpp"
#include "wire.hpp"

namespace ftmpi {

/// Sessions are counted up by one with each --resume. A number outside comes from no run, and would leave
/// none for the next.
constexpr bool is_session(std::int64_t number) { return number >= 0 && number <= 1'000'000'000; }

/// Throws Error(failure) for keys that cannot name an attribute or a dataset, before any work depends on
/// them.
void check_names(const RunRecord& run);
/// The same for arrays whose sizes do not fit each other.
void check_shapes(const RequestRecord& request);

/// How the run came to its end that the file is of; `recover` makes it after one that came to none.
enum class RunEnd { by_itself, interrupted, recovered };

/// Writes one file, request by request. Every failure is Error(failure) and leaves a file that must not be
/// used.
class SchemaWriter {
public:
    SchemaWriter(const std::filesystem::path& path, const JournalRun& run);
    void add(const RequestRecord& request);
    void close(const SummaryRecord& summary, RunEnd end);

private:
    hdf5::Object root_, requests_;
    std::int64_t requests_asked_;
    RequestCounts counts_;
};

constexpr std::int64_t schema_version = 2;
/// The names that the schema itself uses at the root.
constexpr std::array<std::string_view, 8> own_attributes = {"schema_version", "session",     "requests_asked",
                                                            "complete",       "recovered",   "identity",
                                                            "journal_id",     "hdf5_library"};

/// True for an HDF5 file with the marks of a result of ftmpi of any version, also of one that another program
/// has written to. Throws Error(bad_input) when it cannot be opened.
bool is_result(const std::filesystem::path& path);

/// Reads one file, request by request. Every failure is Error(bad_input).
class SchemaReader {
public:
    /// Whether a file may be read that another program has written to.
    enum class Checksum { required, may_be_missing };
    explicit SchemaReader(const std::filesystem::path& path, Checksum checksum = Checksum::required);
    bool has_checksum() const { return has_checksum_; }
    JournalRun run() const;
    bool complete() const;
    bool recovered() const;
    const std::vector<std::int64_t>& indices() const { return indices_; }  ///< rising
    RequestRecord request(std::int64_t index, Contents contents) const;
    SummaryRecord summary() const;

private:
    hdf5::Object root_, requests_;
    bool has_checksum_ = false;
    std::vector<std::int64_t> indices_;
};

}  // namespace ftmpi
