#include "to_result.hpp"

#include "../error.hpp"
#include "checksum.hpp"
#include "part_file.hpp"

namespace fs = std::filesystem;

namespace ftmpi {

void add_sentence(std::string& text, const std::string& sentence) {
    text += (text.empty() || sentence.empty() ? "" : "; ") + sentence;
}

fs::path with_suffix(const fs::path& path, const std::string& suffix) { return path.string() + suffix; }

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

void refuse_other_than_result(const fs::path& target) {
    if (is_result(target)) return;
    throw Error(
        Exit::usage,
        target.string() + (begins_as_hdf5(target)
                               ? ": is an HDF5 file, but no whole result of ftmpi, and is not replaced"
                               : ": is not an HDF5 file, so it is no result and is not replaced"),
        "move the file away, or choose another name for the result");
}

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

std::string journal_id_of(const fs::path& file) {
    try {
        return SchemaReader(file).run().journal_id;
    } catch (const Error&) { return {}; }
}

fs::path set_aside(const fs::path& path, std::error_code& error) {
    fs::path aside = with_suffix(path, ".damaged");
    for (int n = 2; fs::exists(fs::symlink_status(aside, error)); ++n)
        aside = with_suffix(path, ".damaged." + std::to_string(n));
    fs::rename(path, aside, error);
    return aside;
}

std::string drop_journal(Journal& journal) {
    const fs::path folder = folder_of(journal.path());
    if (const int error = flush_path(folder))
        return folder.string() + ": cannot be flushed to the disk: " + reason(error) + "; " +
               journal.path().string() +
               " was kept in case the machine goes down; the next run or `ftmpi recover` removes it";
    journal.remove();
    return {};
}

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

}  // namespace ftmpi
