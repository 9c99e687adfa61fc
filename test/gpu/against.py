"""Helpers for tests that compare answers of devices with the CPU's: checks are counted, and one failure does not hide
the next. The script's arguments: HEARTH FIXTURES_DIR [full]."""
import json, os, subprocess, sys, tempfile

HEARTH, FIXTURES = sys.argv[1:3]
FULL = sys.argv[3:] == ["full"]
SCALAR = ["--cpu", "scalar", "--kv", "f32"]
ran = failed = 0


def known(*names):
    """Returns the built-in model and those of the fixtures that exist."""
    return ["ember:"] + [os.path.join(FIXTURES, m) for m in names if os.path.isdir(os.path.join(FIXTURES, m))]


def run(*args):
    p = subprocess.run([HEARTH, "--threads", "2", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    return p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")


def check(ok, what, *why):
    global failed, ran
    ran += 1
    if not ok:
        failed += 1
        print("FAIL", what, *why)


def greedy(model, n_prompt, args, n):
    """Generates greedily after a prompt of n_prompt tokens; prints ids."""
    prompt = ",".join(str((i * 37 + 11) % 250) for i in range(n_prompt))
    return run("-m", model, "--tokens", prompt, "-n", str(n), "--temp", "0", "--ids", "--stats", "--explain", *args)


def batch(model, n, args):
    """Answers n prompts of different lengths in one batch; returns the exit code and the texts, and stderr."""
    with tempfile.TemporaryDirectory() as tmp:
        name = os.path.join(tmp, "batch")
        with open(name, "w") as f:
            for i in range(n):
                f.write(json.dumps({"prompt": "How do I " + "list files in a directory? " * (i * 7 % 5) + str(i), "seed": i, "temperature": 1, "max_tokens": 9 + i % 5}) + "\n")
        rc, out, err = run("-m", model, "--raw", "--batch", name, *SCALAR, *args)
    return [rc] + [a["text"] for a in sorted(map(json.loads, out.splitlines()), key=lambda a: a["index"])], err


def warnings(err):
    """Returns what the program says on stderr beside statistics and the explanation of its modes."""
    return [line for line in err.splitlines() if "hearth: " in line and not line.startswith("hearth: prompt: ")]


def end():
    print(f"{ran} cases, {failed} failed")
    return failed != 0 or not ran
