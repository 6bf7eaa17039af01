# Sourced by run.sh: commands with a time limit, and a table that is printed line by line.
passed=0 failed=0 left_out=0 give_until=100000

begin_table() { printf '\n%-10s %-44s %-7s %6s  %s\n' phase check result s figure; }

# timed SECONDS COMMAND...: output to $work/out and $work/err, exit code to $code, seconds to $spent. Never hangs.
timed() {
    local limit=$1 begin=$SECONDS
    shift
    [ "$limit" -le $((give_until - SECONDS)) ] || limit=$((give_until - SECONDS))
    if [ "$limit" -lt 1 ]; then
        : >"$work/out"
        echo "not begun: the time of this run is used up" >"$work/err"
        code=124 spent=0
        return $code
    fi
    timeout -k 5 "$limit" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    spent=$((SECONDS - begin))
    [ $code != 124 ] && [ $code != 137 ] || echo "stopped after $limit s" >>"$work/err"
    return $code
}

line() { printf '%-10s %-44s %-7s %6s  %s\n' "$@"; }
passed_row() { passed=$((passed + 1)); line "$1" "$2" ok "${spent:-}" "$3"; }
failed_row() { failed=$((failed + 1)); line "$1" "$2" FAILED "${spent:-}" "$3"; return 1; }
# A check that this machine cannot make; said, and counted apart.
left_out_row() { left_out=$((left_out + 1)); line "$1" "$2" "not run" "" "$3"; }

# row PHASE CHECK FIGURE: of the last timed command, by its exit code; what it said last when it failed.
row() {
    if [ "$code" = 0 ]; then passed_row "$1" "$2" "$3"; return; fi
    failed_row "$1" "$2" "exit code $code"
    tail -n 6 "$work/err" "$work/out" | sed 's/^/    | /'
    return 1
}

# figure NAME: the first "NAME":number of the JSON in $work/out.
figure() { grep -o "\"$1\":[0-9.e+-]*" "$work/out" | head -n 1 | cut -d: -f2; }
# holds 'EXPRESSION': of numbers, by awk.
holds() { awk "BEGIN { exit !($1) }"; }

finish_table() {
    echo
    [ $left_out = 0 ] || echo "$left_out checks were not run here, each with its reason above"
    echo "$passed passed, $failed failed in $SECONDS s"
    [ $failed = 0 ] && [ $passed -gt 0 ]
}

# memory_rows PHASE CHECK [FILE]: what the last timed command's ranks took of their GPUs against their plans, within 1% or the 32 MiB that pages
# and the driver's own needs may make of it.
memory_rows() {
    local rank planned given said=${3:-$work/err}
    if ! grep -q '^memory: rank' "$said"; then failed_row "$1" "$2: memory" "nothing says what was taken"; return 1; fi
    while read -r rank planned given; do
        if holds "($given - $planned)^2 <= 32^2 || ($given - $planned)^2 <= (0.01 * $planned)^2"; then
            passed_row "$1" "$2: memory of rank $rank" "planned $planned MiB, taken $given MiB"
        else
            failed_row "$1" "$2: memory of rank $rank" "planned $planned MiB, taken $given MiB"
            sed -n '/^Memory in MiB, planned and held/,/^[^0-9r]/p' "$said" | sed 's/^/    | /'
        fi
    done < <(sed -n 's/^memory: rank \([0-9]*\) planned \([0-9.]*\) MiB, its GPU has given \(-\{0,1\}[0-9.]*\) MiB$/\1 \2 \3/p' "$said")
}

# ranks N COMMAND...: the words that start it on N ranks, for timed.
ranks() {
    local n=$1
    shift
    if [ "$n" = 1 ]; then command_line=("$@"); else command_line=("$mpirun" -np "$n" "$@"); fi
}

# against REFERENCE PHASE CHECK SECONDS RANKS TRANSPORT OPTION...: runs prompts and holds every id and every logit of them equal to
# those of the result file REFERENCE. TRANSPORT is the one that must have been used, or - for none to ask for.
against() {
    local reference=$1 phase=$2 check=$3 limit=$4 np=$5 transport=$6 total
    shift 6
    [ "$transport" = - ] || set -- "$@" --transport "$transport"
    if [ ! -f "$reference" ]; then failed_row "$phase" "$check" "no reference: $reference was not made"; return 1; fi
    rm -f "$work/other.h5" "$work/other.h5.journal"
    ranks "$np" "$ftmpi" "$@" --output "$work/other.h5" --timeout 60
    timed "$limit" "${command_line[@]}"
    total=$spent
    if [ $code != 0 ]; then row "$phase" "$check" ""; return 1; fi
    if [ "$transport" != - ] && ! grep -q "^transport: $transport " "$work/err"; then
        failed_row "$phase" "$check" "$(grep '^transport:' "$work/err" || echo 'no transport was named')"
        return 1
    fi
    cp "$work/err" "$work/run_err"
    timed 60 "$ftmpi" verify "$reference" "$work/other.h5"
    spent=$total
    if [ $code = 0 ] && grep -q '^equal: ' "$work/out"; then
        passed_row "$phase" "$check" "$(sed -n 's/^equal: \(.*hash [0-9a-f]\{16\}\).*/\1/p' "$work/out")"
    else
        failed_row "$phase" "$check" "$(grep -hE '^(different|equal tokens)' "$work/out" || tail -n 1 "$work/err")"
    fi
}
