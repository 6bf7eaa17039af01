# How many prompts, how long, and what is no prompt.

other_cases+=(no_prompts blank_file empty_argument empty_line empty_json duplicate_ids)
case_no_prompts() {
    began
    timeout 60 "$mpirun" -np 2 "$ftmpi" --model "$model" --output "$here/f.h5" >out 2>err
    code=$?
    ended
    same_code 2
    row options "no prompt is given"
}
refused() { # refused CODE WORDS: with the prompts.txt that was made
    job 2
    same_code "$1"
    [ ! -e f.h5.journal ] || complain "a journal is left"
    printf 'one\n' >prompts.txt  # what can be counted
    row options "$2"
}
case_blank_file() {
    printf '\n\n' >prompts.txt
    refused 3 "a prompts file without prompts"
}
case_empty_argument() {
    began
    timeout 60 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompt "" --output "$here/f.h5" >out 2>err
    code=$?
    ended
    same_code 2
    row options "an empty prompt as argument"
}
case_empty_line() {
    printf 'one\n\nthree\n' >prompts.txt
    refused 3 "an empty prompt in a file"
}
case_empty_json() {
    printf '{"prompt":"one"}\n{"prompt":""}\n' >prompts.txt
    refused 3 "an empty prompt in JSONL"
}
case_duplicate_ids() {
    printf '{"id":"a","prompt":"one"}\n{"id":"a","prompt":"two"}\n' >prompts.txt
    refused 3 "an id twice"
}

other_cases+=(one_megabyte three_hundred_megabytes ten_thousand more_ranks_than_heads)
# The long one is refused, the others are answered.
long_one() { # long_one BYTES
    { head -c "$1" /dev/zero | tr '\0' a; printf '\nThe capital of France is\n'; } >prompts.txt
    alone
    same_code 9
    [ "$("$ftmpi" verify f.h5 f.h5 2>/dev/null | grep -c '^equal: 2 requests')" = 1 ] || complain "the other request is not answered"
    cp f.h5 want.h5
}
case_one_megabyte() {
    long_one 1000000
    row plan "a prompt of 1 MB before another (one process)" want.h5
}
case_three_hundred_megabytes() {
    # Bound by memory and disk, not by time: it is refused before it is tokenized.
    deadline=60
    long_one 300000000
    row plan "a prompt of 300 MB in one line before another (one process; it is refused without being tokenized)" "" "2 of 2"
    rm -f prompts.txt want.h5 f.h5
}
case_ten_thousand() {
    deadline=300 patience=400
    if sanitized; then deadline=900 patience=1200; fi
    seq 1 10000 | awk '{printf "{\"ids\":[%d]}\n", $1 % 1500 + 1}' >prompts.txt
    options=(--max-tokens 1 --batch 64)
    job 2 "${options[@]}"
    same_code 0
    cp f.h5 want.h5
    row any "10,000 prompts" want.h5
}
case_more_ranks_than_heads() {
    deadline=60
    job 6
    same_code 0
    row any "six ranks for four heads"
}
