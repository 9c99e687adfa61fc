#!/usr/bin/env python3
"""Bytes of routed experts uploaded per token of the answer, without a draft and with the INT4 one, on an emulated device of given speeds:
a random checkpoint of DeepSeek-V3's shape in small.

usage: drafted.py HEARTH [TOKENS [GUESSES [LINK IN GB/S]]]      160 greedy tokens, 3 drafted tokens, 0.2

Bytes are counted, so other load on the machine does not matter; the text must be the same each time."""
import json
import os
import re
import subprocess
import sys
import tempfile

hearth = sys.argv[1]
tokens, guesses, link = (sys.argv[i] if len(sys.argv) > i else d for i, d in ((2, "160"), (3, "3"), (4, "0.2")))
MKMODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mkmodel.py")


def answer(model, kept, slots, draft):
    p = subprocess.run([hearth, "-m", model, "--no-attach", "--tokens", "1,2,3,4,5", "-n", tokens, "--temp", "0", "--ids", "--stats", "-t", "1", "-c", "1024", "--gpus",
                        f"emu:1,h2d={link},d2h={link}", "--prefill", "cpu", "--decode", "hybrid", "--split", "trimoe", "--expert-cache", str(slots), *draft],
                       capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": kept})
    found = re.search(r"(\d+)% of its experts on a device, \d+ uploaded \(([\d.]+) ([kMGT]?)B\)", p.stderr)
    right = re.search(r"(\d+) of (\d+) drafted", p.stderr)
    if p.returncode or not found:
        sys.exit(f"no answer: {p.stderr[-600:]}")
    kb = float(found[2]) * {"": 1e-3, "k": 1, "M": 1e3, "G": 1e6, "T": 1e9}[found[3]] / int(tokens)
    return p.stdout, kb, int(found[1]), [int(x) for x in right.groups()] if right else [0, 0]


with tempfile.TemporaryDirectory() as tmp:
    model = os.path.join(tmp, "model")
    subprocess.run([sys.executable, MKMODEL, "--shape", "thin", "--layers", "4", "--experts", "32", "--out", model], check=True, stdout=subprocess.DEVNULL)
    print(f"32 experts, 8 chosen, 3 layers of them, 394 KB each; a link of {link} GB/s; {tokens} tokens")
    for slots in (8, 16, 24, 32):
        text, none, there, _ = answer(model, tmp, slots, ["--draft", "none"])
        other, drafted, with_draft, right = answer(model, tmp, slots, ["--draft", "int4", "--draft-len", guesses])
        if text != other:
            sys.exit("another text")
        print(f"{slots:2} slots of a layer: {none:6.0f} KB a token, {there}% of the chosen on the device; INT4, {guesses} guesses: {drafted:6.0f} KB, {with_draft}%; "
              f"{right[0]} of {right[1]} were right", flush=True)
