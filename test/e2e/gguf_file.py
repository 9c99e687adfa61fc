"""Makes GGUF files of small random models of each architecture, as a pair: a GGUF file, and the same weights as safetensors in
float32 under the family's names."""
import array
import json
import math
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


def mistral3(fmt):
    """YaRN, and queries scaled by position."""
    p = without_experts("mistral3", fmt, 32, permute=True)
    p.key(rope__freq_base=1e6, rope__dimension_count=64, attention__key_length=64, attention__value_length=64, rope__scaling__type="yarn",
          rope__scaling__factor=4.0, rope__scaling__original_context_length=16, rope__scaling__yarn_beta_fast=32.0, rope__scaling__yarn_beta_slow=1.0,
          rope__scaling__yarn_log_multiplier=1.0, attention__temperature_scale=0.1)
    p.config.update(model_type="ministral3", head_dim=64,
                    rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
                                     "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1})
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


def kimi_linear(fmt, seed=31):
    """Kimi delta attention in layers without KV heads, with precomputed decay rates; MLA without rotation in the last one."""
    p = Pair("kimi-linear", fmt, seed)
    hidden, heads, dim, taps, nope, rope, v, latent = 256, 4, 32, 4, 32, 16, 32, 256
    usual(p, layers=3)
    p.key(attention__head_count=heads, attention__head_count_kv=[0, 0, 1], attention__kv_lora_rank=latent, attention__key_length=latent + rope,
          attention__value_length=latent, attention__key_length_mla=nope + rope, attention__value_length_mla=v, rope__dimension_count=rope,
          rope__freq_base=1e4, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=1, leading_dense_block_count=1,
          expert_weights_scale=2.0, expert_weights_norm=True, expert_gating_func=2, kda__head_dim=dim, ssm__conv_kernel=taps)
    p.config.update(model_type="kimi_linear", model_max_length=512, num_attention_heads=heads, num_key_value_heads=heads, kv_lora_rank=latent,
                    qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=v, mla_use_nope=True, intermediate_size=512, moe_intermediate_size=256,
                    num_experts=4, num_experts_per_token=2, num_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.0,
                    moe_renormalize=True, moe_router_activation_func="sigmoid",
                    linear_attn_config={"kda_layers": [1, 2], "full_attn_layers": [3], "num_heads": heads, "head_dim": dim, "short_conv_kernel_size": taps})
    p.leaves_out = ["num_experts_per_tok", "max_position_embeddings"]
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        s = h + "self_attn."
        p.norm(b + "attn_norm", hidden, h + "input_layernorm.weight")
        p.norm(b + "ffn_norm", hidden, h + "post_attention_layernorm.weight")
        if i < 2:
            kda(p, b, s, hidden, heads, dim, taps)
        else:
            p.both(b + "attn_q", [heads * (nope + rope), hidden], s + "q_proj.weight")
            p.both(b + "attn_kv_a_mqa", [latent + rope, hidden], s + "kv_a_proj_with_mqa.weight")
            p.norm(b + "attn_kv_a_norm", latent, s + "kv_a_layernorm.weight")
            p.both(b + "attn_kv_b", [heads * (nope + v), latent], s + "kv_b_proj.weight")
            p.both(b + "attn_output", [hidden, heads * v], s + "o_proj.weight")
        if i < 1:
            dense(p, i, hidden, 512, "mlp")
        else:
            experts(p, i, hidden, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
            dense(p, i, hidden, 256, "block_sparse_moe.shared_experts", "_shexp")
            p.both(b + "exp_probs_b.bias", [4], h + "block_sparse_moe.gate.e_score_correction_bias", "F32", 0.05)
    return p


def kda(p, b, s, hidden, heads, dim, taps):
    """A layer's Kimi delta attention: b, s are the prefixes of its names."""
    width = heads * dim
    for g in "qkv":
        p.both(f"{b}attn_{g}", [width, hidden], f"{s}{g}_proj.weight")
        p.both(f"{b}ssm_conv1d_{g}", [1, width, 1, taps], f"{s}{g}_conv1d.weight", "F32", 0.5)
        p.hf[f"{s}{g}_conv1d.weight"] = ([width, 1, taps], p.hf[f"{s}{g}_conv1d.weight"][1])
    for g in "fg":
        p.both(f"{b}ssm_{g}_a", [dim, hidden], f"{s}{g}_a_proj.weight")
        p.both(f"{b}ssm_{g}_b", [width, dim], f"{s}{g}_b_proj.weight")
    p.both(b + "ssm_beta", [heads, hidden], s + "b_proj.weight")
    log = array.array("f", [p.rng.uniform(0, 2) for _ in range(heads)])
    p.hf[s + "A_log"] = ([1, 1, heads, 1], log)
    p.gguf.append((b + "ssm_a", "F32", [1, 1, heads, 1], array.array("f", [-math.exp(x) for x in log]).tobytes()))
    p.both(b + "ssm_dt.bias", [width], s + "dt_bias", "F32", 0.5)
    p.norm(b + "ssm_norm", dim, s + "o_norm.weight")
    p.both(b + "attn_output", [hidden, width], s + "o_proj.weight")


MODELS = {"olmoe": olmoe, "kimi-linear": kimi_linear, "granitemoe": granitemoe, "granitemoe shared": lambda fmt: granitemoe(fmt, True), "ernie4_5-moe": ernie, "qwen3vlmoe": qwen3vlmoe,
          "hunyuan-moe": hunyuan, "dots1": dots1, "bailingmoe2": bailingmoe2,
          "llama dense": llama_dense, "qwen2": qwen2, "qwen3": qwen3, "gemma2": gemma2, "gemma3": gemma3, "phi3": phi3, "smollm3": smollm3, "glm4": glm4,
          "olmo2": olmo2, "seed_oss": seed_oss, "granite": granite, "mistral3": mistral3,
          "dbrx": dbrx, "phimoe": phimoe, "qwen3next": qwen3next, "qwen3next old": lambda fmt: qwen3next(fmt, old=True),
          "qwen3moe fused": lambda fmt: qwen3moe(fmt, fused=True), "llama freqs": lambda fmt: llama(fmt, freqs=True), "gpt-oss": gpt_oss, "gpt-oss plain": lambda fmt: gpt_oss(fmt, yarn=False), "glm4moe": glm4moe, "minimax-m2": minimax, "qwen3moe": qwen3moe, "qwen2moe": qwen2moe, "llama": llama, "deepseek2": deepseek2,
          "deepseek2 v2": lambda fmt: deepseek2(fmt, 5, v3=False), "deepseek2 old": lambda fmt: deepseek2(fmt, 6, split=False)}
