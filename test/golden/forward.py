"""The forward pass of DeepSeek-V3 and Qwen3-MoE in plain Python, float64, token by token, as the papers write it: nothing is
batched, absorbed, split or quantised except the weights. Opens a checkpoint of a few hundred thousand numbers in a
second; supports only the formats that small checkpoints use (F32, BF16, E4M3 in blocks of 128 x 128, scales F32 or BF16)."""
import array
import json
import math
import os
import struct
from operator import mul


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    value = math.ldexp(mantissa, -9) if not exponent else math.ldexp(8 + mantissa, exponent - 10)
    return -value if code & 0x80 else value


E4M3 = [e4m3(c) for c in range(256)]


def dot(a, b):
    return sum(map(mul, a, b))


def silu(x):
    return x / (1 + math.exp(-x))


class Checkpoint:
    """Returns {name: vector or list of rows}, in float64 (Python's own numbers)."""

    def __init__(self, directory):
        self.raw = {}
        for file in sorted(os.listdir(directory)):
            if file.endswith(".safetensors"):
                with open(os.path.join(directory, file), "rb") as f:
                    data = f.read()
                n = struct.unpack("<Q", data[:8])[0]
                for name, t in json.loads(data[8:8 + n]).items():
                    if name != "__metadata__":
                        a, b = t["data_offsets"]
                        self.raw[name] = t["dtype"], t["shape"], data[8 + n + a:8 + n + b]

    def numbers(self, name):
        dtype, shape, data = self.raw[name]
        if dtype == "F32":
            return list(array.array("f", data)), shape
        if dtype == "BF16":
            return list(array.array("f", b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))), shape
        assert dtype == "F8_E4M3", dtype
        flat = [E4M3[c] for c in data]
        scales, (_, across) = self.numbers(name + "_scale_inv")
        rows, cols = shape
        for i in range(rows):
            for j in range(cols):
                flat[i * cols + j] *= scales[i // 128 * across + j // 128]
        return flat, shape

    def has(self, name):
        return name in self.raw

    def vector(self, name):
        return self.numbers(name)[0]

    def matrix(self, name):
        flat, (rows, cols) = self.numbers(name + ".weight")
        return [flat[i * cols:(i + 1) * cols] for i in range(rows)]


class Layer:
    pass


class Model:
    """step(token) appends one token and returns its logits."""

    def __init__(self, directory):
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
            self.c = c = json.load(f)
        w = Checkpoint(directory)
        self.mla = c["model_type"] in ("deepseek_v3", "kimi_k2")
        self.embed, self.head, self.norm = w.matrix("model.embed_tokens"), w.matrix("lm_head"), w.vector("model.norm.weight")
        self.heads = c["num_attention_heads"]
        if self.mla:
            self.nope, self.rope, self.v_dim, self.latent = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
            self.scale = (self.nope + self.rope) ** -0.5
        else:
            self.rope = c["head_dim"]
            self.scale = self.rope ** -0.5
        self.frequencies(c.get("rope_scaling"))
        self.layers = []
        for i in range(c["num_hidden_layers"]):
            p, y = f"model.layers.{i}.", Layer()
            y.keys, y.values = [], []  # [position][head]
            y.norm, y.ffn_norm = w.vector(p + "input_layernorm.weight"), w.vector(p + "post_attention_layernorm.weight")
            names = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj") if self.mla else ("q_proj", "k_proj", "v_proj", "o_proj")
            for name in names:
                setattr(y, name, w.matrix(p + "self_attn." + name))
            for name in ("q_a_layernorm", "kv_a_layernorm") if self.mla else ("q_norm", "k_norm"):
                setattr(y, name, w.vector(p + f"self_attn.{name}.weight"))
            y.router = w.matrix(p + "mlp.gate") if w.has(p + "mlp.gate.weight") else None
            ffn = lambda at: [w.matrix(at + name) for name in (".gate_proj", ".up_proj", ".down_proj")]
            if y.router:
                y.experts = [ffn(p + f"mlp.experts.{k}") for k in range(len(y.router))]
                y.bias = w.vector(p + "mlp.gate.e_score_correction_bias") if self.mla else None
                y.shared = ffn(p + "mlp.shared_experts") if self.mla else None
            else:
                y.dense = ffn(p + "mlp")
            self.layers.append(y)
        self.n = 0

    def frequencies(self, scaling):
        c, half = self.c, self.rope // 2
        theta = c["rope_theta"]
        self.inv, self.turn = [theta ** (-2 * j / self.rope) for j in range(half)], 1.0
        if not scaling:
            return
        assert scaling.get("type", scaling.get("rope_type")) == "yarn", scaling
        factor = scaling["factor"]
        edge = lambda rotations: self.rope * math.log(scaling["original_max_position_embeddings"] / (rotations * 2 * math.pi)) / (2 * math.log(theta))
        low, high = max(math.floor(edge(scaling["beta_fast"])), 0), min(math.ceil(edge(scaling["beta_slow"])), self.rope - 1)
        high += 0.001 * (low == high)
        for j in range(half):
            ramp = min(max((j - low) / (high - low), 0), 1)
            self.inv[j] *= (1 - ramp) + ramp / factor
        m = lambda x: 0.1 * x * math.log(factor) + 1
        self.turn = m(scaling["mscale"]) / m(scaling["mscale_all_dim"])
        self.scale *= m(scaling["mscale_all_dim"]) ** 2

    def rms(self, x, weight):
        r = 1 / math.sqrt(dot(x, x) / len(x) + self.c["rms_norm_eps"])
        return [a * r * b for a, b in zip(x, weight)]

    def turned(self, x):
        """DeepSeek rotates adjacent elements, Qwen an element of the first half with its partner in the second."""
        out, half = list(x), self.rope // 2
        for j, f in enumerate(self.inv):
            a, b = (2 * j, 2 * j + 1) if self.mla else (j, j + half)
            cos, sin = math.cos(self.n * f) * self.turn, math.sin(self.n * f) * self.turn
            out[a], out[b] = x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin
        return out

    def cut(self, x, size):
        return [x[i:i + size] for i in range(0, len(x), size)]

    def attention(self, y, x):
        times = lambda m, v: [dot(row, v) for row in m]
        if self.mla:
            q = self.cut(times(y.q_b_proj, self.rms(times(y.q_a_proj, x), y.q_a_layernorm)), self.nope + self.rope)
            q = [h[:self.nope] + self.turned(h[self.nope:]) for h in q]
            kv = times(y.kv_a_proj_with_mqa, x)
            key = self.turned(kv[self.latent:])
            kv = self.cut(times(y.kv_b_proj, self.rms(kv[:self.latent], y.kv_a_layernorm)), self.nope + self.v_dim)
            y.keys.append([h[:self.nope] + key for h in kv])
            y.values.append([h[self.nope:] for h in kv])
        else:
            q = [self.turned(self.rms(h, y.q_norm)) for h in self.cut(times(y.q_proj, x), self.rope)]
            y.keys.append([self.turned(self.rms(h, y.k_norm)) for h in self.cut(times(y.k_proj, x), self.rope)])
            y.values.append(self.cut(times(y.v_proj, x), self.rope))
        out, share = [], self.heads // len(y.keys[0])
        for h, query in enumerate(q):
            scores = [dot(query, k[h // share]) * self.scale for k in y.keys]
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            total = sum(weights)
            out += [dot(weights, column) / total for column in zip(*(v[h // share] for v in y.values))]
        return times(y.o_proj, out)

    def ffn(self, m, x):
        gate, up, down = m
        inner = [silu(dot(g, x)) * dot(u, x) for g, u in zip(gate, up)]
        return [dot(row, inner) for row in down]

    def routed(self, y, x):
        c, logits = self.c, [dot(row, x) for row in y.router]
        if self.mla:
            scores = [1 / (1 + math.exp(-v)) for v in logits]
            biased = [s + b for s, b in zip(scores, y.bias)]
            size = len(scores) // c["n_group"]
            best = sorted(range(c["n_group"]), key=lambda g: -sum(sorted(biased[g * size:(g + 1) * size])[-2:]))[:c["topk_group"]]
            allowed = [i for i in range(len(scores)) if i // size in best]
            chosen = sorted(allowed, key=lambda i: -biased[i])[:c["num_experts_per_tok"]]
        else:
            top = max(logits)
            total = sum(math.exp(v - top) for v in logits)
            scores = [math.exp(v - top) / total for v in logits]
            chosen = sorted(range(len(scores)), key=lambda i: -scores[i])[:c["num_experts_per_tok"]]
        norm = sum(scores[i] for i in chosen) if c["norm_topk_prob"] else 1
        out = self.ffn(y.shared, x) if self.mla else [0.0] * len(x)
        for i in chosen:
            weight = scores[i] / norm * c.get("routed_scaling_factor", 1)
            out = [a + weight * b for a, b in zip(out, self.ffn(y.experts[i], x))]
        return out

    def step(self, token):
        x = self.embed[token]
        for y in self.layers:
            x = list(map(sum, zip(x, self.attention(y, self.rms(x, y.norm)))))
            h = self.rms(x, y.ffn_norm)
            x = list(map(sum, zip(x, self.routed(y, h) if y.router else self.ffn(y.dense, h))))
        self.n += 1
        x = self.rms(x, self.norm)
        return [dot(row, x) for row in self.head]
