#!/usr/bin/env python3
"""Random options that must not change the text: modes, emulated devices, also failing ones, expert caches, splits, drafts, threads, NUMA topologies, limits:
options.py BINARY [--seeds 1-5] [--models DIR...]
Each set of options gives the ids of the reference path, or an error that names an option."""
import array
import json
import os

from common import check, main

NODES = ("node 4096 0-3\n", "node 4096 0-1\nnode 4096 2-3\n", "node 4096 0-2\nnode 4096 -\nnode 4096 3\n", "node 1 0-1\nnode 1 2-3\n")


def some(r, *pairs):
    """Returns the values of the pairs (probability, values), each with its probability."""
    return [r.choice(values) for share, values in pairs if r.random() < share]


def devices(r):
    gpus = ["emu:" + r.choice("112234"), "cpu=scalar"]
    gpus += some(r, (0.35, [f"mem={n}K" for n in (600, 1000, 1600, 2500, 4000, 8000)]), (0.2, ("ring=2", "ring=3", "ring=5")), (0.25, ("chunk=1", "chunk=7", "chunk=33")))
    gpus += some(r, (0.15, ("nopeer",)), (0.15, ("nograph",)), (0.15, ("nojoin",)), (0.1, ("nopin",)), (0.1, ("nomap",)))
    gpus += some(r, (0.2, ("parallel=tensor", "parallel=layers")), (0.1, ("piece=64K",)),
                 (0.2, [f"fail={kind}:{n}{rank}" for kind in ("copy", "launch", "die", "alloc") for n in (3, 20, 100, 500, 2000, 5000) for rank in ("", "@0")]))
    options = ["--gpus", ",".join(gpus), "--prefill", r.choice(("auto", "cpu", "blend", "slp", "dslp")), "--decode", r.choice(("auto", "cpu", "hybrid", "dual", "paged"))]
    for share, option, values in ((0.6, "--expert-cache", ("1", "2", "3", "layers", "auto", "off", "300K", "1M")), (0.3, "--evict", ("lru", "lfu", "mrs", "ema", "lookahead")),
                                  (0.4, "--split", ("hybrimoe", "trimoe", "cut"))):
        options += [x for value in some(r, (share, values)) for x in (option, value)]
    return options


def mode(run):
    r = run.r
    options = devices(r) if r.random() < 0.85 else []
    draft = r.choice(("", "none", "lookup", "mtp", "int4", "auto"))
    options += ["--draft", draft] if draft else []
    options += ["--draft-len", r.choice(("1", "2", "5", "16"))] if draft not in ("", "none") and r.random() < 0.5 else []
    options += some(r, (0.3, ("--deterministic",)), (0.15, ("--hugepages",)), (0.1, ("--max-tpot=0.5", "--max-tpot=100")), (0.15, ("--trace=" + os.path.join(run.home, "trace"),)),
                    (0.15, ("--trace-routing=" + os.path.join(run.home, "routing"),)), (0.5, ("--kv-cache=off",)), (0.3, ("-t1", "-t2", "-t8")))
    if r.random() < 0.4:
        with open(os.path.join(run.home, "nodes"), "w") as f:
            f.write(r.choice(NODES))
        options += ["--topology", f.name]
    limits = some(r, (0.5, ("rows=16", "rows=32", "rows=48")), (0.1, ("lag=100",)), (0.3, ("expand=100", "expand=10000")), (0.2, ("stage=100", "stage=5000")),
                  (0.1, ("ahead=2",)), (0.2, ("copy=1000", "copy=50000")), (0.2, ("pin=1000", "pin=500000")), (0.2, ("layers=1", "layers=2")))
    return options, ",".join(["spin=100", "keep=1", *limits])


def margin(run, common, ids, want, got):
    """Returns how much likelier the reference's first other token is than the one that came, as a share of the largest logit."""
    i = next((i for i, (x, y) in enumerate(zip(want, got)) if x != y), None)
    if i is None:
        return "one is a beginning of the other"
    path, logits = os.path.join(run.home, "logits"), array.array("f")
    run.hearth("--tokens", ",".join(map(str, ids + want[:i])), "--logits-out", path, *common)
    with open(path, "rb") as f:
        logits.frombytes(f.read())
    last = logits[-(len(logits) // (len(ids) + i)):]
    return f"token {i} is {got[i]}, not {want[i]}: {(last[want[i]] - last[got[i]]) / max(map(abs, last)):.2e} of the largest logit less likely"


def one(run):
    r, refused = run.r, 0
    with open(os.path.join(run.model, "config.json")) as f:
        config = json.load(f)
    vocabulary = config.get("vocab_size") or config["text_config"]["vocab_size"]
    n = r.choice((1, 2, 3, r.randrange(4, 40), r.randrange(40, 120), r.randrange(100, 260)))
    ids = [r.randrange(vocabulary) for _ in range(n)]
    if r.random() < 0.3:  # repeats itself: lookup drafts
        ids = (ids[:r.randrange(2, 9)] * n)[:n]
    exact = ["--cpu", "scalar", "--kv", "f32"]
    common = ["--tokens", ",".join(map(str, ids)), "-n", r.choice(("1", "5", "12", "30")), "--ids", *exact]
    common += ["--seed", "7", *r.choice((["--temp=0"], ["--temp=0"], ["--temp=1"], ["--temp=0", "--repeat-penalty=1.3"], ["--temp=0", "--frequency-penalty=0.7"]))]
    status, want, err = run.hearth(*common, "--draft", "none", "-t", "1", "--kv-cache", "off")
    check(err, status, 0)
    for _ in range(2 if run.few else 6):
        options, limits = mode(run)
        status, got, err = run.hearth(*common, *options, HEARTH_LIMITS=limits)
        if status and any(line.startswith("hearth: ") and "--" in line for line in err.splitlines()):
            refused += 1
        elif got != want or status:
            why = margin(run, exact, ids, json.loads(want), json.loads(got)) if got else ""
            check(f"HEARTH_LIMITS={limits} {len(ids)} ids {' '.join(common[2:] + options)}: {err}{why}", [status, got.decode()], [0, want.decode()])
    return f"{len(ids)} ids, {refused} refused"


main(["ember", "tiny", "gqa_shared", "delta_fused", "mla_yarn", "guess_mla", "streams"], one)
