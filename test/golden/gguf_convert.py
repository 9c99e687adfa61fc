"""Converts a checkpoint in safetensors to GGUF in float32, as llama.cpp's conversion scripts do: names, metadata, and the few weights
that they change. Standard library only; for small checkpoints."""
import array
import glob
import json
import math
import os
import re
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import gguf_file  # noqa: E402
import gguf_formats  # noqa: E402


class Tensor:
    """Values in float32, rows first."""

    def __init__(self, shape, values):
        self.shape, self.values = list(shape), values if isinstance(values, array.array) else array.array("f", values)

    def map(self, f):
        return Tensor(self.shape, [f(x) for x in self.values])

    def shaped(self, *shape):
        return Tensor(shape, self.values)

    def rows(self, order):
        """The rows (all dimensions but the first together) in another order."""
        n = len(self.values) // self.shape[0]
        out = array.array("f")
        for r in order:
            out.extend(self.values[r * n : (r + 1) * n])
        return Tensor([len(order), *self.shape[1:]], out)

    def columns(self, order):
        return self.turned().rows(order).turned()

    def turned(self):
        rows, cols = self.shape
        out = array.array("f")
        for c in range(cols):
            out.extend(self.values[c::cols])
        return Tensor([cols, rows], out)

    def parts(self, *sizes):
        """Slices of the first dimension."""
        at, out = 0, []
        for n in sizes:
            out.append(self.rows(range(at, at + n)))
            at += n
        return out

    def each(self, f):
        """f of every matrix of a stack."""
        n, size = self.shape[0], len(self.values) // self.shape[0]
        return stack([f(Tensor(self.shape[1:], self.values[i * size : (i + 1) * size])) for i in range(n)])


def stack(tensors):
    out = array.array("f")
    for t in tensors:
        out.extend(t.values)
    return Tensor([len(tensors), *tensors[0].shape], out)


# --- Reading safetensors ---

def e4m3(byte):
    sign, exp, frac = -1 if byte & 128 else 1, byte >> 3 & 15, byte & 7
    return sign * (frac * 2.0**-9 if not exp else (8 + frac) * 2.0 ** (exp - 10))


I32 = 26  # the number of that type
E4M3 = [struct.pack("<f", e4m3(b)) for b in range(256)]


FP4 = [struct.pack("<f", x) for x in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)]  # two numbers a byte, the lower half first


def floats(dtype, raw):
    if dtype == "F8_E8M0":
        return array.array("f", [2.0 ** (b - 127) for b in raw])
    if dtype == "I8":
        return array.array("f", b"".join(FP4[b & 15] + FP4[b >> 4] for b in raw))
    if dtype in ("I32", "I64"):
        return array.array("i" if dtype == "I32" else "q", raw)
    out = bytearray(len(raw) * {"F32": 1, "BF16": 2, "F8_E4M3": 4}[dtype])
    if dtype == "F32":
        out[:] = raw
    elif dtype == "BF16":
        out[2::4], out[3::4] = raw[0::2], raw[1::2]
    else:
        for k in range(4):
            out[k::4] = raw.translate(bytes(f[k] for f in E4M3))
    return array.array("f", bytes(out))


def scaled(t, scale):
    """Multiplies by a scale per 128 x 128 block, per matrix of a stack, or for all."""
    if len(scale.values) == 1:
        return t.map(lambda x: x * scale.values[0])
    if len(t.shape) == 3:
        n = len(t.values) // t.shape[0]
        return Tensor(t.shape, [x * scale.values[i // n] for i, x in enumerate(t.values)])
    cols, across = t.shape[1], scale.shape[1]
    if scale.shape[0] == t.shape[0] and cols == across * 32:  # per 32 numbers of a row
        return Tensor(t.shape, [x * scale.values[i // 32] for i, x in enumerate(t.values)])
    return Tensor(t.shape, [x * scale.values[i // cols // 128 * across + i % cols // 128] for i, x in enumerate(t.values)])


def read(directory):
    tensors = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        with open(path, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            base = f.tell()
            for name, t in header.items():
                if name.endswith((".weight_packed", ".weight_scale")) and t["dtype"] == "U8":  # MXFP4 of compressed-tensors
                    t["dtype"] = "I8" if name.endswith("_packed") else "F8_E8M0"
                    name = name.replace("_packed", "").replace(".weight_scale", ".scale")
                if name == "__metadata__" or t["dtype"] not in ("F32", "BF16", "F8_E4M3", "F8_E8M0", "I8", "I32", "I64"):
                    continue
                f.seek(base + t["data_offsets"][0])
                shape = t["shape"][:-1] + [t["shape"][-1] * 2] if t["dtype"] == "I8" else t["shape"]
                tensors[name] = Tensor(shape, floats(t["dtype"], f.read(t["data_offsets"][1] - t["data_offsets"][0])))
    for name in [n for n in tensors if n.endswith(("scale_inv", ".scale")) and re.sub(r"_scale_inv$", "", n.replace(".scale", ".weight")) in tensors]:
        of = re.sub(r"_scale_inv$", "", name.replace(".scale", ".weight"))
        tensors[of] = scaled(tensors[of], tensors.pop(name))
    return {n: t for n, t in tensors.items() if not n.endswith("activation_scale")}


# --- Writing ---

class Model:
    def __init__(self, directory, arch, prefix="model."):
        with open(os.path.join(directory, "config.json")) as f:
            config = json.load(f)
        self.config, self.arch = {**config, **config.get("text_config", {})}, arch
        self.source = {n[len(prefix):] if n.startswith(prefix) else n: t for n, t in read(directory).items()}
        self.layers, self.out = self.config["num_hidden_layers"], []
        self.meta = {"general.architecture": arch, "general.alignment": gguf_formats.ALIGN}
        c = self.config
        self.key(block_count=self.layers, context_length=c["max_position_embeddings"], embedding_length=c["hidden_size"],
                 attention__head_count=c["num_attention_heads"], attention__layer_norm_rms_epsilon=self.first("rms_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "layer_norm_eps"))

    def first(self, *keys):
        return next(self.config[k] for k in keys if k in self.config)

    def key(self, **keys):
        for k, v in keys.items():
            self.meta[f"{self.arch}.{k.replace('__', '.')}"] = v

    def keys_of(self, **keys):
        """Metadata keys with the names of their values in config.json."""
        self.key(**{k: self.config[v] for k, v in keys.items()})

    def put(self, name, tensor):
        whole = name.endswith((".weight", ".bias", ".scale", "ssm_a", "ssm_d", "exp_probs_b"))
        self.out.append((name if whole else name + ".weight", tensor))

    def take(self, name):
        return self.source.pop(name)

    def copy(self, name, source):
        if source in self.source:
            self.put(name, self.take(source))

    def each_layer(self, **names):
        """Tensors that need no change: GGUF's name without the layer, and the published one. Layers may lack them."""
        for i in range(self.layers):
            for name, source in names.items():
                name = name.replace("__", ".")
                suffix = "" if source.endswith(("bias", ".D", "scale", "scalar")) else ".weight"
                self.copy(f"blk.{i}.{name}", f"layers.{i}.{source}{suffix}")

    def experts(self, pattern, names=("gate_proj", "up_proj", "down_proj"), ends=("gate", "up", "down")):
        """Experts that are published one by one."""
        for i in range(self.layers):
            for name, end in zip(names, ends):
                found = [pattern.format(i, k, name) for k in range(4096) if pattern.format(i, k, name) in self.source]
                if found:
                    self.put(f"blk.{i}.ffn_{end}_exps", stack([self.take(f) for f in found]))

    def attention(self, name="self_attn", **more):
        self.each_layer(attn_norm="input_layernorm", **{"attn_" + g: f"{name}.{g}_proj" for g in "qkv"}, attn_output=name + ".o_proj",
                        attn_q_norm=name + ".q_norm", attn_k_norm=name + ".k_norm", **more)

    def dense(self, mlp="mlp", end=""):
        self.each_layer(**{f"ffn_{g}{end}": f"{mlp}.{g}_proj" for g in ("gate", "up", "down")})

    def ends(self, embed="embed_tokens", norm="norm", head="lm_head", final="output_norm"):
        self.copy("token_embd", embed + ".weight")
        self.copy(final, norm + ".weight")
        if not self.config.get("tie_word_embeddings"):
            self.copy("output", head + ".weight")

    def mamba(self, mixer, groups):
        self.each_layer(ssm_in=mixer + ".in_proj", ssm_conv1d__bias=mixer + ".conv1d.bias", ssm_dt__bias=mixer + ".dt_bias", ssm_out=mixer + ".out_proj")
        for i in range(self.layers):
            s = f"layers.{i}.{mixer}."
            if s + "A_log" not in self.source:
                continue
            conv, norm, rate = self.take(s + "conv1d.weight"), self.take(s + "norm.weight"), self.take(s + "A_log")
            self.put(f"blk.{i}.ssm_conv1d", conv.shaped(conv.shape[0], conv.shape[2]))
            self.put(f"blk.{i}.ssm_norm", norm.shaped(groups, norm.shape[0] // groups))
            self.put(f"blk.{i}.ssm_a", rate.map(lambda x: -math.exp(x)).shaped(rate.shape[0], 1))
            self.put(f"blk.{i}.ssm_d", self.take(s + "D").shaped(rate.shape[0], 1))

    def save(self, path):
        tokens, kinds, merges = gguf_file.vocabulary(self.config["vocab_size"])
        self.meta.update({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
                          "tokenizer.ggml.merges": merges, "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"), "tokenizer.ggml.add_bos_token": False})
        gguf_formats.write(path, self.meta, [(n, "F32" if t.values.typecode == "f" else I32, t.shape, t.values.tobytes()) for n, t in self.out])


def adjacent(heads, dim):
    """llama.cpp's order of rows: both numbers of a rotated pair are neighbours."""
    return [h * dim + j // 2 + j % 2 * (dim // 2) for h in range(heads) for j in range(dim)]


def llama3_factors(c, base, dim):
    out = []
    low, high = c["original_max_position_embeddings"] / c["low_freq_factor"], c["original_max_position_embeddings"] / c["high_freq_factor"]
    for j in range(dim // 2):
        wave = 2 * math.pi * base ** (2 * j / dim)
        if low == high or wave < high or wave > low:
            out.append(c["factor"] if wave > low else 1.0)
        else:
            s = (c["original_max_position_embeddings"] / wave - c["low_freq_factor"]) / (c["high_freq_factor"] - c["low_freq_factor"])
            out.append(1 / ((1 - s) / c["factor"] + s))
    return Tensor([len(out)], out)


# --- Families ---

def jamba(d):
    m = Model(d, "jamba")
    c = m.config
    attends = [i % c["attn_layer_period"] == c["attn_layer_offset"] for i in range(m.layers)]
    m.key(attention__head_count_kv=[c["num_key_value_heads"] * a for a in attends], ssm__inner_size=c["mamba_expand"] * c["hidden_size"])
    m.keys_of(feed_forward_length="intermediate_size", ssm__conv_kernel="mamba_d_conv", ssm__state_size="mamba_d_state", ssm__time_step_rank="mamba_dt_rank",
              expert_count="num_experts", expert_used_count="num_experts_per_tok")
    m.ends(norm="final_layernorm")
    m.attention(ffn_norm="pre_ff_layernorm", ffn_gate_inp="feed_forward.router", ssm_in="mamba.in_proj", ssm_x="mamba.x_proj", ssm_dt="mamba.dt_proj",
                ssm_dt__bias="mamba.dt_proj.bias", ssm_conv1d__bias="mamba.conv1d.bias", ssm_d="mamba.D", ssm_out="mamba.out_proj",
                ssm_dt_norm="mamba.dt_layernorm", ssm_b_norm="mamba.b_layernorm", ssm_c_norm="mamba.c_layernorm")
    m.dense("feed_forward")
    m.experts("layers.{}.feed_forward.experts.{}.{}.weight")
    for i in range(m.layers):
        if not attends[i]:
            conv = m.take(f"layers.{i}.mamba.conv1d.weight")
            m.put(f"blk.{i}.ssm_conv1d", conv.shaped(conv.shape[0], conv.shape[2]))
            m.put(f"blk.{i}.ssm_a", m.take(f"layers.{i}.mamba.A_log").map(lambda x: -math.exp(x)))
    return m


def granitehybrid(d):
    m = Model(d, "granitehybrid")
    c = m.config
    attends = [t == "attention" for t in c["layer_types"]]
    m.key(attention__head_count_kv=[c["num_key_value_heads"] * a for a in attends], ssm__inner_size=c["mamba_expand"] * c["hidden_size"],
          rope__scaling__finetuned=False, rope__freq_base=float(c["rope_theta"]), logit_scale=float(c["logits_scaling"]),
          embedding_scale=float(c["embedding_multiplier"]))
    m.keys_of(feed_forward_length="intermediate_size", expert_shared_feed_forward_length="shared_intermediate_size", ssm__conv_kernel="mamba_d_conv",
              ssm__state_size="mamba_d_state", ssm__group_count="mamba_n_groups", ssm__time_step_rank="mamba_n_heads", expert_count="num_local_experts",
              expert_used_count="num_experts_per_tok", attention__scale="attention_multiplier", residual_scale="residual_multiplier")
    m.ends()
    dim = c["hidden_size"] // c["num_attention_heads"]
    for i in range(m.layers):
        h = f"layers.{i}."
        for g, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"])):
            if attends[i]:
                m.put(f"blk.{i}.attn_{g}", m.take(f"{h}self_attn.{g}_proj.weight").rows(adjacent(heads, dim)))
        both, shared = m.take(h + "block_sparse_moe.input_linear.weight"), m.take(h + "shared_mlp.input_linear.weight")
        n, ffn = c["intermediate_size"], c["shared_intermediate_size"]
        for k, g in enumerate(("gate", "up")):
            m.put(f"blk.{i}.ffn_{g}_exps", both.each(lambda t: t.rows(range(k * n, k * n + n))))
            m.put(f"blk.{i}.ffn_{g}_shexp", shared.rows(range(k * ffn, k * ffn + ffn)))
    m.attention(ffn_norm="post_attention_layernorm", ffn_gate_inp="block_sparse_moe.router.layer", ffn_down_exps="block_sparse_moe.output_linear",
                ffn_down_shexp="shared_mlp.output_linear")
    m.mamba("mamba", c["mamba_n_groups"])
    return m


def nemotron_h(d):
    """A layer with an MLP among layers with experts, which llama.cpp's converter cannot write, but its metadata can say."""
    m = Model(d, "nemotron_h_moe", "backbone.")
    c = m.config
    kinds = c["hybrid_override_pattern"]
    m.key(attention__head_count_kv=[c["num_key_value_heads"] * (k == "*") for k in kinds], ssm__inner_size=c["mamba_num_heads"] * c["mamba_head_dim"],
          feed_forward_length=[{"E": c["moe_intermediate_size"], "-": c["intermediate_size"]}.get(k, 0) for k in kinds],
          attention__layer_norm_epsilon=c["layer_norm_epsilon"], rope__scaling__finetuned=False)
    m.keys_of(attention__key_length="head_dim", attention__value_length="head_dim", ssm__conv_kernel="conv_kernel", ssm__state_size="ssm_state_size",
              ssm__group_count="n_groups", ssm__time_step_rank="mamba_num_heads", expert_used_count="num_experts_per_tok", expert_count="n_routed_experts",
              expert_feed_forward_length="moe_intermediate_size", expert_shared_feed_forward_length="moe_shared_expert_intermediate_size",
              expert_shared_count="n_shared_experts", expert_weights_norm="norm_topk_prob", expert_weights_scale="routed_scaling_factor",
              expert_group_count="n_group", moe_latent_size="moe_latent_size")
    m.ends("embeddings", "norm_f")
    m.each_layer(attn_norm="norm", attn_q="mixer.q_proj", attn_k="mixer.k_proj", attn_v="mixer.v_proj", attn_output="mixer.o_proj", ffn_up="mixer.up_proj",
                 ffn_down="mixer.down_proj", ffn_gate_inp="mixer.gate", exp_probs_b__bias="mixer.gate.e_score_correction_bias",
                 ffn_latent_down="mixer.fc1_latent_proj", ffn_latent_up="mixer.fc2_latent_proj", ffn_up_shexp="mixer.shared_experts.up_proj",
                 ffn_down_shexp="mixer.shared_experts.down_proj")
    m.experts("layers.{}.mixer.experts.{}.{}.weight", ("up_proj", "down_proj"), ("up", "down"))
    m.mamba("mixer", c["n_groups"])
    return m


def gemma4(d):
    m = Model(d, "gemma4", "model.language_model.")
    c = m.config
    m.source = {n.removeprefix("model."): t for n, t in m.source.items()}  # of gemma4_text
    sliding = [t == "sliding_attention" for t in c["layer_types"]]
    full, own = c["rope_parameters"]["full_attention"], c["rope_parameters"]["sliding_attention"]
    turned = int(c["global_head_dim"] * full["partial_rotary_factor"] / 2)
    m.key(attention__head_count_kv=[c["num_key_value_heads"] if s else c.get("num_global_key_value_heads", c["num_key_value_heads"]) for s in sliding], attention__sliding_window_pattern=sliding,
          rope__freq_base=float(full["rope_theta"]), rope__freq_base_swa=float(own["rope_theta"]), final_logit_softcapping=float(c["final_logit_softcapping"]))
    m.keys_of(attention__key_length="global_head_dim", attention__value_length="global_head_dim", attention__key_length_swa="head_dim",
              attention__value_length_swa="head_dim", attention__sliding_window="sliding_window", attention__shared_kv_layers="num_kv_shared_layers",
              embedding_length_per_layer_input="hidden_size_per_layer_input",
              rope__dimension_count="global_head_dim", rope__dimension_count_swa="head_dim")
    m.key(feed_forward_length=[c["intermediate_size"] * (1 + (c["use_double_wide_mlp"] and i >= m.layers - c["num_kv_shared_layers"])) for i in range(m.layers)])
    if c.get("enable_moe_block"):
        m.keys_of(expert_count="num_experts", expert_used_count="top_k_experts", expert_feed_forward_length="moe_intermediate_size")
    m.ends()
    for name in ("token_embd", "model_proj", "proj_norm"):
        m.copy("per_layer_" + name, {"token_embd": "embed_tokens_per_layer", "model_proj": "per_layer_model_projection", "proj_norm": "per_layer_projection_norm"}[name] + ".weight")
    m.put("rope_freqs", Tensor([c["global_head_dim"] // 2], [1.0] * turned + [1e30] * (c["global_head_dim"] // 2 - turned)))
    m.attention(post_attention_norm="post_attention_layernorm", ffn_norm="pre_feedforward_layernorm", post_ffw_norm="post_feedforward_layernorm",
                post_ffw_norm_1="post_feedforward_layernorm_1", post_ffw_norm_2="post_feedforward_layernorm_2", pre_ffw_norm_2="pre_feedforward_layernorm_2",
                ffn_gate_inp="router.proj", inp_gate="per_layer_input_gate", proj="per_layer_projection",
                post_norm="post_per_layer_input_norm", layer_output_scale="layer_scalar", ffn_gate_inp__scale="router.scale", ffn_down_exps__scale="router.per_expert_scale")
    m.dense()
    for i in range(m.layers):
        m.copy(f"blk.{i}.ffn_gate_up_exps", f"layers.{i}.experts.gate_up_proj")
        m.copy(f"blk.{i}.ffn_down_exps", f"layers.{i}.experts.down_proj")
    return m


def lfm2moe(d):
    m = Model(d, "lfm2moe")
    c = m.config
    m.key(attention__head_count_kv=[c["num_key_value_heads"] * (t == "full_attention") for t in c["layer_types"]], expert_gating_func=2)
    m.keys_of(feed_forward_length="intermediate_size", expert_feed_forward_length="moe_intermediate_size", leading_dense_block_count="num_dense_layers",
              shortconv__l_cache="conv_L_cache", rope__freq_base="rope_theta", vocab_size="vocab_size", expert_count="num_experts",
              expert_used_count="num_experts_per_tok")
    m.ends(norm="embedding_norm", final="token_embd_norm")
    m.each_layer(attn_norm="operator_norm", ffn_norm="ffn_norm", attn_q="self_attn.q_proj", attn_k="self_attn.k_proj", attn_v="self_attn.v_proj",
                 attn_output="self_attn.out_proj", attn_q_norm="self_attn.q_layernorm", attn_k_norm="self_attn.k_layernorm", ffn_gate_inp="feed_forward.gate",
                 exp_probs_b__bias="feed_forward.expert_bias", ffn_gate="feed_forward.w1", ffn_up="feed_forward.w3", ffn_down="feed_forward.w2",
                 shortconv__in_proj="conv.in_proj", shortconv__out_proj="conv.out_proj")
    m.experts("layers.{}.feed_forward.experts.{}.{}.weight", ("w1", "w3", "w2"))
    for i in range(m.layers):
        if f"layers.{i}.conv.conv.weight" in m.source:
            conv = m.take(f"layers.{i}.conv.conv.weight")
            m.put(f"blk.{i}.shortconv.conv", conv.shaped(conv.shape[0], conv.shape[2]))
    return m


def plus_one(m):
    for name, t in m.source.items():
        if name.endswith("norm.weight") and "linear_attn.norm" not in name:
            m.source[name] = t.map(lambda x: x + 1)


def step35(d):
    m = Model(d, "step35")
    c, n = m.config, m.layers
    sliding, other = [t == "sliding_attention" for t in c["layer_types"]][:n], c["attention_other_setting"]
    m.key(attention__head_count=[other["num_attention_heads"] if s else c["num_attention_heads"] for s in sliding],
          attention__head_count_kv=[other["num_attention_groups"] if s else c["num_attention_groups"] for s in sliding], attention__sliding_window_pattern=sliding,
          rope__freq_base=c["rope_theta"][0], rope__freq_base_swa=c["rope_theta"][1], leading_dense_block_count=1, swiglu_clamp_exp=c["swiglu_limits"][:n],
          swiglu_clamp_shexp=c["swiglu_limits_shared"][:n])
    m.keys_of(attention__sliding_window="sliding_window", attention__key_length="head_dim", attention__value_length="head_dim", expert_count="moe_num_experts",
              expert_used_count="moe_top_k", expert_feed_forward_length="moe_intermediate_size", expert_shared_feed_forward_length="share_expert_dim",
              expert_weights_scale="moe_router_scaling_factor", expert_weights_norm="norm_expert_weight", moe_every_n_layers="moe_every_n_layer",
              feed_forward_length="intermediate_size")
    plus_one(m)
    m.ends()
    factors = llama3_factors(c["rope_scaling"], c["rope_theta"][0], c["head_dim"] // 2)  # the rotated half of a head
    m.put("rope_freqs", Tensor([c["head_dim"] // 2], list(factors.values) + [1.0] * (c["head_dim"] // 2 - len(factors.values))))
    m.attention(attn_gate="self_attn.g_proj", ffn_norm="post_attention_layernorm", ffn_gate_inp="moe.gate", exp_probs_b__bias="moe.router_bias")
    m.dense()
    m.dense("share_expert", "_shexp")
    m.each_layer(**{f"ffn_{g}_exps": f"moe.{g}_proj" for g in ("gate", "up", "down")})
    return m


def mimo2(d):
    m = Model(d, "mimo2")
    c = m.config
    m.key(attention__head_count_kv=[c["swa_num_key_value_heads"] if s else c["num_key_value_heads"] for s in c["hybrid_layer_pattern"]],
          rope__freq_base=float(c["rope_theta"]), rope__freq_base_swa=float(c["swa_rope_theta"]), rope__dimension_count=int(c["head_dim"] * c["partial_rotary_factor"]))
    m.keys_of(attention__sliding_window="sliding_window", attention__sliding_window_pattern="hybrid_layer_pattern", attention__key_length="head_dim",
              attention__value_length="v_head_dim", attention__value_scale="attention_value_scale", expert_count="n_routed_experts",
              expert_used_count="num_experts_per_tok", expert_feed_forward_length="moe_intermediate_size", feed_forward_length="intermediate_size")
    m.ends()
    m.attention(ffn_norm="post_attention_layernorm", ffn_gate_inp="mlp.gate", exp_probs_b__bias="mlp.gate.e_score_correction_bias")
    for i in range(m.layers):
        m.copy(f"blk.{i}.attn_sinks", f"layers.{i}.self_attn.attention_sink_bias")
    m.dense()
    m.experts("layers.{}.mlp.experts.{}.{}.weight")
    return m


def afmoe(d):
    m = Model(d, "afmoe")
    m.key(rope__freq_base=float(m.config["rope_theta"]), attention__sliding_window_pattern=4)  # a period, which llama.cpp takes as well as a list
    m.keys_of(attention__key_length="head_dim", attention__value_length="head_dim", attention__head_count_kv="num_key_value_heads",
              attention__sliding_window="sliding_window", feed_forward_length="intermediate_size", expert_count="num_experts",
              expert_used_count="num_experts_per_tok", expert_shared_count="num_shared_experts", expert_feed_forward_length="moe_intermediate_size",
              leading_dense_block_count="num_dense_layers", expert_weights_norm="route_norm", expert_weights_scale="route_scale")
    m.ends()
    m.attention(attn_gate="self_attn.gate_proj", post_attention_norm="post_attention_layernorm", ffn_norm="pre_mlp_layernorm", post_ffw_norm="post_mlp_layernorm",
                ffn_gate_inp="mlp.router.gate", exp_probs_b__bias="mlp.expert_bias")
    m.dense()
    m.dense("mlp.shared_experts", "_shexp")
    m.experts("layers.{}.mlp.experts.{}.{}.weight")
    return m


def exaone_moe(d):
    m = Model(d, "exaone-moe")
    c = m.config
    m.key(rope__freq_base=float(c["rope_theta"]), rope__scaling__type="none", attention__sliding_window_pattern=[t == "sliding_attention" for t in c["layer_types"]],
          expert_shared_feed_forward_length=c["moe_intermediate_size"], expert_gating_func=2)
    m.keys_of(attention__key_length="head_dim", attention__value_length="head_dim", attention__head_count_kv="num_key_value_heads",
              attention__sliding_window="sliding_window", feed_forward_length="intermediate_size", expert_count="num_experts",
              expert_used_count="num_experts_per_tok", expert_shared_count="num_shared_experts", expert_feed_forward_length="moe_intermediate_size",
              leading_dense_block_count="first_k_dense_replace", expert_weights_norm="norm_topk_prob", expert_weights_scale="routed_scaling_factor")
    m.ends()
    m.attention(ffn_norm="post_attention_layernorm", ffn_gate_inp="mlp.gate", exp_probs_b__bias="mlp.e_score_correction_bias")
    m.dense()
    m.dense("mlp.shared_experts", "_shexp")
    m.experts("layers.{}.mlp.experts.{}.{}.weight")
    return m


def llama4(d):
    """Chunks and temperatures are not in the metadata: positions from the fixture's own on differ."""
    m = Model(d, "llama4", "language_model.model.")
    c = m.config
    m.key(rope__freq_base=c["rope_theta"])
    m.keys_of(attention__key_length="head_dim", attention__value_length="head_dim", attention__head_count_kv="num_key_value_heads", rope__dimension_count="head_dim",
              feed_forward_length="intermediate_size_mlp", expert_feed_forward_length="intermediate_size", expert_count="num_local_experts",
              expert_used_count="num_experts_per_tok", interleave_moe_layer_step="interleave_moe_layer_step", vocab_size="vocab_size")
    m.ends(head="language_model.lm_head")
    m.put("rope_freqs", llama3_factors(c["rope_scaling"], c["rope_theta"], c["head_dim"]))
    m.attention(ffn_norm="post_attention_layernorm", ffn_gate_inp="feed_forward.router")
    m.dense("feed_forward.shared_expert", "_shexp")
    n = c["intermediate_size"]
    for i in range(m.layers):
        both, down = m.take(f"layers.{i}.feed_forward.experts.gate_up_proj"), m.take(f"layers.{i}.feed_forward.experts.down_proj")
        for k, g in enumerate(("gate", "up")):
            m.put(f"blk.{i}.ffn_{g}_exps", both.each(lambda t: t.turned().rows(range(k * n, k * n + n))))
        m.put(f"blk.{i}.ffn_down_exps", down.each(Tensor.turned))
    return m


def qwen35(d):
    """Value heads of the linear attention in tiles: the first of each key head, then the second."""
    m = Model(d, "qwen35", "model.language_model.")
    c = m.config
    m.source = {n.removeprefix("model."): t for n, t in m.source.items()}  # of qwen3_5_text
    if "num_experts" in c:
        m.arch = m.meta["general.architecture"] = "qwen35moe"
        m.meta = {k.replace("qwen35.", "qwen35moe."): v for k, v in m.meta.items()}
        m.keys_of(expert_count="num_experts", expert_used_count="num_experts_per_tok", expert_feed_forward_length="moe_intermediate_size",
                  expert_shared_feed_forward_length="shared_expert_intermediate_size")
    else:
        m.keys_of(feed_forward_length="intermediate_size")
    plus_one(m)
    m.attention(post_attention_norm="post_attention_layernorm")
    m.dense()
    qwen_delta(m)
    return m


def qwen_delta(m):
    """What Qwen's models with gated DeltaNet have in common."""
    c = m.config
    k, v, kd, vd = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"], c["linear_value_head_dim"]
    heads = [g * (v // k) + j for j in range(v // k) for g in range(k)]
    values, keys = [h * vd + i for h in heads for i in range(vd)], list(range(2 * k * kd))
    channels = keys + [len(keys) + i for i in values]
    r = c["rope_parameters"]
    m.key(rope__freq_base=float(r["rope_theta"]), rope__dimension_count=int(c["head_dim"] * r["partial_rotary_factor"]), rope__dimension_sections=[*r["mrope_section"], 0],
          ssm__inner_size=v * vd)
    m.keys_of(attention__head_count_kv="num_key_value_heads", attention__key_length="head_dim", attention__value_length="head_dim", full_attention_interval="full_attention_interval",
              ssm__conv_kernel="linear_conv_kernel_dim", ssm__state_size="linear_key_head_dim", ssm__group_count="linear_num_key_heads",
              ssm__time_step_rank="linear_num_value_heads")
    m.ends()
    m.attention(ffn_gate_inp="mlp.gate", ffn_gate_inp_shexp="mlp.shared_expert_gate", ssm_norm="linear_attn.norm")
    m.dense("mlp.shared_expert", "_shexp")
    for i in range(m.layers):
        s = f"layers.{i}.linear_attn."
        if "num_experts" in c:
            both, n = m.take(f"layers.{i}.mlp.experts.gate_up_proj"), c["moe_intermediate_size"]
            for j, g in enumerate(("gate", "up")):
                m.put(f"blk.{i}.ffn_{g}_exps", both.each(lambda t: t.rows(range(j * n, j * n + n))))
            m.put(f"blk.{i}.ffn_down_exps", m.take(f"layers.{i}.mlp.experts.down_proj"))
        if s + "A_log" not in m.source:
            continue
        conv = m.take(s + "conv1d.weight")
        m.put(f"blk.{i}.ssm_conv1d", conv.shaped(conv.shape[0], conv.shape[2]).rows(channels))
        m.put(f"blk.{i}.attn_qkv", m.take(s + "in_proj_qkv.weight").rows(channels))
        m.put(f"blk.{i}.attn_gate", m.take(s + "in_proj_z.weight").rows(values))
        m.put(f"blk.{i}.ssm_beta", m.take(s + "in_proj_b.weight").rows(heads))
        m.put(f"blk.{i}.ssm_alpha", m.take(s + "in_proj_a.weight").rows(heads))
        m.put(f"blk.{i}.ssm_a", m.take(s + "A_log").map(lambda x: -math.exp(x)).rows(heads))
        m.put(f"blk.{i}.ssm_dt.bias", m.take(s + "dt_bias").rows(heads))
        m.put(f"blk.{i}.ssm_out", m.take(s + "out_proj.weight").columns(values))
