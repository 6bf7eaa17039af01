# Sourced by run.sh: a rank that dies, stops or is asked to end while GPUs decode, on every transport.
# fault_run FAULT TRANSPORT SECONDS: two ranks with that FTMPI_FAULT and deadline; what is left of them is a failure of its own.
fault_run() {
    rm -f "$work"/fault.h5*
    timed 60 env FTMPI_FAULT="$1" "$mpirun" -np 2 "$ftmpi" --backend cuda --model "$root/data/tiny-nvfp4" --prompts "$work/prompts.jsonl" \
        --transport "$2" --shares 3,1 --output "$work/fault.h5" --timeout "$3"
    cp "$work/err" "$work/fault_err"
    fault_code=$code fault_spent=$spent
}

# fault_row CHECK CONDITION-RESULT FIGURE: of the last fault_run.
fault_row() {
    spent=$fault_spent
    if [ "$2" = 0 ]; then passed_row faults "$1" "$3"; return; fi
    failed_row faults "$1" "exit code $fault_code"
    tail -n 6 "$work/fault_err" | sed 's/^/    | /'
    return 1
}

# fault_rest CHECK: the finished requests come back, and the rest of the job gives the answer that an undisturbed one gives.
fault_rest() {
    if [ ! -e "$work/fault.h5" ]; then
        timed 30 "$ftmpi" recover "$work/fault.h5"
        row faults "$1: finished requests recovered" "$(tail -n 1 "$work/out")" || return
    fi
    timed 60 "$ftmpi" --backend cuda --model "$root/data/tiny-nvfp4" --prompts "$work/prompts.jsonl" --output "$work/fault.h5" --resume
    grep -q '^resumed: [1-9]' "$work/err" || code=1
    row faults "$1: resumed" "$(grep '^resumed' "$work/err")" || return
    timed 30 "$ftmpi" verify "$reference" "$work/fault.h5"
    row faults "$1: the same answer" "$(head -n 1 "$work/out")"
}

small_faults() {
    local transport message good rest
    if [ "$gpus" -lt 2 ]; then left_out_row faults "a rank that dies, stops or is asked to end" "one GPU here"; return; fi
    small_reference tiny-nvfp4 bf16 || return
    for transport in peer pinned nccl mpi; do
        # What is left of the job is taken up again after one of the three faults, to save time.
        case $transport in peer | nccl) rest=stop ;; *) rest=term ;; esac
        # Stopped: the other rank gives up at the deadline and says which exchange it was in and for whom it waited.
        fault_run 1:decode#40:stop $transport 3
        message=$(grep '^ftmpi: error' "$work/fault_err" | head -n 1)
        good=1
        [ $fault_code != 0 ] && [ $fault_code -lt 124 ] && [ $fault_spent -lt 30 ] &&
            [[ $message =~ \'[a-z\ ]+\'\ was\ not\ finished\ within\ 3\ s ]] && good=0
        fault_row "$transport: a rank that stops" $good "$message" && [ $rest = stop ] && fault_rest "$transport, stopped"
        # Dead: mpirun or the other rank notices.
        fault_run 1:decode#40:kill $transport 3
        good=1
        [ $fault_code != 0 ] && [ $fault_code != 124 ] && [ $fault_spent -lt 30 ] && good=0
        fault_row "$transport: a rank that dies" $good "exit code $fault_code"
        # Asked to end: all ranks at the same step, or they would be out of step; what is finished is saved.
        fault_run 1:decode#40:term $transport 20
        good=1
        [ $fault_code = 7 ] && [ -e "$work/fault.h5" ] && grep -q interrupted "$work/fault_err" && good=0
        fault_row "$transport: SIGTERM on one rank" $good "$(grep -h 'interrupted' "$work/fault_err" | head -n 1)" &&
            [ $rest = term ] && fault_rest "$transport, interrupted"
    done
    # Rank 0 is the one that writes: what it had finished is in the journal.
    fault_run 0:decode#40:kill peer 3
    good=1
    [ $fault_code != 0 ] && [ $fault_code != 124 ] && [ -e "$work/fault.h5.journal" ] && good=0
    fault_row "peer: the writing rank dies" $good "exit code $fault_code" && fault_rest "peer, writer dead"
    if pgrep -f "$ftmpi --backend cuda" >/dev/null; then failed_row faults "no process is left" "$(pgrep -af "$ftmpi --backend cuda" | head -n 2)"; else
        passed_row faults "no process is left" ""
    fi
}
