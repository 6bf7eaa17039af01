// The parts of the ranks that need no MPI: launches told from the environment, segments, messages, faults.
#define BOOST_TEST_MODULE mpi_unit
#include <boost/test/unit_test.hpp>

#include <numeric>

#include "exchange.hpp"
#include "process/fault.hpp"
#include "process/launch.hpp"
#include "process/report.hpp"
#include "session.hpp"

using namespace ftmpi;
using namespace ftmpi::mpi;

namespace {

const std::string open_mpi =
    "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022";
const std::string mpich = "MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 12:34:45 CDT 2022\n";

const Environment shell = {{"HOME", "/root"}, {"PATH", "/usr/bin"}};
const Environment open_mpi_2 = {{"OMPI_COMM_WORLD_SIZE", "2"},
                                {"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                {"PMIX_RANK", "1"},
                                {"PMIX_NAMESPACE", "131"}};
const Environment mpich_2 = {{"PMI_RANK", "1"},
                             {"PMI_SIZE", "2"},
                             {"PMI_FD", "9"},
                             {"MPI_LOCALNRANKS", "2"},
                             {"MPI_LOCALRANKID", "1"}};
// As Slurm 22.05 sets them.
const Environment batch_body = {
    {"SLURM_JOB_ID", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_NPROCS", "2"}};
const Environment step_2 = {{"SLURM_JOB_ID", "8"},        {"SLURM_PROCID", "1"},
                            {"SLURM_NTASKS", "2"},        {"SLURM_STEPID", "0"},
                            {"SLURM_STEP_ID", "0"},       {"SLURM_STEP_NUM_NODES", "1"},
                            {"SLURM_STEP_NUM_TASKS", "2"}};

Environment with(Environment environment, const Environment& more) {
    for (const auto& [name, value] : more) environment[name] = value;
    return environment;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_CASE(sound_launches_pass) {
    BOOST_TEST(launch_problem(shell, open_mpi, 1) == "");
    BOOST_TEST(launch_problem(open_mpi_2, open_mpi, 2) == "");
    BOOST_TEST(launch_problem(mpich_2, mpich, 2) == "");
    BOOST_TEST(launch_problem(batch_body, open_mpi, 1) == "");
    BOOST_TEST(launch_problem(with(batch_body, open_mpi_2), open_mpi, 2) == "");
    BOOST_TEST(launch_problem(with(step_2, {{"PMIX_RANK", "1"}}), open_mpi, 2) == "");
    BOOST_TEST(launch_problem(with(step_2, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "2"}}), open_mpi,
                              1) == "");
    // salloc and its interactive step, and the batch step of a Slurm that gives it a number.
    BOOST_TEST(launch_problem({{"SLURM_NTASKS", "2"}, {"SLURM_NPROCS", "2"}}, open_mpi, 1) == "");
    BOOST_TEST(launch_problem(with(step_2, {{"SLURM_STEP_ID", "4294967290"}}), open_mpi, 1) == "");
    BOOST_TEST(launch_problem(with(step_2, {{"SLURM_STEP_ID", "4294967291"}}), open_mpi, 1) == "");
    // One rank on purpose, inside a larger launch: the inner launcher counts.
    const Environment one = {
        {"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}};
    BOOST_TEST(launch_problem(with(step_2, one), open_mpi, 1) == "");
    BOOST_TEST(launch_problem(with(mpich_2, one), open_mpi, 1) == "");
    BOOST_TEST(launch_problem(with(open_mpi_2, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), mpich, 1) == "");
}

BOOST_AUTO_TEST_CASE(separate_one_rank_jobs_are_refused) {
    const auto srun = launch_problem(step_2, open_mpi, 1);
    BOOST_TEST(contains(srun, "2 separate one-rank jobs"));
    BOOST_TEST(contains(srun, "srun"));
    BOOST_TEST(contains(srun, "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2"));
    // Without the id of the step, which only steps have tasks of.
    const Environment unnamed = {
        {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}};
    BOOST_TEST(contains(launch_problem(unnamed, open_mpi, 1), "srun started 2 processes"));
    BOOST_TEST(launch_problem(unnamed, open_mpi, 2) == "");
    BOOST_TEST(contains(srun, "Open MPI v4.1.4"));
    BOOST_TEST(contains(launch_hint(open_mpi), "srun --mpi=pmix"));
    // PMIx of a version the library does not speak.
    BOOST_TEST(contains(launch_problem(with(step_2, {{"PMIX_RANK", "1"}}), open_mpi, 1), "srun"));

    const auto foreign = launch_problem(mpich_2, open_mpi, 1);
    BOOST_TEST(contains(foreign, "mpiexec of MPICH"));
    BOOST_TEST(contains(foreign, "PMI_RANK=1 PMI_SIZE=2"));
    BOOST_TEST(contains(launch_problem({{"MPI_LOCALNRANKS", "4"}}, open_mpi, 1), "4 separate"));
    const auto other = launch_problem(open_mpi_2, mpich, 1);
    BOOST_TEST(contains(other, "mpirun of Open MPI"));
    BOOST_TEST(contains(other, "MPICH Version: 4.0.2"));
    BOOST_TEST(launch_of(mpich_2, open_mpi)->rank == 1);
    BOOST_TEST(launch_of(step_2, open_mpi)->rank == 1);
}

BOOST_AUTO_TEST_CASE(odd_values_are_no_launch) {
    for (const char* value : {"", "two", "-2", "2x", "4294967297", "99999999999999", "99999999999999999999"})
        BOOST_TEST(launch_problem({{"OMPI_COMM_WORLD_SIZE", value},
                                   {"PMI_SIZE", value},
                                   {"SLURM_STEP_ID", value},
                                   {"SLURM_STEP_NUM_TASKS", "2"}},
                                  open_mpi, 1) == "");
}

BOOST_AUTO_TEST_CASE(settings_keep_what_the_user_set) {
    const auto alone = start_settings(shell, open_mpi, true);
    BOOST_TEST(alone.set.at("OMPI_MCA_ess_singleton_isolated") == "1");
    BOOST_TEST(alone.set.at("OMPI_MCA_orte_create_session_dirs") == "0");
    BOOST_TEST(alone.set.at("OMPI_MCA_btl") == "self");
    BOOST_TEST(alone.hide.empty());
    BOOST_TEST(start_settings(with(shell, {{"OMPI_MCA_btl", "tcp,self"}}), open_mpi, true)
                   .set.count("OMPI_MCA_pml") == 0u);
    BOOST_TEST(start_settings(shell, mpich, true).set.empty());

    const auto pair = start_settings(open_mpi_2, open_mpi, true);
    BOOST_TEST(pair.set.size() == 1u);
    BOOST_TEST(pair.set.at("OMPI_MCA_pml") == "ob1");
    BOOST_TEST(
        start_settings(open_mpi_2, open_mpi, false).set.at("OMPI_MCA_btl_vader_single_copy_mechanism") ==
        "none");
    // Two hosts: nothing is known about the fabric between them.
    BOOST_TEST(start_settings(with(open_mpi_2, {{"OMPI_COMM_WORLD_SIZE", "4"}}), open_mpi, true).set.empty());

    const auto one_task = start_settings(with(step_2, {{"SLURM_STEP_NUM_TASKS", "1"}}), open_mpi, true);
    BOOST_TEST(one_task.hide.size() == 1u);
    BOOST_TEST(one_task.set.at("OMPI_MCA_ess_singleton_isolated") == "1");
    const auto wired =
        start_settings(with(step_2, {{"SLURM_STEP_NUM_TASKS", "1"}, {"PMIX_RANK", "0"}}), open_mpi, true);
    BOOST_TEST(wired.hide.empty());
    BOOST_TEST(wired.set.count("OMPI_MCA_ess_singleton_isolated") == 0u);
}

BOOST_AUTO_TEST_CASE(library_names) {
    BOOST_TEST(short_library(open_mpi) == "Open MPI v4.1.4");
    BOOST_TEST(short_library(mpich) == "MPICH Version: 4.0.2");
    BOOST_TEST(short_library("Some MPI 1.0\n") == "Some MPI 1.0");
}

BOOST_AUTO_TEST_CASE(segments_cover_lengths_beyond_32_bits) {
    BOOST_TEST(segments_of(0, 10).empty());
    BOOST_TEST(segments_of(10, 10).size() == 1u);
    const std::uint64_t limit = std::uint64_t{1} << 30;
    for (const std::uint64_t bytes :
         {std::uint64_t{1}, limit - 1, limit, limit + 1, (std::uint64_t{1} << 31) + 8, std::uint64_t{3} << 30,
          (std::uint64_t{1} << 32) + 5}) {
        const auto segments = segments_of(bytes, limit);
        BOOST_TEST(std::accumulate(segments.begin(), segments.end(), std::uint64_t{0}) == bytes);
        BOOST_TEST(segments.size() == (bytes + limit - 1) / limit);
        for (const auto one : segments) BOOST_TEST((one > 0 && one <= limit));
    }
}

BOOST_AUTO_TEST_CASE(reports_travel_whole) {
    const RankReport report{Exit::bad_input, "tensor \"a b\" is short\n12 34", "fetch it again"};
    const auto back = unpacked<RankReport>(packed(report), "report");
    BOOST_TEST((back.code == report.code));
    BOOST_TEST(back.what == report.what);
    BOOST_TEST(back.hint == report.hint);
    BOOST_TEST((unpacked<RankReport>(packed(RankReport()), "report").code == Exit::ok));
    for (const std::string& bytes : {std::string(), packed(report).substr(0, 30), packed(report) + "x"})
        BOOST_CHECK_EXCEPTION(unpacked<RankReport>(bytes, "report"), Error, [](const Error& error) {
            return std::string(error.what()) == "report: a record does not have the layout of this version";
        });
}

BOOST_AUTO_TEST_CASE(exceptions_become_reports) {
    auto report_of = [](auto thrown) {
        try {
            throw thrown;
        } catch (...) { return report_of_current_exception(); }
    };
    BOOST_TEST((report_of(Error(Exit::usage, "w", "h")).code == Exit::usage));
    BOOST_TEST(report_of(Error(Exit::usage, "w", "h")).hint == "h");
    BOOST_TEST((report_of(std::bad_alloc()).code == Exit::does_not_fit));
    BOOST_TEST(report_of(std::bad_alloc()).what == "out of host memory");
    BOOST_TEST((report_of(std::runtime_error("r")).code == Exit::failure));
    BOOST_TEST(report_of(std::runtime_error("r")).what == "r");
    BOOST_TEST((report_of(7).code == Exit::failure));
}

BOOST_AUTO_TEST_CASE(one_message_for_all_ranks) {
    const std::vector<std::string> hosts = {"a", "a", "b"};
    const RankReport good, bad{Exit::bad_input, "x.safetensors is short", "fetch it again"},
        full{Exit::does_not_fit, "out of host memory", ""};
    BOOST_TEST(message_of("load", {good, good, good}, hosts) == "");
    BOOST_TEST(message_of("load", {good, good, bad}, hosts) ==
               "ftmpi: error in load on rank 2 (b): x.safetensors is short\nftmpi: hint: fetch it again\n");
    BOOST_TEST(message_of("load", {good, full, bad}, hosts) ==
               "ftmpi: error in load on rank 1 (a): out of host memory\nftmpi: 1 other rank failed too\n");
    BOOST_TEST(message_of("load", {bad, bad, bad}, hosts) ==
               "ftmpi: error in load on all 3 ranks: x.safetensors is short\nftmpi: hint: fetch it again\n");
    BOOST_TEST(message_of("load", {bad, full, bad}, hosts) ==
               "ftmpi: error in load on rank 0 (a): x.safetensors is short\n"
               "ftmpi: hint: fetch it again\nftmpi: 2 other ranks failed too\n");
    BOOST_TEST(message_of("load", {bad}, {"a"}) ==
               "ftmpi: error in load: x.safetensors is short\nftmpi: hint: fetch it again\n");
    BOOST_TEST((code_of({good, full, bad}) == Exit::does_not_fit));
    BOOST_TEST((code_of({good, good}) == Exit::ok));
    BOOST_TEST(name_ranks({1}, hosts) == "rank 1 (a)");
    BOOST_TEST(name_ranks({0, 1, 2}, hosts) == "ranks 0, 1, 2 (a, b)");
}

BOOST_AUTO_TEST_CASE(first_difference_names_line_and_ranks) {
    BOOST_TEST(first_difference("options", {"a\nb\n", "a\nb\n"}) == "");
    BOOST_TEST(first_difference("options", {"a\nb\nc", "a\nx\nd", "a\nb\nc"}) ==
               "options differ between ranks: line 2 is 'b' on ranks 0, 2, 'x' on rank 1");
    BOOST_TEST(first_difference("options", {"a\n", "a\nb\n"}) ==
               "options differ between ranks: line 2 is missing on rank 0, 'b' on rank 1");
    BOOST_TEST(first_difference("options", {"", "a"}) ==
               "options differ between ranks: line 1 is missing on rank 0, 'a' on rank 1");
    BOOST_TEST(first_difference("options", {"a\n", "a"}) ==
               "options differ between ranks in the end of the last line");
}

BOOST_AUTO_TEST_CASE(faults_are_parsed_strictly) {
    const auto fault = parse_fault("2:decode#5:kill");
    BOOST_TEST(fault.rank == 2);
    BOOST_TEST(fault.phase == "decode");
    BOOST_TEST(fault.time == 5);
    BOOST_TEST(fault.action == "kill");
    BOOST_TEST(parse_fault("0:load:throw").time == 1);
    BOOST_TEST(parse_fault("1:load.done:mark").phase == "load.done");
    for (const char* text : {"", "1", "1:load", "x:load:throw", "-1:load:throw", "1::throw", "1:load:explode",
                             "1:load#0:throw", "1:load#x:throw"})
        BOOST_CHECK_EXCEPTION(parse_fault(text), Error,
                              [](const Error& e) { return e.code() == Exit::usage; });
}
