#!/usr/bin/env bash
# A rank that throws, hangs, stops or dies in each phase: non-zero exit, one message, gone in time, nothing finished lost.
. "$(dirname "$0")/check.sh"
cd "$work"
cat >prompts.txt <<'P'
The capital of France is
1, 2, 3,
def fibonacci(n):
P
"$ftmpi" --model "$model" --prompts prompts.txt --output want.h5 >/dev/null 2>&1 || bad "the run to compare with"

# run_fault FAULT TIMEOUT: the exit code in $code, the seconds in $took.
run_fault() {
    rm -f f.h5*
    local begin
    begin=$(date +%s%N)
    FTMPI_FAULT=$1 timeout -k 1 60 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts prompts.txt --output f.h5 --timeout "$2" \
        >out 2>err </dev/null
    code=$?
    took=$((($(date +%s%N) - begin) / 1000000))
}

for phase in options open plan load prefill decode write; do
    for action in throw exit kill hang stop; do
        timeout=5 limit=15000
        [ $action = hang ] || [ $action = stop ] && timeout=2 limit=12000
        run_fault "1:$phase:$action" $timeout
        case $action:$code in
            *:0 | *:124) bad "$phase $action: exit code $code" ;;
            kill:137) ok ;;
            *:137) bad "$phase $action: exit code $code" ;;
            *) ok ;;
        esac
        if [ $took -lt $limit ]; then ok; else bad "$phase $action: took $took ms"; fi
        messages=$(grep -c '^ftmpi: error' err)
        case $action in
            throw | hang | stop) if [ "$messages" = 1 ]; then ok; else bad "$phase $action: $messages messages"; tail -n 6 err; fi ;;
            *) if [ "$messages" -le 1 ]; then ok; else bad "$phase $action: $messages messages"; fi ;;
        esac
        # Rank 0 may have finished the file before rank 1 failed in the last phase; then it is whole.
        if [ $phase = write ] && [ -e f.h5 ]; then expect_code 0 "$ftmpi" verify want.h5 f.h5; else absent f.h5; fi
        if pgrep -f "$ftmpi --model" >/dev/null; then
            sleep 1
            if pgrep -f "$ftmpi --model" >/dev/null; then bad "$phase $action: a process is left"; pkill -9 -f "$ftmpi --model"; else ok; fi
        else ok; fi
    done
done

# The rank that writes fails while writing: the journal gives everything back.
for action in throw kill; do
    run_fault 0:write:$action 5
    [ $code != 0 ] && ok || bad "exit code 0 after a fault while writing"
    if [ -e f.h5 ]; then bad "f.h5 exists"; fi
    expect_code 0 "$ftmpi" recover f.h5
    expect_code 0 "$ftmpi" verify want.h5 f.h5
done

# What was finished before the fault comes back.
run_fault 1:decode#40:kill 5
present f.h5.journal
expect_code 0 "$ftmpi" recover f.h5
says "recovered"
run_fault 0:decode#40:kill 5
expect_code 0 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts prompts.txt --output f.h5 --resume
expect_code 0 "$ftmpi" verify want.h5 f.h5

# SIGTERM: the step ends, what is finished is saved, the exit code says so.
run_fault 1:decode#40:term 10
same $code 7 "exit code after SIGTERM"
present f.h5
grep -q "interrupted" err && ok || bad "nothing says that the run was interrupted"
expect_code 0 "$ftmpi" --model "$model" --prompts prompts.txt --output f.h5 --resume
expect_code 0 "$ftmpi" verify want.h5 f.h5

# A signal while MPI starts, or while weights are read: stopped with the documented code, or done already.
for wait in 0.03 0.05 0.08; do
    "$ftmpi" --model "$model" --prompts prompts.txt --max-tokens 400 --ignore-eos --output early.h5 --overwrite >/dev/null 2>err &
    sleep $wait
    kill -TERM $!
    wait $!
    code=$?
    case $code in 0 | 7) ok ;; *) bad "SIGTERM after $wait s: exit code $code" ;; esac
done

# Limits and readers that go away are failures of a write, not the end of the process.
expect_code 1 bash -c "ulimit -f 1; exec '$ftmpi' --model '$model' --prompt And --output limit.h5"  # what it says is cut by the same limit
absent limit.h5
"$ftmpi" --model "$model" --prompts prompts.txt --output full.h5 >/dev/full 2>err
same $? 1 "exit code when stdout is a full disk"
expect_code 0 "$ftmpi" verify want.h5 full.h5
"$ftmpi" --model "$model" --prompts prompts.txt --output piped.h5 2>err | head -n 1 >/dev/null
expect_code 0 "$ftmpi" verify want.h5 piped.h5

# Other weights under the same configuration and index do not go on where the first ones stopped.
cp -r "$root/data/tiny-fp8" first && cp -r first second
dd if=first/model-00001-of-00001.safetensors of=second/model-00001-of-00001.safetensors bs=1M skip=2 seek=5 count=4 conv=notrunc 2>/dev/null
FTMPI_FAULT=0:decode#40:kill "$ftmpi" --model first --prompts prompts.txt --output mixed.h5 >/dev/null 2>&1
present mixed.h5.journal
expect_code 3 "$ftmpi" --model second --prompts prompts.txt --output mixed.h5 --resume
says "weights"

# N one-rank jobs are told from one job of N.
expect_code 2 env OMPI_COMM_WORLD_SIZE= PMI_RANK=0 PMI_SIZE=2 "$ftmpi" --model "$model" --prompt And --output n.h5
says "separate"
expect_code 2 env OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=9 "$ftmpi" --model "$model" --prompt And --output n.h5
finish
