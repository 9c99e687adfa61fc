#!/usr/bin/env python3
"""Token masks of hearth beside those of xgrammar and llguidance, on one vocabulary: times, and which tokens they allow.

    grammar_peers.py times --hearth BUILD --tokenizer FILE.json [--rounds 5]
    grammar_peers.py masks --hearth BUILD --tokenizer FILE.json [--documents 3] [--show 3]

BUILD is a build directory with the targets test/bench/bench_grammar and test/unit/grammar_walk; FILE a tokenizer.json with byte-level BPE. A measurement, not a
dependency: a peer that is not installed (pip install xgrammar llguidance xllamacpp gguf) is printed as SKIPPED with the reason.

times: each engine follows documents token by token with a fresh matcher and takes the mask before each token; compiling is not part of a mask. Times are CPU
time of the one thread that works, so that other programs on the machine disturb less.
masks: documents of every schema of test/unit/schemas.py, and the same with one token replaced. Peers read each schema twice: without white space, and with
any. hearth's texts lie between: it may put a space after a comma or colon. So what a peer allows without white space, and not hearth, is `missing`; what
hearth allows, and not a peer with white space, is `extra`. Of both, the table counts tokens by schema. `wrong` are extra tokens after which hearth writes a
document that python-jsonschema does not validate.
"""
import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "unit"))
from schemas import VALID, obj  # noqa: E402

S = {"type": "string"}
# What programs ask for: (schema, documents)
TIMED = {
    "object of 8 members": (obj({"name": S, "email": {"type": "string", "maxLength": 60}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
                                 "score": {"type": "number"}, "kind": {"enum": ["person", "company", "other"]}, "tags": {"type": "array", "items": S, "maxItems": 5},
                                 "orders": {"type": "array", "items": obj({"id": {"type": "integer"}, "item": S, "price": {"type": "number", "minimum": 0}})}}),
                            ['{"name": "Dr. Anna-Lena Müller", "email": "anna.mueller@example.org", "zip": "80331", "age": 42, "score": 0.875, "kind": "person", "tags": ["customer since 2019", "newsletter", "büro"], '
                             '"orders": [{"id": 10442, "item": "A4 printing paper, 500 sheets", "price": 12.5}, {"id": 10443, "item": "Ink cartridge \\"black\\"", "price": 24.99}]}',
                             '{"name": "株式会社サンプル", "email": "info@example.jp", "zip": "10115", "age": 7, "score": -3.5e-3, "kind": "company", "tags": [], "orders": []}']),
    "string of at most 20": ({"type": "string", "maxLength": 20}, ['"the quick brown fox"']),
    "string of at most 2,000": ({"type": "string", "maxLength": 2000}, ['"the quick brown fox jumps over the lazy dog, and then it sleeps."']),
    "any JSON object": ({"type": "object"}, ['{"a": [1, 2.5, null, true], "nested": {"text": "some words in a row", "more": {"x": "y"}}}']),
    "recursive tree": (VALID["tree"], ['{"value": 1, "children": [{"value": -25, "children": []}, {"value": 100, "children": [{"value": 7, "children": []}]}]}']),
    "enumeration and pattern": (obj({"status": {"enum": ["active", "inactive", "pending approval"]}, "id": {"type": "string", "format": "uuid"}, "day": {"type": "string", "format": "date"}}),
                                ['{"status": "pending approval", "id": "6f1d2c3b-4a5e-4f60-9b7c-8d9e0f1a2b3c", "day": "2026-11-25"}']),
}


class Skip(Exception):
    """The engine cannot take part; the text says why."""


# ---- Vocabulary ----

def byte_of_char():
    """The byte for each character of byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in shown]
    return {**{chr(b): b for b in shown}, **{chr(256 + i): b for i, b in enumerate(rest)}}


class Vocabulary:
    """Tokens as bytes, without those of control tokens."""

    def __init__(self, path):
        import tokenizers
        with open(path, encoding="utf-8") as f:
            text = f.read()
        j, chars = json.loads(text), byte_of_char()
        self.encoder = tokenizers.Tokenizer.from_str(text)
        ids = {**j["model"]["vocab"], **{t["content"]: t["id"] for t in j["added_tokens"]}}
        self.tokens = [b""] * (max(ids.values()) + 1)
        added = {t["id"] for t in j["added_tokens"]}
        for token, i in ids.items():
            self.tokens[i] = token.encode() if i in added else bytes(chars[c] for c in token)
        self.special = {t["id"] for t in j["added_tokens"] if t["special"]}
        self.eos = max(self.special)
        self.text = np.array([bool(t) and i not in self.special for i, t in enumerate(self.tokens)])

    def encode(self, text):
        return self.encoder.encode(text, add_special_tokens=False).ids


# ---- Engines: compile(schema, white space) gives a grammar; follow(grammar, ids) yields (mask, seconds) before each id that is accepted, and after the last ----

class Hearth:
    name = "hearth"

    def __init__(self, v, build, path):
        self.v, self.dir = v, tempfile.TemporaryDirectory()
        os.symlink(os.path.abspath(path), os.path.join(self.dir.name, "tokenizer.json"))
        self.p = subprocess.Popen([os.path.join(build, "test", "bench", "bench_grammar"), self.dir.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.words = -(-json.loads(self.p.stdout.readline())["ids"] // 64)

    def ask(self, schema, lists, masks=True):
        self.p.stdin.write(json.dumps({"schema": schema, "ids": lists, "masks": masks}).encode() + b"\n")
        self.p.stdin.flush()
        j = json.loads(self.p.stdout.readline())
        if "error" in j:
            raise Skip(j["error"])
        for d in j["documents"] if masks else []:
            d["masks"] = [self.mask(self.p.stdout.read(8 * self.words)) for _ in range(d["accepted"] + 1)]
        return j

    def mask(self, data):
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[:len(self.v.tokens)].astype(bool)

    def times(self, schema, lists):
        j = self.ask(schema, lists, masks=False)
        for ids, d in zip(lists, j["documents"]):
            assert d["accepted"] == len(ids) and d["complete"], (schema, d)
        return j["compile_us"], [us for d in j["documents"] for us in d["us"]]


class Peer:
    """Masks go to self.bits, 32-bit words."""

    def times(self, schema, lists):
        began = time.thread_time()
        grammar = self.compile(schema, True)
        compile_us, out = (time.thread_time() - began) * 1e6, []
        for ids in lists:
            m = self.open(grammar)
            for i in [*ids, None]:
                began = time.thread_time()
                self.fill(m)
                out.append((time.thread_time() - began) * 1e6)
                if i is not None and not self.accept(m, i):
                    raise Skip(f"does not accept {self.v.tokens[i]!r}")
        return compile_us, out

    def masks(self, grammar, ids):
        """Returns the masks before each accepted token and after the last."""
        m, out = self.open(grammar), []
        for i in [*ids, None]:
            self.fill(m)
            out.append(np.unpackbits(self.bits.view(np.uint8).ravel(), bitorder="little")[:len(self.v.tokens)].astype(bool))
            if i is None or not out[-1][i] or not self.accept(m, i):
                return out


class Xgrammar(Peer):
    name = "xgrammar"

    def __init__(self, v):
        try:
            import xgrammar
        except ImportError as e:
            raise Skip(str(e))
        self.v, self.x, self.name = v, xgrammar, f"xgrammar {version('xgrammar')}"
        tokens = [t if v.text[i] else b"" for i, t in enumerate(v.tokens)]
        self.compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(tokens, stop_token_ids=[v.eos]), max_threads=1, cache_enabled=False)
        self.tensor = xgrammar.allocate_token_bitmask(1, len(tokens))
        self.bits = self.tensor.numpy()

    def compile(self, schema, white):
        try:
            return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=white, separators=None if white else (",", ":"), strict_mode=True)
        except Exception as e:
            raise Skip(str(e).splitlines()[0])

    def open(self, grammar):
        return self.x.GrammarMatcher(grammar)

    def fill(self, m):
        if not m.fill_next_token_bitmask(self.tensor):
            self.bits.fill(-1)

    def accept(self, m, i):
        return m.accept_token(i)


class Llguidance(Peer):
    name = "llguidance"

    def __init__(self, v):
        try:
            import llguidance
            import llguidance.numpy
        except ImportError as e:
            raise Skip(str(e))

        class Given:
            eos_token_id, bos_token_id = v.eos, None
            tokens, special_token_ids = v.tokens, sorted(v.special)

            def __call__(self, s):
                return v.encode(s if isinstance(s, str) else s.decode("utf-8", "replace"))

        self.v, self.l, self.name = v, llguidance, f"llguidance {version('llguidance')}"
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Given()), slices=llguidance.LLTokenizer.json_slices())
        self.bits = llguidance.numpy.allocate_token_bitmask(1, len(v.tokens))

    def compile(self, schema, white):
        schema = {} if schema is True else schema
        grammar = self.l.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": white})
        why = self.l.LLMatcher.validate_grammar(grammar, self.tokenizer)
        if why and not why.startswith("WARNING"):
            raise Skip(why.splitlines()[0])
        return self.l.LLMatcher(self.tokenizer, grammar)

    def open(self, grammar):
        return grammar.deep_copy()

    def fill(self, m):
        self.l.numpy.fill_next_token_bitmask(m, self.bits)

    def accept(self, m, i):
        return m.consume_token(i)


class LlamaCpp(Peer):
    """The grammar sampler of llama.cpp on all tokens, by the C functions in xllamacpp's library. Grammars are made by the converter of llama-cpp-python, whose file
    llama_cpp/llama_grammar.py HEARTH_LLAMA_GRAMMAR names. The vocabulary is a GGUF file without tensors."""
    name = "llama.cpp"

    def __init__(self, v):
        try:
            import gguf
            import xllamacpp
        except ImportError as e:
            raise Skip(str(e))
        if not os.environ.get("HEARTH_LLAMA_GRAMMAR"):
            raise Skip("no HEARTH_LLAMA_GRAMMAR")
        with open(os.environ["HEARTH_LLAMA_GRAMMAR"]) as f:
            self.converter = {"__name__": "converter"}
            exec(f.read().replace("import llama_cpp", ""), self.converter)
        self.v, self.name, self.c = v, f"llama.cpp (xllamacpp {version('xllamacpp')})", ctypes.CDLL(xllamacpp.xllamacpp.__file__)
        self.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *message: None)
        self.c.llama_log_set(self.quiet, None)
        model, array = self.struct()
        self.c.llama_model_get_vocab.restype = self.c.llama_sampler_init_grammar.restype = ctypes.c_void_p
        self.vocab = ctypes.c_void_p(self.c.llama_model_get_vocab(self.load(gguf, model)))
        self.logits = np.zeros(len(v.tokens), dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
        self.logits["id"] = np.arange(len(v.tokens))
        self.array = array(self.logits.ctypes.data, len(v.tokens), -1, False)

    def struct(self):
        class Model(ctypes.Structure):  # llama_model_params, in memory; larger than it
            _fields_ = [("bytes", ctypes.c_ubyte * 512)]

        class Array(ctypes.Structure):  # llama_token_data_array
            _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64), ("sorted", ctypes.c_bool)]
        return Model, Array

    def load(self, gguf, model):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "vocab.gguf")
            w, byte = gguf.GGUFWriter(path, "qwen2"), {b: c for c, b in byte_of_char().items()}
            w.add_context_length(4096), w.add_embedding_length(64), w.add_block_count(1), w.add_feed_forward_length(64), w.add_head_count(1), w.add_layer_norm_rms_eps(1e-6)
            w.add_tokenizer_model("gpt2"), w.add_tokenizer_pre("qwen2"), w.add_token_merges(["a b"])
            w.add_token_list(["".join(byte[b] for b in t) or f"<unused{i}>" for i, t in enumerate(self.v.tokens)])
            w.add_token_types([gguf.TokenType.CONTROL if i in self.v.special else gguf.TokenType.NORMAL for i in range(len(self.v.tokens))])
            w.add_eos_token_id(self.v.eos)
            w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
            self.c.llama_model_default_params.restype, self.c.llama_model_load_from_file.restype = model, ctypes.c_void_p
            params = self.c.llama_model_default_params()
            params.bytes[72] = 1  # vocab_only, in the release that the page names
            self.c.llama_model_load_from_file.argtypes = [ctypes.c_char_p, model]
            return ctypes.c_void_p(self.c.llama_model_load_from_file(path.encode(), params))

    def compile(self, schema, white):
        if not white:
            raise Skip("its grammars allow white space")
        try:
            return self.converter["json_schema_to_gbnf"](json.dumps(schema)).encode()
        except Exception as e:
            raise Skip(f"its converter fails: {e!r}")

    def open(self, grammar):
        m = self.c.llama_sampler_init_grammar(self.vocab, grammar, b"root")
        if not m:
            raise Skip("its grammar is refused")
        self.logits["logit"] = 0
        return ctypes.c_void_p(m)

    def fill(self, m):
        self.c.llama_sampler_apply(m, ctypes.byref(self.array))

    def accept(self, m, i):
        ok = self.logits["logit"][i] == 0
        self.logits["logit"] = 0
        if ok:
            self.c.llama_sampler_accept(m, ctypes.c_int32(i))
        return ok


PEERS = (Xgrammar, Llguidance, LlamaCpp)


def peers(v):
    for kind in PEERS:
        try:
            yield kind(v)
        except Skip as why:
            print(f"SKIPPED {kind.name}: {why}")


# ---- Times ----

def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(len(values) * p / 100))]


def times(a):
    v = Vocabulary(a.tokenizer)
    engines, rows = [Hearth(v, a.hearth, a.tokenizer), *peers(v)], {}
    for n in range(a.rounds):
        for k in range(len(engines)):  # in turn, each round from another one on
            engine = engines[(k + n) % len(engines)]
            for label, (schema, documents) in TIMED.items():
                try:
                    compile_us, masks = engine.times(schema, [v.encode(d) for d in documents])
                except Skip as why:
                    rows[label, engine.name] = str(why)
                    continue
                c, m = rows.setdefault((label, engine.name), ([], []))
                c.append(compile_us)
                m.extend(masks)
    print(f"{len(v.tokens):,} tokens; microseconds a mask, {a.rounds} rounds\n\n| schema | engine | compile, ms | median | p99 | most |\n|---|---|---|---|---|---|")
    for label in TIMED:
        for engine in engines:
            got = rows[label, engine.name]
            print(f"| {label} | {engine.name} | " + (f"SKIPPED: {got} | | | |" if isinstance(got, str) else
                  f"{percentile(got[0], 50) / 1e3:.2f} | {percentile(got[1], 50):.1f} | {percentile(got[1], 99):,.0f} | {max(got[1]):,.0f} |"))


# ---- Masks ----

class Walk:
    """Random texts of a schema from hearth's automaton, without a vocabulary."""

    def __init__(self, build):
        self.p = subprocess.Popen([os.path.join(build, "test", "unit", "grammar_walk")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def texts(self, schema, seed, count, prefix=""):
        self.p.stdin.write(json.dumps({"kind": "schema", "source": json.dumps(schema), "seed": seed, "count": count, "prefix": prefix}).encode() + b"\n")
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline()).get("texts", [])


def compact(text):
    return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


class Compare:
    def __init__(self, v, walk, hearth, peer, show):
        import jsonschema
        self.v, self.walk, self.hearth, self.peer, self.show = v, walk, hearth, peer, show
        self.judge = jsonschema.Draft202012Validator
        self.total = dict.fromkeys(("masks", "equal", "missing", "extra", "wrong", "prefixes", "shorter", "longer"), 0)

    def sample(self, mask, prefix, row, kind, schema):
        """Counts the tokens of a difference and judges some of the extra ones."""
        ids = np.flatnonzero(mask)
        row[kind] += len(ids)
        for i in random.sample(list(ids), min(len(ids), 3)):
            text = prefix + self.v.tokens[i]
            if len(row["shown"]) < self.show:
                row["shown"].append(f"{kind}: {text[-60:]!r}")
            try:
                whole = self.walk.texts(schema, int(i) + 1, 1, text.decode()) if kind == "extra" else []
            except UnicodeDecodeError:
                continue
            for w in whole:
                try:
                    self.judge(schema, format_checker=self.judge.FORMAT_CHECKER).validate(json.loads(w))
                except Exception as e:
                    row["wrong"] += 1
                    print(f"WRONG {json.dumps(schema)}: {w!r}: {str(e).splitlines()[0]}")

    def document(self, schema, grammars, ids, row):
        """Compares masks along one list of ids; returns the accepted tokens of hearth, and of the peer without and with white space."""
        ours = self.hearth.ask(schema, [ids])["documents"][0]["masks"]
        tight, loose = (self.peer.masks(g, ids) for g in grammars)
        for k in range(min(len(ours), len(tight), len(loose))):
            mine = ours[k] & self.v.text
            missing, extra = tight[k] & self.v.text & ~mine, mine & ~loose[k]
            row["masks"] += 1
            row["equal"] += not missing.any() and not extra.any()
            prefix = b"".join(self.v.tokens[i] for i in ids[:k])
            self.sample(missing, prefix, row, "missing", schema)
            self.sample(extra, prefix, row, "extra", schema)
        return len(ours) - 1, len(tight) - 1, len(loose) - 1

    def schema(self, label, schema, count):
        row = {**dict.fromkeys(self.total, 0), "shown": []}
        try:
            grammars = [self.peer.compile(schema, white) for white in (False, True)]
        except Skip as why:
            return f"refused: {why}"
        for seed in range(count):
            for text in self.walk.texts(schema, seed, 1):
                ids = self.v.encode(compact(text))[:40]
                self.document(schema, grammars, ids, row)
                k = random.randrange(len(ids))
                ids[k] = random.randrange(len(self.v.tokens))
                ours, tight, loose = self.document(schema, grammars, ids, row)
                row["prefixes"] += 1
                row["shorter"] += ours < tight
                row["longer"] += ours > loose
        for key in self.total:
            self.total[key] += row[key]
        return row


def masks(a):
    v = Vocabulary(a.tokenizer)
    hearth, walk = Hearth(v, a.hearth, a.tokenizer), Walk(a.hearth)
    for peer in peers(v):
        random.seed(1)
        c, refused = Compare(v, walk, hearth, peer, a.show), {}
        print(f"\n{peer.name}: schemas with differences\n\n| schema | masks | equal | missing | extra | wrong |\n|---|---|---|---|---|---|")
        for label, schema in VALID.items():
            row = c.schema(label, schema, a.documents)
            if isinstance(row, str):
                refused[label] = row
            elif row["equal"] < row["masks"]:
                print(f"| {label} | {row['masks']} | {row['equal']} | {row['missing']} | {row['extra']} | {row['wrong']} |" + "".join(f"\n    {s}" for s in row["shown"]))
        print(f"\ntotal: {c.total}; {len(VALID) - len(refused)} schemas")
        for label, why in refused.items():
            print(f"{label}: {why[:150]}")
        if c.total["wrong"]:
            sys.exit(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("what", choices=["times", "masks"])
    ap.add_argument("--hearth", required=True, help="build directory")
    ap.add_argument("--tokenizer", required=True, help="tokenizer.json")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--documents", type=int, default=3, help="of each schema")
    ap.add_argument("--show", type=int, default=0, help="differences to print for each schema")
    a = ap.parse_args()
    (times if a.what == "times" else masks)(a)


if __name__ == "__main__":
    main()
