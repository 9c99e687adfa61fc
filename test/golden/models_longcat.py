"""LongCat-Flash-Lite's tensors with the vendor's names. Imported by models.py."""
from models import floats, mlp, tensor, weight


def latent(out, c, p):
    h, heads, q, kv, rope = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    weight(out, c, p + "q_a_proj", q, h)
    weight(out, c, p + "q_b_proj", heads * (c["qk_nope_head_dim"] + rope), q)
    weight(out, c, p + "kv_a_proj_with_mqa", kv + rope, h)
    weight(out, c, p + "kv_b_proj", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), kv)
    weight(out, c, p + "o_proj", h, heads * c["v_head_dim"])
    for name, n in (("q_a_layernorm", q), ("kv_a_layernorm", kv)):
        out[f"{p}{name}.weight"] = tensor(p + name, [n], 0.2, 0.6)


def longcat_flash_ngram(c):
    out, h, n = {}, c["hidden_size"], c["n_routed_experts"]
    out["model.embed_tokens.weight"] = tensor("embed", [c["vocab_size"], h], 2)
    hashes = (c["emb_neighbor_num"] - 1) * c["emb_split_num"]
    for k in range(hashes):
        rows, p = int(c["ngram_vocab_size_ratio"] * c["vocab_size"]) + 2 * k + 1, "model.ngram_embeddings."
        out[f"{p}embedders.{k}.weight"] = tensor(f"embedder {k}", [rows, h // hashes], 2)
        weight(out, c, f"{p}post_projs.{k}", h, h // hashes, fp8=False)
    for i in range(c["num_layers"]):
        p = f"model.layers.{i}."
        for k in range(2):
            latent(out, c, f"{p}self_attn.{k}.")
            mlp(out, c, f"{p}mlps.{k}.", c["ffn_hidden_size"])
            for name in ("input_layernorm", "post_attention_layernorm"):
                out[f"{p}{name}.{k}.weight"] = tensor(f"{p}{name}.{k}", [h], 0.3, 1)
        every = n + c["zero_expert_num"]
        weight(out, c, p + "mlp.router.classifier", every, h, 1.5, fp8=False)
        out[p + "mlp.router.e_score_correction_bias"] = floats(p + "bias", [every], 0, 0.05)
        for e in range(n):
            mlp(out, c, f"{p}mlp.experts.{e}.", c["expert_ffn_hidden_size"])
    out["model.mtp.norm.weight"] = tensor("mtp", [h], 1)  # not read
    out["model.norm.weight"] = tensor("norm", [h], 0.3, 1)
    weight(out, c, "lm_head", c["vocab_size"], h, 1.5, fp8=False)
    return out
