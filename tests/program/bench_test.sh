#!/usr/bin/env bash
# bench on the CPU: every combination is measured on every rank, the bits are those of run, everything is in the file.
. "$(dirname "$0")/../support/check.sh"
cd "$work"
lengths=(--prompt-lengths 5,40 --decode-lengths 6 --batches 1,3 --repeats 2)
# figure NAME FILE: the number after "NAME": in JSON, the first one.
figure() { grep -o "\"$1\":[0-9.e+-]*" "$2" | head -n 1 | cut -d: -f2; }
positive() { if awk -v v="${1:-0}" 'BEGIN { exit !(v > 0) }'; then ok; else bad "$2 is \"$1\""; fi; }

expect_code 0 "$ftmpi" bench --model "$model" "${lengths[@]}" --output one.h5
says "decode  batch"
says "rank 0 reads"
says "results: one.h5"
sha=$(grep -o 'sha256 [0-9a-f]*' out)
same "${#sha}" 71 "length of the prompt's logits hash"
same "$(grep -cE '^ +(5|40) +6 +(1|3) ' out)" 8 "rows of the two tables"

expect_code 0 "$mpirun" -np 2 "$ftmpi" bench --model "$model" "${lengths[@]}" --shares 3,1 --json --output two.h5
same "sha256 $(grep -o '"prompt_logits_sha256":"[0-9a-f]*"' out | cut -d'"' -f4)" "$sha" "hash of the prompt on two ranks"
same "$(wc -l <out)" 1 "lines of JSON"
same "$(grep -o '"batch":' out | wc -l)" 4 "measured combinations"
same "$(grep -o '"gather_median_seconds":' out | wc -l)" 8 "ranks in all combinations"
cp out figures.json
for name in load_seconds exchange_seconds prefill_seconds step_median_seconds decode_tokens_per_second roofline_share \
    gather_median_seconds delta_net total; do
    positive "$(figure $name figures.json)" "$name"
done
expect_code 0 "$ftmpi" verify one.h5 two.h5
says "16 requests"

# Hashing while measuring: each request's hash is that of one rank.
expect_code 0 "$ftmpi" bench --model "$model" "${lengths[@]}" --hash on --output h1.h5
says "hashing while measuring: on"
expect_code 0 "$mpirun" -np 3 "$ftmpi" bench --model "$model" "${lengths[@]}" --hash on --policy even --warmup 0 --output h2.h5
expect_code 0 "$ftmpi" verify h1.h5 h2.h5
expect_code 0 "$ftmpi" bench --model "$model" "${lengths[@]}" --seed 1 --output other.h5
expect_code 8 "$ftmpi" verify one.h5 other.h5

if command -v h5dump >/dev/null; then
    h5dump -d /summary/series/p40_d6_b3_step_seconds two.h5 >dump.txt
    same "$(grep -c 'SIMPLE { ( 2, 12 )' dump.txt)" 1 "shape [2 ranks][12 steps] of the step times"
    h5dump -n two.h5 >names.txt
    for name in summary/p5_d6_b1_roofline_share summary/p5_d6_b3_rank1_experts_bytes summary/series/p5_d6_b1_gather_seconds \
        summary/rank1_read_bytes_per_second summary/exchange_median_seconds requests/15/step_seconds; do
        if grep -q "/$name" names.txt; then ok; else bad "two.h5 has no $name"; fi
    done
else
    skipped "the figures in bench's file (h5dump is not installed)"
fi

# --- which kernel serves each operator, on every rank alike ------------------------------------------------------------
expect_code 0 "$mpirun" -np 2 "$ftmpi" bench --model "$model" --prompt-lengths 5 --decode-lengths 2 --batches 1,2 --repeats 1 \
    --kernels --output kernels.h5
same "$(grep -cE '^prefill 4 +4 +attention .* attend, [A-Za-z0-9 -]+ +[0-9]+ +[0-9.]+$' out)" 1 "attention of four rows"
same "$(grep -cE '^decode 2 +2 +experts_down .* dot, ' out)" 1 "experts of two sequences"

# --- what cannot be measured is refused before any work ---------------------------------------------------------------
expect_code 2 "$mpirun" -np 2 "$ftmpi" bench --model "$model" --prompt-lengths 8,8 --output bad.h5
says_once "twice"
expect_code 2 "$mpirun" -np 2 "$ftmpi" bench --model "$model" --prompt-lengths 64 --decode-lengths 8 --context 73 --output bad.h5
says_once "bench needs 74 tokens a sequence, the context holds 73"
expect_code 0 "$ftmpi" bench --model "$model" --prompt-lengths 64 --decode-lengths 8 --context 74 --repeats 1 --warmup 0 --output full.h5
expect_code 2 "$ftmpi" bench --model "$model" --prompt-lengths 0 --output bad.h5
expect_code 2 "$ftmpi" bench --model "$model" --prompt "And" --output bad.h5
says "--prompt does not belong"
expect_code 2 "$ftmpi" bench --model "$model" --prompt-lengths 5000 --decode-lengths 1 --output bad.h5
expect_code 2 "$ftmpi" bench --model "$model" "${lengths[@]}" --output one.h5
says "--overwrite"
# Hints name what bench takes.
if grep -q -- "--resume" err; then bad "bench is told of --resume"; else ok; fi
expect_code 4 "$ftmpi" bench --model "$model" --backend cpu --prompt-lengths 32 --decode-lengths 8 --batches 64 --memory-limit 60MiB --output bad.h5
says "smaller --batches need less"
says ", has 60 MiB, misses "
expect_code 2 "$ftmpi" bench --model "$model" --prompt-lengths 16 64 --output bad.h5
says "joined by commas: --prompt-lengths 16,64"
expect_code 2 "$ftmpi" --ignore-eos bench --model "$model"
says "the command bench must be the first argument"
printf 'model = %s\nprompt-lengths = 5, 40\ndecode-lengths = 2\nrepeats = 1\nwarmup = 0\njson = on\n' "$model" >bench.ini
expect_code 0 "$ftmpi" bench --job bench.ini --output listed.h5
same "$(grep -o '"batch":' out | wc -l)" 2 "combinations of a list with blanks"
absent bad.h5
absent bad.h5.journal

# --- a signal ends all ranks; what was measured stays -------------------------------------------------------------------
FTMPI_FAULT=0:decode#30:term expect_code 7 "$ftmpi" bench --model "$model" "${lengths[@]}" --output stopped.h5
says "interrupted"
present stopped.h5
expect_code 0 "$ftmpi" verify stopped.h5 stopped.h5
says "note: stopped.h5 is of a run that was interrupted: it holds"
says "of the 16 requests asked for"
if command -v h5dump >/dev/null; then
    for is in "stopped.h5 complete 0" "one.h5 complete 1" "two.h5 requests_asked 16" "one.h5 cases_asked .p5_d6_b1.p5_d6_b3.p40_d6_b1.p40_d6_b3."; do
        # shellcheck disable=SC2086
        set -- $is
        same "$(h5dump -a "/$2" "$1" | grep -cE "\(0\): $3\$")" 1 "attribute $2 of $1"
    done
    h5dump -a /options two.h5 >dump.txt
    for line in "command = bench" "repeats = 2" "warmup = 1" "shares = 3,1" "prompt-lengths = 5,40" "hash = off"; do
        if grep -q "$line" dump.txt; then ok; else bad "no option $line in two.h5"; fi
    done
else
    skipped "what bench's file says of an interrupted run (h5dump is not installed)"
fi
finish
