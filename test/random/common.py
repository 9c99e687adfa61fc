"""What the random drivers share: seeds, home directories, models, runs of the binary, and a resident engine whose answers are the reference.
Every driver takes the binary, prints one line for each seed, and for each that differs a command that repeats it."""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback

here = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(here, "..", "e2e"), os.path.join(here, "..", "golden")]
WORDS = "how do i save a chat open file stop answer model context tokens é 漢字 ß €".split()
EXACT = ["--cpu", "scalar", "--kv", "f32", "-t", "1", "--no-attach"]  # the reference path of every mode


class Difference(Exception):
    """What a run printed and what it should have printed."""


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--seeds", default="1", help="one seed, or a range such as 1-5")
    parser.add_argument("--few", action="store_true", help="fewer operations for each seed, and no drafts in four bits")
    parser.add_argument("--models", nargs="*", default=[], help="checkpoint directories; without it the built-in model's and generated ones")
    return parser.parse_args()


args = arguments()
BIN = os.environ["HEARTH_BIN"] = os.path.abspath(args.binary)  # for driver.py and server.py
import models  # noqa: E402
import server  # noqa: E402
import tiny  # noqa: E402


def text(r, most=20):
    return " ".join(r.choice(WORDS) for _ in range(r.randrange(1, most)))


def together(client, r, n, problems):
    """Runs n clients at once, each with a seed, and raises the first of the problems that they noted."""
    clients = [threading.Thread(target=client, args=(r.random(),)) for _ in range(n)]
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    if problems:
        raise Difference(problems[0])


class Run:
    """One seed: a random generator, a home directory, a model, and engines, which end with it."""

    def __init__(self, seed, kinds):
        self.r, self.home, self.servers, self.few = random.Random(seed), tempfile.mkdtemp(prefix="hearth-random-"), [], args.few
        os.mkdir(os.path.join(self.home, "run"), 0o700)
        self.env = {"HOME": self.home, "PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8", "XDG_RUNTIME_DIR": os.path.join(self.home, "run"),
                    "CUDA_VISIBLE_DEVICES": ""}  # no card, which would be used by default
        self.env |= {name: os.environ[name] for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS") if name in os.environ}
        self.env["HEARTH_LIMITS"] = "spin=100" + self.r.choice(["", ",keep=1", ",keep=1,rows=32"])
        self.model = self.make_model(self.r.choice(args.models or kinds))

    def make_model(self, kind):
        path = os.path.join(self.home, os.path.basename(kind))
        if os.path.isdir(kind):
            return kind
        if kind == "ember":  # opened from a directory it gives no canned answers
            os.symlink(os.path.join(here, "../../engine/ember/model"), path)
        elif kind == "fake":  # for hearth_fake
            os.mkdir(path)
            with open(os.path.join(path, "config.json"), "w") as f:
                f.write("{}")
        elif kind in ("tiny", "tiny-long"):  # random weights, whose answers are random bytes
            tiny.make(path, {"vocab_size": 258, "max_position_embeddings": 4096 if kind == "tiny-long" else 512})
        else:
            models.make(path, kind)
        return path

    def other_name(self):
        """Returns another path of the model."""
        path = os.path.join(self.home, "same")
        if not os.path.lexists(path):
            os.symlink(self.model, path)
        return path

    def hearth(self, *options, data=b"", stdout=subprocess.PIPE, **env):
        return self.command([BIN, "-m", self.model, *options], data, stdout, **env)

    def command(self, argv, data=b"", stdout=subprocess.PIPE, **env):
        """Returns (exit status, stdout, stderr)."""
        p = subprocess.run(argv, input=data, stdout=stdout, stderr=subprocess.PIPE, env={**self.env, **env}, timeout=300)
        return p.returncode, p.stdout, p.stderr.decode("utf-8", "replace")

    def usual_options(self, parallel, on_devices):
        """Returns options of --batch and --serve that change no text."""
        r = self.r
        options = ["--parallel", str(r.choice(parallel))] + r.choice(([], ["--kv-cache", "off"]))
        options += r.choice(([], ["--draft", "lookup"], ["--draft", "none"], ["--draft", "lookup" if self.few else "int4"]))
        if r.random() < on_devices:
            options += ["--gpus", f"emu:{r.choice((1, 2))},cpu=scalar", "--decode", r.choice(("cpu", "hybrid", "dual")), "--prefill", r.choice(("cpu", "slp", "auto"))]
        return options

    def serve(self, *options, attach=False):
        """Starts a resident engine with a runtime directory of its own, or with that of the other runs, which then attach to it."""
        runtime = self.env["XDG_RUNTIME_DIR"] if attach else os.path.join(self.home, f"run{len(self.servers)}")
        os.makedirs(runtime, 0o700, exist_ok=True)
        self.servers.append(server.Server({**self.env, "XDG_RUNTIME_DIR": runtime}, "-m", self.model, *[o for o in EXACT if o != "--no-attach"], *options))
        return self.servers[-1]

    def reference(self, *options):
        return self.serve("--parallel", "1", "--kv-cache", "off", "--draft", "none", *options)

    def end(self):
        for s in self.servers:
            s.p.kill()
            s.p.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def check(what, got, want, most=3000):
    if got == want:
        return
    shown = [json.dumps(v, ensure_ascii=False) for v in (got, want)]
    same = next((i for i, (a, b) in enumerate(zip(*shown)) if a != b), 0)
    if max(map(len, shown)) > most:
        shown = [("..." if same > most // 4 else "") + s[max(0, same - most // 4):same + most] for s in shown]
    raise Difference(f"{what}\n    got  {shown[0]}\n    want {shown[1]}")


def main(kinds, one):
    """Runs one(run), which returns a summary, for each seed; exits with 1 if one of them failed."""
    first, _, last = args.seeds.partition("-")
    failed = False
    for seed in range(int(first), int(last or first) + 1):
        run = Run(seed, kinds)
        model = os.path.basename(run.model)
        try:
            print(f"seed {seed}, {model}: {one(run)}", flush=True)
        except Exception as e:
            failed = True
            print(f"seed {seed}, {model}: {e if isinstance(e, Difference) else traceback.format_exc()}", flush=True)
            given = " --few" * args.few + (" --models " + " ".join(args.models) if args.models else "")
            print(f"    again: python3 {os.path.relpath(sys.argv[0])} {args.binary} --seeds {seed}{given}", flush=True)
        finally:
            run.end()
    sys.exit(failed)
