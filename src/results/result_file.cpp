// ResultFile: what is found at the start, what is kept, and the way from the journal to the file.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <set>

#include "../digest.hpp"
#include "../error.hpp"
#include "checksum.hpp"
#include "journal.hpp"
#include "part_file.hpp"
#include "schema.hpp"

namespace fs = std::filesystem;

namespace ftmpi {

namespace {

fs::path with_suffix(const fs::path& path, const std::string& suffix) { return path.string() + suffix; }

void add_sentence(std::string& text, const std::string& sentence) {
    text += (text.empty() || sentence.empty() ? "" : "; ") + sentence;
}

/// The file that will be written: the end of a symbolic link, in a folder that exists. Messages begin with
/// `option`.
fs::path output_target(const fs::path& path, const std::string& option) {
    const auto refuse = [&](const std::string& what) {
        throw Error(Exit::usage, option + path.string() + ": " + what);
    };
    if (path.empty() || path.filename().empty() || path.filename() == "." || path.filename() == "..")
        refuse("names no file");
    std::error_code error;
    const bool link = fs::symlink_status(path, error).type() == fs::file_type::symlink;
    const fs::file_status status = fs::status(path, error);
    if (link && status.type() == fs::file_type::not_found)
        refuse("is a symbolic link to something that does not exist");
    if (status.type() == fs::file_type::directory) refuse("is a directory; name a file in it");
    if (status.type() == fs::file_type::none) refuse(error.message());
    if (status.type() != fs::file_type::not_found && status.type() != fs::file_type::regular)
        refuse("is not a regular file");
    if (!fs::is_directory(folder_of(path), error))
        refuse("its folder " + folder_of(path).string() +
               (fs::exists(folder_of(path), error) ? " is not a folder" : " does not exist"));
    return link ? fs::canonical(path) : path;
}

/// Creates and removes an empty HDF5 file, so that trouble is met before the model is loaded.
void try_hdf5(const fs::path& path, bool may_replace_part) {
    const PartFile part(path, may_replace_part);
    hdf5::Object file = hdf5::create_file(path);
    if (!file.id.close()) hdf5::fail(file, "cannot be closed");
}

/// Whatever was asked for, only a result is replaced: a name given by mistake may be that of a checkpoint, a
/// text, or data of another program.
void refuse_other_than_result(const fs::path& target) {
    if (is_result(target)) return;
    throw Error(
        Exit::usage,
        target.string() + (begins_as_hdf5(target)
                               ? ": is an HDF5 file, but no whole result of ftmpi, and is not replaced"
                               : ": is not an HDF5 file, so it is no result and is not replaced"),
        "move the file away, or choose another name for the result");
}

/// The whole records of a journal without their contents.
struct JournalIndex {
    std::optional<JournalRun> first, last;
    std::set<std::int64_t> indices;
    std::int64_t failed = 0;  ///< of these, with an error of their own
    JournalEnd end;
};

JournalIndex index_journal(Journal& journal) {
    JournalIndex found;
    found.end = journal.scan(
        [&](JournalRun&& run) {
            if (!found.first) found.first = run;
            found.last = std::move(run);
        },
        [&](RequestRecord&& request) {
            if (found.indices.insert(request.index).second && !request.error.empty()) ++found.failed;
        });
    return found;
}

/// A result file's journal id, or nothing when it cannot be read as one.
std::string journal_id_of(const fs::path& file) {
    try {
        return SchemaReader(file).run().journal_id;
    } catch (const Error&) { return {}; }
}

std::string new_journal_id(const RunRecord& run) {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    return hex(sha256(run.identity + std::to_string(now) + " " + std::to_string(::getpid()))).substr(0, 32);
}

/// Renames a damaged file to the first free name of PATH.damaged, PATH.damaged.2, ...; those of earlier times
/// stay as they are.
fs::path set_aside(const fs::path& path, std::error_code& error) {
    fs::path aside = with_suffix(path, ".damaged");
    for (int n = 2; fs::exists(fs::symlink_status(aside, error)); ++n)
        aside = with_suffix(path, ".damaged." + std::to_string(n));
    fs::rename(path, aside, error);
    return aside;
}

/// Removes the journal of a result that was made, if the result's name is on the disk: a loss of power could
/// otherwise leave neither. Returns a sentence when the journal was kept.
std::string drop_journal(Journal& journal) {
    const fs::path folder = folder_of(journal.path());
    if (const int error = flush_path(folder))
        return folder.string() + ": cannot be flushed to the disk: " + reason(error) + "; " +
               journal.path().string() +
               " was kept in case the machine goes down; the next run or `ftmpi recover` removes it";
    journal.remove();
    return {};
}

/// Writes TARGET.part from the journal, and from `other` what the journal lacks; renames it to TARGET, where
/// nothing may be but the file with the fingerprint `replaceable`. Returns the number of requests. On failure
/// there is no .part of this run, and TARGET is as it was.
std::int64_t write_result(Journal& journal, const JournalRun& run, const fs::path& target,
                          const SchemaReader* other, const SummaryRecord& summary, RunEnd end,
                          const std::string& replaceable, bool may_replace_part) {
    try {
        PartFile part(with_suffix(target, ".part"), may_replace_part);
        SchemaWriter writer(part.path(), run);
        std::set<std::int64_t> written;
        const auto add = [&](const RequestRecord& request) {
            if (written.insert(request.index).second) writer.add(request);
        };
        journal.scan([](JournalRun&&) {}, [&](RequestRecord&& request) { add(request); });
        if (other)
            for (const auto index : other->indices())
                if (!written.contains(index)) add(other->request(index, Contents::all));
        writer.close(summary, end);
        append_checksum(part.path());
        if (const int error = flush_path(part.path()))
            throw Error(Exit::failure,
                        part.path().string() + ": cannot be flushed to the disk: " + reason(error));
        std::error_code error;
        if (fs::exists(target, error)) {
            if (!replaceable.empty()) refuse_other_than_result(target);
            if (fingerprint(target) != replaceable)
                throw Error(Exit::failure,
                            target.string() +
                                ": was put there by another program during the run and is not replaced");
        }
        part.rename_to(target);
        return static_cast<std::int64_t>(written.size());
    } catch (const Error& error) {
        throw Error(error.code() == Exit::bad_input ? Exit::failure : error.code(), error.what(),
                    "the finished requests are safe in " + journal.path().string() +
                        "; when this is put right, `ftmpi recover " + target.string() +
                        "` makes the result of them" + (error.hint().empty() ? "" : "; " + error.hint()));
    }
}

}  // namespace

struct ResultFile::State {
    State(fs::path path, RunRecord record, Existing existing, bool can_resume);
    ~State() {
        // A --resume after --overwrite must know that the old file is not to be gone on from.
        if (!done && indices.empty() && run.replaces.empty()) journal.remove();
        if (!done && nothing_left && journal.was_empty()) journal.remove();
    }
    void need_same(const fs::path& from, const std::string& identity) const;
    void need_asked_for(const fs::path& from, std::int64_t last) const;
    void keep_earlier(JournalIndex& found);
    bool keep_as_it_is(const SchemaReader& file);

    fs::path given, target;
    Journal journal;
    JournalRun run;
    std::set<std::int64_t> indices;
    std::vector<std::int64_t> finished;
    std::int64_t failed_before = 0;    ///< of these
    std::string warning, replaceable;  ///< the latter: fingerprint of the file that was there at the start
    bool may_replace_part = false, done = false;
    bool nothing_left =
        false;  ///< the finished file holds all that was asked for and stays as it is; no journal is begun
};

ResultFile::State::State(fs::path path, RunRecord record, Existing existing, bool can_resume)
    : given(std::move(path)), target([&] {
          check_names(record);
          auto resolved = output_target(given, "--output ");
          if (existing == Existing::refuse && fs::exists(resolved))
              throw Error(Exit::usage, given.string() + " exists and is not replaced unasked",
                          std::string("add --overwrite to replace it") +
                              (can_resume ? " or --resume to go on from it" : "") +
                              ", or choose another --output");
          if (existing == Existing::overwrite && fs::exists(resolved)) refuse_other_than_result(resolved);
          return resolved;
      }()),
      journal(with_suffix(target, ".journal"), Journal::Open::existing_or_new, existing != Existing::refuse) {
    warning = journal.lock_warning();
    const bool was_empty = journal.was_empty();
    try {
        const bool file_exists = fs::exists(target);
        JournalIndex found = index_journal(journal);
        // A run that was killed between the rename and the removal of its journal has lost nothing.
        if (found.first && file_exists && journal_id_of(target) == found.first->journal_id) found = {};
        const bool worth_keeping = !found.indices.empty() || found.end.kind == JournalEnd::Kind::damaged;
        if (existing == Existing::refuse && worth_keeping)
            throw Error(Exit::usage,
                        journal.path().string() + " holds " +
                            counted(found.indices.size(), "finished request") + " of a run that did not end",
                        "`ftmpi recover " + given.string() + "` makes their result, " +
                            (can_resume ? "--resume goes on from them, " : "") + "--overwrite drops them");
        may_replace_part = existing != Existing::refuse;
        try_hdf5(with_suffix(target, ".part"), may_replace_part);
        run.run = std::move(record);
        run.journal_id = new_journal_id(run.run);
        if (file_exists && existing != Existing::refuse) replaceable = fingerprint(target);
        if (existing == Existing::resume) {
            keep_earlier(found);
        } else {
            run.replaces = replaceable;
            journal.start(run);
        }
    } catch (...) {
        if (was_empty) journal.remove();
        throw;
    }
    finished.assign(indices.begin(), indices.end());
}

void ResultFile::State::need_same(const fs::path& from, const std::string& identity) const {
    const std::string difference = identity_difference(identity, run.run.identity);
    if (!difference.empty())
        throw Error(Exit::bad_input, "--resume: " + from.string() + " was made by another run: " + difference,
                    "give the same model, prompts and options, or choose another --output");
}

/// Equal runs ask for equal requests: what is beyond them was written by something else, and is no place in
/// this run.
void ResultFile::State::need_asked_for(const fs::path& from, std::int64_t last) const {
    if (run.run.requests_asked > 0 && last >= run.run.requests_asked)
        throw Error(Exit::bad_input,
                    "--resume: " + from.string() + " holds request " + std::to_string(last) +
                        ", counted from 0, but this run asks for " +
                        counted(static_cast<std::uint64_t>(run.run.requests_asked), "request"),
                    "choose another --output");
}

void ResultFile::State::keep_earlier(JournalIndex& found) {
    const bool from_journal = !found.indices.empty(), file_exists = !replaceable.empty();
    const bool keeps_file = found.first && found.first->keeps_file;
    // What --overwrite was given for is replaced, also when the run was killed before it finished a request.
    const bool replaces = file_exists && found.first && found.first->replaces == replaceable;
    std::optional<SchemaReader> file;
    if (file_exists && !replaces && (keeps_file || !from_journal)) file.emplace(target);
    const auto each_copy = [&](const auto& visit) {
        for (const auto index : file->indices())
            if (!found.indices.contains(index)) visit(file->request(index, Contents::all));
    };
    if (found.end.kind == JournalEnd::Kind::damaged) {
        // Copies from the file are flushed together, so a loss of power may leave holes among them. Whatever
        // follows the copies was appended after that flush: what is no longer than the copies that are
        // missing holds nothing else.
        std::uint64_t copies = 0;
        if (keeps_file && file)
            each_copy(
                [&](const RequestRecord& r) { copies += record_head_bytes + encode(r, r.session).size(); });
        if (found.end.left_out_bytes > copies)
            throw Error(Exit::bad_input, found.end.note,
                        "`ftmpi recover " + given.string() +
                            "` keeps the whole records and sets the journal aside; then --resume again");
        found.end.note += ", and are taken from " + given.string() + " again";
    }
    if (from_journal && file_exists && !file && !replaces) {
        refuse_other_than_result(target);
        throw Error(Exit::usage,
                    given.string() + " exists and is the result of another run than the journal's",
                    "move it away, then --resume again");
    }
    if (from_journal || replaces) need_same(journal.path(), found.last->run.identity);
    if (from_journal) need_asked_for(journal.path(), *found.indices.rbegin());
    run.session = from_journal ? found.last->session + 1 : 0;
    if (file) {
        const JournalRun before = file->run();
        need_same(target, before.run.identity);
        if (!file->indices().empty()) need_asked_for(target, file->indices().back());
        if (!from_journal && keep_as_it_is(*file)) return;
        if (!file->indices().empty()) run.session = std::max(run.session, before.session + 1);
    }
    if (!is_session(run.session))
        throw Error(Exit::bad_input, "--resume: " + given.string() + " was resumed too often");
    if (replaces) add_sentence(warning, given.string() + " will be replaced, as --overwrite asked before");
    if (from_journal) {
        add_sentence(warning, found.end.note);
        run.journal_id = found.first->journal_id;
        run.keeps_file = keeps_file;
        run.replaces = found.first->replaces;
        journal.append(encode(run));
    } else {
        run.keeps_file = file.has_value();
        if (replaces) run.replaces = replaceable;
        journal.start(run);
    }
    failed_before = found.failed;
    if (file) {
        each_copy([&](const RequestRecord& request) {
            journal.append_unflushed(encode(request, request.session));
            indices.insert(request.index);
            if (!request.error.empty()) ++failed_before;
        });
        journal.flush();
    }
    indices.merge(found.indices);
}

/// A file that a run ended by itself, and that lacks none of the requests asked for now, has nothing to gain
/// from being written anew.
bool ResultFile::State::keep_as_it_is(const SchemaReader& file) {
    const auto& there = file.indices();
    const bool all_there = !there.empty() &&
                           static_cast<std::int64_t>(there.size()) == run.run.requests_asked &&
                           there.back() == run.run.requests_asked - 1;
    if (!all_there || !file.complete()) return false;
    // A file that stays is read like one that is gone on from, and refused for the same faults.
    for (const auto index : there)
        failed_before += !file.request(index, Contents::all_but_logits).error.empty();
    file.summary();
    indices.insert(there.begin(), there.end());
    return nothing_left = true;
}

ResultFile::ResultFile(fs::path path, RunRecord run, Existing existing, bool can_resume)
    : state_(std::make_unique<State>(std::move(path), std::move(run), existing, can_resume)) {}
ResultFile::~ResultFile() = default;

const fs::path& ResultFile::path() const { return state_->given; }
const std::string& ResultFile::warning() const { return state_->warning; }
const std::vector<std::int64_t>& ResultFile::finished() const { return state_->finished; }
std::int64_t ResultFile::failed_before() const { return state_->failed_before; }
bool ResultFile::nothing_left() const { return state_->nothing_left; }

void ResultFile::append(const RequestRecord& request) {
    check_shapes(request);
    if (state_->done || state_->nothing_left)
        throw Error(Exit::failure, "results: a request was appended after the end");
    if (state_->indices.contains(request.index))
        throw Error(Exit::failure,
                    "results: request " + std::to_string(request.index) + " was appended twice");
    state_->journal.append(encode(request, state_->run.session));
    state_->indices.insert(request.index);
}

void ResultFile::finish(const SummaryRecord& summary, bool interrupted) {
    State& s = *state_;
    if (s.done) throw Error(Exit::failure, "results: finished twice");
    const auto end = [&] {
        s.done = true;
        if (const std::string note = drop_journal(s.journal); !note.empty())
            std::fprintf(stderr, "note: %s\n", printable(note).c_str());
    };
    if (s.nothing_left) return end();
    if (const auto found = index_journal(s.journal); found.indices != s.indices)
        throw Error(Exit::failure,
                    s.journal.path().string() + ": holds " + std::to_string(found.indices.size()) + " of " +
                        counted(s.indices.size(), "finished request") +
                        ": it was changed by another program. " + found.end.note,
                    "`ftmpi recover " + s.given.string() + "` makes the result of what is left");
    write_result(s.journal, s.run, s.target, nullptr, summary,
                 interrupted ? RunEnd::interrupted : RunEnd::by_itself, s.replaceable, s.may_replace_part);
    end();
}

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
