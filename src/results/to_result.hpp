// The steps from a journal to a result file that a run's end and its recovery share. Internal to the module.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "journal.hpp"
#include "schema.hpp"

namespace ftmpi {

/// The whole records of a journal without their contents.
struct JournalIndex {
    std::optional<JournalRun> first, last;
    std::set<std::int64_t> indices;
    std::int64_t failed = 0;  ///< of these, with an error of their own
    JournalEnd end;
};

/// To text, behind a semicolon where there is some.
void add_sentence(std::string& text, const std::string& sentence);
std::filesystem::path with_suffix(const std::filesystem::path& path, const std::string& suffix);
/// The file that will be written: the end of a symbolic link, in a folder that exists. Messages begin with
/// `option`.
std::filesystem::path output_target(const std::filesystem::path& path, const std::string& option);
/// Whatever was asked for, only a result is replaced: a name given by mistake may be that of a checkpoint, a
/// text, or data of another program.
void refuse_other_than_result(const std::filesystem::path& target);
JournalIndex index_journal(Journal& journal);
/// A result file's journal id, or nothing when it cannot be read as one.
std::string journal_id_of(const std::filesystem::path& file);
/// Renames a damaged file to the first free name of PATH.damaged, PATH.damaged.2, ...; those of earlier times
/// stay as they are.
std::filesystem::path set_aside(const std::filesystem::path& path, std::error_code& error);
/// Removes the journal of a result that was made, if the result's name is on the disk: a loss of power could
/// otherwise leave neither. Returns a sentence when the journal was kept.
std::string drop_journal(Journal& journal);
/// Writes TARGET.part from the journal, and from `other` what the journal lacks; renames it to TARGET, where
/// nothing may be but the file with the fingerprint `replaceable`. Returns the number of requests. On failure
/// there is no .part of this run, and TARGET is as it was.
std::int64_t write_result(Journal& journal, const JournalRun& run, const std::filesystem::path& target,
                          const SchemaReader* other, const SummaryRecord& summary, RunEnd end,
                          const std::string& replaceable, bool may_replace_part);

}  // namespace ftmpi
