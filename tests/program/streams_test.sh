#!/usr/bin/env bash
# Standard streams that are full, closed or on a full disk, and ranks that were not started alike: the one message, the exit code.
. "$(dirname "$0")/../support/check.sh"
cd "$work"
run=("$ftmpi" --model "$model" --prompt Hello --max-tokens 3 --overwrite)

# A full pipe that nobody reads: a print waits in it, and a signal must end the run all the same; what was finished is kept.
mkfifo pipe
exec 7<>pipe
dd if=/dev/zero of=pipe oflag=nonblock bs=4096 2>/dev/null
# writes PID: one of its threads is in a write to one of the first two streams.
writes() {
    local call number stream
    for call in /proc/"$1"/task/*/syscall; do
        read -r number stream _ <"$call" || continue
        case $number:$stream in 1:0x[12] | 20:0x[12]) return 0 ;; esac
    done
    return 1
}
# held WHAT COMMAND...: SIGTERM while the command waits in a print.
held() {
    local what=$1 pid begin
    shift
    "$@" </dev/null &
    pid=$!
    await writes $pid && ok
    begin=$SECONDS
    kill -TERM $pid
    wait $pid
    same $? 7 "exit code, $what"
    if [ $((SECONDS - begin)) -le 60 ]; then ok; else bad "$what took $((SECONDS - begin)) s to end"; fi
}
to_pipe() { exec "${@:2}" >pipe 2>err; }
err_to_pipe() { exec "${@:2}" >out 2>pipe; }
held "text" to_pipe - "${run[@]}" --output text.h5
says "error in printing on rank 0"
held "JSON" to_pipe - "${run[@]}" --json --output json.h5
expect_code 0 "$ftmpi" recover json.h5
held "the plan" err_to_pipe - "${run[@]}" --output plan.h5
absent plan.h5
exec 7>&-

# Closed from the start: no file may get such a number, or messages would be written into it.
closed() { "$@" >&- <&- 2>err; }
expect_code 1 closed "${run[@]}" --output closed.h5
grep -qF "standard output could not be written" err && ok || bad "nothing says that the output is lost: $(cat err)"
expect_code 0 "$ftmpi" verify closed.h5 closed.h5
all_closed() { "$@" <&- >&- 2>&-; }
expect_code 1 all_closed "${run[@]}" --output all_closed.h5
expect_code 0 "$ftmpi" verify closed.h5 all_closed.h5
no_errors() { "$@" 2>&-; }
expect_code 0 no_errors "${run[@]}" --output no_errors.h5
expect_code 0 "$ftmpi" verify closed.h5 no_errors.h5
full() { "$@" >/dev/full; }
expect_code 1 full "${run[@]}" --output full.h5
expect_code 0 "$ftmpi" verify closed.h5 full.h5

# Commands that need no ranks leave MPI alone: the first process does what it was given, once, and the others end.
pair() { each "$ftmpi" "${first[@]}" : "$ftmpi" "${second[@]}"; }
first=(inspect "$model") second=(recover closed.h5)
expect_code 0 pair
same "$(grep -c "qwen3_5_moe, hidden 256" "$work/out")" 1 "models shown"
first=(verify closed.h5 nothing.h5) second=(verify closed.h5 full.h5)
expect_code 3 pair
says "nothing.h5"
first=(plan --model "$model" --hardware 24GiB@1008) second=(plan --model "$root/data/tiny-fp8" --hardware 24GiB@1008)
expect_code 0 pair
same "$(grep -c "^Capacity:" "$work/out")" 1 "plans shown"
first=(verify closed.h5 full.h5) second=(verify closed.h5 full.h5)
expect_code 0 pair
finish
