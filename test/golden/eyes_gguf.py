"""A model of test/e2e/eyes.py as llama.cpp's converter writes it: the text model, and beside it a file mmproj with the tower."""
import json
import math
import os
import struct
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
import eyes  # noqa: E402
import gguf_convert  # noqa: E402
import gguf_convert_more  # noqa: E402
import gguf_formats  # noqa: E402

KINDS = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen4_exp")
MARK = "<|image_pad|>"


def qwen3vl(d):
    m = gguf_convert.Model(d, "qwen3vl", "model.language_model.")
    c = m.config
    moe = "num_experts" in c
    if moe:
        m.arch = m.meta["general.architecture"] = "qwen3vlmoe"
        m.meta = {k.replace("qwen3vl.", "qwen3vlmoe."): v for k, v in m.meta.items()}
        m.keys_of(expert_count="num_experts", expert_used_count="num_experts_per_tok", expert_feed_forward_length="moe_intermediate_size")
    m.keys_of(feed_forward_length="intermediate_size", attention__head_count_kv="num_key_value_heads", attention__key_length="head_dim", attention__value_length="head_dim")
    m.key(rope__freq_base=c["rope_parameters"]["rope_theta"], rope__dimension_sections=[*c["rope_parameters"]["mrope_section"], 0],
          n_deepstack_layers=len(c["vision_config"]["deepstack_visual_indexes"]))
    m.ends()
    m.attention(ffn_norm="post_attention_layernorm", ffn_gate_inp="mlp.gate")
    m.dense()
    for i in range(m.layers if moe else 0):
        both, n = m.take(f"layers.{i}.mlp.experts.gate_up_proj"), c["moe_intermediate_size"]
        for k, g in enumerate(("gate", "up")):
            m.put(f"blk.{i}.ffn_{g}_exps", both.each(lambda t: t.rows(range(k * n, k * n + n))))
        m.put(f"blk.{i}.ffn_down_exps", m.take(f"layers.{i}.mlp.experts.down_proj"))
    return m


WRITERS = {"qwen3_5": gguf_convert.qwen35, "qwen4_exp": gguf_convert_more.qwen4exp}


def write_text(directory, path):
    kind = json.load(open(os.path.join(directory, "config.json"), encoding="utf-8"))["model_type"]
    m = WRITERS.get(kind, qwen3vl)(directory)
    t = eyes.tokenizer()
    by_id = {i: s for s, i in t["model"]["vocab"].items()}
    added = {a["id"]: a["content"].replace("<|image|>", MARK) for a in t["added_tokens"]}
    size = m.config["vocab_size"]
    by_id[size - 1] = "ab"  # of the only merge
    m.meta.update({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": [added.get(i, by_id.get(i, f"[unused{i}]")) for i in range(size)],
                   "tokenizer.ggml.token_type": [3 if i in added else 1 if i in by_id else 5 for i in range(size)], "tokenizer.ggml.merges": ["a b"],
                   "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": eyes.TEMPLATE.replace("<|image|>", MARK)})
    gguf_formats.write(path, m.meta, [(n, "F32", x.shape, x.values.tobytes()) for n, x in m.out])


def tower(c, processor):
    """The metadata and the tensors of the tower."""
    v = c["vision_config"]
    deep = v["deepstack_visual_indexes"]
    meta = {"general.architecture": "clip", "general.alignment": gguf_formats.ALIGN, "general.type": "mmproj", "clip.has_vision_encoder": True,
            "clip.projector_type": "qwen3vl_merger", "clip.use_gelu": True, "clip.vision.image_size": math.isqrt(v["num_position_embeddings"]) * v["patch_size"],
            "clip.vision.patch_size": v["patch_size"], "clip.vision.embedding_length": v["hidden_size"], "clip.vision.feed_forward_length": v["intermediate_size"],
            "clip.vision.block_count": v["depth"], "clip.vision.projection_dim": v["out_hidden_size"], "clip.vision.attention.head_count": v["num_heads"],
            "clip.vision.attention.layer_norm_epsilon": 1e-6, "clip.vision.spatial_merge_size": v["spatial_merge_size"],
            "clip.vision.is_deepstack_layers": [i in deep for i in range(v["depth"])], "clip.vision.image_mean": processor["image_mean"],
            "clip.vision.image_std": processor["image_std"], "clip.vision.image_min_pixels": processor["size"]["shortest_edge"],
            "clip.vision.image_max_pixels": processor["size"]["longest_edge"]}
    names = {"patch_embed.proj.bias": "v.patch_embd.bias", "pos_embed.weight": "v.position_embd.weight"}
    for end in ("weight", "bias"):
        for i in range(v["depth"]):
            for a, b in (("norm1", "ln1"), ("norm2", "ln2"), ("attn.qkv", "attn_qkv"), ("attn.proj", "attn_out"), ("mlp.linear_fc1", "ffn_up"), ("mlp.linear_fc2", "ffn_down")):
                names[f"blocks.{i}.{a}.{end}"] = f"v.blk.{i}.{b}.{end}"
        for a, b in (("norm", "v.post_ln"), ("linear_fc1", "mm.0"), ("linear_fc2", "mm.2")):
            names[f"merger.{a}.{end}"] = f"{b}.{end}"
        for i, layer in enumerate(deep):
            for a, b in (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2")):
                names[f"deepstack_merger_list.{i}.{a}.{end}"] = f"v.deepstack.{layer}.{b}.{end}"
    out = []
    for name, (_, shape, raw) in eyes.tensors(c).items():
        if not eyes.is_of_tower(name):
            continue
        name = name.removeprefix("model.visual.")
        if name in names:
            out.append((names[name], "F32", shape, raw))
            continue
        assert name == "patch_embed.proj.weight"
        plane, times = shape[3] * shape[4] * 4, shape[2]
        planes = [raw[i:i + plane] for i in range(0, len(raw), plane)]
        for time in range(times):
            out.append(("v.patch_embd.weight" + (f".{time}" if time else ""), "F32", [shape[0], 3, *shape[3:]], b"".join(planes[time::times])))
    return meta, out


def halved(tensors):
    """Matrices in F16, as most files have them."""
    out = []
    for name, kind, shape, raw in tensors:
        if len(shape) > 1 and name != "v.position_embd.weight":
            n = len(raw) // 4
            kind, raw = "F16", struct.pack(f"<{n}e", *struct.unpack(f"<{n}f", raw))
        out.append((name, kind, shape, raw))
    return out


def make(directory, kind="qwen3_vl", mmproj="mmproj-F32.gguf", half=False, meta=None, drop=(), more=(), **changes):
    """Writes DIRECTORY/model.gguf and the tower's file; returns the model's path. meta, drop and more change the tower's file."""
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory() as d:
        eyes.make(d, kind, **changes)
        write_text(d, os.path.join(directory, "model.gguf"))
        with open(os.path.join(d, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
    own, tensors = tower(config, eyes.KINDS[kind].processor)
    tensors = [t for t in (halved(tensors) if half else tensors) if t[0] not in drop] + list(more)
    if mmproj:
        gguf_formats.write(os.path.join(directory, mmproj), {k: v for k, v in {**own, **(meta or {})}.items() if v is not None}, tensors)
    return os.path.join(directory, "model.gguf")
