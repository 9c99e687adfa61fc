#!/usr/bin/env python3
"""Who may include whom, and who may print: the rules of the house, held against every #include line and every call that
writes to a descriptor of the terminal. Prints each breach; exit 1 on any."""
import os
import re
import sys

root = sys.argv[1]
# area -> areas (or single headers) it may include, beside itself
RULES = {
    "engine/base": [],
    "cpu": ["engine/base"],
    "tokenizer": ["engine/base"],
    "gpu": ["engine/base"],
    "engine/model": ["engine/base"],
    "engine/store": ["engine/base", "engine/model", "cpu/numa.h", "cpu/pool.h"],
    "engine/layer": ["engine/base", "engine/model", "engine/store", "cpu", "gpu/gpu.h", "gpu/ops.h"],
    "engine/cache": ["engine/base", "engine/model", "engine/store", "engine/sched", "gpu/gpu.h"],
    "engine/pipe": ["engine/base", "engine/model", "engine/store", "engine/layer", "engine/cache", "cpu", "gpu/gpu.h", "gpu/ops.h"],
    "engine/sched": ["engine/base", "engine/model", "cpu", "gpu/gpu.h", "gpu/ops.h"],
    "engine/step": ["engine/base", "engine/model", "engine/store", "engine/layer", "engine/cache", "engine/pipe", "engine/sched", "cpu", "gpu/gpu.h", "gpu/ops.h"],
    "engine/draft": ["engine/base", "engine/model", "engine/store", "engine/layer", "cpu", "gpu/ops.h"],
    "engine/ember": ["engine/base"],
    "engine": ["engine/base", "engine/draft", "engine/model", "engine/store", "engine/layer", "engine/cache", "engine/pipe", "engine/sched", "engine/step", "cpu", "gpu/gpu.h", "gpu/ops.h"],
    "cli": ["engine/engine.h", "tokenizer", "engine/base"],
    "main.c": ["cli", "engine/base", "engine/ember/ember.h"],
}
# The emulated device runs its operations on the CPU's.
EXTRA = {r"^gpu/emu": ["cpu/ops.h", "cpu/pool.h"]}
# Decisions take numbers and give an answer: no clock, no files, nothing that could know where it runs.
PURE = re.compile(r"^engine/(sched/(cost|nodes|preset|split\w*|policy)|cache/(score|budget|lookahead|predict)|draft/(governor|lookup))\.[ch]$")
PURE_MAY = re.compile(r"^(engine/sched/(cost|nodes|split|split_inner|policy)\.h|engine/cache/(score|budget|lookahead|predict)\.h|engine/draft/(governor|lookup)\.h|engine/model/[^/]*\.h|engine/base/(mat|ops)\.h|(float|limits|math|stdarg|stdbool|stddef|stdint|stdio|string)\.h)$")
CUDA = re.compile(r"^gpu/(cuda[^/]*\.(c|h|cuh)|[^/]*\.cu)$")
# cli/out.c is where everything passes the filter of a terminal; term.c sets its modes; main.c speaks before there is either.
PRINTS = re.compile(r"\b(v?f?printf|vdprintf|dprintf|f?puts|f?putc|putchar|fwrite|perror)\s*\(|\b(write|file_write_all)\s*\(\s*[12]\b|/dev/tty")
MAY_PRINT = ["cli/out.c", "cli/term.c", "main.c"]


def area(path):
    if path == "main.c":
        return path
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "engine" and len(parts) > 2 else parts[0]


def allowed(source, target):
    here, there = area(source), area(target)
    if here == there:
        return True
    rules = list(RULES.get(here, []))
    for pattern, more in EXTRA.items():
        if re.match(pattern, source):
            rules += more
    return target in rules or there in rules


def main():
    bad = files = 0
    for top, dirs, names in os.walk(root):
        dirs[:] = [d for d in dirs if not d.startswith((".", "build")) and d != "test"]
        for name in names:
            path = os.path.relpath(os.path.join(top, name), root)
            if not re.search(r"\.(c|h|cu|cuh)$", name) or area(path) not in RULES:
                continue
            files += 1
            for i, line in enumerate(open(os.path.join(root, path), encoding="utf-8"), 1):
                if PRINTS.search(line) and path not in MAY_PRINT and "format(" not in line:
                    print(f"{path}:{i}: prints by itself")
                    bad += 1
                m = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
                if not m:
                    continue
                kind, target = m.groups()
                if PURE.match(path) and not PURE_MAY.match(target):
                    print(f"{path}:{i}: a pure file may not include {target}")
                    bad += 1
                if kind == "<":
                    if re.match(r"(cuda|cublas|nv)", target) and not CUDA.match(path):
                        print(f"{path}:{i}: CUDA header {target} outside gpu/cuda*")
                        bad += 1
                elif os.path.exists(os.path.join(root, target)) and not allowed(path, target):
                    print(f"{path}:{i}: {area(path)} may not include {target}")
                    bad += 1
                elif not os.path.exists(os.path.join(root, target)) and os.path.exists(os.path.join(root, os.path.dirname(path), target)):
                    print(f"{path}:{i}: include {target} by its path from the top")
                    bad += 1
    print(f"{files} files, {bad} breaches")
    return 1 if bad or not files else 0


sys.exit(main())
