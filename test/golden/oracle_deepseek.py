"""DeepSeek-V4.1 in float64, for oracle.py."""
import math
import re
import unicodedata

import numpy as np

from oracle import e4m3, frequencies, rms_norm, sigmoid, softmax, stream_weights, turn_tail, v4_experts


def text_of(token):
    """The bytes of a token of a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return bytes(ord(k) if ord(k) < 256 else rest[ord(k) - 256] for k in token)


def numbers_of(vocab):
    """Numbers of tokens: the same for texts that are alike, counted by first appearance."""
    known, out = {}, []
    for token, i in sorted(vocab.items(), key=lambda x: x[1]):
        text = text_of(token).decode("utf-8", "replace")
        key = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
        key = "".join(k for k in key if unicodedata.category(k)[0] != "M")
        key = re.sub(r"[ \t\r\n]+", " ", "".join(k.lower() for k in key))
        key = " " if key in (" ", "\ue000") else key.strip().replace("\ue000", " ")
        out.append(known.setdefault(token if "\ufffd" in text else key or text, len(known)))
    return np.array(out), len(known)


def engram(m, streams, tokens, name, nth):
    """Adds rows of a table, which the numbers of the last 2, 3 .. tokens hash to, to the streams: a value weighted by how a key relates to each stream."""
    c, (n, s, h) = m.config, streams.shape
    size, per, dim = c["engram_max_ngram_size"], c["engram_n_heads"], c["engram_head_dim"]
    numbers, count = numbers_of(m.vocab)
    assert count == c["engram_compressed_vocab_size"]
    primes, at = [], c["engram_vocab_size"]
    while len(primes) < (nth + 1) * (size - 1) * per:
        if all(at % d for d in range(2, math.isqrt(at) + 1)):
            primes.append(at)
        at += 1
    primes = primes[nth * (size - 1) * per :]
    assert sum(primes) == c["engram_num_embeddings"][nth]
    draw = np.random.default_rng(10007 * c["engram_layer_ids"][nth]).integers(0, (2**63 - 1) // count // 2, size)
    pad, text = int(numbers[c["engram_pad_token_id"]]), [int(numbers[t]) for t in tokens]
    raw, scale = m.raw[name + "embed.weight"], m[name + "embed.scale"]
    table = e4m3(np.frombuffer(raw[2], np.uint8)).reshape(raw[1]) * np.repeat(scale, 32, 1)
    rows = []
    for i in range(n):
        mixed, offset, row = 0, 0, []
        for back in range(size):
            mixed ^= (text[i - back] if back <= i else pad) * (2 * int(draw[back]) + 1)
            for k in range((back - 1) * per, back * per) if back else ():
                row.append(table[mixed % primes[k] + offset])
                offset += primes[k]
        rows.append(np.concatenate(row))
    kv = m.linear(np.array(rows), name + "wkv")
    key, value = kv[:, : s * h].reshape(n, s, h), kv[:, s * h :]
    eps = c["rms_norm_eps"]
    dot = (rms_norm(streams, m[name + "q_weight"], eps) * rms_norm(key, m[name + "k_weight"], eps)).sum(-1) / math.sqrt(h)
    gate = sigmoid(np.where(dot < 0, -1, 1) * np.sqrt(np.maximum(abs(dot), 1e-6)))
    return streams + gate[..., None] * value[:, None]


E4M3 = np.unique(abs(e4m3(np.arange(127))))
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest(x, values):
    """Of a format's values, which begin with 0, the nearest with the sign of x; ties go to the even code."""
    at = np.clip(np.searchsorted(values, abs(x)), 1, len(values) - 1)
    low, high = abs(x) - values[at - 1], values[at] - abs(x)
    at = np.where((low < high) | ((low == high) & (at % 2 == 1)), at - 1, at)
    return np.copysign(values[at], x)


def rounded(x, block, values, least, e4m3_scale=False):
    """Blocks of each row in a narrow format, with a scale: a power of two, or a value of E4M3. Rows of other widths stay."""
    if x.shape[-1] % block:
        return x
    parts = x.reshape(*x.shape[:-1], -1, block)
    scale = np.maximum(abs(parts).max(-1, keepdims=True), least) / values[-1]
    scale = nearest(scale, E4M3) if e4m3_scale else 2.0 ** np.ceil(np.log2(scale))
    return (nearest(np.minimum(abs(parts) / scale, values[-1]) * np.sign(parts), values) * scale).reshape(x.shape)


def rounded_index(x):
    return rounded(x, 32, FP4, 6 * 2.0**-126)


def make_keys(m, x, name, ratio, freq):
    """Keys for every `ratio` tokens, and the indexer's, which are made of them before they are rotated."""
    eps, made = m.config["rms_norm_eps"], len(x) // ratio
    kv = m.linear(x, name + "compressor.wkv")[: made * ratio].reshape(made, ratio, -1)
    if ratio > 1:
        kv = kv * np.exp(gate := m.linear(x, name + "compressor.wgate")[: made * ratio].reshape(made, ratio, -1)) / np.exp(gate).sum(1, keepdims=True)
    keys = rms_norm(kv.sum(1), m[name + "compressor.norm.weight"], eps)
    index = rms_norm(m.linear(keys, name + "indexer.wk"), m[name + "indexer.k_norm.weight"], eps)
    angle = np.arange(made)[:, None] * ratio * freq
    keys, index = (turn_tail(k[:, None], angle)[:, 0] for k in (keys, index))
    return rounded(keys, 16, FP4, 6 * 2.0**-9, True), rounded_index(index)


def best(score, k, gap):
    """The k best of a list, and the distance to a tie, if that is less than gap. Of equal ones, such as zeros, the first are better."""
    order = np.argsort(-score, kind="stable")
    if len(order) > k and score[order[k - 1]] > score[order[k]]:
        gap = min(gap, (score[order[k - 1]] - score[order[k]]) / abs(score[np.isfinite(score)]).max())
    return order[:k], gap


def select(m, x, low, name, layer, ratio, angle, state):
    """Which keys each position sees of those whose tokens have all been read. state: index keys, and blocks of them that an earlier layer has chosen."""
    c, n, gap = m.config, len(x), math.inf
    q = rounded_index(turn_tail(m.linear(low, name + "wq_b").reshape(n, c["index_n_heads"], -1), angle))
    score = np.einsum("qh,hqk->qk", m.linear(x, name + "weights_proj"), np.maximum(np.einsum("qhd,kd->hqk", q, state["index"]), 0))
    seen, size = np.zeros((n, len(state["index"])), bool), c["candidate_block_size"]
    lists = layer == c["candidate_source_layer_id"]
    if lists:
        state["blocks"] = np.zeros_like(seen)
    for i in range(n):
        visible = (i + 1) // ratio
        own = score[i, :visible].copy()
        if not lists and "blocks" in state:
            own[~state["blocks"][i, :visible]] = -np.inf
        chosen, gap = best(own, c["index_topk"], gap)
        seen[i, chosen] = True
        if lists and visible:
            last = (visible - 1) // size  # always among them
            block = [score[i, b * size : (b + 1) * size].max() for b in range(last)]
            chosen, gap = best(np.array(block), c["candidate_topk_blocks"] - 1, gap)
            for b in (*chosen, last):
                state["blocks"][i, b * size : min((b + 1) * size, visible)] = True
    return seen, gap


def attention(m, x, name, layer, state):
    c, n, gap = m.config, len(x), math.inf
    heads, dim, eps, t, ratio = c["num_attention_heads"], c["head_dim"], c["rms_norm_eps"], np.arange(n), c["compress_ratios"][layer]
    rope = {**c, "rope_theta": c["compress_rope_theta"]} if ratio else {**c, "rope_scaling": None}
    freq = frequencies(rope, c["qk_rope_head_dim"], n)[0]
    angle = t[:, None] * freq
    low = rms_norm(m.linear(x, name + "wq_a"), m[name + "q_norm.weight"], eps)
    q = turn_tail(m.linear(low, name + "wq_b").reshape(n, heads, dim), angle)
    keys = turn_tail(rms_norm(m.linear(x, name + "wkv"), m[name + "kv_norm.weight"], eps)[:, None], angle)[:, 0]
    keys = rounded(keys, 32, E4M3, 1e-4)
    seen = (t[None] <= t[:, None]) & (t[None] > t[:, None] - c["sliding_window"])
    if layer in c["kv_source_layer_ids"]:
        state["keys"], state["index"] = make_keys(m, x, name, ratio, freq)
    if layer in c["index_source_layer_ids"]:
        state["seen"], gap = select(m, x, low, name + "indexer.", layer, ratio, angle, state)
    if ratio:
        keys, seen = np.concatenate((keys, state["keys"])), np.concatenate((seen, state["seen"]), 1)
    score = np.where(seen, np.einsum("qhd,kd->hqk", q, keys) * dim**-0.5, -np.inf)
    score = np.concatenate((score, np.broadcast_to(m[name + "attn_sink"][:, None, None], (heads, n, 1))), -1)
    out = turn_tail(np.einsum("hqk,kd->qhd", softmax(score)[..., :-1], keys), angle, back=True).reshape(n, c["o_groups"], -1)
    out = np.einsum("ngi,goi->ngo", out, m[name + "wo_a.weight"].reshape(c["o_groups"], -1, out.shape[-1])).reshape(n, -1)
    return m.linear(out, name + "wo_b"), gap


def logits_of(m, tokens, noise):
    c = m.config = {**m.config, **m.config["text_config"], "model_type": "deepseek_v41"}
    nearest, state = math.inf, {}
    x = m["embed.weight"][tokens]
    streams = np.repeat((x * (1 + noise * np.sin(np.arange(x.size)).reshape(x.shape)))[:, None], c["hc_mult"], 1)
    weights = np.eye(c["hc_mult"])[0][None]  # of the streams in the next block's input
    for layer in range(c["num_hidden_layers"]):
        name = f"layers.{layer}."
        if layer in c["engram_layer_ids"]:
            streams = engram(m, streams, tokens, name + "engram.", c["engram_layer_ids"].index(layer))
        for half in ("attn", "ffn"):
            pre, post, comb = stream_weights(m, streams, f"{name}hc_{half}")
            h = rms_norm((weights[..., None] * streams).sum(1), m[f"{name}{half}_norm.weight"], c["rms_norm_eps"])
            y, gap = attention(m, h, name + "attn.", layer, state) if half == "attn" else v4_experts(m, h, name + "ffn.", tokens)
            streams, weights = post[..., None] * y[:, None] + np.einsum("nst,nsd->ntd", comb, streams), pre
            nearest = min(nearest, gap)
    return m.linear(rms_norm((weights[..., None] * streams).sum(1), m["norm.weight"], c["rms_norm_eps"]), "head"), nearest


def forward(m, tokens):
    logits, nearest_choice = logits_of(m, tokens, 0)
    if m.config["head_dim"] % 16:
        return logits, nearest_choice
    # Rounding is a choice, too: of other tokens, those are better whose logits change less with the embeddings.
    changes = abs(logits_of(m, tokens, 2e-6)[0] - logits).max() / abs(logits).max()
    return logits, min(nearest_choice, 1e-9 / (changes + 1e-12))
