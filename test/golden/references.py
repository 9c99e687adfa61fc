#!/usr/bin/env python3
"""Writes the references that the tests compare with into this folder: NAME.json (tokens, and the hash of the checkpoint that
they belong to) and NAME.f32 (float32 [tokens, columns], columns spread evenly over the vocabulary).

  references.py tiny [NAME...]   of the checkpoints of models.py, from oracle.py (needs NumPy)
  references.py ember            of the built-in model, from its own network in training/ember (needs torch, safetensors, tokenizers)
  references.py check DIR...     checks oracle.py against golden.json of independent references, as in ../shared/fixtures

Run it again when models.py changes or ember is retrained; the engine's output is not used."""
import array
import hashlib
import json
import math
import os
import sys
import tempfile

import models

HERE = os.path.dirname(os.path.abspath(__file__))
EMBER = os.path.join(HERE, "..", "..", "training", "ember")
COLUMNS = 96  # of ember's vocabulary
# Also with BF16 caches, as NAME_bf16. Rounded keys and latents change which keys and experts some rows choose: 8 of the 48 rows are more than 2 % off the float64
# reference, one by 99 %; with that reference's choices all are within 1.2 %. So an answer with such caches is compared with a reference that rounds them too.
BF16_CACHES = ("dsa_sources",)
ENDS = (1, 6, 7, 9, 22, 36)  # positions of end tokens, for models whose n-grams they end
PROMPTS = [
    "How do I stop an answer?",
    "What is the difference between prefill and decode?",
    "I have a machine with 512 GB of memory and two graphics cards. Which of the large models can I run with hearth, how long will I wait for the first word "
    "of an answer to a document of 30 pages, and what can I do to make it faster? Please explain step by step, and say which options I need.",
]


def write(name, tokens, rows, digest):
    with open(os.path.join(HERE, name + ".f32"), "wb") as f:
        f.write(array.array("f", [float(x) for row in rows for x in row]).tobytes())
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as f:
        f.write(json.dumps({"checkpoint": digest, "tokens": tokens, "columns": len(rows[0])}) + "\n")
    print(f"{name}: {len(rows)} positions, {len(rows[0])} columns, largest {max(abs(x) for row in rows for x in row):.3g}")


def tiny(*names):
    import oracle

    for name, config in models.MODELS.items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as tmp:
            digest = models.make(tmp, name)
            m = oracle.Checkpoint(tmp)
        best = (0, None, None)
        if config.get("num_nextn_predict_layers"):
            guess(name, config, m, digest)
        for seed in range(40):  # the sequence whose routers are furthest from a tie, so that rounding flips no choice
            draw = models.stream(name, "tokens", seed).digest(models.N_TOKENS)
            text = {**config, **config.get("text_config", {})}
            tokens = [b % text.get("unpadded_vocab_size", text["vocab_size"]) for b in draw]
            for at in ENDS if "emb_neighbor_num" in text else ():  # inside, first and last of n-grams
                tokens[at] = text["eos_token_id"]
            logits, gap = oracle.forward(m, tokens)
            best = max(best, (gap, tokens, logits), key=lambda x: x[0])
        print(f"nearest choice of an expert: {best[0]:.1e}")
        write(name, best[1], best[2], digest)
        if name in BF16_CACHES:
            m.bf16_caches = True
            write(name + "_bf16", best[1], oracle.forward(m, best[1])[0], digest)


def guess(name, config, m, digest):
    """For the prediction layer: two rows for each position except the last."""
    import numpy
    import oracle

    best = (0, None, None)
    for seed in range(20):
        tokens = [b % config["vocab_size"] for b in models.stream(name, "guess", seed).digest(models.N_TOKENS // 2)]
        logits, gap = oracle.guesses(m, tokens)
        order = numpy.sort(logits[:, 0], -1)  # the second row's token is the likeliest of the first
        best = max(best, (min(gap, (order[:, -1] - order[:, -2]).min()), tokens, logits), key=lambda x: x[0])
    print(f"nearest choice of an expert or a token: {best[0]:.1e}")
    write(name + "_ahead", best[1], best[2].reshape(-1, best[2].shape[-1]), digest)


def ember():
    sys.path.insert(0, EMBER)
    import export
    import torch
    import vocabulary

    directory = os.path.join(HERE, "..", "..", "engine", "ember", "model")
    model, tokenizer = export.read(directory)
    with open(os.path.join(directory, export.WEIGHTS), "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    for i, prompt in enumerate(PROMPTS):
        tokens = vocabulary.render([("user", prompt)], lambda t: vocabulary.text_ids(tokenizer, t), answer=True)[0]
        with torch.no_grad():
            logits = model(torch.tensor([tokens]))[0]
        write(f"ember_{i}", tokens, logits[:, :: logits.shape[1] // COLUMNS].tolist(), digest)


def check(directories):
    import oracle
    import numpy

    for d in directories:
        with open(os.path.join(d, "golden.json"), encoding="utf-8") as f:
            sequences = json.load(f)["sequences"]
        m = oracle.Checkpoint(d)
        for s in sequences:
            want = numpy.fromfile(os.path.join(d, s["logits"]), "<f4").reshape(s["shape"])
            got, gap = oracle.forward(m, s["tokens"])
            off = abs(got - want).max() / abs(want).max()
            print(f"{os.path.basename(d)}, {len(s['tokens'])} tokens: {off:.1e} of the largest logit, nearest choice {gap:.1e}")
            assert off < 1e-5 and math.isfinite(gap), d


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["", ""]
    if what == "check":
        check(rest)
    elif what == "tiny" or (what == "ember" and not rest):
        globals()[what](*rest)
    else:
        sys.exit(__doc__)
