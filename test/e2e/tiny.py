"""Makes a tiny DeepSeek-V3 checkpoint with the standard library only: FP8 with block scales, two shards, an index,
partial blocks at the edges, a prediction layer to skip. Tests damage copies of it."""
import json
import os
import random
import struct

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 288, "hidden_size": 160,
    "intermediate_size": 192, "moe_intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.0,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "q_lora_rank": 64, "kv_lora_rank": 136, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1, "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}


def tensors(config, rng):
    """Returns {name: (dtype, shape, bytes)}."""
    out = {}
    c = config

    def bf16(name, *shape, value=None):
        n = 1
        for s in shape:
            n *= s
        out[name] = ("BF16", list(shape), b"".join(struct.pack("<f", value if value is not None else rng.gauss(0, 0.05))[2:] for _ in range(n)))

    def fp8(name, rows, cols):
        codes = bytes(rng.choice((0, 0x80)) | rng.randrange(0, 0x60) for _ in range(rows * cols))
        blocks = [-(-rows // 128), -(-cols // 128)]
        out[name + ".weight"] = ("F8_E4M3", [rows, cols], codes)
        out[name + ".weight_scale_inv"] = ("F32", blocks, b"".join(struct.pack("<f", rng.uniform(0.004, 0.01)) for _ in range(blocks[0] * blocks[1])))

    def ffn(name, inter):
        fp8(name + ".gate_proj", inter, c["hidden_size"])
        fp8(name + ".up_proj", inter, c["hidden_size"])
        fp8(name + ".down_proj", c["hidden_size"], inter)

    h, heads = c["hidden_size"], c["num_attention_heads"]
    bf16("model.embed_tokens.weight", c["vocab_size"], h)
    bf16("lm_head.weight", c["vocab_size"], h)
    bf16("model.norm.weight", h, value=1.0)
    for i in range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]):
        p = f"model.layers.{i}."
        bf16(p + "input_layernorm.weight", h, value=1.0)
        bf16(p + "post_attention_layernorm.weight", h, value=1.0)
        a = p + "self_attn."
        fp8(a + "q_a_proj", c["q_lora_rank"], h)
        bf16(a + "q_a_layernorm.weight", c["q_lora_rank"], value=1.0)
        fp8(a + "q_b_proj", heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]), c["q_lora_rank"])
        fp8(a + "kv_a_proj_with_mqa", c["kv_lora_rank"] + c["qk_rope_head_dim"], h)
        bf16(a + "kv_a_layernorm.weight", c["kv_lora_rank"], value=1.0)
        fp8(a + "kv_b_proj", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
        fp8(a + "o_proj", h, heads * c["v_head_dim"])
        if i < c["first_k_dense_replace"]:
            ffn(p + "mlp", c["intermediate_size"])
        else:
            bf16(p + "mlp.gate.weight", c["n_routed_experts"], h)
            out[p + "mlp.gate.e_score_correction_bias"] = ("F32", [c["n_routed_experts"]], struct.pack("<4f", 0.1, -0.1, 0.0, 0.05))
            for k in range(c["n_routed_experts"]):
                ffn(p + f"mlp.experts.{k}", c["moe_intermediate_size"])
            ffn(p + "mlp.shared_experts", c["moe_intermediate_size"] * c["n_shared_experts"])
    return out


def shard_bytes(items, pad="", metadata=None):
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, raw) in items:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return pack(header, data, pad)


def pack(header, data, pad=""):
    text = (header if isinstance(header, str) else json.dumps(header)) + pad
    text = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text + data


def tokenizer():
    """Byte-level BPE without merges: id = byte, except for the two control tokens at 0 and 1 (their bytes move to 256, 257)."""
    chars, n = {}, 0
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255:
            chars[b] = chr(b)
        else:
            chars[b] = chr(256 + n)
            n += 1
    vocab = {"<bos>": 0, "<eos>": 1}
    for b in range(256):
        vocab[chars[b]] = b if b > 1 else 256 + b
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": s, **special} for i, s in enumerate(("<bos>", "<eos>"))],
        "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []},
    }


made = {}  # cache of this process: files and tensors


def make(directory, config=None, seed=1):
    """Writes the checkpoint; returns its tensors."""
    config = {**CONFIG, **(config or {})}
    key = json.dumps([config, seed])
    if key not in made:
        made[key] = files(config, seed)
    os.makedirs(directory, exist_ok=True)
    for name, data in made[key][0].items():
        with open(os.path.join(directory, name), "wb") as f:
            f.write(data)
    return made[key][1]


def files(config, seed):
    """Returns {file name: bytes}, and the tensors."""
    all_ = tensors(config, random.Random(seed))
    names = list(all_)
    # Every third scale is in the other shard than its weight.
    second = {n for i, n in enumerate(names) if (i > len(names) // 2) != (n.endswith("scale_inv") and i % 3 == 0)}
    shards = {"model-00001-of-00002.safetensors": [n for n in names if n not in second], "model-00002-of-00002.safetensors": [n for n in names if n in second]}
    out = {file: shard_bytes([(n, all_[n]) for n in members]) for file, members in shards.items()}
    index = {"metadata": {}, "weight_map": {n: file for file, members in shards.items() for n in members}}
    for name, value in (("config.json", config), ("model.safetensors.index.json", index), ("tokenizer.json", tokenizer()),
                        ("tokenizer_config.json", {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"}),
                        ("generation_config.json", {"eos_token_id": [1], "do_sample": False})):
        out[name] = json.dumps(value, ensure_ascii=False).encode()
    return out, all_
