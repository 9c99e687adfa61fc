#!/usr/bin/env python3
"""A tokenizer from a GGUF file against the tokenizer.json that it was made from: the same ids for the same text, both as a user's
and as a template's.
gguf_text.py HEARTH SHARED"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import gguf_formats  # noqa: E402

HEARTH, SHARED = os.path.abspath(sys.argv[1]), sys.argv[2]
DIR = os.path.join(SHARED, "tokenizers")


def convert(source, target, pre):
    with open(source, encoding="utf-8") as f:
        j = json.load(f)
    vocab, added = j["model"]["vocab"], {a["id"]: a for a in j["added_tokens"]}
    n = max([*vocab.values(), *added]) + 1
    tokens, kinds = [f"[PAD{i}]" for i in range(n)], [5] * n
    for piece, i in vocab.items():
        tokens[i], kinds[i] = piece, 1
    for i, a in added.items():
        tokens[i], kinds[i] = a["content"], 3 if a["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
    gguf_formats.write(target, {"general.architecture": "none", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
                             "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges}, [])


def ids(model, text, *args):
    p = subprocess.run([HEARTH, "-m", model, "--tokenize", *args], stdin=text, capture_output=True, timeout=120)
    return json.loads(p.stdout) if not p.returncode else p.stderr.decode()


def main():
    failed = done = 0
    for name, pre in (("qwen3", "qwen2"), ("deepseek_v3", "deepseek-v3")):
        source = os.path.join(DIR, name + ".tokenizer.json")
        if not os.path.exists(source):
            continue
        with tempfile.TemporaryDirectory() as tmp:
            file, plain = os.path.join(tmp, "t.gguf"), os.path.join(tmp, "plain")
            convert(source, file, pre)
            os.mkdir(plain)
            os.symlink(os.path.abspath(source), os.path.join(plain, "tokenizer.json"))
            for text in ("small", "mixed", "utf8"):
                for args in ([], ["--special"]):
                    with open(os.path.join(DIR, text + "_input.txt"), "rb") as f, open(f.name, "rb") as again:
                        got, want = ids(file, f, *args), ids(plain, again, *args)
                    done += 1
                    if got != want or not isinstance(got, list):
                        failed += 1
                        print(f"FAILED {name} {text} {args}: {str(got)[:200]} instead of {str(want)[:200]}")
    if not done:
        print(f"SKIPPED: no tokenizers in {DIR}")
        return 77
    print(f"{done} texts, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
