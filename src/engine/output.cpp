#include "output.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "../../mpi/process/report.hpp"
#include "../error.hpp"
#include "record.hpp"

namespace fs = std::filesystem;

namespace ftmpi {
namespace {

/// The folder that `path` lies in once links are followed, its own included.
fs::path real_folder(const fs::path& path) {
    std::error_code error;
    const bool link = fs::symlink_status(path, error).type() == fs::file_type::symlink;
    const fs::path file = link ? fs::weakly_canonical(path, error) : path;
    const fs::path folder = file.parent_path();
    return fs::weakly_canonical(folder.empty() ? "." : folder, error);
}

bool lies_in(const fs::path& folder, const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), folder.begin(), folder.end()).first == outer.end();
}

}  // namespace

std::string utc(const char* format) {
    const std::time_t t = std::time(nullptr);
    std::tm tm{};
    gmtime_r(&t, &tm);
    char text[64];
    std::strftime(text, sizeof text, format, &tm);
    return text;
}

fs::path output_of(const Options& options, const char* prefix) {
    const fs::path output = options.output.empty()
                                ? fs::path(prefix + utc("-%Y%m%d-%H%M%S-") + std::to_string(getpid()) + ".h5")
                                : options.output;
    std::error_code error;
    const fs::path model = fs::canonical(options.model, error);
    if (!error && lies_in(real_folder(output), model))
        throw Error(Exit::usage,
                    (options.output.empty() ? "the result file " : "--output ") + output.string() +
                        ": lies in the folder of the checkpoint, where nothing is written",
                    "choose an --output elsewhere");
    return output;
}

void Output::open(const char* prefix, const std::function<RunRecord()>& record, bool can_resume) {
    const Options& options = engine_.options();
    engine_.session().agree("results", [&] {
        if (engine_.session().rank() != 0) return;
        file_ = std::make_unique<ResultFile>(output_of(options, prefix), record(),
                                             can_resume && options.resume ? ResultFile::Existing::resume
                                             : options.overwrite          ? ResultFile::Existing::overwrite
                                                                          : ResultFile::Existing::refuse,
                                             can_resume);
        if (!file_->warning().empty())
            std::fprintf(stderr, "note: %s\n", printable(file_->warning()).c_str());
    });
}

void Output::guard(const std::function<void()>& work) {
    try {
        work();
        engine_.measure_allocated();
    } catch (...) {
        const Error error = mpi::error_of_current_exception();
        file_.reset();  // a journal without a finished request goes; any other stays
        engine_.session().abort(error);
    }
}

void Output::write(const std::function<SummaryRecord()>& summary, bool interrupted,
                   const std::function<void(const ResultFile&)>& show) {
    const auto work = [&] {
        if (engine_.session().rank() != 0) return;
        SummaryRecord all = summary();
        add_allocated(engine_, all);
        file_->finish(all, interrupted);
        screen_.taken(engine_);
        show(*file_);
    };
    engine_.session().agree("write", work, mpi::OnStop::ignore);
}

}  // namespace ftmpi
