#!/usr/bin/env python3
"""Every way in which a GGUF file may be damaged or unsupported: exit 3, and the message names the file and the
key, the tensor or the number.
test_bad_gguf.py HEARTH"""
import copy
import os
import struct
import subprocess
import sys
import tempfile

import gguf_file as g
import gguf_formats
from checks import HEARTH, check, end, run

GATE = "blk.1.ffn_gate_exps.weight"


def meta(**keys):
    """A damage: metadata set, or removed with None."""
    def damage(m, t):
        for k, v in keys.items():
            k = k.replace("__", ".")
            m.pop(k, None)
            if v is not None:
                m[k] = v
    return damage


def tensor(name, **change):
    def damage(m, t):
        i = next(i for i, x in enumerate(t) if x[0] == name)
        if "gone" in change:
            t.pop(i)
            return
        old = dict(zip(("name", "type", "shape", "raw"), t[i]))
        old.update({k: v(old[k]) if callable(v) else v for k, v in change.items()})
        t[i] = tuple(old[k] for k in ("name", "type", "shape", "raw"))
    return damage


def more(*new):
    return lambda m, t: t.append(new)


def at(b, mark, offset, new):
    i = b.index(mark) + len(mark) + offset
    return b[:i] + new + b[i + len(new) :]


BYTES = [
    ("empty", lambda b: b"", ["shorter"]),
    ("cut in the head", lambda b: b[:20], ["shorter"]),
    ("cut in the metadata", lambda b: b[:300], ["incomplete"]),
    ("cut in the data", lambda b: b[:-5000], ["truncated"]),
    ("LFS pointer", lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ["LFS"]),
    ("web page", lambda b: b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", ["web page"]),
    ("another file", lambda b: b"PK\3\4" + b[4:], ["does not begin as a GGUF"]),
    ("version 1", lambda b: b[:4] + struct.pack("<I", 1) + b[8:], ["version 1", "reads versions 2 and 3"]),
    ("big-endian", lambda b: b[:4] + struct.pack(">I", 3) + b[8:], ["big-endian"]),
    ("too many tensors", lambda b: b[:8] + struct.pack("<Q", 2**62) + b[16:], ["incomplete"]),
    ("too many keys", lambda b: b[:16] + struct.pack("<Q", 2**40) + b[24:], ["metadata keys"]),
    ("a key of no bytes", lambda b: b[:24] + struct.pack("<Q", 0) + b[32:], []),
    ("a string past the end", lambda b: at(b, b"general.architecture", 4, struct.pack("<Q", 2**63)), ["general.architecture", "incomplete"]),
    ("an unknown type of value", lambda b: at(b, b"general.architecture", 0, struct.pack("<I", 77)), ["general.architecture", "unknown type"]),
    ("an array longer than the file", lambda b: at(b, b"tokenizer.ggml.token_type", 8, struct.pack("<Q", 2**60)), ["token_type", "incomplete"]),
    ("a truth value of 7", lambda b: at(b, b"tokenizer.ggml.add_bos_token", 4, b"\7"), ["add_bos_token"]),
    ("a string that is not UTF-8", lambda b: b.replace(b"random qwen3moe", b"random \xff\xfe3moe"), ["general.name", "UTF-8"]),
    ("a place past the end", lambda b: at(b, b"output.weight", 4 + 16 + 4, struct.pack("<Q", 2**50)), ["output.weight", "begins at byte"]),
    ("seven dimensions", lambda b: at(b, b"output.weight", 0, struct.pack("<I", 7)), ["output.weight", "7 dimensions"]),
    ("a shape that overflows", lambda b: at(b, b"output.weight", 4, struct.pack("<QQ", 2**40, 2**40)), ["output.weight", "overflows"]),
    ("a shape with a 0", lambda b: at(b, b"output.weight", 4, struct.pack("<Q", 0)), ["output.weight", "is 0"]),
]
class Again(str):
    """The same text with another key of a dict."""
    __hash__, __eq__ = lambda self: 1, lambda self, other: self is other


PARTS = [
    ("a key twice", lambda m, t: m.update({Again("general.name"): "x"}), ["general.name", "twice"]),
    ("alignment 3", meta(general__alignment=3), ["general.alignment"]),
    ("arrays in arrays", meta(a=[[[[["x"]]]]]), ["too deep"]),
    ("a tensor twice", more("blk.0.attn_q.weight", "F32", [256], bytes(1024)), ["blk.0.attn_q.weight", "is also in"]),
    ("Q8_K", tensor(GATE, type=15, raw=bytes(4 * 256 * 292)), [GATE, "Q8_K", "Q4_K"]),
    ("an unknown format", tensor(GATE, type=99), [GATE, "unknown format 99"]),
    ("rows of no whole blocks", more("x", "Q4_K", [2, 100], bytes(288)), ["x", "no whole blocks of Q4_K"]),
    ("no architecture", meta(general__architecture=None), ["general.architecture", "--version -v"]),
    ("an adapter", meta(general__type="adapter"), ["LoRA adapter", "Merge it"]),
    ("a tower", meta(general__type="mmproj", general__architecture="clip"), ["vision tower", "--mmproj"]),
    ("statistics", meta(general__type="imatrix", general__architecture=None), ["statistics for quantizing"]),
    ("an unknown architecture", meta(general__architecture="mamba"), ["mamba", "--version -v"]),
    ("a key nobody knows", meta(qwen3moe__attention__logit_softcap=30.0), ["qwen3moe.attention.logit_softcap"]),
    ("attention to later tokens", meta(qwen3moe__attention__causal=False), ["hearth computes causal attention"]),
    ("no block count", meta(qwen3moe__block_count=None), ["block_count"]),
    ("billions of blocks", meta(qwen3moe__block_count=4000000000), ["block_count", "4000000000", "1 to "]),
    ("a count as text", meta(qwen3moe__expert_count="four"), ["num_experts"]),
    ("heads that differ", meta(qwen3moe__attention__head_count=[4, 8]), ["attention.head_count"]),
    ("too many experts a token", meta(qwen3moe__expert_used_count=9), ["9 experts a token of 4"]),
    ("values of another size than keys", meta(qwen3moe__attention__value_length=32), ["value_length"]),
    ("a stop id out of range", meta(**{"tokenizer.ggml.eos_token_id": 5000}), ["5000"]),
    ("a tensor missing", tensor(GATE, gone=True), [GATE, "missing"]),
    ("a norm missing", tensor("blk.1.attn_norm.weight", gone=True), ["blk.1.attn_norm.weight"]),
    ("experts of another number", tensor(GATE, shape=[2, 256, 256], raw=lambda r: r[: len(r) // 2]), [GATE, "[4, 256, 256]"]),
    ("a shape of another model", tensor("output.weight", shape=[144, 512]), ["output.weight", "[288, 256]"]),
    ("a bias nobody knows", more("blk.1.attn_q.bias", "F32", [256], bytes(1024)), ["blk.1.attn_q.bias", "unknown tensor"]),
    ("factors of nothing", more("rope_freqs.weight", "F32", [32], bytes(128)), ["rope_freqs.weight", "more than 0"]),
    ("a vector in Q8_0", tensor("output_norm.weight", type="Q8_0", raw=bytes(8 * 34)), ["output_norm.weight", "vector"]),
    ("file 1 of 3 by its metadata", meta(**{"split.no": 0, "split.count": 3}), ["file 1 of 3"]),
]
VERIFY = [
    ("an infinite scale", tensor(GATE, raw=lambda r: r[:340] + b"\0\x7c" + r[342:]), [GATE, "Q8_0", "row 1", "column 64"]),
    ("a norm that is NaN", tensor("output_norm.weight", raw=lambda r: r[:8] + struct.pack("<f", float("nan")) + r[12:]), ["output_norm.weight", "column 2"]),
]
TEXT = [
    ("an unknown pre-tokenizer", meta(**{"tokenizer.ggml.pre": "saturn"}), ["saturn", "qwen2"]),
    ("an unknown tokenizer", meta(**{"tokenizer.ggml.model": "bert"}), ["bert", "gpt2, llama, t5 and gemma4"]),
    ("no tokenizer", meta(**{"tokenizer.ggml.model": "no_vocab"}), ["no tokenizer"]),
    ("no tokens", meta(**{"tokenizer.ggml.tokens": None}), ["tokenizer.ggml.tokens"]),
    ("tokens that are numbers", meta(**{"tokenizer.ggml.tokens": [1] * 288}), ["wrong type"]),
    ("types of another number", meta(**{"tokenizer.ggml.token_type": [1, 1]}), ["token_type", "2 items"]),
    ("no merges", meta(**{"tokenizer.ggml.merges": None}), ["merges"]),
    ("a merge of unknown pieces", meta(**{"tokenizer.ggml.merges": ["h e", "zz zz"]}), ["zz"]),
    ("SentencePiece without scores", meta(**{"tokenizer.ggml.model": "llama"}), ["tokenizer.ggml.scores"]),
    ("no template", meta(**{"tokenizer.chat_template": None}), ["has no chat template", "--template FILE supplies"]),
    ("a template that is a number", meta(**{"tokenizer.chat_template": 3}), ["tokenizer.chat_template"]),
    ("a broken template", meta(**{"tokenizer.chat_template": "{% if"}), ["line 1"]),
]


TEMPERATURE = {"deepseek2__attention__temperature_scale": 0.1, "deepseek2__attention__temperature_length": 128}
MISTRAL = [  # of a DeepSeek file that says it is Mistral's
    ("a sigmoid of Mistral's", meta(**TEMPERATURE, deepseek2__expert_gating_func=2), ["'deepseek2.expert_gating_func' is 2", "attention.temperature_scale"]),
    ("a multiplier of an old converter", meta(**TEMPERATURE, deepseek2__rope__scaling__yarn_log_multiplier=1.0), ["yarn_log_multiplier' is 1 beside", "supports 0.1"]),
    ("another length", meta(**{**TEMPERATURE, "deepseek2__attention__temperature_length": 64}), ["temperature_length' is not that of"]),
]
GLIMMER = [
    ("a period of windows", meta(**{"muse-glimmer.attention.sliding_window_pattern": 4}), ["sliding_window_pattern' is not a list"]),
    ("two bases of rotations", meta(**{"muse-glimmer.rope.freq_base_swa": 1e4}), ["rope.freq_base_swa' differs"]),
]


def splits(tmp, model):
    """Split files: one missing, one of another model, one renamed."""
    p = g.qwen3moe("Q8_0")
    p.save(os.path.join(tmp, "s"))
    name = os.path.join(tmp, "m.gguf")
    first = gguf_formats.write(name, p.meta, p.gguf, 3)
    files = [first.replace("00001-of", f"{i:05d}-of") for i in (1, 2, 3)]
    check(run("-m", first, "--inspect")[0] == 0, "split files open")
    good = [open(f, "rb").read() for f in files]

    def case(what, damage, words):
        for f, b in zip(files, good):
            with open(f, "wb") as o:
                o.write(b)
        damage()
        rc, out, err = run("-m", first, "--inspect")
        check(rc == 3 and all(w in err for w in words), what, f"exit {rc}, {err.strip()!r}, wanted 3 and {words}")

    def swap():
        os.rename(files[1], files[1] + "x")
        os.rename(files[2], files[1])
        os.rename(files[1] + "x", files[2])

    def other():
        q = g.qwen2moe("Q8_0")
        q.save(os.path.join(tmp, "o"))
        gguf_formats.write(os.path.join(tmp, "o", "m.gguf"), q.meta, q.gguf, 3)
        os.replace(os.path.join(tmp, "o", os.path.basename(files[2])), files[2])

    case("a split file missing", lambda: os.remove(files[2]), [os.path.basename(files[2]), "missing"])
    case("split files changed round", swap, ["file 3 of 3", "2 of 3"])
    case("a split file of another model", other, ["another model"])


def main():
    with tempfile.TemporaryDirectory() as tmp:
        p = g.qwen3moe("Q8_0")
        model, _ = p.save(os.path.join(tmp, "good"))
        good = open(model, "rb").read()
        check(run("-m", model, "--verify")[0] == 0, "the undamaged file verifies")
        bad = os.path.join(tmp, "bad.gguf")

        def case(what, content, words, *args):
            with open(bad, "wb") as f:
                f.write(content)
            q = subprocess.run([HEARTH, "-m", bad, *args], input=b"hello", capture_output=True, timeout=60)
            err = q.stderr.decode("utf-8", "replace")
            check(q.returncode == 3 and q.stdout == b"" and "bad.gguf" in err and all(w in err for w in words), what,
                  f"exit {q.returncode}, {err.strip()!r}, wanted 3 and {words}")

        for what, damage, words in BYTES:
            case(what, damage(good), words, "--inspect")
        deepseek, glimmer = g.deepseek2("F32", v3=False), g.muse_glimmer("F32")
        for q in (deepseek, glimmer):
            q.save(os.path.join(tmp, q.arch))  # completes the metadata
        for cases, args, of in ((PARTS, ["--inspect"], p), (VERIFY, ["--verify"], p), (TEXT, None, p), (MISTRAL, ["--inspect"], deepseek), (GLIMMER, ["--inspect"], glimmer)):
            for what, damage, words in cases:
                m, t = copy.deepcopy(of.meta), list(of.gguf)
                damage(m, t)
                render = what.endswith("template") or what.startswith("a template")
                case(what, gguf_formats.pack(m, t), words, *(args or (["-p", "x", "-n", "1"] if render else ["--tokenize"])))
        splits(tmp, model)
    return end()


sys.exit(main())
