// What a run that did not end left behind: its journal made a result, or read as it is.
#include <fcntl.h>

#include <algorithm>

#include "../error.hpp"
#include "checksum.hpp"
#include "to_result.hpp"

namespace fs = std::filesystem;

namespace ftmpi {

std::int64_t recover_results(const fs::path& h5, bool overwrite, std::string* note) {
    if (note) note->clear();
    const fs::path target = output_target(h5, "");
    const fs::path journal_path = with_suffix(target, ".journal");
    const bool file_exists = fs::exists(target);
    if (!fs::exists(journal_path))
        throw Error(Exit::bad_input, journal_path.string() + " does not exist: there is nothing to recover" +
                                         (file_exists ? "; " + h5.string() + " is there" : ""));
    Journal journal(journal_path, Journal::Open::existing_only, true);
    const JournalIndex found = index_journal(journal);
    if (found.first && file_exists && journal_id_of(target) == found.first->journal_id) {
        const auto requests = static_cast<std::int64_t>(SchemaReader(target).indices().size());
        std::string said = h5.string() + " was whole already; only its journal was left to remove";
        add_sentence(said, drop_journal(journal));
        if (note) *note = said;
        return requests;
    }
    if (found.indices.empty())
        throw Error(Exit::bad_input, journal_path.string() +
                                         " holds no finished request: there is nothing to recover" +
                                         (found.end.note.empty() ? "" : "; " + found.end.note));
    std::string said = found.end.note, replaceable = file_exists ? fingerprint(target) : "";
    std::optional<SchemaReader> file;
    try {
        if (file_exists && found.first->keeps_file) file.emplace(target);
        if (file && file->run().run.identity != found.last->run.identity) file.reset();
    } catch (const Error& error) {
        if (!overwrite)
            throw Error(error.code(), error.what(),
                        "move it away, then recover, or add --overwrite, which sets it aside");
        std::error_code failed;
        const fs::path aside = set_aside(target, failed);
        if (failed)
            throw Error(Exit::failure,
                        h5.string() + ": cannot be renamed to " + aside.string() + ": " + failed.message());
        add_sentence(said, std::string(error.what()) + "; it was kept as " + aside.string());
        file.reset();
        replaceable.clear();
    }
    if (!replaceable.empty() && !file) {
        if (!overwrite)
            throw Error(Exit::usage,
                        h5.string() + " exists and is the result of another run than the journal's",
                        "add --overwrite to replace it, or move it away");
        refuse_other_than_result(target);
    }
    const auto requests = write_result(journal, *found.last, target, file ? &*file : nullptr, {},
                                       RunEnd::recovered, replaceable, true);
    if (found.end.kind == JournalEnd::Kind::damaged) {
        std::error_code failed;
        const fs::path aside = set_aside(journal_path, failed);
        if (!failed) add_sentence(said, "the journal was kept as " + aside.string());
        flush_path(folder_of(target));
    } else {
        add_sentence(said, drop_journal(journal));
    }
    if (note) *note = said;
    return requests;
}

StoredRun read_journal(const fs::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0) throw Error(Exit::bad_input, path.string() + ": cannot be opened: " + reason(errno));
    StoredRun stored;
    stored.complete = false;
    std::set<std::int64_t> seen;
    bool has_run = false;
    const JournalEnd end = scan_journal(
        file.get(), path,
        [&](JournalRun&& run) {
            stored.run = std::move(run.run);
            has_run = true;
        },
        [&](RequestRecord&& request) {
            if (seen.insert(request.index).second) stored.requests.push_back(std::move(request));
        });
    if (!has_run && end.kind == JournalEnd::Kind::clean)
        throw Error(Exit::bad_input, path.string() + ": holds no run");
    std::sort(stored.requests.begin(), stored.requests.end(),
              [](const auto& a, const auto& b) { return a.index < b.index; });
    stored.torn_tail = end.kind != JournalEnd::Kind::clean;
    stored.note = end.note;
    return stored;
}

}  // namespace ftmpi
