#!/usr/bin/env python3
"""Prints the dictionary of a fuzz target for libFuzzer's -dict: numbers at the edges of the types that a parser may read them into, in
the forms of the target's format, then the words of NAME.dict.

    dictionary.py TARGET          the dictionary
    dictionary.py --check         every target is known, and every word is in the form that libFuzzer reads"""
import os
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
INTEGERS = [0, 1, -1, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 100000, 100001, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -2**63 + 1, -2**63,
            -2**63 - 1, 2**64 - 1, 2**64, -2**64, 10**19, 10**30]
OTHERS = ["-0", "0.5", "1e308", "-1e308", "1e309", "1e-400", "9223372036854775807.0", "1e19", "NaN", "Infinity", "00", "0x7fffffffffffffff", "1" + "0" * 60]


def text():
    return [str(n).encode() for n in INTEGERS] + [word.encode() for word in OTHERS]


def little_endian():
    """As words of 4 and 8 bytes."""
    whole = [struct.pack("<I", n % 2**32) for n in INTEGERS if -2**31 <= n < 2**32] + [struct.pack("<Q", n % 2**64) for n in INTEGERS if -2**63 <= n < 2**64]
    return whole + [struct.pack(form, x) for form in ("<f", "<d") for x in (float("inf"), float("nan"), -0.0, 1e-40)] + [struct.pack("<d", 1e308)]


def big_endian():
    """As words of 2 and 4 bytes."""
    return [struct.pack(">I", n % 2**32) for n in INTEGERS if -2**31 <= n < 2**32] + [struct.pack(">H", n % 2**16) for n in INTEGERS if -2**15 <= n < 2**16]


def varints():
    """As Protocol Buffers write them: seven bits a byte."""
    out = []
    for n in INTEGERS:
        n %= 2**64
        word = bytearray()
        while n > 127:
            word.append(n & 127 | 128)
            n >>= 7
        out.append(bytes(word + bytes([n])))
    return out + [b"\xff" * 11]


# Target: the forms of its numbers.
FORMS = {
    "config": [text],
    "gguf": [little_endian],
    "grammar": [text],
    "index": [text],
    "jinja": [text],
    "jinja_values": [text],
    "kv_file": [little_endian],
    "line": [],  # bytes from a terminal
    "machine": [text],
    "mcp": [text],
    "picture": [big_endian, little_endian],
    "render": [],  # text
    "request": [text],
    "roundtrip": [],  # text
    "safetensors": [text, little_endian],
    "session": [text],
    "style": [],  # text
    "tokenizer_json": [text, varints],
    "tool_stream": [text],
}


def words(target):
    """Returns the lines of the dictionary."""
    lines = []
    for form in FORMS[target]:
        lines += ['"' + "".join(chr(b) if 32 < b < 127 and b not in b'"\\' else f"\\x{b:02X}" for b in word) + '"' for word in dict.fromkeys(form())]
    path = os.path.join(HERE, target + ".dict")
    if os.path.exists(path):
        with open(path, encoding="ascii") as f:
            lines += f.read().splitlines()
    return lines


def check():
    bad = 0
    targets = {name[5:-2] for name in os.listdir(HERE) if re.fullmatch(r"fuzz_\w+\.c", name)}
    dicts = {name[:-5] for name in os.listdir(HERE) if name.endswith(".dict")}
    for name in sorted(targets ^ FORMS.keys() | dicts - targets):
        print(f"{name}: a target or a dictionary without the other")
        bad += 1
    for target in sorted(targets & FORMS.keys()):
        if FORMS[target] and target not in dicts:
            print(f"{target}: {target}.dict is missing, with the words between which its numbers stand")
            bad += 1
        for line in words(target):
            if not re.fullmatch(r'(#.*)?|"(?:[^"\\\x00-\x1f\x7f-\xff]|\\["\\]|\\x[0-9A-Fa-f]{2})+"', line):
                print(f"{target}: libFuzzer cannot read {line}")
                bad += 1
    print(f"{len(targets)} targets, {sum(len(words(t)) for t in targets & FORMS.keys())} words, {bad} errors")
    return 1 if bad or not targets else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    print("\n".join(words(sys.argv[1])))
