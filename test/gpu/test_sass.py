#!/usr/bin/env python3
"""Checks the instructions that the compiler has chosen for the kernels that decide how fast a card is.

    test_sass.py N COMMAND [ARG...]

COMMAND compiles a file, which follows, optimized for sm_90. N of the files in RULES are compiled; which ones follows from the commit (golden/part.py).
Each rule names a file, kernels, the instructions that each must have, and those that it may not have more of. sass_wrong.cu has a kernel for each rule
that breaks it: the rule must say so. An instruction is known by the 12 low bits of its 128 and the width of its access; if cuobjdump is installed, its
counts must be the same."""
import collections
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "test", "golden"))
from part import choose  # noqa: E402

OPS = {0x23C: "HMMA", 0x27A: "QMMA", 0x983: "LDL", 0x387: "STL", 0x981: "LDG", 0xFAE: "LDGSTS", 0x94D: "EXIT"}
WIDE = 6  # the access has 16 bytes
SLOW = {"few"}  # 5 minutes and 3.6 GB for one file: left to the runs of all
STACK = 1024  # bytes of a thread; a kernel with more makes the driver wait for the device at its first launch
# gpu/cuda_FILE.cu, kernels (mangled), instructions that each has at least, accesses to local memory at most: spilled registers, or arrays with computed indices.
RULES = [
    ("tile_bf16", "tile_bf16_kernel", {"HMMA": 8, "LDGSTS.128": 8}, 0),
    ("tile_blocks", "tile_blocks_kernel", {"HMMA": 8}, 4),  # a kernel per format; Q6_K of 32 tokens spills two registers
    ("attention_mma", "attention_mma_kernel", {"HMMA": 64, "LDGSTS.128": 16}, 0),
    ("attention_mma", "attention_mma_kernelILi576E.*Lb1ELb1E", {"HMMA": 64, "LDGSTS.128": 18}, 0),  # of latents in FP8
    ("attention_few", "attention_few_kernel", {"HMMA": 16, "LDGSTS.128": 2}, 0),
    ("attention", "attention_f32_kernel|combine_kernel", {}, 0),
    ("skinny", "(skinny|gated)_kernel", {"LDG.128": 8}, 12),  # some registers of 17 to 24 tokens in FP8: with 128 a processor runs two blocks
    ("skinny", "join_kernelI.*Lb0EEv", {"LDG.128": 16}, 4),
    ("skinny", "join_kernelI.*Lb1EEv", {"LDG.128": 16}, 24),  # around the call of the epilogue
    ("few", "few_(join|gated)_kernelILi1E", {"HMMA": 60, "LDGSTS.128": 100}, 0),
    ("few", "few_(join|gated)_kernelILi6E", {"HMMA": 360, "LDGSTS.128": 100}, 0),
    ("few_routed", "few_up_kernel", {"HMMA": 60, "LDGSTS.128": 100}, 8),  # of E2M1: four blocks per processor are worth it
    ("few_routed", "few_down_kernel", {"HMMA": 60, "LDGSTS.128": 100}, 0),
    ("chain", "chain_kernel", {}, 8),
    ("routed", "up_kernelIL11weight_kind0E", {"LDG.128": 8}, 24),  # three blocks per processor are worth it: 17 instead of 26 us on an H100
    ("routed", "(up_kernelIL11weight_kind1|down_kernelIL11weight_kind[01])E", {"LDG.128": 8}, 0),
]


def kernels(path):
    """Yields the name, instructions and bytes of stack of each kernel of an ELF file."""
    with open(path, "rb") as f:
        data = f.read()
    table, size, n, names = struct.unpack_from("<Q10xHHH", data, 0x28)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(n)]
    text = lambda s, at: data[s[4] + at : data.index(b"\0", s[4] + at)].decode()
    title = [text(sections[names], s[0]) for s in sections]
    symbols = sections[title.index(".symtab")]
    stack = {}
    info = sections[title.index(".nv.info")]
    at = info[4]
    while at < info[4] + info[5]:  # form, attribute, and with form 4 a size and data: a symbol and its bytes of stack
        form, attribute, length = struct.unpack_from("<BBH", data, at)
        if (form, attribute, length) == (4, 0x11, 8):
            symbol, stack_bytes = struct.unpack_from("<II", data, at + 4)
            stack[text(sections[symbols[6]], struct.unpack_from("<I", data, symbols[4] + 24 * symbol)[0])] = stack_bytes
        at += 4 + (length if form == 4 else 0)
    for s, name in zip(sections, title):
        if name.startswith(".text."):
            counts = collections.Counter()
            for low, high in struct.iter_unpack("<QQ", data[s[4] : s[4] + s[5]]):
                op = OPS.get(low & 0xFFF, "other")
                counts[op + (".128" if op.startswith("LDG") and high >> 9 & 7 == WIDE else "")] += 1
            yield name[len(".text.") :], counts, stack.get(name[len(".text.") :], 0)


def faults(name, counts, stack):
    """Lists what the rules have against a kernel."""
    found = [f"{stack} bytes of stack, {STACK} at most"] if stack > STACK else []
    for _, pattern, needs, spills in RULES:
        if re.search(rf"^_Z\d+(?:{pattern})", name):
            found += [f"{counts[op]} {op}, {least} at least" for op, least in needs.items() if counts[op] < least]
            if counts["LDL"] + counts["STL"] > spills:
                found.append(f"{counts['LDL']} LDL and {counts['STL']} STL, {spills} at most")
    return found


def compare(path, disassembler):
    """Compares our counts with those of cuobjdump."""
    listed = collections.defaultdict(collections.Counter)
    for line in subprocess.run([disassembler, "-sass", path], check=True, capture_output=True, text=True).stdout.split("\n"):
        if "Function : " in line:
            name = line.split("Function : ")[1].strip()
        op = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)([\w.]*)", line)
        if op and op[1] in OPS.values():
            listed[name][op[1] + (".128" if op[1].startswith("LDG") and ".128" in op[2] else "")] += 1
    for name, counts, _ in kernels(path):
        ours = {op: n for op, n in counts.items() if op != "other"}
        if ours != listed[name]:
            return [f"{name}: cuobjdump counts {dict(listed[name])}, this test {ours}"]
    return []


def main():
    n, command = int(sys.argv[1]), sys.argv[2:]
    every = sorted({rule[0] for rule in RULES})
    files = every
    if choose(every, n, quiet=True) != every:
        files = choose([file for file in every if file not in SLOW], n)
    bad, seen = [], []
    with tempfile.TemporaryDirectory() as tmp:

        def compiled(source):
            out = os.path.join(tmp, os.path.basename(source) + ".cubin")
            subprocess.run([*command, "-cubin", os.path.join(ROOT, source), "-o", out], check=True)
            return out

        wrong, paths = compiled("test/gpu/sass_wrong.cu"), [compiled(f"gpu/cuda_{file}.cu") for file in files]
        for path in paths:
            for name, counts, stack in kernels(path):
                seen.append(name)
                bad += [f"{name}: {what}" for what in faults(name, counts, stack)]
        patterns = [pattern for file, pattern, _, _ in RULES if file in files]
        bad += [f"no kernel matches {pattern}" for pattern in patterns if not any(re.search(rf"^_Z\d+(?:{pattern})", name) for name in seen)]
        missed = [name for name, counts, stack in kernels(wrong) if not faults(name, counts, stack)]
        bad += [f"{name} of sass_wrong.cu breaks no rule" for name in missed]
        disassembler = shutil.which("cuobjdump")
        for path in [wrong, *paths] if disassembler else []:
            bad += compare(path, disassembler)
    print(*bad, sep="\n")
    print(f"{len(seen)} kernels, {len(bad)} faults" + ("" if disassembler else "; not compared with cuobjdump, which is not installed"))
    return 1 if bad or not seen else 0


sys.exit(main())
