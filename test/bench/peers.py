#!/usr/bin/env python3
"""hearth beside every peer that PyPI has, on random weights of the same shape, in one run, each as a share of this machine's limits.

    peers.py --work DIR --build                    # once: venvs; llama.cpp and ik_llama.cpp from the sdists of their Python bindings
    peers.py --work DIR --hearth BUILD [--baseline BUILD] [--only NAME,...] [--type q8_0|q4_k_m] [--layers 8] [--threads 2,1] [--rounds 3]
             [--model FILE] [--sessions 2,4,8,16] [--beside N]

DIR lies outside the repository and takes 20 GB: an FP8 checkpoint (mkmodel.py) and the same shape as GGUF. BUILD is a build directory with the
targets test/bench/bench_limit and bench_decode; that of an older commit as --baseline takes part as well. A measurement, not a dependency: nothing of it is built
or tested with hearth. A peer that cannot be installed or run is printed as SKIPPED with the reason.

Contenders take turns, each round from another one on, with the machine's limits (bench_limit) measured between any two runs. The table has medians, minimum and maximum, and the
median of each run's share of the limits beside it. Decode: bytes of a token over time, as a share of read bandwidth. Prefill: 2 * multiply-adds of
the layers (the head runs once) over time, as a share of vdpbf16ps, or of float32 FMA on a CPU without.

--model FILE takes a GGUF file that speaks instead of random weights; then an answer is timed as well, from the command to the last of ANSWER tokens, of a file that is cached.
--sessions: so many answer at once, tokens/s together. --beside: N programs that never wait run meanwhile, but for the measuring of limits.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PREFILL = (128, 512, 2048)
DEPTH = 2048
ANSWER, ANSWERED, QUESTION = 64, "an answer of 64", "Write a short story about a lighthouse keeper."
SLOW = 300  # seconds that a run of a peer may take; what it measured by then counts


class Skip(Exception):
    """The contender cannot take part; the text says why."""


def call(cmd, **more):
    return subprocess.run(cmd, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def python(work, venv):
    return os.path.join(work, "venv-" + venv, "bin", "python")


# ---- Installing ----

def install(work, venv, packages, deps=True):
    """A venv that sees the system's packages (torch is large)."""
    if not os.path.exists(python(work, venv)):
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", os.path.dirname(os.path.dirname(python(work, venv)))], check=True)
    subprocess.run([python(work, venv), "-m", "pip", "install", "-q", *([] if deps else ["--no-deps"]), *packages], check=True)


def build_source(work, name, package, source, targets, product):
    """Targets of the source tree in a package's sdist, for this CPU."""
    out = os.path.join(work, name)
    if os.path.exists(os.path.join(out, "build", product)):
        return
    os.makedirs(out, exist_ok=True)
    call([sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps", "-d", out, package])
    archive = next(f for f in os.listdir(out) if f.endswith(".tar.gz"))
    shutil.unpack_archive(os.path.join(out, archive), out)
    tree = os.path.join(out, archive[:-len(".tar.gz")], "vendor", source)
    with open(os.path.join(out, "build.log"), "w") as log:  # both print thousands of warnings
        subprocess.run(["cmake", "-S", tree, "-B", os.path.join(out, "build"), "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
                        "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"], check=True, stdout=log, stderr=log)
        subprocess.run(["nice", "-n", "19", "cmake", "--build", os.path.join(out, "build"), "--target", *targets, f"-j{os.cpu_count()}"], check=True,
                       stdout=log, stderr=log)


LLAMA_BENCH, IK_LIBRARY = os.path.join("bin", "llama-bench"), os.path.join("src", "libllama.so")
LLAMA_PROGRAMS = ["llama-bench", "llama-batched-bench", "llama-completion"]
INSTALL = {
    "llama.cpp": lambda work: build_source(work, "llama.cpp", "llama-cpp-python", "llama.cpp", LLAMA_PROGRAMS, LLAMA_BENCH),
    # Its wheel has AVX2 alone, and its sdist cannot build llama-bench: the wheel's functions with a library of the sdist.
    "ik_llama.cpp": lambda work: (install(work, "ik", ["ik-llama-cpp-python"], deps=False),
                                  build_source(work, "ik_llama.cpp", "ik-llama-cpp-python", "ik_llama.cpp", ["llama"], IK_LIBRARY)),
    # Without what only their GPU kernels and servers need. torch and transformers may be the system's.
    "fastllm": lambda work: (install(work, "fastllm", ["ftllm"], deps=False), install(work, "fastllm", ["pillow", "transformers", "jinja2"])),
    "kt-kernel": lambda work: (install(work, "kt", ["kt-kernel"], deps=False), install(work, "kt", ["safetensors", "gguf", "torch"])),
}


def build(work):
    """Each peer by itself; the reason of a failure is kept for the table."""
    os.makedirs(work, exist_ok=True)
    for name, step in INSTALL.items():
        failed = os.path.join(work, name + ".failed")
        try:
            step(work)
            if os.path.exists(failed):
                os.remove(failed)
        except (subprocess.CalledProcessError, OSError, StopIteration) as why:
            with open(failed, "w") as f:
                f.write(f"installation failed: {why}")
            print(f"{name}: installation failed: {why}", file=sys.stderr)


def need(work, name, path):
    if os.path.exists(path):
        return
    failed = os.path.join(work, name + ".failed")
    if not os.path.exists(failed):
        raise Skip(f"not installed; run peers.py --work {work} --build")
    with open(failed) as f:
        raise Skip(f.read())


# ---- Runs: each returns {test: tokens/s} ----

def stream(cmd, **environment):
    """The JSON objects, one a line, that a driver printed until it ended or SLOW was over."""
    try:
        out = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SLOW, env=dict(os.environ, **environment))
        text, why = out.stdout, out.stderr.decode(errors="replace").strip().split("\n")[-1] if out.returncode else ""
    except subprocess.TimeoutExpired as late:
        text, why = late.stdout or b"", f"nothing measured within {SLOW} s"
    rows = {}
    for line in text.decode(errors="replace").splitlines():
        if line.startswith("{"):
            rows.update(json.loads(line))
    if not rows:
        raise Skip(why or "printed no figure")
    return rows


def answer_time(cmd, tokens=lambda out: ANSWER):
    """{test: tokens/s} of an answer, from the command to its end. tokens: how many its output has."""
    begin = time.perf_counter()
    out = subprocess.run(cmd, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=SLOW).stdout
    took = time.perf_counter() - begin
    return {ANSWERED: tokens(out) / took}


def hearth(a, job, threads):
    program = os.path.join(job["build"], "hearth")
    rows = json.loads(call([program, "-m", job["model"], "--bench", "--json", "-t", str(threads)], stderr=subprocess.DEVNULL))
    job["figures"].setdefault("macs_per_token", rows[0]["token_flops"] / 2)
    out = {}
    for r in rows:
        if r["what"] == "prefill" and r["prompt"] in PREFILL:
            out[f"prefill {r['prompt']}"] = r["tokens_per_s"]
        elif r["what"] == "decode" and r["sessions"] == 1 and r["prompt"] in (16, DEPTH):
            out["decode" if r["prompt"] == 16 else f"decode at {DEPTH}"] = r["tokens_per_s"]
        elif r["what"] == "decode" and r["sessions"] in a.sessions:
            out[f"decode, {r['sessions']} sessions"] = r["tokens_per_s"]
    for n in a.sessions:
        if f"decode, {n} sessions" not in out:
            text = call([os.path.join(job["build"], "test/bench/bench_decode"), job["model"], str(threads), "16", str(n), "32"])
            out[f"decode, {n} sessions"] = float(re.search(r"([0-9.]+) tok/s", text).group(1))
    if a.model:
        out.update(answer_time([program, "-m", job["model"], "-t", str(threads), "-n", str(ANSWER), "--temp", "0", "--json", "-p", QUESTION],
                               lambda text: json.loads(text)["usage"]["answer_tokens"]))
    return out


def llama_programs(a, job, threads):
    """llama.cpp and its forks, built with their own tools."""
    folder = os.path.join(a.work, job["peer"], "build", "bin")
    need(a.work, job["peer"], os.path.join(folder, "llama-bench"))
    file = ["-m", job["model"], "-t", str(threads)]
    calls = [(["-p", "0", "-n", "32"], ["decode"])]
    if threads == max(a.threads):
        calls += [(["-n", "0", "-p", ",".join(map(str, PREFILL))], [f"prefill {n}" for n in PREFILL]),
                  (job["behind"], [f"decode at {DEPTH}"])]
    out, why = {}, ""

    def attempt(get):
        nonlocal why
        try:
            out.update(get())
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, ValueError, OSError) as failed:  # its AMX path ends with a signal on some files
            why = str(failed)

    def table(args, names):
        rows = json.loads(call([os.path.join(folder, "llama-bench"), *file, "-r", "2", "-o", "json", *args], stderr=subprocess.PIPE, timeout=SLOW))
        return {name: statistics.median(r["samples_ts"]) for name, r in zip(names, rows[-len(names):])}

    def together(n):
        text = call([os.path.join(folder, "llama-batched-bench"), *file, "-c", str(64 * n), "-npp", "16", "-ntg", "32", "-npl", str(n)], stderr=subprocess.DEVNULL, timeout=SLOW)
        cells = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
        return {f"decode, {n} sessions": float(cells[-1][[c.strip() for c in cells[0]].index("S_TG t/s")])}

    for args, names in calls:
        attempt(lambda: table(args, names))  # noqa: B023 (called at once)
    for n in a.sessions:
        attempt(lambda: together(n))  # noqa: B023
    if a.model:
        program = next((p for p in ("llama-completion", "llama-cli") if os.path.exists(os.path.join(folder, p))), "llama-cli")
        attempt(lambda: answer_time([os.path.join(folder, program), *file, "-n", str(ANSWER), "--temp", "0", "-no-cnv", "--ignore-eos", "-p", QUESTION]))
    if not out:
        raise Skip(why)
    return out


def ik_llama(a, job, threads):
    if os.path.exists(os.path.join(a.work, "ik_llama.cpp", "build", LLAMA_BENCH)):  # built from its repository
        return llama_programs(a, job, threads)
    library = os.path.join(a.work, "ik_llama.cpp", "build", IK_LIBRARY)
    need(a.work, "ik_llama.cpp", library)
    need(a.work, "ik_llama.cpp", python(a.work, "ik"))
    tests = ["decode:16:0:32"]
    if threads == max(a.threads):
        tests += [*(f"prefill {n}:0:{n}:0" for n in PREFILL), f"decode at {DEPTH}:{DEPTH}:0:32"]
    return stream([python(a.work, "ik"), os.path.join(HERE, "peers_ik.py"), job["model"], str(threads), *tests], IK_LLAMA_CPP_LIB_PATH=library)


def fastllm(a, job, threads):
    need(a.work, "fastllm", python(a.work, "fastllm"))
    prompts = [n for n in PREFILL if n < 2048] if threads == max(a.threads) else []
    return stream([python(a.work, "fastllm"), os.path.join(HERE, "peers_fastllm.py"), job["model"], str(threads), "decode:16:9",
                   *(f"prefill {n}:{n}:1" for n in prompts)])


def kt_kernel(a, job, threads):
    need(a.work, "kt-kernel", python(a.work, "kt"))
    prompts = PREFILL if threads == max(a.threads) else []
    return stream([python(a.work, "kt"), os.path.join(HERE, "peers_kt.py"), job["shape"], str(threads), "decode:1", *(f"prefill {n}:{n}" for n in prompts)])


def contenders(a, fp8, gguf, shape, figures):
    """Name, run, what to run; and whether the bytes of a token are those of the GGUF file."""
    rows = []
    for label, path in (("hearth", a.hearth), ("baseline", a.baseline)):
        if path and fp8:
            rows += [(f"{label} FP8", hearth, dict(build=path, model=fp8, figures=figures))]
        if path:
            rows += [(f"{label} {a.type}", hearth, dict(build=path, model=gguf, figures=figures))]
    rows += [(f"ik_llama.cpp {a.type}", ik_llama, dict(peer="ik_llama.cpp", model=gguf, behind=["-gp", f"{DEPTH},32", "-p", "0", "-n", "0"])),
             (f"llama.cpp {a.type}", llama_programs, dict(peer="llama.cpp", model=gguf, behind=["-p", "0", "-n", "32", "-d", str(DEPTH)]))]
    if fp8:
        rows += [("fastllm FP8", fastllm, dict(model=fp8)), ("kt-kernel FP8, experts alone", kt_kernel, dict(shape=shape))]
    return [r for r in rows if not a.only or any(r[0].startswith(o) for o in a.only.split(","))]


# ---- Table ----

def model_files(a):
    """Writes both models once. Returns their paths, the shape's file and figures of a token."""
    shape = dict(layers=a.layers, vocab=a.vocab, name=a.shape)
    fp8 = os.path.join(a.work, f"{a.shape}-{a.layers}-{a.vocab}")
    gguf, text = f"{fp8}-{a.type}.gguf", fp8 + ".json"
    make = [sys.executable, os.path.join(HERE, "mkmodel.py"), "--shape", a.shape, "--layers", str(a.layers), "--vocab", str(a.vocab)]
    figures = json.loads(call(make + ["--count"]))
    if not os.path.exists(os.path.join(fp8, "model.safetensors.index.json")):
        call(make + ["--out", fp8])
    from runpy import run_path
    shape = dict(run_path(make[1])["SHAPES"][a.shape], **shape)
    figures["routed_macs"] = figures["routed_bytes"] = 3 * shape["hidden"] * shape["inter"] * shape["topk"] * shape["layers"]  # FP8: a byte each
    with open(text, "w") as f:
        json.dump(shape, f)
    if not os.path.exists(gguf):
        call(make + ["--gguf", a.type, "--out", gguf + ".part"])
        os.rename(os.path.join(gguf + ".part", f"{a.shape}-{a.type}.gguf"), gguf)
        os.rmdir(gguf + ".part")
    return fp8, gguf, text, figures


def share_of(test, name, speed, limit, figures, gguf_bytes):
    if test == ANSWERED:
        return float("nan")
    if test.startswith("decode"):
        if "sessions" in test:
            return float("nan")  # which experts they share is not known here: see bench_decode
        weights = figures["routed_bytes"] if "experts alone" in name else figures["decode_bytes"] if "FP8" in name else gguf_bytes
        kv = 0 if "experts alone" in name else figures["kv_bytes_per_position"] * (DEPTH if str(DEPTH) in test else 16)
        return (weights + kv) * speed / 1e9 / limit["read_gbps"]
    macs = figures["routed_macs"] if "experts alone" in name else figures["macs_per_token"] - figures["head_macs"]
    return 2 * macs * speed / 1e9 / limit.get("bf16_gflops", limit["fma_gflops"])


def read_into_cache(path):
    names = [os.path.join(path, f) for f in os.listdir(path)] if os.path.isdir(path) else [path]
    for name in names:
        with open(name, "rb", buffering=0) as f:
            while f.read(16 << 20):
                pass


@contextlib.contextmanager
def busy(n):
    """n programs that never wait."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for p in programs:
            p.kill()
            p.wait()


def measure(a, rows):
    """{(threads, name): [({test: speed}, limit), ...]}, the reasons of those skipped, and all limits by threads."""
    runs, skipped, limits = {}, {}, {t: [] for t in a.threads}
    for turn in range(a.rounds):
        for t in a.threads:
            before = json.loads(call([os.path.join(a.hearth, "test/bench/bench_limit"), str(t)]))
            for name, run, job in rows[turn % len(rows):] + rows[:turn % len(rows)]:
                if name in skipped:
                    continue
                if "model" in job:
                    read_into_cache(job["model"])  # the run before may have taken its memory
                try:
                    with busy(a.beside):
                        speeds = run(a, job, t)
                except Skip as why:
                    skipped[name] = str(why)
                    continue
                after = json.loads(call([os.path.join(a.hearth, "test/bench/bench_limit"), str(t)]))
                limit = {k: (before[k] + after[k]) / 2 for k in before}
                runs.setdefault((t, name), []).append((speeds, limit))
                limits[t].append(limit)
                print(f"# {t} threads, {name}: " + ", ".join(f"{k} {v:.1f}" for k, v in speeds.items()) +
                      "; " + ", ".join(f"{k} {v:.1f}" for k, v in limit.items() if k != "threads"), file=sys.stderr, flush=True)
                before = after
    return runs, skipped, limits


def main():
    ap = argparse.ArgumentParser(description="hearth beside its peers")
    ap.add_argument("--work", required=True, help="directory outside the repository")
    ap.add_argument("--build", action="store_true")
    ap.add_argument("--hearth", help="build directory")
    ap.add_argument("--baseline", help="build directory of another commit")
    ap.add_argument("--only", help="names of contenders, or their beginnings, separated by commas")
    ap.add_argument("--shape", choices=["qwen3-30b-a3b"], default="qwen3-30b-a3b")
    ap.add_argument("--type", choices=["q8_0", "q4_k_m"], default="q8_0", help="of the GGUF file")
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--vocab", type=int, default=32000, help="small, so that the head does not drown the experts")
    ap.add_argument("--threads", default=f"{os.cpu_count()},1", help="numbers of threads; prefills of peers run with the largest only")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--model", help="a GGUF file instead of random weights")
    ap.add_argument("--sessions", default="4", help="that answer at once")
    ap.add_argument("--beside", type=int, default=0, help="programs that keep a CPU busy each")
    a = ap.parse_args()
    a.work, a.threads, a.sessions = os.path.abspath(a.work), [int(t) for t in a.threads.split(",")], [int(n) for n in a.sessions.split(",") if n]
    if a.build:
        build(a.work)
    if not a.hearth:
        return
    if a.model:
        a.type = ""
    fp8, gguf, shape, figures = (None, a.model, None, {}) if a.model else model_files(a)
    about = json.loads(call([os.path.join(a.hearth, "hearth"), "-m", gguf, "--inspect", "--json"]))
    gguf_bytes = about["bytes"]["per_token"]
    if a.model:
        figures = {"kv_bytes_per_position": about["bytes"]["kv_per_token"], "head_macs": 0}
    runs, skipped, limits = measure(a, contenders(a, fp8, gguf, shape, figures))
    for t in a.threads:
        for k in limits[t][0] if limits[t] else []:
            values = [r[k] for r in limits[t]]
            if k != "threads":
                print(f"{t} threads, {k}: {statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})")
    print(f"\n{'test':20s} {'threads':>7s}  {'contender':30s} {'tok/s':>8s} {'min':>8s} {'max':>8s} {'share':>6s}")
    for test in ["decode", *(f"decode, {n} sessions" for n in a.sessions), f"decode at {DEPTH}", *(f"prefill {n}" for n in PREFILL), ANSWERED]:
        for (t, name), got in sorted(runs.items(), key=lambda r: -r[0][0]):
            have = [(speeds[test], limit) for speeds, limit in got if test in speeds]
            if have:
                values, shares = [v for v, _ in have], [share_of(test, name, v, limit, figures, gguf_bytes) for v, limit in have]
                print(f"{test:20s} {t:7d}  {name:30s} {statistics.median(values):8.1f} {min(values):8.1f} {max(values):8.1f} {statistics.median(shares):6.2f}")
    for name, why in skipped.items():
        print(f"SKIPPED {name}: {why}")


main()
