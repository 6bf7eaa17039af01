#!/usr/bin/env python3
"""How far from fp32 the hidden state is after each layer: of dumps that layer_dump wrote, and of transformers in bf16.

  error_table.py MODEL NAME=DUMP [NAME=DUMP ...] [--device auto|cpu|cuda] [--exact NAME]

The reference is transformers in fp32 on the dequantised weights, from the embedding on; transformers in bf16 has the same weights
rounded to bf16. Everything follows its own chain of layers. Columns: the largest error as a part of the reference's largest value, the
rms error as a part of the reference's rms, and tokens that chose other experts than in the reference (where two experts are nearly
equal, any rounding does that, and such a token's state is then far off by itself). Needs torch, transformers (5.17, with qwen3_5_moe),
numpy. Exits with 1 when --exact's rms error is not below that of bf16 after every layer.
"""

import argparse
import pathlib
import sys

import torch
from compare_layers import Checkpoint, Dump, fill, geometry
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (Qwen3_5MoeDecoderLayer, Qwen3_5MoeRMSNorm,
                                                                  Qwen3_5MoeTextRotaryEmbedding)

BF16 = "transformers bf16"


class Chain:
    """transformers' layers one after the other on one state."""

    def __init__(self, config, embedding, dtype):
        self.config, self.dtype, self.state = config, dtype, embedding.to(dtype)
        tokens, device = len(embedding), embedding.device
        self.positions = torch.arange(tokens, device=device)
        self.rope = Qwen3_5MoeTextRotaryEmbedding(config).to(device)
        self.mask = torch.full((tokens, tokens), torch.finfo(dtype).min, dtype=dtype, device=device).triu(1)[None, None]

    def step(self, layer, i):
        """Runs layer i, cast to the type of the chain; returns the router's logits."""
        router = []
        hook = layer.mlp.gate.register_forward_hook(lambda m, x, y: router.append(y[0].float()))
        x = self.state[None]
        attends = self.config.layer_types[i] == "full_attention"
        out = layer.to(self.dtype)(x, position_embeddings=self.rope(x, self.positions.view(1, 1, -1).expand(3, 1, -1)),
                                   attention_mask=self.mask if attends else None, position_ids=self.positions[None])
        self.state = out[0]
        hook.remove()
        return router[0]


def chosen(logits, config):
    return logits.topk(config.num_experts_per_tok).indices.sort().values


def errors(got, reference):
    assert torch.isfinite(got).all() and torch.isfinite(reference).all(), "a value is not finite"
    difference, reference = got.double() - reference.double(), reference.double()
    largest = difference.abs().max() / reference.abs().max()
    return largest.item(), (difference.square().mean() / reference.square().mean()).sqrt().item()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("dumps", nargs="+", metavar="NAME=DUMP")
    p.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    p.add_argument("--exact", help="the dump that must be nearer than bf16; by default the first")
    a = p.parse_args()
    device = a.device if a.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.set_grad_enabled(False)

    config, checkpoint = geometry(a.model), Checkpoint(a.model, device)
    dumps = {name: Dump(path, device) for name, path in (d.split("=", 1) for d in a.dumps)}
    exact = a.exact or next(iter(dumps))
    ids = dumps[exact].ids
    assert all((d.ids == ids).all() for d in dumps.values()), "the dumps are of different prompts"
    embedding = checkpoint.raw("model.language_model.embed_tokens.weight")[torch.from_numpy(ids).to(device)].float()
    reference, half = Chain(config, embedding, torch.float32), Chain(config, embedding, torch.bfloat16)

    print(f"{len(ids)} tokens; errors of the hidden state against transformers in fp32 on {device}: largest, rms, tokens that chose "
          "other experts")
    names = list(dumps) + [BF16]
    print(f"{'after':<20}" + "".join(f" | {name:>28}" for name in names))
    good = True

    def line(what, columns):
        nonlocal good
        text = f"{what:<20}"
        for name in names:
            largest, rms, other = columns[name]
            text += f" | {largest:10.2e} {rms:10.2e} {other:>6}"
        good = good and columns[exact][1] < columns[BF16][1]
        print(text, flush=True)

    for i in range(config.num_hidden_layers):
        with torch.device("meta"):
            layer = Qwen3_5MoeDecoderLayer(config, i)
        layer.eval()
        fill(layer, checkpoint, f"model.language_model.layers.{i}.", config)
        routed = chosen(reference.step(layer, i), config)
        columns = {name: errors(d["hidden", i], reference.state) + ((chosen(d["router", i], config) != routed).any(1).sum().item(),)
                   for name, d in dumps.items()}
        differ = (chosen(half.step(layer, i), config) != routed).any(1).sum().item()
        columns[BF16] = errors(half.state, reference.state) + (differ,)
        kind = "attention" if config.layer_types[i] == "full_attention" else "delta net"
        line(f"layer {i}, {kind}", columns)
        del layer

    norm = Qwen3_5MoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps).to(device)
    norm.weight.data = checkpoint.vector("model.language_model.norm.weight")
    head = checkpoint.matrix("lm_head")
    logits = norm(reference.state[-1:]) @ head.T
    columns = {name: errors(d["logits", -1], logits) + ("",) for name, d in dumps.items()}
    columns[BF16] = errors(norm.to(torch.bfloat16)(half.state[-1:]) @ head.T.to(torch.bfloat16), logits) + ("",)
    line("the last logits", columns)
    print(f"{exact} is nearer to fp32 than {BF16} everywhere: {'yes' if good else 'NO'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
