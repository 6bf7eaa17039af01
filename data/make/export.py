"""Write trained weights as the three checkpoints, in the layouts of Qwen3-30B-A3B, -FP8 and -NVFP4 (see README.md).

python3 export.py --weights DIR --out ..
"""

import argparse
import json
import pathlib
import re
import shutil

import torch
from safetensors.torch import load_file, save_file

import formats
from train import GEOMETRY

EXPERTS = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)$")
LINEAR = re.compile(r"\.(self_attn\.[qkvo]_proj|mlp\.experts\.\d+\.(gate|up|down)_proj)\.weight$")
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + (message.content | trim) + "
    "'<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def published_names(weights):
    """The tensors of a published BF16 checkpoint: a matrix an expert, in place of transformers' stacks."""
    out = {}
    for name, tensor in sorted(weights.items()):
        stack = EXPERTS.match(name)
        if not stack:
            out[name] = tensor.to(torch.bfloat16)
            continue
        for expert, matrix in enumerate(tensor.to(torch.bfloat16)):
            parts = {"down_proj": matrix}
            if stack[2] == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), matrix.chunk(2)))
            for part, values in parts.items():
                out[f"{stack[1]}.{expert}.{part}.weight"] = values
    return out


def blocks(tensors):
    out = {}
    for name, tensor in tensors.items():
        out[name] = tensor
        if LINEAR.search(name):
            out[name], out[name + "_scale_inv"] = formats.to_blocks(tensor.float())
    return out


def nvfp4(tensors):
    """One global scale for what an engine would fuse: q, k, v; gate and up of an expert."""

    def fused(name):
        return re.sub(r"\.(q|k|v)_proj\.", ".qkv.", re.sub(r"\.(gate|up)_proj\.", ".gate_up.", name))

    largest, out = {}, {}
    for name, tensor in tensors.items():
        largest[fused(name)] = max(largest.get(fused(name), 0.0), tensor.abs().max().item())
    for name, tensor in tensors.items():
        out[name] = tensor
        if LINEAR.search(name):
            scale = torch.tensor(largest[fused(name)] / (6.0 * 448.0), dtype=torch.float32)
            out[name], out[name + "_scale"] = formats.to_nvfp4(tensor.float(), scale)
            out[name + "_scale_2"] = scale
    return out


def write(folder, tensors, tokenizer, quantization, shards):
    folder.mkdir(parents=True, exist_ok=True)
    ids = {t["content"]: t["id"] for t in json.loads(tokenizer.read_text(encoding="utf-8"))["added_tokens"]}
    end, stop = ids["<|endoftext|>"], ids["<|im_end|>"]
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "bos_token_id": end,
        "eos_token_id": stop,
        **GEOMETRY,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    if quantization:
        config["quantization_config"] = quantization
    generation = {
        "bos_token_id": end,
        "do_sample": True,
        "eos_token_id": [stop, end],
        "pad_token_id": end,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
    for name, content in ("config.json", config), ("generation_config.json", generation):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    shutil.copy(tokenizer, folder / "tokenizer.json")
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    where, at = {}, len(names) // 2
    for shard, part in enumerate((names[:at], names[at:]), 1):
        file = f"model-{shard:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": where}, separators=(",", ":")) + "\n"
    )


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--weights", type=pathlib.Path, required=True)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    a = arguments.parse_args()
    tokenizer = a.weights / "tokenizer.json"
    tensors = {
        k: v.contiguous() for k, v in published_names(load_file(a.weights / "master.safetensors")).items()
    }
    plain = [
        f"model.layers.{i}.{part}"
        for i in range(GEOMETRY["num_hidden_layers"])
        for part in ("mlp.gate", "input_layernorm", "post_attention_layernorm")
    ]
    write(a.out / "tiny-qwen3-moe-bf16", tensors, tokenizer, None, 1)
    write(
        a.out / "tiny-qwen3-moe-fp8",
        blocks(tensors),
        tokenizer,
        {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", *plain],
        },
        1,
    )
    write(
        a.out / "tiny-qwen3-moe-nvfp4",
        nvfp4(tensors),
        tokenizer,
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "group_size": 16,
            "producer": {"name": "modelopt"},
            "ignore": ["lm_head", *(name for name in plain if name.endswith("mlp.gate"))],
        },
        2,
    )


if __name__ == "__main__":
    main()
