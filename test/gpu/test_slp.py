#!/usr/bin/env python3
"""Stream-loading prefill on emulated devices gives the CPU's logits: for several ring lengths, chunk sizes, numbers of
ranks, with and without direct copies between ranks, prompts shorter than the ranks, and through the staging buffers.

With `cuda` the CUDA backend is compared, on a card or emulated (test/gpu/cuda_emulate); fewer cases, because it is slow.

usage: test_slp.py HEARTH FIXTURES_DIR [cuda | full]    exit 77 without fixtures. Without `full` the first two models run
every case, the others a third each; three of them together cover all."""
import array, json, os, statistics, subprocess, sys, tempfile

hearth, fixtures = sys.argv[1:3]
models = [m for m in ("deepseek_v3", "qwen2_moe", "deepseek_v2_lite", "gpt_oss", "qwen3_next", "glm_moe_dsa", "deepseek_v4") if os.path.isdir(os.path.join(fixtures, m))]
if not models:
    print("SKIPPED: no fixtures in", fixtures)
    sys.exit(77)
failed = ran = 0


def logits(model, tokens, args, kv="f32"):
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "logits")
        p = subprocess.run([hearth, "-m", model if model == "ember:" else os.path.join(fixtures, model), "--tokens", ",".join(map(str, tokens)), "--logits-out", out, "--cpu", "scalar",
                            "--kv", kv, "--threads", "1", "--stats"] + args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        got = array.array("f")
        if p.returncode == 0:
            got.frombytes(open(out, "rb").read())
        return p.returncode, got, p.stderr.decode()


wants = {}


def processor(model, tokens, kv="f32"):
    """The CPU's logits; cached, because many cases compare with the same ones."""
    key = model, tuple(tokens), kv
    if key not in wants:
        rc, wants[key], err = logits(model, tokens, [], kv)
        assert rc == 0, err
    return wants[key]


# least: an error that rounding must cause. Rounding may also flip a close choice of experts, so then the median of all
# positions counts.
def check(model, tokens, gpus, mode, kv="f32", most=2e-4, least=-1):
    global failed, ran
    ran += 1
    want = processor(model, tokens, kv)
    rc, got, err = logits(model, tokens, ["--gpus", gpus, "--prefill", mode], kv)
    top = max(map(abs, want))
    rows = [slice(i * len(want) // len(tokens), (i + 1) * len(want) // len(tokens)) for i in range(len(tokens))]
    off = [max((abs(a - b) if a == a else float("inf") for a, b in zip(got[r], want[r])), default=float("inf")) / top for r in rows]
    worst = statistics.median(off) if least > 0 else max(off)
    fell_back = "instead" in err or "cuda_emulate:" in err
    if rc or len(got) != len(want) or worst > most or worst <= least or fell_back:
        failed += 1
        print(f"FAIL {model} {len(tokens)} tokens --gpus {gpus} --prefill {mode} --kv {kv}: exit {rc}, {worst:.1e}: {err[:300]}")


def fault(model, tokens, gpus, mode, kind, optional=False):
    """The emulated runtime fails once: the CPU answers instead, or the devices without the optional memory, and nothing leaks (that would be exit 86)."""
    global failed, ran
    ran += 1
    want = processor(model, tokens)
    os.environ["CUDA_EMULATE_FAIL"] = kind
    rc, got, err = logits(model, tokens, ["--gpus", gpus, "--prefill", mode, "--decode", "cpu"])
    del os.environ["CUDA_EMULATE_FAIL"]
    top = max(map(abs, want))
    right = max(abs(a - b) for a, b in zip(got, want)) <= 2e-4 * top and "instead" not in err if optional else got == want and "instead" in err
    if rc or len(got) != len(want) or not right:
        failed += 1
        print(f"FAIL {model} --gpus {gpus} --prefill {mode}, {kind} fails: exit {rc}: {err[:300]}")


if sys.argv[3:] == ["cuda"]:
    prompt = [(i * 37 + 11) % 100 for i in range(29)]
    f32 = "0,math=f32"
    for model in models:
        check(model, prompt[:17], f32 + ",ring=2", "slp")
    if "deepseek_v3" in models:
        model = "deepseek_v3"
        check(model, prompt[:17], "0,1,math=f32,ring=3", "dslp")
        check(model, prompt[:17], "0,1,0,math=f32,nopeer", "dslp")
        check(model, prompt[:2], "0,0,0,math=f32", "dslp")
        # A number between two codes of the cache may round to the other one.
        check(model, prompt[:9], "0,1,math=f32", "dslp", "bf16", 5e-3)
        check(model, prompt[:9], f32, "slp", "fp8", 5e-2)
    if "qwen2_moe" in models:  # BF16 products flip some choices of experts in these small models, which changes a position's logits
        for gemm in ("", ",gemm=cublas"):
            check("qwen2_moe", [(i * 37 + 11) % 100 for i in range(87)], "0" + gemm, "slp", most=1e-2, least=1e-6)
    for kind in ("alloc:1", "alloc:2") if "deepseek_v3" in models else ():  # memory that is kept spare, pinned weights
        fault("deepseek_v3", prompt[:9], f32, "slp", kind, optional=True)
    for kind in ("alloc:8", "alloc:20", "copy:7", "launch:1", "launch:30") if "deepseek_v3" in models else ():
        fault("deepseek_v3", prompt[:9], f32, "slp", kind)
    for kind in ("alloc:30", "copy:60") if "deepseek_v3" in models else ():
        fault("deepseek_v3", prompt[:9], "0,1,math=f32", "dslp", kind)
    check("ember:", prompt[:11], f32, "slp")
    models = None


def case(*args, **more):
    cases.append((args, more))


for i, model in enumerate(models or []):
    cases = []
    experts = 0
    config = json.load(open(os.path.join(fixtures, model, "config.json")))
    for key in ("n_routed_experts", "num_experts", "num_local_experts"):
        experts = experts or config.get(key, 0)
    experts = experts or config["ffn_config"]["moe_num_experts"]
    vocab = config["vocab_size"]
    prompt = [(i * 37 + 11) % vocab for i in range(29)]
    for ring in (2, 3, experts - 1, experts):
        case(model, prompt, f"emu:1,cpu=scalar,ring={ring}", "slp")
        case(model, prompt, f"emu:2,cpu=scalar,ring={ring}", "dslp")
    for chunk in (1, 5, 16):
        case(model, prompt, f"emu:1,cpu=scalar,chunk={chunk}", "slp")
        case(model, prompt, f"emu:2,cpu=scalar,chunk={chunk}", "dslp")
    for ranks in (3, 4):
        case(model, prompt, f"emu:{ranks},cpu=scalar", "dslp")
        case(model, prompt, f"emu:{ranks},cpu=scalar,nopeer", "dslp")
    case(model, prompt, "emu:3,cpu=scalar,nopeer,chunk=3", "dslp")
    for n in (1, 2, 3, 5):
        case(model, prompt[:n], "emu:1,cpu=scalar", "slp")
        case(model, prompt[:n], "emu:4,cpu=scalar", "dslp")
        case(model, prompt[:n], "emu:2,cpu=scalar,nopeer", "dslp")
    case(model, prompt, "emu:2,cpu=scalar", "slp")
    # Chunks so long that MLA expands keys and values, part by part as the ring uploads them. (A last bit that differs in a row
    # may round differently in a BF16 or FP8 cache, more likely with longer prompts: so float32 here.)
    long = [(i * 53 + 7) % vocab for i in range(200)]
    case(model, long, "emu:1,cpu=scalar", "slp")
    case(model, long, "emu:2,cpu=scalar", "dslp")
    case(model, long, "emu:2,cpu=scalar,nopeer,chunk=45", "dslp")
    case(model, long, "emu:3,cpu=scalar,chunk=48", "dslp")
    case(model, long, "emu:4,cpu=scalar", "dslp")
    # Expanded in BF16, whose rounding is visible on one rank too.
    if model.startswith("deepseek_v3") or model.startswith("deepseek_v2"):
        case(model, long, "emu:1,cpu=scalar,math=bf16", "slp", most=1e-2, least=1e-6)
        case(model, long, "emu:1,cpu=scalar,math=bf16,chunk=60", "slp", "bf16", 1e-2, 1e-6)
    # Tokens and sums are passed in BF16, and that is visible.
    for gpus in ("emu:2,cpu=scalar,math=bf16", "emu:3,cpu=scalar,math=bf16,nopeer,chunk=5", "emu:4,cpu=scalar,math=bf16,ring=2"):
        case(model, prompt, gpus, "dslp", most=1e-2, least=1e-4)
    for kv, most in (("bf16", 2e-4), ("fp8", 5e-3 if model == "gpt_oss" else 2e-4)):  # there a number between two codes of the cache rounds to the other one
        case(model, prompt, "emu:1,cpu=scalar", "slp", kv, most)
        case(model, prompt, "emu:3,cpu=scalar", "dslp", kv, most)
        case(model, prompt, "emu:4,cpu=scalar,nopeer", "dslp", kv, most)
    for args, more in cases if i < 2 or sys.argv[3:] == ["full"] else cases[i % 3::3]:
        check(*args, **more)
# The built-in model is never pinned: its weights go through the staging buffers.
for gpus, mode in () if models is None else (("emu:1,cpu=scalar", "slp"), ("emu:3,cpu=scalar,nopeer", "dslp")):
    check("ember:", [i * 37 % 500 for i in range(20)], gpus, mode)
print(f"{ran} cases, {failed} failed")
sys.exit(failed != 0)
