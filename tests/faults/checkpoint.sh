# Files of the checkpoint that change while they are read, and while the model runs.

# changed PHASE COMMAND...: stops rank 0 in the phase, changes the shard that holds the embedding, lets it go on.
changed() {
    local at=$1 first pid
    shift
    cp -r "$model" m
    model=$here/m
    shard=m/$(grep -o '"model.embed_tokens.weight": *"[^"]*"\|"model.language_model.embed_tokens.weight": *"[^"]*"' m/model.safetensors.index.json | sed 's/.*: *"//; s/"$//')
    # The other rank is done with reading before the file changes.
    fault 1:load.done:mark,0:$at:stop
    (job 2; echo "$code $took" >result) &
    first=$!
    await grep -q '^reached load.done' at_fault && await grep -q "^reached ${at%#*} 0 " at_fault || complain "the phase was not reached"
    pid=$(sed -n "s/^reached ${at%#*} 0 //p" at_fault)
    await is_stopped "$pid" || complain "rank 0 was not stopped"
    "$@" "$shard"
    kill -CONT "$pid"
    wait $first
    read -r code took <result
    model=$root/data/tiny-nvfp4
}
cut_short() { truncate -s 4096 "$1"; }
# A clock of the file system ticks every few milliseconds.
rewritten() { sleep 0.1; printf x | dd of="$1" bs=1 seek=3000000 conv=notrunc 2>/dev/null; }
replaced() { cp "$1" other && printf x | dd of=other bs=1 seek=3000000 conv=notrunc 2>/dev/null && mv other "$1"; }
removed() { rm "$1"; }
for action in cut_short rewritten replaced removed; do
    other_cases+=("load_$action" "decode_$action")
    eval "case_load_$action() { changed load $action; same_code 3; row load 'a shard is ${action/_/ } while it is read'; }"
    case $action in cut_short | rewritten) code=3 ;; *) code=0 ;; esac
    eval "case_decode_$action() { changed decode#40 $action; same_code $code; row decode 'a shard is ${action/_/ } while the model runs'; }"
done
unset action code

# Other weights under the same configuration and index do not go on where the first ones stopped.
other_cases+=(other_weights)
case_other_weights() {
    cp -r "$root/data/tiny-fp8" first && cp -r first second
    dd if=first/model-00001-of-00001.safetensors of=second/model-00001-of-00001.safetensors bs=1M skip=2 seek=5 count=4 conv=notrunc 2>/dev/null
    "$ftmpi" --model first --prompts prompts.txt --output want.h5 >/dev/null 2>&1
    FTMPI_FAULT=0:decode#40:kill "$ftmpi" --model first --prompts prompts.txt --output f.h5 >/dev/null 2>&1
    model=second
    alone --resume
    model=first
    same_code 3
    row results "--resume with other weights under the same configuration" want.h5
}
