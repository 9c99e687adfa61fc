#!/usr/bin/env python3
"""Random variants of the checkpoints that ../shared/fixtures and recipes.py can make: up to three values of config.json are changed (sizes, heads,
experts, switches, factors) or left out, the weights are random, and hearth's logits are compared with those of transformers.

    vary.py HEARTH SHARED [RECIPE...] [--seeds 1-3,7] [--saved] [--dir DIR]       all recipes, if none is given; seed 0 changes nothing

With --saved hearth reads what save_pretrained() of transformers writes, as fine-tuned models are published, instead of the published layout.

Prints a line for each variant: ok, DIFFERS, REFUSED (hearth exits with an error), NOREF (transformers refuses it too, or the fixture generator cannot write it).
A refusal can be right: it has to name a key that this family lacks. DIFFERS can be right, too, where transformers ignores a key that the vendor's code
obeys. So the lines are for people to read; the exit status is 1 if any differs. Needs torch and transformers; takes 5 s a variant.

Rows from the first choice near a tie on are left out. Two keys that no head of an indexer sees (every ReLU is 0) have the same score, 0; torch.topk takes any of
them, hearth the earlier one. With the earlier one in transformers too, all 64 rows of such a variant are equal (mistral_large4, seed 7, 6 heads: 2.6e-6 of the
largest logit; 0.6 with its own choice, from the tie on)."""
import argparse
import array
import contextlib
import copy
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile

POSITIONS, TOLERANCE, SECONDS = 40, 2e-4, 150
# What cannot be changed alone, or does not change the computation.
FIXED = {"vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings", "model_type", "architectures", "torch_dtype", "dtype", "use_cache",
         "quantization_config", "initializer_range", "hidden_act", "hidden_activation", "attention_dropout", "output_router_logits", "router_aux_loss_coef",
         "vision_config", "audio_config", "image_token_id", "num_hidden_layers", "num_layers", "n_layers"}
ROPE = [{"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}]


def other_number(c, key, v, rng):
    if key in ("hidden_size", "d_model", "n_embd"):
        return v + rng.choice([64, 128] if v <= 64 else [64, 128, -64])
    if "head" in key and ("num" in key or "n_" in key or key.endswith("heads")):
        heads = c.get("num_attention_heads", v)
        if "key_value" in key or "kv" in key:
            return rng.choice([d for d in range(1, heads + 1) if heads % d == 0])
        return v * 2 if rng.random() < 0.5 or v < 4 else v // 2
    if "dim" in key or "rank" in key:
        return max(8, v + rng.choice([-16, 16, 32, v]))
    if "per_tok" in key or key in ("top_k", "moe_topk", "topk_group", "moe_top_k"):
        return max(1, v + rng.choice([-1, 1]))
    if "expert" in key and v >= 4:
        return v + rng.choice([v, 4, 8])
    if "size" in key and v >= 16:
        return v + rng.choice([16, 48, -16, 8, 64])
    return int(v * rng.choice([0.1, 3, 10])) if v > 1000 else max(0, v + rng.choice([-1, 1]))


def change(c, rng):
    """Changes a random value; returns what was done, or None."""
    key = rng.choice([k for k in c if k not in FIXED])
    old = c[key]
    if rng.random() < 0.3 and (not isinstance(old, (int, list, dict)) or isinstance(old, bool) or isinstance(old, int) and old <= 8 and "layer" not in key):
        del c[key]  # the family's default
        return f"no {key} (was {old!r})"
    if isinstance(old, bool):
        c[key] = not old
    elif isinstance(old, int):
        c[key] = other_number(c, key, old, rng)
        if key == "num_attention_heads" and c.get("num_key_value_heads") == old:
            c["num_key_value_heads"] = c[key]
        elif key == "num_attention_heads" and c[key] % (c.get("num_key_value_heads") or 1):
            c["num_key_value_heads"] = 1
    elif isinstance(old, float):
        c[key] = old * rng.choice([0.5, 1.3, 2.0])
    elif old is None and key == "rope_scaling":
        c[key] = rng.choice(ROPE)
    elif isinstance(old, list) and key in ("layer_types", "mlp_layer_types", "layers_block_type"):
        c[key] = rng.sample(old, len(old))
    return f"{key}: {old!r} -> {c[key]!r}" if c[key] != old else None


def write(mf, recipe, directory, seed, saved):
    """Writes the checkpoint and a prompt; returns the reference's logits up to the first choice of experts or keys that is near a tie."""
    import torch
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    vocab = mf.text_config(recipe.config)["vocab_size"]
    tokenizer, spec = mf.build_tokenizer(recipe.tokenizer, vocab), mf.TOKENIZERS[recipe.tokenizer]
    eos = [tokenizer.token_to_id(t) for t in spec["eos"]]
    mf.text_config(recipe.config).update({"bos_token_id": tokenizer.token_to_id(spec["bos"] or spec["pad"]), "eos_token_id": eos if spec["bos"] is None else eos[0]})
    mf.write_json(os.path.join(directory, "config.json"), dict(sorted(recipe.config.items())))
    mf.write_tokenizer(directory, tokenizer, recipe.tokenizer, recipe.config)
    weights = mf.make_weights(recipe, rng)
    embed, head = ([k for k in weights if k.endswith(name) and ".layers." not in k] for name in ("embed_tokens.weight", "lm_head.weight"))
    if mf.text_config(recipe.config).get("tie_word_embeddings") and len(embed) == len(head) == 1:
        weights[head[0]] = weights[embed[0]].clone()
    mf.write_shards(directory, weights, recipe)
    special = set(tokenizer.get_added_tokens_decoder())
    ids = mf.draw(rng, torch.tensor([i for i in range(vocab) if i not in special]), (12, POSITIONS))
    model = mf.load_reference(directory, recipe)
    run = mf.run(model, ids)
    clear = (torch.minimum(run.router_gap, run.index_gap) > 3e-5) & (torch.minimum(run.router_spread, run.index_spread) > 0.003)
    rows = clear.long().cumprod(1).sum(1)
    best = int(rows.argmax())
    want = run.logits[best, : int(rows[best])]
    if not len(want) or not torch.isfinite(want).all():
        raise ValueError("no usable positions")
    with open(os.path.join(directory, "ids"), "w") as f:
        f.write(",".join(map(str, ids[best].tolist())))
    if saved:
        model.save_pretrained(os.path.join(directory, "saved"))
    return want


def compare(hearth, directory, want, saved):
    import torch
    out = os.path.join(directory, "out")
    p = subprocess.run([hearth, "-m", os.path.join(directory, "saved") if saved else directory, "--tokens", "@" + os.path.join(directory, "ids"), "--logits-out", out, "--cpu", "scalar", "--kv", "f32"],
                       capture_output=True, text=True, timeout=300)
    if p.returncode:
        return "REFUSED", p.stderr.strip().replace("\n", " ")[:300]
    with open(out, "rb") as f:
        got = torch.tensor(array.array("f", f.read())).view(POSITIONS, -1)[: len(want)]
    error = float((got - want).abs().max() / want.abs().max())
    return "ok" if error < TOLERANCE else "DIFFERS", f"{error:.2g}, {len(want)} rows"


def vary(mf, hearth, name, seed, directory, saved):
    rng = random.Random(f"{name}{seed}")
    recipe = mf.RECIPES[name]()
    recipe.config = copy.deepcopy(recipe.config)
    done, wanted = [], rng.choice([1, 1, 2, 3]) if seed else 0
    for _ in range(60):
        if len(done) < wanted and (text := change(mf.text_config(recipe.config), rng)):
            done.append(text)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            want = write(mf, recipe, directory, seed, saved)
    except BaseException as e:  # whatever transformers says of such a model, and the alarm
        if isinstance(e, KeyboardInterrupt):
            raise
        verdict, why = "NOREF", f"{type(e).__name__}: {e}".replace("\n", " ")[:150]
    else:
        verdict, why = compare(hearth, directory, want, saved)
    finally:
        signal.alarm(0)
    print(f"{verdict:7} {name}, seed {seed}: {'; '.join(done)} | {why}", flush=True)
    return verdict


def numbers(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def late(*_):
    raise TimeoutError(f"the reference takes more than {SECONDS} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hearth")
    parser.add_argument("shared")
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--seeds", default="1-3")
    parser.add_argument("--saved", action="store_true", help="the checkpoint as transformers saves it")
    parser.add_argument("--dir", help="keep the checkpoints that differ here")
    args = parser.parse_args()
    sys.path.insert(0, os.path.join(args.shared, "fixtures"))
    try:
        import make_fixture as mf
        import torch
        import recipes  # noqa: F401, adds to mf.RECIPES
    except ImportError as e:
        print(f"SKIPPED: variants of the fixtures: {e}")
        return 77
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, late)
    counts = {}
    for name in args.recipes or mf.RECIPES:
        for seed in numbers(args.seeds):
            with tempfile.TemporaryDirectory() as tmp:
                verdict = vary(mf, os.path.abspath(args.hearth), name, seed, tmp, args.saved)
                if verdict == "DIFFERS" and args.dir:
                    shutil.copytree(tmp, os.path.join(args.dir, f"{name}-{seed}"), dirs_exist_ok=True)
            counts[verdict] = counts.get(verdict, 0) + 1
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    return "DIFFERS" in counts


if __name__ == "__main__":
    sys.exit(main())
