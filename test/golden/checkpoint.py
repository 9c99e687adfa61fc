"""What tests with small checkpoints of their own share."""
import array
import glob
import json
import os
import struct
import subprocess
import sys
import tempfile

import models  # noqa: F401  adds the directory of tiny.py
import tiny


def read(directory):
    """{name: (dtype, shape, bytes)} of all files"""
    tensors = {}
    for path in glob.glob(os.path.join(directory, "*.safetensors")):
        with open(path, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        header.pop("__metadata__", None)
        tensors.update({k: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for k, t in header.items()})
    return tensors


def logits(hearth, config, tensors, tokens, *args, metadata=None):
    """The bytes of the logits of a checkpoint with this config.json and {name: (dtype, shape, bytes)}, or what hearth says of it."""
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "model.safetensors"), "wb") as f:
            f.write(tiny.shard_bytes(list(tensors.items()), metadata=metadata))
        with open(os.path.join(d, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        out = os.path.join(d, "logits")
        p = subprocess.run([hearth, "-m", d, "--tokens", tokens, "--logits-out", out, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if p.returncode:
            return p.stderr
        with open(out, "rb") as f:
            return f.read()


def fixtures(shared):
    """The directory of fixtures, without which the test is skipped."""
    directory = os.path.join(shared, "fixtures")
    if not os.path.isdir(directory):
        print("SKIPPED: no", directory)
        sys.exit(77)
    return directory


def fixture(directory, family):
    """config, tensors"""
    with open(os.path.join(directory, family, "config.json"), encoding="utf-8") as f:
        return json.load(f), read(os.path.join(directory, family))


def fixture_logits(hearth, config, tensors, metadata=None):
    return logits(hearth, config, tensors, ",".join(map(str, range(3, 27))), "--cpu", "scalar", "--kv", "f32", metadata=metadata)


def are_close(title, want, got):
    """Whether two results of fixture_logits are the same but for the order of sums; says so."""
    texts = [x for x in (want, got) if isinstance(x, str)]
    if texts or len(want) != len(got):
        print(f"FAIL {title}: {texts or 'another length'}")
        return False
    a, b = array.array("f", want), array.array("f", got)
    off = max(abs(x - y) for x, y in zip(a, b)) / max(map(abs, a))
    print(f"{'ok' if off < 2e-6 else 'FAIL'} {title}: {off:.1e}")
    return off < 2e-6
