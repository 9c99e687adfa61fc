"""A pair of a GGUF file and the same weights as safetensors in float32 under the family's names, and the parts that families share."""
import array
import json
import os
import random
import struct

from gguf_formats import ALIGN, encode, write


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
        parts = 1 if isinstance(hf, str) else len(hf)
        part = n // parts
        if fmt == "NVFP4":  # a factor of each matrix
            factors = array.array("f", [self.rng.uniform(0.5, 2) for _ in range(parts)])
            self.gguf.append((name + ".scale", "F32", [parts], factors.tobytes()))
            f = array.array("f", [x * factors[i // part] for i, x in enumerate(f)])
        if isinstance(hf, str):
            self.hf[hf] = (shape, f)
        else:
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


HEADS = dict(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=512)
