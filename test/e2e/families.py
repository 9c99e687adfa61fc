#!/usr/bin/env python3
"""Writes the lists of families and of GGUF architectures in README.md and man/hearth.1 from `hearth --version -v`. test_readme.py compares.

    families.py HEARTH [--write]"""
import os
import re
import subprocess
import sys
import textwrap

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def lists(version):
    """Returns the model types, without those of language models inside others, and llama.cpp's names of architectures."""
    types = re.search(r"(?m)^families: (.*)$", version)[1].split(", ")
    return sorted({t.split(" with ")[0] for t in types}), sorted(re.search(r"(?m)^gguf: (.*)$", version)[1].split(", "))


def wrap(text, width):
    return "\n".join(textwrap.wrap(re.sub(r"\s+", " ", text), width, break_on_hyphens=False, break_long_words=False))


def joined(names, mark=""):
    names = [mark + n + mark for n in names]
    return ", ".join(names[:-1]) + " and " + names[-1]


def readme(text, gguf):
    head, rest = text.split("Of GGUF it reads the architectures", 1)
    para, after = rest.split("\n\n", 1)
    return head + wrap("Of GGUF it reads the architectures " + joined(gguf, "`") + para[re.search(r",\s+with\s+tensors in", para).start():], 118) + "\n\n" + after


def manual(text, types, gguf):
    head, rest = text.split("version 3, little-endian, tensors in", 1)
    formats, rest = rest.split("of the architectures", 1)
    text = head + wrap("version 3, little-endian, tensors in" + formats + "of the architectures " + joined(gguf) + ";", 78) + rest[rest.index(";") + 1:]
    head, rest = text.split(".Va model_type :\n", 1)
    return head + ".Va model_type :\n" + wrap(joined(types) + ".", 78) + rest[rest.index("\n.Pp"):]


def updated(version):
    """Returns the files and their texts as they should be."""
    types, gguf = lists(version)
    out = {}
    for name, make in (("README.md", lambda t: readme(t, gguf)), ("man/hearth.1", lambda t: manual(t, types, gguf))):
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            out[name] = make(f.read())
    return out


def main():
    version = subprocess.run([sys.argv[1], "--version", "-v"], check=True, capture_output=True, text=True).stdout
    for name, text in updated(version).items():
        if sys.argv[2:] == ["--write"]:
            with open(os.path.join(ROOT, name), "w", encoding="utf-8") as f:
                f.write(text)
        else:
            print(text)


if __name__ == "__main__":
    main()
