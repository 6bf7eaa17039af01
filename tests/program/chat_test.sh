#!/usr/bin/env bash
# Chat prompts through the real program and through jobs/render_chat.py: a template that is not known is refused by name,
# and Jinja2 renders it. Each expected prompt is what transformers' apply_chat_template gives.
. "$(dirname "$0")/../support/check.sh"
cd "$work"
render() { "$root/jobs/render_chat.py" --model m "$@"; }
question="What is the capital of France?"
user="<|im_start|>user\n$question<|im_end|>\n" assistant="<|im_start|>assistant\n"
turn='{{- "<|im_start|>" + message.role + "\n" + (message.content | trim) + "<|im_end|>\n" }}'
header='{{- "<|im_start|>assistant\n" }}'
think='{%- if enable_thinking is defined and enable_thinking is false %}{{- "<think>\n\n</think>\n\n" }}{%- else %}{{- "<think>\n" }}{%- endif %}'
chatml="{%- for message in messages %}$turn{%- endfor %}{%- if add_generation_prompt %}$header$think{%- endif %}"

cp -r "$model" m
expect_code 0 "$ftmpi" --model m --chat --prompt "$question" --output known.h5 --max-tokens 8
cp out known.txt

# --- the template may stand in three places; where there is none, they are named ----------------------------------------
python3 - m/tokenizer_config.json m/chat_template.json <<'PYTHON'
import json, sys
config = json.load(open(sys.argv[1]))
json.dump({"chat_template": config.pop("chat_template")}, open(sys.argv[2], "w"))
json.dump(config, open("no_template.json", "w"))
PYTHON
mv m/chat_template.json .
rm m/chat_template.jinja
expect_code 0 "$ftmpi" --model m --chat --prompt "$question" --output place.h5 --max-tokens 8
same "$(cat out)" "$(cat known.txt)" "text under the template of tokenizer_config.json"
cp no_template.json m/tokenizer_config.json
expect_code 3 "$ftmpi" --model m --chat --prompt "$question" --output none.h5
says "chat_template.jinja does not exist"
cp chat_template.json m/
expect_code 0 "$ftmpi" --model m --chat --prompt "$question" --output place.h5 --overwrite --max-tokens 8
same "$(cat out)" "$(cat known.txt)" "text under the template of chat_template.json"
rm m/chat_template.json
absent none.h5

if ! python3 -c 'import jinja2' 2>/dev/null; then
    echo "skipped: rendering (python3-jinja2 is not installed)"
    finish
    exit
fi

# --- templates that are not known: refused with the script that renders them, and what it renders -------------------------
# unknown WHAT TEMPLATE WANT RENDER_OPTIONS...: WANT is the rendered prompt
unknown() {
    printf '%s' "$2" >m/chat_template.jinja
    expect_code 3 "$mpirun" -np 2 "$ftmpi" --model m --chat --prompt "$question" --output unknown.h5
    says_once "chat_template.jinja is not one of the known chat templates"
    says "jobs/render_chat.py --model m"
    absent unknown.h5
    if render --prompt "$question" "${@:4}" >rendered.jsonl 2>err; then ok; else bad "$1 is not rendered: $(cat err)"; fi
    same "$(python3 -c 'import json; print(json.load(open("rendered.jsonl"))["prompt"], end="|")')" "$(printf '%b|' "$3")" "$1"
}
open="<think>\n" closed="<think>\n\n</think>\n\n"
unknown "a think block left open" "$chatml" "$user$assistant$open"
unknown "thinking turned off" "$chatml" "$user$assistant$closed" --thinking off
unknown "thinking turned off by the template" "{%- set enable_thinking = false %}
$chatml" "$user$assistant$closed"
unknown "a system turn by default" "{%- set kind = 'Be kind.' %}{%- if messages[0].role == 'system' %}{%- elif kind %}{{- '<|im_start|>system\n' + kind + '<|im_end|>\n' }}{%- endif %}$chatml" \
    "<|im_start|>system\nBe kind.<|im_end|>\n$user$assistant$open"
unknown "blank lines that are not trimmed" "{# no thinking #}

{% for message in messages %}$turn{% endfor %}$header" "\n$user$assistant"
unknown "a system turn that takes developers" "{%- for message in messages %}{%- if message.role in ('system', 'developer') %}{{- raise_exception('at the start only') }}{%- endif %}$turn{%- endfor %}$header$think" \
    "$user$assistant$open"
unknown "all that transformers adds to Jinja2" "{% for message in messages %}{% generation %}{{ message.content | tojson }}{% endgeneration %}{% break %}{% endfor %}{{ eos_token }}{{ unk_token }}{{ tools is none }}{{ strftime_now('%Y') | length }}" \
    "\"$question\"<|im_end|>True4"
unknown "a value that the template asks for" "$chatml{{ effort }}" "$user$assistant${open}high" --set 'effort="high"'

# --- a rendered prompt runs as --chat does: the same ids, control tokens among them -----------------------------------------
cp "$model/chat_template.jinja" m/
render --prompt "$question" >rendered.jsonl
expect_code 0 "$ftmpi" --model m --prompts rendered.jsonl --output rendered.h5 --max-tokens 8
same "$(grep -c . rendered.jsonl)" 1 "prompts rendered"
expect_code 0 "$ftmpi" verify known.h5 rendered.h5

# --- conversations in a file, with what belongs to the request ----------------------------------------------------------------
printf '%s\n' '{"id": "a", "max_tokens": 3, "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\nr\n</think>\n\nA"}, {"role": "user", "content": "q2"}]}' >chats.jsonl
same "$(render --messages chats.jsonl)" '{"id": "a", "max_tokens": 3, "prompt": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nr\n</think>\n\nA<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\n"}' "a conversation of several turns"
same "$(render --messages - <chats.jsonl | sha256sum)" "$(render --messages chats.jsonl | sha256sum)" "conversations from standard input"

# --- what cannot be rendered is refused, and nothing is written --------------------------------------------------------------
# no_prompt TEXT ARGS...
no_prompt() {
    expect_code 1 "$root/jobs/render_chat.py" --model m "${@:2}"
    says "$1"
    same "$(cat out)" "" "prompts in spite of \"$1\""
}
no_prompt "prompt 2: the text holds <|im_end|>" --prompt a --prompt "x<|im_end|>"
same "$(render --allow-control-tokens --prompt '<|im_end|>' | wc -l)" 1 "prompts with a control token that was allowed"
printf '{"messages": [{"role": "user", "content": [{"type": "text", "text": "<think>"}]}]}\n' >chats.jsonl
no_prompt "chats.jsonl: line 1: the text holds <think>" --messages chats.jsonl
printf '{"prompt": "a"}\n' >chats.jsonl
no_prompt "chats.jsonl: line 1" --messages chats.jsonl
printf '{"messages": [], "mesages": 1}\n' >chats.jsonl
no_prompt 'unknown key "mesages"' --messages chats.jsonl
no_prompt "nowhere.jsonl" --messages nowhere.jsonl
printf '{{ raise_exception("no query") }}' >m/chat_template.jinja
no_prompt "no query" --prompt a
printf '{%% for' >m/chat_template.jinja
no_prompt "chat_template.jinja" --prompt a
printf '{{ messages.__class__.__mro__ }}' >m/chat_template.jinja
no_prompt "unsafe" --prompt a
rm m/chat_template.jinja
no_prompt "no chat template" --prompt a
finish
