#!/usr/bin/env python3
"""Checkpoints with SentencePiece's tokenizer.model alone: ids of texts, added tokens of tokenizer_config.json, and damaged files.

    sentencepiece_model.py HEARTH

The model is written here. EXPECTED are the ids of the library sentencepiece 0.2 for the same bytes; where it is installed, it is asked again."""
import base64
import json
import os
import struct
import subprocess
import sys
import tempfile

from charsmap import charsmap_base64

BIN = sys.argv[1]
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
WORDS = "▁ h e l o w r d he ll llo hello ▁hello ▁w or ld ▁world é ▁▁".split()


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def model(kind=2, prefix=1, collapse=0, charsmap=b"", pieces=()):
    all_ = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)] + [(f"<0x{b:02X}>", 0.0, BYTE) for b in range(256)]
    all_ += [(w, -float(i), NORMAL) for i, w in enumerate(WORDS)] + list(pieces)
    out = b"".join(field(1, field(1, text.encode()) + field(2, score) + (field(3, type_) if type_ != NORMAL else b"")) for text, score, type_ in all_)
    out += field(2, field(3, kind) + field(4, 280) + field(35, 1) + field(40, 0) + field(41, 1) + field(42, 2))
    return out + field(3, field(1, b"identity") + field(2, charsmap) + field(3, prefix) + field(4, collapse) + field(5, 1))


def tokenize(files, text, *args):
    with tempfile.TemporaryDirectory() as d:
        for name, data in files.items():
            with open(os.path.join(d, name), "wb") as f:
                f.write(data)
        p = subprocess.run([BIN, "-m", d, "--tokenize", *args], input=text.encode(), capture_output=True, timeout=60, check=False)
        return json.loads(p.stdout) if p.returncode == 0 else p.stderr.decode()


EXPECTED = {
    "hello": [271], "hello world": [271, 272, 273, 274], "hellohello": [271, 270], "wor": [272, 273], " ": [277], "": [], "é": [259, 276],
    "he\nllo": [259, 267, 13, 269], "  hello": [277, 271], "zé🙂": [259, 125, 276, 243, 162, 156, 133], "world wor": [272, 273, 274, 272, 273],
}
# as EXPECTED, with pieces that the model calls user-defined: the mark of the text's beginning stands before them, none behind
PIECES = (("<sep>", 0.0, USER), ("hel", 0.0, USER), ("▁▁▁", 0.0, USER), ("▁<x>", 0.0, USER))
DEFINED = {
    "<sep>hello": [259, 278, 279, 262, 263], "hello<sep>world": [259, 279, 262, 263, 278, 264, 273, 274], "hello <sep> world": [259, 279, 262, 263, 259, 278, 272, 273, 274],
    "a <x> hello": [259, 100, 281, 259, 279, 262, 263], "   hello": [280, 259, 279, 262, 263], "hello   world": [259, 279, 262, 263, 280, 264, 273, 274],
    "<sep>": [259, 278],
}
# as EXPECTED, of kind Unigram: without and with spaces joined, and with a table of replacements
UNIGRAM = {
    "hello world": [259, 270, 275], "wor": [259, 264, 263, 265], " ": [259, 259], "": [], "  hello": [259, 259, 259, 270], "zé🙂": [259, 125, 276, 243, 162, 156, 133],
    "<0x41>": [259, 63, 51, 123, 55, 52, 65],
}
JOINED = {" ": [], "  hello": [259, 270], "hello   ": [259, 270], "hello \u2581": [259, 270], "hello  world": [259, 270, 275]}
TABLE = charsmap_base64({"\t".encode(): b" ", "É".encode(): "é".encode(), "ﬁ".encode(): b"hello"})
MAPPED = {"\t hello\tworld": [259, 270, 275], "É": [259, 276], "ﬁ": [259, 270]}
failures = checks = 0


def check(what, got, want):
    global failures, checks
    checks += 1
    if got != want:
        failures += 1
        print(f"FAIL {what}: {got!r}, not {want!r}")


try:
    import sentencepiece
    for pieces, texts in (((), EXPECTED), (PIECES, DEFINED)):
        library = sentencepiece.SentencePieceProcessor(model_proto=model(pieces=pieces))
        for text, ids in texts.items():
            check(f"the library, {text!r}", library.encode(text), ids)
    for options, texts in (({}, UNIGRAM), ({"collapse": 1}, JOINED)):  # the library takes no table as small as TABLE
        library = sentencepiece.SentencePieceProcessor(model_proto=model(kind=1, **options))
        for text, ids in texts.items():
            check(f"the library, {options} {text!r}", library.encode(text), ids)
except ImportError:
    print("the library sentencepiece is not installed: its ids are those written here")
for pieces, texts in (((), EXPECTED), (PIECES, DEFINED)):
    for text, ids in texts.items():
        check(repr(text), tokenize({"tokenizer.model": model(pieces=pieces)}, text), ids)
for options, texts in (({}, UNIGRAM), ({"collapse": 1}, JOINED), ({"collapse": 1, "charsmap": base64.b64decode(TABLE)}, MAPPED)):
    for text, ids in texts.items():
        check(f"Unigram {options} {text!r}", tokenize({"tokenizer.model": model(kind=1, **options)}, text), ids)
check("BPE that joins spaces", tokenize({"tokenizer.model": model(collapse=1)}, "  hello   world "), [271, 272, 273, 274])
check("no prefix", tokenize({"tokenizer.model": model(prefix=0)}, "hello hello"), [270, 271])
config = {"added_tokens_decoder": {"280": {"content": "<|im_end|>", "special": True}, "2": {"content": "</s>", "special": True}}, "tokenizer_class": "LlamaTokenizer"}
both = {"tokenizer.model": model(), "tokenizer_config.json": json.dumps(config).encode()}
check("an added control token", tokenize(both, "hello<|im_end|>", "--special"), [271, 280])
check("the same, typed", 280 in list(tokenize(both, "hello<|im_end|>")), False)
for what, data, word in (("words", model(kind=3), "of kind 3"), ("a damaged table", model(charsmap=b"abc"), "precompiled_charsmap is damaged"),
                         ("an empty file", b"", "damaged"), ("tiktoken's ranks", b"IQ== 0\nIg== 1\n", "damaged"), ("half a file", model()[:1000], "damaged"), ("a long size", b"\x0a\xff\xff\xff\xff\x7fabc", "damaged"),
                         ("text that is not UTF-8", field(1, field(1, b"\xff")), "damaged"), ("an unknown type", field(1, field(1, b"a") + field(3, 9)), "damaged"), ("a group", b"\x0b\x0c", "damaged")):
    got = tokenize({"tokenizer.model": data}, "hello")
    check(what, isinstance(got, str) and word in got and "tokenizer.model" in got, True)
for key, value in (("-1", {"content": "a"}), ("x", {"content": "a"}), ("99999999", {"content": "a"}), ("280", {"content": 3}), ("280", 3)):
    got = tokenize({"tokenizer.model": model(), "tokenizer_config.json": json.dumps({"added_tokens_decoder": {key: value}}).encode()}, "hello")
    check(f"added token {key} {value}", isinstance(got, str) and f"added_tokens_decoder.{key}" in got, True)
print(f"{checks - failures} passed, {failures} failed")
sys.exit(1 if failures else 0)
