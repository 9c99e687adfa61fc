#!/usr/bin/env python3
"""A dense Qwen2 in GGUF as a Qwen2-MoE whose experts are copies of its MLP, so that its text is the dense model's, whatever the routers choose: real hidden
states for routing traces, at the size of the 1.5B model.

    upcycle_qwen.py GGUF OUT [--experts 8] [--topk 2] [--seed 1]     needs gguf, numpy and ml_dtypes from PyPI; 1.5B with 8 experts: 11 GB

Weights are E4M3 with a scale for 128 x 128 (as ../shared/real/upcycle.py writes them); routers are random."""
import argparse
import json
import os
import struct

import gguf
import ml_dtypes
import numpy as np

BLOCK = 128
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).tobytes()


def fp8(x):
    """Codes and scales."""
    rows, cols = x.shape
    pad = np.zeros((-(-rows // BLOCK) * BLOCK, -(-cols // BLOCK) * BLOCK), np.float32)
    pad[:rows, :cols] = x
    parts = pad.reshape(pad.shape[0] // BLOCK, BLOCK, -1, BLOCK)
    scale = np.abs(parts).max((1, 3)) / 448
    scale[scale == 0] = 1
    codes = np.clip(parts / scale[:, None, :, None], -448, 448).reshape(pad.shape)[:rows, :cols]
    return codes.astype(ml_dtypes.float8_e4m3fn).tobytes(), scale.astype(np.float32)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("gguf")
    ap.add_argument("out")
    for name, default in (("--experts", 8), ("--topk", 2), ("--seed", 1)):
        ap.add_argument(name, type=int, default=default)
    a = ap.parse_args()
    r = gguf.GGUFReader(a.gguf)
    f = {k: v.contents() for k, v in r.fields.items()}
    hidden, layers, heads, kv_heads, inter = (f["qwen2." + k] for k in ("embedding_length", "block_count", "attention.head_count", "attention.head_count_kv", "feed_forward_length"))
    stored = {t.name: t for t in r.tensors}
    rng = np.random.default_rng(a.seed)
    os.makedirs(a.out, exist_ok=True)
    head, size = {}, 0

    def read(name):
        return gguf.dequantize(stored[name].data, stored[name].tensor_type).astype(np.float32)

    body = open(os.path.join(a.out, "body"), "wb+")

    def put(name, dtype, shape, data):
        nonlocal size
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [size, size + len(data)]}
        body.write(data)
        size += len(data)

    def plain(name, x):
        put(name, "BF16", x.shape, bf16(x))

    def product(name, made):
        put(name, "F8_E4M3", made[0], made[1])
        put(name + "_scale_inv", "F32", made[2].shape, made[2].tobytes())

    def make(x):
        codes, scale = fp8(x)
        return x.shape, codes, scale

    plain("model.embed_tokens.weight", read("token_embd.weight"))
    plain("model.norm.weight", read("output_norm.weight"))
    tied = "output.weight" not in stored
    if not tied:
        plain("lm_head.weight", read("output.weight"))
    for i in range(layers):
        to, of = f"model.layers.{i}.", f"blk.{i}."
        plain(to + "input_layernorm.weight", read(of + "attn_norm.weight"))
        plain(to + "post_attention_layernorm.weight", read(of + "ffn_norm.weight"))
        for n in "qkv":
            product(f"{to}self_attn.{n}_proj.weight", make(read(f"{of}attn_{n}.weight")))
            plain(f"{to}self_attn.{n}_proj.bias", read(f"{of}attn_{n}.bias"))
        product(to + "self_attn.o_proj.weight", make(read(of + "attn_output.weight")))
        plain(to + "mlp.gate.weight", rng.standard_normal((a.experts, hidden)).astype(np.float32) * 0.05)
        for n in ("gate", "up", "down"):
            x = read(f"{of}ffn_{n}.weight")
            made = make(x)
            for e in range(a.experts):
                product(f"{to}mlp.experts.{e}.{n}_proj.weight", made)
            product(f"{to}mlp.shared_expert.{n}_proj.weight", make(np.zeros_like(x[:BLOCK] if n != "down" else x[:, :BLOCK])))
        plain(to + "mlp.shared_expert_gate.weight", np.zeros((1, hidden), np.float32))
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(a.out, "model.safetensors"), "wb") as o:
        o.write(struct.pack("<Q", len(text)) + text)
        body.seek(0)
        while part := body.read(1 << 26):
            o.write(part)
    body.close()
    os.unlink(body.name)
    tokens, kinds = f["tokenizer.ggml.tokens"], f["tokenizer.ggml.token_type"]
    config = {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv_heads, "intermediate_size": inter, "moe_intermediate_size": inter, "shared_expert_intermediate_size": BLOCK, "num_experts": a.experts,
              "num_experts_per_tok": a.topk, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False, "vocab_size": len(tokens),
              "rms_norm_eps": f["qwen2.attention.layer_norm_rms_epsilon"], "rope_theta": f["qwen2.rope.freq_base"], "max_position_embeddings": f["qwen2.context_length"],
              "tie_word_embeddings": tied, "hidden_act": "silu", "torch_dtype": "bfloat16", "eos_token_id": f["tokenizer.ggml.eos_token_id"],
              "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, t in enumerate(tokens) if kinds[i] == 3]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
                                                                         {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
                 "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                           "vocab": {t: i for i, t in enumerate(tokens)}, "merges": f["tokenizer.ggml.merges"]}}
    for name, what in (("config", config), ("tokenizer", tokenizer), ("generation_config", {"eos_token_id": config["eos_token_id"]}),
                       ("tokenizer_config", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": tokens[config["eos_token_id"]], "chat_template": f["tokenizer.chat_template"]})):
        with open(os.path.join(a.out, name + ".json"), "w") as o:
            json.dump(what, o, ensure_ascii=False)


if __name__ == "__main__":
    main()
