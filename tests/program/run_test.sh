#!/usr/bin/env bash
# The main job through the real program: any number of ranks, the same bits; prompts, outputs, resume, context edges.
. "$(dirname "$0")/../support/check.sh"
seen=()
cd "$work"

# --- the answer, one rank to four, any cut -----------------------------------------------------------------
expect_code 0 "$ftmpi" --model "$model" --prompt "The capital of France is" --output one.h5
same "$(cat out)" " Paris. The capital of Morocco is Rabat. The capital of Senegal is Dakar." "text of one rank"
says "one.h5"
cat >prompts.txt <<'P'
The capital of France is
1, 2, 3,
def fibonacci(n):
The quick brown fox jumps over the lazy dog.
The capital of Japan is
P
expect_code 0 "$ftmpi" --model "$model" --prompts prompts.txt --output five.h5 --save-logits
for form in "2 --policy even" "2 --shares 3,1" "2 --shares 1,0" "3 --shares 5,2,1" "4 --policy even" "2 --batch 5" \
    "3 --policy memory" "2 --policy speed" "1 --prefill-chunk 7" "1 --batch 3"; do
    np=${form%% *}
    # shellcheck disable=SC2086
    expect_code 0 "$mpirun" -np "$np" "$ftmpi" --model "$model" --prompts prompts.txt --output other.h5 --overwrite ${form#* }
    expect_code 0 "$ftmpi" verify five.h5 other.h5
    says "equal"
done
for kv in fp32 fp8; do
    expect_code 0 "$ftmpi" --model "$model" --prompts prompts.txt --output "$kv.h5" --kv $kv
    expect_code 0 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts prompts.txt --output other.h5 --overwrite --kv $kv --shares 1,2
    expect_code 0 "$ftmpi" verify $kv.h5 other.h5
done
expect_code 8 "$ftmpi" verify five.h5 fp8.h5
same "$(grep -c '^note: kv' out)" 1 "notes on the caches"
says "note: kv is bf16 in the first, fp8 in the second"
FTMPI_SIMD=plain expect_code 0 "$ftmpi" --model "$model" --prompts prompts.txt --output other.h5 --overwrite
expect_code 0 "$ftmpi" verify five.h5 other.h5

# --- the second family ---------------------------------------------------------------------------------------------
for format in bf16 fp8 nvfp4; do
    second=$(dirname "$model")/tiny-qwen3-moe-$format
    expect_code 0 "$ftmpi" --model "$second" --prompts prompts.txt --max-tokens 12 --output second.h5 --overwrite
    expect_code 0 "$mpirun" -np 3 "$ftmpi" --model "$second" --prompts prompts.txt --max-tokens 12 --output other.h5 \
        --overwrite --shares 5,2,1 --batch 2
    expect_code 0 "$ftmpi" verify second.h5 other.h5
    says "equal"
    expect_code 0 "$ftmpi" inspect --model "$second"
    says "qwen3_moe, hidden 128, 2 layers (2 attention), 4/2 heads of 128, 8 experts of 48, top 3"
done

# --- what a rank holds is what was planned, group by group ---------------------------------------------------------
held_as_planned() {
    awk -v ranks="$1" '/^Memory in MiB, planned and held/ { on = 1; next }
        on && $2 == "planned" { for (i = 3; i <= NF; ++i) planned[i] = $i }
        on && $2 == "held" { ++seen; for (i = 3; i <= NF; ++i) { d = planned[i] - $i; d = d < 0 ? -d : d
            if (d > 0.0625 && d > 0.01 * planned[i]) { print "rank", $1, "column", i, "planned", planned[i], "holds", $i; wrong = 1 } } }
        END { exit wrong || seen != ranks }' err
}
for form in "1 --kv fp32" "2 --shares 3,1 --embedding device" "2 --shares 1,0 --batch 3 --kv fp8" "3 --shares 30,1,1"; do
    np=${form%% *}
    # shellcheck disable=SC2086
    expect_code 0 "$mpirun" -np "$np" "$ftmpi" --model "$model" --prompt "And" --max-tokens 3 --output held.h5 --overwrite ${form#* }
    if held_as_planned "$np"; then ok; else bad "memory of $form"; fi
done

# --- sampling: a seed means the same everywhere --------------------------------------------------------------
sampling=(--temperature 0.8 --top-k 20 --top-p 0.95 --seed 7 --max-tokens 20)
expect_code 0 "$ftmpi" --model "$model" --prompts prompts.txt --output s1.h5 "${sampling[@]}"
expect_code 0 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts prompts.txt --output s2.h5 "${sampling[@]}" --batch 2
expect_code 0 "$ftmpi" verify s1.h5 s2.h5
expect_code 0 "$ftmpi" --model "$model" --prompts prompts.txt --output s4.h5 --temperature 0.8 --seed 8 --max-tokens 20
expect_code 8 "$ftmpi" verify s1.h5 s4.h5

# --- chat ---------------------------------------------------------------------------------------------------
expect_code 0 "$ftmpi" --model "$model" --chat --prompt "What is the capital of Japan?" --output chat.h5 --json
says '"prompt_tokens":'
says 'Tokyo'

# --- a signal with the last step of all interrupts nothing; one step before it does -------------------------------------------
FTMPI_FAULT=0:decode#2:term expect_code 0 "$ftmpi" --model "$model" --prompt "And" --max-tokens 3 --ignore-eos --output last.h5
FTMPI_FAULT=1:decode#1:term expect_code 7 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompt "And" --max-tokens 3 --ignore-eos --output before.h5

# --- an interrupted file says that it is not all, and counts all of it when it is --------------------------------------------------
FTMPI_FAULT=0:decode#40:term expect_code 7 "$ftmpi" --model "$model" --prompts prompts.txt --output part.h5
expect_code 8 "$ftmpi" verify five.h5 part.h5
says "note: part.h5 is of a run that was interrupted: it holds"
says "of the 5 requests asked for"
if command -v h5dump >/dev/null; then
    number() { h5dump "$1" "$2" "$3" | sed -n 's/^ *(0): \([0-9.e+]*\)$/\1/p'; }
    same "$(number -a /requests_asked part.h5) $(number -a /complete part.h5)" "5 0" "asked for, and complete, of an interrupted run"
else
    skipped "what the file of an interrupted run counts (h5dump is not installed)"
fi
expect_code 0 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts prompts.txt --output part.h5 --resume
says "tokens made"
expect_code 0 "$ftmpi" verify five.h5 part.h5
if grep -q "part.h5 is\|recovered" out; then bad "a file that is whole by now is called interrupted"; else ok; fi
if command -v h5dump >/dev/null; then
    same "$(number -a /requests_asked part.h5) $(number -a /complete part.h5)" "5 1" "asked for, and complete, after --resume"
    for name in requests_count prompt_tokens output_tokens errors_count; do
        same "$(number -d /summary/$name part.h5)" "$(number -d /summary/$name five.h5)" "$name after --resume"
    done
else
    skipped "what the file counts after --resume (h5dump is not installed)"
fi
# With nothing left to do the file is not touched.
cp part.h5 whole.h5
expect_code 0 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts prompts.txt --output part.h5 --resume
says "5 of 5 requests are finished already; nothing to do"
if grep -q "tokens made" err; then bad "tokens made of nothing"; else ok; fi
if cmp part.h5 whole.h5; then ok; else bad "a finished file was written anew"; fi
absent part.h5.journal

# --- the file says with what it was made -------------------------------------------------------------------------------------------
printf 'model = %s\nprompts = prompts.txt\nthreads = 1\npolicy = even\nprefill-chunk = 7\nmax-tokens = 5\ntemperature = 0.8\nseed = 3\n' "$model" >some.ini
expect_code 0 "$mpirun" -np 2 "$ftmpi" --job some.ini --output 'it'"'"'s made.h5'
if command -v h5dump >/dev/null; then
    # A text as h5dump prints it, over several lines and set in.
    attribute() { h5dump -a "/$1" "$2" | sed -n '/(0): "/,$p' | sed -e '/^ *}$/,$d' | sed -e '1s/^ *(0): "//' -e '$s/"$//' -e 's/^  *//' -e 's/\\"/"/g' -e 's/\\n/\n/g'; }
    attribute options "it's made.h5" >again.ini
    for line in "threads = 1" "policy = even" "prefill-chunk = 7" "max-tokens = 5" "temperature = 0.8" "seed = 3" "batch = 1"; do
        same "$(grep -cx "$line" again.ini)" 1 "the option $line in the file"
    done
    mkdir elsewhere
    expect_code 0 "$mpirun" -np 1 --wdir elsewhere "$ftmpi" --job "$work/again.ini" --output "$work/again.h5"
    expect_code 0 "$ftmpi" verify "it's made.h5" again.h5
    same "$(attribute options again.h5)" "$(cat again.ini)" "the options of the run that repeats it"
    same "$(attribute argv "it's made.h5")" "$ftmpi --job some.ini --output 'it'\\''s made.h5'" "argv for a shell"
    same "$(attribute prefill_rows again.h5)" 7 "rows of a prefill step"
    same "$(h5dump -d /ranks/cpu_threads "it's made.h5" | grep -c '(0): 1, 1$')" 1 "threads of both ranks"
else
    skipped "a run repeated from its file (h5dump is not installed)"
fi

# --- hashes that were not made prove nothing -----------------------------------------------------------------------------------------
expect_code 0 "$ftmpi" --model "$model" --prompts prompts.txt --output unhashed.h5 --hash off
expect_code 0 "$ftmpi" verify five.h5 unhashed.h5
says "equal tokens (the logits of 5 requests were not compared: hashing was off in unhashed.h5): 5 requests"
same "$(grep -c '^note: hash' out)" 1 "notes on hashing"

# --- special tokens written in a prompt are these tokens ------------------------------------------------------------------------------
expect_code 0 "$ftmpi" --model "$model" --prompt 'a<|im_start|>b' --prompt 'a<|im_start |>b' --max-tokens 1 --output special.h5 --json
same "$(sed -n 's/.*"prompt_tokens":\([0-9]*\).*/\1/p' out | head -n 1)" 3 "tokens of a prompt with a special token"

# --- existing outputs ---------------------------------------------------------------------------------------
expect_code 2 "$ftmpi" --model "$model" --prompt "And" --output one.h5
says "--overwrite"
expect_code 0 "$ftmpi" --model "$model" --prompt "And" --output one.h5 --overwrite --max-tokens 2
absent one.h5.journal
absent one.h5.part
expect_code 2 "$ftmpi" --model "$model" --prompt "And" --output no/such/folder/x.h5
says "no/such/folder"
absent no

# --- context edges: 31, 32 and 33 tokens in a context of 32 -----------------------------------------------------
ids() { seq -s, 1 "$1"; }
printf '{"ids":[%s]}\n{"ids":[%s]}\n' "$(ids 31)" "$(ids 30)" >edge.jsonl
expect_code 0 "$ftmpi" --model "$model" --prompts edge.jsonl --context 32 --max-tokens 400 --ignore-eos --output edge.h5 --json
same "$(grep -c '"finish_reason":"length"' out)" 2 "requests that filled the context"
same "$(sed -n 1p out | sed 's/.*"output_ids":\[\([^]]*\)\].*/\1/' | tr ',' '\n' | wc -l)" 1 "tokens after a prompt of 31"
same "$(sed -n 2p out | sed 's/.*"output_ids":\[\([^]]*\)\].*/\1/' | tr ',' '\n' | wc -l)" 2 "tokens after a prompt of 30"
printf '{"ids":[%s]}\n{"prompt":"The capital of France is"}\n{"ids":[%s]}\n' "$(ids 33)" "$(ids 32)" >edge.jsonl
expect_code 9 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts edge.jsonl --context 32 --output edge.h5 --overwrite
says_once "request 0 failed: needs 33 prompt tokens"
says_once "request 2 failed: needs 32 prompt tokens"
says "Paris"
# Without --context memory is the limit. More new tokens than it holds are refused where they were asked for, and the numbers say
# what would help; where nobody asked, the answer ends there. What is refused is so before the weights are read.
small=(--backend cpu --kv fp32 --memory-limit 21MiB)
many_ids() { seq 1 "$1" | awk '{ printf "%s%d", (NR > 1 ? "," : ""), 1 + $1 % 2000 }'; }
printf '{"ids":[%s]}\n{"ids":[1,2,3],"max_tokens":4000}\n{"prompt":"The capital of France is"}\n' "$(many_ids 3900)" >small.jsonl
expect_code 9 "$ftmpi" --model "$model" --prompts small.jsonl --output small.h5 "${small[@]}"
held=$(sed -n 's/^Plan: .* 1 x \([0-9]*\) tokens.*/\1/p' err)
if [ "${held:-0}" -gt 100 ] && [ "${held:-0}" -lt 3900 ]; then ok; else bad "a context of $held tokens in 21 MiB"; fi
says_once "request 0 failed: needs 3900 prompt tokens and 64 new ones, 3964 in all; the context holds $held; --kv fp8 or more memory would help"
says_once "request 1 failed: needs 3 prompt tokens and 4000 new ones, 4003 in all; the context holds $held; --max-tokens $((held - 3)) or --kv fp8 or more memory would help"
says "Paris"
same "$(grep -n 'failed: needs' err | tail -n 1 | cut -d: -f1)" "$(($(grep -n '^loaded in' err | cut -d: -f1) - 1))" "refused before loading"
printf '{"ids":[%s]}\n{"ids":[1,2,3],"max_tokens":4000}\n' "$(many_ids $((held - 5)))" >small.jsonl
expect_code 9 "$mpirun" -np 1 "$ftmpi" --model "$model" --prompts small.jsonl --output small.h5 --overwrite --ignore-eos --json "${small[@]}"
same "$(grep '"index":0,' out | sed 's/.*"output_ids":\[\([^]]*\)\].*/\1/' | tr ',' '\n' | wc -l)" 5 "tokens after a prompt of 5 less than the context, none asked for"
printf '{"ids":[1,2,3],"max_tokens":4000}\n' >small.jsonl
expect_code 9 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts small.jsonl --output small.h5 --overwrite --shares 1,0 "${small[@]}"
says_once "request 0 failed"
if grep -q '^loaded in' err; then bad "weights were loaded for nothing"; else ok; fi
expect_code 2 "$ftmpi" --model "$model" --prompt "And" --context 1000000000 --output big.h5
absent big.h5
expect_code 2 "$ftmpi" --model "$model" --prompt "And" --max-tokens 0 --output zero.h5
says "--max-tokens is \"0\" and must be between 1 and 2147483648"
# A size without a unit is one of bytes, which is said where it was hardly meant so.
expect_code 4 "$ftmpi" --model "$model" --prompt "And" --backend cpu --memory-limit 20 --output zero.h5
says ", has 20 B, misses "
says "hint: 20 is 20 bytes; 20GiB?"
expect_code 4 "$ftmpi" plan --model "$model" --backend cpu --hardware 24@1008
says "rank 0 (24B@1008) needs "
says "hint: 24 is 24 bytes; 24GiB?"
expect_code 4 "$ftmpi" plan --model "$model" --backend cpu --memory-limit 2MiB
says "rank 0 (2MiB) needs "
if grep -q "bytes;" err; then bad "2MiB is taken for bytes"; else ok; fi
expect_code 2 "$ftmpi" plan --model "$model"
says "--hardware 24GiB@1008,16GiB@288 (memory@GB/s of each rank), or --memory-limit 24GiB,16GiB alone"
expect_code 2 "$mpirun" -np 1 "$ftmpi" --model "$model" --prompt "And" --shares 3,1 --output zero.h5
says "--shares names 2 shares for 1 rank"

# --- ids and prompts that cannot be -------------------------------------------------------------------------
for id in 2048 -1 2029; do
    printf '{"ids":[1,%s]}\n' $id >bad.jsonl
    expect_code 3 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts bad.jsonl --output bad.h5
    says_once "ftmpi: error"
done
printf '[{"prompt":"And"},\n{"prompt":"Or"}]\n' >array.json
expect_code 3 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts array.json --output bad.h5
says_once "array.json: holds a JSON array"
says "one JSON object a line is read"
printf '{"ids":[1,2028]}\n' >good.jsonl
expect_code 0 "$ftmpi" --model "$model" --prompts good.jsonl --output good.h5 --max-tokens 2
expect_code 2 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompt "" --output bad.h5
says_once "ftmpi: error"
says "empty"
expect_code 3 "$ftmpi" --model "$work/nowhere" --prompt "And" --output bad.h5
expect_code 2 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompt "And" --frobnicate
says_once "frobnicate"
absent bad.h5
absent bad.h5.journal

# --- recovery and resume --------------------------------------------------------------------------------------
FTMPI_FAULT=0:decode#40:kill "$ftmpi" --model "$model" --prompts prompts.txt --output killed.h5 >/dev/null 2>&1
absent killed.h5
present killed.h5.journal
cp killed.h5.journal kept.h5.journal
expect_code 0 "$ftmpi" recover kept.h5
present kept.h5
cp killed.h5.journal kept.h5.journal && cp one.h5 kept.h5
expect_code 2 "$ftmpi" recover kept.h5
expect_code 0 "$ftmpi" recover --overwrite kept.h5
expect_code 2 "$ftmpi" recover no/such/folder/x.h5
if grep -q -- "--output" err; then bad "recover is told of --output"; else ok; fi
expect_code 0 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts prompts.txt --output killed.h5 --resume
says "resumed: "
expect_code 0 "$ftmpi" verify five.h5 killed.h5
expect_code 3 "$ftmpi" --model "$model" --prompts prompts.txt --output killed.h5 --resume --max-tokens 3
# What decides the text and is no option: another stop token, another vocabulary; and options to the last digit.
cp -r "$model" changed && chmod -R u+w changed
sampled=(--model changed --prompts prompts.txt --temperature 0.8 --top-p 0.9999999)
FTMPI_FAULT=0:decode#40:kill "$ftmpi" "${sampled[@]}" --output stop.h5 >/dev/null 2>&1
expect_code 3 "$ftmpi" "${sampled[@]/0.9999999/0.9999998}" --output stop.h5 --resume
says "top-p"
sed -i 's/1998/1997/' changed/generation_config.json
expect_code 3 "$ftmpi" "${sampled[@]}" --output stop.h5 --resume
says "stop ids"
# Ranks whose copies of the checkpoint are not the same: what differs is named before anything is loaded. Rank 1 has its own folder.
unlike() { # unlike WHAT
    expect_code 2 each env --chdir="$work/here" "$ftmpi" --model changed --prompt And --output u.h5 : \
        env --chdir="$work/there" "$ftmpi" --model changed --prompt And --output u.h5
    says_once "ftmpi: error"
    says "checkpoints differ between ranks"
    says "$1"
    rm -rf here there
}
copies() { mkdir here there && cp -r "$model" here/changed && cp -r "$model" there/changed && chmod -R u+w there/changed; }
copies
cp changed/generation_config.json there/changed/
unlike "'stop ids"
copies
printf ' ' >>there/changed/tokenizer.json
unlike "'tokenizer.json"
copies
shard=$(grep -la 'embed_tokens.weight":' there/changed/*.safetensors)
header=$(od -An -tu8 -N8 "$shard")
at=$(head -c $((header + 8)) "$shard" | grep -ao 'embed_tokens.weight":{[^}]*}' | grep -o 'offsets":\[[0-9]*' | grep -o '[0-9]*$')
printf '\001' | dd of="$shard" bs=1 seek=$((header + 8 + at)) conv=notrunc 2>/dev/null
unlike "'weights"
# A request that failed in an earlier session counts in the exit code of the one that ends the run.
printf '{"ids":[%s]}\n{"prompt":"The capital of France is"}\n' "$(ids 33)" >failed.jsonl
expect_code 9 "$ftmpi" --model "$model" --prompts failed.jsonl --context 32 --max-tokens 4 --output failed.h5
expect_code 9 "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts failed.jsonl --context 32 --max-tokens 4 --output failed.h5 --resume
says "2 of 2 requests are finished already; nothing to do"

# --- memory: a rank holds what the plan says --------------------------------------------------------------------
ranks="1 2"
if grep -q __asan_init "$ftmpi"; then ranks= && skipped "memory against the plan (a sanitizer's memory is in no plan)"; fi
for np in $ranks; do
    "$mpirun" -np $np "$ftmpi" --model "$model" --prompt "And" --ignore-eos --max-tokens 4000 --output "$work/rss.h5" --overwrite --policy even >/dev/null 2>err &
    for _ in $(seq 100); do
        sleep 0.1
        worst=0
        for pid in $(pgrep -f "^$ftmpi .*$work/rss.h5"); do  # others may run on this machine
            kib=$(awk '/^Rss(Anon|Shmem)/ {s += $2} END {print s + 0}' "/proc/$pid/status" 2>/dev/null)
            [ "${kib:-0}" -gt "$worst" ] && worst=$kib
        done
        [ "$worst" -gt "${seen[$np]:-0}" ] && seen[np]=$worst
        kill -0 $! 2>/dev/null || break
    done
    wait $! && ok || bad "the run whose memory is watched"
    # The plan's table: the column "needs" of the rank that needs most, in MiB.
    needs=$(awk '/^rank +name +has/ {for (i = 1; i <= NF; ++i) if ($i == "needs") from_end = NF - i; on = 1; next} on && NF == 0 {on = 0}
                 on {v = $(NF - from_end); if (v > m) m = v} END {printf "%d", m + 1}' err)
    echo "np $np: a rank held at most $((${seen[$np]:-0} / 1024)) MiB of anonymous and shared memory, the plan says $needs MiB"
    [ "${seen[$np]:-0}" -gt 0 ] && [ "$((${seen[$np]:-0} / 1024))" -le $((needs + 64)) ] && ok || bad "memory of np $np"
done
# The checkpoint's own pages count in a cgroup. When all is loaded none are kept, or those of the embedding (1 MiB) where it stays on the host.
for form in "1 0 --embedding device" "2 0 --embedding device" "2 1152 --embedding host"; do
    read -r np most embedding <<<"$form"
    rm -f decodes
    # shellcheck disable=SC2086
    FTMPI_FAULT=0:decode:mark FTMPI_FAULT_REACHED=$work/decodes \
        "$mpirun" -np "$np" "$ftmpi" --model "$model" --prompt "And" --ignore-eos --max-tokens 4000 --output "$work/pages.h5" --overwrite $embedding >/dev/null 2>err &
    reached decodes >/dev/null
    count=0
    for pid in $(pgrep -f "^$ftmpi .*$work/pages.h5"); do
        count=$((count + 1))
        kib=$(awk '/^[0-9a-f]+-[0-9a-f]+ / {on = /\.safetensors$/} on && /^Rss:/ {s += $2; ++n} END {print n ? s : "none"}' "/proc/$pid/smaps")
        if [ "$kib" != none ] && [ "$kib" -le "$most" ]; then ok; else bad "a rank of $np with $embedding keeps $kib KiB of the checkpoint's pages"; fi
    done
    same "$count" "$np" "ranks whose pages were counted"
    kill $! && wait $!
done
expect_code 0 "$ftmpi" inspect --model "$model"
expect_code 0 "$ftmpi" inspect --json "$model"
same "$(head -c 1 out)" "{" "begin of what inspect --json prints"
# The job file of a run is one that plan takes; what a run would refuse in it is refused.
printf 'model = %s\nprompts = prompts.txt\nmax-tokens = 8\nignore-eos = on\noutput = job.h5\nmemory-limit = 1GiB\n' "$model" >run.ini
expect_code 0 "$ftmpi" plan --job run.ini --hardware 24GiB@1008,16GiB@288
says "policy speed, 2 ranks"
expect_code 0 "$ftmpi" --job run.ini
expect_code 2 "$ftmpi" plan --job run.ini --max-tokens 8
says "--max-tokens does not belong"
printf 'top-p = 3\n' >>run.ini
expect_code 2 "$ftmpi" plan --job run.ini
says "run.ini:7: top-p is \"3\" and must be"
expect_code 0 "$ftmpi" plan --model "$model" --hardware 24GiB@1008,16GiB@288
finish
