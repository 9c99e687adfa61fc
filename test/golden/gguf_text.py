#!/usr/bin/env python3
"""A tokenizer from a GGUF file against the tokenizer.json that it was made from: the same ids for the same text, both as a user's
and as a template's.
gguf_text.py HEARTH SHARED"""
import collections
import json
import os
import re
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


def learn(text, n):
    """The n likeliest merges of a text whose spaces are marks, as BPE is trained."""
    words, merges = collections.Counter(tuple(w) for w in re.findall("\u2581*[^\u2581\\n]+|\\n+", text)), []
    for _ in range(n):
        pairs = collections.Counter()
        for w, count in words.items():
            for pair in zip(w, w[1:]):
                pairs[pair] += count
        merges.append(max(pairs, key=lambda p: (pairs[p], p)))
        after = collections.Counter()
        for w, count in words.items():
            out = []
            for c in w:
                joins = out and (out[-1], c) == merges[-1]
                out[-1:] = [out[-1] + c] if joins else [*out[-1:], c]
            after[tuple(out)] += count
        words = after
    return merges


def marked():
    """Gemma 4's kind of tokenizer: merges of a SentencePiece vocabulary, in which bytes stand for unknown characters."""
    failed = 0
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "README.md"), encoding="utf-8") as f:
        text = f.read()
    marks = text.replace(" ", "\u2581")
    merges = learn(marks[:6000], 400)
    pieces = list(dict.fromkeys(["<unk>", "<bos>", "<turn>", *(f"<0x{b:02X}>" for b in range(256)), *sorted(set(marks[:6000])), *(a + b for a, b in merges)]))
    kinds = [2, 3, 4] + [6] * 256 + [1] * (len(pieces) - 259)
    with tempfile.TemporaryDirectory() as tmp:
        file = os.path.join(tmp, "t.gguf")
        gguf_formats.write(file, {"general.architecture": "none", "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": kinds,
                                  "tokenizer.ggml.merges": [" ".join(m) for m in merges], "tokenizer.ggml.bos_token_id": 1}, [])
        with open(os.path.join(tmp, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump({"added_tokens": [{"id": i, "content": pieces[i], "special": i < 2} for i in range(3)],
                       "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                       "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
                       "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                          "pair": [], "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}}},
                       "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
                       "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True, "vocab": {p: i for i, p in enumerate(pieces)},
                                 "merges": [list(m) for m in merges]}}, f)
        texts = [text, " a  b\n\n \nc", "\u65e5\u672c \U0001f980", "<turn>x<bos> y", "", " "]
        for each in texts:
            for args in ([], ["--special"]):
                got, want = ids(file, each.encode(), *args), ids(tmp, each.encode(), *args)
                if got != want or not isinstance(got, list):
                    failed += 1
                    print(f"FAILED marked {each[:20]!r} {args}: {str(got)[:200]} instead of {str(want)[:200]}")
    print(f"{2 * len(texts)} texts with marks, {failed} failed")
    return failed


def ids(model, text, *args):
    source = {"input": text} if isinstance(text, bytes) else {"stdin": text}
    p = subprocess.run([HEARTH, "-m", model, "--tokenize", *args], **source, capture_output=True, timeout=120)
    return json.loads(p.stdout) if not p.returncode else p.stderr.decode()


def main():
    failed, done = marked(), 0
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
    print(f"{done} texts, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
