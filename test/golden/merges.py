#!/usr/bin/env python3
"""Byte-pair merging against its definition: random vocabularies, words short and long, some of a single repeated letter; the lowest
rank first, of equal ones the leftmost. And decoding back to bytes.
merges.py HEARTH"""
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import tiny  # noqa: E402

HEARTH = os.path.abspath(sys.argv[1])
failed = 0


def run(model, what, data):
    p = subprocess.run([HEARTH, "-m", model, what], input=data, capture_output=True, timeout=300)
    return p.stdout


def merged(symbols, ranks):
    while True:
        best = min(((ranks[p], i) for i, p in enumerate(zip(symbols, symbols[1:])) if p in ranks), default=None)
        if not best:
            return symbols
        i = best[1]
        symbols = symbols[:i] + [symbols[i] + symbols[i + 1]] + symbols[i + 2:]


for seed in range(6):
    rng = random.Random(seed)
    tokenizer = tiny.tokenizer()
    vocab, letters = tokenizer["model"]["vocab"], "ab" if seed % 2 else "abcde"
    known, ranks = list(letters) + ["\u0120"], {}
    while len(ranks) < (12, 40, 90)[seed // 2]:
        pair = rng.choice(known), rng.choice(known)
        if "\u0120" in pair[1] or len(pair[0] + pair[1]) > 24 or pair in ranks:
            continue
        ranks[pair] = len(ranks)
        if pair[0] + pair[1] not in vocab:
            vocab[pair[0] + pair[1]] = len(vocab)
            known.append(pair[0] + pair[1])
    tokenizer["model"]["merges"] = [list(p) for p in ranks]
    words = ["".join(rng.choice(letters) for _ in range(n)) for n in [*range(1, 80), 200, 333] for _ in range(3)] + [c * n for c in letters for n in (1, 2, 3, 5, 31, 32, 33, 34, 100)]
    rng.shuffle(words)
    text = " ".join(words)
    want = [vocab[s] for i, w in enumerate(words) for s in merged(list(("\u0120" if i else "") + w), ranks)]
    with tempfile.TemporaryDirectory() as model:
        with open(os.path.join(model, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(tokenizer, f, ensure_ascii=False)
        out = run(model, "--tokenize", text.encode())
        got = json.loads(out) if out.startswith(b"[") else []
        if got != want:
            failed += 1
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            print(f"FAILED seed {seed}: {len(got)} ids, want {len(want)}; the first that differs is {at}")
        if run(model, "--detokenize", json.dumps(want).encode()) != text.encode():
            failed += 1
            print(f"FAILED seed {seed}: other bytes come back")
print(f"6 vocabularies, {failed} failed")
sys.exit(failed != 0)
