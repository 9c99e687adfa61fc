"""Makes GGUF files with the standard library only: a writer, the tensor formats (random blocks and their values, from the
formats' descriptions), and small random models of each architecture as a pair: a GGUF file, and the same
weights as safetensors in float32 under the family's names."""
import array
import json
import math
import os
import random
import re
import struct

U32, I32, F32, BOOL, STR, ARR, U64 = 4, 5, 6, 7, 8, 9, 10
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19,
         "IQ3_S": 21, "IQ2_S": 22, "IQ1_M": 29, "TQ1_0": 34, "TQ2_0": 35, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39}
ALIGN = 32


# --- The container -----------------------------------------------------------------------------------------------------

def string(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def value(v):
    """Returns (type, bytes); a type can be given as (type, value)."""
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
    """meta: dict; tensors: [(name, type, shape with rows first, bytes)]. head: overrides the header's numbers, to damage it."""
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
    """Writes one file, or split ones; returns the first."""
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


def de_q4_1(b):
    d, m = half(b, 0), half(b, 2)
    return [d * (b[4 + i % 16] >> (4 * (i // 16)) & 15) + m for i in range(32)]


def fifth(b, at, i):
    return (b[at + i // 8] >> (i % 8) & 1) << 4


def de_q5_0(b):
    d = half(b, 0)
    return [d * ((b[6 + i % 16] >> (4 * (i // 16)) & 15 | fifth(b, 2, i)) - 16) for i in range(32)]


def de_q5_1(b):
    d, m = half(b, 0), half(b, 2)
    return [d * (b[8 + i % 16] >> (4 * (i // 16)) & 15 | fifth(b, 4, i)) + m for i in range(32)]


def two_bits(b, at, i):
    return b[at + i // 128 * 32 + i % 32] >> (2 * (i % 128 // 32)) & 3


def de_q2_k(b):
    d, m = half(b, 80), half(b, 82)
    return [d * (b[i // 16] & 15) * two_bits(b, 16, i) - m * (b[i // 16] >> 4) for i in range(256)]


def de_q3_k(b):
    d, s = half(b, 108), b[96:108]
    scales = [(s[k % 8] >> (4 * (k // 8)) & 15 | (s[8 + k % 4] >> (2 * (k // 4)) & 3) << 4) - 32 for k in range(16)]
    return [d * scales[i // 16] * (two_bits(b, 32, i) - (0 if b[i % 32] >> (i // 32) & 1 else 4)) for i in range(256)]


def grid(name, bits, levels, cache={}):
    """The rows of a grid of base/iq_grids.h, which test_gguf checks against the gguf package's values."""
    if name not in cache:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "engine", "base", "iq_grids.h")
        with open(path) as f:
            text = f.read().split(f"#define GRID_{name} ")[1].split("#define")[0]
        codes = [int(w, 16) for w in re.findall(r"G\((\w+)\)", text)]
        cache[name] = [[levels[c >> bits * k & (1 << bits) - 1] for k in range(8 if bits == 2 else 4)] for c in codes]
    return cache[name]


TWO, THREE, ODD = (8, 25, 43), (4, 12, 20, 28, 36, 44, 52, 62), tuple(range(1, 16, 2))


def signed(row, bits):
    return [-v if bits >> k & 1 else v for k, v in enumerate(row)]


def seven(bits):
    return bits & 127 | bin(bits & 127).count("1") % 2 << 7


def de_iq2_xxs(b):
    d, out, g = half(b, 0), [], grid("IQ2_XXS", 2, TWO)
    for p in range(8):
        w = struct.unpack_from("<I", b, 6 + 8 * p)[0]
        for k in range(4):
            out += [d * (0.5 + (w >> 28)) * 0.25 * v for v in signed(g[b[2 + 8 * p + k]], seven(w >> 7 * k))]
    return out


def de_iq2_xs(b):
    d, out, g = half(b, 0), [], grid("IQ2_XS", 2, TWO)
    for i in range(32):
        q = struct.unpack_from("<H", b, 2 + 2 * i)[0]
        out += [d * (0.5 + (b[66 + i // 4] >> (i // 2 % 2 * 4) & 15)) * 0.25 * v for v in signed(g[q & 511], seven(q >> 9))]
    return out


def de_iq2_s(b):
    d, out, g = half(b, 0), [], grid("IQ2_S", 2, TWO)
    for i in range(32):
        q = b[2 + i] | (b[66 + i // 4] >> 2 * (i % 4) & 3) << 8
        out += [d * (0.5 + (b[74 + i // 4] >> (i // 2 % 2 * 4) & 15)) * 0.25 * v for v in signed(g[q], b[34 + i])]
    return out


def de_iq3_xxs(b):
    d, out, g = half(b, 0), [], grid("IQ3_XXS", 3, THREE)
    for i in range(32):
        w = struct.unpack_from("<I", b, 66 + i // 4 * 4)[0]
        out += [d * (0.5 + (w >> 28)) * 0.5 * v for v in signed(g[b[2 + 2 * i]] + g[b[3 + 2 * i]], seven(w >> 7 * (i % 4)))]
    return out


def de_iq3_s(b):
    d, out, g = half(b, 0), [], grid("IQ3_S", 3, ODD)
    for i in range(32):
        q = [b[2 + 2 * i + k] | (b[66 + i // 4] >> (2 * (i % 4) + k) & 1) << 8 for k in (0, 1)]
        out += [d * (1 + 2 * (b[106 + i // 8] >> (i // 4 % 2 * 4) & 15)) * v for v in signed(g[q[0]] + g[q[1]], b[74 + i])]
    return out


def de_iq1_s(b):
    d, out, g = half(b, 0), [], grid("IQ1_S", 2, (-1, 0, 1))
    for i in range(32):
        w = struct.unpack_from("<H", b, 34 + i // 4 * 2)[0]
        out += [d * (2 * (w >> 12 & 7) + 1) * (v + (-0.125 if w >> 15 else 0.125)) for v in g[b[2 + i] | (w >> 3 * (i % 4) & 7) << 8]]
    return out


def de_iq1_m(b):
    s, out, g = struct.unpack_from("<4H", b, 48), [], grid("IQ1_S", 2, (-1, 0, 1))
    d = half(struct.pack("<H", s[0] >> 12 | s[1] >> 8 & 0xF0 | s[2] >> 4 & 0xF00 | s[3] & 0xF000), 0)
    for i in range(32):
        high = b[32 + i // 2] >> (i % 2 * 4)
        scale = d * (2 * (s[i // 8] >> (i // 2 % 4 * 3) & 7) + 1)
        out += [scale * (v + (-0.125 if high & 8 else 0.125)) for v in g[b[i] | (high & 7) << 8]]
    return out


def de_tq1_0(b):
    d = half(b, 52)
    bytes_ = [b[i % 32] * 3 ** (i // 32) for i in range(160)] + [b[32 + i % 16] * 3 ** (i // 16) for i in range(80)] + [b[48 + i % 4] * 3 ** (i // 4) for i in range(16)]
    return [d * ((x & 255) * 3 // 256 - 1) for x in bytes_]


def de_tq2_0(b):
    return [half(b, 64) * (two_bits(b, 0, i) - 1) for i in range(256)]


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
          "Q6_K": (256, 210, de_q6_k, (208,)), "IQ4_NL": (32, 18, de_iq4_nl, (0,)), "IQ4_XS": (256, 136, de_iq4_xs, (0,)), "MXFP4": (32, 17, de_mxfp4, ()),
          "Q4_1": (32, 20, de_q4_1, (0, 2)), "Q5_0": (32, 22, de_q5_0, (0,)), "Q5_1": (32, 24, de_q5_1, (0, 2)), "Q2_K": (256, 84, de_q2_k, (80, 82)),
          "Q3_K": (256, 110, de_q3_k, (108,)), "IQ2_XXS": (256, 66, de_iq2_xxs, (0,)), "IQ2_XS": (256, 74, de_iq2_xs, (0,)), "IQ2_S": (256, 82, de_iq2_s, (0,)),
          "IQ3_XXS": (256, 98, de_iq3_xxs, (0,)), "IQ3_S": (256, 110, de_iq3_s, (0,)), "IQ1_S": (256, 50, de_iq1_s, (0,)), "IQ1_M": (256, 56, de_iq1_m, ()),
          "TQ1_0": (256, 54, de_tq1_0, (52,)), "TQ2_0": (256, 66, de_tq2_0, (64,))}
# upper limits of the scales, such that weights are near 0.1
REACH = {"Q4_0": 8, "Q8_0": 127, "Q4_K": 63 * 15, "Q5_K": 63 * 31, "Q6_K": 127 * 32, "IQ4_NL": 127, "IQ4_XS": 31 * 127, "Q4_1": 15,
         "Q5_0": 16, "Q5_1": 31, "Q2_K": 45, "Q3_K": 128, "IQ2_XXS": 166, "IQ2_XS": 166, "IQ2_S": 166, "IQ3_XXS": 480,
         "IQ3_S": 465, "IQ1_S": 17, "TQ1_0": 1, "TQ2_0": 2}


def random_block(rng, fmt):
    n, size, _, halves = BLOCKS[fmt]
    b = bytearray(rng.randbytes(size))
    for at in halves:
        struct.pack_into("<e", b, at, rng.uniform(0.5, 1) * 0.2 / REACH[fmt])
    if fmt == "IQ1_M":
        scale, = struct.unpack("<H", struct.pack("<e", rng.uniform(0.5, 1) * 0.2 / 17))
        for k in range(4):
            b[49 + 2 * k] = b[49 + 2 * k] & 15 | (scale >> 4 * k & 15) << 4
    if fmt == "MXFP4":
        b[0] = rng.randrange(121, 124)
    return bytes(b)


def encode(rng, fmt, n, cols, spread):
    """Random data of n numbers in rows of cols: (format used, bytes, their values)."""
    if fmt in BLOCKS and cols % BLOCKS[fmt][0]:
        fmt = "F16"  # like llama.cpp, falls back to a format that fits
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
    """Byte-level pieces: the 256 bytes, a few merges, two control tokens, a user-defined token, the rest unused."""
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
    """Collects both forms of a model."""

    def __init__(self, arch, fmt, seed):
        self.arch, self.fmt, self.rng = arch, fmt, random.Random(seed)
        self.meta = {"general.architecture": arch, "general.name": "random " + arch, "general.alignment": ALIGN}
        self.gguf, self.hf, self.config, self.leaves_out = [], {}, {}, []  # leaves_out: usual keys that this family's config lacks

    def key(self, **keys):
        for k, v in keys.items():
            self.meta[f"{self.arch}.{k.replace('__', '.')}"] = v

    def both(self, name, shape, hf, fmt=None, spread=0.08, order=None, mean=0.0):
        """Adds a tensor to both; hf: its name in safetensors, or one for each index of the first dimension. order: rows of the GGUF one."""
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
        config = {k: v for k, v in config.items() if k not in self.leaves_out}
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


def gqa(p, i, hidden, heads, kv, dim, qk_norm=False, bias=False, permute=False, ffn_norm="ffn_norm", gated=False):
    b, h = f"blk.{i}.", f"model.layers.{i}."

    def pairs(n):  # llama.cpp: the two numbers of a rotated pair are adjacent
        return [k * dim + j // 2 + j % 2 * (dim // 2) for k in range(n) for j in range(dim)] if permute else None

    p.norm(b + "attn_norm", hidden, h + "input_layernorm.weight")
    p.norm(b + ffn_norm, hidden, h + "post_attention_layernorm.weight")
    for g, name, n, order in (("q", "q_proj", heads * (1 + gated), pairs(heads)), ("k", "k_proj", kv, pairs(kv)), ("v", "v_proj", kv, None)):
        p.both(f"{b}attn_{g}", [n * dim, hidden], f"{h}self_attn.{name}.weight", order=order)
        if bias:
            p.both(f"{b}attn_{g}.bias", [n * dim], f"{h}self_attn.{name}.bias", "F32", 0.3)
    p.both(b + "attn_output", [hidden, heads * dim], h + "self_attn.o_proj.weight")
    if qk_norm:
        p.norm(b + "attn_q_norm", dim, h + "self_attn.q_norm.weight")
        p.norm(b + "attn_k_norm", dim, h + "self_attn.k_norm.weight")


def experts(p, i, hidden, inter, n, pattern, names=("gate_proj", "up_proj", "down_proj"), router="mlp.gate.weight", down=None):
    b, h = f"blk.{i}.", f"model.layers.{i}."
    p.both(b + "ffn_gate_inp", [n, hidden], h + router, "F32")
    for g, shape, name in (("gate", [n, inter, hidden], names[0]), ("up", [n, inter, hidden], names[1]), ("down", [n, hidden, inter], names[2])):
        p.both(f"{b}ffn_{g}_exps", shape, [h + pattern.format(k) + name + ".weight" for k in range(n)], down if g == "down" else None)


def dense(p, i, hidden, inter, name, end=""):
    b, h = f"blk.{i}.", f"model.layers.{i}."
    for g, shape in (("gate", [inter, hidden]), ("up", [inter, hidden]), ("down", [hidden, inter])):
        p.both(f"{b}ffn_{g}{end}", shape, f"{h}{name}.{g}_proj.weight")


def together(p, layers):
    """q, k and v of a layer in one tensor, gate and up of all its experts in another, as some converters write them."""
    of = {t[0]: t for t in p.gguf}
    for i in range(layers):
        b = f"blk.{i}."
        parts = [of[f"{b}attn_{g}.weight"] for g in "qkv"]
        p.gguf.append((b + "attn_qkv.weight", parts[0][1], [sum(t[2][0] for t in parts), parts[0][2][1]], b"".join(t[3] for t in parts)))
        gate, up = (of[f"{b}ffn_{g}_exps.weight"] for g in ("gate", "up"))
        n, inter, hidden = gate[2]
        each = len(gate[3]) // n
        raw = b"".join(t[3][k * each : (k + 1) * each] for k in range(n) for t in (gate, up))
        p.gguf.append((b + "ffn_gate_up_exps.weight", gate[1], [n, 2 * inter, hidden], raw))
        p.gguf = [t for t in p.gguf if t not in parts and t not in (gate, up)]


def qwen3moe(fmt, seed=1, fused=False):
    p = Pair("qwen3moe", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512,
          expert_feed_forward_length=256, rope__freq_base=1e6)
    p.config.update(model_type="qwen3_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512, moe_intermediate_size=256,
                    num_experts=4, norm_topk_prob=True, rope_theta=1e6)
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64, qk_norm=True)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
    if fused:
        together(p, 2)
    return p


def mixed(fmt, seed=9):
    """Layers whose experts are stored in different formats, gate and up in another one than down, as quantizers choose by layer."""
    p = Pair("qwen3moe", fmt, seed)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512,
          expert_feed_forward_length=256, rope__freq_base=1e6)
    p.config.update(model_type="qwen3_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512, moe_intermediate_size=256,
                    num_experts=4, norm_topk_prob=True, rope_theta=1e6)
    for i, (up, down) in enumerate(((fmt, "Q8_0"), ("IQ2_XS", "IQ3_S"), ("Q8_0", "BF16"))):
        gqa(p, i, 256, 4, 2, 64, qk_norm=True)
        p.fmt = up
        experts(p, i, 256, 256, 4, "mlp.experts.{}.", down=down)
        p.fmt = fmt
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


def llama(fmt, seed=3, freqs=False):
    """freqs: Llama 3's stretched frequencies, which llama.cpp stores as a tensor of factors."""
    p = Pair("llama", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=256, rope__freq_base=1e6, rope__dimension_count=64, vocab_size=288)
    p.config.update(model_type="mixtral", num_attention_heads=4, num_key_value_heads=2, intermediate_size=256, num_local_experts=4, rope_theta=1e6)
    if freqs:
        p.config["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        factors = []
        for j in range(32):
            wave = 2 * math.pi * 1e6 ** (j / 32)
            smooth = (64 / wave - 1) / 3
            factors.append(1.0 if wave < 16 else 8.0 if wave > 64 else 1 / ((1 - smooth) / 8 + smooth))
        p.gguf.append(("rope_freqs.weight", "F32", [32], array.array("f", factors).tobytes()))
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64, permute=True)
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
    return p


def deepseek2(fmt, seed=4, v3=True, split=True):
    """v3: sigmoid router with groups and a correction; split: the up-projection of keys and values in two tensors, keys transposed."""
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


def gpt_oss(fmt, seed=7, yarn=True):
    p = Pair("gpt-oss", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, attention__sliding_window=8,
          feed_forward_length=256, expert_feed_forward_length=256, rope__freq_base=15e4)
    if yarn:
        p.key(rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=128)
    p.config.update(model_type="gpt_oss", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=256, num_local_experts=4,
                    sliding_window=8, attention_bias=True, rope_theta=15e4,
                    rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0,
                                  "truncate": False} if yarn else {"rope_type": "default"})
    for i in range(2):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, bias=True, ffn_norm="post_attention_norm")
        p.both(b + "attn_output.bias", [256], h + "self_attn.o_proj.bias", "F32", 0.3)
        p.both(b + "attn_sinks", [4], h + "self_attn.sinks", "F32", 1)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.", router="mlp.router.weight")
        p.both(b + "ffn_gate_inp.bias", [4], h + "mlp.router.bias", "F32", 0.3)
        for g in ("gate", "up", "down"):
            p.both(f"{b}ffn_{g}_exps.bias", [4, 256], f"{g} bias", "F32", 0.3)
        # safetensors has all experts in two tensors, with interleaved rows of gate and up
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
    """The last block is a prediction layer, which is recognised and ignored."""
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
    for name, hf in (("enorm", "enorm"), ("hnorm", "hnorm"), ("shared_head_norm", "shared_head.norm")):
        p.norm("blk.3.nextn." + name, 256, f"model.layers.3.{hf}.weight")
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


def layer_norm(p, name, n, hf, bias):
    p.norm(name, n, hf + ".weight")
    if bias:
        p.both(name + ".bias", [n], hf + ".bias", "F32", 0.1)


def dbrx(fmt, seed=10):
    p = Pair("dbrx", fmt, seed)
    hidden, heads, kv, inter, n = 256, 4, 2, 256, 4
    p.key(block_count=2, context_length=512, embedding_length=hidden, attention__layer_norm_epsilon=1e-5, expert_count=n, expert_used_count=2,
          attention__head_count=heads, attention__head_count_kv=kv, attention__clamp_kqv=1.5, feed_forward_length=inter, rope__freq_base=5e5)
    p.config.update(model_type="dbrx", vocab_size=288, d_model=hidden, n_layers=2, n_heads=heads, max_seq_len=512,
                    attn_config={"kv_n_heads": kv, "clip_qkv": 1.5, "rope_theta": 5e5},
                    ffn_config={"ffn_hidden_size": inter, "moe_num_experts": n, "moe_top_k": 2, "moe_normalize_expert_weights": 1})
    p.both("token_embd", [288, hidden], "transformer.wte.weight", spread=1)
    p.both("output", [288, hidden], "lm_head.weight")
    p.norm("output_norm", hidden, "transformer.norm_f.weight")
    for i in range(2):
        b, h = f"blk.{i}.", f"transformer.blocks.{i}."
        p.norm(b + "attn_norm", hidden, h + "norm_attn_norm.norm_1.weight")
        p.norm(b + "attn_output_norm", hidden, h + "norm_attn_norm.norm_2.weight")
        p.both(b + "attn_qkv", [(heads + 2 * kv) * 64, hidden], h + "norm_attn_norm.attn.Wqkv.weight")
        p.both(b + "attn_output", [hidden, hidden], h + "norm_attn_norm.attn.out_proj.weight")
        p.both(b + "ffn_gate_inp", [n, hidden], h + "ffn.router.layer.weight", "F32")
        for g, name in (("gate", "w1"), ("up", "v1")):
            p.both(f"{b}ffn_{g}_exps", [n, inter, hidden], h + f"ffn.experts.mlp.{name}")
            p.hf[h + f"ffn.experts.mlp.{name}"] = ([n * inter, hidden], p.hf[h + f"ffn.experts.mlp.{name}"][1])
        p.both(b + "ffn_down_exps", [n, hidden, inter], "down")
        down = p.hf.pop("down")[1]  # published transposed
        turned = array.array("f", [down[(k * hidden + c) * inter + r] for k in range(n) for r in range(inter) for c in range(hidden)])
        p.hf[h + "ffn.experts.mlp.w2"] = ([n * inter, hidden], turned)
    for key in ("rms_norm_eps", "hidden_act", "max_position_embeddings"):
        p.leaves_out.append(key)
    return p


def phimoe(fmt, seed=11):
    """LongRoPE: the tests' prompt is short, so an original context of 32 makes its long factors apply."""
    p = Pair("phimoe", fmt, seed)
    p.key(block_count=2, context_length=512, embedding_length=256, attention__layer_norm_rms_epsilon=1e-5, expert_count=4, expert_used_count=2,
          attention__head_count=4, attention__head_count_kv=2, feed_forward_length=256, rope__dimension_count=64, rope__freq_base=1e4,
          rope__scaling__original_context_length=32, rope__scaling__attn_factor=1.3, attention__sliding_window=0)
    near, far = [1 + j / 64 for j in range(32)], [1 + j / 8 for j in range(32)]
    p.config.update(model_type="phimoe", vocab_size=288, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    intermediate_size=256, num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5, rope_theta=1e4, attention_bias=True, lm_head_bias=True,
                    rope_scaling={"type": "longrope", "short_factor": near, "long_factor": far, "original_max_position_embeddings": 32,
                                  "attention_factor": 1.3})
    for name, f in (("short", near), ("long", far)):
        p.gguf.append((f"rope_factors_{name}.weight", "F32", [32], array.array("f", f).tobytes()))
    p.both("token_embd", [288, 256], "model.embed_tokens.weight", spread=1)
    p.both("output", [288, 256], "lm_head.weight")
    p.both("output.bias", [288], "lm_head.bias", "F32", 0.3)
    layer_norm(p, "output_norm", 256, "model.norm", True)
    for i in range(2):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, bias=True)
        for g, name in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
            p.both(b + g + ".bias", [256], h + name + ".bias", "F32", 0.1)
        p.both(b + "attn_output.bias", [256], h + "self_attn.o_proj.bias", "F32", 0.3)
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
    return p


def qwen3next(fmt, seed=12, old=False):
    """Three of four layers are DeltaNet. Norms are stored with the 1 that the published ones omit, decay rates precomputed. old: all of
    DeltaNet's inputs except b and a in one tensor, as published."""
    p = Pair("qwen3next", fmt, seed)
    hidden, kh, vh, dim, taps = 256, 2, 4, 32, 4
    usual(p, layers=4)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512,
          expert_feed_forward_length=256, expert_shared_feed_forward_length=256, rope__dimension_count=16, rope__freq_base=1e6, ssm__conv_kernel=taps,
          ssm__state_size=dim, ssm__group_count=kh, ssm__time_step_rank=vh, ssm__inner_size=vh * dim, full_attention_interval=4)
    p.config.update(model_type="qwen3_next", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512, moe_intermediate_size=256,
                    shared_expert_intermediate_size=256, num_experts=4, norm_topk_prob=True, rope_theta=1e6, partial_rotary_factor=0.25,
                    full_attention_interval=4, linear_conv_kernel_dim=taps, linear_key_head_dim=dim, linear_value_head_dim=dim, linear_num_key_heads=kh,
                    linear_num_value_heads=vh)
    for i in range(4):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        if i == 3:
            gqa(p, i, hidden, 4, 2, 64, qk_norm=True, ffn_norm="post_attention_norm", gated=True)
        else:
            p.norm(b + "attn_norm", hidden, h + "input_layernorm.weight")
            p.norm(b + "post_attention_norm", hidden, h + "post_attention_layernorm.weight")
            la = h + "linear_attn."
            p.both(b + "ssm_ba", [2 * vh, hidden], la + "in_proj_ba.weight")
            p.both(b + "ssm_conv1d", [(2 * kh + vh) * dim, taps], la + "conv1d.weight", "F32", 0.5)
            p.hf[la + "conv1d.weight"] = ([(2 * kh + vh) * dim, 1, taps], p.hf[la + "conv1d.weight"][1])
            log = array.array("f", [p.rng.uniform(0, 2) for _ in range(vh)])
            p.hf[la + "A_log"] = ([vh], log)
            p.gguf.append((b + "ssm_a", "F32", [vh], array.array("f", [-math.exp(x) for x in log]).tobytes()))
            p.both(b + "ssm_dt.bias", [vh], la + "dt_bias", "F32", 0.5)
            p.norm(b + "ssm_norm", dim, la + "norm.weight")
            p.both(b + "ssm_out", [hidden, vh * dim], la + "out_proj.weight")
            share = vh // kh * dim
            group = 2 * dim + 2 * share
            p.both(b + "ssm_in", [kh * group, hidden], la + "in_proj_qkvz.weight")
            if not old:  # rows grouped by head, to all heads' q, then k, v; and z
                _, fmt_in, _, raw = p.gguf.pop()
                size = len(raw) // (kh * group)
                pick = lambda lo, n: [k * group + r for k in range(kh) for r in range(lo, lo + n)]
                for name, rows in (("attn_qkv", pick(0, dim) + pick(dim, dim) + pick(2 * dim, share)), ("attn_gate", pick(2 * dim + share, share))):
                    p.gguf.append((f"{b}{name}.weight", fmt_in, [len(rows), hidden], b"".join(raw[r * size : (r + 1) * size] for r in rows)))
        experts(p, i, hidden, 256, 4, "mlp.experts.{}.")
        dense(p, i, hidden, 256, "mlp.shared_expert", "_shexp")
        p.both(f"{b}ffn_gate_inp_shexp", [hidden], h + "mlp.shared_expert_gate.weight", "F32")
        p.hf[h + "mlp.shared_expert_gate.weight"] = ([1, hidden], p.hf[h + "mlp.shared_expert_gate.weight"][1])
    for name, (shape, f) in p.hf.items():
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            p.hf[name] = (shape, array.array("f", [x - 1 for x in f]))
    return p


HEADS = dict(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=512)


def without_experts(arch, fmt, seed, layers=2, tied=False, norms=("attn_norm", "input_layernorm", "ffn_norm", "post_attention_layernorm"), shift=0, **gqa_options):
    """A dense model. norms: pairs of names in both formats. shift: what GGUF's norm weights have more than the published ones."""
    p = Pair(arch, fmt, seed)
    p.key(block_count=layers, context_length=512, embedding_length=256, attention__layer_norm_rms_epsilon=1e-6, **HEADS)
    p.config.update(model_type=arch, vocab_size=288, hidden_size=256, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, intermediate_size=512,
                    tie_word_embeddings=tied)
    p.both("token_embd", [288, 256], "model.embed_tokens.weight", spread=1 / 16 if tied else 1)
    if not tied:
        p.both("output", [288, 256], "lm_head.weight")
    p.norm("output_norm", 256, "model.norm.weight")
    for i in range(layers):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, **gqa_options)
        for name in ("attn_norm", "ffn_norm"):  # which gqa has added
            p.gguf = [t for t in p.gguf if t[0] != f"{b}{name}.weight"]
        for name in ("input_layernorm", "post_attention_layernorm"):
            p.hf.pop(f"{h}{name}.weight")
        for name, hf in zip(norms[::2], norms[1::2]):
            p.norm(b + name, 256, f"{h}{hf}.weight")
        dense(p, i, 256, 512, "mlp")
    for name, (shape, f) in p.hf.items():
        if shift and name.endswith("norm.weight"):
            p.hf[name] = (shape, array.array("f", [x - shift for x in f]))
    return p


def gate_and_up(p, layers):
    """Both halves in one tensor, named ffn_up in GGUF."""
    of = {t[0]: t for t in p.gguf}
    for i in range(layers):
        gate, up = of[f"blk.{i}.ffn_gate.weight"], of[f"blk.{i}.ffn_up.weight"]
        p.gguf = [t for t in p.gguf if t not in (gate, up)] + [(up[0], up[1], [2 * up[2][0], up[2][1]], gate[3] + up[3])]
        h = f"model.layers.{i}.mlp."
        (shape, g), (_, u) = p.hf.pop(h + "gate_proj.weight"), p.hf.pop(h + "up_proj.weight")
        p.hf[h + "gate_up_proj.weight"] = ([2 * shape[0], shape[1]], g + u)
    return p


def llama_dense(fmt):
    p = without_experts("llama", fmt, 21, permute=True)
    p.key(rope__freq_base=5e5, rope__dimension_count=64, vocab_size=288)
    p.config.update(rope_theta=5e5)
    return p


def qwen2(fmt):
    p = without_experts("qwen2", fmt, 22, tied=True, bias=True)
    p.key(rope__freq_base=1e6)
    p.config.update(rope_theta=1e6)
    return p


def qwen3(fmt):
    p = without_experts("qwen3", fmt, 23, qk_norm=True)
    p.key(rope__freq_base=1e6, attention__key_length=64, attention__value_length=64)
    p.config.update(rope_theta=1e6, head_dim=64)
    return p


AROUND = ("attn_norm", "input_layernorm", "post_attention_norm", "post_attention_layernorm", "ffn_norm", "pre_feedforward_layernorm", "post_ffw_norm",
          "post_feedforward_layernorm")


def gemma2(fmt):
    p = without_experts("gemma2", fmt, 24, tied=True, norms=AROUND, shift=1)
    p.key(attention__key_length=64, attention__value_length=64, attention__sliding_window=16, attn_logit_softcapping=2.0, final_logit_softcapping=30.0)
    p.config.update(head_dim=64, sliding_window=16, attn_logit_softcapping=2.0, final_logit_softcapping=30.0, query_pre_attn_scalar=64,
                    hidden_act="gelu_pytorch_tanh")
    return p


def gemma3(fmt):
    p = without_experts("gemma3", fmt, 25, layers=7, tied=True, norms=AROUND, shift=1, qk_norm=True)
    p.key(attention__key_length=64, attention__value_length=64, attention__sliding_window=16, rope__freq_base=1e6, rope__scaling__type="linear",
          rope__scaling__factor=8.0)
    p.config.update(model_type="gemma3_text", head_dim=64, sliding_window=16, rope_theta=1e6, rope_scaling={"rope_type": "linear", "factor": 8.0},
                    query_pre_attn_scalar=64, hidden_activation="gelu_pytorch_tanh")
    p.leaves_out.append("hidden_act")
    return p


def phi3(fmt):
    p = gate_and_up(without_experts("phi3", fmt, 26), 2)
    p.key(rope__freq_base=1e4, rope__dimension_count=48, attention__sliding_window=16)
    p.config.update(rope_theta=1e4, partial_rotary_factor=0.75, sliding_window=16)
    of = {t[0]: t for t in p.gguf}
    for i in range(2):
        parts = [of[f"blk.{i}.attn_{g}.weight"] for g in "qkv"]
        p.gguf = [t for t in p.gguf if t not in parts]
        p.gguf.append((f"blk.{i}.attn_qkv.weight", parts[0][1], [512, 256], b"".join(t[3] for t in parts)))
        h = f"model.layers.{i}.self_attn."
        p.hf[h + "qkv_proj.weight"] = ([512, 256], sum((p.hf.pop(f"{h}{g}_proj.weight")[1] for g in "qkv"), array.array("f")))
    return p


def smollm3(fmt):
    p = without_experts("smollm3", fmt, 27, layers=5, tied=True, permute=True)
    p.key(rope__freq_base=5e6, rope__dimension_count=64)
    p.config.update(rope_theta=5e6)
    return p


def glm4(fmt):
    norms = ("attn_norm", "input_layernorm", "post_attention_norm", "post_self_attn_layernorm", "ffn_norm", "post_attention_layernorm", "post_ffw_norm",
             "post_mlp_layernorm")
    p = gate_and_up(without_experts("glm4", fmt, 28, norms=norms, bias=True), 2)
    p.key(rope__freq_base=1e4, rope__dimension_count=32)
    p.config.update(rope_theta=1e4, attention_bias=True, partial_rotary_factor=0.5)
    return p


def olmo2(fmt):
    norms = ("post_attention_norm", "post_attention_layernorm", "post_ffw_norm", "post_feedforward_layernorm")
    p = without_experts("olmo2", fmt, 29, norms=norms)
    p.key(rope__freq_base=5e5)
    p.config.update(rope_theta=5e5)
    for i in range(2):
        p.norm(f"blk.{i}.attn_q_norm", 256, f"model.layers.{i}.self_attn.q_norm.weight")
        p.norm(f"blk.{i}.attn_k_norm", 128, f"model.layers.{i}.self_attn.k_norm.weight")
    return p


def seed_oss(fmt):
    p = without_experts("seed_oss", fmt, 30, bias=True, norms=("attn_norm", "input_layernorm", "post_attention_norm", "post_attention_layernorm"))
    p.key(rope__freq_base=1e7, attention__key_length=64, attention__value_length=64)
    p.config.update(rope_theta=1e7, head_dim=64, attention_bias=True)
    return p


def granite(fmt):
    p = without_experts("granite", fmt, 31, tied=True, permute=True)
    p.key(rope__freq_base=1e7, rope__dimension_count=64, attention__scale=0.02, embedding_scale=12.0, residual_scale=0.22, logit_scale=8.0)
    p.config.update(rope_theta=1e7, attention_multiplier=0.02, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0)
    return p


def olmoe(fmt):
    p = Pair("olmoe", fmt, 41)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=4, feed_forward_length=256, rope__freq_base=1e4)
    p.config.update(model_type="olmoe", num_attention_heads=4, num_key_value_heads=4, intermediate_size=256, num_experts=4, norm_topk_prob=False, rope_theta=1e4)
    for i in range(2):
        gqa(p, i, 256, 4, 4, 64)
        p.norm(f"blk.{i}.attn_q_norm", 256, f"model.layers.{i}.self_attn.q_norm.weight")
        p.norm(f"blk.{i}.attn_k_norm", 256, f"model.layers.{i}.self_attn.k_norm.weight")
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
    return p


def granitemoe(fmt, shared=False):
    """In safetensors gate and up are one tensor."""
    p = Pair("granitemoe", fmt, 42)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=256, rope__freq_base=1e4, rope__dimension_count=64, attention__scale=0.02,
          embedding_scale=12.0, residual_scale=0.22, logit_scale=6.0)
    p.config.update(model_type="granitemoe", num_attention_heads=4, num_key_value_heads=2, intermediate_size=256, num_local_experts=4, rope_theta=1e4,
                    attention_multiplier=0.02, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=6.0)
    if shared:
        p.key(expert_shared_feed_forward_length=512)
        p.config.update(model_type="granitemoeshared", shared_intermediate_size=512)
    for i in range(2):
        h = f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, permute=True)
        experts(p, i, 256, 256, 4, "experts.{}.", router="block_sparse_moe.router.layer.weight")
        parts = {g: [p.hf.pop(f"{h}experts.{k}.{g}_proj.weight")[1] for k in range(4)] for g in ("gate", "up", "down")}
        both = sum((g + u for g, u in zip(parts["gate"], parts["up"])), array.array("f"))
        p.hf[h + "block_sparse_moe.input_linear.weight"] = ([4, 512, 256], both)
        p.hf[h + "block_sparse_moe.output_linear.weight"] = ([4, 256, 256], sum(parts["down"], array.array("f")))
        if shared:
            dense(p, i, 256, 512, "shared", "_shexp")
            gate, up, down = (p.hf.pop(f"{h}shared.{g}_proj.weight") for g in ("gate", "up", "down"))
            p.hf[h + "shared_mlp.input_linear.weight"] = ([1024, 256], gate[1] + up[1])
            p.hf[h + "shared_mlp.output_linear.weight"] = down
    return p


def ernie(fmt):
    p = Pair("ernie4_5-moe", fmt, 43)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=2,
          expert_shared_feed_forward_length=512, interleave_moe_layer_step=1, leading_dense_block_count=1, rope__freq_base=5e5, attention__key_length=64,
          attention__value_length=64)
    p.config.update(model_type="ernie4_5_moe", num_attention_heads=4, num_key_value_heads=2, intermediate_size=512, moe_intermediate_size=256, moe_num_experts=4,
                    moe_k=2, moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=1, rope_theta=5e5)
    del p.config["num_experts_per_tok"]
    for i in range(3):
        gqa(p, i, 256, 4, 2, 64)
        if i < 1:
            dense(p, i, 256, 512, "mlp")
            continue
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
        dense(p, i, 256, 512, "mlp.shared_experts", "_shexp")
        p.both(f"blk.{i}.exp_probs_b.bias", [4], f"model.layers.{i}.mlp.moe_statics.e_score_correction_bias", "F32", 0.05)
    return p


def qwen3vlmoe(fmt):
    p = qwen3moe(fmt, 44)
    p.arch = "qwen3vlmoe"
    p.meta = {k.replace("qwen3moe", "qwen3vlmoe"): v.replace("qwen3moe", "qwen3vlmoe") if isinstance(v, str) else v for k, v in p.meta.items()}
    p.key(rope__dimension_sections=[12, 10, 10, 0], n_deepstack_layers=0)
    return p


def hunyuan(fmt):
    p = Pair("hunyuan-moe", fmt, 45)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=256,
          expert_feed_forward_length=256, expert_shared_feed_forward_length=256, expert_shared_count=1, rope__freq_base=1e4 * 1000 ** (64 / 62),
          rope__scaling__type="none", rope__scaling__factor=1.0)
    p.config.update(model_type="hunyuan_v1_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=256, moe_intermediate_size=256,
                    num_experts=4, moe_topk=2, num_shared_expert=1, rope_theta=1e4, rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0})
    del p.config["num_experts_per_tok"]
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64)
        p.norm(f"blk.{i}.attn_q_norm", 64, f"model.layers.{i}.self_attn.query_layernorm.weight")
        p.norm(f"blk.{i}.attn_k_norm", 64, f"model.layers.{i}.self_attn.key_layernorm.weight")
        experts(p, i, 256, 256, 4, "mlp.experts.{}.", router="mlp.gate.wg.weight")
        dense(p, i, 256, 256, "mlp.shared_mlp", "_shexp")
    return p


def dots1(fmt):
    p = Pair("dots1", fmt, 46)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=4, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=2,
          leading_dense_block_count=1, expert_weights_scale=2.5, expert_weights_norm=True, expert_gating_func=2, rope__freq_base=1e7)
    p.config.update(model_type="dots1", num_attention_heads=4, num_key_value_heads=4, intermediate_size=512, moe_intermediate_size=256, n_routed_experts=4,
                    n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, rope_theta=1e7)
    for i in range(3):
        gqa(p, i, 256, 4, 4, 64, qk_norm=True)
        if i < 1:
            dense(p, i, 256, 512, "mlp")
            continue
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
        dense(p, i, 256, 512, "mlp.shared_experts", "_shexp")
        p.both(f"blk.{i}.exp_probs_b.bias", [4], f"model.layers.{i}.mlp.gate.e_score_correction_bias", "F32", 0.05)
    return p


def bailingmoe2(fmt):
    p = Pair("bailingmoe2", fmt, 47)
    usual(p, layers=3, experts=8)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, rope__dimension_count=32,
          rope__freq_base=6e5, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_feed_forward_length=256, expert_shared_count=1,
          leading_dense_block_count=1, expert_weights_scale=2.5, expert_weights_norm=True, expert_gating_func=2, expert_group_count=4, expert_group_used_count=2,
          vocab_size=288)
    p.config.update(model_type="bailing_moe_v2", num_attention_heads=4, num_key_value_heads=2, head_dim=64, partial_rotary_factor=0.5, rope_theta=6e5,
                    intermediate_size=512, moe_intermediate_size=256, num_experts=8, num_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2,
                    routed_scaling_factor=2.5, norm_topk_prob=True, use_qk_norm=True, score_function="sigmoid", moe_router_enable_expert_bias=True)
    p.hf["model.word_embeddings.weight"] = p.hf.pop("model.embed_tokens.weight")
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        p.norm(b + "attn_norm", 256, h + "input_layernorm.weight")
        p.norm(b + "ffn_norm", 256, h + "post_attention_layernorm.weight")
        p.both(b + "attn_qkv", [512, 256], h + "attention.query_key_value.weight")
        p.both(b + "attn_output", [256, 256], h + "attention.dense.weight")
        p.norm(b + "attn_q_norm", 64, h + "attention.query_layernorm.weight")
        p.norm(b + "attn_k_norm", 64, h + "attention.key_layernorm.weight")
        if i < 1:
            dense(p, i, 256, 512, "mlp")
            continue
        experts(p, i, 256, 256, 8, "mlp.experts.{}.")
        dense(p, i, 256, 256, "mlp.shared_experts", "_shexp")
        p.both(b + "exp_probs_b.bias", [8], h + "mlp.gate.expert_bias", "F32", 0.05)
    return p


MODELS = {"olmoe": olmoe, "granitemoe": granitemoe, "granitemoe shared": lambda fmt: granitemoe(fmt, True), "ernie4_5-moe": ernie, "qwen3vlmoe": qwen3vlmoe,
          "hunyuan-moe": hunyuan, "dots1": dots1, "bailingmoe2": bailingmoe2,
          "llama dense": llama_dense, "qwen2": qwen2, "qwen3": qwen3, "gemma2": gemma2, "gemma3": gemma3, "phi3": phi3, "smollm3": smollm3, "glm4": glm4,
          "olmo2": olmo2, "seed_oss": seed_oss, "granite": granite,
          "dbrx": dbrx, "phimoe": phimoe, "qwen3next": qwen3next, "qwen3next old": lambda fmt: qwen3next(fmt, old=True),
          "qwen3moe fused": lambda fmt: qwen3moe(fmt, fused=True), "llama freqs": lambda fmt: llama(fmt, freqs=True), "gpt-oss": gpt_oss, "gpt-oss plain": lambda fmt: gpt_oss(fmt, yarn=False), "glm4moe": glm4moe, "minimax-m2": minimax, "qwen3moe": qwen3moe, "qwen2moe": qwen2moe, "llama": llama, "deepseek2": deepseek2,
          "deepseek2 v2": lambda fmt: deepseek2(fmt, 5, v3=False), "deepseek2 old": lambda fmt: deepseek2(fmt, 6, split=False)}
