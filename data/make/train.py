"""Train the tiny Qwen3-MoE model on the CPU and write its float32 weights and tokenizer (see README.md).

python3 train.py --steps 1200 --out DIR
"""

import argparse
import json
import math
import pathlib
import random
import time

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import corpus

HERE = pathlib.Path(__file__).resolve().parent
VOCAB = 768
GEOMETRY = dict(
    vocab_size=VOCAB,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=48,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    attention_bias=False,
    attention_dropout=0.0,
    initializer_range=0.05,
    tie_word_embeddings=False,
    use_sliding_window=False,
    sliding_window=None,
    router_aux_loss_coef=0.01,
)


def config(**more):
    return Qwen3MoeConfig(
        **GEOMETRY, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, **more
    )


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=1200)
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--length", type=int, default=128)
    arguments.add_argument("--rate", type=float, default=4e-3)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    a = arguments.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    tokenizer_file = a.out / "tokenizer.json"
    cut = corpus.cut_tokenizer(HERE.parent / "tiny-nvfp4" / "tokenizer.json", VOCAB)
    tokenizer_file.write_text(json.dumps(cut, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids

    model = Qwen3MoeForCausalLM(config(output_router_logits=True)).float().train()
    print("parameters", sum(p.numel() for p in model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.rate, betas=(0.9, 0.98), weight_decay=0.02)
    rows = corpus.rows(
        encode, tokenizer.token_to_id("<|endoftext|>"), a.length, a.steps * a.batch, random.Random(1)
    )
    began = time.time()
    for step in range(a.steps):
        rate = (
            a.rate * min(1, (step + 1) / 60) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / a.steps)))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids = torch.tensor([next(rows) for _ in range(a.batch)])
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss  # next token and load balancing
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}, {time.time() - began:.0f} s", flush=True)
    save_file(
        {k: v.detach().contiguous() for k, v in model.state_dict().items()}, a.out / "master.safetensors"
    )


if __name__ == "__main__":
    main()
