#!/usr/bin/env bash
# Failures that users of other engines met, through the real program: broken downloads, caches of links, bytes that are not
# text, empty prompts in a batch, long prompts, the same prompt again and again. tests/reported_failures.md lists all of them.
. "$(dirname "$0")/../support/check.sh"
cd "$work"
copy() { rm -rf broken && cp -r "$model" broken; }
first=model-00001-of-00002.safetensors second=model-00002-of-00002.safetensors
# refused CODE: one message on two ranks, no result file.
refused() {
    expect_code "$1" "$mpirun" -np 2 "$ftmpi" --model broken --prompt "And" --output broken.h5 --shares 1,0
    says_once "ftmpi: error"
    absent broken.h5
    absent broken.h5.journal
}

# --- shards that are not whole: both ranks refuse, also the one that would read nothing of them -------------------
copy
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 123\n' 0 >broken/$second
refused 3
says "LFS"
copy
truncate -s -1 broken/$second
refused 3
says "$second"
says "header needs"
copy
printf '\0' >>broken/$second
refused 3
says "1 byte after the last tensor"
copy
printf '\x40\x9d\xdf\x07\0\0\0\0' | dd of=broken/$first conv=notrunc status=none
refused 3
says "132095296"
copy
rm broken/$second
refused 3
says "incomplete download"
copy
LC_ALL=C sed -i 's/linear_attn.dt_bias/linear_attn.dt_bia5/g' broken/*.safetensors broken/model.safetensors.index.json
refused 3
says "dt_bias"
says "dt_bia5"
copy
rm broken/config.json
refused 3
says "config.json"
copy
sed -i 's/"id": *2028,/"id": 999999,/' broken/tokenizer.json
refused 3
says "999999"

# --- a Git LFS pointer, a web page, a link that leads nowhere in the place of any file ------------------------------------
for file in config.json generation_config.json hf_quant_config.json tokenizer.json tokenizer_config.json chat_template.jinja \
    model.safetensors.index.json $first; do
    copy
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 123\n' 0 >broken/$file
    expect_code 3 "$ftmpi" --model broken --chat --prompt "And" --output broken.h5
    says "$file: looks like a Git LFS pointer"
    printf '\n<!DOCTYPE html>\n<html>' >broken/$file
    expect_code 3 "$ftmpi" --model broken --chat --prompt "And" --output broken.h5
    says "$file: is a web page"
    rm broken/$file
    ln -s ../blobs/none broken/$file
    expect_code 3 "$ftmpi" --model broken --chat --prompt "And" --output broken.h5
    says "$file is a symbolic link to ../blobs/none, which does not exist"
done
rm -rf broken
ln -s nowhere broken
refused 3
says "broken is a symbolic link to nowhere, which does not exist"

# --- an unknown family without its weights: the family is said first, before anyone downloads them ------------------
copy
rm broken/*.safetensors
sed -i '0,/"qwen3_5_moe"/s//"other_moe"/' broken/config.json
refused 3
says 'model_type is "other_moe"'
expect_code 3 "$ftmpi" inspect broken
says 'model_type is "other_moe"'
expect_code 3 "$ftmpi" plan --model broken --hardware 24GiB@1008
says 'model_type is "other_moe"'
sed -i '0,/"other_moe"/s//"qwen3_5_moe"/' broken/config.json
refused 3
says "incomplete download"

# --- scaled rotary embeddings beside text_config are refused as those in it are -----------------------------------------
copy
sed -i '0,/"dtype": "bfloat16",/s//"rope_scaling": {"rope_type": "yarn", "factor": 4.0},/' broken/config.json
refused 3
says 'rope_scaling.rope_type is "yarn"'

# --- every file that names an end token counts, and a note says which were taken --------------------------------------------
chat=(--model broken --chat --prompt "What is the capital of France?" --output stop.h5 --overwrite)
expect_code 0 "$ftmpi" --model "$model" "${chat[@]:2}"
cp out stop.txt
same "$(grep -c 'a text ends at' err)" 0 "notes where generation_config.json names all"
copy
rm broken/generation_config.json
expect_code 0 "$ftmpi" "${chat[@]}"
same "$(cat out)" "$(cat stop.txt)" "text that stops where tokenizer_config.json says"
says_once "note: a text ends at <|endoftext|> (1996, config.json), <|im_end|> (1998, tokenizer_config.json)"
sed -i 's/"eos_token": "<|im_end|>"/"eos_token": "<|endoftext|>"/' broken/tokenizer_config.json
expect_code 0 "$ftmpi" "${chat[@]}"
same "$(cat out)" "$(cat stop.txt)" "text that stops where the chat template ends a turn"
says_once "note: a text ends at <|endoftext|> (1996, config.json), <|im_end|> (1998, the chat template)"
sed -i 's/"eos_token_id"/"no_token_id"/; s/"eos_token"/"no_token"/' broken/config.json broken/tokenizer_config.json
expect_code 3 "$ftmpi" "${chat[@]}"
says "eos_token_id is missing"
sed -i 's/"no_token"/"eos_token"/; s/"eos_token": "<|endoftext|>"/"eos_token": "<none>"/; s/"chat_template"/"no_template"/' broken/tokenizer_config.json
rm broken/chat_template.jinja stop.h5
expect_code 3 "$ftmpi" --model broken --prompt And --output stop.h5
says "names no token that ends a text"

# --- sampling that generation_config.json asks for: a note, unless a temperature is given ---------------------------------
asked="note: generation_config.json asks for sampling (--temperature 1 --top-k 20 --top-p 0.95)"
expect_code 0 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompt And --output greedy.h5 --max-tokens 2
says_once "$asked"
for given in 0 1; do
    expect_code 0 "$ftmpi" --model "$model" --prompt And --output sampled$given.h5 --max-tokens 2 --temperature $given
    same "$(grep -c 'asks for sampling' err)" 0 "notes on sampling with --temperature $given"
done

# --- a length saved in tokenizer.json is not followed ---------------------------------------------------------------------
copy
sed -i '0,/"truncation": *null/s//"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}/' broken/tokenizer.json
expect_code 0 "$ftmpi" --model broken --prompt "The capital of France is" --output whole.h5 --max-tokens 8
says "tokenizer.json: 'truncation' is not followed"
expect_code 0 "$ftmpi" --model "$model" --prompt "The capital of France is" --output saved.h5 --max-tokens 8
expect_code 0 "$ftmpi" verify saved.h5 whole.h5

# --- an empty prompt among others: its number -----------------------------------------------------------------------------
expect_code 2 "$ftmpi" --model "$model" --prompt a --prompt "" --prompt b --output empty.h5
says "prompt 2: empty prompt"

# --- weights of another save beside the index, a broken file in the folder above --------------------------------
expect_code 0 "$ftmpi" --model "$model" --prompt "The capital of France is" --output want.h5 --max-tokens 8
cp out want.txt
copy
printf 'broken' >broken/model.safetensors
printf 'broken' >x.safetensors
expect_code 0 "$ftmpi" --model broken --prompt "The capital of France is" --output stray.h5 --max-tokens 8
says "ignored"
expect_code 0 "$ftmpi" verify want.h5 stray.h5

# --- the cache of Hugging Face: a snapshot of links into blobs, and a link to it ---------------------------------
mkdir -p hub/blobs hub/snapshots/r1
for file in "$model"/*; do
    name=$(basename "$file")
    cp "$file" "hub/blobs/blob-$name"
    ln -s "../../blobs/blob-$name" "hub/snapshots/r1/$name"
done
ln -s snapshots/r1 hub/main
for at in hub/snapshots/r1 hub/main; do
    expect_code 0 "$ftmpi" --model $at --prompt "The capital of France is" --output hub.h5 --overwrite --max-tokens 8
    same "$(cat out)" "$(cat want.txt)" "text of $at"
    expect_code 0 "$ftmpi" verify want.h5 hub.h5
done

# --- bytes that are not text, as an argument and in a file ---------------------------------------------------------
for bytes in '\xff' '\xc3\x28' '\xe2\x82' '\xed\xa0\x80' '\xf5\x80\x80\x80' '\xc0\xaf'; do
    text=$(printf "$bytes")
    expect_code 3 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompt "$text" --output bytes.h5
    says_once "ftmpi: error"
    says "invalid UTF-8"
    printf "$bytes" >bytes.txt
    expect_code 3 "$ftmpi" --model "$model" --prompts bytes.txt --output bytes.h5
    says "invalid UTF-8"
done
absent bytes.h5

# --- prompts of white space run; a batch with an empty prompt is refused, and so is one of nothing else -----------
printf '%s\n' '{"prompt":" "}' '{"prompt":"\t\n"}' '{"prompt":"\u00a0"}' '{"prompt":"\u200b"}' '{"prompt":"\ufeff"}' >white.jsonl
expect_code 0 "$ftmpi" --model "$model" --prompts white.jsonl --output white.h5 --max-tokens 2 --json
same "$(grep -c '"output_ids":\[[0-9]' out)" 5 "prompts of white space that ran"
for batch in '{"prompt":""}\n{"prompt":""}\n' '{"prompt":"And"}\n{"prompt":""}\n'; do
    # shellcheck disable=SC2059
    printf "$batch" >empty.jsonl
    expect_code 3 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts empty.jsonl --output empty.h5 --batch 2
    says_once "ftmpi: error"
    says "empty prompt"
done

# --- ranks that were told unlike things -------------------------------------------------------------------------------
expect_code 2 each "$ftmpi" --model "$model" --prompt "And" --output unlike.h5 --context 64 : \
    "$ftmpi" --model "$model" --prompt "And" --output unlike.h5 --context 32
says_once "ftmpi: error"
says "context"
expect_code 3 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts nowhere.txt --output unlike.h5
says_once "ftmpi: error"
says "nowhere.txt"
absent unlike.h5

# --- a prompt file and a model that are there, or whole, on one rank only: equal options, unlike folders --------------------
mkdir here there
apart() { # apart CODE ARGS...: rank 0 in here, rank 1 in there
    local code=$1
    shift
    expect_code "$code" each env --chdir="$work/here" "$ftmpi" "$@" --output apart.h5 : env --chdir="$work/there" "$ftmpi" "$@" --output apart.h5
}
apart_refused() { # apart_refused CODE TEXT ARGS...: one message that says TEXT, and nothing is left
    apart "$1" "${@:3}"
    says_once "ftmpi: error"
    says "$2"
    absent here/apart.h5
    absent here/apart.h5.journal
    same "$(ls there | grep apart)" "" "results of the second rank"
}
folders=(here there)
for has in 0 1; do
    lacks=$((1 - has))
    echo "The capital of France is" >"${folders[has]}/prompts.txt"
    apart_refused 3 "rank $lacks (" --model "$model" --prompts prompts.txt
    says "prompts.txt"
    rm "${folders[has]}/prompts.txt"
    cp -r "$model" "${folders[has]}/model"
    apart_refused 3 "rank $lacks (" --model model --prompt And
    # There, and one byte short.
    cp -r "$model" "${folders[lacks]}/model"
    truncate -s -1 "${folders[lacks]}/model/$second"
    apart_refused 3 "rank $lacks (" --model model --prompt And
    says "$second"
    rm -r here/model there/model
done
echo "The capital of France is" >here/prompts.txt
echo "The capital of Japan is" >there/prompts.txt
apart_refused 2 "differ between ranks" --model "$model" --prompts prompts.txt
cp here/prompts.txt there/
apart 0 --model "$model" --prompts prompts.txt --max-tokens 2
present here/apart.h5

# --- only the first rank touches the result: the second one's folder stays empty --------------------------------------
mkdir ours theirs
expect_code 0 each env --chdir="$work/ours" "$ftmpi" --model "$model" --prompt "And" --output out.h5 --max-tokens 2 : \
    env --chdir="$work/theirs" "$ftmpi" --model "$model" --prompt "And" --output out.h5 --max-tokens 2
present ours/out.h5
same "$(ls -A theirs)" "" "files of the second rank"

# --- types that do not exist ---------------------------------------------------------------------------------
expect_code 2 "$ftmpi" --model "$model" --prompt "And" --dtype fp16 --output dtype.h5
says "dtype"

# --- four prompts twelve times in one process: the same tokens every time, none of them empty -----------------------
for _ in $(seq 12); do
    printf '%s\n' 'The capital of France is' '1, 2, 3,' 'def fibonacci(n):' 'The quick brown fox jumps over the lazy dog.'
done >replay.txt
expect_code 0 "$ftmpi" --model "$model" --prompts replay.txt --output replay.h5 --batch 4 --max-tokens 8 --ignore-eos --json
grep -o '"output_ids":\[[^]]*\]' out | sort | uniq -c | awk '{print $1}' >counts
same "$(tr '\n' ' ' <counts)" "12 12 12 12 " "how often each answer was given"

# --- three hundred prompts at once: the tokens of one at a time; and no memory that may be locked -----------------------
awk 'BEGIN { for (i = 0; i < 300; ++i) printf "{\"ids\":[%d,%d,%d]}\n", 97 + i, 300 + 5 * i, 65 + i % 26 }' >many.jsonl
many=(--model "$model" --prompts many.jsonl --max-tokens 3 --ignore-eos --context 16)
expect_code 0 "$ftmpi" "${many[@]}" --output many1.h5 --batch 1
expect_code 0 "$ftmpi" "${many[@]}" --output many.h5 --batch 320
expect_code 0 "$ftmpi" verify many1.h5 many.h5
says "equal: 300 requests"
expect_code 0 "$mpirun" -np 2 "$ftmpi" "${many[@]}" --output many2.h5 --batch 300 --shares 3,1
expect_code 0 "$ftmpi" verify many1.h5 many2.h5
unlocked() { (ulimit -l 0 && exec "$@"); }
expect_code 0 unlocked "$mpirun" -np 2 "$ftmpi" --model "$model" --prompt "The capital of France is" --output unlocked.h5 --max-tokens 8
expect_code 0 "$ftmpi" verify want.h5 unlocked.h5

# --- prompts of thousands of tokens on one rank and two -------------------------------------------------------------
long() { awk -v n="$1" 'BEGIN {printf "{\"ids\":["; for (i = 0; i < n; ++i) printf "%s%d", i ? "," : "", 97 + (i * i + i / 7) % 1500; print "]}"}'; }
{ long 1800; long 2500; } >long.jsonl
expect_code 0 "$ftmpi" --model "$model" --prompts long.jsonl --output long1.h5 --max-tokens 4 --ignore-eos --json
same "$(grep -c '"output_ids":\[0,0,' out)" 0 "long prompts answered by the first id of the vocabulary"
expect_code 0 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts long.jsonl --output long2.h5 --max-tokens 4 --ignore-eos --shares 3,1
expect_code 0 "$ftmpi" verify long1.h5 long2.h5

# --- commands that need no ranks leave MPI to the run behind them ----------------------------------------------------
run_behind() { expect_code 0 "$mpirun" -np 2 sh -c "'$ftmpi' $1 >behind.out && '$ftmpi' --model '$model' --prompt And --output behind.h5 --max-tokens 2 --overwrite"; }
for before in --version --help "plan --model '$model' --hardware 24GiB@1008,16GiB@288" "inspect --model '$model'" "verify want.h5 want.h5"; do
    run_behind "$before"
    present behind.h5
    rm -f behind.h5
done

# --- threads are those that this process may use, shared by the ranks --------------------------------------------------
if command -v taskset >/dev/null && command -v h5dump >/dev/null; then
    expect_code 0 taskset -c 0 "$ftmpi" --model "$model" --prompt And --output one_core.h5 --max-tokens 2
    same "$(h5dump -d /ranks/cpu_threads one_core.h5 | sed -n 's/^ *(0): //p')" 1 "threads on one core"
else
    skipped "threads under an affinity mask (taskset or h5dump is not installed)"
fi

# --- memory limits of a cgroup count, and two ranks of one share them --------------------------------------------------
group=
for at in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    mkdir "$at/ftmpi-test-$$" 2>/dev/null || continue
    for file in memory.limit_in_bytes memory.max; do
        if [ -e "$at/ftmpi-test-$$/$file" ] && { echo $((300 << 20)) >"$at/ftmpi-test-$$/$file"; } 2>/dev/null; then group=$at/ftmpi-test-$$; fi
    done
    if [ "$group" ]; then break; fi
    rmdir "$at/ftmpi-test-$$"
done
if [ "$group" ] && (echo "$BASHPID" >"$group/cgroup.procs") 2>/dev/null; then
    grouped() { (echo "$BASHPID" >"$group/cgroup.procs" && exec "$@"); }
    large=(--model "$model" --prompt And --max-tokens 2 --context 4096 --kv fp32)
    expect_code 4 grouped "$mpirun" -np 1 "$ftmpi" "${large[@]}" --output grouped.h5 --batch 24
    says "does not fit"
    expect_code 0 grouped "$mpirun" -np 1 "$ftmpi" "${large[@]}" --output grouped.h5 --batch 10
    # Half of it is too little for the half of 18 sequences that fit the whole.
    expect_code 4 grouped "$mpirun" -np 2 "$ftmpi" "${large[@]}" --output grouped2.h5 --batch 18
    says "on all 2 ranks: a context of 4096 tokens does not fit"
    expect_code 0 "$mpirun" -np 2 "$ftmpi" "${large[@]}" --output grouped2.h5 --batch 18
else
    skipped "memory limits of a cgroup (none can be made here)"
fi
if [ "$group" ]; then rmdir "$group"; fi
finish
