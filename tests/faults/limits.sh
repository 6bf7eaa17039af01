# Limits of memory, stack, threads and files.

other_cases+=(memory stack_soft stack_hard threads files)
case_memory() {
    if sanitized; then
        cannot "AddressSanitizer cannot run under a limit of addresses"
        return
    fi
    # From less than MPI needs to more than the run needs. Each has one message, or is done.
    local limit codes= ends=0 all=
    for ((limit = 40; limit <= 328; limit += 12)); do
        rm -f f.h5*
        (ulimit -v $((limit * 1024)) && alone --max-tokens 4 --threads 2; echo "$code $took" >result)
        read -r code took <result
        [ -e f.h5.part ] && complain "a .part is left at $limit MiB"
        if [ "$code" = 127 ] && grep -q 'error while loading shared libraries' err; then continue; fi  # ld.so's word
        case $code in
            0) ends=$((ends + 1)) ;;
            1 | 4)
                [ "$(grep -c '^ftmpi: error' err)" = 1 ] || complain "$(grep -c '^ftmpi: error' err) messages at $limit MiB"
                grep -qiE 'memory|address space|thread' err || complain "at $limit MiB: $(message)"
                all="$all$(message);"
                ;;
            *) complain "exit code $code at $limit MiB: $(tail -n 1 err)" ;;
        esac
        case " $codes " in *" $code "*) ;; *) codes="$codes $code" ;; esac
    done
    case " $codes " in *" 1 "*) ;; *) complain "no limit was too small for MPI" ;; esac
    case " $codes " in *" 4 "*) ;; *) complain "no limit was too small for the model" ;; esac
    [ "$ends" -gt 3 ] || complain "only $ends limits were large enough"
    case $all in *"out of host memory"*) ;; *) complain "no limit was met by the model" ;; esac
    "$ftmpi" --model "$model" --prompts prompts.txt --output few.h5 --max-tokens 4 >/dev/null 2>&1
    rm -f f.h5*
    options=(--max-tokens 4)
    alone "${options[@]}"
    code="1 or 4, at last 0"
    echo "ftmpi: error: the address space is limited ..., cannot be mapped ..., a thread cannot be started ... or out of host memory ..." >err
    row any "ulimit -v in steps from 40 to 328 MiB (one process)" few.h5
}
case_stack_soft() {
    (ulimit -S -s 64 && alone; echo "$code $took" >result)
    read -r code took <result
    same_code 0
    row any "ulimit -S -s 64: a stack of 64 KiB that may be raised"
}
case_stack_hard() {
    user_works || return
    began
    as_user bash -c "ulimit -s 64; exec '$ftmpi' --model '$model' --prompts '$here/prompts.txt' --output '$here/f.h5'" >out 2>err
    code=$?
    ended
    same_code 1
    row options "ulimit -s 64: a stack of 64 KiB"
}
case_threads() {
    user_works || return
    # Limits of processes count all of the user's, so it must be one who has no others.
    [ "$(id -u)" = 0 ] || { cannot "limits of processes count all of this user's"; return; }
    began
    setpriv --reuid=64123 --regid=64123 --clear-groups bash -c "ulimit -u 1; exec '$ftmpi' --model '$model' --prompts '$here/prompts.txt' --output '$here/f.h5' --threads 2" >out 2>err
    code=$?
    ended
    # MPI of version 5 needs a thread to start and leaves with a code of its own.
    if [ "$open_mpi" = 4 ]; then same_code 1; else same_code 14; fi
    row options "ulimit -u 1: no threads"
}
case_files() {
    (ulimit -n 24 && alone; echo "$code $took" >result)
    read -r code took <result
    case $code in 0 | 1 | 3) ;; *) complain "exit code $code" ;; esac
    # How many MPI needs differs; that none is a crash, and what is made is whole, does not.
    [ "$code" = 0 ] || [ "$(grep -c '^ftmpi: error' err)" = 1 ] || complain "$(grep -c '^ftmpi: error' err) messages"
    code="0, or one message"
    : >err
    rm -f f.h5*
    row any "ulimit -n 24: few open files"
}
