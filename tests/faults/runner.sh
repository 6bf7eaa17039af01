# Sourced by faults_test.sh: runs cases side by side, each in a folder of its own, and makes one row of each.
#
# A case is a function case_NAME that runs in its folder $here (with prompts.txt of three prompts) and calls
#   fault FAULT          what to arm (FTMPI_FAULT) for the next job; none when left out
#   job NP ARGS...       (a fault that is reached writes to at_fault) the program under mpirun, with --prompts, --output f.h5 and --timeout $deadline unless ARGS say otherwise
#   row PHASE WHAT       checks what holds for every fault, and writes the row
# Rows hold no times and no machine: they must be the same everywhere.

output=f.h5  # below $here
patience=90  # seconds after which the test gives a job up
deadline=20  # seconds a job may wait for its ranks; cases that wait for it lower it
armed= code= took= started=
either=  # whether a finished file and its journal are both right

fault() { armed=$1; }

# began / ended: around whatever a case runs by itself.
began() { started=$(date +%s%N); }
ended() {
    took=$((($(date +%s%N) - started) / 1000000))
    for file in out err; do if [ -f $file ]; then as_text $file; fi; done
}

job() {
    local np=$1
    shift
    began
    FTMPI_FAULT=$armed FTMPI_FAULT_REACHED=$here/at_fault timeout -k 1 $patience "$mpirun" -np "$np" "$ftmpi" --model "$model" --prompts "$here/prompts.txt" --output "$here/$output" \
        --timeout "$deadline" "$@" >out 2>err </dev/null
    code=$?
    ended
    return $code
}
# The program by itself, without mpirun.
alone() {
    began
    FTMPI_FAULT=$armed timeout -k 1 $patience "$ftmpi" --model "$model" --prompts "$here/prompts.txt" --output "$here/$output" --timeout "$deadline" "$@" \
        >out 2>err </dev/null
    code=$?
    ended
}

# What was said: the program's own words, else the launcher's, without what differs between machines.
message() {
    local text
    # Version 5 may put other output before it on its line.
    text=$(grep -ho 'ftmpi: error.*' err | sed 's/^ftmpi: error//; s/^: //; s/^ //')
    [ -n "$text" ] || text=$(grep -h '^ftmpi: request [0-9]* failed' err | sed 's/^ftmpi: //' | sort -u | head -n 1)
    [ -n "$text" ] || text=$(grep -ho 'interrupted: .*' err)
    # Version 5 calls mpirun prterun, and breaks the line.
    [ -n "$text" ] || text=$(tr '\n' ' ' <err | grep -oE '(mpirun|prterun) noticed that process rank [0-9]+ [^.]* on signal [0-9]+ \([^)]*\)' |
        sed -E 's/with PID [0-9]+ on node [^ ]+ //; s/^(mpirun|prterun) noticed that process/(mpirun:/; s/$/)/' | head -n 1)
    [ -n "$text" ] || text=$(grep -hq 'Exit code: *[0-9]' err && grep -hoE 'Exit code: *[0-9]+' err | head -n 1 | sed -E 's/Exit code: */(mpirun: a process left with code /; s/$/)/')
    printf '%s' "${text:-none}" | tr '\n' ';' | sed -e "s#$here/##g" -e "s#$root/##g" -e "s/($(hostname))/(HOST)/g" -e "s/a record of [0-9]* bytes/a record of N bytes/" -e 's/|/\\|/g'
}

# What lies in the folder now.
left() {
    local all=
    [ -e f.h5 ] && all="f.h5"
    [ -e f.h5.journal ] && all="$all${all:+, }journal"
    [ -e f.h5.part ] && all="$all${all:+, }part"
    printf '%s' "${all:-nothing}"
}

# kept WANT: how many finished requests come back, shown by going on from them to the result of an undisturbed run.
kept() {
    local total finished
    total=$(grep -c . prompts.txt)
    if [ -e f.h5.journal ]; then "$ftmpi" recover f.h5 >recovered 2>&1 || rm -f f.h5.journal; fi
    [ -e f.h5 ] || { printf '0 of %s' "$total"; return; }
    "$ftmpi" --model "$model" --prompts prompts.txt --output f.h5 --resume --timeout 60 "${options[@]}" >resumed 2>&1
    case $? in 0 | 9) ;; *) printf 'UNUSABLE'; return ;; esac  # 9: one of them had failed
    finished=$(grep -oE '^resumed: [0-9]+' resumed | grep -oE '[0-9]+')
    "$ftmpi" verify "$1" f.h5 >verified 2>&1 || { printf 'DIFFERENT'; return; }
    printf '%s of %s' "${finished:-0}" "$total"
}

# running: the processes of this case. Dead ones that no one has waited for do not count.
running() { ps -o stat=,args= -A | awk -v here="$here/" '$1 !~ /^Z/ && index($0, here) && $2 !~ /^(awk|ps)$/' | grep -c "ftmpi"; }

ended_by() {
    if [ "$took" -gt $((deadline * 1000 + 60000)) ]; then printf 'LATE'
    elif [ "$took" -ge $((deadline * 1000)) ]; then printf 'at the deadline'
    else printf 'before the deadline'; fi
}

# row PHASE WHAT [WANTED RESULT [KEPT]]: the row, and what must hold for each. KEPT where the case has found it out itself.
row() {
    local words files back end n i
    words=$(message) files=$(left) end=$(ended_by)
    n=$(grep -c 'ftmpi: error' err)
    [ "$n" -le 1 ] || complain "$n messages"
    case $either:$files in yes:f.h5 | yes:journal) files="f.h5 or journal" ;; esac
    case $end in LATE) complain "took $took ms" ;; esac
    case $files in *part*) complain "a .part is left" ;; esac
    case $code in 124 | 139 | 134 | 135 | 136) complain "exit code $code" ;; esac
    grep -q 'terminate called\|Segmentation\|Aborted' err && complain "it crashed"
    for ((i = 0; i < 300; i++)); do [ "$(running)" = 0 ] && break; sleep 0.1; done
    [ "$i" -lt 300 ] || complain "$(running) processes are left"
    if [ $# -ge 4 ]; then back=$4; else back=$(kept "${3:-$work/want.h5}"); fi
    case $back in *[A-Z]*) complain "what was kept: $back" ;; esac
    printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$2" "$code" "$words" "$files" "$back" "$end" >row
}
complain() { echo "$*" >>complaints; }

# same_code CODE: what the case must give, whatever tests/faults/faults.md says.
same_code() { [ "$code" = "$1" ] || complain "exit code $code instead of $1"; }

# cannot REASON: this machine cannot make the fault; the row is left out of the comparison.
cannot() { printf 'SKIPPED %s\n' "$*" >row; }

# sanitized: the program is one of AddressSanitizer, which takes more addresses for itself than any limit of them.
sanitized() { grep -q __asan_init "$ftmpi"; }

# run_cases WIDTH NAMES...: so many at a time, those that wait for a deadline among them.
run_cases() {
    local width=$1 name
    shift
    for name in "$@"; do
        while [ "$(jobs -rp | wc -l)" -ge "$width" ]; do wait -n; done
        (
            here=$work/$name
            mkdir "$here" && cd "$here" || exit
            printf 'The capital of France is\n1, 2, 3,\ndef fibonacci(n):\n' >prompts.txt
            options=()
            "case_$name" </dev/null >case.log 2>&1
        ) &
    done
    wait
}
