#include "launch.hpp"

#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <initializer_list>

extern char** environ;

namespace ftmpi::mpi {
namespace {

/// A whole number of 0 or more that T holds.
template <class T = int> std::optional<T> number(const Environment& environment, const std::string& name) {
    const auto it = environment.find(name);
    if (it == environment.end()) return std::nullopt;
    T value = 0;
    const char* end = it->second.data() + it->second.size();
    const auto [stop, error] = std::from_chars(it->second.data(), end, value);
    if (error != std::errc() || stop != end || value < 0) return std::nullopt;
    return value;
}

bool has(const Environment& environment, const std::string& name) { return environment.count(name) > 0; }

bool is_open_mpi(std::string_view library) { return library.starts_with("Open MPI"); }

/// The names that a launcher uses; a size is looked for in their order.
struct Dialect {
    const char* launcher;
    std::initializer_list<const char*> sizes;
    const char* rank;
    const char* here;
    bool open_mpi = false;
};

constexpr auto kOpenMpiSizes = {"OMPI_COMM_WORLD_SIZE"};
constexpr auto kMvapichSizes = {"MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE"};
constexpr auto kMpichSizes = {"PMI_SIZE", "MPI_LOCALNRANKS"};
constexpr Dialect kDialects[] = {
    {"mpirun of Open MPI", kOpenMpiSizes, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"mpirun of MVAPICH", kMvapichSizes, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec of MPICH or Intel MPI", kMpichSizes, "PMI_RANK", "MPI_LOCALNRANKS"},
};

std::optional<Launch> read(const Environment& environment, const Dialect& dialect) {
    for (const char* name : dialect.sizes) {
        const auto size = number(environment, name);
        if (!size) continue;
        Launch launch;
        launch.launcher = dialect.launcher;
        launch.size = *size;
        launch.rank = number(environment, dialect.rank).value_or(0);
        launch.ranks_here = number(environment, dialect.here).value_or(0);
        launch.whole_on_host = launch.ranks_here == launch.size;
        if (has(environment, dialect.rank))
            launch.variables = std::string(dialect.rank) + "=" + environment.at(dialect.rank) + " ";
        launch.variables += std::string(name) + "=" + environment.at(name);
        return launch;
    }
    return std::nullopt;
}

/// A step of srun. The body of a batch script has SLURM_NTASKS and SLURM_PROCID too, but is no step of its
/// own: it has no tasks of a step, or one of the ids that Slurm reserves for batch, interactive and external
/// steps.
std::optional<Launch> read_slurm_step(const Environment& environment) {
    const char* id = has(environment, "SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID";
    const auto step = number<long>(environment, id);
    const auto tasks = number(environment, "SLURM_STEP_NUM_TASKS");
    constexpr long first_reserved = 0xfffffff0L;
    // Only steps have a number of tasks of their own, so that its id may be missing.
    if (!tasks || (has(environment, id) && (!step || *step >= first_reserved))) return std::nullopt;
    Launch launch;
    launch.launcher = "srun";
    launch.size = *tasks;
    launch.rank = number(environment, "SLURM_PROCID").value_or(0);
    launch.whole_on_host = number(environment, "SLURM_STEP_NUM_NODES").value_or(0) == 1;
    launch.ranks_here = launch.whole_on_host ? launch.size : 0;
    launch.variables = "SLURM_PROCID=" + std::to_string(launch.rank) +
                       " SLURM_STEP_NUM_TASKS=" + std::to_string(launch.size);
    return launch;
}

}  // namespace

Environment process_environment() {
    Environment environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text(*entry);
        const auto equal = text.find('=');
        if (equal != std::string_view::npos)
            environment.emplace(text.substr(0, equal), text.substr(equal + 1));
    }
    return environment;
}

std::optional<Launch> launch_of(const Environment& environment, std::string_view library) {
    // The library's own launcher first: under `srun -n 2 mpirun -np 1` the inner word counts.
    for (const bool own : {true, false})
        for (const Dialect& dialect : kDialects)
            if ((dialect.open_mpi == is_open_mpi(library)) == own)
                if (auto launch = read(environment, dialect)) return launch;
    return read_slurm_step(environment);
}

bool is_wired(const Environment& environment) {
    for (const char* name :
         {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD", "PMI_PORT", "OMPI_COMM_WORLD_RANK"})
        if (has(environment, name)) return true;
    return false;
}

std::string launch_problem(const Environment& environment, std::string_view library, int size) {
    if (size != 1) return {};
    const auto launch = launch_of(environment, library);
    if (!launch || launch->size <= 1) return {};
    return "started as " + std::to_string(launch->size) + " separate one-rank jobs: " + launch->launcher +
           " started " + std::to_string(launch->size) + " processes (" + launch->variables +
           "), but the MPI library of this program, " + short_library(library) + ", sees one rank in each";
}

std::string launch_hint(std::string_view library) {
    return "this program is linked with " + short_library(library) +
           ": start it with the mpirun of that library, or with srun --mpi=pmix "
           "(srun --mpi=list shows what Slurm has here); for independent runs of one rank use a job array";
}

StartSettings start_settings(const Environment& environment, std::string_view library, bool reads_siblings) {
    StartSettings settings;
    if (!is_open_mpi(library)) return settings;
    const auto launch = launch_of(environment, library);
    const bool alone = (!launch || launch->size == 1) && !is_wired(environment);
    const bool on_one_host = launch && launch->whole_on_host && is_wired(environment);
    auto set = [&](const char* name, const char* value) {
        if (!has(environment, name)) settings.set.emplace(name, value);
    };
    // Without these a process of its own starts a daemon, which needs ssh on the PATH.
    if (alone) set("OMPI_MCA_ess_singleton_isolated", "1");
    // All such processes of a user share one folder for their session, which one that ends removes under
    // another that begins; a rank of its own has nothing to put there.
    if (alone) set("OMPI_MCA_orte_create_session_dirs", "0");
    // By this variable Open MPI 4 takes a step of one task for a job that needs Slurm's PMIx, and ends the
    // program.
    if (alone && has(environment, "SLURM_STEP_ID")) settings.hide.push_back("SLURM_STEP_ID");
    // Looking for fabrics takes 0.2 s and is of no use inside one host.
    const bool chosen_by_user = has(environment, "OMPI_MCA_pml") || has(environment, "OMPI_MCA_btl") ||
                                has(environment, "OMPI_MCA_mtl");
    if ((alone || on_one_host) && !chosen_by_user) set("OMPI_MCA_pml", "ob1");
    if (alone && !chosen_by_user) set("OMPI_MCA_btl", "self");
    // Where the system call is forbidden (containers) Open MPI 4 finds out at the first large message, with
    // an error.
    if (on_one_host && !reads_siblings) set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    return settings;
}

bool reads_siblings_memory() {
    char from = 1, to = 0;
    iovec target{&to, 1}, source{&from, 1};
    return process_vm_readv(getpid(), &target, 1, &source, 1, 0) == 1;
}

std::string short_library(std::string_view text) {
    using namespace std::string_view_literals;
    std::string name(text.substr(0, text.find_first_of(",\n\0"sv)));
    name.erase(name.find_last_not_of(' ') + 1);
    // MPICH writes "MPICH Version:\t4.0.2".
    std::replace(name.begin(), name.end(), '\t', ' ');
    return name;
}

}  // namespace ftmpi::mpi
