#!/usr/bin/env bash
# Faults in every phase, of every kind: exit code, the one message, what is kept, nobody left, in time. The run writes them as a table
# into the build folder and compares it with tests/faults/faults.md. With --write it replaces that file; names of cases run only those.
write=
[ "${1-}" != --write ] || { write=yes && shift; }
. "$(dirname "$0")/../support/check.sh"
shift
here=$root/tests/faults
. "$here/runner.sh"
for file in phases disk limits checkpoint prompts; do
    # shellcheck disable=SC1090
    . "$here/$file.sh"
done
trap 'unmount_all 2>/dev/null; rm -rf "$work"' EXIT
cd "$work"
# Open MPI sleeps this long before and after it asks the ranks of a failed job to end; the tests need not.
export OMPI_MCA_odls_base_sigkill_timeout=0

# The undisturbed runs to compare with.
printf 'The capital of France is\n1, 2, 3,\ndef fibonacci(n):\n' >prompts.txt
"$ftmpi" --model "$model" --prompts prompts.txt --output want.h5 >/dev/null 2>&1 || bad "the run to compare with"
(long_prompts && exec "$ftmpi" --model "$model" --prompts prompts.txt --output long.h5 --ignore-eos) >/dev/null 2>&1 || bad "the long run to compare with"

all=("${phase_cases[@]}" "${other_cases[@]}")
[ $# = 0 ] && chosen=("${all[@]}") || chosen=("$@")
# Those that take long begin first, so that the others run beside them.
order=()
for name in "${chosen[@]}"; do case $name in ten_thousand | three_hundred_megabytes) order=("$name" "${order[@]}") ;; *) order+=("$name") ;; esac done
run_cases 4 "${order[@]}"

# The table, in the order of the cases.
table=$build/faults.md
heading() { printf '\n## %s\n\n| phase | fault | exit code | message | left behind | finished requests kept | ends |\n|---|---|---|---|---|---|---|\n' "$1"; }
rows() {
    local name
    for name in "$@"; do
        if grep -q '^| ' "$work/$name/row" 2>/dev/null; then cat "$work/$name/row"; fi
    done
}
{
    cat "$here/head.md"
    heading "One rank of two, in each phase"
    rows "${phase_cases[@]}"
    heading "Disks, limits, checkpoints, prompts"
    rows "${other_cases[@]}"
} >"$table"

for name in "${chosen[@]}"; do
    if [ -s "$work/$name/complaints" ]; then
        bad "$name: $(tr '\n' ';' <"$work/$name/complaints")"
        tail -n 4 "$work/$name/err" "$work/$name/case.log" 2>/dev/null
    elif grep -q '^SKIPPED' "$work/$name/row" 2>/dev/null; then
        echo "skipped: $name: $(cut -d' ' -f2- "$work/$name/row")"
        missing="${missing-} $name"
    elif [ -s "$work/$name/row" ]; then ok; else
        bad "$name wrote no row"
        tail -n 4 "$work/$name/case.log"
    fi
done
# The table to compare with: that of version 4 of Open MPI, with the rows of the last section in their places for version 5.
section="## Where Open MPI 5 differs"
wanted() { # wanted VERSION
    awk -v section="$section" -v version="$1" -F ' [|] ' '
        $0 == section { FNR == NR ? first = 1 : second = 1 }
        FNR == NR { if (first) rows[$1 "|" $2] = $0; next }
        second { next }
        version == 5 && /^[|] / && (($1 "|" $2) in rows) { print rows[$1 "|" $2]; next }
        { print }' "$here/faults.md" "$here/faults.md" | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}'
}
if [ -n "$write" ] && [ -z "${missing-}" ] && [ $# = 0 ]; then
    if [ "$open_mpi" = 4 ]; then
        { cat "$table" && echo && sed -n "/^$section/,\$p" "$here/faults.md"; } >"$table.new"
    else
        { wanted 4 && printf '\n%s\n\n' "$section" && sed -n '/^| phase/,/^|---/p;/^|---/q' "$table" && diff <(wanted 4) "$table" | sed -n 's/^> //p'; } >"$table.new"
    fi
    mv "$table.new" "$here/faults.md"
elif [ -z "$write" ] && [ $# = 0 ]; then
    # A row that this machine cannot make is not missed: what differs must be such rows.
    lost=$(diff <(wanted "$open_mpi") "$table" | grep -c '^<')
    more=$(diff <(wanted "$open_mpi") "$table" | grep -c '^>')
    if [ "$more" = 0 ] && [ "$lost" = "$(wc -w <<<"${missing-}")" ]; then ok; else
        bad "the table is not tests/faults/faults.md (tests/faults/faults_test.sh --write BUILD replaces it)"
        diff <(wanted "$open_mpi") "$table"
    fi
fi
# --- beside the table ------------------------------------------------------------------------------------------------------------
if [ $# = 0 ]; then
    # A signal while MPI starts, or while weights are read: stopped with the documented code, or done already. Before the program has
    # asked for signals the system ends it.
    for wait in 0 0.03 0.08; do
        "$ftmpi" --model "$model" --prompts prompts.txt --max-tokens 400 --ignore-eos --output early.h5 --overwrite >/dev/null 2>err &
        for _ in $(seq 500); do
            caught=$(sed -n 's/^SigCgt:[[:space:]]*/0x/p' "/proc/$!/status" 2>/dev/null)
            [ $((${caught:-0} & 1 << 14)) = 0 ] || break
            sleep 0.01
        done
        sleep $wait
        kill -TERM $!
        wait $!
        code=$?
        case $code in 0 | 7) ok ;; *) bad "SIGTERM $wait s after the program asked for signals: exit code $code" ;; esac
    done
    # N one-rank jobs are told from one job of N.
    expect_code 2 env OMPI_COMM_WORLD_SIZE= PMI_RANK=0 PMI_SIZE=2 "$ftmpi" --model "$model" --prompt And --output n.h5
    says "separate"
    expect_code 2 env OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=9 "$ftmpi" --model "$model" --prompt And --output n.h5
    # The deadline is a number that a wait can have, and is said as it was given.
    expect_code 2 "$ftmpi" --model "$model" --prompt And --output n.h5 --timeout 0.001
    says "\"0.001\" and must be at least 0.1"
    FTMPI_FAULT=1:load:stop expect_code 6 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompt And --output n.h5 --timeout 1.5
    says "did not come back within 1.5 s"
    rm -f n.h5*
    # Commands that need no ranks are done once under mpirun, and all ranks leave with the same code.
    once() { # once CODE ARGS...
        "$ftmpi" "${@:2}" >alone.out 2>alone.err
        same $? "$1" "exit code of ${*:2}"
        expect_code "$1" "$mpirun" -np 2 "$ftmpi" "${@:2}"
        if cmp -s out alone.out; then ok; else bad "under mpirun another text: ${*:2}"; fi
        same "$(grep -c '^ftmpi: error' err)" "$(grep -c '^ftmpi: error' alone.err)" "messages of ${*:2}"
    }
    once 0 plan --model "$model" --hardware 24GiB@1008,16GiB@288
    once 0 inspect --model "$model"
    once 0 verify want.h5 want.h5
    once 3 verify want.h5 none.h5
    once 8 verify want.h5 long.h5
    once 3 recover want.h5
    once 2 recover
    once 0 version
    once 0 help
    FTMPI_FAULT=0:decode#40:kill "$ftmpi" --model "$model" --prompts prompts.txt --output r.h5 >/dev/null 2>&1
    expect_code 0 "$mpirun" -np 2 "$ftmpi" recover r.h5
    same "$(grep -c '1 request recovered' out)" 1 "recoveries"
fi
finish
