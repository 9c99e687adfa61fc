#!/usr/bin/env python3
"""GGUF files against the same weights as safetensors in float32: equal logits for each architecture and each format, in every
mode; tokenizer and template from the metadata.
test_gguf.py HEARTH"""
import array
import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import gguf_file
import gguf_formats
import gguf_pair
import ollama_file
from charsmap import charsmap_base64
from checks import HEARTH, check, end, run

IDS = ",".join(str((i * 37 + 11) % 270) for i in range(40))
SCALAR = ["--cpu", "scalar", "--kv", "f32"]


def logits(model, path, *args):
    rc, out, err = run("-m", model, "--tokens", IDS, "--logits-out", path, *args)
    if rc:
        return None, f"exit {rc} {err.strip()}"
    f = array.array("f")
    with open(path, "rb") as h:
        f.frombytes(h.read())
    return f, ""


def distance(a, b):
    """Returns the largest difference relative to the largest value."""
    return max(abs(x - y) for x, y in zip(a, b)) / max(max(map(abs, b)), 1e-30)


ROUNDED = 6e-2  # BF16 activations leave up to 0.01, 8-bit ones (AVX-512 VNNI) up to 0.041


def usual(a, b):
    """The same for the position at the lower quartile: rounding of activations may flip a choice of experts, and thereby logits of any position."""
    n, each = IDS.count(",") + 1, len(b) // (IDS.count(",") + 1)
    return sorted(distance(a[i * each:(i + 1) * each], b[i * each:(i + 1) * each]) for i in range(n))[n // 4]


def twins(tmp):
    out, turn, every_mode = os.path.join(tmp, "logits"), 0, os.environ.get("HEARTH_TEST_PART") == "all"
    every = [f for f in gguf_formats.TYPES if f not in ("F32", "F16", "BF16")]
    cases = [(a, f) for a in gguf_file.MODELS for f in ("F32",)] + [("qwen3moe", "BF16"), ("deepseek2", "BF16")] + [("qwen3moe", f) for f in ["F16"] + every] + [("deepseek2", "Q4_K"), ("llama", "Q8_0"), ("k2-horizon", "Q4_K"), ("k2-horizon", "Q8_0"), ("maple", "TQ2_0"), ("gpt-oss", "MXFP4"), ("qwen3next", "Q8_0")]
    for arch, fmt in cases:
        d = os.path.join(tmp, "pair")
        shutil.rmtree(d, ignore_errors=True)
        file, hf = gguf_file.MODELS[arch](fmt).save(d)
        want, why = logits(hf, out, *SCALAR)
        check(want, f"{arch}: the safetensors twin", why)
        got, why = logits(file, out, *SCALAR)
        check(got, f"{arch} {fmt}", why)
        if not want or not got:
            continue
        # llama.cpp's order of heads and keys changes the order of summation
        tol = 0 if fmt in ("F32", "F16", "BF16") and not arch.startswith(("llama", "arcee", "arctic", "deepseek", "smollm3", "internlm2", "glm4v", "granite", "minicpm", "mistral3", "hunyuan", "kimi-linear", "muse")) and arch not in ("bailingmoe", "olmo") or arch.endswith(" old") else 1e-5
        check(len(got) == len(want) and distance(got, want) <= tol, f"{arch} {fmt}: logits", f"off by {distance(got, want):.3g} of the largest, wanted {tol}")
        if fmt in ("F32", "BF16"):
            continue
        turn += 1  # a mode of each kind for each format: the formats together have each mode many times
        prefills = ["--gpus", "emu:1", "--prefill", "slp"], ["--gpus", "emu:2", "--prefill", "dslp"], ["--gpus", "emu:1", "--prefill", "blend"]
        decodes = ["--gpus", "emu:1", "--decode", "hybrid"], ["-t", "1"], ["-t", "5"]
        for args in ([], *(prefills if every_mode else prefills[turn % 3:][:1])):
            got, why = logits(file, out, "--kv", "f32", *args)
            check(got and usual(got, want) < ROUNDED, f"{arch} {fmt} {args}", why or f"usually off by {usual(got, want):.3g}")
        want = run("-m", file, "--tokens", IDS, "-n", "6", "--temp", "0", "--ids")
        for args in decodes if every_mode else decodes[turn // 3 % 3:][:1]:
            got = run("-m", file, "--tokens", IDS, "-n", "6", "--temp", "0", "--ids", *args)
            check(got[0] == 0 and got[1] == want[1], f"{arch} {fmt} {args}: the same ids", f"{got} instead of {want}")


def mixes(tmp):
    """Experts in another format in each layer: slots of different sizes, and the same text in every mode."""
    out = os.path.join(tmp, "logits")
    file, hf = gguf_file.mixed("Q5_1").save(os.path.join(tmp, "mixed"))
    want, why = logits(hf, out, *SCALAR)
    got, why = logits(file, out, *SCALAR)
    check(got and distance(got, want) <= 1e-5, "mixed: logits", why or f"off by {distance(got, want):.3g}")
    for args in (["--prefill", "slp"], ["--prefill", "blend"]):
        got, why = logits(file, out, "--kv", "f32", "--gpus", "emu:1", *args)
        check(got and usual(got, want) < ROUNDED, f"mixed {args}", why or f"usually off by {usual(got, want):.3g}")
    rc, text, err = run("-m", file, "--tokens", IDS, "-n", "12", "--temp", "0", "--ids")
    check(rc == 0, "mixed: ids", err)
    for args in (["--gpus", "emu:1", "--decode", "hybrid"], ["--gpus", "emu:1", "--decode", "hybrid", "--expert-cache", "2"], ["--gpus", "emu:1", "--expert-cache", "layers"],
                 ["--gpus", "emu:2", "--decode", "hybrid", "--expert-cache", "1"], ["--gpus", "emu:1", "--decode", "dual"], ["--gpus", "emu:1", "--decode", "paged"]):
        got = run("-m", file, "--tokens", IDS, "-n", "12", "--temp", "0", "--ids", *args)
        check(got[:2] == (rc, text), f"mixed {args}: the same ids", f"{got} instead of {text}")
    rc, info, err = run("-m", file, "--inspect", "--json")
    info = json.loads(info) if rc == 0 else {}
    stored = {m["dtype"]: m for m in info.get("mix", [])}
    kinds = {"Q5_1", "Q8_0", "IQ2_XS", "IQ3_S", "BF16", "F32"}
    check(set(stored) == kinds and stored["IQ3_S"]["bits"] == 3.44 and stored["IQ3_S"]["weights"] == 4 * 256 * 256, "--inspect lists the formats", (info.get("mix"), err))
    check(4 < info.get("bits_per_weight", 0) < 12, "--inspect gives bits per weight", info.get("bits_per_weight"))
    rc, _, err = run("-m", file, "--plan", "paper-b-t4")
    check(rc == 0, "--plan with mixed formats", err)


def text(tmp):
    d = os.path.join(tmp, "text")
    file, _ = gguf_file.qwen3moe("Q8_0").save(d)
    tokens, _, _ = gguf_file.vocabulary(288)

    def tokenize(data, *args):
        p = subprocess.run([HEARTH, "-m", file, "--tokenize", *args], input=data.encode(), capture_output=True, timeout=60)
        return [tokens[i] for i in json.loads(p.stdout)] if not p.returncode else p.stderr.decode()

    check(tokenize("hello world") == ["hello", "\u0120world"], "merges", tokenize("hello world"))
    check(tokenize("<|im_end|>", "--special") == ["<|im_end|>"], "a control token", tokenize("<|im_end|>", "--special"))
    check(len(tokenize("<|im_end|>")) == 10, "typed by a user it is text", tokenize("<|im_end|>"))
    check(tokenize("a<think>12", "--special") == ["a", "<think>", "1", "2"], "a token of the user's kind", tokenize("a<think>12", "--special"))
    p = subprocess.run([HEARTH, "-m", file, "--detokenize"], input=json.dumps([tokens.index("hello"), tokens.index("\u0120world")]).encode(), capture_output=True)
    check(p.stdout == b"hello world", "decoding", p)
    conv = os.path.join(d, "conv.json")
    with open(conv, "w") as f:
        json.dump({"messages": [{"role": "user", "content": "hello"}]}, f)
    rc, out, err = run("-m", file, "--render", conv)
    check(out == b"<|start|><|start|>user\nhello<|im_end|>\n", "the template", (out, err))
    rc, out, err = run("-m", file, "-p", "hello", "-n", "3", "--temp", "0")
    check(rc == 0, "an answer", err)


def sentencepiece(tmp):
    """Pieces with scores: of all pairs that form a piece the best is merged first, unknown characters become bytes, text never
    becomes a control token."""
    pieces = [("<unk>", 2, 0.0), ("<s>", 3, 0.0), ("</s>", 3, 0.0)] + [(f"<0x{b:02X}>", 6, 0.0) for b in range(256)]
    pieces += [(s, 1, score) for s, score in (("he", -1.0), ("ll", -2.0), ("llo", -3.0), ("\u2581he", -4.0), ("lo", -5.0), ("s>", -6.0), ("<s", -7.0))]
    pieces += [(c, 1, -100.0 - i) for i, c in enumerate("\u2581helo<s>")]
    file = os.path.join(tmp, "spm.gguf")
    names = [p[0] for p in pieces]
    gguf_formats.write(file, {"general.architecture": "llama", "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": names,
                           "tokenizer.ggml.token_type": [p[1] for p in pieces], "tokenizer.ggml.scores": [p[2] for p in pieces]}, [])
    for text, args, want in (("hello", [], ["\u2581he", "llo"]), ("h\u00e9 hello", [], ["\u2581", "h", "<0xC3>", "<0xA9>", "\u2581he", "llo"]),
                             ("<s>", [], ["\u2581", "<", "s>"]), ("<s>he", ["--special"], ["<s>", "\u2581he"])):
        p = subprocess.run([HEARTH, "-m", file, "--tokenize", *args], input=text.encode(), capture_output=True, timeout=60)
        got = [names[i] for i in json.loads(p.stdout)] if not p.returncode else p.stderr
        check(got == want, f"SentencePiece: {text}", f"{got} instead of {want}")
    # of kind Unigram, with SentencePiece's own treatment of spaces
    meta = {"general.architecture": "llama", "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": names, "tokenizer.ggml.remove_extra_whitespaces": True,
            "tokenizer.ggml.precompiled_charsmap": list(base64.b64decode(charsmap_base64({"\t".encode(): b" "}))),
            "tokenizer.ggml.token_type": [p[1] for p in pieces], "tokenizer.ggml.scores": [p[2] for p in pieces]}
    gguf_formats.write(file, meta, [])
    for text, want in (("hello", ["\u2581he", "llo"]), ("\t he  he ", ["\u2581he", "\u2581he"]), ("\u00e9<0x41>", ["\u2581", "<0xC3>", "<0xA9>", "<", "<0x30>", "<0x78>", "<0x34>", "<0x31>", ">"])):
        p = subprocess.run([HEARTH, "-m", file, "--tokenize"], input=text.encode(), capture_output=True, timeout=60)
        got = [names[i] for i in json.loads(p.stdout)] if not p.returncode else p.stderr
        check(got == want, f"Unigram: {text}", f"{got} instead of {want}")


def plain_tokens(tmp):
    """Tokens of the user's kind are the model's own in typed text, marks of chats excepted. Control tokens of Phi-3 take the white
    space behind them."""
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 4), ("<|end|>", 3), ("  ", 4), ("\n\n", 4), ("<b>", 4), ("<tool_call>", 4), ("<|im_start|>", 4)]
    pieces += [(f"<0x{b:02X}>", 6) for b in range(256)] + [(c, 1) for c in "\u2581ab"]
    names, file = [p[0] for p in pieces], os.path.join(tmp, "plain.gguf")
    end, newline = "<|end|>", "<0x0A>"
    typed = lambda s: [f"<0x{b:02X}>" if chr(b) not in "ab" else chr(b) for b in s.encode()]  # noqa: E731
    for arch, name, text, args, want in (
            ("llama", "", "a  b\n\n<b></s>", [], ["a", "  ", "b", "\n\n", "<b>", "</s>"]),
            ("llama", "", "a   b", [], ["a", "  ", "\u2581", "b"]),
            ("llama", "", "<|end|>", [], typed("<|end|>")),
            ("llama", "", "<tool_call>", [], typed("<tool_call>")),
            ("llama", "", "<|im_start|>", [], typed("<|im_start|>")),
            ("llama", "", "<tool_call><|im_start|>a", ["--special"], ["<tool_call>", "<|im_start|>", "a"]),
            ("llama", "", "<|end|>\na", ["--special"], [end, newline, "a"]),
            ("phi3", "", "<|end|>\n \ta<s>\nb", ["--special"], [end, "a", "<s>", newline, "b"]),
            ("llama", "A fine-tune of Phi-3 mini", "<|end|>\na", ["--special"], [end, "a"])):
        gguf_formats.write(file, {"general.architecture": arch, "general.name": name, "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": names,
                                  "tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.token_type": [p[1] for p in pieces],
                                  "tokenizer.ggml.scores": [-1.0 * i for i in range(len(pieces))]}, [])
        p = subprocess.run([HEARTH, "-m", file, "--tokenize", *args], input=text.encode(), capture_output=True, timeout=60)
        got = [names[i] for i in json.loads(p.stdout)] if not p.returncode else p.stderr
        check(got == want, f"tokens in typed text: {arch} {name} {text!r} {args}", f"{got} instead of {want}")


def old_files(tmp):
    """Files that name no pre-tokenizer, or the default one: punctuation, numbers and every third digit are parted."""
    original, file = gguf_pair.vocabulary(0), os.path.join(tmp, "old.gguf")
    names, merges = original[0][:256] + ["12", "34", "123", "a!", "!?", "<s>"], ["1 2", "3 4", "12 3", "a !", "! ?"]
    for pre in ({}, {"tokenizer.ggml.pre": "default"}):
        gguf_formats.write(file, {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": names, "tokenizer.ggml.merges": merges,
                                  "tokenizer.ggml.token_type": [1] * (len(names) - 1) + [3], **pre}, [])
        p = subprocess.run([HEARTH, "-m", file, "--tokenize"], input=b"a!?1234", capture_output=True, timeout=60)
        got = [names[i] for i in json.loads(p.stdout)] if not p.returncode else p.stderr
        check(got == ["a", "!?", "123", "4"], f"a file from before May 2024, {pre}", got)
        check(b"May 2024" in p.stderr, "a warning", p.stderr)


def minicpm5(tmp):
    """Three digits at a time, and a word that is a token is one, though no merge makes it."""
    file = os.path.join(tmp, "minicpm5.gguf")
    names, merges = gguf_pair.vocabulary(0)[0][:256] + ["12", "34", "123", "a1", "'s", "hi", "!!", "<s>"], ["1 2", "3 4", "12 3", "a 1", "! !"]
    gguf_formats.write(file, {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "minicpm5", "tokenizer.ggml.tokens": names,
                              "tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": [1] * (len(names) - 1) + [3]}, [])
    p = subprocess.run([HEARTH, "-m", file, "--tokenize"], input=b"a1234's hi hi!!", capture_output=True, timeout=60)
    got = [names[i] for i in json.loads(p.stdout)] if not p.returncode else p.stderr
    check(got == ["a", "123", "4", "'s", "\u0120", "h", "i", "\u0120", "h", "i", "!!"], "the pre-tokenizer of MiniCPM5", got)
    p = subprocess.run([HEARTH, "-m", file, "--tokenize"], input=b"hi", capture_output=True, timeout=60)
    check(p.returncode == 0 and json.loads(p.stdout) == [names.index("hi")], "a word that is a token", p.stdout)


def ollama(tmp):
    """Files of ollama's converter compute what those of llama.cpp's do; a tower in the same file is left alone."""
    out = os.path.join(tmp, "logits")
    for name in ("gpt-oss", "gemma3", "mistral3", "qwen3next", "lfm2", "olmo2", "qwen3vl"):
        p = gguf_file.MODELS[name]("F32")
        if name == "gemma3":
            p.key(context_length=131072, rope__freq_base_swa=10000.0)
        file, _ = p.save(os.path.join(tmp, "ollama"))
        want, why = logits(file, out, *SCALAR)
        meta, tensors = ollama_file.rewrite(p.meta, p.gguf, ("F32", [4, 8], bytes(128)))
        gguf_formats.write(file, meta, tensors)
        got, why_not = logits(file, out, *SCALAR)
        check(want and got == want, f"ollama's {name}", why or why_not)
        rc, _, err = run("-m", file, "--verify")
        check(rc == 0, f"ollama's {name} verifies", err)
    letters, tail = gguf_pair.vocabulary(0)[0][:256], [f"<{i}>" for i in range(260, 128010)]
    for arch, model, named, text, want in (("gptoss", "gpt2", {"tokenizer.ggml.pre": "default"}, "1234", ["123", "4"]), ("llama", "gpt2", {}, "1234", ["123", "4"]),
                                           ("bailingmoe2", "gpt2", {"tokenizer.ggml.pre": "sarvam-moe"}, "a 12\n12", ["a", "\u2581", "12", "<0x0A>", "12"]),
                                           ("gemma4", "llama", {"tokenizer.ggml.pre": "gemma4"}, "a 12", ["a", "\u2581", "12"])):
        names = [*letters, "12", "123", "1234", "\u2581", "<0x0A>", *(tail if arch == "llama" else ["<s>"])]
        if arch == "llama":
            names[128006], names[128009] = "<|start_header_id|>", "<|eot_id|>"
        gguf_formats.write(file, {"general.architecture": arch, "tokenizer.ggml.model": model, "tokenizer.ggml.tokens": names, "tokenizer.ggml.merges": ["1 2", "12 3", "123 4"],
                                  "tokenizer.ggml.scores": [0.0] * len(names), "tokenizer.ggml.token_type": [1] * (len(names) - 1) + [3], **named}, [])
        p = subprocess.run([HEARTH, "-m", file, "--tokenize"], input=text.encode(), capture_output=True, timeout=60)
        got = [names[i] for i in json.loads(p.stdout)] if not p.returncode else p.stderr
        check(got == want, f"ollama's vocabulary of {arch}", got)


def repeated(tmp):
    """Several ids with one text: text becomes the user-defined one or the lowest, and all have their bytes."""
    file = os.path.join(tmp, "repeated.gguf")
    extra = [("he", 1), ("ll", 1), ("hell", 1), ("hello", 1), ("hello", 1), ("<b>", 1), ("<b>", 4), ("<b>", 4), ("<x>", 3), ("<x>", 3), ("<x>", 1), ("\u0120", 1), ("<s>", 3)]
    names, kinds = gguf_pair.vocabulary(0)[0][:256] + [t for t, _ in extra], [1] * 256 + [k for _, k in extra]
    gguf_formats.write(file, {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": names,
                              "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o"], "tokenizer.ggml.token_type": kinds}, [])
    for text, args, want in (("hello", [], [259]), ("<b>", [], [262]), ("<x>", ["--special"], [264]), (" ", [], [names.index("\u0120")])):
        p = subprocess.run([HEARTH, "-m", file, "--tokenize", *args], input=text.encode(), capture_output=True, timeout=60)
        check(p.returncode == 0 and json.loads(p.stdout) == want, f"a repeated token: {text!r}", (p.stdout, p.stderr))
    p = subprocess.run([HEARTH, "-m", file, "--detokenize"], input=json.dumps(list(range(256, len(names) - 1))).encode(), capture_output=True, timeout=60)
    check(p.stdout == b"hellhellhellohello<b><b><b><x><x><x> ", "the bytes of repeated tokens", (p.stdout, p.stderr))


def rotations(tmp):
    """Linear scaling of the rotation: beside factors of single frequencies, without a type, and under its old name."""
    out, factors = os.path.join(tmp, "logits"), [1 + 0.1 * j for j in range(32)]
    tensor = ("rope_freqs.weight", "F32", [32], array.array("f", factors).tobytes())
    for what, keys, tensors, wanted in (
            ("factors and type linear", {"type": "linear", "factor": 4.0}, [tensor], {"rope_type": "factors", "factors": [4 * f for f in factors]}),
            ("factors and a factor", {"factor": 4.0}, [tensor], {"rope_type": "factors", "factors": [4 * f for f in factors]}),
            ("factors alone", {}, [tensor], {"rope_type": "factors", "factors": factors}),
            ("a factor without a type", {"factor": 4.0}, [], {"rope_type": "linear", "factor": 4.0}),
            ("the old key", {"scale_linear": 4.0}, [], {"rope_type": "linear", "factor": 4.0}),
            ("type none", {"type": "none", "factor": 4.0}, [], None)):
        p = gguf_file.llama("F32")
        for key, value in keys.items():
            p.key(**{"rope__scale_linear" if key == "scale_linear" else "rope__scaling__" + key: value})
        p.gguf += tensors
        if wanted:
            p.config["rope_scaling"] = wanted
        file, hf = p.save(os.path.join(tmp, "rope"))
        want, why = logits(hf, out, *SCALAR)
        got, why_not = logits(file, out, *SCALAR)
        check(want and got and distance(got, want) <= 1e-5, f"rotation: {what}", why or why_not or f"off by {distance(got, want):.3g}")
    p = gguf_file.llama("F32", freqs=True)
    p.key(rope__scaling__type="yarn", rope__scaling__factor=4.0)
    rc, _, err = run("-m", p.save(os.path.join(tmp, "rope"))[0], "--tokens", "1,2", "--ids", "-n", "1")
    check(rc == 3 and "rope_freqs.weight" in err and "yarn" in err, "factors beside YaRN are refused", (rc, err))
    p = gguf_file.llama("F32")
    p.key(block_count=1)
    rc, _, err = run("-m", p.save(os.path.join(tmp, "rope"))[0], "--tokens", "1,2", "--ids", "-n", "1")
    check(rc == 3 and "layer 1" in err and "llama.block_count' is 1" in err, "more layers than the metadata count", (rc, err))


def stated(tmp):
    """Keys that converters write for every family whose config has them, and that say what the model does anyway."""
    out = os.path.join(tmp, "logits")
    for make in (gguf_file.qwen3moe, gguf_file.llama_dense):
        want, why = logits(make("F32").save(os.path.join(tmp, "stated"))[0], out, *SCALAR)
        check(want, "the file without the keys", why)
        for key, same, other in (("expert_group_count", 1, 2), ("expert_group_used_count", 1, 2), ("expert_gating_func", 1, 2), ("expert_weights_scale", 1.0, 2.5), ("rope.scaling.yarn_ext_factor", 1.0, 0.5),
                                 ("attention.layer_norm_epsilon", 1e-5, None)):
            if make is gguf_file.llama_dense and key == "expert_gating_func":
                continue
            p = make("F32")
            p.meta[f"{p.arch}.{key}"] = same
            got, why = logits(p.save(os.path.join(tmp, "stated"))[0], out, *SCALAR)
            check(got == want, f"{p.arch}.{key} says what is so", why)
            p.meta[f"{p.arch}.{key}"] = other
            got, why = logits(p.save(os.path.join(tmp, "stated"))[0], out, *SCALAR) if other else (None, "hearth")
            check(not got and "hearth" in why, f"{p.arch}.{key} says something else", (bool(got), why))
    for make, key in ((gguf_file.lfm2, "expert_count"), (gguf_file.olmo2, "attention.sliding_window")):  # 0: none
        want, why = logits(make("F32").save(os.path.join(tmp, "stated"))[0], out, *SCALAR)
        p = make("F32")
        p.meta[f"{p.arch}.{key}"] = 0
        got, why = logits(p.save(os.path.join(tmp, "stated"))[0], out, *SCALAR)
        check(want and got == want, f"{p.arch}.{key} is 0", why)
    rc, info, err = run("-m", gguf_file.smallthinker("F32").save(os.path.join(tmp, "stated"))[0], "--inspect", "--json")
    check(rc == 0 and json.loads(info)["experts"]["score"] == "sigmoid", "--inspect names a score by logits", (info, err))


def places(tmp):
    """Split files, and a directory that holds them."""
    d = os.path.join(tmp, "places")
    one, _ = gguf_file.qwen3moe("Q8_0").save(d)
    want, why = logits(one, os.path.join(tmp, "a"))
    only = os.path.join(tmp, "only")
    os.makedirs(only)
    p = gguf_file.qwen3moe("Q8_0")
    first, _ = p.save(only, splits=3)
    shutil.rmtree(os.path.join(only, "hf"))
    for model in (first, only):
        got, why = logits(model, os.path.join(tmp, "b"))
        check(got == want, f"split files, {model}", why)
    rc, out, err = run("-m", first, "--inspect", "--json")
    info = json.loads(out) if not rc else {}
    check(info.get("files") == 3 and info.get("formats", {}).get("expert_gate", {}).get("dtype") == "Q8_0", "--inspect", (out, err))
    check(run("-m", only, "--verify")[0] == 0, "--verify")
    rc, out, err = run("-m", first.replace("00001-of", "00002-of"), "--inspect")
    check(rc == 2 and "name the first" in err, "the second of split files", err)
    shutil.copy(one, os.path.join(only, "other.gguf"))
    rc, out, err = run("-m", only, "--inspect")
    check(rc == 2 and "other.gguf" in err and "00001-of-00003" in err, "two models in a directory", err)
    longer = os.path.join(tmp, "longer.gguf")
    with open(one, "rb") as f, open(longer, "wb") as to:
        to.write(f.read() + b"signature" * 9)
    got, why = logits(longer, os.path.join(tmp, "b"))
    check(got == want, "bytes behind the last tensor", why)
    older = os.path.join(tmp, "older.gguf")
    with open(one, "rb") as f, open(older, "wb") as to:
        to.write(f.read(4) + b"\2" + f.read()[1:])
    got, why = logits(older, os.path.join(tmp, "b"))
    check(got == want, "version 2", why)
    blob = os.path.join(tmp, "sha256-0f3a")  # as ollama stores models
    shutil.copy(one, blob)
    got, why = logits(blob, os.path.join(tmp, "b"))
    check(got == want, "a file without the ending", why)
    rc, out, err = run("-m", blob, "-p", "hello", "-n", "1", "--temp", "0")
    check(rc == 0, "tokenizer and template of a file without the ending", err)
    with open(blob, "w", encoding="utf-8") as f:
        f.write("GGU")
    rc, out, err = run("-m", blob, "--inspect")
    check(rc == 3 and "not a GGUF file" in err, "another file", err)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        text(tmp)
        sentencepiece(tmp)
        plain_tokens(tmp)
        old_files(tmp)
        minicpm5(tmp)
        ollama(tmp)
        repeated(tmp)
        rotations(tmp)
        stated(tmp)
        places(tmp)
        twins(tmp)
        mixes(tmp)
    return end()


sys.exit(main())
