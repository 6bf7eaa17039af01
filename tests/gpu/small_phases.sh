# Sourced by run.sh: the phases on the small models of data/.
models="tiny-nvfp4 tiny-fp8"

# Five prompts of jobs/, and one of 600 tokens.
small_prompts() {
    [ ! -s "$work/prompts.jsonl" ] || return 0
    cp "$root/jobs/five_prompts.jsonl" "$work/prompts.jsonl"
    awk '/"name": "len600"/ { on = 1 } on && /"ids": \[/ { ids = 1; next } ids && /\]/ { exit } ids { gsub(/[ \n]/, ""); all = all $0 }
         END { printf "{\"id\": \"len600\", \"ids\": [%s]}\n", all }' "$root/data/references/prompts.json" >>"$work/prompts.jsonl"
}

# The CPU's answer on one rank, once for each model and cache type: what everything else is held equal to.
small_reference() {
    local model=$1 kv=$2
    small_prompts
    reference=$work/$model-$kv.h5
    [ ! -f "$reference" ] || return 0
    ranks 1 "$ftmpi" --backend cpu --model "$root/data/$model" --prompts "$work/prompts.jsonl" --kv "$kv" --output "$reference"
    timed 60 "${command_line[@]}"
    row reference "$model, kv $kv: CPU, 1 rank" "$(sed -n 's/.*decode \([0-9.]* tokens.s\).*/\1/p' "$work/err")"
}

# small_run MODEL PHASE CHECK RANKS TRANSPORT OPTION...
small_run() {
    local model=$1 phase=$2 check=$3 np=$4 transport=$5
    shift 5
    against "$reference" "$phase" "$check" 60 "$np" "$transport" --model "$root/data/$model" --prompts "$work/prompts.jsonl" "$@"
}

small_programs() {
    local name
    for name in linear_check mixers_check fused_check fast_check; do
        if [ ! -x "$build/tests/gpu/$name" ]; then failed_row programs "$name" "$build/tests/gpu/$name is missing"; continue; fi
        timed 180 "$build/tests/gpu/$name"
        row programs "$name" "$(tail -n 1 "$work/out")"
        cp "$work/out" "$work/$name.txt"
    done
    if [ ! -x "$build/tests/gpu/transport_check" ]; then
        failed_row programs transport_check "$build/tests/gpu/transport_check is missing"
    else
        timed 150 bash "$here/transport_check.sh" "$build"
        row programs transport_check "$(tail -n 1 "$work/out")"
    fi
    for name in linear_check mixers_check fused_check fast_check; do
        [ ! -s "$work/$name.txt" ] || { echo "    $name's times:"; grep -E 'GB/s|TB/s|tokens/s| us( |$)' "$work/$name.txt" | sed 's/^/    | /'; }
    done
}

small_hashes() {
    local model transport shares
    for model in $models; do
        small_reference "$model" bf16 || continue
        small_run "$model" hashes "$model: CPU, 2 ranks" 2 - --backend cpu --shares 3,1
        small_run "$model" hashes "$model: GPU, 1 rank" 1 - --backend cuda
        if [ "$gpus" -lt 2 ]; then
            left_out_row hashes "$model: GPU, 2 ranks, all transports" "one GPU here"
            continue
        fi
        for transport in peer pinned nccl mpi; do
            for shares in 1,1 3,1 9,7; do
                small_run "$model" hashes "$model: GPU, 2 ranks, $transport, shares $shares" 2 $transport --backend cuda --shares $shares
            done
        done
    done
}

# Weights of half and single precision: whole checkpoints of them, and some tensors beside others.
small_types() {
    local name source type endings
    local run=(--prompts "$work/types.jsonl" --max-tokens 16 --ignore-eos)
    { cat "$root/jobs/five_prompts.jsonl"
      printf '{"id": "long", "prompt": "%s"}\n' "$(printf 'The quick brown fox jumps over the lazy dog. %.0s' {1..12})"; } >"$work/types.jsonl"
    while read -r name source type endings; do
        # shellcheck disable=SC2086
        timed 60 python3 "$here/retype_checkpoint.py" "$root/data/$source" "$work/$name" "$type" $endings
        row types "$name: made of $source" "$(tail -n 1 "$work/out")" || continue
        reference=$work/$name.h5
        timed 60 "$ftmpi" --backend cpu --model "$work/$name" "${run[@]}" --output "$reference"
        row types "$name: CPU, 1 rank" "" || continue
        against "$reference" types "$name: GPU, 1 rank" 60 1 - --backend cuda --model "$work/$name" "${run[@]}"
        if [ "$gpus" -lt 2 ]; then
            against "$reference" types "$name: GPU, 1 rank, batch 5" 60 1 - --backend cuda --model "$work/$name" "${run[@]}" --batch 5
        else
            against "$reference" types "$name: GPU, 2 ranks, batch 5" 60 2 peer --backend cuda --model "$work/$name" "${run[@]}" --batch 5 --shares 3,1
        fi
    done <<END
f16 tiny-qwen3-moe-bf16 F16
f32 tiny-qwen3-moe-bf16 F32
fp8-f16 tiny-fp8 F16
nvfp4-f32 tiny-nvfp4 F32
nvfp4-some-f16 tiny-nvfp4 F16 mlp.gate.weight in_proj_a.weight in_proj_b.weight
END
}

# Ranks that share a GPU: refused unless it is named for each, and then with the same bits. They take turns on it, so this is short.
# Which GPU a rank takes: by UUID in another order than theirs, by the beginning of one, by CUDA_VISIBLE_DEVICES of each task.
small_choice() {
    local model=tiny-nvfp4 uuids
    local run=(--model "$root/data/$model" --prompts "$root/jobs/five_prompts.jsonl" --max-tokens 8)
    if [ "$gpus" -lt 2 ]; then left_out_row choice "which GPU a rank takes" "one GPU here"; return; fi
    mapfile -t uuids < <(nvidia-smi -L | sed -n 's/.*(UUID: \([^)]*\)).*/\1/p')
    reference=$work/choice.h5
    timed 60 "$ftmpi" "${run[@]}" --backend cpu --output "$reference"
    row choice "$model: CPU, 1 rank" "" || return
    against "$reference" choice "--gpus, the second first" 60 2 - --backend cuda "${run[@]}" --gpus "${uuids[1]},${uuids[0]}" --shares 3,1
    against "$reference" choice "--gpus, by the beginning of a UUID" 60 2 - --backend cuda "${run[@]}" --gpus "${uuids[0]:0:16},${uuids[1]:0:16}"
    timed 60 "$mpirun" -np 2 bash -c 'CUDA_VISIBLE_DEVICES=$((1 - OMPI_COMM_WORLD_LOCAL_RANK)) exec "$@"' _ \
        "$ftmpi" --backend cuda "${run[@]}" --shares 3,1 --output "$work/other.h5" --overwrite
    row choice "CUDA_VISIBLE_DEVICES of one GPU for each task" "" || return
    timed 60 "$ftmpi" verify "$reference" "$work/other.h5"
    row choice "CUDA_VISIBLE_DEVICES of each task: the same bits" "$(tail -n 1 "$work/out")"
}

small_shared() {
    local model=tiny-nvfp4 uuid transport
    local run=(--model "$root/data/$model" --prompts "$root/jobs/five_prompts.jsonl" --max-tokens 8)
    uuid=$(nvidia-smi -L | sed -n '1s/.*(UUID: \([^)]*\)).*/\1/p')
    reference=$work/shared.h5
    timed 60 "$ftmpi" "${run[@]}" --backend cpu --output "$reference"
    row shared "$model: CPU, 1 rank" "" || return
    timed 60 env CUDA_VISIBLE_DEVICES="$uuid" "$mpirun" -np 2 "$ftmpi" --backend cuda "${run[@]}" --output "$work/other.h5"
    if [ $code = 2 ] && grep -q 'name it for ' "$work/err"; then
        passed_row shared "one GPU for 2 ranks, unasked: refused" "$(grep '^ftmpi: error' "$work/err" | head -n 1)"
    else
        failed_row shared "one GPU for 2 ranks, unasked: refused" "exit code $code"
    fi
    for transport in mpi pinned; do
        against "$reference" shared "$model: 2 ranks on one GPU, $transport" 60 2 $transport --backend cuda "${run[@]}" --gpus "$uuid,$uuid" --shares 3,1
    done
    against "$reference" shared "$model: 3 ranks on one GPU, the plan's cut" 60 3 - --backend cuda "${run[@]}" --gpus "$uuid,$uuid,$uuid"
}

small_kv() {
    local model=tiny-nvfp4 kv
    for kv in fp32 fp8; do
        small_reference $model $kv || continue
        small_run $model kv "$model, kv $kv: GPU, 1 rank" 1 - --backend cuda --kv $kv
        [ "$gpus" -lt 2 ] || small_run $model kv "$model, kv $kv: GPU, 2 ranks" 2 peer --backend cuda --kv $kv --shares 3,1
    done
}

small_batch() {
    local model
    for model in $models; do
        small_reference "$model" bf16 || continue
        small_run "$model" batch "$model: GPU, 1 rank, batch 5" 1 - --backend cuda --batch 5
        small_run "$model" batch "$model: GPU, 1 rank, prefill by 7 rows" 1 - --backend cuda --prefill-chunk 7
        # With the embedding on the host each step waits for the tokens of the one before; elsewhere it does not.
        small_run "$model" batch "$model: GPU, 1 rank, batch 5, embedding on the host" 1 - --backend cuda --batch 5 --embedding host
        small_run "$model" batch "$model: GPU, 1 rank, batch 2" 1 - --backend cuda --batch 2
        [ "$gpus" -ge 2 ] || continue
        small_run "$model" batch "$model: GPU, 2 ranks, batch 5" 2 peer --backend cuda --batch 5 --shares 9,7
        small_run "$model" batch "$model: GPU, 2 ranks, nccl, batch 2" 2 nccl --backend cuda --batch 2 --shares 9,7
        small_run "$model" batch "$model: GPU, 2 ranks, peer, batch 2, embedding on the host" 2 peer --backend cuda --batch 2 --shares 9,7 --embedding host
    done
}

# Tensor-core prefill has its own bits; they must not depend on the ranks.
small_fast() {
    local model=tiny-nvfp4 exact
    small_reference $model bf16 || return
    if [ "$gpus" -lt 2 ]; then left_out_row fast "$model: 2 ranks against 1" "one GPU here"; return; fi
    reference=$work/fast.h5
    ranks 1 "$ftmpi" --backend cuda --numerics fast --model "$root/data/$model" --prompts "$work/prompts.jsonl" --output "$reference"
    timed 60 "${command_line[@]}"
    row fast "$model: GPU, 1 rank" "" || return
    small_run $model fast "$model: GPU, 2 ranks" 2 peer --backend cuda --numerics fast --shares 3,1
}

# What the plan says is what the GPU gives, before the first prompt and with everything in use.
small_memory() {
    local np form
    for form in "1 --batch 1" "1 --batch 5 --kv fp8" "2 --shares 3,1" "2 --shares 1,0 --embedding device"; do
        np=${form%% *}
        if [ "$np" -gt "$gpus" ]; then left_out_row memory "${form#* }, $np ranks" "one GPU here"; continue; fi
        rm -f "$work/memory.h5"
        # shellcheck disable=SC2086
        ranks "$np" "$ftmpi" --backend cuda --model "$root/data/tiny-nvfp4" --prompts "$root/jobs/five_prompts.jsonl" --output "$work/memory.h5" ${form#* }
        timed 60 "${command_line[@]}"
        row memory "tiny-nvfp4, $np ranks, ${form#* }" "" && memory_rows memory "$np ranks, ${form#* }"
    done
}

# Programs that hold PTX alone: the driver makes this GPU's code of it, on the paths of an older one.
small_ptx() {
    local arch folder name model
    for arch in 86 89; do
        folder=FTMPI_BUILD_$arch
        folder=${!folder-}
        if [ ! -x "$folder/ftmpi" ]; then left_out_row ptx "PTX of compute_$arch alone" "FTMPI_BUILD_$arch names no such build"; continue; fi
        local ftmpi=$folder/ftmpi
        for name in linear_check mixers_check fused_check; do
            if [ ! -x "$folder/tests/gpu/$name" ]; then failed_row ptx "compute_$arch: $name" "$folder/tests/gpu/$name is missing"; continue; fi
            timed 90 env FTMPI_CHECK_SHORT=1 "$folder/tests/gpu/$name"
            row ptx "compute_$arch: $name" "$(tail -n 1 "$work/out")"
        done
        for model in $models; do
            small_reference "$model" bf16 || continue
            small_run "$model" ptx "compute_$arch, $model: GPU, 1 rank" 1 - --backend cuda
            [ "$gpus" -lt 2 ] || small_run "$model" ptx "compute_$arch, $model: GPU, 2 ranks" 2 peer --backend cuda --shares 3,1
        done
    done
    if [ ! -x "${FTMPI_BUILD_NONE-}/ftmpi" ]; then left_out_row ptx "a program without code for this GPU" "FTMPI_BUILD_NONE names no such build"; return; fi
    timed 60 "$FTMPI_BUILD_NONE/ftmpi" --backend cuda --model "$root/data/tiny-nvfp4" --prompt And --output "$work/none.h5"
    if [ $code = 1 ] && grep -q 'holds no code for ' "$work/err"; then
        passed_row ptx "a program without code for this GPU" "$(grep -o 'this program holds no code for .*' "$work/err" | head -n 1)"
    else
        failed_row ptx "a program without code for this GPU" "exit code $code"
        tail -n 6 "$work/err" | sed 's/^/    | /'
    fi
}

small_bench() {
    local np
    for np in 1 2; do
        if [ "$np" -gt "$gpus" ]; then left_out_row bench "$np ranks" "one GPU here"; continue; fi
        rm -f "$work/bench.h5"
        ranks $np "$ftmpi" bench --backend cuda --model "$root/data/tiny-nvfp4" --prompt-lengths 128 --decode-lengths 64 --json \
            --output "$work/bench.h5"
        timed 60 "${command_line[@]}"
        row bench "tiny-nvfp4: $np ranks, batch 1" \
            "$(figure decode_tokens_per_second) tokens/s, reads $(grep -o '"read_bytes_per_second":\[[^]]*\]' "$work/out" | cut -d: -f2) B/s"
        # A rate that is not known, or of no memory, says that the probe is missing.
        if [ "$code" = 0 ] && grep -q '"read_bytes_per_second":\[[^]]*null' "$work/out"; then
            failed_row bench "read rate of each rank" "a rank's is unknown"
        fi
    done
}

small_sanitizer() {
    local sanitizer tool program
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -z "$sanitizer" ]; then failed_row sanitizer "compute-sanitizer" "it is not installed here"; return; fi
    for tool in memcheck racecheck; do
        for program in linear_check mixers_check fused_check fast_check; do
            if [ ! -x "$build/tests/gpu/$program" ]; then
                failed_row sanitizer "$tool: $program" "$build/tests/gpu/$program is missing"
                continue
            fi
            # short_form.hpp says what is taken.
            timed 60 env FTMPI_CHECK_SHORT=1 "$sanitizer" --tool $tool --error-exitcode 86 "$build/tests/gpu/$program"
            row sanitizer "$tool: $program" "$(grep -hE 'SUMMARY' "$work/out" "$work/err" | tail -n 1)"
        done
    done
}
