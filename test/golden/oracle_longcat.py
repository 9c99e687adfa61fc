"""LongCat-Flash-Lite in float64, for oracle.py. From the vendor's modeling file and report (arXiv:2601.21204)."""
import math

import numpy as np

from oracle import attend, mlp, rms_norm, rotate, softmax


def embedding(m, tokens):
    """The mean of a token's embedding and those of the n-grams that end at it. An n-gram is a number in base vocab_size, of which tables of different lengths
    take the remainder. Digits are 0 before the text, and before an end token that precedes the last token."""
    c, end = m.config, m.config["eos_token_id"]
    x = m["model.embed_tokens.weight"][tokens]
    base, splits, k = int(c["ngram_vocab_size_ratio"] * c["vocab_size"]), c["emb_split_num"], 0
    for length in range(2, c["emb_neighbor_num"] + 1):
        numbers = []
        for i in range(len(tokens)):
            text = tokens[max(0, i - length + 1) : i + 1]
            for at in range(len(text) - 1):
                if text[at] == end:
                    text = [0] * (at + 1) + text[at + 1 :]
            number = 0
            for token in text:
                number = number * c["vocab_size"] + token
            numbers.append(number)
        for _ in range(splits):
            name = "model.ngram_embeddings."
            table = m[f"{name}embedders.{k}.weight"]
            assert len(table) == base + 2 * k + 1
            x = x + m.linear(table[[number % len(table) for number in numbers]], f"{name}post_projs.{k}")
            k += 1
    return x / (1 + k)


def latent_attention(m, x, name):
    """MLA whose latents are multiplied by sqrt(hidden / rank)."""
    c, n, heads, eps = m.config, len(x), m.config["num_attention_heads"], 1e-6
    nope, rope, latent = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
    low = rms_norm(m.linear(x, name + "q_a_proj"), m[name + "q_a_layernorm.weight"], eps)
    q = m.linear(low, name + "q_b_proj").reshape(n, heads, -1) * math.sqrt(c["hidden_size"] / c["q_lora_rank"])
    q = np.concatenate((q[..., :nope], rotate(q[..., nope:], c, True)), -1)
    kv = m.linear(x, name + "kv_a_proj_with_mqa")
    key = rotate(kv[:, None, latent:], c, True)
    kv = rms_norm(kv[:, :latent], m[name + "kv_a_layernorm.weight"], eps) * math.sqrt(c["hidden_size"] / latent)
    kv = m.linear(kv, name + "kv_b_proj").reshape(n, heads, -1)
    k = np.concatenate((kv[..., :nope], np.broadcast_to(key, (n, heads, rope))), -1)
    scaling = c["rope_scaling"]
    scale = (nope + rope) ** -0.5 * (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1) ** 2
    return m.linear(attend(q, k, kv[..., nope:], scale), name + "o_proj")


def experts(m, x, name):
    """The experts after the routed ones return their input."""
    c = m.config
    score = softmax(m.linear(x, name + "router.classifier"))
    choice = score + m[name + "router.e_score_correction_bias"]
    order = np.argsort(-choice, -1, kind="stable")
    k, y = c["moe_topk"], np.zeros_like(x)
    ranked = np.take_along_axis(choice, order, -1)
    for t in range(len(x)):
        for e in order[t, :k]:
            y[t] += score[t, e] * c["routed_scaling_factor"] * (x[t] if e >= c["n_routed_experts"] else mlp(m, x[t], f"{name}experts.{e}."))
    return y, (ranked[:, k - 1] - ranked[:, k]).min()


def forward(m, tokens):
    c, nearest = m.config, math.inf
    x = embedding(m, list(tokens))
    for layer in range(c["num_layers"]):
        name = f"model.layers.{layer}."
        for k in range(2):
            x = x + latent_attention(m, rms_norm(x, m[f"{name}input_layernorm.{k}.weight"], c["rms_norm_eps"]), f"{name}self_attn.{k}.")
            h = rms_norm(x, m[f"{name}post_attention_layernorm.{k}.weight"], c["rms_norm_eps"])
            if k == 0:
                routed, gap = experts(m, h, name + "mlp.")
                nearest = min(nearest, gap)
            x = x + mlp(m, h, f"{name}mlps.{k}.")
        x = x + routed
    return m.linear(rms_norm(x, m["model.norm.weight"], c["rms_norm_eps"]), "lm_head"), nearest


FAMILIES = {"longcat_flash_ngram": forward}
