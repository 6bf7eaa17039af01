# Sourced by run.sh: steps at the size of the real model, on a checkpoint of random contents. Each fits nine minutes.
full=${FTMPI_FULL_DIR:-/tmp/ftmpi-full}
full_prompts=$root/jobs/five_prompts.jsonl

# random_ids COUNT: a prompt of that many ids, always the same, as one JSONL line.
random_ids() {
    awk -v n="$1" 'BEGIN { x = 12345; printf "{\"id\": \"ids%d\", \"ids\": [", n
        for (i = 0; i < n; ++i) { x = (x * 16807) % 2147483647; printf "%s%d", i ? "," : "", 256 + x % 247788 } print "]}" }'
}

# full_model FORMAT: sets $model; a FAILED line when the step that makes it has not been run.
full_model() {
    model=$full/$1
    [ -f "$model/config.json" ] && [ -f "$model/complete" ] || { failed_row "$2" "checkpoint" "run --full checkpoint${1#nvfp4} first"; return 1; }
}

# The answer of one GPU, kept for the steps to come.
full_reference() {
    reference=$full/reference-$1.h5
    [ ! -f "$reference" ] || return 0
    ranks 1 "$ftmpi" --backend cuda --model "$full/$1" --prompts "$full_prompts" --max-tokens 64 --ignore-eos --output "$reference"
    timed 240 "${command_line[@]}"
    row reference "$1: GPU, 1 rank, 5 prompts, 64 tokens" "$(sed -n 's/.*\(decode .*\)/\1/p' "$work/err" | head -n 1)"
}

# full_run PHASE CHECK SECONDS RANKS TRANSPORT OPTION...: the five prompts against the reference.
full_run() {
    local phase=$1 check=$2 limit=$3 np=$4 transport=$5
    shift 5
    against "$reference" "$phase" "$check" "$limit" "$np" "$transport" --backend cuda --model "$model" --prompts "$full_prompts" \
        --max-tokens 64 --ignore-eos "$@"
}

need_two() {
    [ "$gpus" -ge 2 ] || { left_out_row "$1" "$2" "one GPU here"; return 1; }
}

full_make() {
    local form=$1 other=$2
    rm -rf "${full:?}/$other" "$full/reference-$form.h5"
    mkdir -p "$full/$form"
    timed 530 python3 "$here/make_checkpoint.py" "$full/$form" --format "$form" --overwrite
    [ $code != 0 ] || touch "$full/$form/complete"
    row checkpoint "$form, full size" "$(tail -n 1 "$work/out")"
}
full_checkpoint() { full_make nvfp4 fp8; }
full_checkpoint_fp8() { full_make fp8 nvfp4; }

full_hash() {
    local transport
    full_model nvfp4 hash && full_reference nvfp4 || return
    need_two hash "2 ranks" || return
    for transport in peer pinned nccl mpi; do
        full_run hash "GPU, 2 ranks, $transport, shares 3,1" 90 2 $transport --shares 3,1
    done
    full_run hash "GPU, 2 ranks, peer, shares 1,1, batch 5" 90 2 peer --shares 1,1 --batch 5
}

full_long() {
    full_model nvfp4 long || return
    random_ids 28000 >"$work/long.jsonl"
    rm -f "$work/long.h5"
    ranks 1 "$ftmpi" --backend cuda --model "$model" --prompts "$work/long.jsonl" --max-tokens 64 --ignore-eos --output "$work/long.h5"
    timed 240 "${command_line[@]}"
    row long "GPU, 1 rank, 28,000 tokens" "$(sed -n 's/.*\(decode .*\)/\1/p' "$work/err" | head -n 1)" || return
    need_two long "2 ranks" || return
    against "$work/long.h5" long "GPU, 2 ranks, peer, shares 3,1" 240 2 peer --backend cuda --model "$model" \
        --prompts "$work/long.jsonl" --max-tokens 64 --ignore-eos --shares 3,1
}

full_cpu() {
    full_model nvfp4 cpu || return
    random_ids 15 >"$work/short.jsonl"
    rm -f "$work/cpu.h5"
    ranks 1 "$ftmpi" --backend cpu --model "$model" --prompts "$work/short.jsonl" --max-tokens 4 --ignore-eos --output "$work/cpu.h5"
    timed 400 "${command_line[@]}"
    row cpu "CPU, 1 rank, 15 tokens and 4" "$(sed -n 's/.*\(decode .*\)/\1/p' "$work/err" | head -n 1)" || return
    against "$work/cpu.h5" cpu "GPU, 1 rank" 100 1 - --backend cuda --model "$model" --prompts "$work/short.jsonl" --max-tokens 4 --ignore-eos
}

full_layers() {
    if [ ! -x "$build/tests/gpu/layer_dump" ]; then failed_row layers layer_dump "$build/tests/gpu/layer_dump is missing"; return; fi
    timed 120 python3 "$here/make_checkpoint.py" "$full/layers" --layers 4 --vision-depth 1 --overwrite
    row layers "checkpoint of 4 layers, full width" "$(tail -n 1 "$work/out")" || return
    timed 120 "$build/tests/gpu/layer_dump" "$full/layers" "$work/layers" cuda
    row layers "states of every layer from the GPU" "$(tail -n 1 "$work/out")" || return
    timed 280 python3 "$here/compare_layers.py" "$full/layers" "$work/layers"
    row layers "against transformers in fp32" "$(tail -n 1 "$work/out")"
    sed 's/^/    | /' "$work/out"
    rm -rf "$full/layers"
}

# The errors of exact and fast numerics beside those of transformers in bf16, over four layers (three delta nets, one attention).
full_errors() {
    local form numerics kv dumps=()
    if [ ! -x "$build/tests/gpu/layer_dump" ]; then failed_row errors layer_dump "$build/tests/gpu/layer_dump is missing"; return; fi
    timed 120 python3 "$here/make_checkpoint.py" "$full/layers" --layers 4 --vision-depth 1 --overwrite
    row errors "checkpoint of 4 layers, full width" "$(tail -n 1 "$work/out")" || return
    for form in "exact fp32" "exact bf16" "fast bf16"; do
        read -r numerics kv <<<"$form"
        timed 60 "$build/tests/gpu/layer_dump" "$full/layers" "$work/$numerics-$kv" cuda 400 "$numerics" "$kv"
        row errors "$numerics numerics, $kv cache, 400 tokens" "" || return
        dumps+=("$numerics, $kv cache=$work/$numerics-$kv")
    done
    timed 250 python3 "$here/error_table.py" "$full/layers" "${dumps[@]}"
    row errors "against transformers in fp32, beside bf16" "$(tail -n 1 "$work/out")"
    sed 's/^/    | /' "$work/out"
    rm -rf "$full/layers"
}

full_load() {
    local turn seconds
    full_model nvfp4 load || return
    for turn in first second; do
        rm -f "$work/load.h5"
        ranks 1 "$ftmpi" --backend cuda --model "$model" --prompt "And" --max-tokens 1 --output "$work/load.h5"
        timed 200 "${command_line[@]}"
        seconds=$(sed -n 's/.*loaded in \([0-9.]*\) s.*/\1/p' "$work/err")
        row load "$turn load" "${seconds:-?} s" || return
        memory_rows load "$turn load"
    done
    if holds "${seconds:-99} < 15"; then passed_row load "from the page cache in under 15 s" "$seconds s"; else
        failed_row load "from the page cache in under 15 s" "$seconds s"
    fi
}

# full_bench PHASE RANKS CHECK FIGURE LEAST OPTION...: the figure of the first case, at least LEAST.
full_bench() {
    local phase=$1 np=$2 check=$3 name=$4 least=$5 value
    shift 5
    rm -f "$work/bench.h5"
    ranks "$np" "$ftmpi" bench --backend cuda --model "$model" --json --output "$work/bench.h5" "$@"
    timed 260 "${command_line[@]}"
    row "$phase" "$check" "$(figure decode_tokens_per_second) tokens/s decode, $(figure prefill_tokens_per_second) prefill, roofline $(figure roofline_share)" || return
    sed 's/^/    | /' "$work/out"
    value=$(figure "$name")
    if holds "${value:-0} >= $least"; then passed_row "$phase" "$check: $name" "$value, at least $least"; else
        failed_row "$phase" "$check: $name" "${value:-none}, at least $least asked"
    fi
}

full_decode() {
    full_model nvfp4 decode || return
    full_bench decode 1 "1 rank, context 1k" roofline_share 0.37 --prompt-lengths 1024 --decode-lengths 256
    need_two decode "2 ranks" || return
    full_bench decode 2 "2 ranks, context 1k" decode_tokens_per_second 1 --prompt-lengths 1024 --decode-lengths 256
}

full_prefill() {
    full_model nvfp4 prefill || return
    full_bench prefill 1 "1 rank, 8,192 tokens, exact" prefill_tokens_per_second 2500 --prompt-lengths 8192 --decode-lengths 8
    full_bench prefill 1 "1 rank, 8,192 tokens, fast" prefill_tokens_per_second 10000 --prompt-lengths 8192 --decode-lengths 8 --numerics fast
}

# capacity PHASE CHECK LEAST: of the plan that the last run printed, all sequences together.
capacity() {
    local tokens
    tokens=$(sed -n 's/^Capacity: .*sequence, \([0-9]*\) in all.*/\1/p' "$work/run_err")
    if holds "${tokens:-0} >= $3"; then passed_row "$1" "$2" "$tokens tokens, at least $3"; else failed_row "$1" "$2" "${tokens:-0} tokens, at least $3 asked"; fi
}

full_memory() {
    local fp8
    full_model nvfp4 memory && full_reference nvfp4 || return
    full_run memory "1 rank of 24 GiB" 90 1 - --memory-limit 24GiB && capacity memory "1 rank of 24 GiB: capacity" 8199 &&
        memory_rows memory "1 rank of 24 GiB" "$work/run_err"
    if need_two memory "2 ranks of 24 and 16 GiB"; then
        full_run memory "2 ranks of 24 and 16 GiB" 90 2 peer --memory-limit 24GiB,16GiB --policy memory &&
            capacity memory "2 ranks of 24 and 16 GiB: capacity" 272786 &&
            memory_rows memory "2 ranks of 24 and 16 GiB" "$work/run_err"
    fi
    # An FP8 cache has its own bits: one rank of the whole card is its reference.
    fp8=$work/fp8.h5
    ranks 1 "$ftmpi" --backend cuda --model "$model" --prompts "$full_prompts" --max-tokens 64 --ignore-eos --kv fp8 --output "$fp8"
    timed 120 "${command_line[@]}"
    row memory "FP8 cache, 1 rank, whole card" "" || return
    reference=$fp8
    full_run memory "FP8 cache, 1 rank of 24 GiB" 90 1 - --memory-limit 24GiB --kv fp8 --embedding host --policy memory &&
        capacity memory "FP8 cache, 1 rank of 24 GiB: capacity" 400000
    need_two memory "FP8 cache, 2 ranks" || return
    full_run memory "FP8 cache, 2 ranks of 24 and 16 GiB" 90 2 peer --memory-limit 24GiB,16GiB --kv fp8 --embedding host --policy memory &&
        capacity memory "FP8 cache, 2 ranks of 24 and 16 GiB: capacity" 1600000
}

full_policies() {
    local policy
    full_model nvfp4 policies && full_reference nvfp4 || return
    need_two policies "2 ranks" || return
    for policy in speed memory even; do
        full_run policies "24 and 16 GiB at 1008 and 288 GB/s, $policy" 100 2 peer --memory-limit 24GiB,16GiB --bandwidth 1008,288 \
            --policy $policy
        sed -n '/^Shares/,/^transport/p' "$work/run_err" | sed 's/^/    | /'
    done
}

full_far() {
    full_model nvfp4 far || return
    need_two far "100,000 tokens on 24 and 16 GiB" || return
    random_ids 100000 >"$work/far.jsonl"
    rm -f "$work/far.h5"
    ranks 2 "$ftmpi" --backend cuda --model "$model" --prompts "$work/far.jsonl" --max-tokens 16 --ignore-eos --output "$work/far.h5" \
        --memory-limit 24GiB,16GiB --kv fp8 --policy memory
    timed 520 "${command_line[@]}"
    row far "100,000 tokens on 24 and 16 GiB" "$(sed -n 's/.*\(decode .*\)/\1/p' "$work/err" | head -n 1)"
}

full_fp8() {
    full_model fp8 fp8 && full_reference fp8 || return
    if need_two fp8 "2 ranks"; then full_run fp8 "GPU, 2 ranks, peer, shares 3,1" 120 2 peer --shares 3,1; fi
    full_bench fp8 1 "1 rank, context 1k" decode_tokens_per_second 1 --prompt-lengths 1024 --decode-lengths 128
}
