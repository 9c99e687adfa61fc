"""The families of models that read images, for eyes.py: configs, and the tensors that a published checkpoint has."""
import dataclasses
import hashlib
import math
import struct
import typing

TEXT_PREFIXES = ("model.language_model.", "lm_head.", "language_model.")


def numbers(name, n, scale):
    """n numbers of a tensor, about evenly spread within scale: from SHAKE-256 of its name, so that they never change."""
    raw = hashlib.shake_256(name.encode()).digest(2 * n)
    return [(v - 32767.5) / 32768 * scale for v in struct.unpack(f"<{n}H", raw)]


class Writer:
    """Tensors: {name: (dtype, shape, bytes)}"""

    def __init__(self):
        self.out = {}

    def add(self, name, *shape, scale=None, one=0):
        n = math.prod(shape)
        if scale is None:
            scale = 0.3 if len(shape) == 1 else math.sqrt(3 / math.prod(shape[1:]))
        self.out[name] = ("F32", list(shape), struct.pack(f"<{n}f", *(one + x for x in numbers(name, n, scale))))

    def norm(self, name, n, bias=False, one=1):
        self.add(name + ".weight", n, one=one)
        if bias:
            self.add(name + ".bias", n)

    def linear(self, name, rows, cols, bias=False):
        self.add(name + ".weight", rows, cols)
        if bias:
            self.add(name + ".bias", rows)

    def ffn(self, name, inter, h):
        for part, rows, cols in (("gate", inter, h), ("up", inter, h), ("down", h, inter)):
            self.linear(f"{name}.{part}_proj", rows, cols)


# --- Text ---------------------------------------------------------------------------------------


def ends(w, t, one=1):
    w.add("model.language_model.embed_tokens.weight", t["vocab_size"], t["hidden_size"], scale=1)
    w.add("lm_head.weight", t["vocab_size"], t["hidden_size"])
    w.norm("model.language_model.norm", t["hidden_size"], one=one)


def attention(w, t, p, one=1, gate=False):
    h, heads, kv, dim = t["hidden_size"], t["num_attention_heads"], t["num_key_value_heads"], t["head_dim"]
    for name, rows, cols in (("q", heads * dim * (1 + gate), h), ("k", kv * dim, h), ("v", kv * dim, h), ("o", h, heads * dim)):
        w.linear(f"{p}self_attn.{name}_proj", rows, cols)
    w.norm(p + "self_attn.q_norm", dim, one=one)
    w.norm(p + "self_attn.k_norm", dim, one=one)


def experts(w, t, p):
    n, h, inter = t["num_experts"], t["hidden_size"], t["moe_intermediate_size"]
    w.linear(p + "mlp.gate", n, h)
    w.add(p + "mlp.experts.gate_up_proj", n, 2 * inter, h, scale=0.3)
    w.add(p + "mlp.experts.down_proj", n, h, inter, scale=0.3)
    if "shared_expert_intermediate_size" in t:
        w.ffn(p + "mlp.shared_expert", t["shared_expert_intermediate_size"], h)
        w.linear(p + "mlp.shared_expert_gate", 1, h)


def delta(w, t, p):
    h, heads, dim = t["hidden_size"], t["linear_num_value_heads"], t["linear_value_head_dim"]
    keys, values = t["linear_num_key_heads"] * t["linear_key_head_dim"], heads * dim
    for name, rows, cols in (("in_proj_qkv", 2 * keys + values, h), ("in_proj_z", values, h), ("in_proj_b", heads, h), ("in_proj_a", heads, h), ("out_proj", h, values)):
        w.linear(p + "linear_attn." + name, rows, cols)
    w.add(p + "linear_attn.conv1d.weight", 2 * keys + values, 1, t["linear_conv_kernel_dim"], scale=0.8)
    w.add(p + "linear_attn.A_log", heads, scale=1)
    w.add(p + "linear_attn.dt_bias", heads, scale=0.5, one=-1)
    w.norm(p + "linear_attn.norm", dim)


def write_qwen(w, t):
    """Qwen3, and Qwen3.5: norms by 1 + w, states in some layers, gated attention in the others"""
    mixers = t.get("layer_types")
    one = 0 if mixers else 1
    ends(w, t, one)
    for i in range(t["num_hidden_layers"]):
        p = f"model.language_model.layers.{i}."
        w.norm(p + "input_layernorm", t["hidden_size"], one=one)
        w.norm(p + "post_attention_layernorm", t["hidden_size"], one=one)
        if mixers and mixers[i] == "linear_attention":
            delta(w, t, p)
        else:
            attention(w, t, p, one, gate=bool(mixers))
        if "num_experts" in t:
            experts(w, t, p)
        else:
            w.ffn(p + "mlp", t["intermediate_size"], t["hidden_size"])


def splitmix64(v):
    v = (v + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        v = (v ^ v >> shift) * factor % 2**64
    return v ^ v >> 31


def write_qwen4(w, t):
    """Gated residual streams, hashed n-grams before a layer, attention over blocks of keys"""
    ends(w, t, 0)
    del w.out["model.language_model.norm.weight"]
    h, low, wide = t["hidden_size"], t["hc_lowrank"], t["hc_count"] * t["hidden_size"]

    def streams(p, injects=True):
        w.norm(p + "hc_norm", wide, one=0)
        w.linear(p + "input_mix_weight_down", low, wide)
        w.linear(p + "input_mix_weight_up", wide, low)
        if injects:
            w.linear(p + "block_inject_weight", t["hc_count"], wide)

    streams("model.language_model.hyper_connection_mixer.", False)
    for i in range(t["num_hidden_layers"]):
        p = f"model.language_model.layers.{i}."
        streams(p + "attn_hyper_connection.")
        streams(p + "mlp_hyper_connection.")
        if t["layer_types"][i] == "linear_attention":
            delta(w, t, p)
        else:
            attention(w, t, p, 0, gate=True)
            w.linear(p + "self_attn.indexer.index_qk_proj", (t["indexer_n_heads"] + 1) * t["indexer_head_dim"], h)
            for part in "qk":
                w.norm(f"{p}self_attn.indexer.{part}_layernorm", t["indexer_head_dim"], one=0)
        experts(w, t, p)
        if i + 1 in t["ple_layer_ids"]:
            hashes, dim = (t["ngram_size"] - 1) * t["heads_per_ngram"], t["ple_embed_dim"]
            primes = [n for n in range(t["ngram_vocab_size_base"], 2 * t["ngram_vocab_size_base"]) if all(n % d for d in range(2, n))][:hashes]
            bound = (2**63 - 1) // t["vocab_size"] // 2
            multipliers = [2 * (splitmix64((t["seed"] + 0x9E3779B97F4A7C15 * (k + 1)) % 2**64) % bound) + 1 for k in range(t["ngram_size"])]  # of the first such layer
            for name, values in (("layer_multipliers", multipliers), ("ngram_heads_vocab_sizes", primes), ("ngram_heads_offsets", [sum(primes[:k]) for k in range(hashes)])):
                w.out[f"{p}ple.ple_embedding.{name}"] = ("I64", [len(values)], struct.pack(f"<{len(values)}q", *values))
            pad = t["make_ngram_vocab_size_divisible_by"]
            for k in range(t["split_ngram_parts"]):
                w.add(f"{p}ple.ple_embedding.ngram_embedding.shard_{k}.weight", -(-sum(primes) // pad) * pad // t["split_ngram_parts"], dim // hashes, scale=1)
            w.linear(p + "ple.key_proj", wide, dim)
            w.linear(p + "ple.value_proj", h, dim)
            w.add(p + "ple.conv1d.weight", wide, 1, t["ple_conv_kernel_size"])
            for part in ("conv", "key", "query"):
                w.norm(f"{p}ple.norm_{part}", wide, one=0)


def write_glm(w, t):
    ends(w, t)
    heads, kv, dim, h = t["num_attention_heads"], t["num_key_value_heads"], t["head_dim"], t["hidden_size"]
    for i in range(t["num_hidden_layers"]):
        p = f"model.language_model.layers.{i}."
        w.norm(p + "input_layernorm", h)
        w.norm(p + "post_attention_layernorm", h)
        for name, rows in (("q", heads * dim), ("k", kv * dim), ("v", kv * dim)):
            w.linear(f"{p}self_attn.{name}_proj", rows, h, bias=True)
        w.linear(p + "self_attn.o_proj", h, heads * dim)
        if i < t["first_k_dense_replace"]:
            w.ffn(p + "mlp", t["intermediate_size"], h)
            continue
        w.linear(p + "mlp.gate", t["n_routed_experts"], h)
        w.add(p + "mlp.gate.e_score_correction_bias", t["n_routed_experts"], scale=0.2)
        w.ffn(p + "mlp.shared_experts", t["moe_intermediate_size"], h)
        for k in range(t["n_routed_experts"]):
            w.ffn(f"{p}mlp.experts.{k}", t["moe_intermediate_size"], h)


def write_kimi(w, t):
    h, heads, nope, rope_dim, value, latent, low = (t[k] for k in ("hidden_size", "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"))
    w.add("language_model.model.embed_tokens.weight", t["vocab_size"], h, scale=1)
    w.add("language_model.lm_head.weight", t["vocab_size"], h)
    w.norm("language_model.model.norm", h)
    for i in range(t["num_hidden_layers"]):
        p = f"language_model.model.layers.{i}."
        w.norm(p + "input_layernorm", h)
        w.norm(p + "post_attention_layernorm", h)
        w.norm(p + "self_attn.q_a_layernorm", low)
        w.norm(p + "self_attn.kv_a_layernorm", latent)
        for name, rows, cols in (("q_a_proj", low, h), ("q_b_proj", heads * (nope + rope_dim), low), ("kv_a_proj_with_mqa", latent + rope_dim, h),
                                 ("kv_b_proj", heads * (nope + value), latent), ("o_proj", h, heads * value)):
            w.linear(p + "self_attn." + name, rows, cols)
        if i < t["first_k_dense_replace"]:
            w.ffn(p + "mlp", t["intermediate_size"], h)
            continue
        w.linear(p + "mlp.gate", t["n_routed_experts"], h)
        w.add(p + "mlp.gate.e_score_correction_bias", t["n_routed_experts"], scale=0.2)
        w.ffn(p + "mlp.shared_experts", t["moe_intermediate_size"], h)
        for k in range(t["n_routed_experts"]):
            w.ffn(f"{p}mlp.experts.{k}", t["moe_intermediate_size"], h)


def write_gemma(w, t):
    """Gemma 4: norms around blocks, heads of two sizes, a factor of each layer; experts beside the FFN, or tables by token and layers that take other layers' keys"""
    ends(w, t)
    h, heads, layers, dim = t["hidden_size"], t["num_attention_heads"], t["num_hidden_layers"], t["hidden_size_per_layer_input"]
    top = "model.language_model."
    if dim:
        w.add(top + "embed_tokens_per_layer.weight", t["vocab_size"], layers * dim, scale=1)
        w.linear(top + "per_layer_model_projection", layers * dim, h)
        w.norm(top + "per_layer_projection_norm", dim)
    for i in range(layers):
        p, whole = f"{top}layers.{i}.", t["layer_types"][i] == "full_attention"
        size, kv = (t["global_head_dim"], t["num_global_key_value_heads"] if t["attention_k_eq_v"] else t["num_key_value_heads"]) if whole else (t["head_dim"], t["num_key_value_heads"])
        own = i < layers - t["num_kv_shared_layers"]
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            w.norm(f"{p}{name}_layernorm", h)
        w.linear(p + "self_attn.q_proj", heads * size, h)
        w.linear(p + "self_attn.o_proj", h, heads * size)
        w.norm(p + "self_attn.q_norm", size)
        if own:
            w.linear(p + "self_attn.k_proj", kv * size, h)
            w.norm(p + "self_attn.k_norm", size)
            if not (whole and t["attention_k_eq_v"]):
                w.linear(p + "self_attn.v_proj", kv * size, h)
        w.ffn(p + "mlp", t["intermediate_size"] * (1 if own else 2), h)
        w.add(p + "layer_scalar", 1, one=0.8)
        if t["enable_moe_block"]:
            n, inter = t["num_experts"], t["moe_intermediate_size"]
            for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
                w.norm(p + name, h)
            w.linear(p + "router.proj", n, h)
            w.add(p + "router.scale", h, one=1)
            w.add(p + "router.per_expert_scale", n, one=1)
            w.add(p + "experts.gate_up_proj", n, 2 * inter, h, scale=0.3)
            w.add(p + "experts.down_proj", n, h, inter, scale=0.3)
        if dim:
            w.linear(p + "per_layer_input_gate", dim, h)
            w.linear(p + "per_layer_projection", h, dim)
            w.norm(p + "post_per_layer_input_norm", h)


# --- Towers -------------------------------------------------------------------------------------


def write_qwen_tower(w, v, _):
    width, inter, wide = v["hidden_size"], v["intermediate_size"], v["hidden_size"] * v["spatial_merge_size"] ** 2
    s = "model.visual."
    w.add(s + "patch_embed.proj.weight", width, 3, v["temporal_patch_size"], v["patch_size"], v["patch_size"])
    w.add(s + "patch_embed.proj.bias", width)
    w.add(s + "pos_embed.weight", v["num_position_embeddings"], width, scale=1)
    for i in range(v["depth"]):
        p = f"{s}blocks.{i}."
        w.norm(p + "norm1", width, bias=True)
        w.norm(p + "norm2", width, bias=True)
        w.linear(p + "attn.qkv", 3 * width, width, bias=True)
        w.linear(p + "attn.proj", width, width, bias=True)
        w.linear(p + "mlp.linear_fc1", inter, width, bias=True)
        w.linear(p + "mlp.linear_fc2", width, inter, bias=True)
    deep = v.get("deepstack_visual_indexes", [])
    for i, p in enumerate([s + "merger"] + [f"{s}deepstack_merger_list.{i}" for i in range(len(deep))]):
        w.norm(p + ".norm", wide if i else width, bias=True)
        w.linear(p + ".linear_fc1", wide, wide, bias=True)
        w.linear(p + ".linear_fc2", v["out_hidden_size"], wide, bias=True)


def write_glm_tower(w, v, _):
    width, out, inter, m = v["hidden_size"], v["out_hidden_size"], v["intermediate_size"], v["spatial_merge_size"]
    s = "model.visual."
    w.add(s + "patch_embed.proj.weight", width, 3, v["temporal_patch_size"], v["patch_size"], v["patch_size"])
    w.add(s + "patch_embed.proj.bias", width)
    w.add(s + "embeddings.position_embedding.weight", (v["image_size"] // v["patch_size"]) ** 2, width, scale=1)
    w.norm(s + "post_conv_layernorm", width)
    w.norm(s + "post_layernorm", width)
    w.add(s + "downsample.weight", out, width, m, m)
    w.add(s + "downsample.bias", out)
    for i in range(v["depth"]):
        p = f"{s}blocks.{i}."
        w.norm(p + "norm1", width)
        w.norm(p + "norm2", width)
        w.linear(p + "attn.qkv", 3 * width, width, bias=v["attention_bias"])
        w.linear(p + "attn.proj", width, width)
        w.ffn(p + "mlp", out, width)
    w.linear(s + "merger.proj", out, out)
    w.norm(s + "merger.post_projection_norm", out, bias=True)
    w.ffn(s + "merger", inter, out)


def write_kimi_tower(w, v, t):
    width, inter, wide, side = v["vt_hidden_size"], v["vt_intermediate_size"], v["vt_hidden_size"] * 4, v["init_pos_emb_height"]
    w.linear("vision_tower.patch_embed.proj", width, 1, bias=True)
    w.add("vision_tower.patch_embed.proj.weight", width, 3, v["patch_size"], v["patch_size"])
    w.add("vision_tower.patch_embed.pos_emb.weight", side, side, width, scale=1)
    for i in range(v["vt_num_hidden_layers"]):
        p = f"vision_tower.encoder.blocks.{i}."
        w.norm(p + "norm0", width, bias=True)
        w.norm(p + "norm1", width, bias=True)
        for name, rows, cols in (("wqkv", 3 * width, width), ("wo", width, width), ("mlp.fc0", inter, width), ("mlp.fc1", width, inter)):
            w.linear(p + name, rows, cols, bias=True)
    w.norm("vision_tower.encoder.final_layernorm", width, bias=True)
    w.norm("mm_projector.pre_norm", width, bias=True)
    w.linear("mm_projector.proj.0", wide, wide, bias=True)
    w.linear("mm_projector.proj.2", t["hidden_size"], wide, bias=True)


def write_gemma_tower(w, v, t):
    width, inter, dim = v["hidden_size"], v["intermediate_size"], v["head_dim"]
    top = "model.vision_tower."
    w.linear(top + "patch_embedder.input_proj", width, 3 * v["patch_size"] ** 2)
    w.add(top + "patch_embedder.position_embedding_table", 2, v["position_embedding_size"], width, scale=1)

    def linear(name, rows, cols):
        w.linear(name + ".linear", rows, cols)
        for bound, at in (("input_min", -1.1), ("input_max", 1.2), ("output_min", -1.3), ("output_max", 1.4)) if v["use_clipped_linears"] else ():
            w.add(f"{name}.{bound}", scale=0.2, one=at)

    for i in range(v["num_hidden_layers"]):
        p = f"{top}encoder.layers.{i}."
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            w.norm(f"{p}{name}_layernorm", width)
        for name in "qkvo":
            linear(f"{p}self_attn.{name}_proj", width, width)
        w.norm(p + "self_attn.q_norm", dim)
        w.norm(p + "self_attn.k_norm", dim)
        for name, rows, cols in (("gate", inter, width), ("up", inter, width), ("down", width, inter)):
            linear(f"{p}mlp.{name}_proj", rows, cols)
    if v["standardize"]:
        w.add(top + "std_bias", width)
        w.add(top + "std_scale", width, one=1)
    w.linear("model.embed_vision.embedding_projection", t["hidden_size"], width)


# --- Configs ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Family:
    architecture: str  # the class of transformers
    text: dict
    vision: dict
    processor: dict
    write_text: typing.Callable
    write_tower: typing.Callable
    image_key: str = "image_token_id"
    model_type: str = ""  # if it is not the kind's name
    more: dict = dataclasses.field(default_factory=dict)  # of config.json


def rope(**more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **more}}


TEXT = {"vocab_size": 264, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
QWEN3 = {**TEXT, "model_type": "qwen3_vl_text", **rope(mrope_section=[4, 3, 3], mrope_interleaved=True)}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
QWEN3_MOE = {**QWEN3, **EXPERTS, "model_type": "qwen3_vl_moe_text", "decoder_sparse_step": 1, "norm_topk_prob": True}
QWEN3_5 = {**TEXT, "model_type": "qwen3_5_text", "head_dim": 24, **rope(partial_rotary_factor=0.5, mrope_section=[2, 2, 2], mrope_interleaved=True),
           "layer_types": ["linear_attention", "full_attention", "linear_attention"], "full_attention_interval": 2, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8,
           "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
QWEN3_5_MOE = {**QWEN3_5, **EXPERTS, "model_type": "qwen3_5_moe_text", "shared_expert_intermediate_size": 32}
QWEN4 = {**QWEN3_5, **EXPERTS, "model_type": "qwen4_exp_text", "shared_expert_intermediate_size": 32, "eos_token_id": 1, "hc_count": 3, "hc_lowrank": 12,
         "heads_per_ngram": 2, "ngram_size": 3, "ngram_vocab_size_base": 60, "make_ngram_vocab_size_divisible_by": 16, "ple_conv_kernel_size": 4, "ple_embed_dim": 24,
         "ple_layer_ids": [1], "split_ngram_parts": 2, "seed": 1234, "indexer_budget": 8, "indexer_compress_ratio": 4, "indexer_head_dim": 16, "indexer_kv_heads": 1,
         "indexer_n_heads": 8, "norm_topk_prob": True, "output_gate_type": "sigmoid", "mamba_ssm_dtype": "float32"}
QWEN3_TOWER = {"model_type": "qwen3_vl", "depth": 3, "hidden_size": 24, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 40, "num_position_embeddings": 25,
               "deepstack_visual_indexes": [0, 1], "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
               "hidden_act": "gelu_pytorch_tanh"}
QWEN3_5_TOWER = {**QWEN3_TOWER, "model_type": "qwen3_5", "deepstack_visual_indexes": []}
QWEN_PROCESSOR = {"patch_size": 8, "temporal_patch_size": 2, "merge_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 16384},
                  "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 3}
GLM = {**TEXT, "model_type": "glm4v_moe_text", "head_dim": 24, "rms_norm_eps": 1e-5, **rope(partial_rotary_factor=0.5, mrope_section=[1, 2, 3]),
       "moe_intermediate_size": 24, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": True,
       "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "use_qk_norm": False}
GLM_TOWER = {"model_type": "glm4v_moe", "depth": 2, "hidden_size": 24, "intermediate_size": 56, "num_heads": 3, "out_hidden_size": 40, "image_size": 42, "patch_size": 7,
             "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False}
GLM_PROCESSOR = {"patch_size": 7, "temporal_patch_size": 2, "merge_size": 2, "size": {"shortest_edge": 1568, "longest_edge": 25088},
                 "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711], "resample": 3}
KIMI = {**TEXT, "model_type": "deepseek_v3", "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "moe_intermediate_size": 24, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rope_theta": 10000.0}
KIMI.pop("head_dim")
KIMI_TOWER = {"patch_size": 7, "init_pos_emb_height": 6, "init_pos_emb_width": 6, "init_pos_emb_time": 4, "merge_kernel_size": [2, 2], "vt_hidden_size": 24,
              "vt_intermediate_size": 40, "vt_num_attention_heads": 3, "vt_num_hidden_layers": 3, "mm_hidden_size": 24, "projector_ln_eps": 1e-5, "text_hidden_size": 40}
KIMI_PROCESSOR = {"media_proc_cfg": {"patch_size": 7, "merge_kernel_size": 2, "in_patch_limit": 300, "patch_limit_on_one_side": 40, "image_mean": [0.5, 0.5, 0.5],
                                     "image_std": [0.5, 0.5, 0.5]}}
# All experts of a layer: with rounded activations a token would choose others, and all tokens of its image with it
GEMMA_MOE = {**TEXT, "model_type": "gemma4_text", "num_hidden_layers": 4, "global_head_dim": 24, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
             "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 40, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
             "enable_moe_block": True, "num_experts": 4, "top_k_experts": 4, "moe_intermediate_size": 24, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
             "vocab_size_per_layer_input": 264, "use_double_wide_mlp": False, "use_bidirectional_attention": "vision", "pad_token_id": 3, "final_logit_softcapping": 30.0,
             "tie_word_embeddings": False,
             "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                 "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5}}}
del GEMMA_MOE["hidden_act"]
GEMMA = {**GEMMA_MOE, "enable_moe_block": False, "attention_k_eq_v": False, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 12, "use_double_wide_mlp": True,
         "use_bidirectional_attention": None}
GEMMA_TOWER = {"model_type": "gemma4_vision", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 12,
               "patch_size": 4, "pooling_kernel_size": 3, "position_embedding_size": 220, "use_clipped_linears": False, "standardize": True, "hidden_activation": "gelu_pytorch_tanh",
               "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}
GEMMA_PROCESSOR = {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70, "resample": 3, "do_normalize": False, "image_mean": [0.0, 0.0, 0.0],
                   "image_std": [1.0, 1.0, 1.0]}
GEMMA_MARKS = {"boi_token_id": 259, "eoi_token_id": 260, "audio_config": None}
KINDS = {
    "qwen3_vl": Family("Qwen3VLForConditionalGeneration", QWEN3, QWEN3_TOWER, QWEN_PROCESSOR, write_qwen, write_qwen_tower),
    "qwen3_vl_moe": Family("Qwen3VLMoeForConditionalGeneration", QWEN3_MOE, {**QWEN3_TOWER, "model_type": "qwen3_vl_moe"}, QWEN_PROCESSOR, write_qwen, write_qwen_tower),
    "qwen3_5": Family("Qwen3_5ForConditionalGeneration", QWEN3_5, QWEN3_5_TOWER, QWEN_PROCESSOR, write_qwen, write_qwen_tower),
    "qwen3_5_moe": Family("Qwen3_5MoeForConditionalGeneration", QWEN3_5_MOE, {**QWEN3_5_TOWER, "model_type": "qwen3_5_moe"}, QWEN_PROCESSOR, write_qwen,
                          write_qwen_tower),
    "qwen4_exp": Family("Qwen4ExpForConditionalGeneration", QWEN4, {**QWEN3_5_TOWER, "model_type": "qwen4_exp_vision"}, QWEN_PROCESSOR, write_qwen4, write_qwen_tower),
    "glm4v_moe": Family("Glm4vMoeForConditionalGeneration", GLM, GLM_TOWER, GLM_PROCESSOR, write_glm, write_glm_tower),
    "kimi_k25": Family("Kimi_K25ForConditionalGeneration", KIMI, KIMI_TOWER, KIMI_PROCESSOR, write_kimi, write_kimi_tower, image_key="media_placeholder_token_id"),
    "gemma4_moe": Family("Gemma4ForConditionalGeneration", GEMMA_MOE, GEMMA_TOWER, GEMMA_PROCESSOR, write_gemma, write_gemma_tower, model_type="gemma4", more=GEMMA_MARKS),
    "gemma4": Family("Gemma4ForConditionalGeneration", GEMMA, {**GEMMA_TOWER, "use_clipped_linears": True, "standardize": False}, GEMMA_PROCESSOR, write_gemma,
                     write_gemma_tower, more=GEMMA_MARKS),
}
