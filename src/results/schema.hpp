// The layout of the result file, written and read in one place each; schema_write.cpp opens with the table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
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

/// True for an HDF5 file with the marks of a result of ftmpi, whole or not sealed (copied by another tool),
/// of any version. Throws Error(bad_input) when it cannot be opened, or not be looked at without harm.
bool is_result(const std::filesystem::path& path);

/// Reads one file, request by request. Every failure is Error(bad_input). All of it was read by a child
/// process before.
class SchemaReader {
public:
    explicit SchemaReader(const std::filesystem::path& path);
    JournalRun run() const;
    bool complete() const;
    bool recovered() const;
    const std::vector<std::int64_t>& indices() const { return indices_; }  ///< rising
    RequestRecord request(std::int64_t index, bool with_logits) const;
    SummaryRecord summary() const;

private:
    SchemaReader() = default;
    void open(const std::filesystem::path& path);

    hdf5::Object root_, requests_;
    std::vector<std::int64_t> indices_;
};

}  // namespace ftmpi
