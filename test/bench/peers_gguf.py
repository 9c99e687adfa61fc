#!/usr/bin/env python3
"""Writes a random GGUF file of a shape of mkmodel.py; run by peers.py in a venv that has gguf and numpy.

    peers_gguf.py OUT SHAPE.json q8_0|q4_k_m
"""
import json
import sys

import gguf
import numpy as np

GGUF_ARCH = {"qwen3-30b-a3b": "qwen3moe"}
BLOCKS = {"q8_0": (32, 34), "q4_k": (256, 144), "q6_k": (256, 210)}  # weights, bytes


def kind(name, mix):
    """llama.cpp's mix for Q4_K_M: the head, and values and down of every second layer, have more bits."""
    if mix == "q8_0":
        return mix
    more = name == "output.weight" or (("attn_v" in name or "ffn_down" in name) and int(name.split(".")[1]) % 2 == 0)
    return "q6_k" if more else "q4_k"


def blocks_of(fmt, rng, n=1 << 18):
    """Random blocks whose weights have a deviation of about 0.02."""
    half = lambda x: np.frombuffer(np.float16(x).tobytes(), np.uint8)
    out = rng.integers(0, 256, (n, BLOCKS[fmt][1]), np.uint8)
    if fmt == "q8_0":
        out[:, :2] = half(0.02 / 42)
        out[:, 2:] = np.clip(np.rint(rng.standard_normal((n, 32), np.float32) * 42), -127, 127).astype(np.int8).view(np.uint8)
    elif fmt == "q4_k":  # a scale averages 31 and a code 7.5, and so does the subtracted minimum
        out[:, :2], out[:, 2:4] = half(0.02 / 31 / 4.6), half(0.02 * 7.5 / 31 / 4.6)
    else:
        out[:, 208:] = half(0.02 / 74 / 18.5)
    return out


def write_gguf(path, s, mix):
    h, q, kv, d, e, m = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"], s["head_dim"], s["experts"], s["inter"]

    def tensors():  # name, shape (rows last as numpy has it), quantised
        yield "token_embd.weight", (s["vocab"], h), True
        for i in range(s["layers"]):
            b = f"blk.{i}."
            yield b + "attn_norm.weight", (h,), False
            for n, rows in (("q", q), ("k", kv), ("v", kv)):
                yield b + f"attn_{n}.weight", (rows, h), True
            yield b + "attn_q_norm.weight", (d,), False
            yield b + "attn_k_norm.weight", (d,), False
            yield b + "attn_output.weight", (h, q), True
            yield b + "ffn_norm.weight", (h,), False
            yield b + "ffn_gate_inp.weight", (e, h), False
            yield b + "ffn_gate_exps.weight", (e, m, h), True
            yield b + "ffn_up_exps.weight", (e, m, h), True
            yield b + "ffn_down_exps.weight", (e, h, m), True
        yield "output_norm.weight", (h,), False
        yield "output.weight", (s["vocab"], h), True

    w = gguf.GGUFWriter(path, GGUF_ARCH[s["name"]])
    w.add_block_count(s["layers"])
    w.add_context_length(40960)
    w.add_embedding_length(h)
    w.add_feed_forward_length(6144)
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_key_length(d)
    w.add_value_length(d)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e6)
    w.add_vocab_size(s["vocab"])
    w.add_expert_count(e)
    w.add_expert_used_count(s["topk"])
    w.add_expert_feed_forward_length(m)
    w.add_file_type({"q8_0": 7, "q4_k_m": 15}[mix])
    w.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(1)
    pool = {fmt: blocks_of(fmt, rng) for fmt in BLOCKS}
    for name, shape, quant in tensors():
        fmt = kind(name, mix)
        per, size = BLOCKS[fmt]
        if quant:
            w.add_tensor_info(name, shape[:-1] + (shape[-1] // per * size,), np.dtype(np.uint8), int(np.prod(shape)) // per * size,
                              raw_dtype=gguf.GGMLQuantizationType[fmt.upper()])
        else:
            w.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for name, shape, quant in tensors():
        n = int(np.prod(shape))
        if quant:
            blocks = pool[kind(name, mix)]
            at = int(rng.integers(0, len(blocks)))
            w.write_tensor_data(np.resize(np.roll(blocks, -at, axis=0), (n // BLOCKS[kind(name, mix)][0], blocks.shape[1])))
        else:
            w.write_tensor_data(np.ones(n, np.float32) if len(shape) == 1 else rng.standard_normal(n, np.float32) * 0.02)
    w.close()


with open(sys.argv[2]) as f:
    write_gguf(sys.argv[1], json.load(f), sys.argv[3])
