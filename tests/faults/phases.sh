# Each phase times each thing that may happen to one rank in it. Rank 1 of two, but rank 0 where it writes.

phase_cases=()
define() { # define PHASE ACTION WORDS
    local phase=$1 action=$2 words=$3 name
    name=${phase}_$action
    phase_cases+=("$name")
    eval "case_$name() {
        local rank=1 at=$phase
        [ $phase = write ] && rank=0
        [ $phase = decode ] && at=decode#40  # the second of the three prompts
        [ $action = stop ] && deadline=4
        fault \$rank:\$at:$action
        job 2
        # The launcher wakes a stopped process before it kills it: it may be killed while it writes.
        [ $phase:$action != write:stop ] || rm -f f.h5.part
        # Version 5 lets it come to its end there, or not.
        [ $phase:$action:$open_mpi != write:stop:5 ] || either=yes
        case $action:\$code in kill:137 | stop:6 | throw:1 | exit:[1-9]* | int2:130 | term:7 | int:7) ;;
            term:0 | int:0) [ $phase = write ] || complain 'exit code 0' ;;  # all was done, and is written
            *) complain \"exit code \$code\" ;;
        esac
        row $phase '$words'
    }"
}
for phase in options open plan load prefill decode write; do
    define $phase throw "an exception"
    define $phase exit "the process leaves"
    define $phase kill SIGKILL
    define $phase stop SIGSTOP
    define $phase term SIGTERM
    define $phase int SIGINT
    define $phase int2 "SIGINT twice"
done

# Work that does not come back when it is asked to stop: nothing of it would be kept, so it has five seconds.
hung() { # hung PHASE NP
    local rank=$(($2 - 1)) launcher pids
    deadline=20
    fault $rank:$1:hang
    job "$2" &
    launcher=$!
    [ -n "$(reached at_fault)" ] || complain "the phase was not reached"
    pids=$(pgrep -f "^$ftmpi .*$here/")
    [ "$(wc -w <<<"$pids")" = "$2" ] || complain "$(wc -w <<<"$pids") processes instead of $2"
    began
    # shellcheck disable=SC2086
    kill -TERM $pids
    wait $launcher
    code=$?
    ended
    same_code 7
}
phase_cases+=(hung_open hung_load)
case_hung_open() {
    hung open 1
    row open "SIGTERM to a process that hangs"
}
case_hung_load() {
    hung load 2
    row load "SIGTERM to two ranks of which one hangs"
}

# The launcher is asked to stop, in the middle of the second prompt.
phase_cases+=(launcher_usr1 launcher_term launcher_int2)
long_prompts() { printf '{"prompt":"The capital of France is","max_tokens":8}\n{"prompt":"1, 2, 3,","max_tokens":3500}\n' >prompts.txt; }
launched() { # launched SIGNALS: to mpirun
    local launcher signal
    long_prompts
    options=(--ignore-eos)
    began
    # The launcher itself gets the signals, so it is started without a wrapper.
    # shellcheck disable=SC2046
    $("$mpirun" --print -np 2) "$ftmpi" --model "$model" --prompts "$here/prompts.txt" --output "$here/$output" --timeout $deadline \
        --ignore-eos --json >out 2>err </dev/null &
    launcher=$!
    await grep -q '"index":0' out || complain "the first prompt was not answered"
    for signal in $1; do
        kill -"$signal" $launcher 2>/dev/null
        sleep 0.2  # two at once would be one
    done
    wait $launcher
    code=$?
    ended
    [ "$code" != 0 ] || complain "exit code 0"
    # Version 5 asks the ranks to end, and may kill them before they have.
    case $open_mpi:$1 in 5:TERM | 5:INT*) either=yes ;; esac
}
case_launcher_usr1() {
    launched USR1
    same_code 7
    row decode "SIGUSR1 to mpirun" "$work/long.h5"
}
case_launcher_term() {
    launched TERM
    row decode "SIGTERM to mpirun" "$work/long.h5"
}
case_launcher_int2() {
    launched "INT INT"
    row decode "SIGINT twice to mpirun" "$work/long.h5"
}
