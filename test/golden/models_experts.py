"""Tensors of more tiny checkpoints (models.py)."""
import math

from models import CODES, CODES_RMS, floats, mlp, stream, tensor, weight


def norm(out, name, n):
    out[name + ".weight"] = tensor(name, [n], 0.3, 1)


def ends(out, c):
    tied = c.get("tie_word_embeddings")
    out["model.embed_tokens.weight"] = tensor("embed", [c["vocab_size"], c["hidden_size"]], 0.2 if tied else 1)
    norm(out, "model.norm", c["hidden_size"])
    if tied:
        return
    weight(out, c, "lm_head", c["vocab_size"], c["hidden_size"], fp8=False)


def attention(out, c, p):
    h, dim = c["hidden_size"], c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    for name, n in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
        weight(out, c, f"{p}{name}_proj", n * dim, h, 2 if name == "q" else 1)
    weight(out, c, p + "o_proj", h, c["num_attention_heads"] * dim)


def layers(out, c, *norms):
    """Adds what is outside of layers, and attention and the norms of each; yields the prefix of its names."""
    ends(out, c)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in norms:
            norm(out, p + name, c["hidden_size"])
        attention(out, c, p + "self_attn.")
        yield p


def arctic(c):
    out, h = {}, c["hidden_size"]
    for p in layers(out, c, "input_layernorm", "residual_layernorm", "post_attention_layernorm"):
        mlp(out, c, p + "residual_mlp.", h, names=("w1", "w3", "w2"))
        weight(out, c, p + "block_sparse_moe.gate", c["num_local_experts"], h, 1.5, fp8=False)
        for e in range(c["num_local_experts"]):
            mlp(out, c, f"{p}block_sparse_moe.experts.{e}.", c["intermediate_size"], names=("w1", "w3", "w2"))
    return out


def smallthinker(c):
    out, h = {}, c["hidden_size"]
    for p in layers(out, c, "input_layernorm", "post_attention_layernorm"):
        weight(out, c, p + "block_sparse_moe.primary_router", c["moe_num_primary_experts"], h, 3, fp8=False)
        for e in range(c["moe_num_primary_experts"]):
            mlp(out, c, f"{p}block_sparse_moe.experts.{e}.", c["moe_ffn_hidden_size"], names=("gate", "up", "down"))
    return out


def grok(c):
    out, h = {}, c["hidden_size"]
    for p in layers(out, c, "pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"):
        mlp(out, c, p + "mlp.", c["intermediate_size"])
        weight(out, c, p + "block_sparse_moe.gate", c["num_local_experts"], h, 3, fp8=False)
        for e in range(c["num_local_experts"]):
            mlp(out, c, f"{p}block_sparse_moe.experts.{e}.", c["moe_intermediate_size"], names=("w1", "w3", "w2"))
    return out


def dots3_note(c):
    out, h = {}, c["hidden_size"]
    ends(out, c)
    for i in range(c["num_hidden_layers"]):
        p, window = f"model.layers.{i}.", i >= 2 and i % 4 != 1
        heads, low, latent, nope, v = (c[("swa_" if window else "") + k] for k in ("num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"))
        rope, s = c["swa_head_dim"] - nope if window else c["qk_rope_head_dim"], p + "self_attn."
        for name, n in (("input_layernorm", h), ("post_attention_layernorm", h), ("self_attn.q_a_layernorm", low), ("self_attn.kv_a_layernorm", latent),
                        ("self_attn.k_rope_only_layernorm", rope)):
            norm(out, p + name, n)
        for name, rows, cols, gain in (("q_a_proj", low, h, 1), ("q_b_proj", heads * (nope + rope), low, 1), ("kv_a_proj_with_mqa", latent + rope, h, 1),
                                       ("kv_b_proj", heads * (nope + v), latent, 0.6), ("o_proj", h, heads * v, 1), ("g_proj", heads, h, 2)):
            weight(out, c, s + name, rows, cols, gain)
        if not window:
            index, dim = s + "indexer.", c["index_head_dim"]
            weight(out, c, index + "wq_b", c["index_n_heads"] * dim, low, 2)
            weight(out, c, index + "wk", dim, h)
            weight(out, c, index + "weights_proj", c["index_n_heads"], h)
            norm(out, index + "k_norm", dim)
            out[index + "k_norm.bias"] = tensor(index + "k_norm_bias", [dim], 0.3)
        if i < c["first_k_dense_replace"]:
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        weight(out, c, p + "mlp.gate", c["n_routed_experts"], h, 1.5)
        out[p + "mlp.gate.e_score_correction_bias"] = floats(p + "bias", [c["n_routed_experts"]], 0, 0.25)
        for e in range(c["n_routed_experts"]):
            mlp(out, c, f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
        mlp(out, c, p + "mlp.shared_experts.", c["moe_shared_expert_intermediate_size"])
    return out


def mistral_large4(c):
    c, out = {**c, **c["text_config"]}, {}
    h, heads, dim = c["hidden_size"], c["num_attention_heads"], c["qk_nope_head_dim"] + c["qk_rope_head_dim"]

    def factors(name, n):
        out[name + ".s"], out[name + ".b"] = floats(name + "s", [n], 0.25, 0.2), floats(name + "b", [n], 0.5, 0.3)
    out["tok_embeddings.weight"] = tensor("embed", [c["vocab_size"], h], 1)
    norm(out, "norm", h)
    weight(out, c, "output", c["vocab_size"], h, fp8=False)
    out["lerope.alpha"] = floats("alpha", [c["qk_rope_head_dim"] // 2], 0, 0.8)
    out["mtp_dspark.norm.weight"], out["vision_encoder.ln_pre.weight"] = tensor("draft", [h], 1), tensor("vision", [24], 1)
    for i in range(c["num_hidden_layers"]):
        p, rope = f"layers.{i}.", c["qk_rope_head_dim"] if c["no_rope_layers"][i] else 0
        a = p + "attention."
        norm(out, p + "attention_norm", h)
        norm(out, p + "ffn_norm", h)
        factors(a + "ssmax_scaling", heads)
        if c["kv_source_layers"][i] == i:
            weight(out, c, a + "wkv_a_with_mqa", c["kv_lora_rank"] + rope, h)
            norm(out, a + "kv_a_norm", c["kv_lora_rank"])
        for name, rows, cols, gain in (("wq", heads * dim, h, 1), ("wkv_b", heads * (dim - rope + c["v_head_dim"]), c["kv_lora_rank"], 1),
                                       ("wo", h, heads * c["v_head_dim"], 1)):
            weight(out, c, a + name, rows, cols, gain)
        if c["indexer_types"][i] == "full":
            index = a + "indexer."
            for name, rows in (("wq_b", c["index_n_heads"] * c["index_head_dim"]), ("wk", c["index_head_dim"]), ("weights_proj", c["index_n_heads"])):
                weight(out, c, index + name, rows, h, fp8=name != "weights_proj")
            for name, n in (("k_norm", c["index_head_dim"]), ("q_input_norm", h)):
                norm(out, index + name, n)
                out[index + name + ".bias"] = tensor(index + name + "_bias", [n], 0.3)
            factors(index + "ssmax_scaling", c["index_n_heads"])
        if i < c["first_k_dense_replace"]:
            mlp(out, c, p + "feed_forward.", c["intermediate_size"], names=("w1", "w3", "w2"))
            continue
        weight(out, c, p + "gate", c["n_routed_experts"], h, 1.5, fp8=False)
        for e in [f"experts.{e}." for e in range(c["n_routed_experts"])] + ["shared_experts."]:
            mlp(out, c, p + e, c["moe_intermediate_size"], names=("w1", "w3", "w2"))
    return {name.replace(".weight_scale_inv", ".qscale_weight"): t for name, t in out.items()}


def muse_spark(c):
    c, out, prefix = c["text_config"], {}, "model.language_model."
    h, width, inter, dim = c["hidden_size"], c["moe_hidden_size"], c["moe_intermediate_size"], c["head_dim"]

    def centered(name, n):
        out[name + ".weight"] = tensor(name, [n], 0.3)
    out[prefix + "embed_tokens.weight"] = tensor("embed", [c["vocab_size"], h], 0.05)
    norm(out, prefix + "norm", h)
    weight(out, c, "lm_head", c["vocab_size"], h)
    for i in range(c["num_hidden_layers"]):
        p = f"{prefix}layers.{i}."
        for name in ("input_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            centered(p + name, h)
        for name in ("post_attention_residual_gate.gate", "post_feedforward_residual_gate.gate"):
            out[p + name] = floats(p + name, [h], 0, 2)
        attention(out, c, p + "self_attn.")
        weight(out, c, p + "self_attn.gate_proj", c["num_attention_heads"] * dim, h, 2)
        if c["mlp_layer_types"][i] == "dense":
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        weight(out, c, p + "mlp.gate", c["num_local_experts"], h, 3)
        out[p + "mlp.gate.e_score_correction_bias"] = floats(p + "bias", [c["num_local_experts"]], 0, 0.25)
        weight(out, c, p + "mlp.pre_expert_proj", width, h)
        weight(out, c, p + "mlp.post_expert_proj", h, width)
        centered(p + "mlp.pre_expert_norm", width)
        centered(p + "mlp.experts.post_expert_norm", width)
        for name, rows, cols in (("gate_up_proj", 2 * inter, width), ("down_proj", width, inter)):
            out[f"{p}mlp.experts.{name}"] = tensor(p + name, [c["num_local_experts"], rows, cols], 1.5 / math.sqrt(cols))
    out["model.vision_projection.weight"] = tensor("vision", [h, 16], 1)  # not read
    return out


def ernie4_5_vl_moe(c):
    c, out = {**c, **c["text_config"]}, {}
    h, experts = c["hidden_size"], c["moe_num_experts"]
    ends(out, c)
    out["vision_model.ln.weight"], out["model.resampler_model.after_norm.weight"] = tensor("vision", [24], 1), tensor("resampler", [h], 1)  # not read
    for i, kind in enumerate(c["mlp_layer_types"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(out, p + name, h)
        attention(out, c, p + "self_attn.")
        if kind == "dense":
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        for name in ("weight", "weight_1"):
            out[f"{p}mlp.gate.{name}"] = floats(p + name, [h, experts], 0, 3 / math.sqrt(h))
        out[p + "mlp.moe_statics.e_score_correction_bias"] = floats(p + "bias", [2, experts], 0, 0.15)
        for e in range(2 * experts):
            mlp(out, c, f"{p}mlp.experts.{e}.", c["moe_intermediate_size"][e // experts])
        mlp(out, c, p + "mlp.shared_experts.", c["moe_num_shared_experts"] * c["moe_intermediate_size"][0])
    return out


def lfm3(c):
    c, out, prefix = {**c, **c["text_config"]}, {}, "model.language_model."
    h = c["hidden_size"]
    out[prefix + "embed_tokens.weight"], out["model.vision_tower.norm.weight"] = tensor("embed", [c["vocab_size"], h], 0.2), tensor("vision", [24], 1)  # the second is not read
    norm(out, prefix + "embedding_norm", h)
    for i, kind in enumerate(c["layer_types"]):
        p = f"{prefix}layers.{i}."
        for name in ("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm"):
            norm(out, p + name, h)
        mlp(out, c, p + "feed_forward.", c["intermediate_size"], names=("w1", "w3", "w2"))
        if kind != "conv":
            attention(out, c, p + "self_attn.")
            weight(out, c, p + "self_attn.gate_proj", c["num_attention_heads"], h, 2)
            for name in ("q_norm", "k_norm"):
                norm(out, f"{p}self_attn.{name}", c["head_dim"])
            continue
        for name, rows in (("in_proj", 3 * h), ("out_proj", h)):
            weight(out, c, f"{p}conv.{name}", rows, h, 1.5)
            out[f"{p}conv.{name}.bias"] = tensor(f"{p}{name} bias", [rows], 0.3)
        out[p + "conv.conv.weight"], out[p + "conv.conv.bias"] = floats(p + "taps", [h, 1, c["conv_L_cache"]], 0, 1), tensor(p + "conv bias", [h], 0.3)
    return out


def nanochat(c):
    out, h, inter = {}, c["hidden_size"], c["intermediate_size"]
    for name in ("model.embed_tokens", "lm_head"):
        out[name + ".weight"] = tensor(name, [c["vocab_size"], h], 0.05 if name != "lm_head" else 1.5 / math.sqrt(h))
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        attention(out, c, p + "self_attn.")
        weight(out, c, p + "mlp.fc1", inter, h)
        weight(out, c, p + "mlp.fc2", h, inter)
    return out


def nemotron(c):
    out, h, inter = {}, c["hidden_size"], c["intermediate_size"]
    for name in ("model.embed_tokens", "lm_head"):
        out[name + ".weight"] = tensor(name, [c["vocab_size"], h], 1 if name != "lm_head" else 1.5 / math.sqrt(h))
    norms = ["model.norm"]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        attention(out, c, p + "self_attn.")
        weight(out, c, p + "mlp.up_proj", inter, h)
        weight(out, c, p + "mlp.down_proj", h, inter)
        norms += [p + "input_layernorm", p + "post_attention_layernorm"]
    for name in norms:
        out[name + ".weight"], out[name + ".bias"] = floats(name, [h], 0, 0.3), floats(name + " bias", [h], 0, 0.3)
    return out


def nvfp4(out, name, n, rows, cols, gain):
    """As Inkling 2 Mini stores it: a scale for 16 columns, and two factors for each expert."""
    size = 2688 * gain / cols**0.5 / 3.5
    out[name] = "U8", [n, rows, cols // 2], stream(name).digest(n * rows * cols // 2)
    out[name + "_scale"] = "F8_E4M3", [n, rows, cols // 16], bytes(0x30 + b % 16 for b in stream(name, "scales").digest(n * rows * cols // 16))
    out[name + "_amax"] = floats(name + "_amax", [n], size, size / 3)
    out[name + "_outer_scale_denominator"] = floats(name + "_denominator", [n], 2688, 300)


def mxfp8(out, name, n, rows, cols, gain):
    """An exponent in a byte for 32 columns."""
    power = round(math.log2(gain / cols**0.5 / CODES_RMS)) + 127
    out[name] = "F8_E4M3", [n, rows, cols], stream(name).digest(n * rows * cols).translate(CODES)
    out[name + "_scale"] = "U8", [n, rows, cols // 32], bytes(power - 1 + b % 3 for b in stream(name, "scales").digest(n * rows * cols // 32))


def inkling2(c):
    out, h, taps, experts, inter = {}, c["hidden_size"], c["conv_kernel_size"], c["n_routed_experts"], c["moe_intermediate_size"]
    pool, query = "model.llm.attn_res.", 1 if "loop_gate_rank" in c else 2  # less in loops, which repeat every error
    for name in ("embed", "unembed"):
        out[f"model.llm.{name}.weight"] = tensor(name, [c["vocab_size"], h], 1 if name == "embed" else 1.5 / h**0.5)
    for name in ("embed_norm", "norm"):
        norm(out, "model.llm." + name, h)
    out[pool + "output_query"] = floats("output_query", [h], 0, query)
    for i, kind in enumerate(c["layer_types"]):
        p, window = f"model.llm.layers.{i}.", kind == "hybrid_sliding"
        near, s = "swa_" if window else "", p + "attn."
        heads, kv, dim = (c[near + k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        if i:
            out[f"{pool}attn_queries.{i - 1}"] = floats(f"attn_queries.{i}", [h] if window else [3, h], 0, query)
        out[f"{pool}mlp_queries.{i}"] = floats(f"mlp_queries.{i}", [h], 0, query)
        for name in ("mlp_norm", *(["attn_norm"] if window else ["q_input_norm", "k_input_norm", "v_input_norm"])):
            norm(out, p + name, h)
        for name, rows, cols, gain in (("wq_du", heads * dim, h, 1.5), ("wk_dv", kv * dim, h, 1), ("wv_dv", kv * dim, h, 1), ("wo_ud", h, heads * dim, 1.5),
                                       ("gate_attn", heads * dim, h, 1), ("attn_sink_proj", heads, h, 1), ("wr_du", heads * c["d_rel"], h, 1)):
            weight(out, c, s + name, rows, cols, gain)
        out[s + "q_l2_clip.scale"] = tensor(s + "q scale", [heads, dim], 0.3, 1)
        out[s + "rel_l2_clip.scale"] = tensor(s + "rel scale", [heads, c["d_rel"]], 0.3, 1)
        out[s + "rel_logits_proj.proj"] = tensor(s + "table", [c["d_rel"], c["sliding_window_size"] if window else c["rel_extent"]], 0.5)
        for name in ("k_sconv", "v_sconv"):
            if window:
                out[f"{s}{name}.weight"] = floats(s + name, [kv * dim, 1, taps], 0, 1)
            else:
                out[f"{s}{name}.static_w"] = floats(s + name, [taps, kv * dim], 0, 1)
                out[f"{s}{name}.weight_proj"] = tensor(f"{s}{name} taps", [kv * taps, h], 0.7 / h**0.5)
        for name in ("attn_sconv", "mlp_sconv"):
            out[f"{p}{name}.weight"] = floats(p + name, [h, 1, taps], 0, 1)
        weight(out, c, p + "mlp.gate", experts, h, 1.5)
        out[p + "mlp.gate.bias"] = floats(p + "bias", [experts], 0, 0.25 if "loop_gate_rank" not in c else 1.5)
        if c.get("loop_layer_index_start", len(c["layer_types"])) <= i < c.get("loop_layer_index_end", 0):
            for part in ("attn", "k", "v", "mlp"):
                name, rank = f"{p}controllers.{part}.", c["loop_gate_rank"]
                for end, rows, cols in (("down_weight", rank, 2 * h), ("forget_weight", h, rank), ("gain_weight", h, rank)):
                    out[name + end] = tensor(name + end, [rows, cols], 0.7 / cols**0.5)
        if "loop_gate_rank" in c:
            nvfp4(out, p + "mlp.experts.w13_weight", experts, 2 * inter, h, 1.5)
            mxfp8(out, p + "mlp.experts.w2_weight", experts, h, inter, 1.5)
            continue
        out[p + "mlp.experts.w13_weight"] = tensor(p + "w13", [experts, 2 * inter, h], 1.5 / h**0.5)
        out[p + "mlp.experts.w2_weight"] = tensor(p + "w2", [experts, h, inter], 1.5 / inter**0.5)
    if "loop_gate_rank" in c:
        loop = c["loop_layer_index_end"] - c["loop_layer_index_start"]
        for name in ("queries", "kv_queries"):
            out[f"model.llm.middle_cycle_cross_pass_{name}"] = floats(name, [2 * loop, h], 0, query)
    return out


def kda(out, c, p, heads, dim, taps):
    """Kimi delta attention with projections of low rank."""
    h, width = c["hidden_size"], heads * dim
    for name, rows, cols, gain in (("q_proj", width, h, 1), ("k_proj", width, h, 1), ("v_proj", width, h, 1), ("b_proj", heads, h, 2), ("f_a_proj", dim, h, 1),
                                   ("f_b_proj", width, dim, 1), ("g_a_proj", dim, h, 1), ("g_b_proj", width, dim, 2), ("o_proj", h, width, 1.5)):
        weight(out, c, p + name, rows, cols, gain, fp8=False)
    for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
        out[p + name + ".weight"] = floats(p + name, [width, 1, taps], 0, 1)
    out[p + "A_log"], out[p + "dt_bias"] = floats(p + "rates", [1, 1, heads, 1], 0, 1), floats(p + "dt", [width], -1, 1)
    norm(out, p + "o_norm", dim)


def routed(out, c, p, n, bias, shared=0):
    """A router with a selection bias, n experts, and if shared is not 0 a shared one of that size."""
    weight(out, c, p + "gate", n, c["hidden_size"], 1.5, fp8=False)
    out[p + "gate." + bias] = floats(p.removesuffix("mlp.") + "bias", [n], 0, 0.25)
    for e in range(n):
        mlp(out, c, f"{p}experts.{e}.", c["moe_intermediate_size"])
    if shared:
        mlp(out, c, p + "shared_experts.", shared)


def solar_open2(c):
    out, h, n, linear = {}, c["hidden_size"], c["n_routed_experts"], c["linear_attn_config"]
    ends(out, c)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(out, p + name, h)
        if i in c["gqa_layers"]:
            attention(out, c, p + "self_attn.")
            weight(out, c, p + "self_attn.g_proj", c["num_attention_heads"] * c["head_dim"], h, 2)
        else:
            kda(out, c, p + "self_attn.", linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"])
        if i < c["first_k_dense_replace"]:
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        routed(out, c, p + "mlp.", n, "e_score_correction_bias", c["n_shared_experts"] * c["moe_intermediate_size"])
    return out


def bailing_hybrid(c):
    """Ling 2.5, Ring-linear, which has GQA instead of MLA, and Param2, which has nothing else."""
    out, h, n, heads = {}, c["hidden_size"], c["num_experts"], c["num_attention_heads"]
    nope, rope, v, latent, low = (c.get(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"))
    out["model.word_embeddings.weight"] = tensor("embed", [c["vocab_size"], h], 1)
    norm(out, "model.norm", h)
    weight(out, c, "lm_head", c["vocab_size"], h, fp8=False)
    for i in range(c["num_hidden_layers"]):
        p, a = f"model.layers.{i}.", f"model.layers.{i}.attention."
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(out, p + name, h)
        group = c.get("layer_group_size", 1)
        attends = (i + 1) % group == 0 or i >= c["num_hidden_layers"] // group * group
        if attends and not latent:
            weight(out, c, a + "query_key_value", (heads + 2 * c["num_key_value_heads"]) * c["head_dim"], h, 1.5)
            weight(out, c, a + "dense", h, heads * c["head_dim"])
            for name in ("query_layernorm", "key_layernorm"):
                norm(out, a + name, c["head_dim"])
        elif attends:
            for name, rows, cols, gain in (("q_a_proj", low, h, 1), ("q_b_proj", heads * (nope + rope), low, 2), ("kv_a_proj_with_mqa", latent + rope, h, 1),
                                           ("kv_b_proj", heads * (nope + v), latent, 1), ("dense", h, heads * v, 1)):
                weight(out, c, a + name, rows, cols, gain)
            norm(out, a + "q_a_layernorm", low)
            norm(out, a + "kv_a_layernorm", latent)
        else:
            width = heads * c["head_dim"]
            for name, rows, cols in (("query_key_value", 3 * width, h), ("g_proj", width, h), ("dense", h, width)):
                weight(out, c, a + name, rows, cols, 1.5)
            for name, size in (("query_layernorm", c["head_dim"]), ("key_layernorm", c["head_dim"]), ("g_norm", width)):
                norm(out, a + name, size)
        if i < c["first_k_dense_replace"]:
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        routed(out, c, p + "mlp.", n, "expert_bias", c["moe_shared_expert_intermediate_size"])
    return out


def in_pieces(out, c, name, n, rows, cols):
    """A matrix whose pieces, one for each device of those that trained it, are quantized one by one."""
    one = {}
    for i in range(n):
        weight(one, c, f"{name}.{i}", rows // n, cols, 1.5)
    for end in ("weight", "weight_scale_inv"):
        dtype, shape, _ = one[f"{name}.0.{end}"]
        out[f"{name}.{end}"] = dtype, [n * shape[0], shape[1]], b"".join(one[f"{name}.{i}.{end}"][2] for i in range(n))


def mimo_v2(c):
    out, h, heads, n = {}, c["hidden_size"], c["num_attention_heads"], c["n_routed_experts"]
    ends(out, c)
    for i, window in enumerate(c["hybrid_layer_pattern"]):
        p, kv = f"model.layers.{i}.", c["swa_num_key_value_heads" if window else "num_key_value_heads"]
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(out, p + name, h)
        in_pieces(out, c, p + "self_attn.qkv_proj", c["num_key_value_heads"], heads * c["head_dim"] + kv * (c["head_dim"] + c["v_head_dim"]), h)
        weight(out, c, p + "self_attn.o_proj", h, heads * c["v_head_dim"], fp8=False)
        if window:
            out[p + "self_attn.attention_sink_bias"] = tensor(p + "sinks", [heads], 1, 1)
        if not c["moe_layer_freq"][i]:
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        routed(out, c, p + "mlp.", n, "e_score_correction_bias")
    return out


def packed(out, name, rows, cols, gain):
    """MXFP4 as compressed-tensors packs it: two codes per byte, exponents for 32 columns each."""
    power = round(math.log2(gain / math.sqrt(cols) / 2.9)) + 127
    out[name + ".weight_packed"] = "U8", [rows, cols // 2], stream(name).digest(rows * cols // 2)
    out[name + ".weight_scale"] = "U8", [rows, cols // 32], bytes(power - 1 + b % 3 for b in stream(name, "scales").digest(rows * cols // 32))


def kimi_k3(c):
    c, out, start = c["text_config"], {}, "language_model.model."
    h, linear, latent, inter, vocab = c["hidden_size"], c["linear_attn_config"], c["routed_expert_hidden_size"], c["moe_intermediate_size"], c["vocab_size"]
    heads, nope, rope, v, low = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    width, rank = linear["num_heads"] * linear["head_dim"], linear["head_dim"]

    def plain(name, rows, cols, gain=1.0):
        out[name + ".weight"] = tensor(name, [rows, cols], gain / math.sqrt(cols))

    def residual(name):
        norm(out, name + "_norm", h)
        plain(name + "_proj", 1, h, 0.6)
    out[start + "embed_tokens.weight"] = tensor("embed", [vocab, h], 1)
    out["vision_tower.encoder.final_layernorm.weight"] = tensor("vision", [24], 1)
    plain("language_model.lm_head", vocab, h)
    norm(out, start + "norm", h)
    residual(start + "output_attn_res")
    for i in range(c["num_hidden_layers"]):
        p = f"{start}layers.{i}."
        s, sparse = p + "self_attn.", p + "block_sparse_moe."
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(out, p + name, h)
        residual(p + "self_attention_res")
        residual(p + "mlp_res")
        kda = i + 1 in linear["kda_layers"]
        if kda:
            for name in "qkv":
                plain(f"{s}{name}_proj", width, h)
                out[f"{s}{name}_conv1d.weight"] = floats(s + name + "_conv", [width, 1, linear["short_conv_kernel_size"]], 0, 0.8)
            for name, rows, cols, gain in (("f_a_proj", rank, h, 1), ("f_b_proj", width, rank, 1.5), ("b_proj", linear["num_heads"], h, 1), ("g_proj", width, h, 1.5),
                                           ("o_proj", h, width, 1)):
                plain(s + name, rows, cols, gain)
            out[s + "A_log"], out[s + "dt_bias"] = floats(s + "A_log", [linear["head_dim"]], 0, 1), floats(s + "dt_bias", [width], -1.5, 1)
            norm(out, s + "o_norm", linear["head_dim"])
        else:
            for name, rows, cols, gain in (("q_a_proj", c["q_lora_rank"], h, 1), ("q_b_proj", heads * (nope + rope), c["q_lora_rank"], 1.5),
                                           ("kv_a_proj_with_mqa", low + rope, h, 1), ("kv_b_proj", heads * (nope + v), low, 1), ("g_proj", heads * v, h, 1.5),
                                           ("o_proj", h, heads * v, 1)):
                plain(s + name, rows, cols, gain)
            norm(out, s + "q_a_layernorm", c["q_lora_rank"])
            norm(out, s + "kv_a_layernorm", low)
        if i < c["first_k_dense_replace"]:
            mlp(out, {"hidden_size": h}, p + "mlp.", c["intermediate_size"])
            continue
        plain(sparse + "gate", c["num_experts"], h, 1.5)
        out[sparse + "gate.e_score_correction_bias"] = floats(p + "bias", [c["num_experts"]], 0, 0.25)
        shared = c["num_shared_experts"] * inter
        for name, rows, cols, gain in (("shared_experts.gate_proj", shared, h, 1), ("shared_experts.up_proj", shared, h, 1), ("shared_experts.down_proj", h, shared, 1),
                                       ("routed_expert_down_proj", latent, h, 1), ("routed_expert_up_proj", h, latent, 0.4)):
            plain(sparse + name, rows, cols, gain)
        norm(out, sparse + "routed_expert_norm", latent)
        for e in range(c["num_experts"]):
            for name, rows, cols in (("w1", inter, latent), ("w3", inter, latent), ("w2", latent, inter)):
                packed(out, f"{sparse}experts.{e}.{name}", rows, cols, 1.5)
    return out


def klear(c):
    out, h, inter, heads, kv = {}, c["hidden_size"], c["moe_intermediate_size"], c["num_attention_heads"], c["num_key_value_heads"]
    dim = h // heads
    for i, p in enumerate(layers(out, c, "input_layernorm", "post_attention_layernorm")):
        s, f = p + "self_attn.", p + "mlp."
        for name, n in (("q", heads * dim), ("k", kv * dim), ("v", kv * dim), ("o", h)):
            out[f"{s}{name}_proj.bias"] = tensor(f"{s}{name}_bias", [n], 0.2)
        for name in "qk":
            norm(out, f"{s}{name}_norm", dim)
        if i in c["mlp_only_layers"]:
            mlp(out, c, f, c["intermediate_size"])
            continue
        weight(out, c, f + "gate", c["num_experts"], h, 1.5, fp8=False)
        out[f + "expert_bias"] = floats(f + "expert_bias", [c["num_experts"]], 0, 0.25)
        weight(out, c, f + "coefficient", 2, h, 1.5, fp8=False)
        out[f + "coefficient.bias"] = floats(f + "coefficient_bias", [2], 0, 1)
        for e in range(c["num_experts"]):
            mlp(out, c, f"{f}experts.{e}.", inter)
        mlp(out, c, f + "shared_experts.", c["n_shared_experts"] * inter)
    return out


def interns1_pro(config):
    c, out = {**config, **config["text_config"]}, {}
    inter, pairs = c["moe_intermediate_size"], 9  # frequencies whose waves are shorter than the context
    for i, p in enumerate(layers(out, c, "input_layernorm", "post_attention_layernorm")):
        for name in "qk":
            norm(out, f"{p}self_attn.{name}_norm", c["head_dim"])
        if i in c["mlp_only_layers"]:
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        weight(out, c, p + "mlp.gate", c["num_experts"], c["hidden_size"], 1.5, fp8=False)
        for e in range(c["num_experts"]):
            mlp(out, c, f"{p}mlp.experts.{e}.", inter)
    for name in ("cos", "sin"):
        out[f"model.rotary_emb.{name}_coef"] = floats(name, [c["num_key_value_heads"], pairs, pairs], 0.1, 0.6)
    out["model.time_series.norm.weight"] = out["model.visual.norm.weight"] = tensor("other", [24], 1)  # not read
    skipped = ("model.time_series", "model.visual")
    return {n.replace("model.", "model.language_model.", 1) if n.startswith("model.") and not n.startswith(skipped) else n: t for n, t in out.items()}


def pangu_pro(c):
    out = {}
    for i, p in enumerate(layers(out, c, "input_layernorm", "post_attention_layernorm")):
        dim = c["hidden_size"] // c["num_attention_heads"]
        for name, n in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"]), ("o", c["num_attention_heads"])):
            out[f"{p}self_attn.{name}_proj.bias"] = tensor(f"{p}{name} bias", [n * dim], 0.3)
        if i in c["mlp_only_layers"]:
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        weight(out, c, p + "mlp.gate", c["num_experts"], c["hidden_size"], 1.5)
        out[p + "mlp.router_scale"] = floats(p + "scale", [1, c["num_experts"]], 2, 1.5)
        for e in range(c["num_experts"]):
            mlp(out, c, f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
        mlp(out, c, p + "mlp.shared_expert.", c["shared_expert_intermediate_size"])
    return out


def gemma4(c):
    out, h, layers, dim = {}, c["hidden_size"], c["num_hidden_layers"], c["hidden_size_per_layer_input"]

    def norm(name, n, size=1.0):
        out[name + ".weight"] = tensor(name, [n], 0.3 * size, size)
    out["model.embed_tokens.weight"] = tensor("embed", [c["vocab_size"], h], 0.2)
    out["model.embed_tokens_per_layer.weight"] = tensor("embed per layer", [c["vocab_size"], layers * dim], 0.2)
    weight(out, c, "model.per_layer_model_projection", layers * dim, h, 6)
    norm("model.per_layer_projection_norm", dim)
    for i in range(layers):
        p, local = f"model.layers.{i}.", c["layer_types"][i] == "sliding_attention"
        own, head = i < layers - c["num_kv_shared_layers"], c["head_dim" if local else "global_head_dim"]
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm"):
            norm(p + name, h)
        for name, n in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
            if own or name != "v":  # a checkpoint may have k_proj where the reference does not read it
                weight(out, c, f"{p}self_attn.{name}_proj", n * head, h)
            if name == "q" or name == "k" and own:
                norm(f"{p}self_attn.{name}_norm", head, 0.6)
        weight(out, c, p + "self_attn.o_proj", h, c["num_attention_heads"] * head)
        mlp(out, c, p + "mlp.", c["intermediate_size"] * (1 if own else 2))
        weight(out, c, p + "per_layer_input_gate", dim, h, 1.5)
        weight(out, c, p + "per_layer_projection", h, dim, 1.5)
        out[p + "layer_scalar"] = tensor(p + "scalar", [1], 0.2, 0.8)
    norm("model.norm", h)
    return out


FAMILIES = {"arctic": arctic, "bailing_hybrid": bailing_hybrid, "bailing_moe_linear": bailing_hybrid, "param2moe": bailing_hybrid, "dots3_note": dots3_note, "gemma4_text": gemma4, "ernie4_5_vl_moe": ernie4_5_vl_moe, "grok": grok, "inkling2_loop_text": inkling2, "inkling2_text": inkling2, "interns1_pro": interns1_pro, "kimi_k3": kimi_k3, "Klear": klear, "lfm3_vl": lfm3, "mimo_v2": mimo_v2, "mistral_large4": mistral_large4, "muse_spark": muse_spark, "nanochat": nanochat, "nemotron": nemotron, "PanguProMoE": pangu_pro, "smallthinker": smallthinker, "solar_open2": solar_open2}
