#!/usr/bin/env python3
"""Weights by memory node, with the real binary on topologies from a file: the same bytes as with one node, for any number of
threads and at any stage of copying; damage is still found and named; and 2 MB pages.
test_place.py HEARTH"""
import array
import json
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import models
import tiny
from checks import check, end, run

TOPOLOGIES = {
    "one": "node 4096 0-3\n",
    "two": "node 4096 0-1\nnode 4096 2-3\n",
    "eight": "".join(f"node 1024 {i}\n" for i in range(8)),
    "uneven": "node 4096 0-2\nnode 4096 -\nnode 4096 3\n",
    "small": "node 1 0-1\nnode 1 2-3\n",  # a copy does not fit
}
PROMPT = "5,6,7,200,31,9,44,45,101,3,77,12"


def other_experts(tmp, files):
    """Experts that are views into tensors of all experts, with biases, or transposed, are split like the others."""
    out = os.path.join(tmp, "logits")
    for model in ("gqa_sinks", "gqa_fused"):
        d = os.path.join(tmp, model)
        models.make(d, model)
        seen = {}
        for name in ("one", "two", "uneven"):
            args = ("-m", d, "--tokens", "5,6,7,20,31,9,44", "--cpu", "scalar", "--kv", "f32", "--topology", files[name])
            rc, _, err = run(*args, "--logits-out", out)
            check(rc == 0, f"{model}, {name}", err)
            with open(out, "rb") as f:
                logits = array.array("f", f.read())
            rc, text, err = run(*args, "-n", "200", "--temp", "0", "--ids", "-v")
            check(rc == 0 and (name == "one" or "weights copied for" in err), f"{model}, {name}: the copies were made", err)
            seen[name] = logits, text
        for name in ("two", "uneven"):
            check(seen[name][0] == seen["one"][0], f"{model}, {name}: the logits of one node")
            check(seen[name][1] == seen["one"][1], f"{model}, {name}: answers as one", seen[name][1])


def beside_devices(d, files, out):
    """With devices, each node's rows of the mapped files are placed where they are mapped, and pinned there: once in memory, for CPU and uploads.
    Every mode gives the bits of one node."""
    modes = (("cpu", "hybrid", 1, "none"), ("slp", "dual", 1, "lookup"), ("blend", "hybrid", 2, "none"), ("dslp", "dual", 2, "lookup"), ("blend", "cpu", 1, "none"))
    for i, (prefill, decode, n, draft) in enumerate(modes):
        for more in ("", ",nomap" if i % 2 else ",nopin"):
            gpus = ("--gpus", f"emu:{n},cpu=scalar{more}", "--prefill", prefill, "--decode", decode, "--draft", draft, "--expert-cache", "off")
            args = ("-m", d, "--tokens", PROMPT + "," + PROMPT, "--cpu", "scalar", "--kv", "f32", "-t", "3", *gpus)
            seen = {}
            for name in ("one", "two", "uneven", "small") if not more else ("one", "two"):
                rc, _, err = run(*args, "--topology", files[name], "--logits-out", out)
                check(rc == 0, f"{gpus}, {name}", err)
                with open(out, "rb") as f:
                    logits = f.read()
                rc, text, err = run(*args, "--topology", files[name], "-n", "60", "--temp", "0", "--ids", "-v", "--explain")
                seen[name] = logits, text
                check(rc == 0 and text.count(b",") > 50, f"{gpus}, {name}: an answer", err)
                check(seen[name] == seen["one"], f"{gpus}, {name}: bits and answer of one node", err)
                nodes = 3 if name == "uneven" else 2
                placed = name in ("two", "uneven")
                check((f"weights for devices: {'staged' if more == ',nopin' else 'copied'}; each of {nodes} NUMA nodes gets the rows that its CPUs compute" in err) == placed, f"{gpus}, {name}: placed", err)
                check((f"{nodes} NUMA nodes, each with rows of every expert" in err) == placed, f"{gpus}, {name}: explained", err)
                check(("NUMA nodes' bandwidth: weights are not placed by node" in err) == (name != "one" and not placed), f"{gpus}, {name}: what is expected", err)
                check("weights copied for" not in err, f"{gpus}, {name}: no second copy", err)
    for name, way, why in (("two", "copied", "each of 2 NUMA nodes gets the rows that its CPUs compute"), ("small", "mapped", "too little memory"), ("one", "mapped", "can pin")):
        rc, text, err = run("-m", d, "--gpus", "emu:1", "--topology", files[name], "--inspect", "--json")
        weights = json.loads(text)["runs"]["weights"] if rc == 0 else {}
        check(weights.get("way") == way and why in weights["why"], f"--inspect, {name}", f"{weights} {err}")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        d = os.path.join(tmp, "m")
        tiny.make(d, {"moe_intermediate_size": 512, "intermediate_size": 1152, "num_hidden_layers": 3, "first_k_dense_replace": 1})
        files = {}
        for name, text in TOPOLOGIES.items():
            files[name] = os.path.join(tmp, name)
            with open(files[name], "w", encoding="utf-8") as f:
                f.write(text)
        out = os.path.join(tmp, "logits")

        def logits(*args):
            rc, _, err = run("-m", d, "--tokens", PROMPT, "--logits-out", out, "--kv", "f32", *args)
            check(rc == 0, f"exit of {args}", err)
            with open(out, "rb") as f:
                return f.read()

        def numbers(raw):
            return array.array("f", raw)

        for cpu in ("scalar", "avx2", ""):
            level = ["--cpu", cpu] if cpu else []
            plain = logits(*level)
            largest = max(map(abs, numbers(plain)))
            check(largest > 0.1, "the model says something", str(largest))
            check(logits(*level, "--topology", files["one"]) == plain, "one node is no different", cpu)
            check(logits(*level, "--topology", files["small"]) == plain, "what does not fit stays mapped and whole", cpu)
            check(logits(*level, "--hugepages") == plain, "2 MB pages change nothing", cpu)
            for name in ("two", "eight", "uneven"):
                for more in (["-t", "1"], ["-t", "2"], ["-t", "3"], ["-t", "5"], ["-t", "2", "--hugepages"])[0 if cpu == "scalar" else 2 : 3 if cpu == "avx2" else 5]:
                    check(logits(*level, "--topology", files[name], *more) == plain, f"{name} {cpu} {more}: the bits of one node")

        # Long enough for all copies to be made and used.
        ids = {}
        for name in ("one", "two", "eight", "uneven"):
            rc, text, err = run("-m", d, "--tokens", PROMPT, "-n", "400", "--temp", "0", "--ids", "--cpu", "scalar", "--topology", files[name], "-v")
            ids[name] = text
            check(rc == 0 and text.count(b",") > 100, f"{name}: a long answer", err)
            check((name != "one") == ("weights copied for" in err), f"{name}: the copies were made", err)
            check(text == ids["one"], f"{name}: answers as one node", text)
        rc, text, err = run("-m", d, "--tokens", PROMPT, "-n", "400", "--temp", "0", "--ids", "--cpu", "scalar", "--hugepages", "-v")
        check(text == ids["one"] and "weights copied for 1 NUMA node " in err, "2 MB pages: copied, same answer", err)

        beside_devices(d, files, out)
        other_experts(tmp, files)
        rc, _, err = run("-m", d, "--tokens", "5", "-n", "1", "--ids", "--topology", os.path.join(tmp, "none"))
        check(rc == 1 and "none" in err, "a topology that is not there", f"{rc} {err}")
        with open(files["small"], "w", encoding="utf-8") as f:
            f.write("node four 0-1\n")
        rc, _, err = run("-m", d, "--tokens", "5", "-n", "1", "--ids", "--topology", files["small"])
        check(rc == 2 and "line 1" in err, "a topology that is none", f"{rc} {err}")

        # A NaN code in the last expert's down matrix: found whether it is copied first or used first.
        raw, name = None, "model.layers.2.mlp.experts."
        for file in sorted(os.listdir(d)):
            if file.endswith(".safetensors"):
                path = os.path.join(d, file)
                with open(path, "rb") as f:
                    raw = bytearray(f.read())
                n = struct.unpack("<Q", raw[:8])[0]
                header = json.loads(raw[8 : 8 + n])
                for key, t in header.items():
                    if key.startswith(name) and key.endswith("down_proj.weight"):
                        raw[8 + n + t["data_offsets"][1] - 1] = 0x7F
                with open(path, "wb") as f:
                    f.write(raw)
        for name in ("one", "two", "eight"):
            for _ in range(3):
                rc, _, err = run("-m", d, "--tokens", PROMPT, "-n", "20", "--ids", "--topology", files[name])
                check(rc == 3 and "down_proj.weight" in err and "column 511" in err, f"{name}: damage is named", f"{rc} {err}")
    return end()


sys.exit(main())
