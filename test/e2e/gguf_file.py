"""GGUF out of nothing but the standard library: a writer, the formats of its tensors (random blocks and what they stand for,
after the format's own description), and small random models of each architecture as a pair: a GGUF file, and the same
weights as safetensors in float32 under the names of the family."""
import array
import json
import os
import random
import struct

U32, I32, F32, BOOL, STR, ARR, U64 = 4, 5, 6, 7, 8, 9, 10
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39}
ALIGN = 32


# --- The container -----------------------------------------------------------------------------------------------------

def string(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def value(v):
    """(type, bytes); a type can be given as (type, value)."""
    if isinstance(v, tuple):
        t, v = v
        return t, struct.pack({U32: "<I", I32: "<i", F32: "<f", U64: "<Q"}[t], v)
    if isinstance(v, bool):
        return BOOL, struct.pack("<B", v)
    if isinstance(v, int):
        return U32, struct.pack("<I", v)
    if isinstance(v, float):
        return F32, struct.pack("<f", v)
    if isinstance(v, (str, bytes)):
        return STR, string(v)
    if isinstance(v[0], int):  # token types and the like
        return ARR, struct.pack("<IQ", I32, len(v)) + array.array("i", v).tobytes()
    items = [value(x) for x in v]
    return ARR, struct.pack("<IQ", items[0][0], len(items)) + b"".join(b for _, b in items)


def pack(meta, tensors, version=3, head=None):
    """meta: dict; tensors: [(name, type, shape with rows first, bytes)]. head: changes the head's numbers, for damage."""
    out = struct.pack("<4sIQQ", b"GGUF", version, *(head or (len(tensors), len(meta))))
    for k, v in meta.items():
        t, raw = value(v)
        out += string(k) + struct.pack("<I", t) + raw
    at, data = 0, []
    for name, t, shape, raw in tensors:
        out += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        out += struct.pack("<IQ", TYPES.get(t, t), at)
        data.append(raw + b"\0" * (-len(raw) % ALIGN))
        at += len(data[-1])
    return out + b"\0" * (-len(out) % ALIGN) + b"".join(data)


def write(path, meta, tensors, splits=1):
    """One file, or split ones; returns the first."""
    if splits == 1:
        with open(path, "wb") as f:
            f.write(pack(meta, tensors))
        return path
    per, first = -(-len(tensors) // splits), None
    for i in range(splits):
        own = {"split.no": i, "split.count": splits, "split.tensors.count": (I32, len(tensors))}
        name = path.replace(".gguf", f"-{i + 1:05d}-of-{splits:05d}.gguf")
        first = first or name
        with open(name, "wb") as f:
            f.write(pack({**(meta if i == 0 else {}), **own}, tensors[i * per : (i + 1) * per]))
    return first


# --- The formats -------------------------------------------------------------------------------------------------------

def half(b, at):
    return struct.unpack_from("<e", b, at)[0]


def k_scales(s):
    """The eight scales and minima of a Q4_K or Q5_K block, six bits each in twelve bytes."""
    return [(s[j] & 63, s[j + 4] & 63) if j < 4 else (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4) for j in range(8)]


def de_q4_0(b):
    d = half(b, 0)
    return [d * ((b[2 + i % 16] >> (4 * (i // 16)) & 15) - 8) for i in range(32)]


def de_q8_0(b):
    d = half(b, 0)
    return [d * q for q in struct.unpack_from("<32b", b, 2)]


def de_q4_k(b):
    d, m, s = half(b, 0), half(b, 2), k_scales(b[4:16])
    return [d * s[i // 32][0] * (b[16 + i // 64 * 32 + i % 32] >> (4 * (i // 32 % 2)) & 15) - m * s[i // 32][1] for i in range(256)]


def de_q5_k(b):
    d, m, s = half(b, 0), half(b, 2), k_scales(b[4:16])
    return [d * s[i // 32][0] * ((b[48 + i // 64 * 32 + i % 32] >> (4 * (i // 32 % 2)) & 15) | (b[16 + i % 32] >> (i // 32) & 1) << 4) - m * s[i // 32][1] for i in range(256)]


def de_q6_k(b):
    d, out = half(b, 208), []
    for i in range(256):
        h, l, part = i // 128, i % 32, i % 128 // 32
        low = b[64 * h + l + 32 * (part & 1)] >> (4 * (part // 2)) & 15
        high = b[128 + 32 * h + l] >> (2 * part) & 3
        out.append(d * struct.unpack_from("b", b, 192 + 8 * h + l // 16 + 2 * part)[0] * ((low | high << 4) - 32))
    return out


NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def de_iq4_nl(b):
    d = half(b, 0)
    return [d * NL[b[2 + i % 16] >> (4 * (i // 16)) & 15] for i in range(32)]


def de_iq4_xs(b):
    d, high = half(b, 0), struct.unpack_from("<H", b, 2)[0]
    out = []
    for i in range(256):
        k = i // 32
        scale = (b[4 + k // 2] >> (4 * (k % 2)) & 15 | (high >> (2 * k) & 3) << 4) - 32
        out.append(d * scale * NL[b[8 + 16 * k + i % 16] >> (4 * (i % 32 // 16)) & 15])
    return out


FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def de_mxfp4(b):
    return [2.0 ** (b[0] - 127) * FP4[b[1 + i % 16] >> (4 * (i // 16)) & 15] for i in range(32)]


# elements, bytes, decode, places of float16 scales
BLOCKS = {"Q4_0": (32, 18, de_q4_0, (0,)), "Q8_0": (32, 34, de_q8_0, (0,)), "Q4_K": (256, 144, de_q4_k, (0, 2)), "Q5_K": (256, 176, de_q5_k, (0, 2)),
          "Q6_K": (256, 210, de_q6_k, (208,)), "IQ4_NL": (32, 18, de_iq4_nl, (0,)), "IQ4_XS": (256, 136, de_iq4_xs, (0,)), "MXFP4": (32, 17, de_mxfp4, ())}
# what the scales are multiplied by at most: so that weights come out around 0.1
REACH = {"Q4_0": 8, "Q8_0": 127, "Q4_K": 63 * 15, "Q5_K": 63 * 31, "Q6_K": 127 * 32, "IQ4_NL": 127, "IQ4_XS": 31 * 127}


def random_block(rng, fmt):
    n, size, _, halves = BLOCKS[fmt]
    b = bytearray(rng.randbytes(size))
    for at in halves:
        struct.pack_into("<e", b, at, rng.uniform(0.5, 1) * 0.2 / REACH[fmt])
    if fmt == "MXFP4":
        b[0] = rng.randrange(121, 124)
    return bytes(b)


def encode(rng, fmt, n, cols, spread):
    """Random data of n numbers in rows of cols: (format used, bytes, what they stand for)."""
    if fmt in BLOCKS and cols % BLOCKS[fmt][0]:
        fmt = "F16"  # as llama.cpp falls back to a format that fits
    if fmt in BLOCKS:
        blocks = [random_block(rng, fmt) for _ in range(n // BLOCKS[fmt][0])]
        return fmt, b"".join(blocks), array.array("f", [x for b in blocks for x in BLOCKS[fmt][2](b)])
    f = array.array("f", [rng.gauss(0, spread) for _ in range(n)])
    if fmt == "F32":
        return fmt, f.tobytes(), f
    if fmt == "F16":
        raw = struct.pack(f"<{n}e", *f)
        return fmt, raw, array.array("f", struct.unpack(f"<{n}e", raw))
    bits = array.array("I", [u & 0xFFFF0000 for u in array.array("I", f.tobytes())])
    return fmt, array.array("H", [u >> 16 for u in bits]).tobytes(), array.array("f", bits.tobytes())


# --- Models ------------------------------------------------------------------------------------------------------------

def vocabulary(n):
    """Byte-level pieces: the 256 bytes, a few merges, two control tokens, a token of a user's, the rest unused."""
    chars, k = [], 0
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255:
            chars.append(chr(b))
        else:
            chars.append(chr(256 + k))
            k += 1
    merges = ["h e", "l l", "he ll", "hell o", "\u0120 w", "o r", "\u0120w or", "\u0120wor l", "\u0120worl d"]
    tokens = chars + [m.replace(" ", "") for m in merges] + ["<|start|>", "<|im_end|>", "<think>"]
    kinds = [1] * (len(tokens) - 3) + [3, 3, 4]
    while len(tokens) < n:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(5)
    return tokens, kinds, merges


TEMPLATE = "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


class Pair:
    """Both forms of one model while it is made."""

    def __init__(self, arch, fmt, seed):
        self.arch, self.fmt, self.rng = arch, fmt, random.Random(seed)
        self.meta = {"general.architecture": arch, "general.name": "random " + arch, "general.alignment": ALIGN}
        self.gguf, self.hf, self.config = [], {}, {}

    def key(self, **keys):
        for k, v in keys.items():
            self.meta[f"{self.arch}.{k.replace('__', '.')}"] = v

    def both(self, name, shape, hf, fmt=None, spread=0.08, order=None, mean=0.0):
        """A tensor in both; hf: its name there, or one for each of the first dimension. order: rows of the GGUF one."""
        n = 1
        for s in shape:
            n *= s
        fmt, raw, f = encode(self.rng, fmt or self.fmt, n, shape[-1], spread)
        if mean:
            f = array.array("f", [x + mean for x in f])
            raw = f.tobytes()
        if order:
            cols, size = shape[-1], len(raw) * shape[-1] // n
            raw = b"".join(raw[r * size : (r + 1) * size] for r in order)
        self.gguf.append((name + ("" if name.endswith(".bias") else ".weight"), fmt, shape, raw))
        if isinstance(hf, str):
            self.hf[hf] = (shape, f)
        else:
            part = n // len(hf)
            for i, h in enumerate(hf):
                self.hf[h] = (shape[1:], f[i * part : (i + 1) * part])

    def norm(self, name, n, hf):
        self.both(name, [n], hf, "F32", 0.1, mean=1.0)

    def save(self, directory, splits=1):
        os.makedirs(os.path.join(directory, "hf"), exist_ok=True)
        tokens, kinds, merges = vocabulary(self.config["vocab_size"])
        bos = tokens.index("<|start|>")
        self.meta.update({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
                          "tokenizer.ggml.merges": merges, "tokenizer.ggml.bos_token_id": bos, "tokenizer.ggml.eos_token_id": bos + 1,
                          "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE})
        config = {"max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": bos,
                  "eos_token_id": bos + 1, **self.config}
        header, data = {}, []
        at = 0
        for name, (shape, f) in self.hf.items():
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(f)]}
            data.append(f.tobytes())
            at += 4 * len(f)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(directory, "hf", "model.safetensors"), "wb") as o:
            o.write(struct.pack("<Q", len(text)) + text + b"".join(data))
        with open(os.path.join(directory, "hf", "config.json"), "w") as o:
            json.dump(config, o)
        return write(os.path.join(directory, f"{self.arch}.gguf"), self.meta, self.gguf, splits), os.path.join(directory, "hf")


def usual(p, hidden=256, layers=2, vocab=288, inter=256, experts=4, used=2):
    p.key(block_count=layers, context_length=512, embedding_length=hidden, attention__layer_norm_rms_epsilon=1e-6, expert_count=experts, expert_used_count=used)
    p.config.update(vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_experts_per_tok=used)
    p.both("token_embd", [vocab, hidden], "model.embed_tokens.weight", spread=1)
    p.both("output", [vocab, hidden], "lm_head.weight")
    p.norm("output_norm", hidden, "model.norm.weight")


def gqa(p, i, hidden, heads, kv, dim, qk_norm=False, bias=False, permute=False, ffn_norm="ffn_norm"):
    b, h = f"blk.{i}.", f"model.layers.{i}."

    def pairs(n):  # llama.cpp: the two numbers of a rotated pair side by side
        return [k * dim + j // 2 + j % 2 * (dim // 2) for k in range(n) for j in range(dim)] if permute else None

    p.norm(b + "attn_norm", hidden, h + "input_layernorm.weight")
    p.norm(b + ffn_norm, hidden, h + "post_attention_layernorm.weight")
    for g, name, n, order in (("q", "q_proj", heads, pairs(heads)), ("k", "k_proj", kv, pairs(kv)), ("v", "v_proj", kv, None)):
        p.both(f"{b}attn_{g}", [n * dim, hidden], f"{h}self_attn.{name}.weight", order=order)
        if bias:
            p.both(f"{b}attn_{g}.bias", [n * dim], f"{h}self_attn.{name}.bias", "F32", 0.3)
    p.both(b + "attn_output", [hidden, heads * dim], h + "self_attn.o_proj.weight")
    if qk_norm:
        p.norm(b + "attn_q_norm", dim, h + "self_attn.q_norm.weight")
        p.norm(b + "attn_k_norm", dim, h + "self_attn.k_norm.weight")


def experts(p, i, hidden, inter, n, pattern, names=("gate_proj", "up_proj", "down_proj"), router="mlp.gate.weight"):
    b, h = f"blk.{i}.", f"model.layers.{i}."
    p.both(b + "ffn_gate_inp", [n, hidden], h + router, "F32")
    for g, shape, name in (("gate", [n, inter, hidden], names[0]), ("up", [n, inter, hidden], names[1]), ("down", [n, hidden, inter], names[2])):
        p.both(f"{b}ffn_{g}_exps", shape, [h + pattern.format(k) + name + ".weight" for k in range(n)])


def dense(p, i, hidden, inter, name, end=""):
    b, h = f"blk.{i}.", f"model.layers.{i}."
    for g, shape in (("gate", [inter, hidden]), ("up", [inter, hidden]), ("down", [hidden, inter])):
        p.both(f"{b}ffn_{g}{end}", shape, f"{h}{name}.{g}_proj.weight")


def qwen3moe(fmt, seed=1):
    p = Pair("qwen3moe", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512,
          expert_feed_forward_length=256, rope__freq_base=1e6)
    p.config.update(model_type="qwen3_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512, moe_intermediate_size=256,
                    num_experts=4, norm_topk_prob=True, rope_theta=1e6)
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64, qk_norm=True)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
    return p


def qwen2moe(fmt, seed=2):
    p = Pair("qwen2moe", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_feed_forward_length=512,
          rope__freq_base=1e6)
    p.config.update(model_type="qwen2_moe", num_attention_heads=4, num_key_value_heads=2, intermediate_size=512, moe_intermediate_size=256,
                    shared_expert_intermediate_size=512, num_experts=4, norm_topk_prob=False, rope_theta=1e6)
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64, bias=True)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
        dense(p, i, 256, 512, "mlp.shared_expert", "_shexp")
        p.both(f"blk.{i}.ffn_gate_inp_shexp", [256], f"model.layers.{i}.mlp.shared_expert_gate.weight", "F32")
        shape, f = p.hf[f"model.layers.{i}.mlp.shared_expert_gate.weight"]
        p.hf[f"model.layers.{i}.mlp.shared_expert_gate.weight"] = ([1, 256], f)
    return p


def llama(fmt, seed=3):
    p = Pair("llama", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=256, rope__freq_base=1e6, rope__dimension_count=64, vocab_size=288)
    p.config.update(model_type="mixtral", num_attention_heads=4, num_key_value_heads=2, intermediate_size=256, num_local_experts=4, rope_theta=1e6)
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64, permute=True)
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
    return p


def deepseek2(fmt, seed=4, v3=True, split=True):
    """v3: sigmoid router with groups and a correction; split: the up-projection of keys and values cut in two, keys transposed."""
    p = Pair("deepseek2", fmt, seed)
    hidden, heads, nope, rope, v, lora, latent = 256, 4, 32, 32, 32, 256, 256
    usual(p, layers=3, experts=8)
    p.key(attention__head_count=heads, attention__head_count_kv=1, attention__kv_lora_rank=latent, rope__dimension_count=rope, rope__freq_base=1e4,
          feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=1, leading_dense_block_count=1, expert_weights_scale=2.0,
          vocab_size=288, rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=128,
          rope__scaling__yarn_log_multiplier=0.1)
    p.config.update(model_type="deepseek_v3" if v3 else "deepseek_v2", num_attention_heads=heads, num_key_value_heads=heads, kv_lora_rank=latent,
                    qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=v, intermediate_size=512, moe_intermediate_size=256, n_routed_experts=8,
                    n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.0, rope_theta=1e4,
                    rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                                  "mscale_all_dim": 1.0})
    if split:
        p.key(attention__key_length=latent + rope, attention__value_length=latent, attention__key_length_mla=nope + rope, attention__value_length_mla=v)
    else:
        p.key(attention__key_length=nope + rope, attention__value_length=v)
    if v3:
        p.key(attention__q_lora_rank=lora, expert_gating_func=2, expert_weights_norm=True, expert_group_count=2, expert_group_used_count=1)
        p.config.update(q_lora_rank=lora, scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True, n_group=2, topk_group=1)
    else:
        p.config.update(scoring_func="softmax", topk_method="greedy", norm_topk_prob=False)
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        p.norm(b + "attn_norm", hidden, h + "input_layernorm.weight")
        p.norm(b + "ffn_norm", hidden, h + "post_attention_layernorm.weight")
        if v3:
            p.both(b + "attn_q_a", [lora, hidden], h + "self_attn.q_a_proj.weight")
            p.norm(b + "attn_q_a_norm", lora, h + "self_attn.q_a_layernorm.weight")
            p.both(b + "attn_q_b", [heads * (nope + rope), lora], h + "self_attn.q_b_proj.weight")
        else:
            p.both(b + "attn_q", [heads * (nope + rope), hidden], h + "self_attn.q_proj.weight")
        p.both(b + "attn_kv_a_mqa", [latent + rope, hidden], h + "self_attn.kv_a_proj_with_mqa.weight")
        p.norm(b + "attn_kv_a_norm", latent, h + "self_attn.kv_a_layernorm.weight")
        name = h + "self_attn.kv_b_proj.weight"
        if split:
            p.both(b + "attn_k_b", [heads, latent, nope], "k_b")
            p.both(b + "attn_v_b", [heads, v, latent], "v_b")
            k, w, out = p.hf.pop("k_b")[1], p.hf.pop("v_b")[1], array.array("f")
            for n in range(heads):
                for r in range(nope):
                    out.extend(k[(n * latent + c) * nope + r] for c in range(latent))
                out.extend(w[n * v * latent : (n + 1) * v * latent])
            p.hf[name] = ([heads * (nope + v), latent], out)
        else:
            p.both(b + "attn_kv_b", [heads * (nope + v), latent], name)
        p.both(b + "attn_output", [hidden, heads * v], h + "self_attn.o_proj.weight")
        if i < 1:
            dense(p, i, hidden, 512, "mlp")
        else:
            experts(p, i, hidden, 256, 8, "mlp.experts.{}.")
            dense(p, i, hidden, 256, "mlp.shared_experts", "_shexp")
            if v3:
                p.both(b + "exp_probs_b.bias", [8], h + "mlp.gate.e_score_correction_bias", "F32", 0.05)
    return p


def gpt_oss(fmt, seed=7):
    p = Pair("gpt-oss", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, attention__sliding_window=8,
          feed_forward_length=256, expert_feed_forward_length=256, rope__freq_base=15e4, rope__scaling__type="yarn", rope__scaling__factor=4.0,
          rope__scaling__original_context_length=128)
    p.config.update(model_type="gpt_oss", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=256, num_local_experts=4,
                    sliding_window=8, attention_bias=True, rope_theta=15e4,
                    rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0,
                                  "truncate": False})
    for i in range(2):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, bias=True, ffn_norm="post_attention_norm")
        p.both(b + "attn_output.bias", [256], h + "self_attn.o_proj.bias", "F32", 0.3)
        p.both(b + "attn_sinks", [4], h + "self_attn.sinks", "F32", 1)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.", router="mlp.router.weight")
        p.both(b + "ffn_gate_inp.bias", [4], h + "mlp.router.bias", "F32", 0.3)
        for g in ("gate", "up", "down"):
            p.both(f"{b}ffn_{g}_exps.bias", [4, 256], f"{g} bias", "F32", 0.3)
        # safetensors has all experts in two tensors, gate and up a row of each in turn
        turns, bias, down = array.array("f"), array.array("f"), array.array("f")
        for k in range(4):
            gate, up = (p.hf.pop(f"{h}mlp.experts.{k}.{g}_proj.weight")[1] for g in ("gate", "up"))
            for r in range(256):
                turns.extend(gate[r * 256 : (r + 1) * 256])
                turns.extend(up[r * 256 : (r + 1) * 256])
                bias.append(p.hf["gate bias"][1][k * 256 + r])
                bias.append(p.hf["up bias"][1][k * 256 + r])
            down.extend(p.hf.pop(f"{h}mlp.experts.{k}.down_proj.weight")[1])
        p.hf[h + "mlp.experts.gate_up_proj"] = ([4, 512, 256], turns)
        p.hf[h + "mlp.experts.gate_up_proj_bias"] = ([4, 512], bias)
        p.hf[h + "mlp.experts.down_proj"] = ([4, 256, 256], down)
        p.hf[h + "mlp.experts.down_proj_bias"] = p.hf["down bias"]
        for g in ("gate", "up", "down"):
            p.hf.pop(g + " bias")
    return p


def glm4moe(fmt, seed=8):
    """The last block is a prediction layer, which is recognised and left alone."""
    p = Pair("glm4moe", fmt, seed)
    usual(p, layers=3)
    p.key(block_count=4, nextn_predict_layers=1, attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64,
          rope__dimension_count=32, rope__freq_base=1e6, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=1,
          leading_dense_block_count=1, expert_weights_scale=1.5, expert_weights_norm=True, expert_gating_func=2)
    p.config.update(model_type="glm4_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64, partial_rotary_factor=0.5, rope_theta=1e6,
                    intermediate_size=512, moe_intermediate_size=256, n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1,
                    routed_scaling_factor=1.5, norm_topk_prob=True, attention_bias=True, use_qk_norm=True, num_nextn_predict_layers=1)
    for i in range(4):
        gqa(p, i, 256, 4, 2, 64, qk_norm=True, bias=True, ffn_norm="post_attention_norm")
        if i < 1:
            dense(p, i, 256, 512, "mlp")
        else:
            experts(p, i, 256, 256, 4, "mlp.experts.{}.")
            dense(p, i, 256, 256, "mlp.shared_experts", "_shexp")
            p.both(f"blk.{i}.exp_probs_b.bias", [4], f"model.layers.{i}.mlp.gate.e_score_correction_bias", "F32", 0.05)
    p.both("blk.3.nextn.eh_proj", [256, 512], "model.layers.3.eh_proj.weight")
    return p


def minimax(fmt, seed=9):
    p = Pair("minimax-m2", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, rope__dimension_count=32,
          rope__freq_base=5e6, feed_forward_length=256, expert_feed_forward_length=256, expert_gating_func=2)
    p.config.update(model_type="minimax_m2", num_attention_heads=4, num_key_value_heads=2, head_dim=64, rotary_dim=32, rope_theta=5e6,
                    intermediate_size=256, num_local_experts=4)
    for i in range(2):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64)
        p.norm(b + "attn_q_norm", 256, h + "self_attn.q_norm.weight")
        p.norm(b + "attn_k_norm", 128, h + "self_attn.k_norm.weight")
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
        p.both(b + "exp_probs_b.bias", [4], h + "block_sparse_moe.e_score_correction_bias", "F32", 0.05)
    return p


MODELS = {"gpt-oss": gpt_oss, "glm4moe": glm4moe, "minimax-m2": minimax, "qwen3moe": qwen3moe, "qwen2moe": qwen2moe, "llama": llama, "deepseek2": deepseek2,
          "deepseek2 v2": lambda fmt: deepseek2(fmt, 5, v3=False), "deepseek2 old": lambda fmt: deepseek2(fmt, 6, split=False)}
