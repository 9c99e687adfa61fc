"""What tests with small checkpoints of their own share."""
import json
import os
import subprocess
import tempfile

import models  # noqa: F401  adds the directory of tiny.py
import tiny


def logits(hearth, config, tensors, tokens, *args):
    """The bytes of the logits of a checkpoint with this config.json and {name: (dtype, shape, bytes)}, or what hearth says of it."""
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "model.safetensors"), "wb") as f:
            f.write(tiny.shard_bytes(list(tensors.items())))
        with open(os.path.join(d, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        out = os.path.join(d, "logits")
        p = subprocess.run([hearth, "-m", d, "--tokens", tokens, "--logits-out", out, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if p.returncode:
            return p.stderr
        with open(out, "rb") as f:
            return f.read()
