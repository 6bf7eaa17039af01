"""The JSON files beside the tensors: configurations, and a tokenizer of the published size and pattern."""

import json
import random

from checkpoint_tensors import (HIDDEN, HEAD_DIM, KEY_DIM, KEY_HEADS, KV_HEADS, QUERY_HEADS, TAPS, VALUE_DIM, VALUE_HEADS,
                                VISION_HIDDEN, VISION_WIDTH, WIDTH, is_attention)

ADDED = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|>
<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|>
<|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>
<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>""".split()
NOT_SPECIAL = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = ("{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + (message.content | trim) + "
                 "'<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def byte_symbols():
    """The printable character that stands for each byte in a byte-level vocabulary."""
    symbols, extra = [], 0x100
    for b in range(256):
        if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE:
            symbols.append(chr(b))
        else:
            symbols.append(chr(extra))
            extra += 1
    return symbols


def vocabulary(count, seed):
    """`count` tokens and the merges that make all but the 256 bytes: letter groups of common shape, with and without a space
    before them, two-byte and three-byte characters, punctuation and white space."""
    draw, symbol = random.Random(seed), byte_symbols()
    tokens, known, merges = list(symbol), set(symbol), []

    def merge(left, right):
        if len(tokens) < count and left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append([left, right])
        return left + right

    def bytes_of(text):
        return [symbol[b] for b in text.encode()]

    space, vowels, consonants = symbol[32], "aeiou", "bcdfghjklmnpqrstvwxyz"
    for run in (space, symbol[10]):
        for power in range(4):
            merge(run * 2**power, run * 2**power)
    for a in ".,;:!?()[]{}<>=+-*/\"'":
        merge(space, a)
        merge(a, a)
        merge(a, symbol[10])
    syllables = [merge(c, v) for c in consonants for v in vowels] + [merge(v, c) for c in consonants for v in vowels]
    syllables += [merge(c + v, d) for c in consonants for v in vowels for d in "lmnrst"]
    words = syllables + [merge(space, s) for s in consonants + vowels] + [merge(space, s) for s in syllables]
    # A tenth of the room for other scripts: Cyrillic letters, then Han characters by their three bytes.
    limit = min(len(tokens) + count // 10, count)
    for code in list(range(0x410, 0x450)) + list(range(0x4E00, 0x9FA6)):
        if len(tokens) >= limit:
            break
        parts = bytes_of(chr(code))
        for p in parts[1:]:
            parts[0] = merge(parts[0], p)
    # Words of two such groups until half of the room is left, then words of three.
    def extend(stems, end):
        made = []
        while len(tokens) < end:
            left, right = (choice[int(draw.random() * len(choice))] for choice in (stems, syllables))
            if left + right not in known:
                made.append(merge(left, right))
        return made

    extend(extend(words, (len(tokens) + count) // 2) or words, count)
    return tokens, merges


def tokenizer(geometry, seed):
    tokens, merges = vocabulary(geometry.base_tokens, seed)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    added = [{"id": len(tokens) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": text not in NOT_SPECIAL} for i, text in enumerate(ADDED)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": byte_level,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges},
    }


def quantized_layers(geometry):
    layers = {}
    for layer in range(geometry.layers):
        p = f"model.language_model.layers.{layer}."
        if is_attention(layer):
            fp8 = [p + "self_attn." + n for n in ("q_proj", "k_proj", "v_proj", "o_proj")]
        else:
            fp8 = [p + "linear_attn." + n for n in ("in_proj_qkv", "in_proj_z", "out_proj")]
        layers.update({name: {"quant_algo": "FP8"} for name in fp8})
        for name in ["experts"] + ["shared_expert." + n for n in ("gate_proj", "up_proj", "down_proj")]:
            layers[p + "mlp." + name] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    layers["lm_head"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    return layers


def quantization(form, geometry):
    if form == "nvfp4":
        layers = quantized_layers(geometry)

        def group(bits, algorithm, extra):
            part = {"dynamic": False, "num_bits": bits, "type": "float", **extra}
            return {"input_activations": part, "weights": part,
                    "targets": sorted(n for n, v in layers.items() if v["quant_algo"] == algorithm)}
        return {"config_groups": {"group_0": group(8, "FP8", {}), "group_1": group(4, "W4A16_NVFP4", {"group_size": 16})},
                "ignore": ["mtp.layers.0*", "mtp*"], "quant_algo": "MIXED_PRECISION", "quantized_layers": layers,
                "producer": {"name": "modelopt", "version": "0.37.0"}, "quant_method": "modelopt"}
    kept = ["lm_head", "model.language_model.embed_tokens", "model.visual", "mtp.fc"]
    for layer in range(geometry.layers):
        p = f"model.language_model.layers.{layer}."
        kept += [p + "mlp.gate", p + "mlp.shared_expert_gate", p + "input_layernorm"]
        if not is_attention(layer):
            kept += [p + "linear_attn." + n for n in ("conv1d", "in_proj_a", "in_proj_b")]
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
            "modules_to_not_convert": kept}


def config(form, geometry):
    first = geometry.base_tokens
    text = {
        "model_type": "qwen3_5_moe_text", "dtype": "bfloat16", "attention_bias": False, "attention_dropout": 0.0,
        "attn_output_gate": True, "bos_token_id": first, "eos_token_id": first, "pad_token_id": None,
        "full_attention_interval": 4, "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": HIDDEN,
        "layer_types": ["full_attention" if is_attention(i) else "linear_attention" for i in range(geometry.layers)],
        "linear_conv_kernel_dim": TAPS, "linear_key_head_dim": KEY_DIM, "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS, "linear_value_head_dim": VALUE_DIM, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144, "moe_intermediate_size": WIDTH, "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "num_attention_heads": QUERY_HEADS, "num_experts": geometry.experts,
        "num_experts_per_tok": geometry.top_k, "num_hidden_layers": geometry.layers, "num_key_value_heads": KV_HEADS,
        "output_router_logits": False, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                            "rope_theta": 10000000, "rope_type": "default"},
        "shared_expert_intermediate_size": WIDTH, "tie_word_embeddings": False, "use_cache": True,
        "vocab_size": geometry.vocab,
    }
    vision = {"model_type": "qwen3_5_moe_vision", "depth": geometry.vision_depth, "hidden_size": VISION_HIDDEN,
              "intermediate_size": VISION_WIDTH, "num_heads": 16, "hidden_act": "gelu_pytorch_tanh", "in_channels": 3,
              "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
              "out_hidden_size": HIDDEN, "deepstack_visual_indexes": []}
    return {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "dtype": "bfloat16",
            "tie_word_embeddings": False, "image_token_id": first + 12, "video_token_id": first + 13,
            "vision_start_token_id": first + 9, "vision_end_token_id": first + 10, "text_config": text,
            "vision_config": vision, "quantization_config": quantization(form, geometry)}


def write_files(directory, form, geometry, seed):
    def write(name, value, **style):
        (directory / name).write_text(json.dumps(value, ensure_ascii=False, **style), encoding="utf-8")

    first = geometry.base_tokens
    write("config.json", config(form, geometry), indent=2)
    write("generation_config.json", {"bos_token_id": first, "pad_token_id": first, "eos_token_id": [first + 2, first],
                                     "do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 0.95}, indent=2)
    if form == "nvfp4":
        write("hf_quant_config.json", {"producer": {"name": "modelopt", "version": "0.44.0"}, "quantization": {
            "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": quantized_layers(geometry)}})
    write("tokenizer.json", tokenizer(geometry, seed))
    write("tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "add_prefix_space": False,
                                    "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": 262144}, indent=2)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
