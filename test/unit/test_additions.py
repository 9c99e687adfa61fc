#!/usr/bin/env python3
"""Additions stay small (CONTRIBUTING.md, worked examples): a family and a chat command are named in the file that
defines them, in their table and in its header, and nowhere else.

usage: test_additions.py ROOT"""
import os, re, sys

ROOT = sys.argv[1]
sources = {}
for folder in ("base", "engine", "cli", "cpu", "gpu", "tokenizer"):
    for at, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in names:
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                path = os.path.join(at, name)
                with open(path, encoding="utf-8") as f:
                    sources[os.path.relpath(path, ROOT)] = set(re.findall(r"\b[A-Za-z_]\w*", f.read()))
ran = failed = 0


def check(symbol, allowed, most):
    """symbol occurs in files of `allowed` and in at most `most` files in all."""
    global ran, failed
    found = sorted(p for p, words in sources.items() if symbol in words)
    ran += 1
    if not found or len(found) > most or not set(allowed) <= set(found):
        failed += 1
        print(f"FAIL {symbol} is in {', '.join(found) or 'no file'}; expected: {', '.join(allowed)} and its own file")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


families = re.findall(r"&(arch_\w+)", read("engine/model/arch.c"))
assert len(families) > 15, families
for symbol in families:
    check(symbol, ["engine/model/arch.c", "engine/model/arch.h"], 3)
commands = sorted(set(re.findall(r"(?m)^    \{\w+, \"\w+\", .*?\b(command_\w+),", read("cli/chat/command.c"))))
assert len(commands) > 20, commands
for symbol in commands:
    check(symbol, ["cli/chat/command.c"], 3)
print(f"{ran} symbols, {failed} failed")
sys.exit(failed > 0 or ran < 20)
