#!/usr/bin/env bash
# Submits the scripts of slurm/ to a real Slurm: munged, slurmctld and slurmd of one node run in a private folder with their
# own key, sockets and ports, and are gone afterwards. Arguments: the build directory.
set -u
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
model=$source/data/tiny-nvfp4
export PATH=$PATH:/usr/sbin:/sbin

skip() { echo "skipped: $1"; exit 77; }
for tool in munged slurmctld slurmd sbatch srun scontrol scancel; do
    command -v "$tool" >/dev/null || skip "$tool is not installed (Debian packages slurm-wlm and munge)"
done
[ "$(id -u)" = 0 ] || skip "slurmd needs root"
[ -x "$build/ftmpi" ] || { echo "FAILED: $build/ftmpi was not built"; exit 1; }

dir=$(mktemp -d "${TMPDIR:-/tmp}/ftmpi-slurm-XXXXXX")
chmod 755 "$dir"
export SLURM_CONF=$dir/slurm.conf  # before anything is cancelled: never the jobs of a real cluster
daemons=()
cleanup() {
    scancel --quiet --state=PENDING --user=root 2>/dev/null
    scancel --quiet --signal=KILL --full --user=root 2>/dev/null
    for ((i = ${#daemons[@]} - 1; i >= 0; i--)); do
        kill "${daemons[i]}" 2>/dev/null
        for _ in $(seq 50); do kill -0 "${daemons[i]}" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "${daemons[i]}" 2>/dev/null
        wait "${daemons[i]}" 2>/dev/null
    done
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP
fail() {
    echo "FAILED: $1"
    for log in "$dir"/submit/*.out "$dir"/slurmctld.log "$dir"/slurmd.log "$dir"/munged.log; do
        [ -s "$log" ] && echo "--- $(basename "$log")" && tail -n 25 "$log"
    done
    exit 1
}
until_true() {  # until_true SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

# Two ports that nobody listens on now.
port=$((20000 + RANDOM % 20000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || (exec 3<>"/dev/tcp/127.0.0.1/$((port + 1))") 2>/dev/null; do
    port=$((20000 + RANDOM % 20000))
done
node=$(hostname -s)
mkdir "$dir/state" "$dir/spool" "$dir/submit"
cat >"$dir/slurm.conf" <<CONF
ClusterName=ftmpi
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,default_queue_depth=16
ReturnToService=2
KillWait=20
MailProg=/bin/true
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=test Nodes=$node Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
(umask 077; head -c 1024 /dev/urandom >"$dir/munge.key")
munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munge.seed" 2>"$dir/munged.err" &
daemons+=($!)
until_true 10 test -S "$dir/munge.socket" || fail "munged does not start"
slurmctld -D -c >/dev/null 2>&1 &
daemons+=($!)
slurmd -D -N "$node" >/dev/null 2>&1 &
daemons+=($!)
until_true 30 eval "sinfo --noheader --format=%t | grep -qx idle" || {
    grep -i 'error.*cgroup' "$dir/slurmd.log" >"$dir/cgroup" && skip "this slurmd needs a cgroup file system: $(head -n 1 "$dir/cgroup")"
    fail "the node does not become idle"
}
echo "slurm $(sbatch --version | cut -d' ' -f2) is up after $SECONDS s; MPI plugins: $(srun --mpi=list 2>&1 | tr -s '\n\t ' ' ')"

# The scripts expect to be submitted from the top of a checkout; here that is a folder with links, so that nothing is
# written into the real one.
cd "$dir/submit" || exit 1
ln -s "$source/slurm" "$source/jobs" .
export FTMPI=$build/ftmpi OMP_NUM_THREADS=1

submit() { sbatch --parsable --output="$dir/submit/%x-%j.out" "$@" || fail "sbatch $*"; }
job_field() { scontrol --oneliner show job "$1" | head -n 1 | grep -o "\b$2=[^ ]*" | head -n 1 | cut -d= -f2; }
ended() { case $(job_field "$1" JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) return 0 ;; esac; return 1; }
expect() {  # expect JOB EXIT_CODE NAME
    until_true 60 ended "$1" || fail "$3: job $1 does not end ($(job_field "$1" JobState))"
    [ "$(job_field "$1" ExitCode)" = "$2:0" ] || fail "$3: exit code $(job_field "$1" ExitCode), expected $2:0"
    echo "$3: exit code $2, $SECONDS s"
}

prompt="The capital of France is"
common=(--model "$model" --backend cpu --max-tokens 8 --threads 1)
"$FTMPI" "${common[@]}" --prompt "$prompt" --output alone.h5 >alone.out 2>alone.err || { cat alone.err; fail "one rank without Slurm"; }

if srun --mpi=list 2>&1 | grep -qw pmix; then
    job=$(submit --job-name=srun slurm/one_node.sbatch "${common[@]}" --prompt "$prompt" --output srun.h5)
    expect "$job" 0 "one_node by srun --mpi=pmix"
    grep -q "2 ranks by srun" "srun-$job.out" || fail "srun was not used"
    "$FTMPI" verify alone.h5 srun.h5 || fail "the two ranks of srun gave another result than one rank"
else
    echo "skipped: srun by itself (this Slurm has no PMIx)"
fi
job=$(FTMPI_LAUNCHER=mpirun submit --job-name=mpirun slurm/one_node.sbatch "${common[@]}" --prompt "$prompt" --output mpirun.h5)
expect "$job" 0 "one_node by mpirun"
grep -q "2 ranks by mpirun" "mpirun-$job.out" || fail "mpirun was not used"
"$FTMPI" verify alone.h5 mpirun.h5 || fail "the two ranks of mpirun gave another result than one rank"

job=$(submit --job-name=wrong slurm/one_node.sbatch --model "$dir/no-such-model" --backend cpu --prompt x --output wrong.h5)
expect "$job" 3 "a missing checkpoint"

# Far more prompts than can be answered: the job ends because it is told to.
for i in $(seq 5000); do echo "$i, $((i + 1)), $((i + 2)),"; done >many.txt
interrupt() {  # interrupt NAME SCANCEL_OPTION...
    local name=$1 id size
    shift
    id=$(submit --job-name="$name" slurm/one_node.sbatch "${common[@]}" --ignore-eos --max-tokens 32 --prompts many.txt --output "$name.h5")
    # Its journal begins with the settings and grows with each request.
    until_true 60 test -s "$name.h5.journal" || fail "$name: no journal in 60 s"
    size=$(stat -c %s "$name.h5.journal")
    until_true 60 eval '[ "$(stat -c %s "$name.h5.journal")" -gt $((size + 2000)) ]' || fail "$name: no request was finished in 60 s"
    scancel "$@" "$id" || fail "scancel $*"
    expect "$id" 7 "$name"
    [ -s "$name.h5" ] && [ ! -e "$name.h5.journal" ] || fail "$name: the finished requests were not saved"
}
common=(--model "$model" --backend cpu --threads 1)
interrupt warned-before-the-time-limit --signal=TERM --batch
FTMPI_LAUNCHER=mpirun interrupt warned-under-mpirun --signal=TERM --batch
if srun --mpi=list 2>&1 | grep -qw pmix; then interrupt ranks-signalled --signal=TERM; fi

printf '%s\n' "one, two," "1, 2, 3," "red, green," >three.txt
job=$(PARTS=2 submit --array=0-1 --job-name=array slurm/prompt_array.sbatch three.txt "${common[@]}" --max-tokens 4)
for part in 0 1; do
    expect "${job}_$part" 0 "prompt_array, part $part"
    [ -s "results/three.$part-of-2.h5" ] || fail "no result file of part $part"
done
[ "$(cat results/three.0-of-2.prompts)" = "one, two,
red, green," ] || fail "part 0 took other lines"
echo "slurm: all as expected in $SECONDS s"
