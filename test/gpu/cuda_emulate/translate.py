#!/usr/bin/env python3
"""Translates CUDA C++ to C++ for the emulation: launches and shared variables, in place, keeping line numbers.

usage: translate.py FILE.cu OUT.cpp"""
import re, sys

source, out = sys.argv[1:3]
text = open(source).read()


def close(s, i, opening, closing):
    """Returns the index after the bracket that closes the one at s[i]."""
    depth = 0
    for j in range(i, len(s)):
        depth += (s[j] in opening) - (s[j] in closing)
        if not depth:
            return j + 1
    raise SystemExit(f"{source}: no end of {s[i:i + 40]!r}")


def split(s):
    parts, depth = [""], 0
    for c in s:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def blank_comments(s):
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), s, flags=re.S)


def shared(m):
    words = re.sub(r"__align__\s*\(|alignas\s*\(", "(", m["rest"])
    align = re.match(r"\s*\(([^)]*)\)", words)
    words = words[align.end():] if align else words
    lines = "\n" * m[0].count("\n")
    first = re.match(r"(?s)(.*?)(\w+\s*(?:\[.*)?)$", split(words)[0].strip())
    kind, result = first[1].strip(), ""
    for d in [first[2]] + split(words)[1:]:
        name, sizes = re.match(r"(?s)\s*(\w+)\s*(.*)$", d).groups()
        sizes = " ".join(sizes.split())
        if m["extern"]:
            result += f"{kind} *{name} = ({kind} *)cuda_emulate_shared_dynamic({align[1] if align else f'alignof({kind})'}); "
        else:
            result += (f"using {name}_shared = {kind}{sizes}; static char {name}_site; {name}_shared &{name} = *({name}_shared *)"
                       f"cuda_emulate_shared(&{name}_site, sizeof({name}_shared), {align[1] if align else f'alignof({name}_shared)'}); ")
    return result.rstrip() + lines


text = blank_comments(text)
text = re.sub(r"(?s)(?P<extern>\bextern\s+)?\b__shared__\b(?P<rest>[^;]*);", shared, text)
while "<<<" in text:
    at = text.index("<<<")
    begin = at
    while text[begin - 1].isspace():
        begin -= 1
    if text[begin - 1] == ">":  # template arguments
        depth = 0
        while True:
            begin -= 1
            depth += (text[begin] == ">") - (text[begin] == "<")
            if not depth:
                break
    while re.match(r"[\w:]", text[begin - 1]):
        begin -= 1
    kernel = text[begin:at].strip()
    end = text.index(">>>", at)
    opening = text.index("(", end)
    after = close(text, opening, "(", ")")
    grid, block, size, stream = (split(text[at + 3:end]) + ["0", "0"])[:4]
    args = text[opening + 1:after - 1]
    text = (text[:begin] + f"cuda_emulate_launch<{kernel}>(\"{kernel}\", {kernel}, dim3({grid}), dim3({block}), {size}, {stream}"
            + (f", {args}" if args.strip() else "") + ")" + text[after:])
open(out, "w").write(f'#include "cuda_emulate.h"\n#line 1 "{source}"\n{text}')
