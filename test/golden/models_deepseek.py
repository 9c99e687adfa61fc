"""DeepSeek-V4.1's tensors with the vendor's names, and a tokenizer whose tokens have like texts. Imported by models.py."""
import math

from models import CODES, CODES_RMS, floats, fp4, stream, tensor, weight


def fp8(out, name, rows, cols, gain=1.0, block=32):
    """With power-of-two scales for blocks of block x 32."""
    shape = [-(-rows // block), -(-cols // 32)]
    middle = round(math.log2(gain / math.sqrt(cols) / CODES_RMS)) + 127
    out[name + ".weight"] = "F8_E4M3", [rows, cols], stream(name).digest(rows * cols).translate(CODES)
    out[name + ".scale"] = "F8_E8M0", shape, bytes(middle - 1 + b % 3 for b in stream(name, "scales").digest(math.prod(shape)))


def attention(out, c, p, i, h):
    dim, heads, low, lora, index = c["head_dim"], c["num_attention_heads"], c["q_lora_rank"], c["o_groups"] * c["o_lora_rank"], c["index_head_dim"]
    fp8(out, p + "wq_a", low, h)
    fp8(out, p + "wq_b", heads * dim, low)
    fp8(out, p + "wkv", dim, h)
    fp8(out, p + "wo_a", lora, heads * dim // c["o_groups"], 2)
    fp8(out, p + "wo_b", h, lora, 1)
    out[p + "q_norm.weight"], out[p + "kv_norm.weight"] = tensor(p + "q_norm", [low], 0.3, 1), tensor(p + "kv_norm", [dim], 0.3, 1)
    out[p + "attn_sink"] = floats(p + "attn_sink", [heads], 0, 2)
    if i in c["kv_source_layer_ids"]:
        weight(out, c, p + "compressor.wkv", dim, h, fp8=False)
        if c["compress_ratios"][i] > 1:
            weight(out, c, p + "compressor.wgate", dim, h, 2, fp8=False)
        out[p + "compressor.norm.weight"] = tensor(p + "compressor.norm", [dim], 0.3, 1)
        weight(out, c, p + "indexer.wk", index, dim, fp8=False)
        out[p + "indexer.k_norm.weight"] = tensor(p + "indexer.k_norm", [index], 0.3, 1)
    if i in c["index_source_layer_ids"]:
        fp8(out, p + "indexer.wq_b", c["index_n_heads"] * index, low, 2)
        weight(out, c, p + "indexer.weights_proj", c["index_n_heads"], h, fp8=False)


def deepseek_v41(config):
    c = {**config, **config["text_config"]}
    out, h, s, inter = {}, c["hidden_size"], c["hc_mult"], c["moe_intermediate_size"]
    out["embed.weight"] = tensor("embed", [c["vocab_size"], h], 1)
    out["vision.norm.weight"] = tensor("vision", [24], 1)  # this and the next are not read
    out["mtp.0.norm.weight"] = tensor("mtp", [h], 1)
    for i in range(c["num_hidden_layers"]):
        p, n = f"layers.{i}.", c["n_routed_experts"]
        for half in ("attn", "ffn"):
            name = f"{p}hc_{half}"
            out[name + "_fn"] = floats(name + "_fn", [(2 + s) * s, s * h], 0, 1.7 / math.sqrt(s * h))
            out[name + "_base"], out[name + "_scale"] = floats(name + "_base", [(2 + s) * s], 0, 2), floats(name + "_scale", [3], 1, 0.4)
            out[f"{p}{half}_norm.weight"] = tensor(f"{p}{half}_norm", [h], 0.3, 1)
        attention(out, c, p + "attn.", i, h)
        if i in c["engram_layer_ids"]:
            rows, dim, e = c["engram_num_embeddings"][c["engram_layer_ids"].index(i)], c["engram_head_dim"], p + "engram."
            fp8(out, e + "embed", rows, dim, math.sqrt(dim), 1)
            fp8(out, e + "wkv", (s + 1) * h, (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"] * dim)
            out[e + "q_weight"], out[e + "k_weight"] = tensor(e + "q_weight", [s, h], 1), tensor(e + "k_weight", [s, h], 1, 1)
        p += "ffn."
        weight(out, c, p + "gate", n, h, 1.5, fp8=False)
        out[p + "gate.bias"] = floats(p + "bias", [n], 0, 0.3)
        out[p + "gate.bias_vl"] = floats(p + "bias_vl", [n], 0, 0.3)  # of images: not read
        for e in range(n):
            for w, rows, cols, gain in (("w1", inter, h, 1.5), ("w3", inter, h, 1), ("w2", h, inter, 1)):
                fp4(out, f"{p}experts.{e}.{w}", rows, cols, gain)
        for w, rows, cols in (("w1", inter, h), ("w3", inter, h), ("w2", h, inter)):
            fp8(out, f"{p}shared_experts.{w}", rows, cols)
    out["norm.weight"] = tensor("norm", [h], 0.3, 1)
    weight(out, c, "head", c["vocab_size"], h, 1.5, fp8=False)
    return out


# Texts that differ in case, accents, form or white space; parts of characters; a text of which nothing is left.
TEXTS = ["the", " the", "The", " THE", "the\t", "THE\n ", " ", "  ", "\n", "\t \r\n", "\u00a0", "\u3000", "\u2003x", "x", "X ", "e", "\u00e9", "E\u0301", "\uff45", "fi", "\ufb01",
         "FI", "2", "\u00b2", "\u0130", "i\u0307", "I", "\u00df", "\u1e9e", "ss", "\uac00", "\u1100\u1161", "\u0915\u093e", "\u0915", "\u0301", "\ufffd", "a\ufffd", "\u03a3", "\u03c3",
         "\u03c2", "\u2126", "\u03c9", "\u0000", "a b", "a  b", " A B", "\ue000", "\u212b", "a", "\u1e9b\u0323", "s", "\u01c5", "dz\u030c", "\u2460", "1", "<think>", "\U0001d400"]
PARTS = [b"\xc3", b"\xa9", b"\xe4\xb8", b"\xff", b"A\xcc", b"\x81", b"\xf0\x9f"]


def spelled(data):
    """Bytes as a byte-level vocabulary writes them: those that are no visible Latin-1 characters as characters from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return "".join(chr(b) if b in plain else chr(256 + rest.index(b)) for b in data)


def tokenizer(vocab):
    tokens = ["<bos>", "<eos>", "<pad>", *(spelled(t if isinstance(t, bytes) else t.encode()) for t in TEXTS + PARTS)]
    tokens += [f"w{i}" for i in range(vocab - len(tokens))]
    assert len(set(tokens)) == vocab
    added = [{"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False} for i, t in enumerate(tokens[:3])]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {t: i for i, t in enumerate(tokens)}, "merges": []}}
