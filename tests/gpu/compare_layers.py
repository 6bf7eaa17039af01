#!/usr/bin/env python3
"""Holds every layer that layer_dump wrote against transformers' layer on the same weights, dequantised here to fp32.

  compare_layers.py MODEL DUMP [--device auto|cpu|cuda] [--bound B]

Each layer gets the input that it had in the program, so that its error is its own; a second table follows the whole chain. Needs
torch, transformers (5.17, with qwen3_5_moe), numpy. Exits with 1 when a layer's largest error is above the bound, as a part of the
largest value that the reference has there.
"""

import argparse
import json
import pathlib
import sys

import numpy as np
import torch
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (Qwen3_5MoeDecoderLayer, Qwen3_5MoeRMSNorm,
                                                                  Qwen3_5MoeTextRotaryEmbedding)

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


class Checkpoint:
    """Tensors by name, dequantised to fp32 on the device."""

    TYPES = {"F32": (np.float32, torch.float32), "BF16": (np.uint16, torch.bfloat16), "U8": (np.uint8, torch.uint8),
             "F8_E4M3": (np.uint8, torch.float8_e4m3fn)}

    def __init__(self, directory, device):
        self.device, self.entries = device, {}
        for path in sorted(directory.glob("*.safetensors")):
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            data = np.memmap(path, np.uint8, "r", offset=8 + size)
            for name, entry in header.items():
                self.entries[name] = (data, entry)

    def raw(self, name):
        data, entry = self.entries[name]
        begin, end = entry["data_offsets"]
        kind, dtype = self.TYPES[entry["dtype"]]
        values = torch.from_numpy(np.array(data[begin:end]).view(kind).copy())
        return values.view(dtype).reshape(entry["shape"]).to(self.device)

    def vector(self, name):
        return self.raw(name).float()

    def matrix(self, module):
        """What `module`.weight stands for, by the scales that are there."""
        name = module + ".weight"
        if module + ".weight_scale_2" in self.entries:
            codes = self.raw(name).long()
            values = E2M1.to(self.device)[torch.stack((codes & 15, codes >> 4), -1).flatten(1)]
            scales = self.raw(module + ".weight_scale").float() * self.raw(module + ".weight_scale_2")
            return values * scales.repeat_interleave(16, 1)
        if module + ".weight_scale_inv" in self.entries:
            values = self.raw(name).float()
            scales = self.raw(module + ".weight_scale_inv").float()
            scales = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
            return values * scales[:values.shape[0], :values.shape[1]]
        if module + ".weight_scale" in self.entries:
            return self.raw(name).float() * self.raw(module + ".weight_scale")
        return self.raw(name).float()


def fill(layer, checkpoint, prefix, config):
    """Loads one decoder layer; every parameter must have its tensor."""
    state = {}

    def put(name, value):
        state[name] = value

    for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
        put(norm, checkpoint.vector(prefix + norm))
    if hasattr(layer, "self_attn"):
        for p in ("q_proj", "k_proj", "v_proj", "o_proj"):
            put(f"self_attn.{p}.weight", checkpoint.matrix(prefix + "self_attn." + p))
        for norm in ("q_norm.weight", "k_norm.weight"):
            put("self_attn." + norm, checkpoint.vector(prefix + "self_attn." + norm))
    else:
        for p in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"):
            put(f"linear_attn.{p}.weight", checkpoint.matrix(prefix + "linear_attn." + p))
        for p in ("A_log", "dt_bias", "conv1d.weight", "norm.weight"):
            put("linear_attn." + p, checkpoint.vector(prefix + "linear_attn." + p))
    put("mlp.gate.weight", checkpoint.matrix(prefix + "mlp.gate"))
    put("mlp.shared_expert_gate.weight", checkpoint.matrix(prefix + "mlp.shared_expert_gate"))
    for p in ("gate_proj", "up_proj", "down_proj"):
        put(f"mlp.shared_expert.{p}.weight", checkpoint.matrix(prefix + "mlp.shared_expert." + p))
    experts = [prefix + f"mlp.experts.{e}." for e in range(config.num_experts)]
    put("mlp.experts.gate_up_proj", torch.stack([torch.cat((checkpoint.matrix(e + "gate_proj"), checkpoint.matrix(e + "up_proj")))
                                                 for e in experts]))
    put("mlp.experts.down_proj", torch.stack([checkpoint.matrix(e + "down_proj") for e in experts]))
    layer.load_state_dict(state, strict=True, assign=True)


class Dump:
    def __init__(self, path, device):
        values = np.fromfile(str(path) + ".f32", np.float32)
        self.ids = np.loadtxt(str(path) + ".ids", dtype=np.int64, ndmin=1)
        self.states = {}
        for line in open(str(path) + ".txt"):
            name, layer, rows, width, first = line.split()
            rows, width, first = int(rows), int(width), int(first)
            matrix = torch.from_numpy(values[first:first + rows * width].reshape(rows, width)).to(device)
            self.states[name, int(layer)] = matrix

    def __getitem__(self, key):
        return self.states[key]


def geometry(directory):
    """The text model's configuration, with the implementations that need no further package."""
    settings = json.load(open(directory / "config.json"))["text_config"]
    settings.pop("dtype", None)
    config = Qwen3_5MoeTextConfig(**settings)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


class Errors:
    def __init__(self, bound):
        self.bound, self.worst = bound, 0.0

    def line(self, what, ours, reference, counted=True):
        """`counted`: held to the bound."""
        assert torch.isfinite(ours).all() and torch.isfinite(reference).all(), f"{what}: a value is not finite"
        difference = (ours.double() - reference.double()).abs()
        largest = difference.max().item()
        relative = largest / reference.double().abs().max().item()
        rms = (difference.square().mean() / reference.double().square().mean()).sqrt().item()
        if counted:
            self.worst = max(self.worst, relative)
        mark = "" if not counted else "ok" if relative <= self.bound else "FAILED"
        print(f"{what:<34} {largest:12.3e} {relative:12.3e} {rms:12.3e}  {mark}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("dump", type=pathlib.Path)
    p.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    p.add_argument("--bound", type=float, help="by default 2e-4 with 4-bit weights, whose inputs are rounded, else 1e-5")
    a = p.parse_args()
    device = a.device if a.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)

    config = geometry(a.model)
    checkpoint, dump = Checkpoint(a.model, device), Dump(a.dump, device)
    tokens = len(dump.ids)
    positions = torch.arange(tokens, device=device)
    rope = Qwen3_5MoeTextRotaryEmbedding(config).to(device)
    mask = torch.full((tokens, tokens), torch.finfo(torch.float32).min, device=device).triu(1)[None, None]

    four_bit = any(name.endswith(".weight_scale_2") for name in checkpoint.entries)
    bound = a.bound or (2e-4 if four_bit else 1e-5)
    errors = Errors(bound)
    print(f"{tokens} tokens, fp32 on {device}; error: largest, as a part of the largest value, rms as a part of rms")
    embedding = checkpoint.raw("model.language_model.embed_tokens.weight")[torch.from_numpy(dump.ids).to(device)].float()
    errors.line("embedding", dump["embed", -1], embedding)
    chain, chained = embedding, []
    for i in range(config.num_hidden_layers):
        with torch.device("meta"):
            layer = Qwen3_5MoeDecoderLayer(config, i)
        layer.eval()
        fill(layer, checkpoint, f"model.language_model.layers.{i}.", config)
        parts = {}
        mixer = layer.self_attn if hasattr(layer, "self_attn") else layer.linear_attn
        mixer.register_forward_hook(lambda m, x, y: parts.__setitem__("mixer", (y[0] if isinstance(y, tuple) else y)[0]))
        layer.mlp.register_forward_hook(lambda m, x, y: parts.__setitem__("moe", (y[0] if isinstance(y, tuple) else y)[0]))
        layer.mlp.gate.register_forward_hook(lambda m, x, y: parts.__setitem__("router", y[0]))

        def run(x):
            cos_sin = rope(x[None], positions.view(1, 1, -1).expand(3, 1, -1))
            is_attention = config.layer_types[i] == "full_attention"
            return layer(x[None], position_embeddings=cos_sin, attention_mask=mask if is_attention else None,
                         position_ids=positions[None])[0]

        kind = "attention" if config.layer_types[i] == "full_attention" else "delta net"
        given = embedding if i == 0 else dump["hidden", i - 1]
        out = run(given)
        errors.line(f"layer {i} {kind}", dump["mixer", i], parts["mixer"])
        errors.line(f"layer {i} router", dump["router", i], parts["router"])
        k = config.num_experts_per_tok
        ours, theirs = dump["router", i].topk(k).indices.sort().values, parts["router"].topk(k).indices.sort().values
        differ = (ours != theirs).any(1).sum().item()
        used = len(theirs.unique())
        errors.line(f"layer {i} experts", dump["moe", i], parts["moe"])
        errors.line(f"layer {i} out", dump["hidden", i], out)
        print(f"    {used} of {config.num_experts} experts used; tokens that chose others: {differ}; "
              f"residual rms {given.square().mean().sqrt():.3f}")
        chain = run(chain)
        chained.append((f"layers 0 to {i}", dump["hidden", i], chain))
        del layer

    norm = Qwen3_5MoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps).to(device)
    norm.weight.data = checkpoint.vector("model.language_model.norm.weight")
    final = norm(dump["hidden", config.num_hidden_layers - 1][-1:])
    errors.line("final norm", dump["final_norm", -1], final)
    head = checkpoint.matrix("lm_head")
    errors.line("logits", dump["logits", -1], final @ head.T)
    print("the whole chain")
    for line in chained:
        errors.line(*line, counted=False)
    reference = norm(chain[-1:]) @ head.T
    errors.line("logits", dump["logits", -1], reference, counted=False)
    first = reference[0].topk(2)
    same = dump["logits", -1][0].argmax().item() == first.indices[0].item()
    print(f"likeliest token {'equal' if same else 'DIFFERENT'}, lead {(first.values[0] - first.values[1]).item():.4f}")
    good = errors.worst <= bound and same
    print(f"largest error of a layer {errors.worst:.2e} of its largest value, bound {bound:.0e}: {'ok' if good else 'FAILED'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
