"""Names, dtypes, shapes and contents of the tensors of Qwen3.6-35B-A3B, as published in NVFP4 and in block FP8.

The contents are random, with the spread that keeps a model of random weights sane over its depth and over long prompts:
every projection has weights of N(0, 1/K) times a gain chosen so that each of the 80 branches adds about 0.3 to a residual
stream that starts at 1 (it ends near 3).
"""

from dataclasses import dataclass

HIDDEN, WIDTH = 2048, 512
QUERY_HEADS, KV_HEADS, HEAD_DIM = 16, 2, 256
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS = 16, 32, 128, 128, 4
CONV_CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
VISION_HIDDEN, VISION_WIDTH, VISION_DEPTH = 1152, 4304, 27
DTYPE_BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}

ROUTER_GAIN = 1.5  # spread of the router's logits
LOGIT_GAIN = 3.0   # spread of the logits: the largest of 248,077 leads by about 0.6
UNUSED_SIGMA = 0.02  # vision and MTP: never run here


@dataclass(frozen=True)
class Geometry:
    layers: int = 40
    experts: int = 256
    vocab: int = 248320
    vision_depth: int = VISION_DEPTH

    @property
    def base_tokens(self):
        """Tokens of the tokenizer before the added ones; the published vocabulary has 276 rows more."""
        return self.vocab - 276

    @property
    def top_k(self):
        return min(8, self.experts)


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple
    kind: str           # what the values are; see contents.py
    spread: float = 0   # standard deviation of the (dequantised) values
    mean: float = 0
    group: str = ""     # tensors of one group are drawn from the same random numbers

    @property
    def elements(self):
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def bytes(self):
        return self.elements * DTYPE_BYTES[self.dtype]


def is_attention(layer):
    return layer % 4 == 3


class Inventory:
    """All tensors of one checkpoint, layer by layer."""

    def __init__(self, form, geometry):
        self.form, self.geometry, self.tensors = form, geometry, []
        self.plain("model.language_model.embed_tokens.weight", (geometry.vocab, HIDDEN), 1.0)
        self.values("model.language_model.norm.weight", (HIDDEN,), 0.05)
        if form == "nvfp4":
            self.nvfp4("lm_head", geometry.vocab, HIDDEN, LOGIT_GAIN)
        else:
            self.plain("lm_head.weight", (geometry.vocab, HIDDEN), LOGIT_GAIN / HIDDEN**0.5)
        for layer in range(geometry.layers):
            p = f"model.language_model.layers.{layer}."
            self.norms(p)
            self.experts(p + "mlp.", form)
            if is_attention(layer):
                self.attention(p + "self_attn.", form)
            else:
                self.delta_net(p + "linear_attn.")
        self.mtp()
        self.vision()

    def add(self, name, dtype, shape, kind, spread=0.0, mean=0.0, group=""):
        self.tensors.append(Tensor(name, dtype, tuple(shape), kind, spread, mean, group or name))

    def plain(self, name, shape, spread):
        """A large BF16 matrix."""
        self.add(name, "BF16", shape, "bf16", spread)

    def values(self, name, shape, spread, mean=0.0):
        """A small BF16 vector."""
        self.add(name, "BF16", shape, "values", spread, mean)

    def nvfp4(self, p, rows, cols, gain, scale_group=""):
        sigma, group = gain / cols**0.5, scale_group or p
        self.add(p + ".weight", "U8", (rows, cols // 2), "nvfp4_codes", sigma, group=p)
        self.add(p + ".weight_scale", "F8_E4M3", (rows, cols // 16), "nvfp4_scales", sigma, group=p)
        self.add(p + ".weight_scale_2", "F32", (), "nvfp4_scale", sigma, group=group)
        self.add(p + ".input_scale", "F32", (), "nvfp4_input", group=group)

    def projection(self, p, rows, cols, form, gain):
        sigma = gain / cols**0.5
        if form == "bf16":
            return self.plain(p + ".weight", (rows, cols), sigma)
        self.add(p + ".weight", "F8_E4M3", (rows, cols), "fp8_codes", sigma)
        if form == "fp8":
            blocks = ((rows + 127) // 128, (cols + 127) // 128)
            return self.add(p + ".weight_scale_inv", "BF16", blocks, "fp8_block_scales", sigma)
        self.add(p + ".weight_scale", "F32", (), "fp8_scale", sigma)
        self.add(p + ".input_scale", "F32", (), "fp8_input")

    def norms(self, p):
        self.values(p + "input_layernorm.weight", (HIDDEN,), 0.05)
        self.values(p + "post_attention_layernorm.weight", (HIDDEN,), 0.05)

    def mlp(self, p, form, gains):
        for name, rows, cols in (("gate_proj", WIDTH, HIDDEN), ("up_proj", WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)):
            if form == "nvfp4":
                # The exporter gives gate and up of one expert the same scale, so that they can be one matrix.
                self.nvfp4(p + name, rows, cols, gains[name], p + ("down_proj" if name == "down_proj" else "gate_up"))
            else:
                self.projection(p + name, rows, cols, form, gains[name])

    def experts(self, p, form, spread=None):
        """`spread`: one for all weights (MTP); else each has its own gain."""
        g = self.geometry
        gains = {"gate_proj": 1.0, "up_proj": 1.0, "down_proj": 0.8}
        if spread:
            gains = {"gate_proj": spread * HIDDEN**0.5, "up_proj": spread * HIDDEN**0.5, "down_proj": spread * WIDTH**0.5}
        self.plain(p + "gate.weight", (g.experts, HIDDEN), spread or ROUTER_GAIN / HIDDEN**0.5)
        self.plain(p + "shared_expert_gate.weight", (1, HIDDEN), spread or 1 / HIDDEN**0.5)
        self.mlp(p + "shared_expert.", form, gains)
        if form == "bf16":
            self.plain(p + "experts.gate_up_proj", (g.experts, 2 * WIDTH, HIDDEN), spread)
            self.plain(p + "experts.down_proj", (g.experts, HIDDEN, WIDTH), spread)
            return
        for e in range(g.experts):
            self.mlp(f"{p}experts.{e}.", form, gains)

    def attention(self, p, form, spread=None):
        q, kv, out = 2 * QUERY_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, QUERY_HEADS * HEAD_DIM
        into = spread * HIDDEN**0.5 if spread else 1.0
        self.projection(p + "q_proj", q, HIDDEN, form, into)
        self.projection(p + "k_proj", kv, HIDDEN, form, into)
        self.projection(p + "v_proj", kv, HIDDEN, form, into)
        self.projection(p + "o_proj", HIDDEN, out, form, spread * out**0.5 if spread else 0.8)
        # 1.6 * 1.6: scores of spread 2.6, so that tens of tokens count in a context of 28,000, not all of them alike.
        self.values(p + "q_norm.weight", (HEAD_DIM,), 0.1, 0.6)
        self.values(p + "k_norm.weight", (HEAD_DIM,), 0.1, 0.6)

    def delta_net(self, p):
        value = VALUE_HEADS * VALUE_DIM
        self.projection(p + "in_proj_qkv", CONV_CHANNELS, HIDDEN, self.form, 1.0)
        self.projection(p + "in_proj_z", value, HIDDEN, self.form, 1.0)
        self.projection(p + "out_proj", HIDDEN, value, self.form, 0.5)
        self.plain(p + "in_proj_a.weight", (VALUE_HEADS, HIDDEN), 0.4 / HIDDEN**0.5)
        self.plain(p + "in_proj_b.weight", (VALUE_HEADS, HIDDEN), 1 / HIDDEN**0.5)
        self.add(p + "A_log", "BF16", (VALUE_HEADS,), "A_log", group=p + "decay")
        self.add(p + "dt_bias", "BF16", (VALUE_HEADS,), "dt_bias", group=p + "decay")
        self.add(p + "conv1d.weight", "BF16", (CONV_CHANNELS, 1, TAPS), "taps")
        self.values(p + "norm.weight", (VALUE_DIM,), 0.1, 1.0)

    def mtp(self):
        form = "bf16" if self.form == "nvfp4" else self.form
        self.plain("mtp.fc.weight", (HIDDEN, 2 * HIDDEN), UNUSED_SIGMA)
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            self.values(f"mtp.{name}.weight", (HIDDEN,), 0.05)
        self.norms("mtp.layers.0.")
        self.attention("mtp.layers.0.self_attn.", form, UNUSED_SIGMA)
        self.experts("mtp.layers.0.mlp.", form, UNUSED_SIGMA)

    def linear(self, p, rows, cols):
        self.plain(p + ".weight", (rows, cols), UNUSED_SIGMA)
        self.values(p + ".bias", (rows,), UNUSED_SIGMA)

    def vision(self):
        h, w = VISION_HIDDEN, VISION_WIDTH
        for b in range(self.geometry.vision_depth):
            p = f"model.visual.blocks.{b}."
            for norm in ("norm1", "norm2"):
                self.values(p + norm + ".weight", (h,), UNUSED_SIGMA, 1.0)
                self.values(p + norm + ".bias", (h,), UNUSED_SIGMA)
            self.linear(p + "attn.qkv", 3 * h, h)
            self.linear(p + "attn.proj", h, h)
            self.linear(p + "mlp.linear_fc1", w, h)
            self.linear(p + "mlp.linear_fc2", h, w)
        m = "model.visual.merger."
        self.values(m + "norm.weight", (h,), UNUSED_SIGMA, 1.0)
        self.values(m + "norm.bias", (h,), UNUSED_SIGMA)
        self.linear(m + "linear_fc1", 4 * h, 4 * h)
        self.linear(m + "linear_fc2", HIDDEN, 4 * h)
        self.plain("model.visual.patch_embed.proj.weight", (h, 3, 2, 16, 16), UNUSED_SIGMA)
        self.values("model.visual.patch_embed.proj.bias", (h,), UNUSED_SIGMA)
        self.plain("model.visual.pos_embed.weight", (2304, h), UNUSED_SIGMA)


def shards_of(form, tensors):
    """File name -> its tensors, in the order in which they lie in the file: by dtype, then by name."""
    count = 3 if form == "nvfp4" else 8
    apart = [t for t in tensors if form == "fp8" and t.name.startswith("mtp.")]
    main = [t for t in tensors if not (form == "fp8" and t.name.startswith("mtp."))]
    total, written, shard, files = sum(t.bytes for t in main), 0, 1, {}
    for t in main:
        while shard < count and written >= total * shard // count:
            shard += 1
        files.setdefault(f"model-{shard:05d}-of-{count:05d}.safetensors", []).append(t)
        written += t.bytes
    if apart:
        files["mtp.safetensors"] = apart
    order = list(DTYPE_BYTES)
    return {name: sorted(list_, key=lambda t: (order.index(t.dtype), t.name)) for name, list_ in files.items()}
