"""Forward passes (oracle.py) of more families, written from the vendors' code.
One function a family; a second file could only divide them by name."""
import math

import numpy as np

from oracle import attend, capped, e4m3, experts, frequencies, gelu, heads_of, lightning_indexer, mlp, rms_norm, rotate, sigmoid, silu, softmax


def one(m, x, name):
    return rms_norm(x, m[name + ".weight"], m.config["rms_norm_eps"])


def attention(m, x, name, rope=True, window=0):
    c, n = m.config, len(x)
    q, k, v = (m.linear(x, f"{name}{p}_proj").reshape(n, h, -1) for p, h in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])))
    if rope:
        q, k = rotate(q, c, False), rotate(k, c, False)
    k, v = (np.repeat(y, c["num_attention_heads"] // c["num_key_value_heads"], 1) for y in (k, v))
    return m.linear(attend(q, k, v, q.shape[-1] ** -0.5, window), name + "o_proj")


def best(choice, k):
    """The k best experts of each token, and the distance of the closest choice to a tie."""
    chosen, order = np.argsort(-choice, -1, kind="stable")[:, :k], -np.sort(-choice, -1)
    return chosen, (order[:, k - 1] - order[:, k]).min()


def weighted(x, chosen, weight, expert):
    """The sum of expert(e, rows) times their weights."""
    y = np.zeros_like(x)
    for e in np.unique(chosen):
        rows, place = np.nonzero(chosen == e)
        y[rows] += weight[rows, place][:, None] * expert(e, x[rows])
    return y


def arctic(m, tokens):
    """h = x + attention(norm(x)); x = h + FFN(norm'(h)) + experts(norm''(x))."""
    c, nearest, w = m.config, math.inf, ("w1", "w3", "w2")
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        h = x + attention(m, one(m, x, name + "input_layernorm"), name + "self_attn.")
        early = one(m, x, name + "post_attention_layernorm")
        score = softmax(m.linear(early, name + "block_sparse_moe.gate"))
        chosen, gap = best(score, c["num_experts_per_tok"])
        weight = np.take_along_axis(score, chosen, -1)
        if chosen.shape[1] > 1:
            weight = weight / weight.sum(-1, keepdims=True)
        x = h + mlp(m, one(m, h, name + "residual_layernorm"), name + "residual_mlp.", *w)
        x = x + weighted(early, chosen, weight, lambda e, rows: mlp(m, rows, f"{name}block_sparse_moe.experts.{e}.", *w))
        nearest = min(nearest, gap)
    return m.linear(one(m, x, "model.norm"), "lm_head"), nearest


def smallthinker(m, tokens):
    """h = x + attention(norm(x)); x = h + experts(norm'(h)), chosen by the logits router(x) and weighted by their normed sigmoids or their softmax. An expert
    is down(relu(gate) * up)."""
    c, nearest = m.config, math.inf
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name, window = f"model.layers.{layer}.", c["sliding_window_size"] if c["sliding_window_layout"][layer] else 0
        h = x + attention(m, one(m, x, name + "input_layernorm"), name + "self_attn.", c["rope_layout"][layer], window)
        logits = m.linear(x, name + "block_sparse_moe.primary_router")
        chosen, gap = best(logits, c["moe_num_active_primary_experts"])
        weight = np.take_along_axis(logits, chosen, -1)
        weight = softmax(weight) if c["moe_primary_router_apply_softmax"] else sigmoid(weight) / sigmoid(weight).sum(-1, keepdims=True)

        def expert(e, rows):
            part = f"{name}block_sparse_moe.experts.{e}."
            return m.linear(np.maximum(m.linear(rows, part + "gate"), 0) * m.linear(rows, part + "up"), part + "down")
        x = h + weighted(one(m, h, name + "post_attention_layernorm"), chosen, weight, expert)
        nearest = min(nearest, gap)
    return m.linear(one(m, x, "model.norm"), "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"), nearest


def grok(m, tokens):
    """h = x + norm1(attention(norm(x))) with capped scores, which late queries multiply by a factor; x = h + norm3(y), y = (FFN(norm2(h)) + experts(norm2(h))) / sqrt(2). The router's weights are a
    softmax of all its capped logits."""
    c, nearest, n = m.config, math.inf, len(tokens)
    x = m["model.embed_tokens.weight"][tokens] * c["embedding_multiplier_scale"]
    seen = np.tril(np.ones((n, n), bool))

    def ffn(rows, name, gate, up, down):
        return m.linear(gelu(m.linear(rows, name + gate)) * m.linear(rows, name + up), name + down)
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        q, k, v = heads_of(m, one(m, x, name + "pre_attn_norm"), name)
        q, k = rotate(q, c, False), rotate(k, c, False)
        k, v = (np.repeat(y, c["num_attention_heads"] // c["num_key_value_heads"], 1) for y in (k, v))
        score = capped(np.einsum("qhd,khd->hqk", q, k) * c["attn_output_multiplier"], c["attn_logit_softcapping"])
        score = score * np.maximum(np.log(np.maximum(np.arange(n), 1)) / math.log(c["attn_temperature_len"]), 1)[:, None]
        y = np.einsum("hqk,khd->qhd", softmax(np.where(seen, score, -np.inf)), v).reshape(n, -1)
        x = x + one(m, m.linear(y, name + "self_attn.o_proj"), name + "post_attn_norm")
        h, part = one(m, x, name + "pre_moe_norm"), name + "block_sparse_moe."
        score = softmax(capped(m.linear(h, part + "gate"), c["router_logit_softcapping"]))
        chosen, gap = best(score, c["num_experts_per_tok"])
        y = weighted(h, chosen, np.take_along_axis(score, chosen, -1), lambda e, rows: ffn(rows, f"{part}experts.{e}.", "w1", "w3", "w2"))
        y = (y + ffn(h, name + "mlp.", "gate_proj", "up_proj", "down_proj")) / math.sqrt(2)
        x, nearest = x + one(m, y, name + "post_moe_norm"), min(nearest, gap)
    return capped(m.linear(one(m, x, "model.norm"), "lm_head") * c["output_multiplier_scale"], c["final_logit_softcapping"]), nearest


def dots3_note(m, tokens):
    """MLA whose normed latents are multiplied by the roots of hidden / their width, with normed rotary keys and a gate per head; over a window, or over keys
    that an indexer selects."""
    c, nearest, n = m.config, math.inf, len(tokens)
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name, window = f"model.layers.{layer}.", layer >= 2 and layer % 4 != 1
        heads, latent, nope, v = (c[("swa_" if window else "") + k] for k in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"))
        rope, s, h = {"rope_theta": c["swa_rope_theta"] if window else c["rope_theta"]}, name + "self_attn.", one(m, x, name + "input_layernorm")
        low = one(m, m.linear(h, s + "q_a_proj"), s + "q_a_layernorm")
        low = low * math.sqrt(x.shape[-1] / low.shape[-1])
        q = m.linear(low, s + "q_b_proj").reshape(n, heads, -1)
        q = np.concatenate((q[..., :nope], rotate(q[..., nope:], rope, True)), -1)
        kv = m.linear(h, s + "kv_a_proj_with_mqa")
        turned = rotate(one(m, kv[:, None, latent:], s + "k_rope_only_layernorm"), rope, True)
        kv = one(m, kv[:, :latent], s + "kv_a_layernorm") * math.sqrt(x.shape[-1] / latent)
        kv = m.linear(kv, s + "kv_b_proj").reshape(n, heads, nope + v)
        k = np.concatenate((kv[..., :nope], np.broadcast_to(turned, (n, heads, turned.shape[-1]))), -1)
        chosen, gap = (None, math.inf) if window else lightning_indexer(m, h, low, s + "indexer.")
        y = attend(q, k, kv[..., nope:], q.shape[-1] ** -0.5, c["sliding_window_size"] if window else 0, chosen=chosen).reshape(n, heads, v)
        x = x + m.linear((y * sigmoid(m.linear(h, s + "g_proj"))[..., None]).reshape(n, -1), s + "o_proj")
        h, nearest = one(m, x, name + "post_attention_layernorm"), min(nearest, gap)
        y, gap = experts(m, h, name + "mlp.") if layer >= c["first_k_dense_replace"] else (mlp(m, h, name + "mlp."), math.inf)
        x, nearest = x + y, min(nearest, gap)
    return m.linear(one(m, x, "model.norm"), "lm_head"), nearest


def mistral_large4(m, tokens):
    """MLA and an indexer whose queries are multiplied per head by s * log(position + 1) + b. Layers without rotation have the same dimensions, none of them
    rotated. Layers take the latents of kv_source_layers, and selections of keys of the last layer with an indexer."""
    c, nearest, n, w = {**m.config, **m.config["text_config"]}, math.inf, len(tokens), ("w1", "w3", "w2")
    eps, latent, heads, rope, k = c["rms_norm_eps"], c["kv_lora_rank"], c["num_attention_heads"], c["qk_rope_head_dim"], c["num_experts_per_tok"]
    angle = np.arange(n)[:, None, None] * (frequencies(c, rope, n)[0] * np.exp(m["lerope.alpha"]))
    cos, sin, logs = np.cos(angle), np.sin(angle), np.log(np.arange(n) + 1)[:, None]

    def turn(x):
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape)

    def normed(x, name):
        return rms_norm(x, m[name + ".weight"], eps)

    def layer_normed(x, name):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * m[name + ".weight"] + m[name + ".bias"]

    def scaled(q, name):
        return q * (logs * m[name + ".s"] + m[name + ".b"])[..., None]

    def select(h, name, rotates):
        q = scaled(m.linear(layer_normed(h, name + "q_input_norm"), name + "wq_b").reshape(n, c["index_n_heads"], -1), name + "ssmax_scaling")
        key = layer_normed(m.linear(h, name + "wk"), name + "k_norm")[:, None]
        if rotates:
            q, key = (np.concatenate((turn(y[..., :rope]), y[..., rope:]), -1) for y in (q, key))
        score = np.einsum("qh,hqk->qk", m.linear(h, name + "weights_proj"), np.maximum(np.einsum("qhd,kd->hqk", q, m.cached(key[:, 0])), 0))
        seen, gap, count = np.zeros((n, n), bool), math.inf, c["index_topk"]
        for t in range(n):
            order = np.argsort(-score[t, : t + 1], kind="stable")
            seen[t, order[:count]] = True
            gap = min(gap, score[t, order[count - 1]] - score[t, order[count]]) if t >= count else gap
        return seen, gap / np.abs(score).max()

    def moe(h, name):
        score = softmax(m.linear(h, name + "gate"))
        inside = np.sort(score.reshape(n, c["n_group"], -1), -1)
        groups, gap = best(inside[..., -2:].sum(-1), c["topk_group"])
        mask = np.repeat((groups[..., None] == np.arange(c["n_group"])).any(1), score.shape[1] // c["n_group"], 1)
        chosen, gap_inside = best(score * mask, k)
        weight = np.take_along_axis(score, chosen, -1)
        weight = weight / weight.sum(-1, keepdims=True) * c["routed_scaling_factor"]
        y = weighted(h, chosen, weight, lambda e, rows: mlp(m, rows, f"{name}experts.{e}.", *w))
        return y + mlp(m, h, name + "shared_experts.", *w), min(gap, gap_inside)

    x, latents, seen = m["tok_embeddings.weight"][tokens], {}, None
    for i in range(c["num_hidden_layers"]):
        name, rotates = f"layers.{i}.", c["no_rope_layers"][i]
        h, a, part = normed(x, name + "attention_norm"), name + "attention.", rope if rotates else 0
        q = m.linear(h, a + "wq").reshape(n, heads, -1)
        nope = q.shape[-1] - part
        if c["kv_source_layers"][i] == i:
            kv = m.linear(h, a + "wkv_a_with_mqa")
            latents[i] = m.cached(normed(kv[:, :latent], a + "kv_a_norm")), m.cached(turn(kv[:, None, latent:])) if rotates else None
        low, key = latents[c["kv_source_layers"][i]]
        kv = m.linear(low, a + "wkv_b").reshape(n, heads, -1)
        keys = kv[..., :nope]
        if rotates:
            q, keys = np.concatenate((q[..., :nope], turn(q[..., nope:])), -1), np.concatenate((keys, np.broadcast_to(key, (n, heads, rope))), -1)
        gap = math.inf
        if c["indexer_types"][i] == "full":
            seen, gap = select(h, a + "indexer.", rotates)
        y = attend(scaled(q, a + "ssmax_scaling"), keys, kv[..., nope:], q.shape[-1] ** -0.5, chosen=seen)
        x, nearest = x + m.linear(y, a + "wo"), min(nearest, gap)
        h = normed(x, name + "ffn_norm")
        y, gap = moe(h, name) if i >= c["first_k_dense_replace"] else (mlp(m, h, name + "feed_forward.", *w), math.inf)
        x, nearest = x + y, min(nearest, gap)
    return capped(m.linear(normed(x, "norm"), "output"), c["final_logit_softcapping"]), nearest


def muse_spark(m, tokens):
    """x = a x + b unit(attention(norm(x))), x = a' x + b' unit((1 + w) FFN(norm'(x))), where b = sigmoid(gate / temperature) and a = sqrt(1 - b^2) per channel.
    Queries, keys and heads' outputs are unit rows. Experts read a normed latent, and their outputs are unit rows before they are weighted."""
    c, nearest, n = m.config["text_config"], math.inf, len(tokens)
    prefix, eps = "model.language_model.", c["post_norm_eps"]

    def unit(y, e=c["rms_norm_eps"]):
        return rms_norm(y, 1, e)

    def centered(y, name):
        return unit(y) * (1 + m[name + ".weight"])

    def gated(x, y, name):
        b = sigmoid(m[name + ".gate"] / c["residual_gate_temperature"])
        return np.sqrt(np.maximum(1 - b * b, 1e-3)) * x + b * y

    def routed(x, name):
        score = sigmoid(m.linear(x, name + "gate") * c["output_multiplier"])
        chosen, gap = best(score + m[name + "gate.e_score_correction_bias"], c["num_experts_per_tok"])
        weight = np.take_along_axis(score, chosen, -1)
        weight = weight / weight.sum(-1, keepdims=True)
        gate_up, down, scale = (m[name + "experts." + part] for part in ("gate_up_proj", "down_proj", "post_expert_norm.weight"))

        def expert(e, rows):
            gate, up = np.split(rows @ gate_up[e].T, 2, -1)
            return unit((silu(gate) * up) @ down[e].T * (1 + scale), eps)
        low = centered(m.linear(x, name + "pre_expert_proj"), name + "pre_expert_norm")
        return m.linear(weighted(low, chosen, weight * c["routed_scaling_factor"], expert), name + "post_expert_proj"), gap
    x = unit(m[prefix + "embed_tokens.weight"][tokens])
    for layer in range(c["num_hidden_layers"]):
        name, heads = f"{prefix}layers.{layer}.", c["num_attention_heads"]
        h, s = centered(x, name + "input_layernorm"), name + "self_attn."
        q, k, v = (m.linear(h, f"{s}{p}_proj").reshape(n, -1, c["head_dim"]) for p in "qkv")
        q, k, theta = unit(q) * c["qk_scale_factor"], unit(k), c["layer_rope_theta"][layer]
        if theta:
            q, k = rotate(q, {"rope_theta": theta}, False), rotate(k, {"rope_theta": theta}, False)
        k, v = (np.repeat(y, heads // c["num_key_value_heads"], 1) for y in (k, v))
        y = attend(q, k, v, q.shape[-1] ** -0.5, c["sliding_window"] if c["layer_types"][layer] == "sliding_attention" else 0)
        y = unit(y.reshape(n, heads, -1)).reshape(n, -1) * sigmoid(m.linear(h, s + "gate_proj"))
        x = gated(x, unit(m.linear(y, s + "o_proj"), eps), name + "post_attention_residual_gate")
        h = centered(x, name + "pre_feedforward_layernorm")
        y, gap = routed(h, name + "mlp.") if c["mlp_layer_types"][layer] == "sparse" else (mlp(m, h, name + "mlp."), math.inf)
        y = unit(y * (1 + m[name + "post_feedforward_layernorm.weight"]), eps)
        x, nearest = gated(x, y, name + "post_feedforward_residual_gate"), min(nearest, gap)
    x = unit(x) * m[prefix + "norm.weight"]
    return capped(m.linear(x, "lm_head") * c["output_multiplier"], c["final_logit_softcapping"]), nearest


def shortened(x, limit):
    return x * np.minimum(limit / (np.sqrt((x * x).sum(-1, keepdims=True)) + 1e-6), 1)


def pooled(m, sources, name):
    """The sources, normed, mixed by the softmax of their products with each query [queries, T, hidden]."""
    s = np.stack(sources, 1)
    s = rms_norm(s, 1, 1e-6)
    score = np.einsum("qd,tsd->qts", np.atleast_2d(m["model.llm.attn_res." + name]), s) / math.sqrt(s.shape[-1])
    return np.einsum("qts,tsd->qtd", softmax(score), s)


def convolved(x, taps, more=None):
    """(x + sum over lags j of (taps[j] + more[t, head, j]) * x[t - j]) / the root of the number of summands; taps [lags, channels]."""
    y, n = x.copy(), len(taps)
    for j in range(n):
        past = np.concatenate((np.zeros((j, x.shape[1])), x[: len(x) - j])) if j else x
        by_row = 0 if more is None else np.repeat(more[:, :, j], x.shape[1] // more.shape[1], 1)
        y = y + (taps[j] + by_row) * past
    return y / math.sqrt((n if more is None else 2 * n) + 1)


def static(m, name):
    """Taps as [lags, channels] from [channels, 1, taps], the latest row's last."""
    return m[name + ".weight"][:, 0, ::-1].T


def inkling2_attention(m, q_in, k_in, v_in, s, window):
    c, n = m.config, len(q_in)
    near = "swa_" if window else ""
    heads, kv, dim = (c[near + k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    t = np.arange(n)
    late = 1 + c["log_scaling_alpha"] * np.log(np.maximum((t + 1) / c["log_scaling_n_floor"], 1)) * (not window)

    def scaled(x, name, limit):
        x = x.reshape(n, heads, -1) * m[s + name + "_l2_clip.scale"]
        return shortened(x, limit) * late[:, None, None]

    def key_or_value(x, p):
        y, conv = m.linear(x, f"{s}w{p}_dv"), f"{s}{p}_sconv"
        if window:
            return convolved(y, static(m, conv)).reshape(n, kv, dim)
        more = (x @ m[conv + ".weight_proj"].T).reshape(n, kv, -1)
        return convolved(y, m[conv + ".static_w"], more).reshape(n, kv, dim)
    q = scaled(m.linear(q_in, s + "wq_du"), "q", c["qk_l2_clip_threshold"])
    k, v = shortened(key_or_value(k_in, "k"), c["qk_l2_clip_threshold"]), rms_norm(key_or_value(v_in, "v"), 1, c["rms_norm_eps"])
    k, v = (np.repeat(y, heads // kv, 1) for y in (k, v))
    bias = scaled(m.linear(q_in, s + "wr_du"), "rel", c["rel_l2_clip_threshold"]) @ m[s + "rel_logits_proj.proj"]
    far = t[:, None] - t[None, :]
    at = np.broadcast_to(np.clip(far, 0, bias.shape[-1] - 1)[:, None], (n, heads, n))
    score = np.einsum("qhd,khd->qhk", q, k) / math.sqrt(dim) + np.take_along_axis(bias, at, 2) * ((far >= 0) & (far < bias.shape[-1]))[:, None]
    score = np.where(((far >= 0) & (far < (window or n)))[:, None], score, -np.inf)
    score = np.concatenate((score, m.linear(q_in, s + "attn_sink_proj")[..., None]), -1)
    y = np.einsum("qhk,khd->qhd", softmax(score)[..., :n], v).reshape(n, -1)
    return m.linear(y * sigmoid(m.linear(q_in, s + "gate_attn")), s + "wo_ud")


def inkling2(m, tokens):
    """Blocks add their outputs to the latest of several streams, and read a mix of all; each output is convolved with the rows before. Further passes over the
    layers of a loop begin with the streams before it, and get messages: mixes of the streams of the pass before."""
    c, nearest, per = m.config, math.inf, m.config["n_layers_per_attn_res_block"]
    streams = [one(m, m["model.llm.embed.weight"][tokens], "model.llm.embed_norm")]
    first, last = (c.get(f"loop_layer_index_{k}", 0) for k in ("start", "end"))
    order = [(i, 0) for i in range(last)] + [(i, p) for p in range(1, c.get("loop_num_passes", 1)) for i in range(first, last)]
    order += [(i, 0) for i in range(last, len(c["layer_types"]))]
    previous = before = None

    def told(x, layer, part):
        """x with the message to this part of the layer."""
        which, gate = ("queries", "kv_queries")[part in "kv"], f"model.llm.layers.{layer}.controllers.{part}."
        query = m[f"model.llm.middle_cycle_cross_pass_{which}"][2 * (layer - first) + (part in ("mlp", "v"))]
        s = rms_norm(np.stack(previous, 1), 1, 1e-6)
        message = np.einsum("ts,tsd->td", softmax(s @ query / math.sqrt(s.shape[-1])), s)
        low = np.concatenate([rms_norm(v, 1, c["rms_norm_eps"]) for v in (x, message)], -1) @ m[gate + "down_weight"].T
        return (1 - np.tanh(low @ m[gate + "forget_weight"].T)) * x + np.tanh(low @ m[gate + "gain_weight"].T) * message
    for layer, again in order:
        kind = c["layer_types"][layer]
        if layer == first and last:
            if again:
                previous, streams = streams[len(before):], list(before)
            else:
                before = list(streams)
        name, window = f"model.llm.layers.{layer}.", c["sliding_window_size"] if kind == "hybrid_sliding" else 0
        norms = ["attn_norm"] if window else ["q_input_norm", "k_input_norm", "v_input_norm"]
        x = pooled(m, streams, f"attn_queries.{layer - 1}") if layer else [streams[0]] * len(norms)
        if again:
            x = [told(v, layer, part) for v, part in zip(list(x) * (3 if window else 1), ("attn", "k", "v"))]
        x = [one(m, v, name + w) for v, w in zip(x, norms * 3)] * (3 // len(x))
        y = convolved(inkling2_attention(m, *x, name + "attn.", window), static(m, name + "attn_sconv"))
        if layer % per == 0:
            streams.append(y)
        else:
            streams[-1] = streams[-1] + y
        h = pooled(m, streams, f"mlp_queries.{layer}")[0]
        h = one(m, told(h, layer, "mlp") if again else h, name + "mlp_norm")
        score = sigmoid(h @ m[name + "mlp.gate.weight"].T)
        chosen, gap = best(score + m[name + "mlp.gate.bias"], c["num_experts_per_tok"])
        weight = np.take_along_axis(score, chosen, -1)
        weight = weight / (weight.sum(-1, keepdims=True) + 1e-20) * c["route_scale"]
        gate_up, down = m[name + "mlp.experts.w13_weight"], m[name + "mlp.experts.w2_weight"]

        def expert(e, rows):
            g, u = rows @ gate_up[e, 0::2].T, rows @ gate_up[e, 1::2].T
            return (capped(g, c["mlp_gate_softcap"]) * sigmoid(g) * capped(u, c["mlp_up_softcap"])) @ down[e].T
        streams[-1] = streams[-1] + convolved(weighted(h, chosen, weight, expert), static(m, name + "mlp_sconv"))
        nearest = min(nearest, gap)
    x = one(m, pooled(m, streams, "output_query")[0], "model.llm.norm")
    return capped(x @ m["model.llm.unembed.weight"][: c["unpadded_vocab_size"]].T, c["final_logit_softcapping"]), nearest


def ernie4_5_vl_moe(m, tokens):
    """x += attention(norm(x)), neighbours rotated; x += FFN(norm(x)). Routers and experts of text only: the best scores softmax + bias, weights the normed softmax."""
    c, nearest, n = m.config["text_config"], math.inf, len(tokens)
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]

    def norm(x, name):
        return rms_norm(x, m[name + ".weight"], c["rms_norm_eps"])
    x = m["model.embed_tokens.weight"][tokens]
    for layer, kind in enumerate(c["mlp_layer_types"]):
        name = f"model.layers.{layer}."
        h = norm(x, name + "input_layernorm")
        q, k, v = (m.linear(h, f"{name}self_attn.{p}_proj").reshape(n, of, -1) for p, of in (("q", heads), ("k", kv), ("v", kv)))
        q, k, v = rotate(q, c, True), np.repeat(rotate(k, c, True), heads // kv, 1), np.repeat(v, heads // kv, 1)
        x = x + m.linear(attend(q, k, v, q.shape[-1] ** -0.5), name + "self_attn.o_proj")
        h = norm(x, name + "post_attention_layernorm")
        if kind == "dense":
            x = x + mlp(m, h, name + "mlp.")
            continue
        score = softmax(h @ m[name + "mlp.gate.weight"])
        chosen, gap = best(score + m[name + "mlp.moe_statics.e_score_correction_bias"][0], c["moe_k"])
        weight = np.take_along_axis(score, chosen, -1)
        weight = weight / weight.sum(-1, keepdims=True)
        x = x + weighted(h, chosen, weight, lambda e, rows: mlp(m, rows, f"{name}mlp.experts.{e}.")) + mlp(m, h, name + "mlp.shared_experts.")
        nearest = min(nearest, gap)
    return m.linear(norm(x, "model.norm"), "model.embed_tokens"), nearest


def lfm3(m, tokens):
    """x += norm'(mixer(norm(x))); x += norm'(FFN(norm(x))). A mixer is attention, whose heads have gates, or out(C * convolution(B * x)) with B, C, x = in(h)."""
    c, n, prefix = m.config["text_config"], len(tokens), "model.language_model."
    heads, kv, dim, taps = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["conv_L_cache"]

    def norm(x, name):
        return rms_norm(x, m[name + ".weight"], c["norm_eps"])

    def turned(x, rope):
        freq = rope["rope_theta"] ** (-2 * np.arange(dim // 2) / dim)
        freq[int(rope.get("partial_rotary_factor", 1) * dim / 2):] = 0
        angle = np.arange(n)[:, None, None] * freq
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        return np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), -1)
    x = m[prefix + "embed_tokens.weight"][tokens]
    for layer, kind in enumerate(c["layer_types"]):
        name = f"{prefix}layers.{layer}."
        h, part = norm(x, name + "operator_norm"), name + ("conv." if kind == "conv" else "self_attn.")
        if kind == "conv":
            b, g, y = np.split(m.linear(h, part + "in_proj"), 3, -1)
            padded, w = np.concatenate((np.zeros((taps - 1, h.shape[1])), b * y)), m[part + "conv.weight"][:, 0]
            y = g * (sum(padded[j : j + n] * w[:, j] for j in range(taps)) + m[part + "conv.bias"])
        else:
            q, k, v = (m.linear(h, f"{part}{p}_proj").reshape(n, of, -1) for p, of in (("q", heads), ("k", kv), ("v", kv)))
            q, k = (turned(norm(y, f"{part}{p}_norm"), c["rope_parameters"][kind]) for y, p in ((q, "q"), (k, "k")))
            y = attend(q, np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1), dim**-0.5, c["sliding_window"] if kind == "sliding_attention" else 0)
            y = (y.reshape(n, heads, -1) * sigmoid(m.linear(h, part + "gate_proj"))[..., None]).reshape(n, -1)
        x = x + norm(m.linear(y, part + ("out_proj" if kind == "conv" else "o_proj")), name + "post_operator_norm")
        x = x + norm(mlp(m, norm(x, name + "ffn_norm"), name + "feed_forward.", "w1", "w3", "w2"), name + "post_ffn_norm")
    return m.linear(norm(x, prefix + "embedding_norm"), prefix + "embed_tokens"), math.inf


def nanochat(m, tokens):
    """x = unit(embedding); x += attention(unit(x)), whose q and k turn backwards and are then unit; x += fc2(relu(fc1(unit(x)))^2)."""
    c, n = m.config, len(tokens)
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]

    def unit(x):
        return rms_norm(x, 1, c["rms_norm_eps"])

    def backwards(x):
        a, b = np.split(x, 2, -1)
        a, b = np.split(rotate(np.concatenate((b, a), -1), c, False), 2, -1)
        return np.concatenate((b, a), -1)
    x = unit(m["model.embed_tokens.weight"][tokens])
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        q, k, v = (m.linear(unit(x), f"{name}self_attn.{p}_proj").reshape(n, of, -1) for p, of in (("q", heads), ("k", kv), ("v", kv)))
        q, k = unit(backwards(q)), unit(backwards(k))
        x = x + m.linear(attend(q, np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1), q.shape[-1] ** -0.5), name + "self_attn.o_proj")
        x = x + m.linear(np.maximum(m.linear(unit(x), name + "mlp.fc1"), 0) ** 2, name + "mlp.fc2")
    return capped(m.linear(unit(x), "lm_head"), c["final_logit_softcapping"]), math.inf


def nemotron(m, tokens):
    """x += attention(norm(x)), of which a part of each head turns; x += down(relu(up(norm'(x)))^2). A norm is the layer norm by 1 + w, plus a bias."""
    c = m.config

    def centered(x, name):
        x = x - x.mean(-1, keepdims=True)
        return rms_norm(x, 1 + m[name + ".weight"], c["norm_eps"]) + m[name + ".bias"]

    def turned(x):
        part = int(x.shape[-1] * c["partial_rotary_factor"])
        return np.concatenate((rotate(x[..., :part], c, False), x[..., part:]), -1)
    x, n, heads, kv = m["model.embed_tokens.weight"][tokens], len(tokens), c["num_attention_heads"], c["num_key_value_heads"]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        h = centered(x, name + "input_layernorm")
        q, k, v = (m.linear(h, f"{name}self_attn.{p}_proj").reshape(n, of, -1) for p, of in (("q", heads), ("k", kv), ("v", kv)))
        k, v = np.repeat(turned(k), heads // kv, 1), np.repeat(v, heads // kv, 1)
        x = x + m.linear(attend(turned(q), k, v, q.shape[-1] ** -0.5), name + "self_attn.o_proj")
        x = x + m.linear(np.maximum(m.linear(centered(x, name + "post_attention_layernorm"), name + "mlp.up_proj"), 0) ** 2, name + "mlp.down_proj")
    return m.linear(centered(x, "model.norm"), "lm_head"), math.inf


def causal_conv(m, x, name):
    """SiLU of a convolution per channel over a token and those before it."""
    taps = m[name + ".weight"][:, 0]  # [channels, taps], the last one for the token itself
    padded = np.concatenate((np.zeros((taps.shape[1] - 1, x.shape[1])), x))
    return silu(sum(padded[j : j + len(x)] * taps[:, j] for j in range(taps.shape[1])))


def kda(m, x, name, heads, most, bound, eps):
    """Kimi delta attention, token by token: a matrix per head, whose rows decay each by their own factor, with a bound down to exp(bound); `most`: the largest
    factor of an update. The gate has a low rank or one matrix."""
    n = len(x)
    q, k, v = (causal_conv(m, m.linear(x, f"{name}{p}_proj"), f"{name}{p}_conv1d").reshape(n, heads, -1) for p in "qkv")
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    f = m.linear(m.linear(x, name + "f_a_proj"), name + "f_b_proj") + m[name + "dt_bias"]
    rates, f = np.exp(m[name + "A_log"].reshape(-1, 1)[:heads]), f.reshape(n, heads, -1)  # Kimi K3 has more rates than heads
    keep = np.exp(bound * sigmoid(rates * f) if bound else -rates * np.log1p(np.exp(f)))
    beta, dim = most * sigmoid(m.linear(x, name + "b_proj")), q.shape[-1]
    state, out = np.zeros((heads, dim, dim)), np.zeros((n, heads, dim))
    for t in range(n):
        state = state * keep[t][..., None]
        lacking = v[t] - np.einsum("hk,hkv->hv", k[t], state)
        state = state + np.einsum("hk,hv->hkv", k[t], beta[t][:, None] * lacking)
        out[t] = np.einsum("hk,hkv->hv", q[t], state) * dim**-0.5
    gate = m.linear(x, name + "g_proj") if name + "g_proj.weight" in m else m.linear(m.linear(x, name + "g_a_proj"), name + "g_b_proj")
    return m.linear(rms_norm(out, m[name + "o_norm.weight"], eps).reshape(n, -1) * sigmoid(gate), name + "o_proj")


def solar_open2(m, tokens):
    """Kimi delta attention, or GQA without rotation whose output has a gate per element."""
    c, nearest, n = m.config, math.inf, len(tokens)
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        h, s = one(m, x, name + "input_layernorm"), name + "self_attn."
        if layer in c["gqa_layers"]:
            q, k, v = heads_of(m, h, name)
            k, v = (np.repeat(y, c["num_attention_heads"] // c["num_key_value_heads"], 1) for y in (k, v))
            y = m.linear(attend(q, k, v, c["head_dim"] ** -0.5).reshape(n, -1) * sigmoid(m.linear(h, s + "g_proj")), s + "o_proj")
        else:
            y = kda(m, h, s, c["linear_attn_config"]["num_heads"], 2, 0, c["rms_norm_eps"])
        x = x + y
        h = one(m, x, name + "post_attention_layernorm")
        y, gap = experts(m, h, name + "mlp.") if layer >= c["first_k_dense_replace"] else (mlp(m, h, name + "mlp."), math.inf)
        x, nearest = x + y, min(nearest, gap)
    return m.linear(one(m, x, "model.norm"), "lm_head"), nearest


def bailing_hybrid(m, tokens):
    """Ling 2.5: lightning attention, S = decay S + k (x) v and S^T q, whose output is normed by groups of heads and gated; or MLA. Ring-linear: or GQA."""
    c, nearest, n, heads, dim = m.config, math.inf, len(tokens), m.config["num_attention_heads"], m.config["head_dim"]
    nope, rope, latent, last = c.get("qk_nope_head_dim"), c.get("qk_rope_head_dim"), c.get("kv_lora_rank"), c["num_hidden_layers"] - 1
    part = int(dim * c.get("partial_rotary_factor", 1))
    x = m["model.word_embeddings.weight"][tokens]
    for layer in range(last + 1):
        name = f"model.layers.{layer}."
        h, s = one(m, x, name + "input_layernorm"), name + "attention."
        if s + "query_key_value.weight" in m:
            kv = heads if s + "g_norm.weight" in m else c["num_key_value_heads"]
            q, k, v = (y.reshape(n, -1, dim) for y in np.split(m.linear(h, s + "query_key_value"), (heads * dim, (heads + kv) * dim), -1))
            q, k = one(m, q, s + "query_layernorm"), one(m, k, s + "key_layernorm")
            q, k = (np.concatenate((rotate(y[..., :part], c, False), y[..., part:]), -1) for y in (q, k))
        if s + "g_norm.weight" in m:
            decay = np.exp(-(2.0 ** (-8 * np.arange(1, heads + 1) / heads)) * (1 - layer / last + 1e-5))
            state, out = np.zeros((heads, dim, dim)), np.zeros((n, heads, dim))
            for t in range(n):
                state = state * decay[:, None, None] + np.einsum("hk,hv->hkv", k[t], v[t])
                out[t] = np.einsum("hk,hkv->hv", q[t], state) * dim**-0.5
            out = rms_norm(out.reshape(n, c["group_norm_size"], -1), 1, c["rms_norm_eps"]).reshape(n, -1) * m[s + "g_norm.weight"]
            y = m.linear(out * sigmoid(m.linear(h, s + "g_proj")), s + "dense")
        elif not latent:
            k, v = (np.repeat(y, heads // kv, 1) for y in (k, v))
            y = m.linear(attend(q, k, v, dim**-0.5), s + "dense")
        else:
            q = m.linear(one(m, m.linear(h, s + "q_a_proj"), s + "q_a_layernorm"), s + "q_b_proj").reshape(n, heads, -1)
            q = np.concatenate((q[..., :nope], rotate(q[..., nope:], c, True)), -1)
            kv = m.linear(h, s + "kv_a_proj_with_mqa")
            turned = np.broadcast_to(rotate(kv[:, None, latent:], c, True), (n, heads, rope))
            kv = m.linear(one(m, kv[:, :latent], s + "kv_a_layernorm"), s + "kv_b_proj").reshape(n, heads, -1)
            y = m.linear(attend(q, np.concatenate((kv[..., :nope], turned), -1), kv[..., nope:], (nope + rope) ** -0.5), s + "dense")
        x = x + y
        h = one(m, x, name + "post_attention_layernorm")
        y, gap = experts(m, h, name + "mlp.") if layer >= c["first_k_dense_replace"] else (mlp(m, h, name + "mlp."), math.inf)
        x, nearest = x + y, min(nearest, gap)
    return m.linear(one(m, x, "model.norm"), "lm_head"), nearest


def qkv_of(m, x, name, sizes):
    """Rows of q, k and v, of `sizes`; of one tensor, they come in num_key_value_heads pieces, each with rows of all three and FP8 blocks of its own."""
    if name + "q_proj.weight" in m:
        return [m.linear(x, f"{name}{p}_proj") for p in "qkv"]
    (_, (rows, cols), codes), (_, shape, scales), n = m.raw[name + "qkv_proj.weight"], m.raw[name + "qkv_proj.weight_scale_inv"], m.config["num_key_value_heads"]
    codes, scales = e4m3(np.frombuffer(codes, np.uint8)).reshape(n, rows // n, cols), np.frombuffer(scales, "<f4").astype(float).reshape(n, shape[0] // n, shape[1])
    whole = codes * np.repeat(np.repeat(scales, 128, 1), 128, 2)[:, : rows // n, :cols]
    ends = np.cumsum([s // n for s in sizes])
    return [x @ part.reshape(-1, cols).T for part in np.split(whole, ends[:2], 1)]


def mimo_v2(m, tokens):
    """GQA over narrow values, which are scaled; layers with a window have sinks, their own number of key heads and their own rotation."""
    c, nearest, n, heads, dim = m.config, math.inf, len(tokens), m.config["num_attention_heads"], m.config["head_dim"]
    x, part = m["model.embed_tokens.weight"][tokens], int(dim * c["partial_rotary_factor"])

    def one(y, name):
        return rms_norm(y, m[name + ".weight"], c["layernorm_epsilon"])
    for layer, window in enumerate(c["hybrid_layer_pattern"]):
        name, kv = f"model.layers.{layer}.", c["swa_num_key_value_heads" if window else "num_key_value_heads"]
        h, s, rope = one(x, name + "input_layernorm"), name + "self_attn.", {"rope_theta": c["swa_rope_theta" if window else "rope_theta"]}
        q, k, v = (y.reshape(n, -1, d) for y, d in zip(qkv_of(m, h, s, (heads * dim, kv * dim, kv * c["v_head_dim"])), (dim, dim, c["v_head_dim"])))
        q, k = (np.concatenate((rotate(y[..., :part], rope, False), y[..., part:]), -1) for y in (q, k))
        k, v = (np.repeat(y, heads // kv, 1) for y in (k, v * c["attention_value_scale"]))
        sinks = m[s + "attention_sink_bias"] if s + "attention_sink_bias" in m else None
        x = x + m.linear(attend(q, k, v, dim**-0.5, c["sliding_window_size"] + 1 if window else 0, sinks), s + "o_proj")
        h = one(x, name + "post_attention_layernorm")
        y, gap = experts(m, h, name + "mlp.") if c["moe_layer_freq"][layer] else (mlp(m, h, name + "mlp."), math.inf)
        x, nearest = x + y, min(nearest, gap)
    return m.linear(one(x, "model.norm"), "lm_head"), nearest


def kimi_k3(m, tokens):
    """Blocks add their outputs to the latest of several streams, and read a sum of all; its weights are the softmax of the products of a vector and the normed
    streams. Experts work in a latent space, and the norm of their sum is projected. Keys are not rotated; the inner norms of latents have their own eps."""
    c, start, n, nearest = m.config["text_config"], "language_model.model.", len(tokens), math.inf
    heads, nope, rope, low, eps = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"], c["rms_norm_eps"]

    def norm(x, name, eps=eps):
        return rms_norm(x, m[name + ".weight"], eps)

    def ffn(x, name, gate="gate_proj", up="up_proj", down="down_proj"):
        g, u = m.linear(x, name + gate), m.linear(x, name + up)
        return m.linear(capped(g, c["activation_situ_beta"]) * sigmoid(g) * capped(u, c["activation_situ_linear_beta"]), name + down)

    def read(name):
        s = np.stack(streams, 1)
        return np.einsum("ts,tsd->td", softmax(norm(s, name + "_norm") @ m[name + "_proj.weight"][0]), s)

    def latent_attention(x, name):
        q = m.linear(norm(m.linear(x, name + "q_a_proj"), name + "q_a_layernorm", 1e-6), name + "q_b_proj").reshape(n, heads, -1)
        kv = m.linear(x, name + "kv_a_proj_with_mqa")
        own = m.linear(norm(kv[:, :low], name + "kv_a_layernorm", 1e-6), name + "kv_b_proj").reshape(n, heads, -1)
        k = np.concatenate((own[..., :nope], np.broadcast_to(kv[:, None, low:], (n, heads, rope))), -1)
        y = attend(q, k, own[..., nope:], (nope + rope) ** -0.5)
        return m.linear(y * sigmoid(m.linear(x, name + "g_proj")), name + "o_proj")
    streams = [m[start + "embed_tokens.weight"][tokens]]
    for layer in range(c["num_hidden_layers"]):
        name, linear = f"{start}layers.{layer}.", c["linear_attn_config"]
        x = norm(read(name + "self_attention_res") if layer else streams[0], name + "input_layernorm")
        if layer + 1 in linear["kda_layers"]:
            y = kda(m, x, name + "self_attn.", linear["num_heads"], 1, linear["gate_lower_bound"], eps)
        else:
            y = latent_attention(x, name + "self_attn.")
        if layer % c["attn_res_block_size"] == 0:
            streams.append(y)
        else:
            streams[-1] = streams[-1] + y
        h = norm(read(name + "mlp_res"), name + "post_attention_layernorm")
        if layer < c["first_k_dense_replace"]:
            streams[-1] = streams[-1] + ffn(h, name + "mlp.")
            continue
        sparse = name + "block_sparse_moe."
        score = sigmoid(m.linear(h, sparse + "gate"))
        chosen, gap = best(score + m[sparse + "gate.e_score_correction_bias"], c["num_experts_per_token"])
        weight = np.take_along_axis(score, chosen, -1)
        weight = weight / (weight.sum(-1, keepdims=True) + 1e-20) * c["routed_scaling_factor"]
        low_h = m.linear(h, sparse + "routed_expert_down_proj")
        routed = weighted(low_h, chosen, weight, lambda e, rows: ffn(rows, f"{sparse}experts.{e}.", "w1", "w3", "w2"))
        routed = m.linear(norm(routed, sparse + "routed_expert_norm"), sparse + "routed_expert_up_proj")
        streams[-1] = streams[-1] + routed + ffn(h, sparse + "shared_experts.")
        nearest = min(nearest, gap)
    return m.linear(norm(read(start + "output_attn_res"), start + "norm"), "language_model.lm_head"), nearest


def klear(m, tokens):
    """h = x + attention(norm(x)) with normed heads; x = h + a * experts(norm'(h)) + b * shared(norm'(h)), where a and b are a softmax of two numbers. The
    sigmoids of the experts that are chosen by sigmoid + bias weigh them."""
    c, nearest = m.config, math.inf
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        y, heads = one(m, x, name + "input_layernorm"), c["num_attention_heads"]
        q, k, v = (m.linear(y, f"{name}self_attn.{p}_proj").reshape(len(x), -1, x.shape[-1] // heads) for p in "qkv")
        q, k = (rotate(one(m, y, f"{name}self_attn.{p}_norm"), c, False) for y, p in ((q, "q"), (k, "k")))
        k, v = (np.repeat(y, heads // c["num_key_value_heads"], 1) for y in (k, v))
        x = x + m.linear(attend(q, k, v, q.shape[-1] ** -0.5), name + "self_attn.o_proj")
        h, part = one(m, x, name + "post_attention_layernorm"), name + "mlp."
        if layer in c["mlp_only_layers"]:
            x = x + mlp(m, h, part)
            continue
        score = sigmoid(m.linear(h, part + "gate"))
        chosen, gap = best(score + m[part + "expert_bias"], c["num_experts_per_tok"])
        weight = np.take_along_axis(score, chosen, -1)
        if c["norm_topk_prob"]:
            weight = weight / weight.sum(-1, keepdims=True)
        mix = softmax(m.linear(h, part + "coefficient"))
        y = weighted(h, chosen, weight, lambda e, rows: mlp(m, rows, f"{part}experts.{e}."))
        x = x + mix[:, :1] * y + mix[:, 1:] * mlp(m, h, part + "shared_experts.")
        nearest = min(nearest, gap)
    return m.linear(one(m, x, "model.norm"), "lm_head"), nearest


def pangu_pro(m, tokens):
    """h = x + attention(norm(x)); x = h + experts(norm'(h)) + shared(norm'(h)). Of each group of experts the best by the softmax of all, which times a factor of
    the expert weighs it."""
    c, nearest = m.config, math.inf
    heads, groups = c["num_attention_heads"], c["num_experts_per_tok"]
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        y, dim = one(m, x, name + "input_layernorm"), c["hidden_size"] // heads
        q, k, v = (m.linear(y, f"{name}self_attn.{p}_proj").reshape(len(x), -1, dim) for p in "qkv")
        k, v = (np.repeat(y, heads // c["num_key_value_heads"], 1) for y in (rotate(k, c, False), v))
        x = x + m.linear(attend(rotate(q, c, False), k, v, dim**-0.5), name + "self_attn.o_proj")
        h, part = one(m, x, name + "post_attention_layernorm"), name + "mlp."
        if layer in c["mlp_only_layers"]:
            x = x + mlp(m, h, part)
            continue
        score, size = softmax(m.linear(h, part + "gate")), c["num_experts"] // groups
        picks = [best(score[:, g * size : (g + 1) * size], 1) for g in range(groups)]
        chosen = np.concatenate([ids + g * size for g, (ids, _) in enumerate(picks)], -1)
        weight = np.take_along_axis(score, chosen, -1) * m[part + "router_scale"].reshape(-1)[chosen]
        x = x + weighted(h, chosen, weight, lambda e, rows: mlp(m, rows, f"{part}experts.{e}.")) + mlp(m, h, part + "shared_expert.")
        nearest = min(nearest, *(gap for _, gap in picks))
    return m.linear(one(m, x, "model.norm"), "lm_head"), nearest


def interns1_pro(m, tokens):
    """Qwen3's layers; cos and sin of KV head h are those of the frequencies times matrix h, and 1 for the pairs after as many. Of each group of experts the best
    by the softmax of all."""
    c, nearest, outer, n = m.config["text_config"], math.inf, m.config, len(tokens)
    m.config = c
    p, dim, kv, heads = "model.language_model.", c["head_dim"], c["num_key_value_heads"], c["num_attention_heads"]
    freq = c["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    freq = freq[freq > 2 * math.pi / c["max_position_embeddings"]]
    angle = np.arange(n)[:, None] * freq
    turns = [np.einsum("tf,hfp->thp", f(angle), m[f"{p}rotary_emb.{name}_coef"]) for f, name in ((np.cos, "cos"), (np.sin, "sin"))]
    cos, sin = (np.concatenate((t, np.ones((n, kv, dim // 2 - len(freq)))), -1) for t in turns)

    def turn(x):
        x = x.reshape(n, kv, -1, 2, dim // 2)  # heads of a KV head, halves
        a, b = x[..., 0, :], x[..., 1, :]
        return np.stack((a * cos[:, :, None] - b * sin[:, :, None], b * cos[:, :, None] + a * sin[:, :, None]), -2).reshape(n, -1, dim)
    x = m[p + "embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"{p}layers.{layer}."
        q, k, v = heads_of(m, one(m, x, name + "input_layernorm"), name)
        q, k = (turn(one(m, y, f"{name}self_attn.{w}_norm")) for y, w in ((q, "q"), (k, "k")))
        k, v = (np.repeat(y, heads // kv, 1) for y in (k, v))
        x = x + m.linear(attend(q, k, v, dim**-0.5), name + "self_attn.o_proj")
        h, part = one(m, x, name + "post_attention_layernorm"), name + "mlp."
        if layer in c["mlp_only_layers"]:
            x = x + mlp(m, h, part)
            continue
        score, groups = softmax(m.linear(h, part + "gate")), c["router_n_groups"]
        each, size = c["num_experts_per_tok"] // groups, score.shape[1] // groups
        picks = [best(score[:, g * size : (g + 1) * size], each) for g in range(groups)]
        chosen = np.concatenate([ids + g * size for g, (ids, _) in enumerate(picks)], -1)
        weight = np.take_along_axis(score, chosen, -1)
        weight = weight / weight.sum(-1, keepdims=True) if c["norm_topk_prob"] else weight
        x = x + weighted(h, chosen, weight, lambda e, rows: mlp(m, rows, f"{part}experts.{e}."))
        nearest = min(nearest, *(gap for _, gap in picks))
    logits = m.linear(one(m, x, p + "norm"), "lm_head")
    m.config = outer
    return logits, nearest


FAMILIES = {"arctic": arctic, "bailing_hybrid": bailing_hybrid, "bailing_moe_linear": bailing_hybrid, "param2moe": bailing_hybrid, "dots3_note": dots3_note, "ernie4_5_vl_moe": ernie4_5_vl_moe, "grok": grok, "inkling2_loop_text": inkling2, "inkling2_text": inkling2, "interns1_pro": interns1_pro, "kimi_k3": kimi_k3, "Klear": klear, "lfm3_vl": lfm3, "mimo_v2": mimo_v2, "mimo_v2_flash": mimo_v2, "mistral_large4": mistral_large4, "muse_spark": muse_spark, "nanochat": nanochat, "nemotron": nemotron, "PanguProMoE": pangu_pro, "smallthinker": smallthinker, "solar_open2": solar_open2}
