"""Reference outputs of the three checkpoints, by transformers' Qwen3MoeForCausalLM in float32 on the CPU (see README.md).

    python3 references.py --models .. --out ../references

The weights are dequantized here from the files of the folder; attention and experts run the library's eager forms.
"""

import argparse
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import corpus
import formats
from train import GEOMETRY, config

TOKENS, KEPT, TRACED = 16, 16, 20


def dequantized(folder):
    """transformers' names -> float32, experts stacked."""
    raw = {}
    for file in sorted(folder.glob("*.safetensors")):
        raw |= load_file(file)
    flat = {}
    for name, tensor in raw.items():
        if name + "_scale_inv" in raw:
            flat[name] = formats.from_blocks(tensor, raw[name + "_scale_inv"])
        elif name + "_scale_2" in raw:
            flat[name] = formats.from_nvfp4(tensor, raw[name + "_scale"], raw[name + "_scale_2"])
        elif not name.endswith(("_scale", "_scale_2", "_scale_inv")):
            flat[name] = tensor.float()
    for layer in range(GEOMETRY["num_hidden_layers"]):
        at = f"model.layers.{layer}.mlp.experts."
        take = lambda part: [flat.pop(f"{at}{e}.{part}.weight") for e in range(GEOMETRY["num_experts"])]
        flat[at + "gate_up_proj"] = torch.stack(
            [torch.cat(pair) for pair in zip(take("gate_proj"), take("up_proj"))]
        )
        flat[at + "down_proj"] = torch.stack(take("down_proj"))
    return flat


def greedy(model, ids):
    """-> tokens, logits [TOKENS][vocabulary]; one token at a time through the cache."""
    cache, step, tokens, rows = transformers.DynamicCache(config=model.config), torch.tensor([ids]), [], []
    for _ in range(TOKENS):
        row = model(input_ids=step, past_key_values=cache, use_cache=True).logits[0, -1]
        rows.append(row)
        tokens.append(int(row.argmax()))
        step = torch.tensor([tokens[-1:]])
    whole = model(input_ids=torch.tensor([ids + tokens[:-1]]), use_cache=False).logits[0, -TOKENS:]
    return tokens, torch.stack(rows), float((whole - torch.stack(rows)).abs().max())


def trace(model, ids):
    """What the layers give for a prompt: block outputs, router logits, the residual stream."""
    out, hooks = {}, []

    def keep(module, name):
        def hook(_module, _input, output):
            output = output[0] if isinstance(output, tuple) else output
            out["trace." + name] = output.squeeze(0).clone().contiguous()

        hooks.append(module.register_forward_hook(hook))

    keep(model.model.embed_tokens, "hidden.embed")
    keep(model.model.norm, "hidden.final_norm")
    for i, layer in enumerate(model.model.layers):
        keep(layer, f"hidden.layer{i}")
        keep(layer.self_attn, f"mixer.layer{i}")
        keep(layer.mlp, f"moe.layer{i}")
        keep(layer.mlp.gate, f"router_logits.layer{i}")
    model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return out | {"trace.prompt_ids": torch.tensor(ids, dtype=torch.int32)}


@torch.no_grad()
def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", type=pathlib.Path, required=True)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    a = arguments.parse_args()
    for variant in "bf16", "fp8", "nvfp4":
        folder = a.models / f"tiny-qwen3-moe-{variant}"
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        stop_ids = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        model = transformers.Qwen3MoeForCausalLM(
            config(attn_implementation="eager", experts_implementation="eager")
        )
        model.load_state_dict(dequantized(folder), strict=True)
        model = model.float().eval()
        tensors, prompts = {}, []
        for name, text in corpus.PROMPTS.items():
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            tokens, logits, difference = greedy(model, ids)
            values, order = logits.topk(KEPT, -1)
            tensors[name + ".top_ids"], tensors[name + ".top_logits"] = (
                order.to(torch.int32),
                values.contiguous(),
            )
            if name == "capital":
                tensors[name + ".logits"] = logits.contiguous()
            stops = [i for i, token in enumerate(tokens) if token in stop_ids]
            prompts.append(
                {
                    "name": name,
                    "prompt": text,
                    "prompt_ids": ids,
                    "greedy_ids": tokens,
                    "greedy_text": tokenizer.decode(tokens, skip_special_tokens=False),
                    "margin": [round(float(v[0] - v[1]), 5) for v in values],
                    "first_stop": stops[0] if stops else None,
                    "cached_vs_full_max_abs": difference,
                }
            )
            print(
                variant,
                name,
                repr(prompts[-1]["greedy_text"]),
                "smallest margin",
                min(prompts[-1]["margin"]),
                difference,
            )
        tensors |= trace(
            model, tokenizer.encode(corpus.PROMPTS["long"], add_special_tokens=False).ids[:TRACED]
        )
        made = {
            "variant": "tiny-qwen3-moe-" + variant,
            "dtype": "float32",
            "computed_with": f"Qwen3MoeForCausalLM of transformers {transformers.__version__}, "
            f"torch {torch.__version__}, CPU",
            "new_tokens": TOKENS,
            "prompts": prompts,
        }
        save_file(tensors, a.out / f"reference-qwen3-moe-{variant}.safetensors")
        (a.out / f"reference-qwen3-moe-{variant}.json").write_text(
            json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
