#!/usr/bin/env python3
"""Writes a random checkpoint of a published shape, cut to a few layers, for measuring. Needs only Python.

    mkmodel.py --shape qwen3-30b-a3b --layers 8 --out DIR      # 6.7 GB
    mkmodel.py --shape deepseek-v3 --out DIR                   # 1 dense + 1 MoE layer, 14 GB; --experts 64: 5.4 GB
    mkmodel.py --shape minimax-m2 --layers 2 --out DIR
    mkmodel.py --shape glm-4.5-air --layers 3 --out DIR
    mkmodel.py --count --shape ... [--layers N]                # only the figures, as JSON
    mkmodel.py --headers --shape ... --out DIR                 # the weights' headers only, for bench_fill, which writes the rest elsewhere
    mkmodel.py --gguf q4_k_m --shape qwen3-30b-a3b --out DIR   # a GGUF file without a tokenizer, q4_k_m or q8_0; also with --headers

Weights are FP8 (E4M3) as the vendors publish them: codes of a normal distribution, scales such that activations keep their
size from layer to layer. They are cut from one random pool at random places, so a file is written as fast as the disk
takes it. Prints, as JSON: bytes of the files; bytes that one decoded token must read (everything but the embedding, of the
routed experts only the chosen ones); multiply-adds of a token in its weights, and those of the head; bytes of a BF16 KV
position.
"""
import argparse
import json
import math
import os
import random
import struct
import sys

SHARD = 4 << 30

SHAPES = {
    "qwen3-30b-a3b": dict(
        family="qwen3_moe", layers=8, vocab=151936, hidden=2048, heads=32, kv_heads=4, head_dim=128, experts=128, topk=8, inter=768,
        dense_layers=0, scale="BF16"),
    "toy": dict( # not a vendor's: 38 MB in 12 layers, for tests
        family="qwen3_moe", layers=12, vocab=512, hidden=256, heads=8, kv_heads=2, head_dim=32, experts=32, topk=4, inter=128,
        dense_layers=0, scale="BF16"),
    "deepseek-v3": dict(
        family="deepseek_v3", layers=2, vocab=129280, hidden=7168, heads=128, kv_heads=128, q_lora=1536, kv_lora=512, nope=128, rope=64,
        v_dim=128, experts=256, topk=8, groups=8, topk_group=4, inter=2048, dense_inter=18432, dense_layers=1, shared=1, scale="F32"),
    "minimax-m2": dict(
        family="minimax_m2", layers=2, vocab=200064, hidden=3072, heads=48, kv_heads=8, head_dim=128, experts=256, topk=8, inter=1536,
        dense_layers=0, scale="F32"),
    "experts": dict(  # not a vendor's: almost only routed experts, to measure where these are computed
        family="qwen3_moe", layers=4, vocab=4096, hidden=1024, heads=4, kv_heads=1, head_dim=128, experts=32, topk=4, inter=1024, dense_layers=0, scale="BF16"),
    "thin": dict(  # DeepSeek-V3's routing with almost no computation: the time to decide about 256 experts does not depend on their size
        family="deepseek_v3", layers=7, vocab=4096, hidden=512, heads=4, kv_heads=4, q_lora=128, kv_lora=128, nope=64, rope=64,
        v_dim=64, experts=256, topk=8, groups=8, topk_group=4, inter=256, dense_inter=512, dense_layers=1, shared=1, scale="F32"),
    "glm-4.5-air": dict(
        family="glm4_moe", layers=3, vocab=151552, hidden=4096, heads=96, kv_heads=8, head_dim=128, experts=128, topk=8, inter=1408,
        dense_inter=10944, dense_layers=1, shared=1, scale="row"),
}


# ---- Tensors: (name, shape, kind). w: FP8 with scales; b: BF16 matrix; n: ones (norm); z: zeros; f: F32 matrix; g: F32 vector ----

def ffn(prefix, h, m, names=("gate_proj", "up_proj", "down_proj")):
    yield f"{prefix}.{names[0]}", (m, h), "w"
    yield f"{prefix}.{names[1]}", (m, h), "w"
    yield f"{prefix}.{names[2]}", (h, m), "w"


def attention(s, p):
    h, family = s["hidden"], s["family"]
    if family == "deepseek_v3":
        yield p + "q_a_proj", (s["q_lora"], h), "w"
        yield p + "q_a_layernorm", (s["q_lora"],), "n"
        yield p + "q_b_proj", (s["heads"] * (s["nope"] + s["rope"]), s["q_lora"]), "w"
        yield p + "kv_a_proj_with_mqa", (s["kv_lora"] + s["rope"], h), "w"
        yield p + "kv_a_layernorm", (s["kv_lora"],), "n"
        yield p + "kv_b_proj", (s["heads"] * (s["nope"] + s["v_dim"]), s["kv_lora"]), "w"
        yield p + "o_proj", (h, s["heads"] * s["v_dim"]), "w"
        return
    q, kv, d = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"], s["head_dim"]
    for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
        yield p + name, (rows, h), "w"
        if family == "glm4_moe":
            yield p + name + ".bias", (rows,), "z"
    yield p + "o_proj", (h, q), "w"
    if family == "qwen3_moe":
        yield p + "q_norm", (d,), "n"
        yield p + "k_norm", (d,), "n"
    if family == "minimax_m2":
        yield p + "q_norm", (q,), "n"
        yield p + "k_norm", (kv,), "n"


def tensors(s):
    h, family, e = s["hidden"], s["family"], s["experts"]
    yield "model.embed_tokens", (s["vocab"], h), "b"
    for i in range(s["layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm", (h,), "n"
        yield from attention(s, p + "self_attn.")
        yield p + "post_attention_layernorm", (h,), "n"
        if i < s["dense_layers"]:
            yield from ffn(p + "mlp", h, s["dense_inter"])
            continue
        mlp = p + ("block_sparse_moe" if family == "minimax_m2" else "mlp")
        yield mlp + ".gate", (e, h), "f" if family == "minimax_m2" else "b"
        if family == "minimax_m2":
            yield mlp + ".e_score_correction_bias", (e,), "g"
        elif family in ("deepseek_v3", "glm4_moe"):
            yield mlp + ".gate.e_score_correction_bias", (e,), "g"
        names = ("w1", "w3", "w2") if family == "minimax_m2" else ("gate_proj", "up_proj", "down_proj")
        for x in range(e):
            yield from ffn(f"{mlp}.experts.{x}", h, s["inter"], names)
        if s.get("shared"):
            yield from ffn(mlp + ".shared_experts", h, s["inter"] * s["shared"])
    yield "model.norm", (h,), "n"
    yield "lm_head", (s["vocab"], h), "b"


def parts(s):
    """(full name, dtype, shape, bytes, kind, std) of every tensor in the files."""
    for name, shape, kind in tensors(s):
        n = math.prod(shape)
        full = name if name.endswith((".bias", "_bias")) else name + ".weight"
        std = 1 / math.sqrt(shape[-1])
        if kind == "w":
            yield full, "F8_E4M3", shape, n, "code", std
            if s["scale"] == "row":
                yield name + ".weight_scale", "BF16", (shape[0], 1), 2 * shape[0], "scale", std
            else:
                b = (-(-shape[0] // 128), -(-shape[1] // 128))
                yield full + "_scale_inv", s["scale"], b, b[0] * b[1] * (4 if s["scale"] == "F32" else 2), "scale", std
        elif kind in "fg":
            yield full, "F32", shape, 4 * n, kind, std
        else:
            yield full, "BF16", shape, 2 * n, kind, std


def figures(s):
    total = decode = macs = head = 0
    for name, shape, kind in tensors(s):
        n = math.prod(shape)
        size = n * {"w": 1, "f": 4, "g": 4}.get(kind, 2)
        if kind == "w":
            size += 2 * shape[0] if s["scale"] == "row" else -(-shape[0] // 128) * -(-shape[1] // 128) * (4 if s["scale"] == "F32" else 2)
        total += size
        if name == "model.embed_tokens":
            continue
        share = s["topk"] / s["experts"] if ".experts." in name else 1
        decode += size * share
        if len(shape) > 1:
            macs += n * share
            head += n if name == "lm_head" else 0
    kv = (s["kv_lora"] + s["rope"]) if "kv_lora" in s else 2 * s["kv_heads"] * s["head_dim"]
    return dict(shape=s["name"], layers=s["layers"], experts=s["experts"], hidden=s["hidden"], file_bytes=int(total), decode_bytes=int(decode), macs_per_token=int(macs),
                head_macs=head, kv_bytes_per_position=2 * kv * s["layers"])


# ---- Random bytes ----

def e4m3_value(c):
    e, m = c >> 3 & 15, c & 7
    return math.ldexp(m, -9) if e == 0 else math.ldexp(8 + m, e - 10)


def code_table():
    """256 equally likely codes of a normal distribution whose largest value is near 448 (standard deviation CODE_STD)."""
    from statistics import NormalDist
    positive = sorted(range(0x7f), key=e4m3_value)
    table = bytearray(256)
    for i in range(256):
        v = NormalDist(0, CODE_STD).inv_cdf((i + 0.5) / 256)
        table[i] = min(positive, key=lambda c: abs(e4m3_value(c) - abs(v))) | (0x80 if v < 0 else 0)
    return bytes(table)


CODE_STD = 150.0
POOL = 64 << 20


def pools(rng):
    noise = rng.randbytes(POOL)
    code = noise.translate(code_table())
    # BF16 of magnitude 2^-7 to 2^-5 and both signs: the high byte is sign and exponent, the low byte anything
    high = bytes(0x3c | (i & 0x80) for i in range(256))
    half = bytearray(POOL)
    half[0::2] = noise[:POOL // 2]
    half[1::2] = noise[POOL // 2:].translate(high)
    # float32: the same with a third and a fourth byte of noise below
    full = bytearray(POOL // 4)
    for i in range(3):
        full[i::4] = noise[i * POOL // 16:(i + 1) * POOL // 16]
    full[3::4] = noise[POOL // 2:POOL // 2 + POOL // 16].translate(high)
    return {"code": memoryview(code), "b": memoryview(half), "f": memoryview(full)}


def write_bytes(f, kind, dtype, n, std, pool, rng):
    if kind in pool:
        p = pool[kind]
        while n:
            m = min(n, 16 << 20, len(p))
            at = rng.randrange(0, (len(p) - m) // 64 + 1) * 64
            f.write(p[at:at + m])
            n -= m
        return
    if kind == "scale":
        values = [std / CODE_STD * rng.uniform(0.8, 1.25) for _ in range(min(n, 4096))]
        unit = struct.pack(f"<{len(values)}f", *values)
        if dtype == "BF16":
            unit = b"".join(unit[i + 2:i + 4] for i in range(0, len(unit), 4))
        f.write((unit * (n // len(unit) + 1))[:n])
    elif kind == "n":
        f.write(b"\x80\x3f" * (n // 2))
    elif kind == "g":
        f.write(struct.pack(f"<{n // 4}f", *(rng.uniform(-0.05, 0.05) for _ in range(n // 4))))
    else:
        f.write(bytes(n))


# ---- GGUF ----

BLOCKS = {"q8_0": (32, 34, 8), "q4_k": (256, 144, 12), "q6_k": (256, 210, 14)}  # weights, bytes, ggml's number of the type
FILE_TYPES = {"q8_0": 7, "q4_k_m": 15}
ALIGNMENT = 32


def gguf_tensors(s, mix):
    """Name, shape (rows first) and type of each tensor. llama.cpp's mix for Q4_K_M: the head, and values and down of every second layer, have more bits."""
    h, q, kv, d, e, m = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"], s["head_dim"], s["experts"], s["inter"]
    base, more = ("q4_k", "q6_k") if mix == "q4_k_m" else (mix, mix)
    if min(h, q, m) % 256:  # too narrow for their blocks, as in llama.cpp's quantizer
        base = more = "q8_0"
    yield "token_embd", (s["vocab"], h), base
    for i in range(s["layers"]):
        b, odd = f"blk.{i}.", base if i % 2 else more
        yield b + "attn_norm", (h,), "f32"
        yield b + "attn_q", (q, h), base
        yield b + "attn_k", (kv, h), base
        yield b + "attn_v", (kv, h), odd
        yield b + "attn_q_norm", (d,), "f32"
        yield b + "attn_k_norm", (d,), "f32"
        yield b + "attn_output", (h, q), base
        yield b + "ffn_norm", (h,), "f32"
        yield b + "ffn_gate_inp", (e, h), "f32"
        yield b + "ffn_gate_exps", (e, m, h), base
        yield b + "ffn_up_exps", (e, m, h), base
        yield b + "ffn_down_exps", (e, h, m), odd
    yield "output_norm", (h,), "f32"
    yield "output", (s["vocab"], h), more


def gguf_bytes(shape, kind):
    per, size, _ = BLOCKS.get(kind, (1, 4, 0))
    return math.prod(shape) // per * size


def gguf_figures(s, mix):
    """Bytes of the tensors, and those that a decoded token reads."""
    share = lambda name: 0 if name == "token_embd" else s["topk"] / s["experts"] if "_exps" in name else 1
    sizes = [(gguf_bytes(shape, kind), share(name)) for name, shape, kind in gguf_tensors(s, mix)]
    return dict(file_bytes=sum(n for n, _ in sizes), decode_bytes=int(sum(n * part for n, part in sizes)))


def gguf_header(s, mix):
    text = lambda t: struct.pack("<Q", len(t)) + t.encode()
    keys = [("general.architecture", "qwen3moe"), ("general.file_type", FILE_TYPES[mix]), ("tokenizer.ggml.model", "no_vocab")]
    keys += [("qwen3moe." + k, v) for k, v in (
        ("block_count", s["layers"]), ("context_length", 40960), ("embedding_length", s["hidden"]), ("feed_forward_length", 6144),
        ("attention.head_count", s["heads"]), ("attention.head_count_kv", s["kv_heads"]), ("attention.key_length", s["head_dim"]),
        ("attention.value_length", s["head_dim"]), ("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e6), ("vocab_size", s["vocab"]),
        ("expert_count", s["experts"]), ("expert_used_count", s["topk"]), ("expert_feed_forward_length", s["inter"]))]
    typed = {str: lambda v: struct.pack("<I", 8) + text(v), int: lambda v: struct.pack("<II", 4, v), float: lambda v: struct.pack("<If", 6, v)}
    body = b"".join(text(k) + typed[type(v)](v) for k, v in keys)
    tensors, at = list(gguf_tensors(s, mix)), 0
    for name, shape, kind in tensors:
        body += text(name + ".weight") + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        body += struct.pack("<IQ", BLOCKS.get(kind, (1, 4, 0))[2], at)
        at += -(-gguf_bytes(shape, kind) // ALIGNMENT) * ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + body
    return head + bytes(-len(head) % ALIGNMENT)


def block_pool(kind, noise):
    """Random blocks whose weights have a deviation of about 0.02: in Q4_K a scale averages 31 and a code 7.5, and so does the subtracted minimum."""
    size, half = BLOCKS[kind][1], lambda x: struct.pack("<e", x)
    pool = bytearray(noise[: len(noise) // size * size])
    stamps = {"q8_0": ((0, 0.02 / 74),), "q4_k": ((0, 0.02 / 31 / 4.6), (2, 0.02 * 7.5 / 31 / 4.6)), "q6_k": ((208, 0.02 / 74 / 18.5),)}[kind]
    for at, value in stamps:
        for byte in (0, 1):
            pool[at + byte :: size] = half(value)[byte : byte + 1] * (len(pool) // size)
    return memoryview(pool)


def write_gguf(s, mix, out, rng, headers):
    head = gguf_header(s, mix)
    noise = rng.randbytes(POOL // 4)
    pool = {} if headers else dict({k: block_pool(k, noise) for k in BLOCKS}, f32=pools(rng)["f"])
    with open(os.path.join(out, f"{s['name']}-{mix}.gguf" + (".header" if headers else "")), "wb", buffering=1 << 20) as f:
        f.write(head)
        for _, shape, kind in [] if headers else gguf_tensors(s, mix):
            n = left = gguf_bytes(shape, kind)
            if len(shape) == 1:
                f.write(struct.pack("<f", 1) * shape[0])
                left = 0
            size = BLOCKS.get(kind, (1, 4, 0))[1]
            while left:
                m = min(left, len(pool[kind]) // 2)
                at = rng.randrange(0, len(pool[kind]) // 2 // size) * size
                f.write(pool[kind][at : at + m // size * size])
                left -= m // size * size
            f.write(bytes(-n % ALIGNMENT))


# ---- Files ----

def write_shards(s, out, rng, headers):
    shards, size = [[]], 0
    for t in parts(s):
        if size + t[3] > SHARD and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(t)
        size += t[3]
    pool, index = None if headers else pools(rng), {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, dtype, shape, n, _, _ in shard:
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
            index[name] = file
            at += n
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 64 + 56)  # data begins on a cache line
        if headers and i == len(shards) // 2:
            text += b" " * 8  # but of one shard 8 bytes after it, as vendors' may
        with open(os.path.join(out, file + (".header" if headers else "")), "wb", buffering=1 << 20) as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for _, dtype, _, n, kind, std in [] if headers else shard:
                write_bytes(f, kind, dtype, n, std, pool, rng)
    with open(os.path.join(out, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": sum(t[3] for sh in shards for t in sh)}, "weight_map": index}, f)


def config(s):
    eos = s["vocab"] - 1
    c = dict(bos_token_id=s["vocab"] - 2, eos_token_id=eos, hidden_act="silu", hidden_size=s["hidden"], num_attention_heads=s["heads"],
             num_key_value_heads=s["kv_heads"], num_hidden_layers=s["layers"], num_experts_per_tok=s["topk"], tie_word_embeddings=False,
             torch_dtype="bfloat16", use_cache=True, vocab_size=s["vocab"], attention_dropout=0.0, initializer_range=0.02)
    fp8 = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128])
    moe = range(s["dense_layers"], s["layers"])
    if s["family"] == "qwen3_moe":
        c.update(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", attention_bias=False, decoder_sparse_step=1, head_dim=s["head_dim"],
                 intermediate_size=6144, max_position_embeddings=40960, mlp_only_layers=[], moe_intermediate_size=s["inter"],
                 norm_topk_prob=True, num_experts=s["experts"], rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000.0,
                 sliding_window=None, use_sliding_window=False, max_window_layers=48,
                 quantization_config=dict(fp8, modules_to_not_convert=["lm_head"] + [f"model.layers.{i}.mlp.gate" for i in moe]))
    elif s["family"] == "deepseek_v3":
        c.update(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", attention_bias=False, ep_size=1,
                 first_k_dense_replace=s["dense_layers"], intermediate_size=s["dense_inter"], kv_lora_rank=s["kv_lora"],
                 max_position_embeddings=163840, moe_intermediate_size=s["inter"], moe_layer_freq=1, n_group=s["groups"],
                 n_routed_experts=s["experts"], n_shared_experts=s["shared"], norm_topk_prob=True, num_nextn_predict_layers=0,
                 q_lora_rank=s["q_lora"], qk_nope_head_dim=s["nope"], qk_rope_head_dim=s["rope"], quantization_config=fp8, rms_norm_eps=1e-6,
                 rope_scaling=dict(beta_fast=32, beta_slow=1, factor=40, mscale=1.0, mscale_all_dim=1.0,
                                   original_max_position_embeddings=4096, type="yarn"),
                 rope_theta=10000, routed_scaling_factor=2.5, scoring_func="sigmoid", topk_group=s["topk_group"], topk_method="noaux_tc",
                 v_head_dim=s["v_dim"])
    elif s["family"] == "minimax_m2":
        c.update(architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", attention_bias=False, attn_type_list=[1] * s["layers"],
                 head_dim=s["head_dim"], intermediate_size=s["inter"], max_position_embeddings=196608, num_local_experts=s["experts"],
                 qk_norm_type="per_layer", rms_norm_eps=1e-6, rope_theta=5000000, rotary_dim=64, scoring_func="sigmoid",
                 shared_intermediate_size=0, sliding_window=None, use_qk_norm=True, use_routing_bias=True,
                 quantization_config=dict(fp8, fmt="float8_e4m3fn", modules_to_not_convert=["gate", "e_score_correction_bias", "lm_head"]))
    else:
        channel = dict(num_bits=8, symmetric=True, type="float", group_size=None)
        c.update(architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", attention_bias=True, first_k_dense_replace=s["dense_layers"],
                 head_dim=s["head_dim"], intermediate_size=s["dense_inter"], max_position_embeddings=131072,
                 moe_intermediate_size=s["inter"], n_group=1, topk_group=1, n_routed_experts=s["experts"], n_shared_experts=s["shared"],
                 norm_topk_prob=True, num_nextn_predict_layers=0, partial_rotary_factor=0.5, rms_norm_eps=1e-5, rope_scaling=None,
                 rope_theta=1000000, routed_scaling_factor=1.0, use_qk_norm=False,
                 quantization_config=dict(
                     config_groups=dict(group_0=dict(
                         input_activations=dict(channel, dynamic=True, strategy="token"), output_activations=None, targets=["Linear"],
                         weights=dict(channel, dynamic=False, observer="minmax", strategy="channel"))),
                     format="float-quantized", ignore=["lm_head"] + [f"model.layers.{i}.mlp.gate" for i in moe], kv_cache_scheme=None,
                     quant_method="compressed-tensors", quantization_status="compressed"))
    return c


def write_texts(s, out):
    def dump(name, value):
        with open(os.path.join(out, name), "w") as f:
            json.dump(value, f)

    dump("config.json", config(s))
    bos, eos = s["vocab"] - 2, s["vocab"] - 1
    dump("generation_config.json", dict(bos_token_id=bos, eos_token_id=eos, do_sample=True, temperature=0.6, top_p=0.95))
    # Byte-level BPE without merges: 256 bytes, then fillers that no text produces.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    vocab = {chr(b): i for i, b in enumerate(printable)}
    vocab.update({chr(256 + i): len(printable) + i for i in range(len(rest))})
    vocab.update({f"<unused{i}>": i for i in range(256, bos)})
    special = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
               for i, t in ((bos, "<|begin|>"), (eos, "<|end|>"))]
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
    dump("tokenizer.json", dict(
        version="1.0", truncation=None, padding=None, added_tokens=special, normalizer=None,
        pre_tokenizer=dict(type="Sequence", pretokenizers=[dict(type="Split", pattern=dict(Regex=pattern), behavior="Isolated", invert=False), level]),
        post_processor=None, decoder=dict(level, add_prefix_space=True, use_regex=True),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                   byte_fallback=False, ignore_merges=False, vocab=vocab, merges=[])))
    template = ("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>\n{% endfor %}"
                "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")
    dump("tokenizer_config.json", dict(
        add_bos_token=False, add_eos_token=False, bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|end|>", chat_template=template,
        clean_up_tokenization_spaces=False, model_max_length=config(s)["max_position_embeddings"],
        added_tokens_decoder={str(t["id"]): dict(content=t["content"], special=True) for t in special},
        tokenizer_class="PreTrainedTokenizerFast"))


def main():
    ap = argparse.ArgumentParser(description="random checkpoints of published shapes")
    ap.add_argument("--shape", choices=SHAPES, required=True)
    ap.add_argument("--out")
    ap.add_argument("--layers", type=int, help="dense ones at the beginning included")
    ap.add_argument("--experts", type=int)
    ap.add_argument("--vocab", type=int)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--count", action="store_true", help="print the figures, write nothing")
    ap.add_argument("--headers", action="store_true")
    ap.add_argument("--gguf", choices=FILE_TYPES)
    a = ap.parse_args()
    s = dict(SHAPES[a.shape], name=a.shape)
    for k in ("layers", "experts", "vocab"):
        if getattr(a, k) is not None:
            s[k] = getattr(a, k)
    if s["layers"] <= s["dense_layers"] or s["experts"] < s["topk"] or s["experts"] % s.get("groups", 1) or s["vocab"] < 300:
        sys.exit("mkmodel: too few layers, experts or tokens for this shape")
    if a.gguf and s["family"] != "qwen3_moe":
        sys.exit("mkmodel: --gguf knows the tensors of Qwen3's shapes only")
    print(json.dumps(dict(figures(s), **gguf_figures(s, a.gguf) if a.gguf else {})))
    if a.count:
        return
    if not a.out:
        sys.exit("mkmodel: --out DIR is missing")
    os.makedirs(a.out, exist_ok=True)
    if a.gguf:
        write_gguf(s, a.gguf, a.out, random.Random(a.seed), a.headers)
        return
    write_texts(s, a.out)
    write_shards(s, a.out, random.Random(a.seed), a.headers)


if __name__ == "__main__":
    main()
