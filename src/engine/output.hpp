// Where the results go, and the phases in which every command opens, fills and closes them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "../options.hpp"
#include "../results.hpp"
#include "engine.hpp"
#include "screen.hpp"

namespace ftmpi {

/// This moment in UTC by a strftime format.
std::string utc(const char* format);

/// --output, or PREFIX-TIME-PID.h5 in the current folder. Error(usage) for a file inside the checkpoint's
/// folder: nothing is ever written there.
std::filesystem::path output_of(const Options& options, const char* prefix);

/// The result file of a command. Rank 0 has it; every rank calls the phases together.
class Output {
public:
    Output(Engine& engine, const Screen& screen) : engine_(engine), screen_(screen) {}

    /// Phase "results": checks and opens the file of output_of(prefix), before any weight is read, so that an
    /// hour of work cannot end at a read-only folder. `can_resume`: the command has --resume.
    void open(const char* prefix, const std::function<RunRecord()>& record, bool can_resume);
    /// Runs `work`, in which ranks exchange outside of agree(), and measures what they hold then. An error
    /// ends the job; of the journal what is finished stays.
    void guard(const std::function<void()>& work);
    /// Phase "write": finishes the file, with what the ranks hold beside `summary`, and then calls `show`.
    /// Both on rank 0 only.
    void write(const std::function<SummaryRecord()>& summary, bool interrupted,
               const std::function<void(const ResultFile&)>& show);

    /// Null on other ranks than 0.
    ResultFile* file() const { return file_.get(); }

private:
    Engine& engine_;
    const Screen& screen_;
    std::unique_ptr<ResultFile> file_;
};

}  // namespace ftmpi
