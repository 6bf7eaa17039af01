// ResultFile: what is found at the start, what is kept, and the way from the journal to the file.
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "../digest.hpp"
#include "../error.hpp"
#include "checksum.hpp"
#include "part_file.hpp"
#include "to_result.hpp"

namespace fs = std::filesystem;

namespace ftmpi {

namespace {

/// Creates and removes an empty HDF5 file, so that trouble is met before the model is loaded.
void try_hdf5(const fs::path& path, bool may_replace_part) {
    const PartFile part(path, may_replace_part);
    hdf5::Object file = hdf5::create_file(path);
    if (!file.id.close()) hdf5::fail(file, "cannot be closed");
}

std::string new_journal_id(const RunRecord& run) {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    return hex(sha256(run.identity + std::to_string(now) + " " + std::to_string(::getpid()))).substr(0, 32);
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

}  // namespace ftmpi
