#!/usr/bin/env python3
"""Prints the manual page with the lists of families that this binary opens, in place of its lines .\\" FAMILIES and .\\" GGUF.

    families.py HEARTH hearth.1"""
import re
import subprocess
import sys
import textwrap


def lists(version):
    """Returns the model types, without those of language models inside others, and llama.cpp's names of architectures, of `hearth --version -v`."""
    types = re.search(r"(?m)^families: (.*)$", version)[1].split(", ")
    return sorted({t.split(" with ")[0] for t in types}), sorted(re.search(r"(?m)^gguf: (.*)$", version)[1].split(", "))


def joined(names, end):
    return textwrap.fill(", ".join(names[:-1]) + " and " + names[-1] + end, 78, break_on_hyphens=False, break_long_words=False)


def main():
    types, gguf = lists(subprocess.run([sys.argv[1], "--version", "-v"], check=True, capture_output=True, text=True).stdout)
    with open(sys.argv[2], encoding="utf-8") as f:
        page = f.read()
    for mark, text in (('.\\" FAMILIES\n', joined(types, ".\n")), ('.\\" GGUF\n', joined(gguf, ";\n"))):
        if page.count(mark) != 1:
            sys.exit(f"{sys.argv[2]}: {page.count(mark)} lines {mark.strip()}, expected 1")
        page = page.replace(mark, text if text.endswith("\n") else text + "\n")
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
