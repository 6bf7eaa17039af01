# Disks, folders and locks.

other_cases=()

# mounted NAME OPTIONS: an in-memory disk at $here/NAME, or a row that says why not.
mounted() {
    [ "$(id -u)" = 0 ] || { cannot "only root may mount"; return 1; }
    mkdir -p "$1"
    mount -t tmpfs -o "$2" tmpfs "$here/$1" 2>/dev/null || { cannot "mounting is not allowed here"; return 1; }
    echo "$here/$1" >>"$work/mounts"
}
unmount_all() { [ ! -e "$work/mounts" ] || while read -r at; do umount -l "$at"; done <"$work/mounts"; }
# What is on the small disk is brought back where there is room.
rescue() { cp small/f.h5* . 2>/dev/null; ls small/*.part >/dev/null 2>&1 && complain "a .part is left"; }

# as_user COMMAND...: as a user without root's rights.
as_user() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi; }
user_works() {
    chmod 711 "$work" && chmod 777 "$here"
    as_user "$ftmpi" plan --model "$model" --hardware 1GiB@1 >/dev/null 2>&1 || { cannot "no user without root's rights can run the program here"; return 1; }
}

other_cases+=(disk_full_at_start disk_full_in_decode disk_full_in_write)
case_disk_full_at_start() {
    mounted small size=64k || return
    head -c 65536 /dev/zero >small/filler
    output=small/f.h5
    job 2
    same_code 1
    rescue
    row results "the disk is full at the start"
}
case_disk_full_in_decode() {
    # The logits of 64 tokens are half a megabyte, those of two a few kilobytes.
    mounted small size=256k || return
    printf '{"prompt":"The capital of France is","max_tokens":2}\n{"prompt":"1, 2, 3,"}\n{"prompt":"def f(n):"}\n' >prompts.txt
    options=(--save-logits --ignore-eos)
    "$ftmpi" --model "$model" --prompts prompts.txt --output want.h5 "${options[@]}" >/dev/null 2>&1
    output=small/f.h5
    job 2 "${options[@]}"
    same_code 1
    rescue
    row decode "the disk is full after one request" want.h5
}
case_disk_full_in_write() {
    # Room for the journal, and not for the file beside it.
    mounted small size=28k || return
    output=small/f.h5
    job 2
    same_code 1
    rescue
    row write "the disk is full at the end"
}

other_cases+=(file_limit stdout_full stdout_gone stderr_full)
case_file_limit() {
    # The messages go through a pipe: the limit would cut them too.
    began
    (ulimit -f 1 && exec timeout 60 "$ftmpi" --model "$model" --prompts "$here/prompts.txt" --output "$here/f.h5" 2>&1 >out) | cat >err
    code=${PIPESTATUS[0]}
    ended
    same_code 1
    row results "ulimit -f 1: no file above 1 KiB"
}
case_stdout_full() {
    began
    timeout 60 "$ftmpi" --model "$model" --prompts "$here/prompts.txt" --output "$here/f.h5" >/dev/full 2>err
    code=$?
    ended
    same_code 1
    row decode "the standard output is a full disk"
}
case_stdout_gone() {
    began
    timeout 60 "$ftmpi" --model "$model" --prompts "$here/prompts.txt" --output "$here/f.h5" 2>err | true
    code=${PIPESTATUS[0]}
    ended
    same_code 1
    row decode "the reader of the standard output goes away"
}
case_stderr_full() {
    began
    timeout 60 "$ftmpi" --model "$model" --prompts "$here/prompts.txt" --output "$here/f.h5" >out 2>/dev/full
    code=$?
    ended
    : >err
    same_code 0
    row decode "the standard error is a full disk"
}

other_cases+=(folder_read_only folder_of_another folder_is_a_file folder_missing)
case_folder_read_only() {
    mounted small ro || return
    output=small/f.h5
    job 2
    same_code 1
    row results "the folder is mounted read-only"
}
case_folder_of_another() {
    user_works || return
    mkdir closed && chmod 555 closed
    output=closed/f.h5
    began
    as_user timeout 60 "$ftmpi" --model "$model" --prompts "$here/prompts.txt" --output "$here/$output" >out 2>err
    code=$?
    ended
    same_code 1
    row results "the folder may not be written to by this user"
}
case_folder_is_a_file() {
    output=prompts.txt/f.h5
    job 2
    same_code 2
    row results "a file in place of the folder"
}
case_folder_missing() {
    output=no/such/f.h5
    job 2
    same_code 2
    [ ! -e no ] || complain "the folder was made"
    row results "no folder"
}

other_cases+=(locked_by_a_run locked_by_a_reader)
stopped() { # stopped: waits for the process of this case that stops itself, and prints its id
    local pid
    pid=$(reached at_fault) && await is_stopped "$pid" && echo "$pid"
}
case_locked_by_a_run() {
    FTMPI_FAULT=0:decode#40:stop FTMPI_FAULT_REACHED=at_fault "$ftmpi" --model "$model" --prompts prompts.txt --output "$here/f.h5" >first.out 2>first.err &
    local first=$! pid
    pid=$(stopped)
    job 2
    same_code 1
    kill -CONT "$pid"
    wait $first || complain "the first run ended with $?"
    row results "another run writes the same output (it goes on to its end)"
}
case_locked_by_a_reader() {
    cp "$work/want.h5" f.h5
    flock -x f.h5 sleep 60 &
    local holder=$!
    await is_locked f.h5 || complain "the lock was not taken"
    export HDF5_USE_FILE_LOCKING=TRUE
    job 2 --overwrite
    kill $holder
    unset HDF5_USE_FILE_LOCKING
    same_code 0
    row write "another process holds a lock on the old result, HDF5_USE_FILE_LOCKING=TRUE"
}
