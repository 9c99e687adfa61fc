"""Bytes of small GGUF models, each made once per process."""
import os
import tempfile

import gguf_file

made = {}


def read(path):
    with open(path, "rb") as f:
        return f.read()


def gguf(quant, splits=1):
    """The files of a small model by name: one, or its parts."""
    if (quant, splits) not in made:
        with tempfile.TemporaryDirectory() as d:
            gguf_file.qwen3moe(quant).save(d, splits)
            made[quant, splits] = {n: read(os.path.join(d, n)) for n in sorted(os.listdir(d)) if n.endswith(".gguf")}
    return made[quant, splits]


def one(quant):
    return next(iter(gguf(quant).values()))
