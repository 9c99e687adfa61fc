#!/usr/bin/env python3
"""Random tokenizer.json files and random texts: hearth against Hugging Face tokenizers, id by id.

    pip install tokenizers [tiktoken]; diff_tokenizer.py BIN [--configs 300] [--texts 20] [--seed 1] [--vendors DIR]

BIN is driven as `BIN -m DIR --tokenize [--special]` and `--detokenize`. --vendors takes a folder of published vocabularies
(NAME.tokenizer.json, NAME.tiktoken) and runs every Unicode code point in several surroundings through them, and random
texts. Prints each difference with the files to reproduce it, and the counts; exit 1 when something differs.
"""
import argparse
import base64
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

from charsmap import charsmap_base64
from tokenizers import Tokenizer

CHARS = list("abcdeABS st'lrve0123456789 \n\t\r.,!?-_/<>|") + ["é", "ß", "ſ", "K", "İ", "ǅ", "e\u0301", "\u0323", "\u0307", "\u0345", "中", "文", "の",
    "カ", "ｶ", "가", "각", "ᄀ", "ᅡ", "ᆨ", "\u3099", "１", "Ⅷ", "½", "²", "٣", "\u0e33", "\u0941", "\u00a0", "\u2003", "\u3000", "\u0085", "\u200d",
    "\u2028", "▁", "😀", "👍🏽", "𝒜", "\ufb01", "Å", "Ω", "\u00ad", "\x00", "\ufeff", "\U0010ffff", "ω", "Σ", "（", "、", "_", "€", "+"]
ADDED = ["<s>", "</s>", "<|end|>", "<|end", "tok", "to", "  ", "é!", "A b", "<pad>", "▁x", "e\u0301x", "1 2", "aa", "中文"]
PATTERNS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{N}{1,3}", r"\p{N}{1,3}+", r"[一-龥぀-ゟ゠-ヿ]+", r"[\p{L}&&[^\p{Han}]]+", r"\w+|[^\w\s]+", r"\s+", r" ", r"\S+\s?", r"[a-z\d]+?", r"(?<=a)b|c(?=d)",
    r"[^\S\n]+", r"(?:ab|a)*+", r"^.|.$", r"\P{L}+", r"[\p{Lu}-]{2,}", r"", r"x*", r"(?>a+)b?", r"[[a-f]&&[^c]]|\d{2}", r".", r"[\s\S]{3}", r"\p{M}+", r"\p{^N}{2,5}?",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def byte_chars():
    own = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    m, k = {b: chr(b) for b in own}, 0
    for b in range(256):
        if b not in m:
            m[b] = chr(256 + k)
            k += 1
    return m


def random_charsmap(r):
    keys = [c for c in CHARS if c != "\x00"]
    table = {r.choice(keys): "".join(r.choice(keys) for _ in range(r.choice([0, 1, 1, 2]))) for _ in range(r.randint(1, 40))}
    for _ in range(r.randint(0, 4)):
        table["".join(r.choice(keys) for _ in range(2))] = r.choice(keys)
    if r.random() < .5:
        table |= {"\t": " ", "\n": " ", "\r": " ", "\r\n": " ", "e\u0301": "é", "ﬁ": "fi", "\u200d": ""}
    return charsmap_base64({a.encode(): b.encode() for a, b in table.items()})


def normalizer(r):
    def one():
        k = r.choice(["NFC", "NFKC", "NFD", "NFKD", "Prepend", "Replace", "Replace", "Strip", "Lowercase", "Nmt", "Precompiled", "Precompiled"])
        if k == "Precompiled":
            return {"type": k, "precompiled_charsmap": random_charsmap(r)}
        if k == "Prepend":
            return {"type": k, "prepend": r.choice(["▁", "x", " "])}
        if k == "Replace":
            p = {"String": r.choice([" ", "a", "é", "  ", "ab"])} if r.random() < .6 else {"Regex": r.choice([r"\s+", r"[0-9]", r" {2,}", r"\p{Lu}", r"x+"])}
            return {"type": k, "pattern": p, "content": r.choice(["▁", "", "zz", " "])}
        if k == "Strip":
            return {"type": k, "strip_left": r.random() < .5, "strip_right": r.random() < .5}
        return {"type": k}
    x = r.random()
    return None if x < .35 else one() if x < .65 else {"type": "Sequence", "normalizers": [one() for _ in range(r.randint(0, 3))]}


def pretokenizer(r):
    def one():
        k = r.choice(["Split", "Split", "Split", "Digits", "Whitespace", "WhitespaceSplit", "Punctuation", "Metaspace"])
        if k == "Split":
            p = {"Regex": r.choice(PATTERNS)} if r.random() < .8 else {"String": r.choice([" ", "ab", ".", "中", "-"])}
            return {"type": k, "pattern": p, "behavior": r.choice(BEHAVIORS), "invert": r.random() < .2}
        if k == "Digits":
            return {"type": k, "individual_digits": r.random() < .5}
        if k == "Punctuation":
            return {"type": k, "behavior": r.choice(BEHAVIORS)}
        if k == "Metaspace":
            return {"type": k, "replacement": "▁", "prepend_scheme": r.choice(["always", "never", "first"]), "split": r.random() < .6}
        return {"type": k}
    steps = [one() for _ in range(r.choice([0, 1, 1, 1, 2, 3]))]
    if r.random() < .6:
        steps.append({"type": "ByteLevel", "add_prefix_space": r.random() < .3, "trim_offsets": True, "use_regex": r.random() < .4})
        if r.random() < .1:
            steps.append(one())
    return None if not steps else steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}


def decoder(r, bytes_used):
    if bytes_used:
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return r.choice([
        None,
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": r.choice(["always", "never", "first"]), "split": True},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                          {"type": "Strip", "content": " ", "start": r.randint(0, 2), "stop": 0}]},
        {"type": "Fuse"},
        {"type": "Sequence", "decoders": [{"type": "Strip", "content": "a", "start": 1, "stop": 1}, {"type": "Fuse"}]},
    ])


def unigram(r, pre):
    alphabet = list(byte_chars().values()) if "ByteLevel" in json.dumps(pre) else sorted({c for s in CHARS for c in s} | {"▁", "x", "z"})
    common = [c for c in alphabet if c in "abest01Ġ▁éÃ©\u0301 "] or alphabet
    score = lambda: r.choice([round(-r.random() * 12, r.choice([0, 1, 6, 17])), -r.random() * 12, -3.0, -3.5, -4.0, 0.0])
    pieces = {"<unk>": 0.0} if r.random() < .9 else {}
    if r.random() < .5:
        pieces |= {f"<0x{b:02X}>": 0.0 for b in range(256) if r.random() < .998}
    pieces |= {c: score() for c in alphabet if r.random() < .8}
    for _ in range(r.choice([0, 5, 60, 600])):
        pieces["".join(r.choice(common) for _ in range(r.choice([2, 2, 3, 4, 7])))] = score()
    if r.random() < .1:
        pieces = {s: n + 30 for s, n in pieces.items()}
    vocab = [[s, n] for s, n in pieces.items()]
    return {"type": "Unigram", "unk_id": 0 if "<unk>" in pieces else None, "vocab": vocab, "byte_fallback": r.random() < .5}


def config(r):
    pre = pretokenizer(r)
    bytes_used = "ByteLevel" in json.dumps(pre)
    alphabet = list(byte_chars().values()) if bytes_used else sorted({c for s in CHARS for c in s} | {"▁", "x", "z"})
    if r.random() < .3:
        alphabet = [c for c in alphabet if r.random() < .8]
    prefix = "##" if r.random() < .08 else None
    suffix = "</w>" if r.random() < .08 else None
    fallback = r.random() < .35
    vocab, tokens, merges, seen = {}, [], [], set()

    def add(s):
        if s not in vocab:
            vocab[s] = len(vocab)
            tokens.append(s)
    unk = "<unk>" if r.random() < .4 else None
    if unk:
        add(unk)
    if fallback:
        for b in range(256):
            if r.random() < .97:
                add(f"<0x{b:02X}>")
    first = len(tokens)
    for c in alphabet:
        add(c)
        if prefix:
            add(prefix + c)
        if suffix:
            add(c + suffix)
            if prefix:
                add(prefix + c + suffix)
    common = [t for t in tokens[first:] if any(c in "abest01Ġ▁éÃ©\u0301" for c in t)] or tokens[first:]
    for _ in range(r.choice([0, 5, 60, 300])):
        a, b = r.choice(common), r.choice(common)
        if prefix and not b.startswith(prefix):
            continue
        if suffix and a.endswith(suffix):
            continue
        if (a, b) in seen:
            continue
        seen.add((a, b))
        new = a + (b[len(prefix):] if prefix else b)
        if len(new) > 30:
            continue
        add(new)
        merges.append((a, b))
        common.append(new)
    if r.random() < .5 and merges:
        r.shuffle(merges)
    added = []
    for c in r.sample(ADDED, r.randint(0, 5)):
        if c in vocab:
            continue
        added.append({"id": 0, "content": c, "single_word": r.random() < .25, "lstrip": r.random() < .25, "rstrip": r.random() < .25,
                      "normalized": r.random() < .4, "special": r.random() < .5})
    for k, a in enumerate(added):
        a["id"] = len(vocab) + k
    model = None
    if r.random() < .4:
        model = unigram(r, pre)
        names = {s for s, _ in model["vocab"]}
        added = [a for a in added if a["content"] not in names]
        for k, a in enumerate(added):
            a["id"] = len(names) + k
    spell = r.random() < .5 and not any(" " in a + b for a, b in merges)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer(r), "pre_tokenizer": pre,
            "post_processor": None, "decoder": decoder(r, bytes_used),
            "model": model or {"type": "BPE", "dropout": None, "unk_token": unk, "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix,
                      "fuse_unk": r.random() < .5, "byte_fallback": fallback, "ignore_merges": r.random() < .2, "vocab": vocab,
                      "merges": [f"{a} {b}" if spell else [a, b] for a, b in merges]}}


def text(r, more=()):
    n = r.choice([0, 1, 2, 5, 20, 80, 300])
    pool = CHARS + list(more) * 3
    if r.random() < .5:
        pool = r.sample(pool, min(len(pool), 8)) + list(more)[:3] + ["a", " "]
    return "".join(r.choice(pool) if r.random() < .97 else chr(point(r)) for _ in range(n))


def point(r):
    while True:
        c = r.choice([r.randrange(0x110000), r.randrange(0x3000)])
        if not 0xD800 <= c < 0xE000:
            return c


def reference(run, f, *a):
    """The reference's answer, or None where it panics: tiktoken on very long pieces, tokenizers where rstrip overlaps the next added token."""
    try:
        return f(*a)
    except BaseException as x:
        if isinstance(x, (KeyboardInterrupt, SystemExit)):
            raise
        why = "reference: " + str(x)[:60]
        run.refused[why] = run.refused.get(why, 0) + 1
        return None


def kimi_pieces(s):
    """Where Kimi's vendor splits a text before encoding it."""
    for i in range(0, len(s), 400_000):
        part, begin, run = s[i:i + 400_000], 0, 0
        for k, c in enumerate(part):
            run = run + 1 if k and c.isspace() == part[k - 1].isspace() else 1
            if run > 25_000:
                yield part[begin:k]
                begin, run = k, 1
        yield part[begin:]


class Run:
    def __init__(self, binary):
        self.binary, self.equal, self.differ, self.refused = binary, 0, 0, {}

    def call(self, d, args, data):
        p = subprocess.run([self.binary, "-m", d] + args, input=data, capture_output=True, timeout=120)
        return p.returncode, p.stdout, p.stderr.decode("utf-8", "replace").strip()

    def check(self, same, d, s, got, want, what):
        if same:
            self.equal += 1
            return
        self.differ += 1
        keep = tempfile.mkdtemp(prefix="diff-tokenizer-")
        shutil.copytree(d, keep, dirs_exist_ok=True)
        with open(os.path.join(keep, "text"), "wb") as f:
            f.write(s.encode("utf-8"))
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        print(f"DIFFERS {what} {keep}: at {at}: got {got[at:at + 8]} want {want[at:at + 8]} (of {len(got)}, {len(want)})")

    def tokenize(self, d, s, special):
        rc, out, err = self.call(d, ["--tokenize"] + (["--special"] if special else []), s.encode("utf-8"))
        return json.loads(out) if rc == 0 else f"exit {rc}: {err}"


def typed(c):
    """The config as typed text meets it: control tokens, special or marks of chats, match nothing."""
    control = lambda a: a["special"] or "<|" in a["content"]
    return dict(c, added_tokens=[dict(a, content=f"\U0010fff0{k}", normalized=False) if control(a) else a for k, a in enumerate(c["added_tokens"])])


def random_configs(run, n, texts, seed):
    for i in range(n):
        r = random.Random(f"{seed}.{i}")
        c = config(r)
        ref = reference(run, Tokenizer.from_str, json.dumps(c))
        plain = reference(run, Tokenizer.from_str, json.dumps(typed(c)))
        if not ref or not plain:
            continue
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "tokenizer.json"), "w") as f:
                json.dump(c, f, ensure_ascii=r.random() < .5)
            for k in range(texts):
                s = text(r, [a["content"] for a in c["added_tokens"]])
                special = k % 2 == 0
                want = reference(run, lambda: (ref if special else plain).encode(s, add_special_tokens=False).ids)
                if want is None:
                    continue
                got = run.tokenize(d, s, special)
                run.check(got == want, d, s, got, want, f"config {i}" + (" --special" if special else ""))
                if isinstance(got, str):
                    break
                if c["normalizer"] and any(a["normalized"] for a in c["added_tokens"]):
                    continue  # the reference shows those in their normalised form, hearth unchanged
                rc, out, err = run.call(d, ["--detokenize"], json.dumps(want).encode())
                # the reference shows one mark for each byte that is not part of a character
                back = reference(run, lambda: ref.decode(want, skip_special_tokens=False))
                if back is not None and "\ufffd" not in back:
                    run.check(out == back.encode(), d, s, list(out), list(back.encode()), f"config {i} --detokenize {err}")


def vendors(run, folder, texts, seed):
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    wide = ["".join(points), " ".join(points), "".join("a" + c for c in points), "".join(c + "\n" for c in points), "".join(" " + c + c for c in points),
            "".join("1" + c + "x" for c in points), "".join("中" + c for c in points), "".join(c + "e\u0301" for c in points), "".join("'" + c + "s " for c in points),
            "a" * (1 << 20), " " * (1 << 20), "中" * (1 << 18), "\n" * (1 << 18), "1" * (1 << 18), "\u0301" * (1 << 16), "é\u0323" * (1 << 16), "ab" * (1 << 19)]
    for f in sorted(os.listdir(folder)):
        with tempfile.TemporaryDirectory() as d:
            if f.endswith(".tokenizer.json"):
                shutil.copy(os.path.join(folder, f), os.path.join(d, "tokenizer.json"))
                ref = Tokenizer.from_file(os.path.join(d, "tokenizer.json"))
                j = json.load(open(os.path.join(d, "tokenizer.json")))
                marks = [a["content"] for a in j["added_tokens"]]
                plain = Tokenizer.from_str(json.dumps(dict(j, added_tokens=[])))
                encode = lambda s, special: (ref if special else plain).encode(s, add_special_tokens=False).ids
            elif f.endswith(".tiktoken"):
                import tiktoken
                shutil.copy(os.path.join(folder, f), os.path.join(d, "tiktoken.model"))
                json.dump({"tokenizer_class": "TikTokenTokenizer"}, open(os.path.join(d, "tokenizer_config.json"), "w"))
                ranks = {base64.b64decode(a): int(b) for a, b in (x.split() for x in open(os.path.join(folder, f)) if x.strip())}
                word = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
                tail = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                kimi = "|".join([r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?" + word[0] + "*" + word[1] + "+" + tail, r"[^\r\n\p{L}\p{N}]?" + word[0] + "+" + word[1] + "*" + tail,
                                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
                known = tiktoken.Encoding("kimi", pat_str=kimi, mergeable_ranks=ranks, special_tokens={"<|im_end|>": len(ranks) + 2, "[BOS]": len(ranks)})
                marks = ["<|im_end|>", "[BOS]"]
                one = lambda s, special: known.encode(s, allowed_special="all") if special else known.encode_ordinary(s)
                encode = lambda s, special: [i for piece in kimi_pieces(s) for i in one(piece, special)]
            else:
                continue
            r = random.Random(f"{seed}.{f}")
            for k, s in enumerate(wide):
                want = reference(run, encode, s, False)
                if want is None:
                    continue
                got = run.tokenize(d, s, False)
                run.check(got == want, d, s, got, want, f"{f} text {k}")
            for k in range(texts):
                s, special = "".join(text(r, marks[:20]) for _ in range(10)), k % 2 == 0
                want = reference(run, encode, s, special)
                if want is None:
                    continue
                got = run.tokenize(d, s, special)
                run.check(got == want, d, s, got, want, f"{f} random {k}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("--configs", type=int, default=300)
    p.add_argument("--texts", type=int, default=20)
    p.add_argument("--seed", default="1")
    p.add_argument("--vendors")
    a = p.parse_args()
    run = Run(os.path.abspath(a.binary))
    if a.vendors:
        vendors(run, a.vendors, a.texts, a.seed)
    random_configs(run, a.configs, a.texts, a.seed)
    for why, n in run.refused.items():
        print(f"skipped {n}: {why}")
    print(f"{run.equal} equal, {run.differ} differ")
    return 1 if run.differ or not run.equal else 0


if __name__ == "__main__":
    sys.exit(main())
