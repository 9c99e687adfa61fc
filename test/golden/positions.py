#!/usr/bin/env python3
"""Long prompts on generated tiny checkpoints against a forward pass in plain Python (forward.py), without ../shared:
positions past 200 in one batch and in several, MLA with its heads in groups, few tokens at every CPU level,
decoding, stream-loaded prefills with their rings. With ../shared, also checks forward.py against the fixtures and
the binary against their long prompts.
positions.py HEARTH SHARED"""
import array
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
import forward  # noqa: E402
import tiny  # noqa: E402

HEARTH, SHARED = os.path.abspath(sys.argv[1]), sys.argv[2]
TOKENS = 260
failed = ran = 0

# Three heads, so that groups of two leave one over; YaRN, so that far positions are rotated differently.
MLA = {"num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 1024,
       "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.8}}
# So many heads that queries alone make enough blocks: one softmax over all tiles of keys. (MLA's keys are split into chunks.)
GQA = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 288, "hidden_size": 96, "intermediate_size": 128,
       "moe_intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 12, "num_experts": 6,
       "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 1024,
       "rms_norm_eps": 1e-6, "rope_theta": 10000, "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 1}


def make_gqa(directory):
    """BF16 and one shard, unlike tiny.py's checkpoint."""
    rng, c, out = random.Random(5), GQA, {}

    def add(name, *shape, middle=0.0, wide=0.12):
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        out[name + ".weight"] = ("BF16", list(shape), b"".join(struct.pack("<f", rng.gauss(middle, wide))[2:] for _ in range(n)))

    h, d = c["hidden_size"], c["head_dim"]
    add("model.embed_tokens", c["vocab_size"], h, wide=1.0)
    add("lm_head", c["vocab_size"], h)
    add("model.norm", h, middle=1.0)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            add(p + name, h, middle=1.0)
        for name, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
            add(p + f"self_attn.{name}_proj", heads * d, h)
        add(p + "self_attn.o_proj", h, c["num_attention_heads"] * d)
        for name in ("q_norm", "k_norm"):
            add(p + "self_attn." + name, d, middle=2.0)
        add(p + "mlp.gate", c["num_experts"], h, wide=0.3)
        for k in range(c["num_experts"]):
            for name, shape in (("gate", (c["moe_intermediate_size"], h)), ("up", (c["moe_intermediate_size"], h)), ("down", (h, c["moe_intermediate_size"]))):
                add(p + f"mlp.experts.{k}.{name}_proj", *shape, wide=0.2)
    os.makedirs(directory)
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(tiny.shard_bytes(list(out.items())))
    for name, value in (("config.json", c), ("tokenizer.json", tiny.tokenizer())):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False)


def run(model, tokens, *args, limits=""):
    p = subprocess.run([HEARTH, "-m", model, "--tokens", ",".join(map(str, tokens)), *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=500,
                       env={**os.environ, "HEARTH_LIMITS": limits})
    return p.returncode, p.stdout, p.stderr.decode("utf-8", "replace")


def logits(model, tokens, *args, limits=""):
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "logits")
        rc, out, err = run(model, tokens, "--kv", "f32", "--logits-out", path, *args, limits=limits)
        got = array.array("f")
        if rc == 0:
            with open(path, "rb") as f:
                got.frombytes(f.read())
        return got, f"exit {rc} {err[:300]}"


def check(ok, what):
    global failed, ran
    ran += 1
    if not ok:
        failed += 1
        print("FAILED", what, flush=True)
        if failed == 4:
            sys.exit("and more")


def close(what, got, want, most, said=""):
    """Returns the largest difference relative to the largest logit."""
    worst = max((abs(a - b) if a == a else float("inf") for a, b in zip(got, want)), default=float("inf")) / max(map(abs, want))
    check(len(got) == len(want) and worst <= most and "instead" not in said, f"{what}: {len(got)} of {len(want)} logits, off by {worst:.1e}, allowed {most:.0e} {said}")


def levels():
    """Returns this CPU's levels, from the error message for an unknown one."""
    return [x for x in ("scalar", "avx2", "avx512", "amx") if run("ember:", [1], "--cpu", x, "-n", "1", "--ids")[0] == 0]


def decoded(m, last, n):
    """Greedy continuation by the plain forward after n tokens, whose last logits are given."""
    for y in m.layers:
        del y.keys[n:], y.values[n:]
    m.n, out = n, []
    while len(out) < 6:
        out.append(max(range(len(last)), key=lambda i: last[i]))
        last = m.step(out[-1])
    return out


PROMPT = [(i * 37 + i * i // 7 + 11) % 256 for i in range(TOKENS)]


def ours(tmp, kind):
    model = os.path.join(tmp, kind)
    tiny.make(model, MLA) if kind == "mla" else make_gqa(model)
    m = forward.Model(model)
    want = [v for t in PROMPT for v in m.step(t)]
    vocab = len(want) // TOKENS
    scalar = ("--cpu", "scalar")
    whole, said = logits(model, PROMPT, *scalar)
    close(f"{kind}, one batch", whole, want, 3e-5, said)
    # A prefix before each batch, the last of which is not full; MLA expands it for all heads, two at a time, one at a time.
    one = TOKENS * (CONFIG["qk_nope_head_dim"] + CONFIG["qk_rope_head_dim"] + CONFIG["v_head_dim"])
    for limits in ("rows=96", "rows=7", f"expand={2 * one}", f"expand={one}", f"rows=96,expand={one}", f"rows=64,expand={2 * one}"):
        got, said = logits(model, PROMPT, *scalar, limits=limits)
        close(f"{kind}, {limits}", got, want, 3e-5, said)
    # Few rows are float32 at every level, unlike many rows.
    for level in levels():
        for n in (1, 5):
            got, said = logits(model, PROMPT[:n], "--cpu", level)
            close(f"{kind}, {n} tokens at {level}", got, want[:n * vocab], 1e-4, said)
    for n in (230, 3):
        rc, out, err = run(model, PROMPT[:n], *scalar, "--kv", "f32", "-n", "6", "--temp", "0", "--ids")
        check(out.strip() == json.dumps(decoded(m, want[(n - 1) * vocab:n * vocab], n)).encode(), f"{kind}, decoding after {n}: exit {rc} {out!r} {err[:200]}")
    # Stripes, chunks and rings; with launch=, devices that are slower than their links, so that a slot freed too early is
    # overwritten before it is read.
    for gpus, mode in (("emu:1,cpu=scalar", "slp"), ("emu:1,cpu=scalar,ring=2,launch=300", "slp"), ("emu:2,cpu=scalar,chunk=50", "dslp"), ("emu:2,cpu=scalar,ring=2,launch=300", "dslp"),
                       ("emu:3,cpu=scalar,chunk=40,nopeer", "dslp")):
        for limits in ("", f"expand={2 * one}") if kind == "mla" else ("",):
            got, said = logits(model, PROMPT, *scalar, "--gpus", gpus, "--prefill", mode, limits=limits)
            close(f"{kind}, --gpus {gpus} {limits}", got, want, 3e-5, said)


def beside():
    """The contents of ../shared: forward.py against its logits, the binary against its long prompts, in pieces too."""
    fixtures = os.path.join(SHARED, "fixtures")
    for name in ("deepseek_v3", "qwen3_moe"):
        d = os.path.join(fixtures, name)
        with open(os.path.join(d, "golden.json")) as f:
            s = json.load(f)["sequences"][1]
        want = array.array("f")
        with open(os.path.join(d, s["logits"]), "rb") as f:
            want.frombytes(f.read())
        m = forward.Model(d)
        close(f"forward.py on {name}", [v for t in s["tokens"] for v in m.step(t)], want, 5e-6)
    checker = os.path.join(SHARED, "check", "conform.py")
    for limits, names in (("", ["qwen2_moe"]), ("rows=300,expand=1000000", ["deepseek_v3"])):
        p = subprocess.run([sys.executable, checker, "long", HEARTH, *(os.path.join(fixtures, n) for n in names), "--args", "--cpu scalar --kv f32"], capture_output=True, text=True,
                           env={**os.environ, "HEARTH_LIMITS": limits})
        print(p.stdout.strip())
        check(p.returncode == 0, f"long prompts, {limits or 'as they are'}")


CONFIG = {**tiny.CONFIG, **MLA}
with tempfile.TemporaryDirectory() as tmp:
    for kind in ("mla", "gqa"):
        ours(tmp, kind)
if os.path.isdir(os.path.join(SHARED, "fixtures", "long")):
    beside()
else:
    print("no references beside this checkout: ours alone")
print(f"{ran} cases, {failed} failed")
sys.exit(failed != 0)
