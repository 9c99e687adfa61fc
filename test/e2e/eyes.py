"""Makes a tiny Qwen3-VL checkpoint with the standard library only: random weights, a byte-level tokenizer with the marks of images, a chat
template of our own that takes content parts, and pictures to show it."""
import hashlib
import json
import math
import os
import struct
import zlib

import tiny

IMAGE, BEGIN, END = 258, 259, 260
VISION = {"model_type": "qwen3_vl", "depth": 3, "hidden_size": 24, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 40, "num_position_embeddings": 25,
          "deepstack_visual_indexes": [0, 1], "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "hidden_act": "gelu_pytorch_tanh"}
TEXT = {"model_type": "qwen3_vl_text", "vocab_size": 264, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 20, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 3, 3], "mrope_interleaved": True}}
EXPERTS = {"model_type": "qwen3_vl_moe_text", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1, "norm_topk_prob": True}
PROCESSOR = {"patch_size": 8, "temporal_patch_size": 2, "merge_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 16384}, "image_mean": [0.5, 0.5, 0.5],
             "image_std": [0.5, 0.5, 0.5], "resample": 3}
TEMPLATE = """{%- for m in messages %}<{{ m.role }}>
{%- if m.content is string %}{{ m.content }}
{%- else %}{%- for part in m.content %}{%- if part.type == 'image' %}<|begin|><|image|><|end|>{%- else %}{{ part.text }}{%- endif %}{%- endfor %}
{%- endif %}<eos>{%- endfor %}<assistant>"""


def numbers(name, n, scale):
    """n numbers of a tensor, about evenly spread within scale: from SHAKE-256 of its name, so that they never change."""
    raw = hashlib.shake_256(name.encode()).digest(2 * n)
    return [(v - 32767.5) / 32768 * scale for v in struct.unpack(f"<{n}H", raw)]


def tensors(config):
    """{name: (dtype, shape, bytes)}, as published but in float32"""
    out = {}
    t, v = config["text_config"], config["vision_config"]

    def add(name, *shape, scale=None, one=False):
        n = math.prod(shape)
        if scale is None:
            scale = 0.3 if len(shape) == 1 else math.sqrt(3 / math.prod(shape[1:]))
        data = [one + x for x in numbers(name, n, scale)]
        out[name] = ("F32", list(shape), struct.pack(f"<{n}f", *data))

    def norm(name, n, bias=True):
        add(name + ".weight", n, one=True)
        if bias:
            add(name + ".bias", n)

    def linear(name, rows, cols, bias=True):
        add(name + ".weight", rows, cols)
        if bias:
            add(name + ".bias", rows)

    h, heads, kv, dim = t["hidden_size"], t["num_attention_heads"], t["num_key_value_heads"], t["head_dim"]
    m = "model.language_model."
    add(m + "embed_tokens.weight", t["vocab_size"], h, scale=1)
    add("lm_head.weight", t["vocab_size"], h)
    norm(m + "norm", h, False)
    for i in range(t["num_hidden_layers"]):
        p = f"{m}layers.{i}."
        norm(p + "input_layernorm", h, False)
        norm(p + "post_attention_layernorm", h, False)
        for name, rows, cols in (("q", heads * dim, h), ("k", kv * dim, h), ("v", kv * dim, h), ("o", h, heads * dim)):
            linear(f"{p}self_attn.{name}_proj", rows, cols, False)
        norm(p + "self_attn.q_norm", dim, False)
        norm(p + "self_attn.k_norm", dim, False)
        if "num_experts" in t:
            n, inter = t["num_experts"], t["moe_intermediate_size"]
            linear(p + "mlp.gate", n, h, False)
            add(p + "mlp.experts.gate_up_proj", n, 2 * inter, h, scale=0.3)
            add(p + "mlp.experts.down_proj", n, h, inter, scale=0.3)
        else:
            for name, rows, cols in (("gate", t["intermediate_size"], h), ("up", t["intermediate_size"], h), ("down", h, t["intermediate_size"])):
                linear(f"{p}mlp.{name}_proj", rows, cols, False)
    w, inter, wide = v["hidden_size"], v["intermediate_size"], v["hidden_size"] * v["spatial_merge_size"] ** 2
    s = "model.visual."
    add(s + "patch_embed.proj.weight", w, 3, v["temporal_patch_size"], v["patch_size"], v["patch_size"])
    add(s + "patch_embed.proj.bias", w)
    add(s + "pos_embed.weight", v["num_position_embeddings"], w, scale=1)
    for i in range(v["depth"]):
        p = f"{s}blocks.{i}."
        norm(p + "norm1", w)
        norm(p + "norm2", w)
        linear(p + "attn.qkv", 3 * w, w)
        linear(p + "attn.proj", w, w)
        linear(p + "mlp.linear_fc1", inter, w)
        linear(p + "mlp.linear_fc2", w, inter)
    for i, p in enumerate([s + "merger"] + [f"{s}deepstack_merger_list.{i}" for i in range(len(v["deepstack_visual_indexes"]))]):
        norm(p + ".norm", wide if i else w)
        linear(p + ".linear_fc1", wide, wide)
        linear(p + ".linear_fc2", v["out_hidden_size"], wide)
    return out


def config(moe=False):
    text = {**TEXT, **(EXPERTS if moe else {})}
    return {"model_type": "qwen3_vl_moe" if moe else "qwen3_vl", "architectures": ["Qwen3VLMoeForConditionalGeneration" if moe else "Qwen3VLForConditionalGeneration"],
            "image_token_id": IMAGE, "video_token_id": 261, "vision_start_token_id": BEGIN, "vision_end_token_id": END, "tie_word_embeddings": False,
            "text_config": text, "vision_config": {**VISION, "model_type": "qwen3_vl_moe" if moe else "qwen3_vl"}}


def tokenizer():
    t = tiny.tokenizer()
    added = t["added_tokens"]
    for i, s in ((IMAGE, "<|image|>"), (BEGIN, "<|begin|>"), (END, "<|end|>")):
        added.append({**added[0], "id": i, "content": s})
    return t


def make(directory, moe=False, blind=False, processor=None, **changes):
    """Writes the checkpoint. blind: without the tensors of its tower. changes: of config.json's members."""
    os.makedirs(directory, exist_ok=True)
    c = {**config(moe), **changes}
    all_ = {k: v for k, v in tensors(c).items() if not blind or ".visual." not in k}
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(tiny.shard_bytes(list(all_.items())))
    files = {"config.json": c, "preprocessor_config.json": {**PROCESSOR, **(processor or {})}, "tokenizer.json": tokenizer(), "generation_config.json": {"eos_token_id": [1]},
             "tokenizer_config.json": {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": TEMPLATE}}
    for name, value in files.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False)
    return directory


# --- Pictures -----------------------------------------------------------------------------------


def pixels(width, height, seed=0):
    """RGB rows of a picture with edges and gradients."""
    return [bytes(v for x in range(width) for v in ((x * 255 // max(1, width - 1) + seed * 40) % 256, y * 255 // max(1, height - 1), (x * 7 + y * 13 + seed * 90) % 256))
            for y in range(height)]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, rows, colour=2, depth=8, before=b"", claims=None):
    """The bytes of a PNG file. rows: of packed samples. before: chunks before the data. claims: another size in the header."""
    w, h = claims or (width, height)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, 0)) + before + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def picture(width, height, seed=0):
    return png(width, height, pixels(width, height, seed))
