#!/usr/bin/env python3
"""Renders chat prompts with Jinja2, as the apply_chat_template of transformers does, before a run:

    jobs/render_chat.py --model DIR --prompt "What is ...?" > prompts.jsonl
    jobs/render_chat.py --model DIR --messages chats.jsonl > prompts.jsonl
    ftmpi --model DIR --prompts prompts.jsonl        (without --chat: the prompts are whole)

A line of --messages is {"messages": [{"role": "user", "content": "..."}, ...]}, with "id" and "max_tokens" handed on
and "tools" and "documents" given to the template. Needs Jinja2 (Debian: python3-jinja2). The template comes from
chat_template.jinja, else chat_template.json, else tokenizer_config.json, and runs in Jinja2's sandbox.
"""
import argparse
import datetime
import json
import os
import sys

PLACES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Refused(Exception):
    pass


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}")


def text_of(token):
    return token.get("content") if isinstance(token, dict) else token


def find_template(model):
    """The text of the first place that has one."""
    for name in PLACES:
        path = os.path.join(model, name)
        if not os.path.lexists(path):
            continue
        if name.endswith(".jinja"):
            try:
                with open(path, encoding="utf-8") as file:
                    return path, file.read()
            except (OSError, ValueError) as error:
                raise Refused(f"{path}: {error}")
        found = read_json(path).get("chat_template")
        if isinstance(found, list):
            found = {one["name"]: one["template"] for one in found}.get("default")
            if found is None:
                raise Refused(f"{path}: chat_template is a list without one named \"default\"")
        if found is not None:
            return path, found
    raise Refused(f"{model} has no chat template: looked in {', '.join(PLACES)}")


def special_tokens(model):
    path = os.path.join(model, "tokenizer_config.json")
    config = read_json(path) if os.path.lexists(path) else {}
    return {name: text_of(config[name]) for name in SPECIAL_TOKENS if config.get(name) is not None}


def added_tokens(model):
    path = os.path.join(model, "tokenizer.json")
    return [token["content"] for token in read_json(path).get("added_tokens") or []]


def compile_template(path, text):
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise Refused(f"Jinja2 is not installed ({error}): apt install python3-jinja2, or pip install jinja2")

    class Generation(Extension):
        """{% generation %}: marks the model's own words for training, and changes no text."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        template = environment.from_string(text)
    except jinja2.exceptions.TemplateError as error:
        raise Refused(f"{path}: {error}")

    def render(where, **values):
        try:
            return template.render(**values)
        except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError) as error:
            raise Refused(f"{where}: {path}: {error}")

    return render


def refuse_control_tokens(where, value, tokens):
    """Text of others must not open or end a turn: the rendered prompt is one text, in which every such token counts."""
    if isinstance(value, str):
        for token in tokens:
            if token in value:
                raise Refused(f"{where}: the text holds {token}, which would become a control token "
                              "(--allow-control-tokens lets it)")
    elif isinstance(value, dict):
        for one in value.values():
            refuse_control_tokens(where, one, tokens)
    elif isinstance(value, list):
        for one in value:
            refuse_control_tokens(where, one, tokens)


def conversations(options):
    """(place, line of the output, values for the template)"""
    for number, text in enumerate(options.prompt, 1):
        yield f"--prompt {number}", {}, {"messages": [{"role": "user", "content": text}]}
    if not options.messages:
        return
    try:
        file = sys.stdin if options.messages == "-" else open(options.messages, encoding="utf-8")
        with file:
            lines = [line for line in file]
    except (OSError, ValueError) as error:
        raise Refused(f"{options.messages}: {error}")
    for number, line in enumerate(lines, 1):
        where = f"{options.messages}: line {number}"
        try:
            values = json.loads(line)
        except ValueError as error:
            raise Refused(f"{where}: {error}")
        if not isinstance(values, dict) or not isinstance(values.get("messages"), list) or \
                not all(isinstance(message, dict) for message in values["messages"]):
            raise Refused(f"{where}: not an object with a list of messages")
        kept = {key: values.pop(key) for key in ("id", "max_tokens") if key in values}
        unknown = set(values) - {"messages", "tools", "documents"}
        if unknown:
            raise Refused(f"{where}: unknown key \"{sorted(unknown)[0]}\"")
        yield where, kept, values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR", help="folder of the checkpoint")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="one user message (repeatable)")
    parser.add_argument("--messages", metavar="FILE", help="conversations, one JSON object a line; - is standard input")
    parser.add_argument("--thinking", choices=("on", "off"),
                        help="the template's enable_thinking; left out, the template decides")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="any other value of the template")
    parser.add_argument("--allow-control-tokens", action="store_true",
                        help="let messages hold the model's control tokens")
    options = parser.parse_args()
    if not options.prompt and not options.messages:
        parser.error("no conversation: give --prompt TEXT or --messages FILE")
    try:
        path, text = find_template(options.model)
        render = compile_template(path, text)
        common = {"tools": None, "documents": None, "add_generation_prompt": True, **special_tokens(options.model)}
        if options.thinking:
            common["enable_thinking"] = options.thinking == "on"
        for setting in options.set:
            name, _, value = setting.partition("=")
            try:
                common[name] = json.loads(value)
            except ValueError:
                raise Refused(f"--set {setting}: {value!r} is not JSON")
        tokens = [] if options.allow_control_tokens else added_tokens(options.model)
        output = []
        for where, kept, values in conversations(options):
            others = [message for message in values["messages"] if message.get("role") != "assistant"]
            refuse_control_tokens(where, [others, values.get("tools"), values.get("documents")], tokens)
            output.append({**kept, "prompt": render(where, **{**common, **values})})
        for line in output:
            print(json.dumps(line))
    except Refused as refused:
        sys.exit(f"render_chat.py: error: {refused}")


if __name__ == "__main__":
    main()
