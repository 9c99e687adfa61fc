#!/usr/bin/env python3
"""tokenizer.json files that are written here: Unigram models with SentencePiece's table of replacements, and tokens that only
tokenizer_config.json adds.

    tokenizer_json.py HEARTH

The ids are those of tokenizers 0.23 and transformers 5.24 for the same bytes. `--ask`, where both are installed, asks them again."""
import json
import os
import subprocess
import sys
import tempfile

from charsmap import charsmap_base64

BIN, ASK = sys.argv[1], "--ask" in sys.argv
PIECES = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]] + [[f"<0x{b:02X}>", 0.0] for b in range(256)]
PIECES += [[w, -1.5 - i / 7] for i, w in enumerate("▁ e t a o n i h s r l d he th the ▁the ▁th in ing an and ▁and é 京 東京 東 fi ▁▁ </".split())]
TABLE = {"\n": " ", "\t": " ", "ﬁ": "fi", "e\u0301": "é", "\u200b": "", "１": "1", "カ\u3099": "ガ", "ａ": "a", "＜": "<", "＞": ">", "Ａ": "a\u0301"}
NORMALIZER = {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap_base64({a.encode(): b.encode() for a, b in TABLE.items()})},
                                                  {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}
MARKS = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def token(id_, content, **more):
    return {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | more


def unigram(added=(), normalizer=NORMALIZER, pre=MARKS, fallback=True, unk=0, pieces=PIECES):
    return {"version": "1.0", "added_tokens": list(added), "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": None, "decoder": MARKS,
            "model": {"type": "Unigram", "unk_id": unk, "vocab": pieces, "byte_fallback": fallback}}


LETTERS = {c: i for i, c in enumerate("abcdefghij<>|_ /s")} | {"</s>": 17}
BPE = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": {"type": "BPE", "vocab": LETTERS, "merges": []}}
ONE = dict(BPE, added_tokens=[token(18, "<a>")])


def entry(content, **more):
    return {k: v for k, v in token(0, content, **more).items() if k != "id"}


# what, tokenizer.json, tokenizer_config.json or None, text, ids with --special
CASES = [
    ("words", unigram(), None, "the and then", [274, 280, 274, 264]), ("words in a row", unigram(), None, "thethe  and", [274, 273, 280]), ("unknown letters", unigram(), None, "the xyz", [274, 259, 123, 124, 125]),
    ("one unknown token for all", unigram(fallback=False), None, "the xyz q", [274, 259, 0, 259, 0]), ("replacements", unigram(), None, "ﬁn１\t\nｶ\u200b東京", [259, 285, 264, 52, 259, 242, 192, 185, 283]),
    ("a grapheme of five bytes, and one of more", unigram(), None, "ﬁ\u0301 e\u0301 カ\u3099", [259, 285, 259, 281, 259, 230, 133, 174, 230, 133, 175]), ("CR before LF", unigram(), None, "a\r\nb", [259, 262, 16, 259, 101]),
    ("no pre-tokenizer", unigram(pre=None), None, "the and", [273, 35, 279]), ("no normalizer", unigram(normalizer=None), None, "ﬁn the\n", [259, 242, 175, 132, 264, 274, 13]),
    ("the spelling of a byte", unigram(), None, "<0x41>", [259, 68]), ("the unknown token's spelling", unigram(), None, "a<unk>b", [259, 262, 63, 120, 113, 110, 65, 101]),
    ("equal sums", unigram(normalizer=None, pre=None, fallback=False, pieces=[["<unk>", 0.0], ["a", -1.0], ["b", -1.0], ["ab", -2.0], ["c", -1.5], ["bc", -2.5], ["abc", -3.5]]), None, "cababc", [4, 3, 6]),
    ("two pieces with one text", unigram(pieces=PIECES + [["the", -1.0]]), None, "the then", [259, 288, 259, 288, 264]),
    ("positive scores", unigram(pieces=[[s, n + 40] for s, n in PIECES]), None, "the thexand", [259, 261, 266, 260, 259, 261, 266, 260, 123, 262, 264, 270]),
    ("a control token", unigram([token(1, "<s>")]), None, "<s>the</s>", [1, 274, 2]),
    ("an added token of the config", BPE, {"added_tokens_decoder": {"18": entry("<a>"), "19": entry("<b>", special=False)}}, "a<a>b<b>", [0, 18, 1, 19]),
    ("flags of the config", ONE, {"added_tokens_decoder": {"18": entry("<a>", rstrip=True)}}, "a<a>  b", [0, 18, 1]),
    ("a text of the vocabulary", BPE, {"added_tokens_decoder": {"3": entry("</s>")}}, "a</s>b", [0, 17, 1]),
    ("a named token", BPE, {"eos_token": "</s>"}, "a</s>b", [0, 17, 1]), ("a named token with flags", BPE, {"bos_token": {"__type": "AddedToken", **entry("</s>", lstrip=True)}}, "a  </s>b", [0, 17, 1]),
    ("one of a list", BPE, {"additional_special_tokens": ["</s>"]}, "a</s>b", [0, 17, 1]),
]
failures = checks = 0


def check(what, got, want):
    global failures, checks
    checks += 1
    if got != want:
        failures += 1
        print(f"FAIL {what}: {got!r}, not {want!r}")


def write(d, tokenizer, config):
    for name, tree in (("tokenizer", tokenizer), ("tokenizer_config", config)):
        if tree is not None:
            with open(os.path.join(d, name + ".json"), "w", encoding="utf-8") as f:
                json.dump(tree, f)


def run(tokenizer, config, text, *args):
    with tempfile.TemporaryDirectory() as d:
        write(d, tokenizer, config)
        p = subprocess.run([BIN, "-m", d, *args], input=text.encode(), capture_output=True, timeout=60, check=False)
        return p.stdout.decode() if p.returncode == 0 else p.stderr.decode()


def ids(tokenizer, config, text, *args):
    out = run(tokenizer, config, text, "--tokenize", *args)
    return json.loads(out) if out.startswith("[") else out


def reference(tokenizer, config, text):
    from transformers import PreTrainedTokenizerFast
    with tempfile.TemporaryDirectory() as d:
        write(d, tokenizer, dict(config or {}, tokenizer_class="PreTrainedTokenizerFast"))
        return PreTrainedTokenizerFast.from_pretrained(d).encode(text, add_special_tokens=False)


if ASK:
    for what, tokenizer, config, text, want in CASES:
        print(f"{what}: {reference(tokenizer, config, text)}")
    sys.exit(0)
for what, tokenizer, config, text, want in CASES:
    check(what, ids(tokenizer, config, text, "--special"), want)
# What is typed becomes no control token, however the vocabulary spells it.
check("a typed control token", 1 in list(ids(unigram([token(1, "<s>")]), None, "<s>the")), False)
check("typed by way of a replacement", 1 in list(ids(unigram([token(1, "<s>")]), None, "＜s＞the")), False)
check("a typed token of the config", ids(BPE, {"added_tokens_decoder": {"18": entry("<a>")}}, "a<a>"), [0, 10, 0, 11])
check("a typed named token", ids(BPE, {"eos_token": "</s>"}, "</s>"), [10, 15, 16, 11])
check("another token's id", ids(BPE, {"added_tokens_decoder": {"5": entry("<q>")}, "pad_token": "<pad>"}, "ab", "--special"), [0, 1])
check("back to text", run(unigram(), None, json.dumps([274, 259, 285, 264, 274, 230, 133, 174]), "--detokenize").rstrip("\n"), "the fin the<0xE3><0x82><0xAB>")
for what, tree, word in (("no scores", unigram(pieces=[["a"]]), "entry 0 is not a piece"), ("a score that is text", unigram(pieces=[["a", "b"]]), "entry 0 is not a piece"), ("no pieces", unigram(pieces=[]), "model.vocab"),
                         ("an unknown token beyond the pieces", unigram(unk=len(PIECES)), "model.unk_id"), ("a table that is no base64", unigram(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}), "precompiled_charsmap"),
                         ("an empty table", unigram(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}), "precompiled_charsmap"), ("half a table", unigram(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAQAAA=="}), "precompiled_charsmap")):
    got = ids(tree, None, "a")
    check(what, isinstance(got, str) and word in got and "tokenizer.json" in got, True)
for key, value in (("-1", entry("x")), ("x", entry("x")), ("99999999", entry("x")), ("20", {"content": 3}), ("20", 3)):
    got = ids(BPE, {"added_tokens_decoder": {key: value}}, "a")
    check(f"added token {key} {value}", isinstance(got, str) and f"added_tokens_decoder.{key}" in got, True)
print(f"{checks - failures} passed, {failures} failed")
sys.exit(1 if failures else 0)
