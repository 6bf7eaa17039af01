#!/usr/bin/env bash
# The ranks without a model: every exchange, launches, failures in each phase, deadlines, signals, and that no process stays.
. "$(dirname "$0")/../support/check.sh"
cd "$work"
probe=$build/tests/mpi_probe
ranks() { local n=$1; shift; timeout -k 1 40 "$mpirun" -np "$n" "$@"; }

# Dead processes that no one has waited for do not count.
left() { ps -o stat=,args= -A | awk -v probe="$probe" '$1 !~ /^Z/ && $2 == probe' | wc -l; }
# none_left SECONDS: the probe's processes are gone by then.
none_left() {
    local i
    for ((i = 0; i < $1 * 10; i++)); do
        [ "$(left)" = 0 ] && { ok; return; }
        sleep 0.1
    done
    bad "$(left) processes are left after $1 s ($what)"
}
# fails CODE MESSAGES COMMAND...: exit code (any but 0 when CODE is "some"), the number of messages, nothing left, no hang.
fails() {
    local want=$1 messages=$2 begin=$SECONDS code n
    shift 2
    what="${FTMPI_FAULT-} $*"
    "$@" >out 2>err </dev/null
    code=$?
    as_text out err
    [ "$want" != some ] || [ "$code" = 0 ] || want=$code
    if [ "$code" = "$want" ]; then ok; else bad "exit code $code instead of $want: $what"; fi
    n=$(grep -c '^ftmpi: error' err)
    if [ "$n" = "$messages" ]; then ok; else bad "$n messages instead of $messages: $what"; cat err; fi
    if [ $((SECONDS - begin)) -le 40 ]; then ok; else bad "took $((SECONDS - begin)) s: $what"; fi
    none_left 30
}

# Open MPI sleeps this long before and after it asks the ranks of a failed job to end; the tests need not.
export OMPI_MCA_odls_base_sigkill_timeout=0

# Exchanges, with known bytes.
for n in 1 2 3 4; do
    expect_code 0 ranks $n "$probe" gathers
    says "gathers ok, $n ranks"
    [ -s err ] && bad "$n ranks are not quiet: $(cat err)"
done

# One process without a launcher, and without ssh or MPI's daemon in reach.
expect_code 0 "$probe" gathers
[ -s err ] && bad "one process is not quiet: $(cat err)"
expect_code 0 env PATH=/nowhere "$probe" phases
says written
expect_code 0 ranks 2 "$probe" scope
expect_code 0 "$probe" scope

# Launches that are not what was meant: one message, from the first of the processes only.
step=(SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1)
alone=(env -u PMIX_RANK -u PMIX_NAMESPACE)
fails 2 1 "${alone[@]}" "${step[@]}" SLURM_PROCID=0 "$probe" phases
says "2 separate one-rank jobs"
fails 2 0 "${alone[@]}" "${step[@]}" SLURM_PROCID=1 "$probe" phases
expect_code 0 "${alone[@]}" SLURM_JOB_ID=1 SLURM_PROCID=0 SLURM_NTASKS=2 "$probe" phases
expect_code 0 "${alone[@]}" "${step[@]}" SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 "$probe" phases

# Ranks that do not do the same.
fails 2 1 ranks 3 "$probe" differ
says "line 2 is 'context = 64' on ranks 0, 2, 'context = 32' on rank 1"
fails 1 1 ranks 2 "$probe" mismatch
says "rank 0 is in 'heads'"
says "rank 1 in 'down'"
fails 1 1 ranks 2 "$probe" lengths
says "bytes where rank 0 expects"
fails some 1 ranks 2 "$probe" deserter 5
says "rank 1"
says "left the program while this rank was in 'texts'"
fails some 0 ranks 2 "$probe" unwind 5

# One rank fails by an exception: the same code and message whatever the phase.
for phase in options load decode#20 write; do
    FTMPI_FAULT=1:$phase:throw fails 1 1 ranks 3 "$probe" phases 5
    says "a fault in ${phase%#*} that FTMPI_FAULT asked for"
    says "rank 1 ("
done
FTMPI_FAULT=0:load:throw fails 1 1 "$probe" phases 5
says "ftmpi: error in load: a fault"
FTMPI_FAULT=1:load:term fails 7 1 ranks 2 "$probe" phases 5
says "stopped by signal"
FTMPI_FAULT=1:load fails 2 1 ranks 2 "$probe" phases 5

# One rank is gone without a word: the launcher says so, or the others do at their deadline.
FTMPI_FAULT=1:load:exit fails some 0 ranks 2 "$probe" phases 5
FTMPI_FAULT=1:decode:kill fails some 0 ranks 2 "$probe" phases 5
FTMPI_FAULT=0:decode:abort fails some 0 ranks 2 "$probe" phases 5
case $open_mpi in 4)
    FTMPI_FAULT=1:decode:exit fails 6 1 ranks 3 --mca orte_abort_on_non_zero_status 0 "$probe" phases 2
    says "'heads' was not finished within 2 s: waited for rank 1 ("
    ;;
*) skipped "a rank that leaves with a code that the launcher lets pass (an option of Open MPI 4)" ;;
esac

# One rank does not come back: the others name it at the deadline, the first of them speaks.
FTMPI_FAULT=1:load:hang fails 6 1 ranks 3 "$probe" phases 2
says "error in load: rank 1 ("
says "did not come back within 2 s"
FTMPI_FAULT=0:load:stop fails 6 1 ranks 2 "$probe" phases 2
says "error in load: rank 0 ("
FTMPI_FAULT=1:decode#9:stop fails 6 1 ranks 2 "$probe" phases 2
says "'heads' was not finished within 2 s: waited for rank 1 ("
FTMPI_FAULT=1:end:stop fails some 1 ranks 3 "$probe" phases 2
says "error at the end: rank 1 ("
# begin N ARGS...: starts the probe in the background and waits until one rank of it has stopped, whose process is `stopped`.
begin() {
    rm -f out at_fault
    export FTMPI_FAULT_REACHED=$work/at_fault
    # The launcher itself and not the wrappers gets the signals, so it is started without them.
    eval "$("$mpirun" --print -np "$1" "$probe" "${@:2}") >out 2>err </dev/null &"
    launcher=$!
    stopped=$(reached at_fault) && await is_stopped "$stopped"
}
# ended WHAT: the job that begin() started fails with one message, and nobody stays.
ended() {
    wait "$launcher"
    if [ $? != 0 ]; then ok; else bad "exit code 0 after $1"; fi
    as_text out err
    what=$1
    same "$(grep -c '^ftmpi: error' err)" 1 "messages after $what"
    [ "$(grep -c '^ftmpi: error' err)" = 1 ] || cat err
    none_left 30
}
# A rank that was asked to end while it was stopped: the launcher wakes it before it kills it. It has nothing to add.
for rank in 0 1; do
    export FTMPI_FAULT=$rank:load:stop
    unset OMPI_MCA_odls_base_sigkill_timeout
    begin 2 phases 2
    kill -TERM "$stopped"
    ended "SIGTERM to the stopped rank $rank"
    says "error in load: rank $rank ("
    export OMPI_MCA_odls_base_sigkill_timeout=0
done
# A launcher that is slow to end the ranks: each would speak if it did not learn that the first of them has.
export FTMPI_FAULT=1:decode#9:stop
begin 4 phases 2
unset FTMPI_FAULT
kill -STOP "$launcher"
sleep 6  # longer than the deadline and what the others give the first one
kill -CONT "$launcher"
ended "a slow launcher"
says "error on rank 0 ("
# A rank that had reported and was stopped while it waited: the others go on without it, and it finds their answers when it wakes.
export FTMPI_FAULT=1:load:stop
unset OMPI_MCA_odls_base_sigkill_timeout
begin 2 phases 20
kill -STOP "$(ps -o stat=,pid=,args= -A | awk -v probe="$probe" '$1 !~ /^[TZ]/ && $3 == probe {print $2}')"
kill -TERM "$stopped"
kill -CONT "$stopped"
ended "a rank that is stopped after its report"
says "error in load on rank 1 ("
export OMPI_MCA_odls_base_sigkill_timeout=0
unset FTMPI_FAULT

# Faults of several ranks. with RANK:FAULT...: one process each, in this order.
with() {
    local fault command=()
    for fault in "$@"; do command+=(${command[0]:+:} env FTMPI_FAULT="$fault" "$probe" phases 3); done
    each "${command[@]}"
}
# The same error on all, and on some of them: the lowest of those says it.
fails 1 1 with 0:decode#5:throw 1:decode#5:throw 2:decode#5:throw
says "error on rank 0 ("
fails 1 1 with 3:decode#5:throw 1:decode#5:throw 2:decode#5:throw
says "error on rank 1 ("
# What a rank has reported is not lost when another one hangs, and decides the code.
fails 1 2 with 0:none:throw 1:load:hang 2:load:throw
says "error in load on rank 2 ("
says "rank 1 ("
# Asked to end while it waits for a rank that does not come.
export FTMPI_FAULT=1:load:stop
begin 2 phases 60
asked=$SECONDS
for pid in $(ps -o pid=,args= -A | awk -v probe="$probe" '$2 == probe {print $1}'); do
    grep -qz '^OMPI_COMM_WORLD_RANK=0$' "/proc/$pid/environ" && kill -TERM "$pid"
done
ended "SIGTERM to a rank that waits"
says "error in load on rank 0 ("
if [ $((SECONDS - asked)) -le 40 ]; then ok; else bad "SIGTERM to a rank that waits took $((SECONDS - asked)) s"; fi
unset FTMPI_FAULT

# Signals. USR1 to the launcher is passed on: the step is finished, the code is that of an interrupted run.
# start N [TIMEOUT]: starts the endless loop and waits until every rank says that it runs.
start() {
    rm -f out  # what the last loop said is not this one's start
    eval "$("$mpirun" --print -np "$1" "$probe" stop "${2:-20}") >out 2>err </dev/null &"
    launcher=$!
    await all_run "$1"
}
all_run() { [ "$(grep -c '^rank' out)" = "$1" ]; }
interrupted() {
    wait "$launcher"
    same "$?" 7 "exit code after $1"
    as_text out err
    if grep -q "stopped and written" out; then ok; else bad "nothing was written after $1"; fi
    what=$1
    none_left 30
}
start 2
kill -USR1 "$launcher"
interrupted "SIGUSR1 to the launcher"
start 2
kill -TERM "$(awk '/^rank 1/ { print $4 }' out)"
interrupted "SIGTERM to one rank"
# All ranks were stopped for longer than their deadline, as by a scheduler or a laptop's lid; one of them was already waiting then.
# Only the time in which it ran counts.
start 2 3
first=$(awk '/^rank 0/ { print $4 }' out) second=$(awk '/^rank 1/ { print $4 }' out)
kill -STOP "$second"
sleep 0.5
kill -STOP "$first"
sleep 5  # longer than the deadline
kill -CONT "$first"
sleep 0.2
kill -CONT "$second"
sleep 0.5
kill -USR1 "$launcher"
interrupted "a suspension of all ranks"
grep '^ftmpi: error' err && bad "a suspension of all ranks is not quiet"
start 2
kill -INT "$launcher"
sleep 0.3
kill -INT "$launcher" 2>/dev/null
wait "$launcher"
if [ $? != 0 ]; then ok; else bad "exit code 0 after SIGINT twice"; fi
what="SIGINT twice"
none_left 30
finish
