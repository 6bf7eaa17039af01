# Sourced by the script tests: a work folder, expectations with counts, a summary line.
set -u
build=$(cd "${1:?build directory}" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ftmpi=$build/ftmpi
mpirun=$root/jobs/mpirun.sh
model=$root/data/tiny-nvfp4
# as_text FILE...: mpirun of Open MPI 5 puts NUL bytes into what it passes on, which are in no message and make it no text for grep.
as_text() { sed -i 's/\x00//g' "$@"; }
case $(mpirun --version 2>/dev/null | head -n 1) in *"Open MPI) 4."*) open_mpi=4 ;; *) open_mpi=5 ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() {
    failed=$((failed + 1))
    echo "FAILED: $*"
}
# expect_code WANT COMMAND...: exit code; output goes to $work/out and $work/err.
expect_code() {
    local want=$1
    shift
    "$@" >"$work/out" 2>"$work/err" </dev/null
    local got=$?
    as_text "$work/out" "$work/err"
    if [ "$got" = "$want" ]; then ok; else
        bad "exit code $got instead of $want: $*"
        tail -n 8 "$work/err"
    fi
}
# says TEXT: the last command's stderr or stdout has this line part.
says() { if grep -qF -- "$1" "$work/err" "$work/out"; then ok; else bad "nothing says \"$1\""; tail -n 8 "$work/err"; fi; }
says_once() {
    local n
    n=$(grep -cF -- "$1" "$work/err")
    if [ "$n" = 1 ]; then ok; else bad "\"$1\" is said $n times"; tail -n 8 "$work/err"; fi
}
same() { if [ "$1" = "$2" ]; then ok; else bad "$3: \"$1\" is not \"$2\""; fi; }
absent() { if [ ! -e "$1" ]; then ok; else bad "$1 exists"; fi; }
present() { if [ -e "$1" ]; then ok; else bad "$1 does not exist"; fi; }
# each COMMAND [: COMMAND]...: one job with a process for each command, in the order of ranks. Open MPI 5.0.7 crashes by itself at
# "mpirun A : B", so each process asks for its rank and becomes its command.
each() {
    local word rank=0
    {
        printf 'case $OMPI_COMM_WORLD_RANK in\n0) exec'
        for word; do
            if [ "$word" = : ]; then rank=$((rank + 1)) && printf ' ;;\n%d) exec' $rank; else printf ' %q' "$word"; fi
        done
        printf ' ;;\nesac\n'
    } >"$work/each"
    timeout -k 1 120 "$mpirun" -np $((rank + 1)) bash "$work/each"
}
skipped() { echo "skipped: $*"; }
# await COMMAND...: tries it until it succeeds; false when it has not after a minute, which is for hangs only.
await() {
    local i
    for ((i = 0; i < 1200; i++)); do
        if "$@" 2>/dev/null; then return; fi
        sleep 0.05
    done
    bad "not within a minute: $*"
    return 1
}
# reached FILE: waits for a fault that was given FTMPI_FAULT_REACHED=FILE, and prints its process.
reached() { await test -s "$1" >&2 && awk '{ print $4; exit }' "$1"; }
is_stopped() { grep -q '^State:.T' "/proc/$1/status"; }
is_locked() { ! flock -n "$1" true; }
finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
