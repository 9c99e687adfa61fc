#!/usr/bin/env python3
"""Runs the independent references' own checker against the binary, where they lie beside the checkout; with `pieces` our
pieces.c, on their sequences of 200 tokens: every level of the processor, prefills behind a prefix, decoding, emulated devices.
conform.py HEARTH SHARED WHAT [ARG...] | conform.py PIECES SHARED pieces; exit 77 (skipped) where they are not there."""
import json
import os
import subprocess
import sys

FAMILIES = ["deepseek_v3", "deepseek_v3_nogroup", "deepseek_v2_lite", "qwen3_moe", "mixtral", "qwen2_moe"]

hearth, shared, what, *more = sys.argv[1:]
checker = os.path.join(shared, "check", "conform.py")
if not os.path.exists(checker):
    print(f"SKIPPED: no references at {shared}")
    sys.exit(77)
fixtures = [os.path.join(shared, "fixtures", f) for f in FAMILIES if os.path.isdir(os.path.join(shared, "fixtures", f))]
if what == "pieces":
    failed = 0
    for d in fixtures:
        with open(os.path.join(d, "golden.json"), encoding="utf-8") as f:
            s = json.load(f)["sequences"][-1]
        print(d, flush=True)
        failed += subprocess.run([os.path.abspath(hearth), d, ",".join(map(str, s["tokens"])), os.path.join(d, s["logits"])]).returncode != 0
    sys.exit(failed != 0 or not fixtures)
dirs = fixtures if what == "logits" else [os.path.join(shared, what + "s" if what == "tokenizer" else what)]
p = subprocess.run([sys.executable, checker, what, hearth, *dirs, *more], capture_output=True, text=True)
lines = p.stdout.strip().split("\n")
# Qwen's normaliser makes NFC of its input: three lines of the reference are not NFC, and ids cannot give them back.
not_nfc = [x for x in lines if x.startswith("DIFFERS qwen3 ") and "detokenize gives other bytes (exit 0)" in x]
print(p.stdout, p.stderr)
real = [x for x in lines if x.startswith("DIFFERS") and x not in not_nfc]
ok = not real and (p.returncode == 0 or (what == "tokenizer" and len(not_nfc) == 3))
sys.exit(0 if ok else 1)
