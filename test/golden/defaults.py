#!/usr/bin/env python3
"""Whether a key that config.json lacks has the value of transformers' configuration class: for each scalar key of each checkpoint's class, hearth's logits
with that value written out equal those with the key left out.

    defaults.py HEARTH SHARED [FIXTURE...]

Prints the keys that differ or are refused when they are absent; a refusal can be right, where no published config.json lacks the key. Keys whose value
does not fit the checkpoint are passed over. The exit status is 1 if any answer differs. Needs transformers; takes six minutes."""
import copy
import json
import os
import subprocess
import sys
import tempfile
import warnings

TOKENS = ",".join(map(str, [5, 9, 17, 33, 65, 100, 7, 8, 9, 21, 22, 40, 41, 50, 60, 70, 80, 90, 91, 92]))
NOT_READ = {"vocab_size", "model_type", "dtype", "bos_token_id", "eos_token_id", "pad_token_id"}
OTHER_NAMES = {"kimi_k2": "deepseek_v3", "minimax_text_01": "minimax"}  # of model types whose class comes with the checkpoint


def logits(hearth, fixture, config):
    """The logits' bytes, or what hearth says."""
    with tempfile.TemporaryDirectory() as d:
        for name in os.listdir(fixture):
            if name != "config.json":
                os.symlink(os.path.join(fixture, name), os.path.join(d, name))
        with open(os.path.join(d, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        out = os.path.join(d, "out")
        p = subprocess.run([hearth, "-m", d, "--tokens", TOKENS, "--logits-out", out, "--cpu", "scalar", "--kv", "f32"], capture_output=True, text=True, timeout=300)
        if p.returncode:
            return p.stderr.replace(d, "").strip()
        with open(out, "rb") as f:
            return f.read()


def scalars(default, own):
    for key in sorted((set(own) | set(vars(default))) - NOT_READ):
        value = getattr(default, key, ...)
        if not key.startswith("_") and (value is None or isinstance(value, (bool, int, float, str))):
            yield key, value


def check(hearth, fixture, classes):
    with open(os.path.join(fixture, "config.json"), encoding="utf-8") as f:
        config = json.load(f)

    def text(c):
        return c.get("text_config", c)

    kind = text(config).get("model_type", config["model_type"])
    try:
        default = classes[OTHER_NAMES.get(kind, kind)]()
    except KeyError:
        print(f"SKIPPED: {os.path.basename(fixture)}: transformers has no class of {kind}")
        return 0
    differs = 0
    for key, value in scalars(default, text(config)):
        given, absent = copy.deepcopy(config), copy.deepcopy(config)
        text(given)[key] = value
        text(absent).pop(key, None)
        want = logits(hearth, fixture, given)
        if isinstance(want, str) or want == (got := logits(hearth, fixture, absent)):
            continue
        differs += not isinstance(got, str)
        print(f"{'REFUSED' if isinstance(got, str) else 'DIFFERS'} {os.path.basename(fixture)}: no {key}, {value!r} in transformers" +
              (f" | {got[:200]}" if isinstance(got, str) else ""), flush=True)
    return differs


def main():
    warnings.filterwarnings("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    try:
        from transformers import CONFIG_MAPPING
    except ImportError as e:
        print(f"SKIPPED: defaults of config.json: {e}")
        return 77
    hearth, fixtures = os.path.abspath(sys.argv[1]), os.path.join(sys.argv[2], "fixtures")
    names = sys.argv[3:] or sorted(d for d in os.listdir(fixtures) if os.path.exists(os.path.join(fixtures, d, "config.json")))
    return sum(check(hearth, os.path.join(fixtures, name), CONFIG_MAPPING) for name in names) > 0


if __name__ == "__main__":
    sys.exit(main())
