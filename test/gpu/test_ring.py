#!/usr/bin/env python3
"""The exchange of keys and values overlaps attention. From the trace of a prompt on three slowed emulated devices: while a
block of KV is in flight to a rank, that rank computes on the blocks that it has.

usage: test_ring.py HEARTH FIXTURES_DIR    exit 77 without fixtures"""
import json, os, subprocess, sys, tempfile

hearth, fixtures = sys.argv[1:3]
model = os.path.join(fixtures, "deepseek_v3")
if not os.path.isdir(model):
    print("SKIPPED: no fixtures in", fixtures)
    sys.exit(77)


def shared(spans, others):
    return sum(max(0, min(b, d) - max(a, c)) for a, b in spans for c, d in others)


def run(gpus):
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "trace")
        subprocess.run([hearth, "-m", model, "--tokens", ",".join(str(i * 37 % 200) for i in range(60)), "--ids", "-n", "1", "--threads", "1", "--kv", "f32",
                        "--gpus", gpus, "--prefill", "dslp", "--trace", out], check=True, stdout=subprocess.DEVNULL, timeout=120)
        events = [e for e in json.load(open(out))["traceEvents"] if e["ph"] == "X"]
    kv = beside = steps = 0
    for rank in range(3):
        mine = [e for e in events if e["pid"] == rank]
        for layer in range(max(e["args"]["layer"] for e in mine) + 1):
            pick = lambda name: [(e["ts"], e["ts"] + e["dur"]) for e in mine if e["name"] == name and e["args"]["layer"] == layer]
            blocks = [e for e in mine if e["name"] == "kv" and e["tid"] == 3 and e["args"]["layer"] == layer]
            assert [e["args"]["item"] for e in blocks] == [1, 2], blocks
            coming = [(e["ts"], e["ts"] + e["dur"]) for e in blocks]
            kv += sum(b - a for a, b in coming)
            beside += shared(coming, pick("attention"))
            steps += len({e["args"]["item"] for e in mine if e["name"] == "attention" and e["args"]["layer"] == layer})
    return kv, beside, steps


failed = 0
for gpus in ("emu:3,cpu=scalar,launch=1000,peer=0.002", "emu:3,cpu=scalar,launch=1000,nopeer,h2d=0.01,d2h=0.01"):
    best = 0
    for attempt in range(12):  # other processes may delay a thread: the best try counts
        kv, beside, steps = run(gpus)
        best = max(best, beside / kv)
        if best >= 0.5:
            break
    print(f"{gpus}: {kv / 1e3:.0f} ms of keys and values on their way, {best:.2f} of it beside attention, {steps} steps waited for in attention")
    failed += best < 0.5 or steps < 12
sys.exit(failed != 0)
