#!/usr/bin/env python3
"""Routed experts on devices: answers equal the CPU's whichever experts are cached, by every policy, size and split, for one chat and for
several, with devices that fail at any transfer; and the figures of --stats add up.

usage: test_cache.py HEARTH FIXTURES_DIR [full]    without fixtures only the built-in model"""
import json, os, re, sys, tempfile

from against import FULL, SCALAR, batch, check, end, greedy, known, run, warnings

models = known("deepseek_v3", "qwen2_moe", "mixtral", "gpt_oss", "qwen3_next", "deepseek_v4", "minimax_m2")
models = models if FULL else models[:3]
DEVICE = ["--gpus", "emu:1,cpu=scalar", "--prefill", "cpu", "--decode", "hybrid"]


def ids(model, args, n=24 if FULL else 15):
    return greedy(model, 9, SCALAR + args, n)


def kept(err):
    """Returns percentage on a device, uploads, unused ones; None where nothing is cached."""
    m = re.search(r"(\d+)% of its experts on a device, (\d+) uploaded \([^)]*\), (\d+) unused", err)
    return m and tuple(map(int, m.groups()))


# --- Sizes, policies, splits: none, one, a quarter, all
SIZES, EVICT, SPLIT = ("0", "1", "25%", "moving:999"), ("lru", "lfu", "mrs", "ema", "lookahead"), ("hybrimoe", "trimoe", "cut", "auto")
for i, model in enumerate(models):
    want = ids(model, [])
    assert not want[0], want
    n_experts = json.loads(run("-m", model, "--inspect", "--json")[1])["experts"]["routed"]
    for k, size in enumerate(SIZES):
        size = str(max(1, n_experts // 4)) if size == "25%" else size
        more = EVICT if FULL or k == 2 and not i else EVICT[(i + k) % 5:][:1]
        for evict in more:
            rc, out, err = ids(model, DEVICE + ["--expert-cache", size, "--evict", evict])
            got = kept(err)
            check(not rc and out == want[1] and "decode by hybrid" in err, model, size, evict, rc, out, want[1], err)
            check((got is None) == (size == "0") and (not got or got[0] > 0 and got[1] > 0 and got[2] <= got[1]), model, size, evict, "kept", got, err)
            check(not got or size != "moving:999" or got[2] == 0, model, "all of them are there, and", got, "moved")
    for k, split in enumerate(SPLIT):
        if FULL or k % 4 == i % 4:
            for size in ("1", "999"):
                rc, out, err = ids(model, DEVICE + ["--expert-cache", size, "--split", split])
                check(not rc and out == want[1], model, size, split, rc, out, want[1], err)
    for args in (["--gpus", "emu:2,cpu=scalar", "--prefill", "cpu", "--decode", "dual"], ["--gpus", "emu:1,cpu=scalar,nopin", "--prefill", "blend", "--decode", "hybrid"], DEVICE + ["--deterministic"]):
        rc, out, err = ids(model, args + ["--expert-cache", "2"])
        got = kept(err)
        fixed = "--deterministic" in args  # then the initial set is everything
        check(not rc and out == want[1] and got and (not fixed or got[1:] == kept(ids(model, args + ["--expert-cache", "2"], 5)[2])[1:]), model, *args, rc, out, want[1], err)


# --- The next layers' experts are predicted, judged and reported; not with several residual streams, nor with --deterministic
FORESEEN = r"expert predictions correct: (\d+)% \(1 ahead\).*; (\d+) uploaded for them, (\d+) unused"
for model in models:
    rc, out, err = ids(model, DEVICE + ["--expert-cache", "1"], 40)
    m, got = re.search(FORESEEN, err), kept(err)
    check(not rc and (m is None) == ("deepseek_v4" in model) and (not m or int(m[1]) <= 100 and int(m[3]) <= int(m[2]) <= got[1]), model, "foreseen", err)
    check(err.count("expert time: CPU") == 2, model, "not told by --stats and --explain", err)
rc, out, err = ids("ember:", DEVICE + ["--expert-cache", "1", "--deterministic"], 20)
check(not rc and "expert predictions" not in err, "foreseen with --deterministic", err)
rc, out, err = run("-p", "hi", "--raw", "-n", "30", "--temp", "0", "--json", *SCALAR, *DEVICE, "--expert-cache", "1")
x = json.loads(out)["timing"]["experts"]
f = x["foreseen"]
check(0 < x["on_device"] <= x["chosen"] and x["processor_s"] > 0 and x["device_s"] > 0 and x["deciding_s"] > 0 and x["decided"] % 4 == 0, "--json", x)
check(len(f["right_of_said"]) == 3 and all(0 <= r <= n for r, n in f["right_of_said"]) and f["right_of_said"][0][0] > 0, "--json", x)
check(f["moved_in_vain"] <= f["moved"] <= x["moved"] and f["moved_in_vain"] <= x["moved_in_vain"], "--json", x)


# --- A second run starts with the experts that the first one used most; a damaged profile is ignored, said once, and replaced
for model in ["ember:"] + models[1:2]:
    with tempfile.TemporaryDirectory() as tmp:
        os.environ["XDG_CACHE_HOME"] = tmp
        n_experts = json.loads(run("-m", model, "--inspect", "--json")[1])["experts"]["routed"]
        args = SCALAR + DEVICE + ["--split", "cut", "--draft", "none", "--expert-cache", str(n_experts // 2)]
        first, long = (greedy(model, 1, args, n) for n in (4, 150))
        for _ in range(4):  # on a busy machine four tokens may be over before the experts have arrived
            again = greedy(model, 1, args, 4)
            if kept(again[2])[0] >= kept(first[2])[0] + 5:
                break
        files = [os.path.join(tmp, "hearth", "usage", f) for f in os.listdir(os.path.join(tmp, "hearth", "usage"))]
        check(first[1] == again[1] and kept(again[2])[0] >= kept(first[2])[0] + 5 and len(files) == 1, model, "a profile", kept(first[2]), kept(again[2]), files)
        with open(files[0], "r+b") as f:
            f.seek(-3, 2), f.write(b"?")
        hurt, later = (greedy(model, 1, args, 30) for _ in range(2))
        check(hurt[1] == later[1] and sum("usage profile" in w for w in warnings(hurt[2])) == 1 and not warnings(later[2]), model, "a damaged profile", hurt[2], later[2])
        os.remove(files[0])
        greedy(model, 1, args + ["--deterministic"], 30), greedy(model, 1, args + ["--no-save"], 30)
        check(not os.path.exists(files[0]), model, "a profile was written nevertheless")
        del os.environ["XDG_CACHE_HOME"]


# --- Pinned experts: the same ones with the same record of earlier runs, which stays as it is; a run with another value continues it
def pinned(args, *more):
    rc, out, err = run("--raw", "-p", "Which models run, and how do I attach a file? The", "-n", "60", "--temp", "1", "--seed", "5", "--json", *SCALAR, *DEVICE, "--draft", "none", *args, *more)
    got = json.loads(out)
    return got["text"], got["timing"].get("experts")


def usage(tmp):
    folder = os.path.join(tmp, "hearth", "usage")
    return {f: open(os.path.join(folder, f), "rb").read() for f in os.listdir(folder)} if os.path.isdir(folder) else {}


with tempfile.TemporaryDirectory() as tmp:
    os.environ["XDG_CACHE_HOME"] = tmp
    text, x = pinned(["--expert-cache", "pinned:2"])
    first = usage(tmp)
    check(re.fullmatch("[0-9a-f]{16}", x.get("pinned", "")) and len(first) == 1, "pinned by the first prompt", x, first.keys())
    again = [pinned(["--expert-cache", "pinned:2"], *more) for more in ([], ["--threads", "1"], ["--deterministic"], ["--decode", "dual"])]
    check(all(t == text and y["pinned"] == again[0][1]["pinned"] and y["on_device"] == again[0][1]["on_device"] > 0 for t, y in again), "pinned by a record", text, x, again)
    check(all(y["moved"] == again[0][1]["moved"] and y["foreseen"]["moved"] == 0 for _, y in again) and usage(tmp) == first, "moved experts or wrote the record", again)
    other = pinned(["--expert-cache", "pinned:1"])
    check(other[0] == text and other[1]["pinned"] != again[0][1]["pinned"] and other[1]["on_device"] < again[0][1]["on_device"], "one for two", other, again[0])
    plain = pinned(["--expert-cache", "2"])
    second = usage(tmp)
    check(plain[0] == text and "pinned" not in plain[1] and second.keys() == first.keys() and second != first, "without pinning the record is continued", plain, second == first)
    name = os.path.join(tmp, "hearth", "usage", *first)
    with open(name, "wb") as f:  # the record of another model
        f.write(first[os.path.basename(name)][:24] + b"12345678" + first[os.path.basename(name)][32:])
    rc, out, err = ids("ember:", DEVICE + ["--expert-cache", "pinned:2"])
    check(not rc and sum("usage profile" in w for w in warnings(err)) == 1 and "device, pinned (" in err, "another model's record", rc, out, err)
    del os.environ["XDG_CACHE_HOME"]

# Sent experts: the CPU computes none of the device's, whatever is resident; the text is that of whole layers and does not depend on hits
with tempfile.TemporaryDirectory() as tmp:
    os.environ["XDG_CACHE_HOME"] = tmp
    whole = pinned(["--expert-cache", "layers"])[0]
    for size in ("sent:1", "sent:3", "sent:1M", "sent:999"):
        rounds = [pinned(["--expert-cache", size], *more) for more in ([], ["--deterministic"], ["--decode", "dual"], ["--threads", "1"])]
        check(all(t == whole for t, _ in rounds), "sent experts and whole layers", size, [t for t, _ in rounds], whole)
        check(all(0 < x["moved"] and (size == "sent:999" or x["on_device"] < x["chosen"]) and x["foreseen"]["moved"] == 0 for _, x in rounds), size, rounds)
    rc, out, err = ids("ember:", DEVICE[:4] + ["--expert-cache", "sent:2"])
    check(not rc and "decode by hybrid" in err and "those that they lack are sent" in err, "sent experts", rc, out, err)
    rc, out, err = run("--gpus", "emu:1", "--inspect", "--json", "--expert-cache", "sent:2")
    check(not rc and [r["class"] for r in json.loads(out)["runs"]["where"] if "class" in r] == ["sent"], "--inspect of sent experts", out, err)
    rc, out, err = run("--plan", "desktop-ddr5-64+rtx3060", "--arch", "qwen3-30b", "--expert-cache", "sent")
    check(rc == 2 and "--tune" in err, "--plan of sent experts", rc, out, err)
    del os.environ["XDG_CACHE_HOME"]

# A saved conversation says which experts were pinned; one that continues with others notes it once
with tempfile.TemporaryDirectory() as tmp:
    os.environ.update(XDG_CACHE_HOME=tmp, XDG_DATA_HOME=tmp)
    chat = [*SCALAR, *DEVICE, "-n", "30", "--temp", "0", "-p", "How do I attach a file?"]
    rc, out, err = run("--save", "held", *chat, "--expert-cache", "pinned:3")
    saved = re.search(r'"experts": "([0-9a-f]{16})"', open(os.path.join(tmp, "hearth", "sessions", "held.json")).read())
    check(not rc and saved and "experts pinned" not in err, "saved", rc, out, err, saved)
    os.remove(os.path.join(tmp, "hearth", "usage", *usage(tmp)))
    rc, out, err = run("--continue", "held", *chat, "--expert-cache", "pinned:2")
    check(not rc and saved and sum("experts pinned" in w and saved[1] in w for w in warnings(err)) == 1, "continued with other experts", rc, out, err)
    rc, out, err = run("--continue", "held", *chat, "--expert-cache", "off")
    check(not rc and "experts pinned" not in err, "continued without", rc, out, err)
    del os.environ["XDG_CACHE_HOME"], os.environ["XDG_DATA_HOME"]

# --- Several chats at once, in one or two micro-batches; beside prompts that take the devices' memory
for i, model in enumerate(models[:2]):
    want = batch(model, 6, [])[0]
    for k, (devices, decode, prefill) in enumerate(((1, "dual", "cpu"), (1, "hybrid", "blend"), (1, "dual", "slp"), (2, "dual", "dslp"))):
        for more in (["--expert-cache", "sent:3" if k % 2 else "3"], ["--deterministic", "--expert-cache", "3"]):
            if not FULL and len(models) > 1 and (i + k + len(more)) % 2:
                continue
            got, err = batch(model, 6, ["--gpus", f"emu:{devices},cpu=scalar", "--decode", decode, "--prefill", prefill, *more])
            check(got == want and not err, model, devices, decode, prefill, *more, got, want, err)

# --- Little memory: the rest is used, KV caches come first; where no layer's experts fit, auto caches some of every layer
want = ids("ember:", [])[1]
for mem in ("4M", "5M", "6M", "7M", "8M", "10M"):
    rc, out, err = ids("ember:", ["--gpus", f"emu:1,cpu=scalar,mem={mem}", "--prefill", "cpu", "-c", "512", "--expert-cache", "auto"])
    check(not rc and out == want and "instead" not in err, "memory of", mem, rc, out, err)

# --- A device that fails at the nth copy, launch or allocation, or for good: the answer is complete, and a warning says so
want = ids("ember:", [], 10)[1]
for kind, first, step, size in (("copy", 20, 61, "4"), ("launch", 20, 97, "4"), ("alloc", 3, 37, "4"), ("die", 40, 211, "4"), ("copy", 40, 13, "pinned:4"), ("alloc", 103, 4, "pinned:4"), ("copy", 40, 29, "sent:2"), ("alloc", 60, 7, "sent:2")):
    n, clean, at = first, 0, 0
    while clean < 2 and at < (1000 if FULL else 4):
        rc, out, err = ids("ember:", DEVICE[:1] + [DEVICE[1] + f",fail={kind}:{n}"] + DEVICE[2:] + ["--expert-cache", size], 10)
        said = warnings(err)
        opening = rc in (1, 5) and kind in ("alloc", "die") and re.search("decoding in mode hybrid", said[-1])
        check(opening or not rc and out == want and len(said) <= 1, f"fail={kind}:{n}", rc, out, err)
        clean, n, at = (0 if said else clean + 1), n + step, at + 1

# --- The plan reports what would be cached, and nothing where nothing would be
for more in (["--expert-cache", "off"], ["--expert-cache", "5"], ["--expert-cache", "pinned:5"]):
    rc, out, err = run("--gpus", "emu:1", "--inspect", *more)
    check(not rc and ("routed experts:" in out) == ("off" not in more), "--inspect", *more, out, err)

# --- What it says by default is what runs, without a record of earlier runs and with one
with tempfile.TemporaryDirectory() as tmp:
    os.environ["XDG_CACHE_HOME"] = tmp
    small = ["--gpus", "emu:1,cpu=scalar,mem=12M", "-c", "512"]
    for n in (150, 5):
        rows = [r for r in json.loads(run(*SCALAR, *small, "--inspect", "--json")[1])["runs"]["where"] if "class" in r]
        rc, out, err = ids("ember:", small + ["--prefill", "cpu", "--decode", "hybrid", "--draft", "none"], n)
        check(not rc and len(rows) == 1 and rows[0]["why"] in err, "--inspect and a run", n, rows, err)
        check(n == 150 and rows[0]["class"] == "resident" or rows[0]["class"] == "pinned", "by a record", n, rows)
    del os.environ["XDG_CACHE_HOME"]

# --- Invalid sizes are refused
for bad in ("x", "-1", "1.5", "4Q", "4GB", "", "pinned:", "pinned:x", "pinned:auto", "pinned:1.5", "pinnedx", "sent:", "sentx", "moving:x", "layers:3", "auto:3"):
    rc, out, err = run("--expert-cache", bad, "-p", "x")
    check(rc == 2 and "--expert-cache" in err, "--expert-cache", repr(bad), rc, err)
sys.exit(end())
