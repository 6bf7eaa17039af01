#!/usr/bin/env bash
# The generator of full-size checkpoints: names and shapes of the published ones, and small forms of it that load and run.
python3 -c 'import numpy' 2>/dev/null || { echo "skipped: python3 with numpy is needed to make checkpoints"; exit 77; }
. "$(dirname "$0")/../support/check.sh"
cd "$work"
make=$root/tests/gpu/make_checkpoint.py
export PYTHONDONTWRITEBYTECODE=1

# --- the published inventories, to the last shape (sparse files) -----------------------------------------------------
names='
import glob, json, struct, sys
index = json.load(open(sys.argv[1] + "/model.safetensors.index.json"))["weight_map"]
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    header.pop("__metadata__")
    for name, t in header.items():
        assert path.endswith("/" + index.pop(name)), name
        print(name, t["dtype"], *t["shape"])
assert not index, "names without a tensor"'
for form in nvfp4 fp8; do
    expect_code 0 python3 "$make" names --names-only --overwrite --format $form
    python3 -c "$names" names | sort >made.txt
    "$build/tests/real_names" $form | sort >published.txt
    same "$(wc -l <made.txt)" "$(wc -l <published.txt)" "number of $form tensors"
    if cmp -s made.txt published.txt; then ok; else
        bad "$form: names, dtypes or shapes differ"
        diff made.txt published.txt | head -n 5
    fi
done
rm -rf names

# --- cut small, they load and run; the vocabulary's edges are the published ones, moved ------------------------------
for form in nvfp4 fp8; do
    expect_code 0 python3 "$make" small --layers 4 --experts 8 --vocab 2048 --vision-depth 1 --overwrite --format $form
    sha256sum small/*.safetensors >first.txt
    expect_code 0 "$ftmpi" --model small --prompt "Cutting a model changes none of its words." --max-tokens 4 --ignore-eos \
        --output $form.h5
    expect_code 0 "$mpirun" -np 2 "$ftmpi" --model small --prompt "Cutting a model changes none of its words." --max-tokens 4 \
        --ignore-eos --output other.h5 --overwrite --shares 3,1
    expect_code 0 "$ftmpi" verify $form.h5 other.h5
    expect_code 0 python3 "$make" small --layers 4 --experts 8 --vocab 2048 --vision-depth 1 --overwrite --format $form --processes 3
    expect_code 0 sha256sum --check --quiet first.txt
    printf '{"ids":[1,1772,1804]}\n{"ids":[1,1805]}\n' >ids.jsonl
    expect_code 3 "$ftmpi" --model small --prompts ids.jsonl --max-tokens 1 --output ids.h5
    says "1805"
done
expect_code 2 python3 "$make" small
says "is not empty"
finish
